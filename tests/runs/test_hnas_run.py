"""HNAS over scores and a table that are made up: files, interruption, failures, bad input."""

import csv
import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.evaluation import load_nasbench201_table
from nasjax.runs import HnasSettings, load_scored_pool, run_hnas, table_evaluation
from nasjax.search import Evaluation
from nasjax.spaces import get_space

CELLS = [
    f"|{a}~0|+|{b}~0|nor_conv_1x1~1|+|{c}~0|skip_connect~1|nor_conv_3x3~2|"
    for a, b, c in itertools.product(
        ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3"), repeat=3
    )
]  # 125
COLUMNS = ("c10_test200_mean", "c100_test200_mean", "in16_test200_mean", "c10_val12")
EVALUATED_BY = {"table": "made up"}


def _write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def files(tmp_path):
    """The accuracy is greatest where M is the square root of 5, and kappa tells it a little."""
    rng = np.random.default_rng(0)
    metric = np.exp(rng.normal(size=len(CELLS)))
    accuracy = 90 - 0.1 * (np.minimum(metric, 5) ** 2 - 5) ** 2
    kappa = np.exp(-0.1 * accuracy + rng.normal(size=len(CELLS)) * 0.1)
    rows = [(cell, *values, "", "") for cell, *values in zip(CELLS, metric, kappa, strict=True)]
    rows[3] = (CELLS[3], "nan", kappa[3], "trace: dead", "")
    rows[4] = (CELLS[4], -1.0, kappa[4], "", "")
    rows[5] = (CELLS[5], 2.0, "", "", "")
    rows.append(rows[0])
    scores = _write(tmp_path / "made.csv", ("architecture", "m", "k", "flags", "warnings"), rows)
    accuracies = [(cell, *[a] * 4, 1.0) for cell, a in zip(CELLS, accuracy, strict=True)]
    table = _write(tmp_path / "table.csv", ("arch", *COLUMNS, "c10_params_M"), accuracies)
    return load_scored_pool(scores), load_nasbench201_table(table), accuracy / 100


SETTINGS = HnasSettings(metric="m", kappa="k", steps=8)


def _run(files, out, settings=SETTINGS, **kwargs):
    pool, table, _ = files
    evaluate = table_evaluation(pool, table, "cifar10_validation_12", 150.0)
    kwargs = {"evaluated_by": EVALUATED_BY, "table": table, **kwargs}
    return run_hnas(settings, pool, kwargs.pop("evaluate", evaluate), out, **kwargs)


def test_equivalent_rows_are_one_architecture(files):
    pool, *_ = files
    assert len(pool.row_places) == len(CELLS) + 1 and pool.row_places[-1] == pool.row_places[0]
    space = get_space("nasbench201")
    classes = {space.to_string(space.canonical(space.from_string(cell))) for cell in CELLS}
    assert len(pool.genotypes) == len(classes) < len(CELLS)
    assert math.isnan(pool.score_of("m")[3])
    assert set(pool.scores) == {"m", "k"}


def test_a_search_finds_a_good_cell_and_leaves_its_files(files, tmp_path):
    result = _run(files, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "architecture.json").read_text())
    assert record["architecture"] == result.record["architecture"]
    assert record["value"] >= np.sort(files[2])[-12]
    assert record["accuracies"]["cifar10_test"] == pytest.approx(record["value"])
    assert record["seconds"] == {"evaluations": 1200.0, "metrics": None}
    objective_fn, _ = SETTINGS.objective(files[0])
    values = objective_fn.values_at(record["mu"], record["nu"])
    assert int(np.argmin(values)) == int(np.argmin(objective_fn(record["constants"])))
    history = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in history]
    assert len({line["place"] for line in lines}) == 8 == record["num_evaluations"]
    assert [line["total_seconds"] for line in lines] == [150.0 * n for n in range(1, 9)]
    for name in ("cells.svg", "cells.png", "search.svg", "search.png"):
        assert (tmp_path / "run" / name).stat().st_size > 1000
    assert _run(files, tmp_path / "run").num_run == 0


class _StoppedError(Exception):
    pass


def test_an_interrupted_search_ends_the_same(files, tmp_path):
    def on_step(phase, step, num_steps, record):
        if step == 5 and record:
            raise _StoppedError

    whole = _run(files, tmp_path / "whole")
    with pytest.raises(_StoppedError):
        _run(files, tmp_path / "stopped", on_step=on_step)
    resumed = _run(files, tmp_path / "stopped")
    assert resumed.num_run == 3
    assert json.dumps(resumed.record) == json.dumps(whole.record)
    for name in ("history.jsonl", "search.svg", "cells.svg"):
        assert (tmp_path / "stopped" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes()
    with pytest.raises(InputError, match="other settings .*scores_sha256|other settings .*seed"):
        _run(files, tmp_path / "whole", HnasSettings(metric="m", kappa="k", steps=8, seed=1))


def test_weights_of_ranks_are_tuned_too(files, tmp_path):
    settings = HnasSettings(weighted=("m", "k"), steps=6)
    record = _run(files, tmp_path / "run", settings).record
    assert record["num_evaluations"] == 6
    constants = [
        json.loads(line)["constants"]
        for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    ]
    assert constants[0] == [0.5, 0.5]


def test_what_an_evaluation_raises_is_recorded(files, tmp_path):
    asked = []

    def evaluate(place):
        asked.append(place)
        if len(asked) % 2:
            raise RuntimeError("out of memory\nsomewhere")
        return Evaluation(0.5 + 0.01 * len(asked), 1.0)

    record = _run(files, tmp_path / "run", evaluate=evaluate).record
    assert (record["num_failed"], record["value"]) == (4, 0.58)
    first = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[0])
    assert first["failure"] == "RuntimeError: out of memory"
    assert first["value"] is None and first["best_value"] is None


