"""Runs a one-shot network's stages of equal cells: as one compiled loop, or unrolled."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from nasjax.errors import unknown_name
from nasjax.networks.layers import LayerConfig
from nasjax.networks.mixed_operation import stack_trees
from nasjax.types import Images, PyTree

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


def pad_channels(x: Images, width: int) -> Images:
    """The image with channels of zeros behind its own, ``width`` in all."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, width - x.shape[-1])))


def widen_blocks(params: PyTree, names: Sequence[str], width: int, config: LayerConfig) -> PyTree:
    """Cell parameters whose convolution blocks take ``width`` channels, the further ones ignored.

    Args:
      params: of a cell.
      names: of the blocks in it; each has its kernel under ``conv``.
      width: channels, at least those that the kernels take.
      config: initialisation, which may scale a layer's output by its fan-in.

    Returns:
      ``params`` with other kernels: on images that ``pad_channels`` widened, the same outputs.
    """
    params = dict(params)
    for name in names:
        kernel = params[name]["conv"]["kernel"]
        channels = kernel.shape[2]
        padded = jnp.pad(kernel, ((0, 0), (0, 0), (0, width - channels), (0, 0)))
        # The layer scales its output by its fan-in, which is not the true one when padded.
        kernel = padded * (config.output_scale(kernel.shape) / config.output_scale(padded.shape))
        params[name] = {**params[name], "conv": {"kernel": kernel}}
    return params
