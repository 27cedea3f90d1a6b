"""``nasjax search eigen`` as its user runs it."""

import csv
import json

import pytest
from typer.testing import CliRunner

from nasjax.cli import app
from nasjax.errors import InputError
from nasjax.spaces.nasbench201 import genotype_from_index, to_string

CELLS = [to_string(genotype_from_index(index)) for index in range(40)]
COLUMNS = ("c10_test200_mean", "c100_test200_mean", "in16_test200_mean", "c10_val12")

RECIPE = """
import dataclasses
from nasjax.training import get_recipe

networks = {"mlp": {"width": 16, "initialization": "lecun"}}
RECIPE = dataclasses.replace(get_recipe("quick"), networks=networks, epochs=2, batch_size=96)
"""


@pytest.fixture
def files(tmp_path, monkeypatch, wide_console):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NASJAX_DATA", raising=False)
    with open("made.csv", "w", newline="") as file:
        rows = [(cell, 1 + place, (place * 7) % 40) for place, cell in enumerate(CELLS)]
        csv.writer(file).writerows([("architecture", "min_eigenvalue", "knas"), *rows])
    with open("table.csv", "w", newline="") as file:
        rows = [(cell, *[50 + place] * 4, 1.0) for place, cell in enumerate(CELLS)]
        csv.writer(file).writerows([("arch", *COLUMNS, "c10_params_M"), *rows])
    return tmp_path


def _run(*arguments):
    done = CliRunner().invoke(app, ["search", "eigen", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_selection_prints_what_it_found(files):
    options = ("--scores", "made.csv", "--table", "table.csv", "--top-k", "3", "--beside", "knas")
    out = _run(*options)
    assert CELLS[-1] in out.splitlines() and "89.00 %" in out and "450 s" in out
    folder = files / "runs/eigen-made-min_eigenvalue-k3-seed0"
    record = json.loads((folder / "architecture.json").read_text())
    assert set(record["selections"]) == {"min_eigenvalue", "knas"}
    assert "finished before, nothing was run again" in _run(*options)


def test_networks_are_drawn_scored_and_trained(files):
    (files / "mine.py").write_text(RECIPE)
    options = ("--space", "mlp", "--pool-size", "8", "--depth", "4", "--batch-size", "8")
    options = (*options, "--top-k", "2", "--recipe", "mine.py", "--data", "digits", "--out", "run")
    out = _run(*options)
    record = json.loads((files / "run/architecture.json").read_text())
    assert record["architecture"] in out.splitlines()
    assert record["architecture"].count("|") == 2 and record["value"] > 0.15
    assert record["settings"]["metric"] == "min_eigenvalue:infinite"
    assert record["scores"]["file"] == "run-scores/scores.csv"
    assert "nothing was run again" in _run(*options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scores", "made.csv", "--depth", "4"), "--depth: is of a pool that is drawn, got 4"),
        (("--scores", "made.csv", "--top-k", "41"), "--top-k: must be at most"),
        (("--scores", "made.csv", "--metric", "x"), "unknown metric 'x'"),
        (("--space", "mlp", "--metric", "x"), "--metric: unknown metric 'x'.*min_eigenvalue:infin"),
        (("--space", "mlp", "--top-k", "9", "--pool-size", "8"), "--top-k: must be at most the 8"),
        (("--space", "darts", "--metric", "min_eigenvalue:infinite"), "--space must be one of mlp"),
        (
            ("--space", "mlp", "--beside", "knas"),
            "--beside: .*got min_eigenvalue:infinite with knas",
        ),
        (("--scores", "made.csv", "--recipe", "quick"), "--table: evaluations are looked up"),
    ],
)
def test_what_is_refused(files, options, message):
    table = () if "--space" in options else ("--table", "table.csv")
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(app, ["search", "eigen", *options, *table], catch_exceptions=False)
