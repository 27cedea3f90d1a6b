"""HNAS from scores to files: constants tuned, architectures evaluated, what came out."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from nasjax.errors import InputError, unknown_name
from nasjax.evaluation import Nasbench201Table, draw_cells, draw_search
from nasjax.objectives import BOUNDS, RANGES, trade_off_objective, weighted_ranks_objective
from nasjax.runs.folder import RunFolder, open_run_folder
from nasjax.runs.nasi import OnStepFn
from nasjax.runs.options import check_seed
from nasjax.runs.pool_steps import pool_settings, recorded_steps, selected_record, step_line
from nasjax.runs.score_pool import ScoredPool
from nasjax.search import Evaluation, SearchAlgorithm, grid_probes, hnas
from nasjax.search.pool import EvaluateFn

DEFAULT_SECONDS = 150.0
"""What 12 epochs of a cell are counted with where nothing else is known."""

WHOLE_EPOCHS = 200
"""Of the benchmark's whole training; its short one has 12."""

_SURFACE_SIZE = 40


@dataclasses.dataclass(frozen=True)
class HnasSettings:
    """Everything that a search depends on but scores and evaluations.

    Attributes:
      metric: ``M`` of HNAS, eq. (7), a column of the scores.
      kappa: the condition number, likewise.
      bound: a key of ``objectives.BOUNDS``.
      ranges: a key of ``objectives.RANGES``: where ``mu`` and ``nu`` are sought.
      weighted: metrics whose ranks are weighted, in the place of all of these; empty for HNAS.
      steps: architectures to evaluate, ``K``.
      seed: of the Bayesian optimisation.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    metric: str = "trace:hnas"
    kappa: str = "condition_number:hnas"
    bound: str = "non_realizable"
    ranges: str = "scaled"
    weighted: tuple[str, ...] = ()
    steps: int = 20
    seed: int = 0

    def __post_init__(self):
        """Checks every value."""
        object.__setattr__(self, "weighted", tuple(self.weighted))
        if self.bound not in BOUNDS:
            raise unknown_name("--bound", "bound", self.bound, BOUNDS)
        if self.ranges not in RANGES:
            raise unknown_name("--ranges", "ranges", self.ranges, RANGES)
        if self.steps < 1:
            raise InputError(f"--steps: must be at least 1, got {self.steps}.")
        check_seed(self.seed)

    def search(self, pool: ScoredPool) -> SearchAlgorithm:
        """The search in a pool, from the middles of the constants' ranges on."""
        return probed_hnas(*self.objective(pool))

    def objective(self, pool: ScoredPool) -> tuple[Callable, int]:
        """``(constants -> [pool], number of constants)``, lower is better.

        Raises:
          InputError: if the pool lacks a metric, or no architecture has all of them.
        """
        if self.weighted:
            scores = {name: pool.score_of(name) for name in self.weighted}
            is_higher_better = {name: pool.is_higher_better(name) for name in self.weighted}
            found = weighted_ranks_objective(scores, is_higher_better), len(self.weighted)
        else:
            metric = pool.score_of(self.metric)
            uses_kappa = BOUNDS[self.bound].uses_kappa
            kappa = pool.score_of(self.kappa) if uses_kappa else np.ones_like(metric)
            ranges = RANGES[self.ranges]
            num_constants = 2 if BOUNDS[self.bound].has_trade_off else 0
            objective_fn = trade_off_objective(metric, kappa, bound=self.bound, ranges=ranges)
            found = objective_fn, num_constants
        middle = found[0]((0.5,) * found[1])
        middle = middle[np.isfinite(middle)]
        if not len(middle):
            raise InputError(
                f"search hnas: an architecture of {pool.source} must have all metrics that are "
                "asked for, above zero, got none. Choose others."
            )
        if len(middle) > 1 and np.ptp(middle) == 0:
            asked = self.weighted or (self.metric, self.kappa)
            raise InputError(
                f"search hnas: {', '.join(asked)} must tell architectures of {pool.source} apart, "
                f"got the same for all {len(middle)}. Choose others."
            )
        return found


def probed_hnas(objective_fn: Callable, num_constants: int) -> SearchAlgorithm:
    """HNAS from the middles of the constants' ranges on."""
    return hnas(objective_fn, num_constants, probes=grid_probes(num_constants))


class PoolSearchResult(NamedTuple):
    """A finished search in a pool.

    Attributes:
      genotype: the architecture with the best evaluation.
      record: the content of ``architecture.json``.
      num_run: evaluations that this call made.
    """

    genotype: np.ndarray
    record: dict[str, Any]
    num_run: int


