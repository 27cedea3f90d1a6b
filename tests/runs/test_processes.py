"""How processes that share a run meet; ``test_score_kill`` has real ones."""

import jax
import pytest

from nasjax.errors import InputError
from nasjax.runs import Process, join_processes

ADDRESS = "10.0.0.1:1234"


@pytest.fixture
def calls(monkeypatch):
    """Calls of ``jax.distributed``, which do nothing."""
    made = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **who: made.append(who))
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: made.append("part"))
    return made


def test_processes_meet_once(calls, tmp_path):
    out = tmp_path / "run"
    for _ in range(2):  # the second time as after a death
        process = join_processes(out, coordinator=ADDRESS, count=3, process_id=2)
        assert process == Process(2, 3)
        first, part = calls
        assert part == "part"
        assert first["coordinator_address"] == ADDRESS
        assert (first["num_processes"], first["process_id"]) == (3, 2)
    join_processes(out, coordinator=ADDRESS, count=4, process_id=2)
    assert len(calls) == 4


def test_without_a_coordinator_nobody_meets(calls, tmp_path):
    assert join_processes(tmp_path) == Process(0, 1)
    assert join_processes(tmp_path, count=2, process_id=1) == Process(1, 2)
    assert join_processes(tmp_path, coordinator=ADDRESS, count=1, process_id=0) == Process(0, 1)
    assert calls == []


def test_jax_may_find_out_who_is_who(calls, monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "process_index", lambda: 5)
    monkeypatch.setattr(jax, "process_count", lambda: 8)
    for _ in range(2):
        assert join_processes(tmp_path, coordinator="auto") == Process(5, 8)
    assert len(calls) == 4
    assert "num_processes" not in calls[0]


def test_where_jax_cannot_it_is_told(monkeypatch, tmp_path):
    def initialize(**_):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(InputError, match="--coordinator: must be .*, got auto .coordinator_addr"):
        join_processes(tmp_path, coordinator="auto")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 2}, "must be given together, .*, got 2 and None"),
        ({"process_id": 0}, "must be given together"),
        ({"coordinator": ADDRESS}, "must be given together"),
        ({"count": 2, "process_id": 2}, "must be 0 to 1, as --num-processes is 2, got 2"),
        ({"count": 0, "process_id": 0}, "--num-processes"),
        ({"coordinator": "host", "count": 2, "process_id": 0}, "an address and a port"),
        ({"coordinator": ":80", "count": 2, "process_id": 0}, "an address and a port"),
    ],
)
def test_numbers_are_checked(calls, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        join_processes(tmp_path, **options)
    assert calls == []
