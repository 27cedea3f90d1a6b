"""NASI from settings to files: what it leaves, and that an interruption changes nothing."""

import json
import os
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.evaluation import load_nasbench201_table
from nasjax.runs import NasiSettings, run_nasi
from nasjax.spaces import get_space
from nasjax.spaces.nasbench1shot1 import to_nasbench101
from nasjax.spaces.nasbench101 import official_hash

TINY = {"channels": 2, "cells": 1, "batch_size": 4, "steps": 4}
RESULTS = ["logits.npz", "history.jsonl", "cells.svg", "cells.png"]


@pytest.fixture
def without_table(monkeypatch):
    """No accuracy table for the command line: the runs that it is compared with have none."""
    monkeypatch.delenv("NASJAX_DATA", raising=False)


class StoppedError(Exception):
    """Raised in the middle of a run."""


def stop_at(phase, step):
    def on_step(seen_phase, seen_step, num_steps, record):
        if (seen_phase, seen_step) == (phase, step) and record:
            raise StoppedError

    return on_step


def assert_same_results(folder, other):
    for name in RESULTS:
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
    records = [json.loads((f / "architecture.json").read_text()) for f in (folder, other)]
    for record in records:
        assert record["search"].pop("seconds") > 0
    assert records[0] == records[1]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    seen = []
    settings = NasiSettings(**TINY)  # nu from 50 architectures, eq. 40
    result = run_nasi(settings, folder, on_step=lambda *step: seen.append(step))
    return settings, folder, result, seen


def test_files_explain_the_result(whole_run):
    settings, folder, result, seen = whole_run
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["nu"] * 50 + ["search"] * 4
    assert [step[:3] for step in seen[:2]] == [("nu", 0, 50), ("nu", 1, 50)]
    valid = [line["trace_norm"] for line in lines[:50] if line["is_finite"] and not line["is_dead"]]
    nu = 2 * np.mean(valid)  # eq. 40, enlarged as this space has it by default
    record = json.loads((folder / "architecture.json").read_text())
    np.testing.assert_allclose(record["search"]["nu_start"], nu, rtol=1e-5)
    for line in lines[50:]:
        np.testing.assert_allclose(line["nu"], nu, rtol=1e-5)
        if not line["is_dead"]:
            excess = max(0.0, line["trace_norm"] - line["nu"])
            expected = line["trace_norm"] - settings.mu * excess
            np.testing.assert_allclose(line["reward"], expected, rtol=1e-4)
    space = get_space("nasbench201")
    with np.load(folder / "logits.npz") as logits:
        np.testing.assert_array_equal(space.select({"edges": logits["edges"]}), result.genotype)
    assert space.to_string(result.genotype) == record["architecture"]
    assert record["settings"]["mu"] == 2.0
    assert record["versions"]["jax"]
    assert record["data"]["source"] == "random"


@pytest.mark.parametrize(
    ("phase", "step"),
    [
        pytest.param("nu", 7, marks=pytest.mark.slow),
        pytest.param("search", 1, marks=pytest.mark.slow),
        ("search", 4),
    ],
)
def test_interruption_changes_nothing(whole_run, tmp_path, phase, step):
    settings, folder, *_ = whole_run
    with pytest.raises(StoppedError):
        run_nasi(settings, tmp_path, on_step=stop_at(phase, step))
    assert not (tmp_path / "architecture.json").exists()
    run_nasi(settings, tmp_path)
    assert_same_results(folder, tmp_path)


def test_finished_run_is_not_repeated(whole_run):
    settings, folder, result, _ = whole_run
    names = ["state.npz", "architecture.json", *RESULTS]
    before = {name: (folder / name).read_bytes() for name in names}
    steps = []
    again = run_nasi(settings, folder, on_step=lambda *step: steps.append(step))
    assert steps == []
    assert (result.num_run, again.num_run) == (54, 0)
    np.testing.assert_array_equal(again.genotype, result.genotype)
    assert {name: (folder / name).read_bytes() for name in names} == before


