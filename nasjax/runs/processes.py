"""Processes that share a run: who is who, and their start under ``jax.distributed``."""

from pathlib import Path
from typing import NamedTuple

import jax

from nasjax.errors import InputError

_JOINED = ".joined"


class Process(NamedTuple):
    """One of the processes that share a run.

    Attributes:
      id: from 0.
      count: how many there are.
    """

    id: int = 0
    count: int = 1


def join_processes(
    out: Path,
    *,
    coordinator: str | None = None,
    count: int | None = None,
    process_id: int | None = None,
    timeout_s: int = 300,
) -> Process:
    """Who this process is, after it has met the others where there is a coordinator.

    The processes of a run exchange nothing but files, so that they part as soon as
    ``jax.distributed`` has introduced them: from then on none of them minds how another ends. One
    that is started again finds in the folder that they have met, and goes on by itself. With the
    coordinator ``"auto"`` JAX finds coordinator and numbers in its environment (Slurm, Open MPI,
    TPU pods), and all processes have to be started again together.

    It must be called before any computation.

    Args:
      out: folder of the run, the same for all processes.
      coordinator: address and port of process 0, ``"auto"``, or None for processes that do not meet
        at all.
      count: of processes; None for one.
      process_id: of this process.
      timeout_s: how long processes wait for one another; JAX ends those that wait longer.

    Returns:
      The process.

    Raises:
      InputError: if the numbers do not fit, or there is no coordinator of such an address.
    """
    if coordinator == "auto":
        _meet(timeout_s)
        return Process(jax.process_index(), jax.process_count())
    if (count is None) != (process_id is None) or (coordinator and count is None):
        raise InputError(
            "--num-processes, --process-id: must be given together, and with --coordinator, got "
            f"{count} and {process_id}."
        )
    if count is None:
        return Process()
    if count < 1:
        raise InputError(f"--num-processes: must be at least 1, got {count}.")
    if not 0 <= process_id < count:
        raise InputError(
            f"--process-id: must be 0 to {count - 1}, as --num-processes is {count}, got "
            f"{process_id}."
        )
    process = Process(process_id, count)
    marker = out / f"{_JOINED}-{count}"
    if coordinator is None or count == 1 or marker.exists():
        return process
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(
            f"--coordinator: must be an address and a port such as 10.0.0.1:1234, got "
            f"{coordinator!r}."
        )
    _meet(timeout_s, coordinator_address=coordinator, num_processes=count, process_id=process_id)
    # All have passed the question above by now, as no process parts before all have met.
    out.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return process


def _meet(timeout_s: int, **who) -> None:
    try:
        jax.distributed.initialize(
            **who, initialization_timeout=timeout_s, shutdown_timeout_seconds=timeout_s
        )
    except ValueError as error:
        raise InputError(
            "--coordinator: must be ADDRESS:PORT with --num-processes and --process-id where JAX "
            f"cannot find them out, got {who.get('coordinator_address', 'auto')} ({error})"
        ) from error
    jax.local_devices()  # the backends are made while the others can be asked
    jax.distributed.shutdown()
