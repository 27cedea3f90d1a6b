"""Run folders: whole files, resumption, and what a user is told when something is wrong."""

import errno
import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.runs import open_run_folder, open_shared_folder

STATE = {"step": np.int32(3), "logits": {"edges": np.arange(6, dtype=np.float32)}}
EMPTY = {"step": np.int32(0), "logits": {"edges": np.zeros(6, np.float32)}}


def test_state_and_settings_survive(tmp_path):
    with open_run_folder(tmp_path / "run") as folder:
        folder.check_settings({"seed": 1, "nu": 2.5})
        assert folder.load_state(EMPTY) is EMPTY
        folder.save_state(STATE)
    with open_run_folder(tmp_path / "run") as folder:
        folder.check_settings({"nu": 2.5, "seed": 1})
        loaded = folder.load_state(EMPTY)
    assert loaded["step"] == 3
    np.testing.assert_array_equal(loaded["logits"]["edges"], STATE["logits"]["edges"])


def test_other_settings_are_named(tmp_path):
    with open_run_folder(tmp_path) as folder:
        folder.check_settings({"seed": 1, "mu": 2.0, "same": 3})
        with pytest.raises(InputError, match=r"mu: there 2.0, here 1.0; seed: there 1, here 5"):
            folder.check_settings({"seed": 5, "mu": 1.0, "same": 3})
        assert json.loads((tmp_path / "settings.json").read_text())["seed"] == 1


def test_only_what_differs_is_told(tmp_path):
    settings = {"data": "npz:a.npz", "provenance": {"sha256": "a" * 64, "labels": "true"}}
    with open_run_folder(tmp_path) as folder:
        folder.check_settings(settings)
        nested = settings | {"provenance": settings["provenance"] | {"sha256": "b" * 64}}
        with pytest.raises(InputError) as caught:
            folder.check_settings(nested)
        told = f"(provenance.sha256: there {'a' * 57}..., here {'b' * 57}...)"
        assert told in str(caught.value)
        with pytest.raises(InputError) as caught:
            folder.check_settings(nested | {"data": "npz:b.npz"})
        assert "(data: there npz:a.npz, here npz:b.npz)" in str(caught.value)


def test_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with (
        open_run_folder(tmp_path) as folder,
        pytest.raises(InputError, match="holds thesis.tex"),
    ):
        folder.check_settings({"seed": 1})
    assert (tmp_path / "thesis.tex").read_text() == "precious"
    assert not (tmp_path / "settings.json").exists()


def test_history_is_cut_to_the_state(tmp_path):
    with open_run_folder(tmp_path) as folder:
        for step in (1, 2, 3):
            folder.append_history({"step": step, "reward": -np.inf, "drawn": np.arange(2)})
        with (tmp_path / "history.jsonl").open("ab") as file:
            file.write(b'{"step": 4, "rew')  # killed while writing
        folder.cut_history(2)
        folder.append_history({"step": 3})
        with pytest.raises(InputError, match="at least 9 lines"):
            folder.cut_history(9)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines[0] == {"step": 1, "reward": None, "drawn": [0, 1]}
    assert [line["step"] for line in lines] == [1, 2, 3]


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive", b"garbage"])
def test_damaged_state_is_refused(tmp_path, damage):
    with open_run_folder(tmp_path) as folder:
        folder.save_state(STATE)
        (tmp_path / "state.npz").write_bytes(damage)
        with pytest.raises(InputError, match=r"state.npz is damaged"):
            folder.load_state(EMPTY)


def test_truncated_or_foreign_state_is_refused(tmp_path):
    with open_run_folder(tmp_path) as folder:
        folder.save_state(STATE)
        content = (tmp_path / "state.npz").read_bytes()
        (tmp_path / "state.npz").write_bytes(content[: len(content) // 2])
        with pytest.raises(InputError, match=r"state.npz is damaged"):
            folder.load_state(EMPTY)
        folder.save_state({"step": np.int32(1), "logits": {"edges": np.zeros(7, np.float32)}})
        with pytest.raises(InputError, match=r"shape \(6,\)"):
            folder.load_state(EMPTY)


def test_damaged_settings_are_refused(tmp_path):
    (tmp_path / "settings.json").write_text('{"seed": ')
    with (
        open_run_folder(tmp_path) as folder,
        pytest.raises(InputError, match=r"settings.json is damaged"),
    ):
        folder.check_settings({"seed": 1})


def test_full_disk_leaves_the_old_state_whole(tmp_path, monkeypatch):
    with open_run_folder(tmp_path) as folder:
        folder.save_state(STATE)

        def no_space(_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space left"):
            folder.save_state(EMPTY)
        assert folder.load_state(EMPTY)["step"] == 3
        assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "state.npz"]


def test_a_file_or_unwritable_place_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="must be a folder"), open_run_folder(path):
            pass
    with (
        pytest.raises(InputError, match="cannot be written"),
        open_run_folder(Path("/proc/nasjax")),
    ):
        pass


def _hold(path, ready, release):
    with open_run_folder(path):
        ready.set()
        release.wait(30)


def test_two_processes_do_not_share_a_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready, release))
    process.start()
    assert ready.wait(300)
    with pytest.raises(InputError, match="another process works"), open_run_folder(tmp_path):
        pass
    process.kill()  # the lock must go with the process
    process.join()
    with open_run_folder(tmp_path):
        pass


def test_records_grow_by_whole_lines(tmp_path):
    with open_shared_folder(tmp_path) as folder:
        assert folder.read_lines("record.jsonl") == []
        folder.append_line("record.jsonl", {"value": 0.1, "none": np.nan})
        folder.append_line("record.jsonl", {"value": 2})
        file = tmp_path / "record.jsonl"
        file.write_bytes(file.read_bytes() + b'{"value": 3')
        expected = [{"value": 0.1, "none": None}, {"value": 2}]
        assert folder.read_lines("record.jsonl", is_own=False) == expected
        assert file.read_bytes().endswith(b"3")  # another process may be writing it
        assert folder.read_lines("record.jsonl") == expected
        assert file.read_bytes().endswith(b'{"value": 2}\n')


def test_shared_folders_keep_out_whom_they_must(tmp_path):
    def open_as(process_id, num_processes):
        return open_shared_folder(tmp_path, process_id=process_id, num_processes=num_processes)

    with open_as(0, 2), open_as(1, 2) as second:
        for process_id, num_processes in ((0, 2), (0, 1), (2, 3)):
            with (
                pytest.raises(InputError, match="another process works in this folder"),
                open_as(process_id, num_processes),
            ):
                pass
        with second.alone(), pytest.raises(InputError), open_run_folder(tmp_path):
            pass
    with open_as(0, 1):
        pass
