"""Runs a one-shot network's stages of equal cells: as one compiled loop, or unrolled."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from nasjax.errors import unknown_name
from nasjax.networks.mixed_operation import stack_trees
from nasjax.types import PyTree

MIXTURES = {
    "drawn": "one-hot weights; only the drawn operations are differentiated, cells in a loop",
    "full": "any weights; every operation is evaluated and differentiated, cells unrolled",
}


def check_mixture(where: str, mixture: str) -> None:
    """Raises ``InputError`` if ``mixture`` is not a key of ``MIXTURES``."""
    if mixture not in MIXTURES:
        raise unknown_name(where, "mixture", mixture, MIXTURES)


def run_cells(
    step: Callable[[Any, PyTree, Array], Any],
    carry: Any,
    cells: Sequence[PyTree],
    kinds: Sequence[int],
    *,
    mixture: str,
) -> Any:
    """Applies cells one after the other.

    Args:
      step: ``(carry, cell_params, kind) -> carry``, of one shape throughout.
      carry: what the first cell is given.
      cells: parameters of each cell, trees of equal shapes.
      kinds: an integer a cell, passed to ``step`` as an array of shape ``[]``.
      mixture: ``"drawn"`` compiles the cells as one ``scan``, ``"full"`` unrolls them.

    Returns:
      The carry after the last cell.
    """
    if mixture == "full":
        for params, kind in zip(cells, kinds, strict=True):
            carry = step(carry, params, jnp.asarray(kind, jnp.int32))
        return carry
    stacked = stack_trees(cells)
    kinds = jnp.asarray(kinds, jnp.int32)
    # Only what passes between cells is kept for the backward pass. To run a cell's drawn operations
    # again costs less than to move all its values through the loop's arrays (DARTS, batch 64, CPU:
    # 2.1 s a step against 2.5 s).
    step = jax.checkpoint(step, prevent_cse=False)
    return lax.scan(lambda carry, cell: (step(carry, *cell), None), carry, (stacked, kinds))[0]
