"""Steps of a search in a pool that are recorded as they are made, and gone through again."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from nasjax.errors import InputError, first_line
from nasjax.evaluation import Nasbench201Table
from nasjax.runs.folder import RunFolder
from nasjax.runs.nasi import versions
from nasjax.runs.score_pool import ScoredPool
from nasjax.search import Evaluated, Evaluation, SearchAlgorithm
from nasjax.search.pool import EvaluateFn, PoolStepInfo
from nasjax.spaces.nasbench201 import official_index
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


def pool_settings(
    settings: Any, pool: ScoredPool, evaluated_by: Mapping[str, Any]
) -> dict[str, Any]:
    """What a search's folder is checked by: its settings, a dataclass, scores and evaluations."""
    return {
        **dataclasses.asdict(settings),
        "space": pool.space.name,
        "scores_sha256": pool.sha256,
        "evaluated_by": evaluated_by,
        "versions": versions(),
    }


def step_line(pool: ScoredPool, number: int, info: PoolStepInfo) -> dict[str, Any]:
    """What every search writes of a step, which is the one of that number, from 0."""
    return {
        "step": number + 1,
        "place": info.place,
        "architecture": pool.space.to_string(pool.genotypes[info.place]),
        "value": info.evaluation.value,
        "seconds": info.evaluation.seconds,
        "failure": info.evaluation.failure,
        "best_value": info.best_value,
        "total_seconds": info.seconds,
    }


def selected_record(
    where: str,
    settings: Any,
    pool: ScoredPool,
    evaluated: Sequence[Evaluated],
    info: PoolStepInfo,
    evaluated_by: Mapping[str, Any],
    table: Nasbench201Table | None,
) -> dict[str, Any]:
    """What every search in a pool records of the architecture that it selects.

    Args:
      where: the search's name, for messages; its last word is that of the algorithm.
      settings: a dataclass.
      pool: scored architectures.
      evaluated: all that was evaluated.
      info: of the last step.
      evaluated_by: what evaluations are.
      table: accuracies, to report those of the architecture.

    Returns:
      JSON-able but for the settings' own values.

    Raises:
      InputError: if every evaluation failed.
    """
    if info.best_place is None:
        raise InputError(f"{where}: an evaluation must succeed, got failures only.")
    genotype = pool.genotypes[info.best_place]
    record = {
        "space": pool.space.name,
        "architecture": pool.space.to_string(genotype),
        "genotype": genotype.tolist(),
        "algorithm": where.split()[-1],
        "value": info.best_value,
        "settings": dataclasses.asdict(settings),
        "evaluated_by": evaluated_by,
        "scores": {
            "file": pool.source,
            "sha256": pool.sha256,
            "num_architectures": len(pool.genotypes),
        },
        "seconds": {"evaluations": info.seconds, "metrics": pool.seconds},
        "num_evaluations": len(evaluated),
        "num_failed": sum(bool(one.evaluation.failure) for one in evaluated),
        "versions": versions(),
    }
    if pool.space.name == "nasbench201":
        record["official_index"] = official_index(genotype)
    if table is not None:
        record["accuracies"] = table.lookup(genotype)._asdict()
    return record


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
