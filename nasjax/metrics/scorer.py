"""Scores the architectures of a space, all with the same batch and the same weights by edge."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import Array
from jaxtyping import Int

from nasjax.errors import InputError, unknown_name
from nasjax.metrics.plan import PLANS
from nasjax.metrics.score import (
    Scores,
    check_batch,
    check_metrics,
    evaluate,
    needed_statistics,
    with_batch,
)
from nasjax.metrics.space_networks import scored_network
from nasjax.metrics.statistics import COUPLED, statistics
from nasjax.metrics.walk import WALKED, walk_statistics
from nasjax.networks import LayerConfig, init_params, one_shot_network, static_network
from nasjax.spaces import Space
from nasjax.spaces.nasbench201 import prune

ENGINES = {
    "auto": "walk for what it can do, autodiff for the rest",
    "autodiff": "one program an architecture, compiled anew; the reference for the other",
    "walk": "small programs, compiled once for all architectures of a space",
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
    engine: str = "auto",
) -> ScoreFn:
    """A function that scores architectures of a space.

    Weights are drawn once, for every operation of every edge, and shared by all architectures, so
    that scores differ by architecture alone. Operations that no path from input to output takes
    are left out.

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
      InputError: for unknown names, a batch that does not fit, what networks refuse, and metrics
        that the engine does not have.
    """
    where = "space_scorer"
    metrics = check_metrics(where, metrics)
    x, y = check_batch(where, x, y)
    if engine not in ENGINES:
        raise unknown_name(where, "engine", engine, ENGINES)
    network = dict(network or {})
    names = needed_statistics(metrics)
    walked = _walked(space, names, network, coupling) if engine != "autodiff" else ()
    rest = tuple(name for name in names if name not in walked)
    if engine == "walk" and rest:
        raise InputError(
            f"{where}: engine='walk' does not have {', '.join(rest)} for {space.name}, "
            f"coupling={coupling!r}. Use 'auto'."
        )
    params = _shared_params(space, x, seed, network)
    key = jax.random.key(seed)

    def score(genotype: np.ndarray) -> Scores:
        found = {}
        if walked:
            plan = PLANS[space.name](genotype, **_plan_options(network))
            found |= walk_statistics(plan, params, x, y, walked, num_parts=num_parts)
            if plan.is_dead:
                return evaluate(metrics, with_batch(found, x, y))
        if rest:
            genotype = prune(genotype) if space.name == "nasbench201" else np.asarray(genotype)
            shapes = jax.eval_shape(static_network(space.name, genotype, **network).init, key, x)
            scored = scored_network(
                space.name, genotype, _part(params, shapes["params"]), **network
            )
            found |= statistics(scored, x, y, rest, coupling=coupling, num_parts=num_parts)
        return evaluate(metrics, with_batch(found, x, y))

    return score


def _walked(space, names, network, coupling) -> tuple[str, ...]:
    """The statistics that a walk gives for these networks."""
    configs = [value for value in network.values() if isinstance(value, LayerConfig)]
    if space.name not in PLANS or any(c.initialization == "ntk" for c in configs):
        return ()
    is_coupled = any(c.normalization != "none" for c in configs or [LayerConfig()])
    if coupling == "exact" and is_coupled:
        return tuple(name for name in names if name in WALKED - COUPLED)
    return tuple(name for name in names if name in WALKED)


def _plan_options(network: Mapping[str, Any]) -> dict[str, Any]:
    names = ("num_cells", "config", "cell_config", "reduction_config")
    return {name: network[name] for name in names if name in network}


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
