"""Statistics of every architecture of a space by one program, which takes it as an array."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from nasjax.metrics.space_networks import scored_one_shot
from nasjax.metrics.statistics import STATISTICS, on_network, run_programs
from nasjax.spaces import Space
from nasjax.types import PyTree

PROGRAMMED = frozenset(STATISTICS) - {"activations", "fisher"}
"""Statistics that a program gives; others are read inside of layers, which it does not show."""


def space_program(
    space: Space,
    params: PyTree,
    x: Array,
    y: Int[Array, " batch"],
    names: Sequence[str],
    *,
    coupling: str,
    num_parts: int,
    **network: Any,
) -> Callable[[np.ndarray], dict[str, PyTree]]:
    """A function that gives statistics of any architecture, compiled once.

    It differentiates the one-shot network at one-hot weights, in which only the operations that are
    drawn are computed. ``synflow`` has a program of its own, in float64.

    Args:
      space: the space.
      params: of the one-shot network.
      x: ``[batch, ...]``.
      y: ``[batch]``, labels.
      names: of ``PROGRAMMED``.
      coupling: as for ``statistics``.
      num_parts: as for ``statistics``.
      **network: attributes of the networks.

    Returns:
      ``(genotype) -> statistics`` on the host. Layers that are not used count zero.
    """
    options = {"coupling": coupling, "num_parts": num_parts}

    @partial(jax.jit, static_argnums=0)
    def compiled(names, genotype, params, x, y):
        scored = scored_one_shot(space.name, space.one_hot(genotype), params, **network)
        return {name: on_network(name, scored, x, y, **options) for name in names}

    def run(genotype: np.ndarray) -> dict[str, PyTree]:
        genotype = jnp.asarray(genotype)
        return run_programs(
            lambda names, *arguments: compiled(names, genotype, *arguments), names, params, x, y
        )

    return run
