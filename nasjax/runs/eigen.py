"""Eigen-NAS from scores to files: the best k by a metric, and of them the best by validation."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nasjax.errors import InputError
from nasjax.evaluation import Nasbench201Table, draw_cells, draw_selection
from nasjax.runs.folder import RunFolder, open_run_folder
from nasjax.runs.hnas import PoolSearchResult
from nasjax.runs.nasi import OnStepFn
from nasjax.runs.pool_steps import pool_settings, recorded_steps, selected_record, step_line
from nasjax.runs.score_pool import ScoredPool
from nasjax.search import ranked
from nasjax.search.pool import EvaluateFn


@dataclasses.dataclass(frozen=True)
class EigenSettings:
    """Everything that a selection depends on but scores and evaluations.

    Attributes:
      metric: a column of the scores, ranked by.
      beside: other columns, by which as many are selected for comparison, such as ``knas``.
      top_k: architectures that are evaluated, ``k``.

    Raises:
      InputError: if a value is out of its range, or a metric is named twice.
    """

    metric: str = "min_eigenvalue"
    beside: tuple[str, ...] = ()
    top_k: int = 20

    def __post_init__(self):
        """Checks every value."""
        object.__setattr__(self, "beside", tuple(self.beside))
        if self.top_k < 1:
            raise InputError(f"--top-k: must be at least 1, got {self.top_k}.")
        if len(set(self.metrics)) < len(self.metrics):
            raise InputError(
                f"--beside: must name other metrics, each once, got {','.join(self.beside)} beside "
                f"{self.metric}."
            )

    @property
    def metrics(self) -> tuple[str, ...]:
        """That which decides, and those beside it."""
        return (self.metric, *self.beside)


def run_eigen(
    settings: EigenSettings,
    pool: ScoredPool,
    evaluate: EvaluateFn,
    out: str | Path,
    *,
    evaluated_by: dict[str, Any],
    table: Nasbench201Table | None = None,
    on_step: OnStepFn | None = None,
) -> PoolSearchResult:
    """Runs or resumes Eigen-NAS and leaves its files in a folder.

    The folder gets ``settings.json`` and ``history.jsonl`` (a line an evaluation) while it runs,
    and ``architecture.json``, ``cells.svg``, ``selection.svg`` and both as PNG at its end. What
    ``beside`` selects is evaluated and recorded, too, and does not decide.

    Args:
      settings: of the selection.
      pool: scored architectures.
      evaluate: gives the value of one. What it raises is recorded and the selection goes on.
      out: the folder, new, empty, or of a run with the same settings.
      evaluated_by: what ``evaluate`` does, for the record; the same means the same values.
      table: accuracies, to report those of what is selected, which the search does not see.
      on_step: shows progress; the phase is ``"evaluations"``.

    Returns:
      The architecture and its record.

    Raises:
      InputError: if the folder or the scores cannot be used, fewer than ``k`` architectures have a
        score, or evaluations fail again and again.

    References:
      Zhu et al., `Generalization properties of NAS under activation and skip connection search
      <https://arxiv.org/abs/2209.07238>`_, 2022, sec. 5.2.
    """
    scores = {name: _costs(pool, name, settings.top_k) for name in settings.metrics}
    on_step = on_step or (lambda *_: None)
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(pool_settings(settings, pool, evaluated_by))
        history = folder.read_history()
        num_all, num_before = len(scores) * settings.top_k, len(history)
        on_step("evaluations", num_before, num_all, {})
        told = iter(range(num_before + 1, num_all + 1))
        found = {}
        for name in settings.metrics:
            state, info = recorded_steps(
                *("search eigen", ranked(scores[name]), jax.random.key(0), evaluate, folder),
                num_steps=settings.top_k,
                history=[line for line in history if line["metric"] == name],
                line_of=lambda number, state, info, name=name: _line(pool, name, number, info),
                on_record=lambda line: on_step("evaluations", next(told), num_all, line),
            )
            found[name] = state, info
        genotype, record = _finish(settings, pool, found, folder, evaluated_by, table)
    return PoolSearchResult(genotype, record, num_all - num_before)


def _costs(pool: ScoredPool, name: str, top_k: int) -> np.ndarray:
    """The scores of a metric, lower is better.

    Raises:
      InputError: if fewer than k architectures have one, or they are all alike.
    """
    values = pool.score_of(name)
    known = values[np.isfinite(values)]
    if len(known) < top_k:
        raise InputError(
            f"--top-k: must be at most {len(known)}, the architectures of {pool.source} that have "
            f"{name}, got {top_k}."
        )
    if len(known) > 1 and np.ptp(known) == 0:
        raise InputError(
            f"search eigen: {name} must tell architectures of {pool.source} apart, got the same "
            f"for all {len(known)}. Choose another metric."
        )
    return -values if pool.is_higher_better(name) else values


def _line(pool: ScoredPool, name: str, number: int, info) -> dict[str, Any]:
    return step_line(pool, number, info) | {
        "metric": name,
        "score": float(pool.score_of(name)[info.place]),
        "best_place": info.best_place,
    }


def _finish(settings, pool: ScoredPool, found, folder: RunFolder, evaluated_by, table):
    state, info = found[settings.metric]
    told = state.evaluated, info, evaluated_by, table
    record = selected_record("search eigen", settings, pool, *told)
    genotype = pool.genotypes[info.best_place]
    num_scored = int(np.isfinite(pool.score_of(settings.metric)).sum())
    record["scores"]["num_scored"] = num_scored
    history = folder.read_history()
    record["selections"] = selections = {
        name: [_selection(pool, line, table) for line in history if line["metric"] == name]
        for name in settings.metrics
    }
    draw_cells(
        pool.space.describe(genotype),
        folder.path / "cells",
        title=f"Eigen-NAS, {pool.space.name}, {settings.metric}",
    )
    label = "validation" if table is None else "CIFAR-10 test"
    accuracies = {
        name: np.array([one["shown"] for one in chosen], float)
        for name, chosen in selections.items()
    }
    draw_selection(accuracies, folder.path / "selection", label=label)
    folder.write_json("architecture.json", record)
    return genotype, record


def _selection(pool: ScoredPool, line, table) -> dict[str, Any]:
    """What the first k of a metric lead to."""
    place = line["best_place"]
    chosen = {"k": line["step"], "validation": line["best_value"], "shown": line["best_value"]}
    if place is None:
        return {**chosen, "architecture": None, "shown": math.nan}
    genotype = pool.genotypes[place]
    chosen["architecture"] = pool.space.to_string(genotype)
    if table is not None:
        entry = table.lookup(genotype)
        chosen["accuracies"] = entry._asdict()
        chosen["shown"] = entry.cifar10_test
    return chosen
