"""How well bounds, sets of metrics and what a search tunes rank a pool, by known accuracies."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from nasjax.data.base import arrays_sha256
from nasjax.errors import InputError, unknown_name
from nasjax.evaluation import Nasbench201Table, correlation, draw_correlations
from nasjax.objectives import BOUNDS, RANGES
from nasjax.runs.folder import open_run_folder
from nasjax.runs.hnas import HnasSettings, probed_hnas, table_evaluation
from nasjax.runs.nasi import OnStepFn, versions
from nasjax.runs.options import check_seed
from nasjax.runs.score_pool import ScoredPool
from nasjax.runs.score_table import as_csv
from nasjax.search import Evaluation, predict, predicted

PAPER_BOUNDS = ("realizable", "realizable_trade_off", "realizable_kappa", "non_realizable")
"""The scenarios of HNAS, table 6, in its order."""
TOP_SHARE = 0.1

_LEAST_POOL, _GRID_SIZE, _DRAWN = 3, 21, 0xD4A
_Scores = np.ndarray


@dataclasses.dataclass(frozen=True)
class CorrelateSettings:
    """Everything that a table of correlations depends on but scores and accuracies.

    Attributes:
      metrics: ``M`` of the bounds, columns of the scores.
      kappa: the condition number, likewise.
      bounds: keys of ``objectives.BOUNDS``.
      sets: metrics that are put together, for each set.
      ranges: a key of ``objectives.RANGES``.
      accuracy: a key of ``Nasbench201Table.accuracies()``, that correlations are with.
      validation: likewise, that searches see.
      steps: architectures that a search evaluates.
      num_seeds: searches, with the seeds ``seed``, ``seed + 1`` and so on.
      seed: the first.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    metrics: tuple[str, ...] = ()
    kappa: str = "condition_number:hnas"
    bounds: tuple[str, ...] = PAPER_BOUNDS
    sets: tuple[tuple[str, ...], ...] = ()
    ranges: str = "scaled"
    accuracy: str = "cifar10_test"
    validation: str = "cifar10_validation_12"
    steps: int = 20
    num_seeds: int = 10
    seed: int = 0

    def __post_init__(self):
        """Checks every value."""
        for bound in self.bounds:
            if bound not in BOUNDS:
                raise unknown_name("--bounds", "bound", bound, BOUNDS)
        if self.ranges not in RANGES:
            raise unknown_name("--ranges", "ranges", self.ranges, RANGES)
        if not (self.metrics and self.bounds) and not self.sets:
            raise InputError("correlate: --metrics or --sets must name a metric, got none.")
        for name in ("steps", "num_seeds"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option}: must be at least 1, got {getattr(self, name)}.")
        check_seed(self.seed)


class _Unit(NamedTuple):
    """A row of the table, before it is computed: ``scores()`` are higher for the better.

    It gives one array, or one for each seed with what was tuned.
    """

    score: str
    form: str
    tuned_by: str
    scores: Callable[[], list[tuple[_Scores, list[float] | None]]]


