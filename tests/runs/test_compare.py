"""Searches side by side over made-up scores and accuracies."""

import csv
import dataclasses
import itertools
import json

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.evaluation import load_nasbench201_table
from nasjax.runs import CompareSettings, load_scored_pool, run_comparison

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
CELLS = [
    f"|{a}~0|+|{b}~0|nor_conv_1x1~1|+|{c}~0|skip_connect~1|nor_conv_3x3~2|"
    for a, b, c in itertools.product(OPERATIONS, repeat=3)
]
COLUMNS = ("c10_test200_mean", "c100_test200_mean", "in16_test200_mean", "c10_val12")
WHOLE = "c10_val200"
SETTINGS = CompareSettings(
    searches=("random", "ranking:m", "evolution", "reinforce"), num_seeds=3, steps=6
)


@pytest.fixture
def files(tmp_path):
    """Validation accuracy is the metric, test accuracies lie at and below it."""
    accuracy = np.linspace(40, 90, len(CELLS))
    with (tmp_path / "made.csv").open("w", newline="") as file:
        rows = zip(CELLS, accuracy, 1 / accuracy, strict=True)
        csv.writer(file).writerows([("architecture", "m", "condition_number"), *rows])
    with (tmp_path / "table.csv").open("w", newline="") as file:
        rows = [(c, a, a - 10, a - 20, a, a, 1.0) for c, a in zip(CELLS, accuracy, strict=True)]
        csv.writer(file).writerows([("arch", *COLUMNS, WHOLE, "c10_params_M"), *rows])
    return load_scored_pool(tmp_path / "made.csv"), load_nasbench201_table(tmp_path / "table.csv")


