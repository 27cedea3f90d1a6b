"""Partial channel connections (Xu et al., 2020): an operation sees a part of the channels."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from nasjax.errors import InputError
from nasjax.types import Images


class PartialChannels(nn.Module):
    """An operation on the first channels, the others beside it, and all of them shuffled.

    Its parameters are the operation's own, under the same names.

    Attributes:
      operation: keeps the shape of what it is given; unbound.
      num_parts: ``K``: the operation sees one channel in ``K``.
    """

    operation: nn.Module
    num_parts: int

    def setup(self):
        """Shares the scope with the operation."""
        nn.share_scope(self, self.operation)

    def __call__(self, x: Images) -> Images:
        """Maps ``[batch, height, width, channels]`` to the same shape."""
        seen = x.shape[-1] // self.num_parts
        y = jnp.concatenate([self.operation(x[..., :seen]), x[..., seen:]], -1)
        # Neighbours come from different parts, so that every channel is seen before long.
        parts = y.reshape(*y.shape[:-1], self.num_parts, seen)
        return parts.swapaxes(-1, -2).reshape(y.shape)


def in_part(make: Callable[..., nn.Module], num_parts: int) -> Callable[..., nn.Module]:
    """``make(operation, features, config, ...)`` of operations that see one channel in ``K``.

    Args:
      make: makes an operation of so many channels, unbound.
      num_parts: ``K``; 1 gives ``make`` itself.

    Returns:
      A function with the arguments of ``make``, whose modules take ``features`` channels.
    """
    if num_parts == 1:
        return make

    @functools.wraps(make)
    def make_partial(operation, features, config, **kwargs):
        inner = make(operation, features // num_parts, config, **kwargs)
        return PartialChannels(inner, num_parts, parent=None)

    return make_partial


def check_parts(where: str, num_parts: int, channels: int) -> None:
    """Raises ``InputError`` unless ``channels`` are so many equal parts."""
    if num_parts < 1 or channels % num_parts:
        raise InputError(
            f"{where}: `partial_channels` must be at least 1 and divide the {channels} channels, "
            f"got {num_parts}."
        )
