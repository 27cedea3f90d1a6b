"""HNAS: the few constants of a training-free objective, tuned by a few evaluations."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from nasjax.errors import InputError
from nasjax.search.base import SearchAlgorithm
from nasjax.search.pool import Evaluated, EvaluateFn, PoolStepInfo, check_left, step_info
from nasjax.types import Key

Point = tuple[float, ...]
"""Constants of an objective, each brought to [0, 1]."""

_MOST_REPEATS = 10


class Probe(NamedTuple):
    """Constants that were tried.

    Attributes:
      point: the constants.
      place: in the pool, of the architecture that they select.
    """

    point: Point
    place: int


class HnasState(NamedTuple):
    """Everything that a search did.

    Attributes:
      probes: constants in the order in which they were tried.
      evaluated: architectures in the order in which they were evaluated, none of them twice.
    """

    probes: tuple[Probe, ...] = ()
    evaluated: tuple[Evaluated, ...] = ()


def hnas(
    objective_fn: Callable[[Point], Float[np.ndarray, " pool"]],
    num_constants: int,
    *,
    probes: tuple[Point, ...] = (),
    exploration: float = 0.01,
) -> SearchAlgorithm:
    """Hybrid NAS (HNAS, Algorithm 1) over a pool of scored architectures.

    A step evaluates one architecture: that which the objective selects with constants of which
    Bayesian optimisation (a Gaussian process, expected improvement) hopes for most. Constants that
    select an architecture evaluated before are told its value, and others are tried, ten times;
    then the best of the architectures that were not evaluated is taken, as it always is where the
    objective has no constants. What failed is told the least value seen.

    Args:
      objective_fn: ``point -> [pool]``, lower is better; not finite for what must not be selected,
        whatever the constants.
      num_constants: numbers in a point; 0 goes down the order of the objective.
      probes: points that are tried first, for example those of ``grid_probes``.
      exploration: expected improvements are counted from so far above the best value, in the unit
        of values.

    Returns:
      The search: ``init(key) -> HnasState``, ``step(key, state, evaluate) -> (state,
      PoolStepInfo)``. It costs a fit of a Gaussian process and an arg-min a try, some 0.1 s.

    Raises:
      InputError: (of ``step``) if no architecture is left that could be selected.
    """
    for point in probes:
        if len(point) != num_constants or not all(0 <= value <= 1 for value in point):
            raise InputError(
                f"hnas: `probes` must be points of {num_constants} numbers in [0, 1], got {point}."
            )

    def init(key: Key) -> HnasState:
        del key
        return HnasState()

    def step(key: Key, state: HnasState, evaluate: EvaluateFn) -> tuple[HnasState, PoolStepInfo]:
        known = {one.place for one in state.evaluated}
        tried = state.probes
        for attempt in range(_MOST_REPEATS if num_constants else 1):
            if not num_constants:
                point = ()
            elif len(tried) < len(probes):
                point = tuple(map(float, probes[len(tried)]))
            else:
                seed = int(jax.random.bits(jax.random.fold_in(key, attempt)))
                point = _suggested(tried, state.evaluated, num_constants, exploration, seed)
            scores = np.asarray(objective_fn(point), np.float64)
            is_usable = np.isfinite(scores)
            check_left("hnas", len(known), int(is_usable.sum()))
            scores = np.where(is_usable, scores, np.inf)
            place = int(np.argmin(scores))
            tried = (*tried, Probe(point, place))
            if place not in known:
                break
        else:
            scores[list(known)] = np.inf
            place = int(np.argmin(scores))
        evaluated = (*state.evaluated, Evaluated(place, evaluate(place)))
        return HnasState(tried, evaluated), step_info(evaluated)

    return SearchAlgorithm(init, step)


def grid_probes(num_constants: int) -> tuple[Point, ...]:
    """The middle of the unit cube and, of two constants, the middles of its quarters."""
    if num_constants == 0:
        return ()
    middle = (0.5,) * num_constants
    if num_constants != 2:
        return (middle,)
    return (middle, (0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75))


def _suggested(tried, evaluated, num_constants: int, exploration: float, seed: int) -> Point:
    """Where the expected improvement is greatest, by what was tried alone."""
    from bayes_opt import BayesianOptimization, acquisition  # slow to import

    values = {one.place: one.evaluation.value for one in evaluated}
    fine = [value for value in values.values() if not math.isnan(value)]
    names = [f"constant_{number:02d}" for number in range(num_constants)]
    optimizer = BayesianOptimization(
        None,
        {name: (0.0, 1.0) for name in names},
        acquisition_function=acquisition.ExpectedImprovement(xi=exploration),
        random_state=seed,
        verbose=0,
        allow_duplicate_points=True,
    )
    for probe in {probe.point: probe for probe in tried}.values():
        value = values[probe.place]
        told = (min(fine) if fine else 0.0) if math.isnan(value) else value
        optimizer.register(dict(zip(names, probe.point, strict=True)), told)
    found = optimizer.suggest()
    return tuple(float(found[name]) for name in names)