def test_searches_are_told_by_what_they_select(files, tmp_path):
    found = run_comparison(SETTINGS, *files, tmp_path / "run")
    best = files[0].score_of("m").max() / 100
    ranking = found["ranking:m"]
    assert ranking["validation"] == pytest.approx(
        {"mean": best, "std": 0, "low": best, "high": best}
    )
    assert ranking["imagenet16_test"]["mean"] == pytest.approx(best - 0.2)
    assert ranking["seconds"] == 6 * 150.0
    lines = [json.loads(x) for x in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert {(line["search"], line["seed"]) for line in lines} == set(
        itertools.product(SETTINGS.searches, range(3))
    )
    last = [line["best_values"][-1] for line in lines if line["search"] == "random"]
    assert found["random"]["validation"]["mean"] == pytest.approx(np.mean(last))
    assert found["random"]["validation"]["std"] == pytest.approx(np.std(last, ddof=1))
    assert found["random"]["validation"]["mean"] < best
    for line in lines:
        assert line["best_values"] == sorted(line["best_values"]) and len(line["seconds"]) == 6
    assert (tmp_path / "run" / "comparison.svg").stat().st_size > 1000
    written = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert written["optimum_of_pool"]["cifar10_test"] == pytest.approx(best)


class _StoppedError(Exception):
    pass


def test_an_interrupted_comparison_ends_the_same(files, tmp_path):
    def on_step(phase, step, num_steps, record):
        if step == 7 and record:
            raise _StoppedError

    whole = run_comparison(SETTINGS, *files, tmp_path / "whole")
    with pytest.raises(_StoppedError):
        run_comparison(SETTINGS, *files, tmp_path / "stopped", on_step=on_step)
    again = run_comparison(SETTINGS, *files, tmp_path / "stopped")
    assert repr(again) == repr(whole)  # a cost that is not known is NaN, which equals nothing
    for name in ("history.jsonl", "comparison.json", "comparison.svg"):
        assert (tmp_path / "stopped" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes()


def test_a_metric_that_is_better_when_lower_is_turned_round(files, tmp_path):
    settings = CompareSettings(searches=("ranking:condition_number",), num_seeds=1, steps=1)
    found = run_comparison(settings, *files, tmp_path / "run")
    assert found["ranking:condition_number"]["validation"]["mean"] == pytest.approx(
        files[0].score_of("m").max() / 100
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"searches": ("randon",)}, "unknown search 'randon'. Did you mean 'random'"),
        ({"searches": ("ranking",)}, "ranking must name a metric, got 'ranking'. Write ranking:"),
        ({"searches": ("random", "random")}, "must be distinct, got 'random,random'"),
        ({"searches": ()}, "must be distinct"),
        ({"found": {"random": "x"}}, "must be distinct, got 'random,random'"),
        ({"pool_size": 0}, "--pool-size: must be at least 1, got 0"),
        ({"searches": ("predicted:",)}, "predicted must name metrics, got 'predicted:'"),
        ({"num_seeds": 0}, "--num-seeds: must be at least 1, got 0"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(InputError, match=message):
        CompareSettings(**{"searches": ("random",), **change})


def test_every_search_runs_on_a_part_of_the_pool(files, tmp_path):
    """Each seed has a pool of its own, the same for all searches; training-free ones cost none."""
    pool, table = files
    pool = pool._replace(
        scores={**pool.scores, "k": 1 / pool.score_of("m")}, seconds=2.0 * len(pool.genotypes)
    )
    names = ("hnas:m+k", "weighted:m", "predicted:m", "ranking:m", "sample:m+10", "pruning:k+m")
    names = (*names, "random", "evolution", "reinforce", "parzen", "bohb")
    settings = CompareSettings(searches=names, pool_size=30, num_seeds=4, steps=6)
    found = run_comparison(settings, pool, table, tmp_path / "run")
    lines = [json.loads(x) for x in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    best = {
        line["seed"]: line["best_values"][-1] for line in lines if line["search"] == "ranking:m"
    }
    assert len(set(best.values())) > 1  # the best of 30 differs by seed
    for line in lines:
        assert line["best_values"][-1] <= best[line["seed"]]
    for name in ("predicted:m", "weighted:m"):
        assert found[name]["validation"] == found["ranking:m"]["validation"]
    assert found["pruning:k+m"]["validation"]["mean"] == pytest.approx(
        found["ranking:m"]["validation"]["mean"], abs=0.1
    )
    costs = {name: (found[name]["metric_seconds"], found[name]["seconds"]) for name in names}
    assert costs["sample:m+10"] == (20.0, 0.0) and costs["pruning:k+m"] == (60.0, 0.0)
    assert costs["bohb"][0] == 0.0 and costs["bohb"][1] >= 5 * 150.0 + 2500.0
    assert costs["random"] == (0.0, 900.0) and costs["hnas:m+k"] == (60.0, 900.0)


def test_finished_runs_stand_beside(files, tmp_path):
    pool, table = files
    costs = (
        {"seconds": 8.0},
        {"seconds": {"nu": 1.0, "search": 4.0}},
        {"search": {"seconds": 5.0}},
    )
    for seed, (cell, cost) in enumerate(zip(CELLS[-3:], costs, strict=True)):
        folder = tmp_path / f"nasi-{seed}"
        folder.mkdir()
        record = {"space": "nasbench201", "architecture": cell, **cost}
        (folder / "architecture.json").write_text(json.dumps(record))
    settings = dataclasses.replace(SETTINGS, found={"NASI": str(tmp_path / "nasi-*")})
    found = run_comparison(settings, pool, table, tmp_path / "run")["NASI"]
    assert found["num_searches"] == 3
    assert found["cifar10_test"]["mean"] == pytest.approx(
        np.linspace(40, 90, 125)[-3:].mean() / 100
    )
    assert found["metric_seconds"] == 6.0 and found["seconds"] == 0.0
    for pattern, message in (("none-*", "must name folders of finished runs, got none"),):
        settings = dataclasses.replace(SETTINGS, found={"NASI": str(tmp_path / pattern)})
        with pytest.raises(InputError, match=message):
            run_comparison(settings, pool, table, tmp_path / "other")
    (tmp_path / "nasi-1" / "architecture.json").unlink()
    settings = dataclasses.replace(SETTINGS, found={"NASI": str(tmp_path / "nasi-*")})
    with pytest.raises(InputError, match="nasi-1 must be the folder of a run that has ended"):
        run_comparison(settings, pool, table, tmp_path / "other")


def test_scores_of_other_files_have_a_name_before_them(files, tmp_path):
    pool, _ = files
    other = pool.part(np.arange(10, 20))
    both = pool.with_scores("narrow", other)
    values = both.score_of("narrow/m")
    assert np.isnan(np.delete(values, range(10, 20))).all()
    np.testing.assert_array_equal(values[10:20], pool.score_of("m")[10:20])
    assert not both.is_higher_better("narrow/condition_number") and both.is_higher_better(
        "narrow/m"
    )
    assert both.sha256 != pool.sha256
    with pytest.raises(InputError, match="--also: must have a name of its own .* got 'narrow'"):
        both.with_scores("narrow", other)
    with pytest.raises(InputError, match="got 'a/b'"):
        both.with_scores("a/b", other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"searches": ("sample:m",)}, "sample must name a metric and a number above 0, got 'm'."),
        ({"searches": ("ranking:n",)}, "unknown metric 'n'"),
        ({"pool_size": 10**6}, "--pool-size: must be at most the 1.. architectures of"),
    ],
)
def test_what_only_the_pool_tells(files, tmp_path, change, message):
    settings = CompareSettings(**{"searches": ("random",), **change})
    with pytest.raises(InputError, match=message):
        run_comparison(settings, *files, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_more_steps_than_architectures(files, tmp_path):
    settings = CompareSettings(searches=("random",), num_seeds=1, steps=200)
    with pytest.raises(InputError, match="random_search: .*Ask for fewer steps"):
        run_comparison(settings, *files, tmp_path / "run")
