"""Tables of correlations over made-up scores and accuracies."""

import csv
import itertools
import json

import numpy as np
import pytest
import scipy.stats

from nasjax.errors import InputError
from nasjax.evaluation import load_nasbench201_table
from nasjax.runs import CorrelateSettings, load_scored_pool, run_correlation

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
CELLS = [
    f"|{a}~0|+|{b}~0|nor_conv_1x1~1|+|{c}~0|skip_connect~1|nor_conv_3x3~2|"
    for a, b, c in itertools.product(OPERATIONS, repeat=3)
]
COLUMNS = ("c10_test200_mean", "c100_test200_mean", "in16_test200_mean", "c10_val12")
SETTINGS = CorrelateSettings(
    metrics=("m",), kappa="k", sets=(("m", "j"), ("j",)), steps=6, num_seeds=3
)


@pytest.fixture
def files(tmp_path):
    """Errors are kappa / M + (M^2 - 1)^2 / 100; ten cells have no kappa and the worst accuracy."""
    rng = np.random.default_rng(0)
    metric = np.exp(rng.normal(size=125))
    kappa = np.exp(rng.normal(size=125))
    error = kappa / metric + 0.01 * (metric**2 - 1) ** 2
    error[:10] = error.max() + 1 + np.arange(10)
    accuracy = 50 - 3 * np.log(error)
    with (tmp_path / "made.csv").open("w", newline="") as file:
        kappas = ["" if place < 10 else value for place, value in enumerate(kappa)]
        rows = zip(CELLS, metric, kappas, accuracy + 3 * rng.normal(size=125), strict=True)
        csv.writer(file).writerows([("architecture", "m", "k", "j"), *rows])
    with (tmp_path / "table.csv").open("w", newline="") as file:
        rows = [(cell, *[one] * 4, 1.0) for cell, one in zip(CELLS, accuracy, strict=True)]
        csv.writer(file).writerows([("arch", *COLUMNS, "c10_params_M"), *rows])
    return load_scored_pool(tmp_path / "made.csv"), load_nasbench201_table(tmp_path / "table.csv")


def _row(rows, form, tuned_by="", score="m"):
    (found,) = (
        row
        for row in rows
        if (row["score"], row["form"], row["tuned_by"]) == (score, form, tuned_by)
    )
    return found


def test_rows_are_the_correlations_of_what_they_name(files, tmp_path):
    pool, table = files
    rows = run_correlation(SETTINGS, *files, tmp_path / "run")
    accuracy = table.accuracy_of("cifar10_test", pool.row_genotypes)
    assert (
        len(accuracy) == 125 > len(pool.genotypes)
    )  # equivalent cells have accuracies of their own
    metric, kappa = (pool.score_of(name)[pool.row_places] for name in "mk")
    plain = _row(rows, "realizable")
    assert plain["spearman"] == pytest.approx(scipy.stats.spearmanr(metric, accuracy)[0])
    assert plain["kendall"] == pytest.approx(scipy.stats.kendalltau(metric, accuracy)[0])
    assert plain["low"] < plain["spearman"] < plain["high"] and plain["num"] == len(accuracy)
    top = accuracy >= np.quantile(accuracy, 0.9)
    expected = scipy.stats.spearmanr(metric[top], accuracy[top])[0]
    assert plain["spearman_top"] == pytest.approx(expected)
    with_kappa, known = _row(rows, "realizable_kappa"), np.isfinite(kappa)
    expected = scipy.stats.spearmanr((metric / kappa)[known], accuracy[known])[0]
    assert with_kappa["spearman"] == pytest.approx(expected) and with_kappa["num"] == known.sum()
    last = np.where(known, metric / kappa, -1.0)
    assert with_kappa["spearman_all"] == pytest.approx(scipy.stats.spearmanr(last, accuracy)[0])
    tuned = _row(rows, "non_realizable", "test error")
    assert tuned["spearman_all"] > max(0.97, with_kappa["spearman_all"])
    searched = _row(rows, "non_realizable", "evaluations")
    assert searched["spearman_all"] <= tuned["spearman_all"] and searched["std"] >= 0
    equal = _row(rows, "equal weights", score="m+j")
    size = len(pool.genotypes)
    ranks = [scipy.stats.rankdata(pool.score_of(name)) / (size + 1) for name in "mj"]
    both = sum(scipy.stats.norm.ppf(one) for one in ranks)[pool.row_places]
    assert equal["spearman"] == pytest.approx(scipy.stats.spearmanr(both, accuracy)[0])
    for form, tuned_by in (
        ("weighted ranks", "evaluations"),
        ("linear model", "evaluations"),
        ("linear model", "drawn evaluations"),
    ):
        assert abs(_row(rows, form, tuned_by, score="m+j")["spearman"]) <= 1
    model = _row(rows, "linear model", "drawn evaluations", score="m+j")["spearman"]
    assert equal["spearman"] < model < _row(rows, "equal weights", score="j")["spearman"] + 0.02
    with (tmp_path / "run" / "correlations.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows) == 11
    assert (tmp_path / "run" / "correlations.svg").stat().st_size > 1000


class _StoppedError(Exception):
    pass


def test_an_interrupted_table_ends_the_same(files, tmp_path):
    def on_step(phase, step, num_steps, record):
        if step == 4 and record:
            raise _StoppedError

    whole = run_correlation(SETTINGS, *files, tmp_path / "whole")
    with pytest.raises(_StoppedError):
        run_correlation(SETTINGS, *files, tmp_path / "stopped", on_step=on_step)
    assert run_correlation(SETTINGS, *files, tmp_path / "stopped") == whole
    for name in ("history.jsonl", "correlations.json", "correlations.svg"):
        stopped = (tmp_path / "stopped" / name).read_bytes()
        assert stopped == (tmp_path / "whole" / name).read_bytes()
    record = json.loads((tmp_path / "whole" / "correlations.json").read_text())
    assert record["rows"] == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bounds": ("realisable",)}, "unknown bound 'realisable'. Did you mean 'realizable'"),
        ({"metrics": (), "sets": ()}, "--metrics or --sets must name a metric, got none"),
        ({"ranges": "wide"}, "unknown ranges 'wide'"),
        ({"steps": 0}, "--steps: must be at least 1, got 0"),
        ({"num_seeds": 0}, "--num-seeds: must be at least 1, got 0"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(InputError, match=message):
        CorrelateSettings(**{"metrics": ("m",), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": ("n",)}, "unknown metric 'n'"),
        ({"sets": (("m", "n"),)}, "unknown metric 'n'"),
        ({"accuracy": "cifar10"}, "unknown accuracy 'cifar10'"),
        ({"validation": "cifar10_val"}, "unknown accuracy 'cifar10_val'"),
    ],
)
def test_what_only_the_files_tell(files, tmp_path, change, message):
    settings = CorrelateSettings(**{"metrics": ("m",), "kappa": "k", **change})
    with pytest.raises(InputError, match=message):
        run_correlation(settings, *files, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_pool_of_two_has_no_correlation(files, tmp_path):
    pool, table = files
    with pytest.raises(InputError, match="must have 3 architectures that differ, got 2"):
        run_correlation(
            CorrelateSettings(metrics=("m",), kappa="k"),
            *(pool.part(np.arange(2)), table, tmp_path / "run"),
        )
