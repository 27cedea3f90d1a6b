"""Steps of a search in a pool that are recorded as they are made, and gone through again."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from nasjax.errors import InputError, first_line
from nasjax.runs.folder import RunFolder
from nasjax.search import Evaluation, SearchAlgorithm
from nasjax.search.pool import EvaluateFn, PoolStepInfo
from nasjax.types import Key

MOST_FAILURES = 5
"""So many evaluations that fail one after the other end a search."""


def recorded_steps(
    where: str,
    search: SearchAlgorithm,
    key: Key,
    evaluate: EvaluateFn,
    folder: RunFolder,
    *,
    num_steps: int,
    history: Sequence[dict[str, Any]],
    line_of: Callable[[int, Any, PoolStepInfo], dict[str, Any]],
    on_record: Callable[[dict[str, Any]], None],
) -> tuple[Any, PoolStepInfo]:
    """Runs a search in a pool, from recorded evaluations as far as there are any.

    Args:
      where: the search's name, for messages.
      search: an ``init`` and a ``step`` of the package ``search``.
      key: of the search; a step has ``fold_in(key, number)``.
      evaluate: gives the value of an architecture. What it raises is a failure.
      folder: where lines go.
      num_steps: architectures to evaluate.
      history: lines of the steps that were made before.
      line_of: ``(number, state, info) -> line``, with ``place``, ``value``, ``seconds`` and
        ``failure``.
      on_record: told of each new line.

    Returns:
      The last state and step.

    Raises:
      InputError: if the history is another search's, or evaluations fail again and again.
    """
    state, num_failed = search.init(key), 0
    for number in range(num_steps):
        is_known = number < len(history)
        ask = _recorded(folder, history[number]) if is_known else _guarded(evaluate)
        state, info = search.step(jax.random.fold_in(key, number), state, ask)
        num_failed = num_failed + 1 if info.evaluation.failure else 0
        if not is_known:
            line = line_of(number, state, info)
            folder.append_history(line)
            on_record(line)
        if num_failed >= MOST_FAILURES:
            raise InputError(
                f"{where}: evaluations must succeed, got {num_failed} failures one after the "
                f"other, the last: {info.evaluation.failure}"
            )
    return state, info


def _recorded(folder: RunFolder, line) -> EvaluateFn:
    def ask(place: int) -> Evaluation:
        if line.get("place") != place:
            raise InputError(
                f"--out {folder.path}: history.jsonl must be of this search, which asks for "
                f"architecture {place} of the scores where it has {line.get('place')}. Remove the "
                "folder."
            )
        value = math.nan if line["value"] is None else float(line["value"])
        return Evaluation(value, float(line["seconds"]), line["failure"])

    return ask


def _guarded(evaluate: EvaluateFn) -> EvaluateFn:
    def ask(place: int) -> Evaluation:
        try:
            return evaluate(place)
        except Exception as error:  # whatever a user's function raises
            return Evaluation(math.nan, 0.0, f"{type(error).__name__}: {first_line(error)}")

    return ask
