"""Successive halving: many cheap evaluations, and dear ones of the best among them."""

import math
from collections import Counter
from collections.abc import Callable

from nasjax.errors import InputError
from nasjax.search.base import SearchAlgorithm
from nasjax.search.pool import (
    Evaluated,
    Evaluation,
    PoolState,
    PoolStepInfo,
    evaluated_at,
    or_least,
    step_info,
)
from nasjax.types import Key

EvaluateAtFn = Callable[[int, int], Evaluation]
"""``(place, rung) -> `` what the evaluation of that rung gives; 0 is the cheapest."""


def successive_halving(
    search: SearchAlgorithm, *, num_rungs: int = 2, eta: int = 4
) -> SearchAlgorithm:
    """Lets a search propose architectures and evaluates the best of them again at more cost.

    The rule is that of asynchronous successive halving (ASHA; Li et al., 2020): a step evaluates
    the best architecture of the highest rung that belongs to the first ``1 / eta`` of its rung and
    was not evaluated in the next; where there is none, a new one in the lowest. With `parzen` as
    the search this is BOHB (Falkner et al., 2018) but for its order of steps; its model sees the
    lowest rung.

    Args:
      search: proposes by evaluations of the lowest rung; its state is a ``PoolState``.
      num_rungs: kinds of evaluations.
      eta: of how many in a rung one is promoted.

    Returns:
      The search: ``step(key, state, evaluate) -> (PoolState, PoolStepInfo)`` with ``evaluate(place,
      rung)``. An architecture is in the state once a rung. The best is that of the highest rung
      in which an evaluation succeeded.

    Raises:
      InputError: if there is no rung, or ``eta`` is below 2.
    """
    if num_rungs < 1 or eta < 2:
        raise InputError(
            "successive_halving: `num_rungs` must be at least 1 and `eta` at least 2, got "
            f"{num_rungs} and {eta}."
        )

    def step(key: Key, state: PoolState, evaluate: EvaluateAtFn) -> tuple[PoolState, PoolStepInfo]:
        rungs = _by_rung(state.evaluated)
        promoted = _promoted(rungs, num_rungs, eta)
        if promoted is not None:
            place, rung = promoted
            last = evaluated_at(place, evaluate(place, rung))
        else:
            lowest = PoolState(tuple(rungs[0]) if rungs else ())
            proposed, _ = search.step(key, lowest, lambda place: evaluate(place, 0))
            last = proposed.evaluated[-1]
        evaluated = (*state.evaluated, last)
        return PoolState(evaluated), _info(evaluated)

    return SearchAlgorithm(search.init, step)


def _by_rung(evaluated: tuple[Evaluated, ...]) -> list[list[Evaluated]]:
    """An architecture's n-th evaluation is that of the n-th rung."""
    count: Counter[int] = Counter()
    rungs: list[list[Evaluated]] = []
    for one in evaluated:
        rung = count[one.place]
        count[one.place] += 1
        if rung == len(rungs):
            rungs.append([])
        rungs[rung].append(one)
    return rungs


def _promoted(rungs, num_rungs: int, eta: int) -> tuple[int, int] | None:
    """``(place, rung)`` of what is to be evaluated again."""
    for rung in range(min(len(rungs), num_rungs - 1) - 1, -1, -1):
        order = sorted(rungs[rung], key=lambda one: -or_least(one.evaluation.value))
        known = {one.place for one in rungs[rung + 1]} if rung + 1 < len(rungs) else set()
        for one in order[: len(order) // eta]:
            if one.place not in known and not math.isnan(one.evaluation.value):
                return one.place, rung + 1
    return None


def _info(evaluated: tuple[Evaluated, ...]) -> PoolStepInfo:
    whole = step_info(evaluated)
    for rung in reversed(_by_rung(evaluated)):
        best = step_info(tuple(rung))
        if best.best_place is not None:
            return whole._replace(best_place=best.best_place, best_value=best.best_value)
    return whole
