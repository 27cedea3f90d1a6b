"""Architectures drawn from a space, none twice."""

from collections.abc import Iterator

import jax
import numpy as np

from nasjax.errors import InputError
from nasjax.spaces import Space
from nasjax.types import Key


def draw_architectures(
    space: Space, count: int, key: Key, *, is_connected: bool = False
) -> list[np.ndarray]:
    """Distinct architectures, the same ones first for every count.

    A space that has a list of all its genotypes is shuffled; of another one repeated draws are
    dropped.

    Args:
      space: the space.
      count: how many.
      key: random key.
      is_connected: leaves out architectures whose output depends on no input.

    Returns:
      The genotypes.

    Raises:
      InputError: if the space has fewer, or no list and fewer than twice as many.
    """
    listed = None if is_connected else space.all_genotypes()
    largest = space.size // 2 if listed is None else len(listed)
    if not 1 <= count <= largest:
        raise InputError(
            f"--num-architectures: must be 1 to {largest} in {space.name}, got {count}."
        )
    if listed is not None:
        return list(listed[np.asarray(jax.random.permutation(key, len(listed)))[:count]])
    found: dict[bytes, np.ndarray] = {}
    for draw in _draws(space, key):
        if not is_connected or space.is_connected(draw):
            found.setdefault(draw.tobytes(), draw)
        if len(found) == count:
            return list(found.values())
    raise AssertionError("unreachable")


def _draws(space: Space, key: Key) -> Iterator[np.ndarray]:
    sample = jax.jit(jax.vmap(space.sample))
    block = 0
    while True:
        keys = jax.random.split(jax.random.fold_in(key, block), 256)
        yield from np.asarray(sample(keys))
        block += 1
