"""Searches in a pool of architectures, of which a few are evaluated: what they share.

Such a search knows architectures by their place in the pool and asks for evaluations one by one.
Its state holds all that was asked and answered, so that a state and a key determine the next step.
"""

import math
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import jax
import numpy as np

from nasjax.errors import InputError
from nasjax.search.base import SearchAlgorithm
from nasjax.types import Key


class Evaluation(NamedTuple):
    """What the evaluation of an architecture gave.

    Attributes:
      value: what is maximised, such as a validation accuracy; NaN if it failed.
      seconds: that it cost.
      failure: why it failed; empty if it did not.
    """

    value: float
    seconds: float
    failure: str = ""


EvaluateFn = Callable[[int], Evaluation]
"""Evaluates the architecture at a place of the pool."""


class Evaluated(NamedTuple):
    """An architecture that was evaluated.

    Attributes:
      place: in the pool.
      evaluation: what came out.
    """

    place: int
    evaluation: Evaluation


class PoolState(NamedTuple):
    """What was evaluated.

    Attributes:
      evaluated: architectures in their order, none of them twice.
    """

    evaluated: tuple[Evaluated, ...] = ()


class PoolStepInfo(NamedTuple):
    """The record of a step, which evaluates one architecture.

    Attributes:
      place: of the architecture.
      evaluation: what came out.
      best_place: of the best architecture so far; None while all failed.
      best_value: its value; NaN while all failed.
      seconds: of all evaluations so far.
    """

    place: int
    evaluation: Evaluation
    best_place: int | None
    best_value: float
    seconds: float


def evaluated_at(place: int, evaluation: Evaluation) -> Evaluated:
    """An evaluation as it is kept: one whose value is not finite has failed.

    Raises:
      InputError: if it is no ``Evaluation``.
    """
    if not isinstance(evaluation, Evaluation):
        raise InputError(
            f"evaluate: must return an Evaluation(value, seconds), got {type(evaluation).__name__}."
        )
    if not math.isfinite(evaluation.value):
        told = evaluation.failure or f"its value is {evaluation.value}"
        evaluation = Evaluation(math.nan, evaluation.seconds, told)
    return Evaluated(place, evaluation)


def or_least(value: float) -> float:
    """A value to sort by: what failed comes last."""
    return -math.inf if math.isnan(value) else value


def step_info(evaluated: tuple[Evaluated, ...]) -> PoolStepInfo:
    """The record of the last of some evaluations.

    Args:
      evaluated: in their order, at least one. Of equal values the first is the best.

    Returns:
      The record.
    """
    fine = [one for one in evaluated if not math.isnan(one.evaluation.value)]
    best = max(fine, key=lambda one: one.evaluation.value, default=None)
    return PoolStepInfo(
        place=evaluated[-1].place,
        evaluation=evaluated[-1].evaluation,
        best_place=None if best is None else best.place,
        best_value=math.nan if best is None else best.evaluation.value,
        seconds=sum(one.evaluation.seconds for one in evaluated),
    )


def check_left(where: str, num_evaluated: int, num_usable: int) -> None:
    """Checks that there is an architecture that was not evaluated.

    Raises:
      InputError: if there is none.
    """
    if num_evaluated >= num_usable:
        raise InputError(
            f"{where}: there must be an architecture that was not evaluated yet, got "
            f"{num_evaluated} evaluations of {num_usable} usable ones. Ask for fewer steps."
        )


def any_left(generator: np.random.Generator, places: Sequence[int], known: Container[int]) -> int:
    """One of the places that are not known, drawn uniformly."""
    left = [place for place in places if place not in known]
    return left[generator.integers(len(left))]


def pool_search(
    where: str,
    num_usable: int,
    choose: Callable[[np.random.Generator, dict[int, Evaluation]], int],
) -> SearchAlgorithm:
    """A search whose next architecture depends on what is known, in its order, and on chance.

    Args:
      where: its name, for errors.
      num_usable: architectures that it may choose.
      choose: ``(generator, known) -> place`` of one that is not known.

    Returns:
      The search: ``init(key) -> PoolState``, ``step(key, state, evaluate) -> (PoolState,
      PoolStepInfo)``.
    """

    def init(key: Key) -> PoolState:
        del key
        return PoolState()

    def step(key: Key, state: PoolState, evaluate: EvaluateFn) -> tuple[PoolState, PoolStepInfo]:
        known = {one.place: one.evaluation for one in state.evaluated}
        check_left(where, len(known), num_usable)
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
        place = choose(generator, known)
        evaluated = (*state.evaluated, evaluated_at(place, evaluate(place)))
        return PoolState(evaluated), step_info(evaluated)

    return SearchAlgorithm(init, step)
