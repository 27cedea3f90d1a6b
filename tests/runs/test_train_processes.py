"""Processes that train one network together, against one process."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.training import join

CELL = "|nor_conv_1x1~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|none~1|nor_conv_1x1~2|"
OPTIONS = [
    *("--data", "digits", "--channels", "4", "--epochs", "2", "--batch-size", "240"),
    *("--devices", "2"),
]


def _start(out, *more):
    command = [sys.executable, "-m", "nasjax", "train", CELL, *OPTIONS, "--out", str(out), *more]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _start_two(out):
    together = ["--coordinator", f"127.0.0.1:{_free_port()}", "--num-processes", "2"]
    return [_start(out, *together, "--process-id", str(number)) for number in range(2)]


def _wait(running):
    outputs = []
    for process in running:
        outputs.append(process.communicate(timeout=600)[0])
        assert process.returncode == 0, outputs[-1]
    return outputs


def test_two_processes_train_what_one_does(tmp_path):
    _wait([*_start_two(tmp_path / "two"), _start(tmp_path / "one")])
    two, one = (
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("two", "one")
    )
    for name in ("train_loss", "test_loss"):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-3)
    assert abs(two["test_accuracy"] - one["test_accuracy"]) < 0.02
    assert two["steps"] == one["steps"] == 10
    again = _wait(_start_two(tmp_path / "two"))
    assert all("finished before, nothing was run again" in output for output in again)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((None, 2, 0), "must be given with --coordinator, got 2 and 0"),
        (("10.0.0.1:1", None, 0), "and a --process-id below it, got None and 0"),
        (("10.0.0.1:1", 2, 2), "and a --process-id below it, got 2 and 2"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        join(*options)
