"""Samples of a relaxed architecture: the straight-through Gumbel-softmax estimator."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from nasjax.types import Key, Logits, Weights


def straight_through_gumbel_softmax(
    key: Key, logits: Logits, decisions: Mapping[str, np.ndarray], *, temperature: float = 1.0
) -> Weights:
    """Draws one choice a decision; the gradient is that of the Gumbel-softmax probabilities.

    Args:
      key: drawn from once.
      logits: ``[..., choices]`` a group of decisions.
      decisions: boolean arrays of the same shapes, false where a choice does not exist.
      temperature: of the softmax, positive; it does not change the draw.

    Returns:
      Arrays of the shapes of ``logits``, exactly one-hot. Their derivative with respect to the
      logits is that of ``softmax((logits + gumbel) / temperature)``.

    Raises:
      ValueError: when traced, if logits and decisions differ in their names or shapes.

    References:
      Jang et al., `Categorical reparameterization with Gumbel-softmax
      <https://arxiv.org/abs/1611.01144>`_, 2017, Sec. 2.2; NASI, eq. (42).
    """
    shapes = {name: np.shape(array) for name, array in logits.items()}
    expected = {name: np.shape(array) for name, array in decisions.items()}
    if shapes != expected:
        raise ValueError(
            f"straight_through_gumbel_softmax: `logits` must have the shapes of `decisions`, "
            f"{expected}, got {shapes}."
        )
    keys = jax.random.split(key, len(decisions))
    weights = {}
    for name, subkey in zip(sorted(decisions), keys, strict=True):
        noise = jax.random.gumbel(subkey, logits[name].shape, logits[name].dtype)
        perturbed = jnp.where(decisions[name], (logits[name] + noise) / temperature, -jnp.inf)
        soft = jax.nn.softmax(perturbed)
        hard = jax.nn.one_hot(jnp.argmax(perturbed, -1), perturbed.shape[-1], dtype=soft.dtype)
        # The bracket is exactly zero in value, so that the sample is exactly one-hot.
        weights[name] = hard + (soft - jax.lax.stop_gradient(soft))
    return weights
