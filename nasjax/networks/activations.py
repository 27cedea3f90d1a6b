"""Activation functions that a search may choose between (Eigen-NAS, table 1)."""

from collections.abc import Callable

import jax
from jax import Array

NEGATIVE_SLOPE = 0.01
"""``eta`` of LeakyReLU; the paper leaves it open in (0, 1)."""


def leaky_relu(x: Array) -> Array:
    """``max(eta x, x)`` with ``eta`` = ``NEGATIVE_SLOPE``."""
    return jax.nn.leaky_relu(x, NEGATIVE_SLOPE)


def centred_sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x)) - 1/2``, which is 0 at 0 and odd."""
    return jax.nn.sigmoid(x) - 0.5


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "leaky_relu": leaky_relu,
    "sigmoid": centred_sigmoid,
    "tanh": jax.numpy.tanh,
    "swish": jax.nn.swish,
}
"""By name, in the paper's order."""
