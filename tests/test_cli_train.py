"""``nasjax train`` and ``nasjax evaluate`` as their user runs them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

CELL = "|nor_conv_1x1~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|none~1|nor_conv_1x1~2|"
SMALL = ["--data", "digits", "--channels", "4", "--epochs", "2", "--batch-size", "240"]


def _run(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "nasjax", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "120"},
    )


def test_a_training_and_its_evaluation(tmp_path):
    done = _run("train", CELL, *SMALL, "--devices", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "epoch 1: train loss" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    record = json.loads((folder / "result.json").read_text())
    told = next(line for line in done.stdout.splitlines() if "test accuracy (loss)" in line)
    assert f" {100 * record['test_accuracy']:.2f} % (" in told
    again = _run("train", CELL, *SMALL, "--devices", "2", cwd=tmp_path)
    assert "finished before, nothing was run again" in again.stdout
    tested = _run("evaluate", str(folder), "--json")
    assert json.loads(tested.stdout)["accuracy"] == record["test_accuracy"]
    text = _run("evaluate", str(folder)).stdout
    assert text.startswith(f"test accuracy {100 * record['test_accuracy']:.2f} %, loss ")
    assert text.endswith(f"step {record['steps']} of {record['steps']}, 360 examples\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "nasjax: train: --recipe quick trains one architecture, got none"),
        (["train", "6111", "--recipe", "quik"], "Did you mean 'quick'"),
        (["train", "6111", "--devices", "0"], "nasjax: --devices: must be at least 1, got 0"),
        (["train", "6111", "--batch-size", "7", "--devices", "2"], "must be a multiple of the 2"),
        (["train", "|x~0|"], "nasjax: "),
        (["evaluate", "nowhere"], "nasjax: load_trained: nowhere must be the folder of a training"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(arguments, message, tmp_path):
    done = _run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_training_that_is_killed_goes_on_to_the_same_result(tmp_path):
    options = ["train", CELL, *SMALL, "--epochs", "40"]
    whole = _run(*options, "--out", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "nasjax", *options, "--out", str(out)]
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        lines = _num_lines(out)
        deadline = time.monotonic() + 300
        while _num_lines(out) < lines + 7 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = _run(*options, "--out", str(out))
    assert done.returncode == 0, done.stderr
    results = [json.loads((path / "result.json").read_text()) for path in (out, tmp_path / "whole")]
    for result in results:
        result.pop("seconds")
    assert results[0] == results[1]


def _num_lines(out):
    file = out / "history.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0
