"""The commands on theorems of Eigen-NAS, from options to files."""

import json

import pytest
from typer.testing import CliRunner

from nasjax.cli import app
from nasjax.errors import InputError

RUNNER = CliRunner()
EIGEN = ["validate", "eigen", "--num-points=6", "--input-dim=4", "--max-depth=4", "--num-seeds=1"]
GENERALIZATION = [
    *("validate", "generalization", "--depth=3", "--width=8", "--num-examples=10"),
    *("--num-architectures=3", "--num-runs=1", "--classes=1,7"),
]


def _run(arguments, out):
    return RUNNER.invoke(app, [*arguments, "--out", str(out)], catch_exceptions=False)


def _widest(output):
    return max(len(line.rstrip()) for line in output.splitlines() if "written to" not in line)


def test_eigen(tmp_path):
    arguments = [*EIGEN, "--num-architectures", "100"]
    first = _run(arguments, tmp_path)
    assert first.exit_code == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    relu = summary["claims"]["exact"]["depth"]["relu"]
    (line,) = [line for line in first.output.splitlines() if line.split()[:1] == ["relu"]]
    assert line.split()[1:3] == ["unchanged", f"{relu['deepest_over_shallowest']:.3g}"]
    assert "written to" in first.output
    assert _widest(first.output) <= 80
    assert "finished before" in _run(arguments, tmp_path).output


def test_generalization(tmp_path):
    first = _run(GENERALIZATION, tmp_path)
    assert first.exit_code == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["settings"]["classes"] == [1, 7]
    error = summary["steps"]["practical"]["median_last_error"]
    (line,) = [line for line in first.output.splitlines() if "last iterate" in line]
    assert f"{100 * error:.1f} %" in line
    assert _widest(first.output) <= 80
    assert "finished before" in _run(GENERALIZATION, tmp_path).output


def test_other_options_in_the_same_folder_are_refused(tmp_path):
    _run(GENERALIZATION, tmp_path)
    with pytest.raises(InputError, match="step_size: there 0.3, here 0.1"):
        _run([*GENERALIZATION, "--step-size", "0.1"], tmp_path)


def test_classes_that_are_no_labels(tmp_path):
    with pytest.raises(InputError, match="--classes: must be labels such as 3,8, got 'a,b'"):
        _run(["validate", "generalization", "--classes", "a,b"], tmp_path)
