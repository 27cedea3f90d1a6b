"""``nasjax search hnas`` and ``nasjax compare`` as their user runs them."""

import csv
import json

import pytest
from typer.testing import CliRunner

from nasjax.cli import app
from nasjax.errors import InputError
from nasjax.spaces.nasbench201 import genotype_from_index, to_string

CELLS = [to_string(genotype_from_index(index)) for index in range(40)]
COLUMNS = ("arch", "c10_test200_mean", "c100_test200_mean", "in16_test200_mean", "c10_val12")


@pytest.fixture
def files(tmp_path, monkeypatch, wide_console):
    """The better a cell, the later its place; the metric tells it exactly."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NASJAX_DATA", raising=False)
    with open("made.csv", "w", newline="") as file:
        rows = [(cell, 1 + place, 2.0) for place, cell in enumerate(CELLS)]
        csv.writer(file).writerows([("architecture", "m", "k"), *rows])
    with open("table.csv", "w", newline="") as file:
        rows = [(cell, *[50 + place] * 4, 1.0) for place, cell in enumerate(CELLS)]
        csv.writer(file).writerows([(*COLUMNS, "c10_params_M"), *rows])
    return tmp_path


def _run(*arguments):
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_search_prints_what_it_found(files):
    options = ("--scores", "made.csv", "--table", "table.csv", "--metric", "m", "--kappa", "k")
    out = _run("search", "hnas", *options, "--steps", "4")
    record = json.loads(
        (files / "runs/hnas-made-m-kappa=k-steps=4-seed0/architecture.json").read_text()
    )
    assert record["architecture"] in out.splitlines()
    assert f"{100 * record['value']:.2f} %" in out and "600 s" in out
    assert "ImageNet16-120 test accuracy" in out and "cost of scores" not in out
    again = _run("search", "hnas", *options, "--steps", "4")
    assert "finished before, nothing was run again" in again


def test_a_comparison_prints_a_table(files):
    options = ("--scores", "made.csv", "--table", "table.csv", "--steps", "3", "--num-seeds", "2")
    out = _run("compare", *options, "--searches", "ranking:m,random")
    (line,) = (line for line in out.splitlines() if line.strip().startswith("ranking:m"))
    assert "89.00" in line and "450" in line
    assert (files / "runs/compare-made-seed0/comparison.png").exists()


RECIPE = """
import dataclasses
from nasjax.training import get_recipe

networks = {"nasbench201": {"channels": 2, "num_cells": 1}}
RECIPE = dataclasses.replace(get_recipe("quick"), networks=networks, epochs=1, batch_size=480)
"""


def test_a_pool_is_scored_and_candidates_are_trained(files):
    (files / "mine.py").write_text(RECIPE)
    options = ("--pool-size", "3", "--recipe", "mine.py", "--data", "digits", "--metric", "naswot")
    options = (*options, "--bound", "realizable", "--steps", "2", "--seed", "2", "--out", "run")
    out = _run("search", "hnas", *options)
    record = json.loads((files / "run/architecture.json").read_text())
    assert record["architecture"] in out.splitlines() and "cost of scores" in out
    assert record["num_evaluations"] == 2 and record["seconds"]["evaluations"] > 0
    assert record["evaluated_by"]["training"]["held_out"] == 0.1
    assert record["scores"]["file"] == "run-scores/scores.csv"
    assert len(list((files / "run/evaluations").iterdir())) == 2
    assert "nothing was run again" in _run("search", "hnas", *options)


def test_a_table_of_correlations_is_printed(files):
    options = ("--scores", "made.csv", "--also", "o=made.csv", "--table", "table.csv")
    out = _run("correlate", *options, "--metrics", "m", "--kappa", "o/k", "--num-seeds", "2")
    record = json.loads((files / "runs/correlate-made-seed0/correlations.json").read_text())
    line = next(line for line in out.splitlines() if line.split()[:1] == ["realizable"])
    assert f"{record['rows'][0]['spearman']:.2f}" in line and line.split()[-1] == "40"
    assert (files / "runs/correlate-made-seed0/correlations.png").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--recipe", "quick", "--table", "table.csv"), "--table: .* together with --recipe quick"),
        (("--table", "table.csv", "--epochs", "3"), "--epochs, --test-data: need a training"),
        (("--pool-size", "9"), "--pool-size: is of a pool that is drawn, got 9 together with"),
        (("--also", "x=none"), "--also x= none: must be a folder of `nasjax score`"),
        (
            ("--table", "table.csv", "--also", "x"),
            "--also: must be NAME=PATH, each name once, got 'x'",
        ),
    ],
)
def test_options_that_do_not_go_together(files, options, message):
    arguments = (
        "search",
        "hnas",
        "--scores",
        "made.csv",
        "--metric",
        "m",
        "--kappa",
        "k",
        *options,
    )
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_tables_fit_into_80_columns(files, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with open("scores.csv", "w", newline="") as file:
        rows = [(cell, (place * 7) % 40, 1.5 + place % 7) for place, cell in enumerate(CELLS)]
        csv.writer(file).writerows([("architecture", "m", "k"), *rows])
    options = ("--scores", "scores.csv", "--table", "table.csv", "--num-seeds", "2")
    out = _run("correlate", *options, "--metrics", "m", "--kappa", "k", "--sets", "m+k")
    line = next(line for line in out.splitlines() if line.startswith("realizable_trade_off, eval"))
    assert "…" not in out and line.rstrip().endswith("39")
    options = (*options, "--steps", "3", "--evaluation-seconds", "12345")
    out = _run("compare", *options, "--searches", "ranking:m,hnas:m+k")
    assert "…" not in out and "37035" in out


def test_unlike_rows_are_told(files):
    with open("made.csv", "a") as file:
        file.write(f"{CELLS[0]},77.0,2.0\n")
    options = ("--scores", "made.csv", "--table", "table.csv", "--metric", "m", "--kappa", "k")
    out = _run("search", "hnas", *options, "--steps", "2")
    assert "--scores: 4 rows have other scores than an equivalent architecture before" in out


def test_a_table_must_be_given(files):
    for command in (("search", "hnas"), ("compare",)):
        with pytest.raises(InputError, match="accuracies must be given, .*got none and nasbench"):
            CliRunner().invoke(app, [*command, "--scores", "made.csv"], catch_exceptions=False)
