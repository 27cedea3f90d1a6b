"""Types shared by all packages: array shapes in one vocabulary and the callables that are passed.

The axis names are ``batch``, ``height``, ``width``, ``channels``, ``classes``, ``edges``.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from jax import Array
from jaxtyping import Float, Int

Key = Array
"""A typed random key of shape ``[]``, made by ``jax.random.key``."""

PyTree = Any
"""Nested tuples, lists and dictionaries of arrays."""

Images = Float[Array, "batch height width channels"]
Labels = Int[Array, " batch"]
Logits = Mapping[str, Float[Array, "... choices"]]
"""Architecture logits, one array a decision: ``Space.decisions`` gives their shapes."""

Weights = Mapping[str, Float[Array, "... choices"]]
"""Relaxed (or one-hot) architecture weights, with the shapes of the logits."""


class OneShotApplyFn(Protocol):
    """The forward pass of a one-shot network."""

    def __call__(
        self, params: PyTree, weights: Weights, x: Images
    ) -> Float[Array, "batch classes"]:
        """Outputs (class logits) of the architecture that ``weights`` describe."""
        ...