COMMAND = [
    *(sys.executable, "-m", "nasjax", "search", "nasi"),
    *("--channels", "2", "--cells", "1", "--batch-size", "4", "--steps", "4"),
]


def test_kill_9_changes_nothing(whole_run, tmp_path, without_table):
    _, folder, *_ = whole_run
    command = [*COMMAND, "--out", str(tmp_path / "run")]
    history = tmp_path / "run" / "history.jsonl"
    # The killed process and the one that goes on run with one device, the whole run had two.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (history.exists() and history.read_bytes().count(b"\n") >= 20):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "written to" in finished.stdout
    assert_same_results(folder, tmp_path / "run")


def test_images_labels_and_table(tmp_path, nasbench201_table):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 10, 10), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x=images, y=np.arange(12) % 3)
    settings = NasiSettings(
        **{**TINY, "steps": 2}, data=f"npz:{tmp_path / 'mine.npz'}", labels="random", seed=3
    )
    result = run_nasi(settings, tmp_path / "run", table=nasbench201_table)
    assert result.record["data"]["labels"].startswith("random")
    assert result.record["accuracies"]["cifar10_test"] > 0.09
    np.savez(tmp_path / "mine.npz", x=255 - images, y=np.arange(12) % 3)
    with pytest.raises(InputError, match="other settings.*data_provenance"):
        run_nasi(settings, tmp_path / "run", table=nasbench201_table)


@pytest.fixture
def nasbench201_table(tmp_path):
    """A table of all cells but one, as the best of all are known, with made-up accuracies."""
    columns = "arch,c10_test200_mean,c100_test200_mean,in16_test200_mean,c10_val12,c10_params_M"
    space = get_space("nasbench201")
    lines = [columns]
    for index, genotype in enumerate(space.all_genotypes()[1:]):  # all but an empty one
        lines.append(f"{space.to_string(genotype)},{10 + index / 200},50,30,60,0.5")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return load_nasbench201_table(path)


