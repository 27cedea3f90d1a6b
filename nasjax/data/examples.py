"""Examples in memory."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from nasjax.errors import InputError


class Examples(NamedTuple):
    """Labelled images.

    Attributes:
      images: ``[examples, height, width, channels]``, uint8 or float32.
      labels: ``[examples]``, int32.
    """

    images: Shaped[np.ndarray, "examples height width channels"]
    labels: Int[np.ndarray, " examples"]

    @property
    def num_examples(self) -> int:
        """How many there are."""
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """``(height, width, channels)``."""
        return self.images.shape[1:]

    @property
    def num_draws(self) -> int:
        """Random numbers that an example takes: none."""
        return 0

    def order(self, seed: int, epoch: int, batch_size: int) -> Int[np.ndarray, " examples"]:
        """The order in which an epoch goes through whole batches, whatever came before it."""
        order = np.random.default_rng((seed, epoch)).permutation(self.num_examples)
        return order[: self.num_examples // batch_size * batch_size]

    def reader(self, chosen: Int[np.ndarray, "steps part"]) -> Callable:
        """``(step, draws) -> (images, labels)`` of the examples that steps choose."""
        return lambda step, draws: (self.images[chosen[step]], self.labels[chosen[step]])


def hold_out(examples: Examples, fraction: float, *, seed: int) -> tuple[Examples, Examples]:
    """Keeps a uniformly drawn part of examples apart.

    Args:
      examples: what is split.
      fraction: of the examples that are kept apart, above 0 and below 1.
      seed: of the draw.

    Returns:
      The examples that remain and those kept apart, both in stored order.

    Raises:
      InputError: if either part would be empty, or the examples are not in memory.
    """
    if not isinstance(examples, Examples):
        raise InputError(
            "hold_out: examples must be in memory, got a stream of files. Name others to test with."
        )
    count = examples.num_examples
    num_held = round(fraction * count)
    if not 0 < num_held < count:
        raise InputError(
            f"hold_out: `fraction` must leave examples on both sides, got {fraction} of {count}."
        )
    order = np.random.default_rng(seed).permutation(count)
    held, kept = np.sort(order[:num_held]), np.sort(order[num_held:])
    return tuple(Examples(*(array[part] for array in examples)) for part in (kept, held))
