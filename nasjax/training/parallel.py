"""All that knows of ``pmap``: state on every device, batches spread over them, means over both.

A function that runs here is pure, sees one device's part of a batch, and names the mapped axis
``AXIS`` where devices meet. To replace ``pmap`` is to replace this file.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nasjax.errors import InputError
from nasjax.types import PyTree

AXIS = "devices"
"""Name of the mapped axis."""


def join(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Lets this process train together with others, until it ends.

    Args:
      coordinator: ``ADDRESS:PORT`` of process 0, ``"auto"`` where JAX finds out who is who (as on a
        TPU pod or under Slurm), or None for a process of its own.
      num_processes: of all.
      process_id: of this process, from 0.

    Raises:
      InputError: if the numbers do not fit, or the others cannot be met.
    """
    if coordinator is None:
        if num_processes is not None or process_id is not None:
            raise InputError(
                "--num-processes, --process-id: must be given with --coordinator, got "
                f"{num_processes} and {process_id}."
            )
        return
    who = {}
    if coordinator != "auto":
        if num_processes is None or process_id is None or not 0 <= process_id < num_processes:
            raise InputError(
                "--coordinator: must be given with --num-processes and a --process-id below it, "
                f"got {num_processes} and {process_id}."
            )
        who = {"num_processes": num_processes, "process_id": process_id}
        who["coordinator_address"] = coordinator
    try:
        jax.distributed.initialize(**who)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"--coordinator: the other processes must be met, got {coordinator!r} and "
            f"{str(error).splitlines()[0]}"
        ) from error


class Parallel:
    """The devices of this process, and of all that train together with it.

    Attributes:
      devices: those of this process.
      num_devices: of all processes.
      first_device: position of this process's first device among them.
    """

    def __init__(self, num_devices: int | None = None):
        """Takes devices of this process.

        Args:
          num_devices: how many; None takes all. Where processes train together, all.

        Raises:
          InputError: if there are fewer.
        """
        local = jax.local_devices()
        count = len(local) if num_devices is None else num_devices
        if not 1 <= count <= len(local):
            raise InputError(
                f"--devices: must be 1 to the {len(local)} {local[0].platform} devices of this "
                f"process, got {count}."
            )
        if jax.process_count() > 1 and count != len(local):
            raise InputError(
                f"--devices: must be all {len(local)} where processes train together, got {count}."
            )
        self.devices: Sequence[jax.Device] = local[:count]
        self.num_devices = count * jax.process_count()
        self.first_device = count * jax.process_index()
        mesh = Mesh(np.array(self.devices), (AXIS,))
        # Where mapped functions leave what they give: other places would be compiled for anew.
        self._placement = NamedSharding(mesh, PartitionSpec(AXIS))

    def map(self, fn: Callable, *, is_state_returned: bool = False) -> Callable:
        """``fn`` on every device at once, compiled.

        Args:
          fn: takes a state (``replicate``) and parts of batches (``spread``), and gives trees.
          is_state_returned: whether ``fn`` gives back the state, whose memory is then used again.

        Returns:
          The mapped function. What it gives has a leading axis of local devices.
        """
        devices = None if jax.process_count() > 1 else self.devices
        donated = (0,) if is_state_returned else ()
        return jax.pmap(fn, axis_name=AXIS, devices=devices, donate_argnums=donated)

    def replicate(self, tree: PyTree) -> PyTree:
        """The same on every local device, as mapped functions take it."""
        count = len(self.devices)
        copies = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (count, *np.shape(leaf))), tree)
        return jax.device_put(copies, self._placement)

    def spread(self, batch: PyTree) -> PyTree:
        """A batch of this process in equal parts, ``[devices, part, ...]``, as ``map`` takes it.

        Raises:
          InputError: if it does not divide by the devices.
        """
        count = len(self.devices)

        def split(leaf):
            if len(leaf) % count:
                raise InputError(
                    f"Parallel.spread: the batch must divide by {count} devices, got {len(leaf)}."
                )
            return leaf.reshape(count, -1, *leaf.shape[1:])

        return jax.device_put(jax.tree.map(split, batch), self._placement)

    def first(self, tree: PyTree) -> PyTree:
        """What the first local device has of a mapped function's result, on the host."""
        return jax.device_get(jax.tree.map(lambda leaf: leaf.addressable_shards[0].data[0], tree))

    def local_rows(self, batch_size: int) -> slice:
        """Which rows of a joint batch are this process's.

        Raises:
          InputError: if the batch does not divide by all devices.
        """
        if batch_size % self.num_devices:
            raise InputError(
                f"--batch-size: must be a multiple of the {self.num_devices} devices, got "
                f"{batch_size}. {batch_size - batch_size % self.num_devices or self.num_devices} "
                "would do."
            )
        share = batch_size // self.num_devices
        start = self.first_device * share
        return slice(start, start + len(self.devices) * share)


def positions(num_local: int) -> Array:
    """Where a device's examples stand in the joint batch, ``[num_local]``; under ``map``."""
    return lax.axis_index(AXIS) * num_local + jnp.arange(num_local)


def mean_over_devices(tree: PyTree) -> PyTree:
    """The mean of what the devices have; under ``map``."""
    return lax.pmean(tree, AXIS)


def sum_over_devices(tree: PyTree) -> PyTree:
    """The sum of what the devices have; under ``map``."""
    return lax.psum(tree, AXIS)
