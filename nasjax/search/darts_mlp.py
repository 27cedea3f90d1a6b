"""The architecture variables of DARTS in fully connected networks (Eigen-NAS sec. 5.1).

``activations``, ``[depth - 1, choices]``, are logits. ``skips``, ``[depth - 2]``, are the factors
``alpha`` of the skip connections themselves, in [0, 1].
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int32

from nasjax.types import Weights

Variables = Mapping[str, Float[Array, "..."]]


def mlp_variables(depth: int, num_activations: int) -> dict[str, Array]:
    """The start: all activations alike, and every ``alpha`` 1/2.

    Args:
      depth: of the space, at least 3.
      num_activations: that a layer chooses between.

    Returns:
      ``{"activations": [depth - 1, num_activations], "skips": [depth - 2]}``, float32.
    """
    return {
        "activations": jnp.zeros((depth - 1, num_activations), jnp.float32),
        "skips": jnp.full(depth - 2, 0.5, jnp.float32),
    }


def mlp_relax(variables: Variables) -> Weights:
    """Weights of the one-shot network: probabilities of the activations, ``(1 - alpha, alpha)``.

    Returns:
      ``{"activations": [depth - 1, choices], "skips": [depth - 2, 2]}``; rows sum to 1.
    """
    alpha = variables["skips"]
    return {
        "activations": jax.nn.softmax(variables["activations"], axis=-1),
        "skips": jnp.stack([1 - alpha, alpha], axis=-1),
    }


def mlp_project(variables: Variables) -> dict[str, Array]:
    """Brings every ``alpha`` into [0, 1]; leaves the logits as they are."""
    return {**variables, "skips": jnp.clip(variables["skips"], 0.0, 1.0)}


def select_mlp(variables: Variables) -> Int32[np.ndarray, " decisions"]:
    """The most probable activations (among equals the first), and skips with ``alpha > 1/2``.

    Returns:
      A genotype of the space ``mlp``, ``[2 depth - 3]``.
    """
    activations = np.asarray(variables["activations"]).argmax(axis=-1)
    is_kept = np.asarray(variables["skips"]) > 0.5
    return np.concatenate([activations, is_kept]).astype(np.int32)