def table_evaluation(
    pool: ScoredPool,
    table: Nasbench201Table,
    accuracy: str,
    seconds: float | None = None,
) -> EvaluateFn:
    """Looks an architecture's accuracy up.

    Args:
      pool: of the architectures.
      table: accuracies.
      accuracy: a key of ``table.accuracies()``, of validation.
      seconds: that an evaluation is counted with. None takes those that the table says 12 epochs of
        the cell took, or 150 where it does not say (HNAS's 3,000 for 20), in proportion to the
        epochs.

    Returns:
      The function; a cell that the table lacks fails.

    Raises:
      InputError: if the table has no such accuracy.
    """
    values = table.accuracy_of(accuracy, pool.genotypes)
    if seconds is not None:
        costs = np.full(len(values), seconds, np.float64)
    else:
        own = table.seconds_of(pool.genotypes)
        costs = np.full(len(values), math.nan) if own is None else own
        costs = np.where(np.isnan(costs), DEFAULT_SECONDS, costs)
        costs = costs * (1 if accuracy.endswith("_12") else WHOLE_EPOCHS / 12)

    def evaluate(place: int) -> Evaluation:
        value, cost = float(values[place]), float(costs[place])
        return Evaluation(value, cost, "the table lacks it" if math.isnan(value) else "")

    return evaluate


def run_hnas(
    settings: HnasSettings,
    pool: ScoredPool,
    evaluate: EvaluateFn,
    out: str | Path,
    *,
    evaluated_by: dict[str, Any],
    table: Nasbench201Table | None = None,
    on_step: OnStepFn | None = None,
) -> PoolSearchResult:
    """Runs or resumes HNAS and leaves its files in a folder.

    The folder gets ``settings.json`` and ``history.jsonl`` (a line an evaluation) while the search
    runs, and ``architecture.json``, ``cells.svg``, ``search.svg`` and both as PNG at its end. A
    search that was stopped at any moment goes on where it was, to the same end.

    Args:
      settings: of the search.
      pool: scored architectures.
      evaluate: gives the value of one. What it raises is recorded and the search goes on.
      out: the folder, new, empty, or of a run with the same settings.
      evaluated_by: what ``evaluate`` does, for the record; the same means the same values.
      table: accuracies, to report those of the selected cell, which the search does not see.
      on_step: shows progress; the phase is ``"evaluations"``.

    Returns:
      The architecture and its record.

    Raises:
      InputError: if the folder or the scores cannot be used, or evaluations fail again and again.
    """
    objective_fn, num_constants = settings.objective(pool)
    search = probed_hnas(objective_fn, num_constants)
    num_usable = int(np.isfinite(objective_fn((0.5,) * num_constants)).sum())
    if settings.steps > num_usable:
        raise InputError(
            f"--steps: must be at most {num_usable}, the architectures of {pool.source} that can "
            f"be selected, got {settings.steps}."
        )
    on_step = on_step or (lambda *_: None)
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(pool_settings(settings, pool, evaluated_by))
        state, info, num_run = _search(settings, search, pool, evaluate, folder, on_step)
        told = evaluated_by, table, objective_fn
        genotype, record = _finish(settings, pool, state, info, folder, *told)
    return PoolSearchResult(genotype, record, num_run)


def _search(settings, search: SearchAlgorithm, pool, evaluate, folder: RunFolder, on_step):
    history = folder.read_history()[: settings.steps]
    on_step("evaluations", len(history), settings.steps, {})
    state, info = recorded_steps(
        *("search hnas", search, jax.random.key(settings.seed), evaluate, folder),
        num_steps=settings.steps,
        history=history,
        line_of=lambda number, state, info: _line(pool, number, state, info),
        on_record=lambda line: on_step("evaluations", line["step"], settings.steps, line),
    )
    return state, info, settings.steps - len(history)


def _line(pool: ScoredPool, number: int, state, info) -> dict[str, Any]:
    last = state.probes[-1]
    constants = last.point if last.place == info.place else None
    return step_line(pool, number, info) | {"constants": constants}


def _finish(
    settings, pool: ScoredPool, state, info, folder: RunFolder, evaluated_by, table, objective_fn
):
    told = state.evaluated, info, evaluated_by, table
    record = selected_record("search hnas", settings, pool, *told)
    record["constants"] = state.point_of(info.best_place)
    genotype = pool.genotypes[info.best_place]
    title = f"HNAS, {pool.space.name}, seed {settings.seed}"
    draw_cells(pool.space.describe(genotype), folder.path / "cells", title=title)
    surface, axes = None, {}
    if _has_trade_off(settings):
        record |= dict(
            zip(("mu", "nu"), objective_fn.constants_at(record["constants"]), strict=True)
        )
        surface = _surface(objective_fn, state)
        axes = {"constants_at": objective_fn.constants_at}
    draw_search(folder.read_history(), folder.path / "search", title=title, surface=surface, **axes)
    folder.write_json("architecture.json", record)
    return genotype, record


def _has_trade_off(settings: HnasSettings) -> bool:
    return not settings.weighted and BOUNDS[settings.bound].has_trade_off


def _surface(objective_fn, state) -> np.ndarray:
    """Values of what mu and nu select, ``[nu, mu]``, as far as they are known; else NaN."""
    values = {one.place: one.evaluation.value for one in state.evaluated}
    middles = (np.arange(_SURFACE_SIZE) + 0.5) / _SURFACE_SIZE
    chosen = [[int(np.argmin(objective_fn((mu, nu)))) for mu in middles] for nu in middles]
    return np.array([[values.get(place, math.nan) for place in row] for row in chosen])