def test_too_many_failures_end_a_search_with_their_cause(files, tmp_path):
    def evaluate(place):
        raise OSError("no such device")

    with pytest.raises(InputError, match="got 5 failures one after the other, .*no such device"):
        _run(files, tmp_path / "run", evaluate=evaluate)


def test_a_single_architecture_is_found(tmp_path):
    path = _write(tmp_path / "one.csv", ("architecture", "m", "k"), [("6111", 2.0, 3.0)])
    settings = HnasSettings(metric="m", kappa="k", steps=1)
    pool = load_scored_pool(path)
    result = run_hnas(
        *(settings, pool, lambda place: Evaluation(0.9, 1.0), tmp_path / "run"),
        evaluated_by=EVALUATED_BY,
    )
    assert result.record["official_index"] == 6111
    with pytest.raises(InputError, match="--steps: must be at most 1, the architectures"):
        run_hnas(
            *(HnasSettings(metric="m", kappa="k", steps=2), pool),
            *(lambda place: Evaluation(0.9, 1.0), tmp_path / "two"),
            evaluated_by=EVALUATED_BY,
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("architecture,m\n", "must have a column 'architecture', .* and 0 rows"),
        ("cell,m\n6111,1\n", "must have a column 'architecture', .*got the columns cell, m"),
        ("architecture\n6111\n", "columns of metrics"),
        ("architecture,m\n6111\n", "line 2: must have 2 cells, got 1"),
        ("architecture,m\n6111,high\n", "line 2: m must be a number, .* got 'high'"),
        ("architecture,m\n6111,1\n|what|,2\n", "line 3: "),
        ("\xff\xfe", "must have a column"),
    ],
)
def test_damaged_scores_are_told(tmp_path, text, message):
    path = tmp_path / "made.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_scored_pool(path)


def test_evaluations_cost_what_the_table_says(files):
    pool, table, _ = files
    name = "cifar10_validation_12"
    assert table_evaluation(pool, table, name)(0).seconds == 150.0
    assert table_evaluation(pool, table, name, 7.0)(0).seconds == 7.0
    known = dataclasses.replace(table, seconds_12=np.arange(len(table.genotypes), dtype=float))
    own = known.seconds_of(pool.genotypes)
    assert table_evaluation(pool, known, name)(9).seconds == own[9] > 0
    whole = table_evaluation(pool, known, "cifar10_test")(9)  # after 200 epochs
    assert whole.seconds == pytest.approx(own[9] * 200 / 12)


def test_what_is_refused(files, tmp_path):
    pool, table, _ = files
    with pytest.raises(InputError, match="must be a folder of `nasjax score` .*No such file"):
        load_scored_pool(tmp_path / "none")
    with pytest.raises(InputError, match="unknown metric 'n'. .*Known: k, m"):
        _run(files, tmp_path / "run", HnasSettings(metric="n", kappa="k"))
    with pytest.raises(InputError, match="unknown accuracy 'cifar10_val'. Did you mean"):
        table_evaluation(pool, table, "cifar10_val", 1.0)
    with pytest.raises(InputError, match="--steps: must be at least 1, got 0"):
        HnasSettings(steps=0)
    with pytest.raises(InputError, match="--bound: unknown bound 'x'"):
        HnasSettings(bound="x")
    path = _write(tmp_path / "zero.csv", ("architecture", "m", "k"), [("6111", 0.0, 3.0)])
    with pytest.raises(InputError, match="must have all metrics that are asked for, above zero"):
        HnasSettings(metric="m", kappa="k").search(load_scored_pool(path))
    rows = [("6111", 2.0, 3.0), ("6112", 2.0, 3.0)]
    same = load_scored_pool(_write(tmp_path / "same.csv", ("architecture", "m", "k"), rows))
    for settings in (HnasSettings(metric="m", kappa="k"), HnasSettings(weighted=("m",))):
        with pytest.raises(InputError, match="must tell architectures of .*the same for all 2"):
            settings.search(same)


def test_rows_unlike_an_equivalent_one_are_counted(tmp_path):
    rows = [("6111", 2.0), ("6111", 2.0), ("6111", 3.0), ("6112", "nan"), ("6112", "")]
    pool = load_scored_pool(_write(tmp_path / "twice.csv", ("architecture", "m"), rows))
    assert pool.num_unlike == 1 and pool.score_of("m")[0] == 2.0
