"""Evaluation of candidates by a short training, each in a folder of its own."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

from nasjax.runs.score_pool import ScoredPool
from nasjax.runs.train import OnReportFn, run_training
from nasjax.runs.train_settings import TrainSettings
from nasjax.search import Evaluation
from nasjax.search.pool import EvaluateFn

HELD_OUT = 0.1
"""The part of the examples that candidates are compared by, where the recipe keeps none apart."""


class CandidateEvaluation(NamedTuple):
    """How candidates are evaluated.

    Attributes:
      evaluate: trains the architecture at a place of the pool.
      record: what it does, for the record of a search.
    """

    evaluate: EvaluateFn
    record: dict[str, Any]


def training_evaluation(
    pool: ScoredPool,
    out: str | Path,
    *,
    recipe: str = "hnas_candidate",
    data: str | None = None,
    test_data: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    on_report: OnReportFn | None = None,
) -> CandidateEvaluation:
    """Trains candidates and takes the accuracy on examples that were kept apart of the training's.

    Test examples play no part. A training that was stopped goes on from its last checkpoint when it
    is asked for again, and one that has ended is not run again.

    Args:
      pool: of the architectures.
      out: a folder; each candidate has one in it.
      recipe: what ``training.get_recipe`` takes; 10 % are kept apart where it keeps none.
      data: what ``data.load_splits`` takes; None takes the recipe's.
      test_data: with ``npz:PATH``, where the examples to test with are.
      epochs: None takes the recipe's.
      seed: of every training, so that all have the same examples.
      on_report: shows the progress of a training.

    Returns:
      The evaluation; its seconds are those of training.

    Raises:
      InputError: if the recipe cannot be used, or has no networks of the space.
    """
    first = TrainSettings(
        space=pool.space.name,
        architecture=pool.space.to_string(pool.genotypes[0]),
        recipe=recipe,
        data=data,
        test_data=test_data,
        epochs=epochs,
        seed=seed,
    )
    first = dataclasses.replace(first, held_out=first.final_recipe().held_out or HELD_OUT)

    def evaluate(place: int) -> Evaluation:
        architecture = pool.space.to_string(pool.genotypes[place])
        settings = dataclasses.replace(first, architecture=architecture)
        name = hashlib.sha256(settings.architecture.encode()).hexdigest()[:16]
        record = run_training(
            settings, Path(out) / name, on_report=on_report, on_message=lambda _: None
        ).record
        return Evaluation(record["test_accuracy"], record["seconds"])

    told = dataclasses.asdict(first) | {"architecture": "each"}
    return CandidateEvaluation(evaluate, {"training": told})
