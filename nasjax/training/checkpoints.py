"""Checkpoints by orbax: whole or not there, the last few kept, damaged ones passed over."""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from nasjax.errors import InputError, first_line
from nasjax.types import PyTree

_LOGGER = logging.getLogger(__name__)
_ROOM, _ROOM_BESIDE = 2, 2**20
"""Bytes on the disk for each byte of a state, and beside them."""


class Restored(NamedTuple):
    """A checkpoint that was read.

    Attributes:
      state: the tree that was saved.
      info: what was saved beside it.
      damaged: steps of later checkpoints that could not be read.
    """

    state: PyTree
    info: dict[str, Any]
    damaged: tuple[int, ...]


class Checkpoints:
    """The checkpoints in a folder; ``close`` it, or use it in a ``with`` statement."""

    def __init__(self, folder: Path, *, num_kept: int = 3):
        """Opens a folder.

        Args:
          folder: it is made where it is missing.
          num_kept: how many of the latest are kept.
        """
        # Here, not above: it takes over a second to import, and most commands do without.
        import orbax.checkpoint as ocp

        logging.getLogger("absl").addFilter(_is_error)
        self._ocp, self._folder = ocp, folder.absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        here = jax.process_index()
        self._manager = ocp.CheckpointManager(
            self._folder,
            item_handlers={
                "state": ocp.StandardCheckpointHandler(),
                "record": ocp.JsonCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(
                max_to_keep=num_kept,
                create=False,
                enable_async_checkpointing=False,
                # Processes that train together have the same state: one writes, none waits.
                multiprocessing_options=ocp.options.MultiprocessingOptions(
                    primary_host=here, active_processes={here}, barrier_sync_key_prefix=str(here)
                ),
            ),
        )

    def __enter__(self):
        """The checkpoints."""
        return self

    def __exit__(self, *exception):
        """Closes the folder."""
        self.close()

    def close(self) -> None:
        """Lets go of the folder."""
        self._manager.close()

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, in order."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: PyTree, info: Mapping[str, Any]) -> None:
        """Writes a checkpoint, and removes those that are one too many.

        Args:
          step: its number, above those that are there.
          state: a tree of arrays on the host.
          info: JSON-able.

        Raises:
          InputError: if it cannot be written; the earlier ones are still there.
        """
        leaves = _named_leaves(state)
        ocp = self._ocp
        # Asked before: what orbax says of a full disk, from many threads, fills a screen.
        needed = _ROOM * sum(leaf.nbytes for leaf in leaves.values()) + _ROOM_BESIDE
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise self._unwritten(
                step, f"it needs {needed / 2**20:.1f} MiB, and {free / 2**20:.1f} MiB are free"
            )
        record = {"sha256": _sha256(leaves, info), "info": dict(info)}
        try:
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(leaves), record=ocp.args.JsonSave(record)
                ),
            )
        except (OSError, ValueError) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise self._unwritten(step, reason) from error

    def _unwritten(self, step: int, reason: str) -> InputError:
        return InputError(
            f"--out {self._folder.parent}: the checkpoint of step {step} could not be written "
            f"({reason}). Make room; the same command goes on from the last one that is there."
        )

    def restore(self, template: PyTree) -> Restored | None:
        """The latest checkpoint that is whole.

        Args:
          template: a tree of arrays, which gives structure, shapes and types.

        Returns:
          The checkpoint, or None where there is none.

        Raises:
          InputError: if there are checkpoints but none of them can be read, or they are of another
            network.
        """
        damaged, other_network = [], None
        for step in reversed(self.steps()):
            try:
                found = self._read(step, template)
            except Exception as error:  # orbax, tensorstore and json each raise their own
                _LOGGER.warning(
                    "the checkpoint of step %d is damaged (%s: %s)",
                    step,
                    type(error).__name__,
                    first_line(error),
                )
                damaged.append(step)
                # A damaged name looks like another network; a whole one before it tells.
                other_network = error if isinstance(error, InputError) else other_network
                continue
            return found._replace(damaged=tuple(damaged))
        if other_network is not None:
            raise other_network
        if damaged:
            raise InputError(
                f"--out {self._folder.parent}: all checkpoints are damaged, of steps "
                f"{', '.join(map(str, sorted(damaged)))}. Remove the folder and start again."
            )
        return None

    def remove(self, step: int) -> None:
        """Removes a checkpoint."""
        self._manager.delete(step)

    def _read(self, step: int, template: PyTree) -> Restored:
        ocp = self._ocp
        wanted = _named_leaves(template)
        record = self._manager.restore(
            step, args=ocp.args.Composite(record=ocp.args.JsonRestore())
        ).record
        shapes = self._manager.item_metadata(step).state
        held = {name: tuple(leaf.shape) for name, leaf in shapes.items()}
        if held != {name: leaf.shape for name, leaf in wanted.items()}:
            raise InputError(
                f"--out {self._folder.parent}: the checkpoint of step {step} must be of the same "
                f"network, got {_difference(held, wanted)}. Give another folder."
            )
        state = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(wanted))
        ).state
        leaves = {name: np.asarray(state[name]) for name in wanted}
        if _sha256(leaves, record["info"]) != record["sha256"]:
            raise ValueError("it is not what was written")
        tree = jax.tree.unflatten(jax.tree.structure(template), list(leaves.values()))
        return Restored(tree, record["info"], ())


def _is_error(record: logging.LogRecord) -> bool:
    """Orbax warns of folders that a crash has left, which it removes."""
    return record.levelno >= logging.ERROR


def _named_leaves(tree: PyTree) -> dict[str, np.ndarray]:
    paths, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}


def _sha256(leaves: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode())
    for name, leaf in leaves.items():
        digest.update(f"{name}{leaf.dtype.str}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf))
    return digest.hexdigest()


def _difference(held: Mapping[str, tuple], wanted: Mapping[str, np.ndarray]) -> str:
    for name in sorted(held.keys() | wanted.keys()):
        here = wanted[name].shape if name in wanted else None
        if held.get(name) != here:
            return f"{name} of shape {held.get(name)} where {here} is asked"
    raise AssertionError("the trees are equal")
