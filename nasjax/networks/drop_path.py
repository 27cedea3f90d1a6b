"""Drop path (Larsson et al., 2017): an operation's output is left out, example by example."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from nasjax.types import Images


class DropPath(NamedTuple):
    """What is dropped in one pass.

    Attributes:
      rate: probability of a path to be dropped, ``[]``.
      draws: ``[batch, paths]``, uniform in [0, 1): each example has its own, so that what is
        dropped does not depend on how a batch is spread over devices.
    """

    rate: Float[Array, ""]
    draws: Float[Array, "batch paths"]


def drop_path(x: Images, drop: DropPath, path: int) -> Images:
    """Drops ``x`` of those examples whose draw is below the rate, and scales the others.

    Args:
      x: ``[batch, height, width, channels]``, an operation's output.
      drop: rate and draws.
      path: which of the draws is this operation's.

    Returns:
      An array of the shape of ``x``, equal to it in expectation.
    """
    kept = jnp.where(drop.draws[:, path] < drop.rate, 0.0, 1.0 / (1.0 - drop.rate))
    return x * kept.astype(x.dtype)[:, None, None, None]