def test_a_search_without_a_living_network_has_no_winner(tmp_path, monkeypatch):
    def broken_trace_norm(apply_fn):
        return lambda weights, params, x, y: (jnp.nan * jnp.sum(weights["edges"]), False)

    monkeypatch.setattr("nasjax.runs.nasi.one_shot_trace_norm", broken_trace_norm)
    with pytest.raises(InputError, match="all 4 sampled networks failed"):
        run_nasi(NasiSettings(**TINY, nu=1.0), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [(line["reward"], line["is_finite"]) for line in lines] == [(None, False)] * 4
    assert not (tmp_path / "architecture.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": "dart"}, "Did you mean 'darts'"),
        ({"space": "nasbench101"}, "must have a one-shot network, got nasbench101. Search one of"),
        ({"nu_mode": "fix"}, "Did you mean 'fixed'"),
        ({"labels": "tru"}, "Did you mean 'true'"),
        ({"initialization": "lecunn"}, "Did you mean 'lecun'"),
        ({"normalization": "bach"}, "Did you mean 'batch'"),
        ({"mu": -1.0}, "--mu: must be a number >= 0, got -1.0"),
        ({"mu": float("nan")}, "--mu: must be a number >= 0, got nan"),
        ({"nu": -3.0}, "--nu: must be a number > 0, got -3.0"),
        ({"nu": float("nan")}, "--nu: must be a number > 0, got nan"),
        ({"nu_scale": 0.0}, "--nu-scale: must be a number > 0, got 0.0"),
        ({"nu_scale": float("inf")}, "--nu-scale: must be a number > 0, got inf"),
        ({"nu_scale": 2.0, "nu": 5.0}, "--nu-scale: .* nu is 5, fixed"),
        ({"nu_scale": 2.0, "nu_mode": "adaptive"}, "--nu-scale: .* nu is 500, adaptive"),
        ({"steps": 0}, "--steps: must be at least 1, got 0"),
        ({"batch_size": 1}, "--batch-size: must be at least 2"),
        ({"seed": -1}, "--seed: must be in"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(InputError, match=message):
        NasiSettings(**{**TINY, **change})


def test_space_defaults_are_the_papers():
    settings = NasiSettings(space="darts")
    assert (settings.steps, settings.batch_size, settings.channels, settings.cells) == (
        100,
        64,
        16,
        8,
    )
    assert (settings.nu, settings.nu_mode, settings.mu) == (500.0, "adaptive", 2.0)
    assert NasiSettings(space="darts", nu_mode="fixed", nu=100.0).nu == 100.0
    fixed = NasiSettings(space="darts", nu_mode="fixed")
    assert (fixed.nu, fixed.nu_scale) == (None, 1.0)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_defaults_of_nasbench1shot1_are_the_papers(number):
    settings = NasiSettings(space=f"nasbench1shot1_{number}")
    assert (settings.nu, settings.nu_mode, settings.mu) == (1000.0, "adaptive", 1.0)
    assert (settings.steps, settings.batch_size) == (100, 64)
    assert settings.run_name() == f"nasi-nasbench1shot1_{number}-random-seed0"


@pytest.mark.slow
def test_nasbench1shot1_run_selects_a_cell_of_the_benchmark(tmp_path):
    name = "nasbench1shot1_1"
    settings = NasiSettings(**{**TINY, "space": name, "steps": 3})
    result = run_nasi(settings, tmp_path)
    record = json.loads((tmp_path / "architecture.json").read_text())
    space = get_space(name)
    with np.load(tmp_path / "logits.npz") as logits:
        assert sorted(logits) == ["operations", "parents"]
        np.testing.assert_array_equal(space.select(dict(logits)), result.genotype)
    assert record["architecture"] == space.to_string(result.genotype)
    converted = to_nasbench101(name, result.genotype)
    assert record["official_hash"] == official_hash(converted)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["is_finite"] for line in lines] == [True] * 3
    assert lines[0]["nu"] == 1000.0
    bounds = space.decisions["parents"].sum(axis=-1)
    assert all((np.array(line["drawn"]["parents"]) < bounds).all() for line in lines)
    assert (tmp_path / "cells.svg").exists()


def test_batch_larger_than_the_data(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).random((6, 8, 8)), y=np.arange(6) % 2)
    settings = NasiSettings(**{**TINY, "batch_size": 7}, data=f"npz:{tmp_path / 'd.npz'}")
    with pytest.raises(InputError, match="at most the 6 images .* got 7"):
        run_nasi(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file system of its own: root only")
def test_full_disk_ends_in_one_line_and_resumes(whole_run, tmp_path, without_table):
    _, folder, *_ = whole_run
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        command = [*COMMAND, "--out", str(disk / "run")]
        (disk / "filler").write_bytes(bytes(44 * 1024))
        stopped = subprocess.run(command, capture_output=True, text=True)
        assert stopped.returncode == 2
        assert stopped.stderr.count("\n") == 1
        assert "No space left" in stopped.stderr
        (disk / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        subprocess.run(command, capture_output=True, check=True)
        assert_same_results(folder, disk / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_run_name_tells_what_is_no_default():
    names = [
        settings.run_name()
        for settings in (
            NasiSettings(),
            NasiSettings(steps=100, mu=2.0),
            NasiSettings(space="darts"),
            NasiSettings(space="darts", nu_mode="fixed"),
            NasiSettings(space="darts", nu_mode="fixed", nu=100.0),
            NasiSettings(data="npz:a/b.npz#images=x,labels=y", labels="random", seed=3),
        )
    ]
    assert names == [
        "nasi-nasbench201-random-seed0",
        "nasi-nasbench201-random-seed0",
        "nasi-darts-random-seed0",
        "nasi-darts-random-nu_mode=fixed-nu_scale=1-seed0",
        "nasi-darts-random-nu=100-nu_mode=fixed-seed0",
        "nasi-nasbench201-npz-a-b.npz-images=x,labels=y-labels=random-seed3",
    ]
