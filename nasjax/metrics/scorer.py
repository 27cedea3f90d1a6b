"""Scores the architectures of a space, all with the same batch and the same weights by edge."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import Array
from jaxtyping import Int

from nasjax.errors import InputError, unknown_name
from nasjax.metrics import conv_kernels
from nasjax.metrics.plans import PLANS
from nasjax.metrics.program import PROGRAMMED, space_program
from nasjax.metrics.registry import METRICS
from nasjax.metrics.score import (
    Scores,
    batch_facts,
    check_batch,
    check_labels,
    check_metrics,
    evaluate,
    needed_statistics,
)
from nasjax.metrics.space_networks import SHARED, scored_network, shared_params
from nasjax.metrics.statistics import COUPLED, statistics
from nasjax.metrics.walk import WALKED, walk_statistics
from nasjax.networks import NETWORKS, LayerConfig, init_params, static_network
from nasjax.spaces import Space
from nasjax.spaces.nasbench201 import prune

ENGINES = {
    "auto": "walk for what it can do, else program, else autodiff",
    "autodiff": "a program for every architecture, compiled anew; the reference for the others",
    "program": "one program that takes architectures as arrays, compiled once for a space",
    "native": "walk, with convolutions by kernels of our own; for CPUs, needs a C++ compiler",
    "walk": "small programs for single operations, compiled once for a space",
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
    are left out. Only in spaces of NAS-Bench-101, where channels depend on the graph, the static
    networks are no parts of a one-shot network: there they are scored with weights of their own,
    and ``"program"`` scores the one-shot network of ``nasbench1shot1`` instead.

    Args:
      space: the space.
      x: ``[batch, height, width, channels]``, or ``[batch, inputs]`` for ``mlp``.
      y: ``[batch]``, labels from 0.
      metrics: keys of ``METRICS``.
      seed: of the weights.
      network: attributes of the networks: ``num_classes`` (10), ``channels``, ``num_cells``,
        ``config``, for ``mlp`` ``num_outputs`` (10), ``width``, ``initialization``.
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
    if not isinstance(space, Space):
        raise InputError(f"{where}: `space` must be a Space, as `get_space` gives, got {space!r}.")
    metrics = check_metrics(where, metrics)
    x, y = check_batch(where, x, y)
    network = dict(network or {})
    check_labels(where, y, _num_outputs(space, network))
    shares = engine_shares(where, space, metrics, network, coupling=coupling, engine=engine)
    key, facts = jax.random.key(seed), batch_facts(x, y)
    settings = {"coupling": coupling, "num_parts": num_parts}
    params = program = None
    if space.name in SHARED or shares["program"]:
        params = shared_params(space, key, x, **network)
        program = space_program(space, params, x, y, shares["program"], **settings, **network)

    def score(genotype: np.ndarray) -> Scores:
        genotype = prune(genotype) if space.name == "nasbench201" else np.asarray(genotype)
        if not space.is_connected(genotype):
            return evaluate(metrics, {"outputs": np.zeros((len(x), 1)), **facts})
        found, own = {}, params
        if space.name not in SHARED and (shares["native"] or shares["walk"] or shares["autodiff"]):
            own = init_params(key, static_network(space.name, genotype, **network), x)
        walked = shares["native"] or shares["walk"]
        if walked:
            options = {name: value for name, value in network.items() if name != "num_classes"}
            plan = PLANS[space.name](genotype, **options)
            found |= walk_statistics(
                plan, own, x, y, walked, num_parts=num_parts, is_native=bool(shares["native"])
            )
        if shares["program"]:
            found |= program(genotype)
        if shares["autodiff"]:
            if space.name in SHARED:
                module = static_network(space.name, genotype, **network)
                used = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
                own = _part(params, used)
            scored = scored_network(space.name, genotype, own, **network)
            found |= statistics(scored, x, y, shares["autodiff"], **settings)
        return evaluate(metrics, found | facts)

    return score


def _num_outputs(space, network) -> int:
    """Of the networks that these attributes make."""
    genotype = np.asarray(space.sample(jax.random.key(0)))
    try:
        module = static_network(space.name, genotype, **network)
    except TypeError as error:
        raise InputError(
            f"space_scorer: `network` must be attributes of the networks of {space.name}, got "
            f"{sorted(network)}: {error}."
        ) from error
    return module.num_outputs if space.name == "mlp" else module.num_classes


def engine_shares(
    where: str,
    space: Space,
    metrics: Sequence[str],
    network: Mapping[str, Any],
    *,
    coupling: str,
    engine: str,
) -> dict[str, tuple[str, ...]]:
    """Which engine gives which statistics.

    Args:
      where: what names the engine, for messages.
      space: as for ``space_scorer``.
      metrics: as for ``space_scorer``.
      network: as for ``space_scorer``.
      coupling: as for ``space_scorer``.
      engine: as for ``space_scorer``.

    Returns:
      Names of statistics by engine.

    Raises:
      InputError: for an unknown engine, and for metrics that it does not have.
    """
    if engine not in ENGINES:
        raise unknown_name(where, "engine", engine, ENGINES)
    names = needed_statistics(metrics)
    walked = _walked(space, names, network, coupling)
    why_not = conv_kernels.why_not() if walked and engine in ("auto", "native") else None
    if engine == "native" and why_not is not None:
        raise InputError(f"{where}: no {engine!r} kernels: {why_not}. Use 'auto' or 'walk'.")
    has = {
        "native": () if why_not else walked,
        "walk": walked,
        "program": PROGRAMMED,
        "autodiff": names,
    }
    if space.name not in SHARED:  # one kind of network for all metrics, whichever are asked for
        is_asked = engine == "program" and NETWORKS[space.name].one_shot is not None
        has["program"] = PROGRAMMED if is_asked else ()
    shares, rest = dict.fromkeys(has, ()), names
    for name in has if engine == "auto" else (engine,):
        shares[name] = tuple(need for need in rest if need in has[name])
        rest = tuple(need for need in rest if need not in has[name])
    lacking = [name for name in metrics if not set(METRICS[name].needs).isdisjoint(rest)]
    if rest:
        raise InputError(
            f"{where}: {engine!r} does not have {', '.join(lacking) or 'any metric'} in "
            f"{space.name} with kernels {coupling!r}. Use 'auto', or leave them out."
        )
    return shares


def _walked(space, names, network, coupling) -> tuple[str, ...]:
    """The statistics that a walk gives for these networks."""
    configs = [value for value in network.values() if isinstance(value, LayerConfig)]
    if space.name not in PLANS or any(c.initialization == "ntk" for c in configs):
        return ()
    is_coupled = any(c.normalization != "none" for c in configs or [LayerConfig()])
    if coupling == "exact" and is_coupled:
        return tuple(name for name in names if name in WALKED - COUPLED)
    return tuple(name for name in names if name in WALKED)


def _part(tree, names):
    """The part of a tree of dictionaries that another one has."""
    if not isinstance(names, Mapping):
        return tree
    return {name: _part(tree[name], inner) for name, inner in names.items()}
