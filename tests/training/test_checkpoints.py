"""Checkpoints that are whole, damaged, of another network, or impossible to write."""

import errno
import logging
import shutil

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.training import Checkpoints

STATE = {"a": np.arange(5.0, dtype=np.float32), "b": {"c": np.zeros((), np.int32)}}


def _state(value):
    return {"a": STATE["a"] + value, "b": {"c": np.array(value, np.int32)}}


def _filled(folder, steps=(10, 20, 30)):
    with Checkpoints(folder, num_kept=2) as checkpoints:
        for step in steps:
            checkpoints.save(step, _state(step), {"num_lines": step // 10})


def test_the_last_ones_are_kept_and_the_latest_is_read(tmp_path):
    _filled(tmp_path / "run")
    with Checkpoints(tmp_path / "run") as checkpoints:
        assert checkpoints.steps() == [20, 30]
        restored = checkpoints.restore(STATE)
    assert restored.info == {"num_lines": 3}
    assert restored.damaged == ()
    np.testing.assert_array_equal(restored.state["a"], STATE["a"] + 30)
    assert restored.state["b"]["c"] == 30
    assert restored.state["b"]["c"].dtype == np.int32


def test_there_may_be_none(tmp_path):
    with Checkpoints(tmp_path / "run") as checkpoints:
        assert checkpoints.restore(STATE) is None


def _largest_file(folder):
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def _replace(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # tensorstore's
@pytest.mark.parametrize(
    "damage", ["truncated", "changed", "removed", "no record", "record", "name"]
)
def test_a_damaged_one_is_passed_over(tmp_path, damage, caplog):
    folder = tmp_path / "run"
    _filled(folder)
    file = _largest_file(folder / "30" / "state" / "d")
    content = file.read_bytes()
    if damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        file.write_bytes(bytes(byte ^ 0xFF for byte in content))
    elif damage == "removed":
        file.unlink()
    elif damage == "name":
        _replace(folder / "30" / "state" / "_METADATA", "['a']", "['e']")
    elif damage == "record":
        _replace(folder / "30" / "record" / "metadata", '"num_lines": 3', '"num_lines": 7')
    else:
        (folder / "30" / "record" / "metadata").write_text("{")
    caplog.set_level(logging.WARNING, logger="nasjax.training.checkpoints")
    with Checkpoints(folder) as checkpoints:
        restored = checkpoints.restore(STATE)
        assert restored.damaged == (30,)
        assert restored.info == {"num_lines": 2}
        np.testing.assert_array_equal(restored.state["a"], STATE["a"] + 20)
        checkpoints.remove(30)
        checkpoints.save(30, _state(31), {})
        assert checkpoints.restore(STATE).state["b"]["c"] == 31
    assert "the checkpoint of step 30 is damaged" in caplog.text


def test_numbers_that_are_not_those_written_are_seen(tmp_path, monkeypatch):
    _filled(tmp_path / "run")
    with Checkpoints(tmp_path / "run") as checkpoints:
        monkeypatch.setattr("nasjax.training.checkpoints._sha256", lambda leaves, info: "other")
        with pytest.raises(InputError, match="all checkpoints are damaged, of steps 20, 30"):
            checkpoints.restore(STATE)


def test_another_network_is_told(tmp_path):
    _filled(tmp_path / "run")
    template = {"a": np.zeros(6, np.float32), "b": STATE["b"]}
    with (
        Checkpoints(tmp_path / "run") as checkpoints,
        pytest.raises(InputError, match=r"of the same network, got \['a'\] of shape \(5,\)"),
    ):
        checkpoints.restore(template)


def test_no_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    _filled(tmp_path / "run")
    with Checkpoints(tmp_path / "run") as checkpoints:
        usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(InputError, match="step 40 .* needs 1.0 MiB, and 1.0 MiB are free"):
            checkpoints.save(40, _state(40), {})
        assert checkpoints.steps() == [20, 30]


def test_a_write_that_fails_is_told_and_the_last_is_kept(tmp_path, monkeypatch):
    _filled(tmp_path / "run")
    with Checkpoints(tmp_path / "run") as checkpoints:

        def save(*args, **kwargs):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(checkpoints._manager, "save", save)
        with pytest.raises(InputError, match="step 40 could not be written .*No space left"):
            checkpoints.save(40, _state(40), {})
        assert checkpoints.restore(STATE).info == {"num_lines": 3}
