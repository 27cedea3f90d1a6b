"""Correlations of scores with accuracies."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from nasjax.errors import InputError
from nasjax.evaluation import Nasbench201Table
from nasjax.runs.score_table import correlations
from nasjax.spaces.nasbench201 import genotype_from_index

CELLS = np.stack([genotype_from_index(index) for index in range(30)])


def make_table(count=30):
    accuracy = np.linspace(0.1, 0.9, count)
    return Nasbench201Table(
        CELLS[:count],
        accuracy,
        1 - accuracy,
        np.sin(7 * accuracy),
        accuracy**2,
        np.ones(count),
        others={"cifar10_test_12": -(accuracy**3)},
    )


def rows_of(**columns):
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def test_a_metric_that_is_better_when_lower_is_turned_round():
    falling = [100.0 - index for index in range(30)]
    rows = rows_of(grad_norm=falling, condition_number=falling)
    found = correlations(rows, CELLS, ("grad_norm", "condition_number"), make_table())
    signs = {"cifar10_test": 1, "cifar100_test": -1, "cifar10_test_12": -1}
    for name, sign in signs.items():
        for kind in ("spearman", "kendall"):
            assert found["condition_number"][name][kind]["value"] == pytest.approx(sign)
            assert found["grad_norm"][name][kind]["value"] == pytest.approx(-sign)
    assert found["grad_norm"]["cifar10_test"]["kendall"]["num_pairs"] == 30
    interval = found["grad_norm"]["imagenet16_test"]["spearman"]
    assert interval["low"] < interval["value"] < interval["high"]


def test_failures_and_cells_that_the_table_lacks_are_left_out():
    scores = [float(index) for index in range(30)]
    scores[3] = None
    failures = [0] * 30
    scores[4], failures[4] = 1e9, 1
    rows = rows_of(snip=scores, snip_failed=failures)
    found = correlations(rows, CELLS, ("snip",), make_table(20))["snip"]["cifar10_test"]
    assert found["spearman"]["num_pairs"] == 18
    assert found["spearman"]["value"] == pytest.approx(1.0)
    last = found["spearman_failed_last"]
    values = [float(index) for index in range(20)]
    values[3] = values[4] = -1.0
    assert last["num_pairs"] == 20
    assert last["value"] == pytest.approx(spearmanr(values, range(20)).statistic)


def test_accuracies_of_cells_that_the_table_lacks_are_nan():
    table = make_table(5)
    found = table.accuracy_of("cifar10_test_12", CELLS[3:6])
    np.testing.assert_allclose(found[:2], table.others["cifar10_test_12"][3:])
    assert math.isnan(found[2])
    with pytest.raises(InputError, match="Did you mean 'cifar10_test'"):
        table.accuracy_of("cifar10_tset", CELLS)


def test_a_cell_that_was_asked_for_twice_counts_once():
    rows = rows_of(snip=[float(index) for index in range(30)])
    once = correlations(rows, CELLS, ("snip",), make_table())
    twice = correlations(2 * rows, 2 * list(CELLS), ("snip",), make_table())
    assert twice == once
