"""The README's Python and the notebooks run as they stand."""

import json
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from nasjax.ntk import spectrum

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_cells(path):
    notebook = json.loads(path.read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_readme_python_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(programs) == 7
    names = {}
    for program in programs:
        exec(compile(program, "README.md", "exec"), names)
    assert names["logits"].shape == (8, 10)
    found, condition, *smallest, cell, scores, trained = capsys.readouterr().out.splitlines()
    place, seconds = found.split()
    assert abs(int(place) - 70) <= 5 and seconds == "12.0"
    assert [float(value) for value in smallest] == pytest.approx([0.146, 0.194], abs=0.001)
    assert float(condition) == spectrum(names["ntk"].matrix).condition_number > 1
    assert re.fullmatch(r"\|\w+~0\|\+(\|\w+~\d){2}\|\+(\|\w+~\d){3}\|", cell)
    assert trained == "11 (8, 10)"
    assert re.fullmatch(r"\d+\.\d+ \{\} \{'snip': \d+\.\d+\}", scores)


def test_readme_names_options_that_exist():
    from typer.main import get_command

    from nasjax.cli import app

    commands = get_command(app).commands
    for name, command, num_lines in (
        ("search nasi", commands["search"].commands["nasi"], 6),
        ("search hnas", commands["search"].commands["hnas"], 3),
        ("search eigen", commands["search"].commands["eigen"], 3),
        ("search darts", commands["search"].commands["darts"], 2),
        ("compare", commands["compare"], 2),
        ("score", commands["score"], 6),
        ("train", commands["train"], 5),
    ):
        known = {option for parameter in command.params for option in parameter.opts}
        lines = re.findall(rf"^nasjax {name}(.*)$", (ROOT / "README.md").read_text(), re.M)
        used = {option for line in lines for option in re.findall(r"--[a-z-]+", line.split("#")[0])}
        assert len(lines) >= num_lines, name
        assert used <= known, used - known


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_stored_without_output(path):
    assert [cell["outputs"] for cell in code_cells(path)] == [[]] * len(code_cells(path))


@pytest.mark.parametrize(
    "path",
    # The others take minutes, and what they do is tested elsewhere.
    [pytest.param(p, marks=[pytest.mark.slow] if p.name < "05" else []) for p in NOTEBOOKS],
    ids=lambda path: path.name,
)
def test_notebook_runs(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    names = {}
    for number, cell in enumerate(code_cells(path)):
        exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), names)
    CHECKS[path.name](names)
    matplotlib.pyplot.close("all")


def check_validation(names):
    assert names["exact"] == pytest.approx(np.trace(names["ntk"].matrix), rel=1e-4)
    assert spectrum(names["twice"].matrix).failure == "singular"
    assert names["traces"][-1] == pytest.approx(names["limits"]["exact"], rel=0.2)
    assert names["limits"]["exact"] > 2 * names["limits"]["independent"]
    ratio = names["eigenvalues"]["lemma1"] / names["eigenvalues"]["exact"]
    assert 0.3 < ratio.min() < ratio.max() < 1.1


def check_nasi(names):
    assert names["space"].is_connected(names["selected"])
    assert abs(names["difference"]).max() < 1e-4


def check_scores(names):
    assert names["seconds"][3] < names["seconds"][0] / 4
    assert names["names"] == list(names["dead"].flags)
    assert names["run"].num_run > 40 and names["again"].num_run == 0
    assert names["again"].rows == names["run"].rows
    agreement = dict(zip(names["names"], names["agreement"][0], strict=True))
    assert agreement["grad_norm"] == pytest.approx(1)
    assert agreement["grad_norm:code"] > 0.5 > abs(agreement["jacob_cov"])
    if "found" in names:
        assert names["found"]["naswot"].value > 0.4


def check_hnas(names):
    record = names["result"].record
    assert record["num_evaluations"] == 5 and record["num_failed"] == 0
    assert record["value"] > 0.5
    assert 1 < len(names["names"]) < len(names["pool"].genotypes)
    places = [one.place for one in names["state"].evaluated]
    assert len(set(places)) == len(places) >= 3
    assert names["before"].weights[0] == names["before"].weights[1] != names["after"].weights[0]


def check_eigen(names):
    first = names["first"]
    medians = [np.median(names["smallest"][first == number]) for number in range(5)]
    assert np.argmin(medians) == 2 and max(medians) > 10 * medians[2]  # the sigmoid
    assert 0.3 < (names["published"] / names["smallest"]).min() < 1.01
    record = names["result"].record
    assert record["num_evaluations"] == 3 and record["value"] > 0.2
    assert names["found"].record["architecture"].count("|") == 2
    assert np.all((names["logits"]["skips"] >= 0) & (names["logits"]["skips"] <= 1))


def check_training(names):
    steps = names["run"].record["steps"]
    assert 0 < names["run"].num_run < steps == 8 * (1437 // 64)
    assert names["accuracy"] == pytest.approx(names["run"].record["test_accuracy"], abs=1e-6)
    assert names["accuracy"] > 0.85


CHECKS = {
    "00_nasi.ipynb": check_nasi,
    "01_validate_ntk.ipynb": check_validation,
    "02_score_nasbench201.ipynb": check_scores,
    "03_hnas.ipynb": check_hnas,
    "04_eigen_nas.ipynb": check_eigen,
    "05_train.ipynb": check_training,
}
