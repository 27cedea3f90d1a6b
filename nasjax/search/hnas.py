"""HNAS: the few constants of a training-free objective, tuned by a few evaluations."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from nasjax.errors import InputError
from nasjax.search.base import SearchAlgorithm
from nasjax.search.pool import (
    Evaluated,
    EvaluateFn,
    PoolStepInfo,
    check_left,
    evaluated_at,
    step_info,
)
from nasjax.types import Key

Point = tuple[float, ...]
"""Constants of an objective, each brought to [0, 1]."""

_NUM_CANDIDATES, _MOST_REPEATS = 512, 10


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
      points: by what constants each of these was taken: it is the best by them of all, or, where
        none of the constants that were tried selects a new one, of what was left.
    """

    probes: tuple[Probe, ...] = ()
    evaluated: tuple[Evaluated, ...] = ()
    points: tuple[Point, ...] = ()

    def point_of(self, place: int) -> Point:
        """By what constants an architecture that was evaluated was taken."""
        return self.points[[one.place for one in self.evaluated].index(place)]


def hnas(
    objective_fn: Callable[[Point], Float[np.ndarray, " pool"]],
    num_constants: int,
    *,
    probes: tuple[Point, ...] = (),
    exploration: float = 0.001,
) -> SearchAlgorithm:
    """Hybrid NAS (HNAS, Algorithm 1) over a pool of scored architectures.

    A step evaluates one architecture: that which the objective selects with constants of which
    Bayesian optimisation (a Gaussian process, expected improvement) hopes for most, of 512 that are
    drawn uniformly. Constants that select an architecture evaluated before are told its value, ten
    in a step, and the next are tried; where all do, the best of the architectures that were not
    evaluated is taken, as it always is where the objective has no constants. What failed is told
    the least value seen.

    Args:
      objective_fn: ``point -> [pool]``, lower is better; not finite for what must not be selected,
        whatever the constants.
      num_constants: numbers in a point; 0 goes down the order of the objective.
      probes: points that are tried first, for example those of ``grid_probes``.
      exploration: expected improvements are counted from so far above the best value, in the unit
        of values.

    Returns:
      The search: ``init(key) -> HnasState``, ``step(key, state, evaluate) -> (state,
      PoolStepInfo)``. A step costs a fit of a Gaussian process and an arg-min a try, some 0.1 s.

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

    def points(key: Key, state: HnasState) -> Iterator[Point]:
        if not num_constants:
            yield ()
            return
        for probe in probes[len(state.probes) :]:
            yield tuple(map(float, probe))
        seed = int(jax.random.bits(key))
        yield from _by_hope(state, num_constants, exploration, seed)

    def step(key: Key, state: HnasState, evaluate: EvaluateFn) -> tuple[HnasState, PoolStepInfo]:
        known = {one.place for one in state.evaluated}
        tried = state.probes
        for point in points(key, state):
            scores = np.asarray(objective_fn(point), np.float64)
            is_usable = np.isfinite(scores)
            check_left("hnas", len(known), int(is_usable.sum()))
            scores = np.where(is_usable, scores, np.inf)
            place = int(np.argmin(scores))
            if place not in known or len(tried) < len(state.probes) + _MOST_REPEATS:
                tried = (*tried, Probe(point, place))
            if place not in known:
                break
        else:
            scores[list(known)] = np.inf
            place = int(np.argmin(scores))
        evaluated = (*state.evaluated, evaluated_at(place, evaluate(place)))
        return HnasState(tried, evaluated, (*state.points, point)), step_info(evaluated)

    return SearchAlgorithm(init, step)


def grid_probes(num_constants: int) -> tuple[Point, ...]:
    """The middle of the unit cube and, of two constants, the middles of its quarters."""
    if num_constants == 0:
        return ()
    middle = (0.5,) * num_constants
    if num_constants != 2:
        return (middle,)
    return (middle, (0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75))


def _by_hope(state: HnasState, num_constants: int, exploration: float, seed: int) -> list[Point]:
    """Points drawn uniformly, those with the greatest expected improvement first."""
    from bayes_opt import BayesianOptimization, acquisition  # slow to import

    drawn = np.random.default_rng(seed).random((_NUM_CANDIDATES, num_constants))
    values = {one.place: one.evaluation.value for one in state.evaluated}
    fine = [value for value in values.values() if not math.isnan(value)]
    if not fine:
        return [tuple(point) for point in drawn.tolist()]
    names = [f"constant_{number:02d}" for number in range(num_constants)]
    improvement = acquisition.ExpectedImprovement(xi=exploration)
    optimizer = BayesianOptimization(
        None,
        {name: (0.0, 1.0) for name in names},
        acquisition_function=improvement,
        random_state=seed,
        verbose=0,
        allow_duplicate_points=True,
    )
    optimizer.set_gp_params(n_restarts_optimizer=1)
    for probe in {probe.point: probe for probe in state.probes}.values():
        value = values[probe.place]
        told = min(fine) if math.isnan(value) else value
        optimizer.register(dict(zip(names, probe.point, strict=True)), told)
    asked = [dict(zip(names, point, strict=True)) for point in drawn.tolist()]
    mean, std = optimizer.predict(asked, return_std=True)
    improvement.y_max = max(fine)
    hope = improvement.base_acq(mean, np.maximum(std, 1e-12))
    return [tuple(point) for point in drawn[np.argsort(-hope, kind="stable")].tolist()]
