"""Scores the architectures of a space, all with the same batch and the same weights by edge."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import Array
from jaxtyping import Int

from nasjax.errors import unknown_name
from nasjax.metrics.score import Scores, check_batch, check_metrics, score_network
from nasjax.metrics.space_networks import scored_network
from nasjax.networks import init_params, one_shot_network, static_network
from nasjax.spaces import Space

ENGINES = {
    "autodiff": "one program an architecture, compiled anew; the reference for all others",
}
"""Ways to the same scores."""


class ScoreFn(Protocol):
    """Scores one architecture."""

    def __call__(self, genotype: np.ndarray) -> Scores:
        """Values, flags and warnings of a genotype of the space."""
        ...


def space_scorer(
    space: Space,
    x: Array,
    y: Int[Array, " batch"],
    metrics: Sequence[str],
    *,
    seed: int = 0,
    network: Mapping[str, Any] | None = None,
    coupling: str = "mapped",
    num_parts: int = 2,
    engine: str = "autodiff",
) -> ScoreFn:
    """A function that scores architectures of a space.

    Weights are drawn once, for every operation of every edge, and shared by all architectures, so
    that scores differ by architecture alone.

    Args:
      space: the space.
      x: ``[batch, height, width, channels]``, or ``[batch, inputs]`` for ``mlp``.
      y: ``[batch]``, labels from 0.
      metrics: keys of ``METRICS``.
      seed: of the weights.
      network: attributes of the networks: ``num_classes``, ``channels``, ``num_cells``, ``config``,
        for ``mlp`` ``num_outputs``, ``width``, ``initialization``.
      coupling: as for ``score_network``.
      num_parts: as for ``score_network``.
      engine: a key of ``ENGINES``.

    Returns:
      ``(genotype) -> scores``.

    Raises:
      InputError: for unknown names, a batch that does not fit, and what networks refuse.
    """
    where = "space_scorer"
    metrics = check_metrics(where, metrics)
    x, y = check_batch(where, x, y)
    if engine not in ENGINES:
        raise unknown_name(where, "engine", engine, ENGINES)
    network = dict(network or {})
    params = _shared_params(space, x, seed, network)
    key = jax.random.key(seed)

    def score(genotype: np.ndarray) -> Scores:
        used = jax.eval_shape(static_network(space.name, genotype, **network).init, key, x)[
            "params"
        ]
        scored = scored_network(space.name, genotype, _part(params, used), **network)
        return score_network(scored, x, y, metrics, coupling=coupling, num_parts=num_parts)

    return score


def _shared_params(space: Space, x, seed: int, network: Mapping[str, Any]):
    # A whole genotype of DARTS has two edges a node.
    edges = {"num_edges": 2} if space.name == "darts" else {}
    one_shot = one_shot_network(space.name, **network, **edges)
    weights = space.one_hot(space.sample(jax.random.key(0)))
    return init_params(jax.random.key(seed), one_shot, weights, x)


def _part(tree, names):
    """The part of a tree of dictionaries that another one has."""
    if not isinstance(names, Mapping):
        return tree
    return {name: _part(tree[name], inner) for name, inner in names.items()}