def run_correlation(
    settings: CorrelateSettings,
    pool: ScoredPool,
    table: Nasbench201Table,
    out: str | Path,
    *,
    on_step: OnStepFn | None = None,
) -> list[dict[str, Any]]:
    """Computes a table of correlations, or the rest of one, and leaves its files in a folder.

    The folder gets ``settings.json`` and ``history.jsonl`` (a line a row) while it runs, and
    ``correlations.csv``, ``.json``, ``.svg`` and ``.png`` at its end.

    Args:
      settings: of the table.
      pool: scored architectures of NAS-Bench-201.
      table: accuracies.
      out: the folder, new, empty, or of a run with the same settings.
      on_step: shows progress; the phase is ``"rows"``.

    Returns:
      Rows, each about all architectures of the scores' file, equivalent ones too: ``score``, the
      metrics; ``form``, a bound, or how a set is put together; ``tuned_by``, empty, ``"test
      error"`` (the best constants in sample), ``"evaluations"`` (of searches by validation
      accuracy), or ``"drawn evaluations"``; ``spearman`` with ``low`` and ``high`` (95 %,
      bootstrap) or, over searches, ``std``; ``spearman_all``, architectures without a score last;
      ``kendall``; ``spearman_top``, among the 10 % with the best accuracy; ``num``; ``constants``,
      those in sample, as places in their ranges.

    Raises:
      InputError: if the folder, the scores or the table cannot be used.
    """
    on_step = on_step or (lambda *_: None)
    if len(pool.genotypes) < _LEAST_POOL:
        raise InputError(
            f"correlate: {pool.source} must have {_LEAST_POOL} architectures that differ, got "
            f"{len(pool.genotypes)}. Score more."
        )
    accuracy = table.accuracy_of(settings.accuracy, pool.row_genotypes)
    units = list(_units(settings, pool, table, accuracy))
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(
            {
                **dataclasses.asdict(settings),
                "scores_sha256": pool.sha256,
                "table_sha256": arrays_sha256(table.genotypes, *table.accuracies().values()),
                "versions": versions(),
            }
        )
        num_done = len(folder.read_history())
        on_step("rows", num_done, len(units), {})
        for number, unit in enumerate(units[num_done:], num_done + 1):
            row = _row(unit, accuracy, pool.row_places)
            folder.append_history(row)
            on_step("rows", number, len(units), row)
        rows = folder.read_history()
        folder.write_text("correlations.csv", as_csv(rows))
        title = f"{settings.accuracy}, {len(accuracy)} architectures"
        draw_correlations(rows, folder.path / "correlations", title=title)
        folder.write_json(
            "correlations.json",
            {
                "rows": rows,
                "settings": dataclasses.asdict(settings),
                "scores": {"file": pool.source, "sha256": pool.sha256},
                "versions": versions(),
            },
        )
    return rows


def _units(settings: CorrelateSettings, pool, table, accuracy) -> Iterator[_Unit]:
    tasks = _Tasks(settings, pool, table, accuracy)
    for metric in settings.metrics:
        for bound in settings.bounds:
            hnas_settings = HnasSettings(metric, settings.kappa, bound, settings.ranges)
            tuned = objective_fn, num_constants = hnas_settings.objective(pool)  # errors come first
            if not num_constants:
                yield _Unit(metric, bound, "", lambda fn=objective_fn: [(-fn(()), None)])
                continue
            limit = "realizable_kappa" if BOUNDS[bound].uses_kappa else "realizable"
            limit_fn, _ = dataclasses.replace(hnas_settings, bound=limit).objective(pool)
            fns = objective_fn, limit_fn
            yield _Unit(metric, bound, "test error", lambda fns=fns: [tasks.best_in_sample(*fns)])
            yield _Unit(metric, bound, "evaluations", lambda tuned=tuned: tasks.searched(*tuned))
    for names in settings.sets:
        features, score = pool.features(names), "+".join(names)
        yield _Unit(score, "equal weights", "", lambda f=features: [(f.mean(1), None)])
        if len(names) > 1:
            tuned = HnasSettings(weighted=names).objective(pool)
            yield _Unit(
                score, "weighted ranks", "evaluations", lambda tuned=tuned: tasks.searched(*tuned)
            )
            yield _Unit(score, "linear model", "evaluations", lambda f=features: tasks.modelled(f))
            yield _Unit(
                score, "linear model", "drawn evaluations", lambda f=features: tasks.drawn(f)
            )


