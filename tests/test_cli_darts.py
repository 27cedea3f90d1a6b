"""``nasjax search darts`` as its user runs it."""

import json

import pytest
from typer.testing import CliRunner

from nasjax.cli import app
from nasjax.errors import InputError

TINY = (
    *("search", "darts", "--data", "digits", "--image-size", "8", "--num-examples", "64"),
    *("--depth", "3", "--width", "8", "--epochs", "2", "--batch-size", "16"),
)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch, wide_console):
    monkeypatch.chdir(tmp_path)


def _run(*arguments):
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_search_prints_what_it_found(tmp_path):
    out = _run(*TINY, "--out", "run")
    record = json.loads((tmp_path / "run/architecture.json").read_text())
    assert record["architecture"] in out.splitlines()
    (row,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["2"])
    values = [*record["probabilities"]["activations"][1], record["probabilities"]["skips"][0]]
    assert row == ["2", *(f"{value:.3f}" for value in values)]
    accuracy = record["search"]["last_epoch"]["validation_accuracy"]
    assert f"held-out accuracy of the mixture  {100 * accuracy:.1f} %" in out
    assert "finished before, nothing was run again" in _run(*TINY, "--out", "run")
    shown = _run("show", "run")
    assert record["architecture"] in shown.splitlines()


def test_random_search_prints_its_candidates(tmp_path):
    out = _run(*TINY, "--algorithm", "random", "--num-candidates", "5")
    (folder,) = (tmp_path / "runs").iterdir()
    record = json.loads((folder / "architecture.json").read_text())
    assert record["architecture"] in out.splitlines()
    (row,) = (line for line in out.splitlines() if "candidates (failed)" in line)
    assert row.split()[-2:] == ["5", "(0)"]
    assert f"{100 * record['search']['best_validation_accuracy']:.1f} %" in out


def test_several_seeds_print_how_often_what_won(tmp_path):
    out = _run(*TINY, "--num-seeds", "2", "--seed", "5", "--out", "runs")
    summary = json.loads((tmp_path / "runs/summary.json").read_text())
    for seed, run in zip((5, 6), summary["runs"], strict=True):
        assert f"seed {seed}: {run['architecture']}" in out.splitlines()
    (row,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["2"])
    layer = summary["layers"][1]
    counts = [one["num_won"] for one in layer["activations"].values()]
    assert row == ["2", *map(str, counts), str(layer["skip"]["num_kept"])]
    assert sum(counts) == 2


def test_a_depth_that_is_none_is_told():
    with pytest.raises(InputError, match="--depth: must be at least 3, got 2"):
        _run("search", "darts", "--data", "digits", "--depth", "2")
