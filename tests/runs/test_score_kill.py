"""``kill -9`` at random moments, and two processes on two devices each: one table, bit for bit."""

import os
import random
import socket
import subprocess
import sys
import time

import pytest

TINY = (
    *("score", "--space", "mlp", "--cells", "3", "--channels", "8", "--batch-size", "4"),
    *("--image-size", "8", "--metrics", "grad_norm,condition_number", "--seed", "2"),
)
QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""Compilation costs most of the time."""
TABLES = ("scores.csv", "scores.parquet")


def start(out, *options, num_devices=1):
    return subprocess.Popen(
        [sys.executable, "-m", "nasjax", *TINY, *options, "--out", str(out)],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": str(num_devices)} | QUICK,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return printed


def tables(folder):
    return [(folder / name).read_bytes() for name in TABLES]


def num_recorded(folder, process_id=0):
    path = folder / f"record-{process_id}.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_when_recorded(process, folder, count, delay_s, process_id=0):
    """Kills a process some time after its record has grown to so many lines."""
    deadline = time.monotonic() + 120
    while num_recorded(folder, process_id) < count and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(delay_s)
    process.kill()
    process.communicate()


def check_kills(tmp_path, options, num_kills, num_units):
    finish(start(tmp_path / "whole", *options))
    broken = tmp_path / "broken"
    dice = random.Random(0)
    num_killed = 0
    for kill in range(num_kills):
        before = num_recorded(broken)
        process = start(broken, *options)
        # Some kills fall into the start, before a first line.
        kill_when_recorded(process, broken, before + (kill % 4 != 1), dice.uniform(0.0, 0.05))
        num_killed += process.returncode == -9
        assert before <= num_recorded(broken)
        if num_recorded(broken) == num_units:  # a machine too fast to be killed more often
            break
    assert num_killed >= (5 if num_kills >= 5 else 1)
    done = num_recorded(broken)
    printed = finish(start(broken, *options))
    assert f"{num_units - done} networks in" in printed
    assert num_recorded(broken) == num_units
    assert tables(broken) == tables(tmp_path / "whole")


def test_a_run_killed_twice_gives_the_same_table(tmp_path):
    check_kills(tmp_path, ("--all", "--num-seeds", "2"), 2, 100)


@pytest.mark.slow
def test_a_run_killed_twenty_times_gives_the_same_table(tmp_path):
    check_kills(tmp_path, ("--all", "--num-seeds", "8"), 20, 400)


@pytest.mark.slow
def test_cells_scored_by_walks_survive_kills_too(tmp_path):
    cells = ("--space", "nasbench201", "--channels", "2", "--cells", "1")
    check_kills(tmp_path, (*cells, "--num-architectures", "20"), 5, 20)


@pytest.mark.slow
def test_two_processes_give_the_table_of_one_even_if_one_dies(tmp_path):
    # So many that the victim has not scored its share by the time that it is killed.
    options = ("--num-architectures", "32")
    finish(start(tmp_path / "one", *options))
    two = tmp_path / "two"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def share(process_id):
        joined = ("--coordinator", address, "--num-processes", "2", "--process-id", process_id)
        return start(two, *options, *map(str, joined), num_devices=2)

    survivor, victim = share(0), share(1)
    kill_when_recorded(victim, two, 1, 0.0, process_id=1)
    assert victim.returncode == -9
    assert "this share is done; " in finish(survivor)
    assert num_recorded(two, 0) == 16
    assert not (two / "scores.csv").exists()
    # Started again by the same command, it meets nobody and needs nobody.
    assert "written to" in finish(share(1))
    assert num_recorded(two, 1) == 16
    assert tables(two) == tables(tmp_path / "one")