class _Tasks:
    """What rows are computed with."""

    def __init__(self, settings: CorrelateSettings, pool: ScoredPool, table, accuracy):
        self._settings, self._pool, self._accuracy = settings, pool, accuracy
        self._evaluate = table_evaluation(pool, table, settings.validation, 0.0)

    def best_in_sample(self, objective_fn, limit_fn) -> tuple[_Scores, list[float] | None]:
        """The constants of a grid, or ``mu = 0`` (None), with the best ``spearman_all``."""
        places = np.linspace(0, 1, _GRID_SIZE)
        found = [(mu, nu) for mu in places for nu in places]
        limit = -limit_fn(())

        def agreement(scores: _Scores) -> float:
            return _spearman(_failed_last(scores)[self._pool.row_places], self._accuracy)

        values = [*(agreement(-objective_fn(point)) for point in found), agreement(limit)]
        place = int(np.argmax(np.nan_to_num(values, nan=-2.0)))
        if place == len(found):
            return limit, None
        return -objective_fn(found[place]), [float(value) for value in found[place]]

    def searched(self, objective_fn, num_constants: int) -> list[tuple[_Scores, None]]:
        """What HNAS tunes: the constants that selected the best architecture that it evaluated."""
        search = probed_hnas(objective_fn, num_constants)
        found = []
        for key in self._keys():
            state, info = self._run(search, key)
            if info.best_place is None:
                scores = np.full(len(self._pool.genotypes), math.nan)
            else:
                scores = -objective_fn(state.point_of(info.best_place))
            found.append((scores, None))
        return found

    def modelled(self, features) -> list[tuple[_Scores, None]]:
        """The model after a search with it, in which chance plays no part."""
        state, _ = self._run(predicted(features), next(self._keys()))
        known = {one.place: one.evaluation for one in state.evaluated}
        return [(predict(features, known).mean, None)]

    def drawn(self, features) -> list[tuple[_Scores, None]]:
        """The model after evaluations of architectures that were drawn uniformly."""
        usable = np.flatnonzero(np.isfinite(features).all(1))
        found = []
        for seed in self._seeds():
            generator = np.random.default_rng([_DRAWN, seed])
            count = min(self._settings.steps, len(usable))
            places = generator.choice(usable, count, replace=False)
            known: dict[int, Evaluation] = {int(one): self._evaluate(int(one)) for one in places}
            found.append((predict(features, known).mean, None))
        return found

    def _seeds(self) -> range:
        return range(self._settings.seed, self._settings.seed + self._settings.num_seeds)

    def _keys(self) -> Iterator[jax.Array]:
        return (jax.random.key(seed) for seed in self._seeds())

    def _run(self, search, key):
        state = search.init(key)
        for number in range(self._settings.steps):
            state, info = search.step(jax.random.fold_in(key, number), state, self._evaluate)
        return state, info


def _row(unit: _Unit, accuracy, row_places) -> dict[str, Any]:
    found = [(scores[row_places], constants) for scores, constants in unit.scores()]
    is_top = accuracy >= np.nanquantile(accuracy, 1 - TOP_SHARE)
    columns = [
        {
            "spearman": _spearman(scores, accuracy),
            "spearman_all": _spearman(_failed_last(scores), accuracy),
            "kendall": correlation(scores, accuracy, kind="kendall", num_resamples=0).value,
            "spearman_top": _spearman(scores[is_top], accuracy[is_top]),
        }
        for scores, _ in found
    ]
    mean = {name: _mean([one[name] for one in columns]) for name in columns[0]}
    first, constants = found[0]
    interval = correlation(first, accuracy)
    is_one = len(found) == 1
    values = [one["spearman"] for one in columns]
    return {
        "score": unit.score,
        "form": unit.form,
        "tuned_by": unit.tuned_by,
        **mean,
        "low": interval.low if is_one else math.nan,
        "high": interval.high if is_one else math.nan,
        "std": math.nan if is_one else float(np.std(values, ddof=1)),
        "num": interval.num_pairs,
        "constants": constants,
    }


def _spearman(scores: _Scores, accuracy) -> float:
    return correlation(scores, accuracy, num_resamples=0).value


def _failed_last(scores: _Scores) -> _Scores:
    is_finite = np.isfinite(scores)
    return np.where(is_finite, scores, scores[is_finite].min() - 1 if is_finite.any() else 0.0)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
