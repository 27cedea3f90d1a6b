"""Candidates evaluated by real, short trainings."""

import csv
import dataclasses
import json
from pathlib import Path

import pytest

from nasjax.errors import InputError
from nasjax.runs import (
    HnasSettings,
    TrainSettings,
    load_scored_pool,
    run_hnas,
    run_training,
    training_evaluation,
)

CELLS = [
    f"|{a}~0|+|none~0|{b}~1|+|none~0|none~1|skip_connect~2|"
    for a in ("nor_conv_1x1", "skip_connect")
    for b in ("nor_conv_1x1", "skip_connect")
]
RECIPE = """
import dataclasses
from nasjax.training import get_recipe

networks = {"nasbench201": {"channels": 4, "num_cells": 1}}
RECIPE = dataclasses.replace(
    get_recipe("quick"), networks=networks, data="digits", epochs=1, batch_size=240
)
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RECIPE)
    with open("made.csv", "w", newline="") as file:
        rows = [(cell, 1.0 + place, 2.0) for place, cell in enumerate(CELLS)]
        csv.writer(file).writerows([("architecture", "m", "k"), *rows])
    return load_scored_pool("made.csv")


def _lines(out):
    return [json.loads(line) for line in Path(out, "history.jsonl").read_text().splitlines()]


class _StoppedError(BaseException):
    pass


def test_values_are_of_examples_that_were_kept_apart(pool):
    evaluate, told = training_evaluation(pool, "trained", recipe="mine.py", seed=3)
    found = evaluate(1)
    settings = TrainSettings(architecture=CELLS[1], recipe="mine.py", held_out=0.1, seed=3)
    record = run_training(settings, "by_hand").record
    assert found.value == record["test_accuracy"] and found.failure == ""
    assert record["data"]["num_test"] == 144 and record["data"]["num_train"] == 1437 - 144
    assert found.seconds > 0
    assert told["training"] == {**dataclasses.asdict(settings), "architecture": "each"}
    reports = []
    again = training_evaluation(
        pool, "trained", recipe="mine.py", seed=3, on_report=lambda *report: reports.append(report)
    )
    assert again.evaluate(1) == found
    assert [step for step, _, _ in reports] == [5]  # it had ended: 1,293 images, 240 a step


def test_a_search_that_was_stopped_in_a_training_ends_the_same(pool):
    settings = HnasSettings(metric="m", kappa="k", steps=3)

    def search(out, on_report=None):
        evaluate, told = training_evaluation(
            pool, f"{out}/evaluations", recipe="mine.py", on_report=on_report
        )
        return run_hnas(settings, pool, evaluate, out, evaluated_by=told)

    def on_report(step, num_steps, record):
        nonlocal count
        count += bool(record)
        if count == 3:  # within the second training
            raise _StoppedError

    whole, count = search("whole"), 0
    with pytest.raises(_StoppedError):
        search("stopped", on_report)
    assert len(_lines("stopped")) == 1
    assert search("stopped").record["architecture"] == whole.record["architecture"]

    def untimed(out):
        return [{k: v for k, v in line.items() if "seconds" not in k} for line in _lines(out)]

    assert untimed("stopped") == untimed("whole")
    values = [line["value"] for line in untimed("whole")]
    assert whole.record["value"] == max(values)


def test_what_cannot_be_trained_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RECIPE)
    dead = "|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"
    with open("made.csv", "w", newline="") as file:
        rows = [(dead, 9.0, 2.0), (CELLS[0], 1.0, 2.0)]
        csv.writer(file).writerows([("architecture", "m", "k"), *rows])
    pool = load_scored_pool("made.csv")
    evaluate, told = training_evaluation(pool, "run/evaluations", recipe="mine.py")
    settings = HnasSettings(metric="m", kappa="k", bound="realizable", steps=2)
    result = run_hnas(settings, pool, evaluate, "run", evaluated_by=told)
    assert result.record["architecture"] == CELLS[0] and result.record["num_failed"] == 1
    first = _lines("run")[0]
    assert "dead network" in first["failure"] and first["value"] is None


def test_a_recipe_that_does_not_fit_is_told_at_once(pool):
    with pytest.raises(InputError, match="unknown recipe 'quik'"):
        training_evaluation(pool, "trained", recipe="quik")
    with pytest.raises(InputError, match="has networks of darts, got an architecture of nasbench"):
        training_evaluation(pool, "trained", recipe="cifar10")
    with pytest.raises(InputError, match="--epochs: must be at least 1, got 0"):
        training_evaluation(pool, "trained", recipe="mine.py", epochs=0)


def test_a_part_kept_apart_is_a_setting_of_a_training(pool):
    settings = TrainSettings(architecture=CELLS[0], recipe="mine.py", held_out=0.25)
    assert settings.final_recipe().held_out == 0.25
    assert TrainSettings(architecture=CELLS[0], recipe="mine.py").final_recipe().held_out == 0
    with pytest.raises(InputError, match="`held_out` must be at least 0 and below 1, got 1.5"):
        TrainSettings(architecture=CELLS[0], recipe="mine.py", held_out=1.5)
