"""Searches in a pool of architectures, of which a few are evaluated: what they share.

Such a search knows architectures by their place in the pool and asks for evaluations one by one.
Its state holds all that was asked and answered, so that a state and a key determine the next step.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from nasjax.errors import InputError


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
