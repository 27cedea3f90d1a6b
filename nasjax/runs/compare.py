"""Searches side by side: one pool, one table, one count of evaluations, many seeds."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nasjax.errors import InputError, unknown_name
from nasjax.evaluation import Nasbench201Table, draw_comparison
from nasjax.runs.folder import RunFolder, open_run_folder
from nasjax.runs.hnas import HnasSettings, table_evaluation
from nasjax.runs.nasi import OnStepFn, versions
from nasjax.runs.options import check_seed
from nasjax.runs.score_pool import ScoredPool
from nasjax.search import (
    SearchAlgorithm,
    random_search,
    ranked,
    regularised_evolution,
    reinforce,
)

TESTED = ("cifar10_test", "cifar100_test", "imagenet16_test")
"""Accuracies of what a search selects, which it does not see."""


def _hnas(pool: ScoredPool, metric: str) -> SearchAlgorithm:
    settings = HnasSettings(metric=metric) if metric else HnasSettings()
    return settings.search(pool)


def _weighted(pool: ScoredPool, metrics: str) -> SearchAlgorithm:
    return HnasSettings(weighted=tuple(metrics.split("+"))).search(pool)


def _ranking(pool: ScoredPool, metric: str) -> SearchAlgorithm:
    scores = pool.score_of(metric)
    return ranked(-scores if pool.is_higher_better(metric) else scores)


def _evolution(pool: ScoredPool, _: str) -> SearchAlgorithm:
    place_of = {
        pool.space.to_string(pool.space.canonical(genotype)): place
        for place, genotype in enumerate(pool.genotypes)
    }

    def neighbour_fn(generator: np.random.Generator, place: int) -> int | None:
        key = jax.random.key(int(generator.integers(2**32)))
        mutant = np.asarray(pool.space.mutate(key, pool.genotypes[place]))
        return place_of.get(pool.space.to_string(pool.space.canonical(mutant)))

    return regularised_evolution(range(len(pool.genotypes)), neighbour_fn)


SEARCHES: dict[str, tuple[str, Callable[[ScoredPool, str], SearchAlgorithm]]] = {
    "hnas": ("hnas or hnas:METRIC: HNAS, eq. (7)", _hnas),
    "weighted": ("weighted:METRIC+METRIC...: ranks of metrics, their weights tuned", _weighted),
    "ranking": ("ranking:METRIC: the best by a metric, one after the other", _ranking),
    "random": (
        "random: drawn uniformly",
        lambda pool, _: random_search(range(len(pool.genotypes))),
    ),
    "evolution": ("evolution: regularised evolution, population 10, sample 3", _evolution),
    "reinforce": (
        "reinforce: a policy gradient",
        lambda pool, _: reinforce(pool.genotypes, len(pool.space.operations)),
    ),
}
"""What is compared: how it is written and what it is, and how it is made."""

USES_SCORES = ("hnas", "weighted", "ranking")
"""Those whose cost has that of the scores in it."""


@dataclasses.dataclass(frozen=True)
class CompareSettings:
    """Everything that a comparison depends on but scores and table.

    Attributes:
      searches: names as ``SEARCHES`` has them.
      num_seeds: searches of each kind, with the seeds ``seed``, ``seed + 1`` and so on.
      steps: architectures that each evaluates.
      accuracy: what an evaluation gives.
      evaluation_seconds: that one is counted with.
      seed: the first.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    searches: tuple[str, ...]
    num_seeds: int = 10
    steps: int = 20
    accuracy: str = "cifar10_validation_12"
    evaluation_seconds: float = 150.0
    seed: int = 0

    def __post_init__(self):
        """Checks every value."""
        object.__setattr__(self, "searches", tuple(self.searches))
        for name in self.searches:
            kind = name.partition(":")[0]
            if kind not in SEARCHES:
                raise unknown_name("--searches", "search", kind, SEARCHES)
            if kind in ("weighted", "ranking") and ":" not in name:
                raise InputError(
                    f"--searches: {kind} must name a metric, got {name!r}. Write "
                    f"{SEARCHES[kind][0]}."
                )
        if not self.searches or len(set(self.searches)) < len(self.searches):
            raise InputError(f"--searches: must be distinct, got {','.join(self.searches)!r}.")
        for name in ("num_seeds", "steps"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option}: must be at least 1, got {getattr(self, name)}.")
        check_seed(self.seed)


def run_comparison(
    settings: CompareSettings,
    pool: ScoredPool,
    table: Nasbench201Table,
    out: str | Path,
    *,
    on_step: OnStepFn | None = None,
) -> dict[str, dict[str, Any]]:
    """Runs or resumes every search with every seed and leaves its files in a folder.

    The folder gets ``settings.json`` and ``history.jsonl`` (a line a search) while it runs, and
    ``comparison.json``, ``comparison.svg`` and ``comparison.png`` at its end.

    Args:
      settings: of the comparison.
      pool: scored architectures of NAS-Bench-201.
      table: accuracies.
      out: the folder, new, empty, or of a run with the same settings.
      on_step: shows progress; the phase is ``"searches"``.

    Returns:
      By search: for each of ``TESTED`` and for the validation accuracy, ``mean``, ``std`` (of a
      sample), ``low`` and ``high``, fractions; ``seconds`` and ``metric_seconds``.

    Raises:
      InputError: if the folder, the scores or the table cannot be used.
    """
    on_step = on_step or (lambda *_: None)
    evaluate = table_evaluation(pool, table, settings.accuracy, settings.evaluation_seconds)
    searches = {}
    for name in settings.searches:
        kind, _, rest = name.partition(":")
        searches[name] = SEARCHES[kind][1](pool, rest)
    tests = {name: table.accuracy_of(name, pool.genotypes) for name in TESTED}
    units = [(name, settings.seed + n) for n in range(settings.num_seeds) for name in searches]
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(
            {**dataclasses.asdict(settings), "scores_sha256": pool.sha256, "versions": versions()}
        )
        done = {(line["search"], line["seed"]) for line in folder.read_history()}
        left = [unit for unit in units if unit not in done]
        on_step("searches", len(units) - len(left), len(units), {})
        for number, (name, seed) in enumerate(left, len(units) - len(left) + 1):
            line = _one(searches[name], settings.steps, seed, evaluate)
            folder.append_history({"search": name, "seed": seed, **line})
            on_step("searches", number, len(units), line)
        return _finish(settings, pool, tests, folder)


def _one(search: SearchAlgorithm, num_steps: int, seed: int, evaluate) -> dict[str, Any]:
    key = jax.random.key(seed)
    state, places, values, seconds = search.init(key), [], [], []
    for number in range(num_steps):
        state, info = search.step(jax.random.fold_in(key, number), state, evaluate)
        places.append(info.best_place)
        values.append(info.best_value)
        seconds.append(info.seconds)
    return {"best_places": places, "best_values": values, "seconds": seconds}


def _finish(settings, pool: ScoredPool, tests, folder: RunFolder) -> dict[str, dict[str, Any]]:
    history = folder.read_history()
    found, curves = {}, {}
    for name in settings.searches:
        lines = [line for line in history if line["search"] == name]
        last = [line["best_places"][-1] for line in lines if line["best_places"][-1] is not None]
        uses_scores = name.partition(":")[0] in USES_SCORES
        found[name] = {
            "validation": _spread([line["best_values"][-1] for line in lines]),
            **{test: _spread(values[last]) for test, values in tests.items()},
            "seconds": float(np.mean([line["seconds"][-1] for line in lines])),
            "metric_seconds": pool.seconds if uses_scores else 0.0,
        }
        curves[name] = _curve(lines, tests[TESTED[0]], found[name]["metric_seconds"])
    optimum = {test: float(np.nanmax(values)) for test, values in tests.items()}
    record = {
        "searches": found,
        "optimum_of_pool": optimum,
        "settings": dataclasses.asdict(settings),
        "scores": {"file": pool.source, "sha256": pool.sha256, "num": len(pool.genotypes)},
        "versions": versions(),
    }
    title = f"{settings.num_seeds} searches each, mean and standard error"
    draw_comparison(curves, folder.path / "comparison", title=title, optimum=optimum[TESTED[0]])
    folder.write_json("comparison.json", record)
    return found


def _spread(values: Sequence[float | None]) -> dict[str, float]:
    values = np.array([value for value in values if value is not None], float)
    if not len(values):
        return dict.fromkeys(("mean", "std", "low", "high"), math.nan)
    std = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return {
        "mean": float(values.mean()),
        "std": std,
        "low": float(values.min()),
        "high": float(values.max()),
    }


def _curve(lines, values: np.ndarray, metric_seconds: float) -> dict[str, np.ndarray]:
    """Mean and standard error of the tested accuracy of the best so far, by cost."""
    places = np.array(
        [[-1 if place is None else place for place in line["best_places"]] for line in lines]
    )
    tested = np.where(places < 0, math.nan, values[places])
    seconds = np.mean([line["seconds"] for line in lines], axis=0)
    is_known = np.isfinite(tested)
    count = np.maximum(is_known.sum(0), 1)
    mean = np.where(is_known, tested, 0).sum(0) / count
    spread = np.where(is_known, (tested - mean) ** 2, 0).sum(0)
    error = np.sqrt(spread / np.maximum(count - 1, 1) / count)
    start = metric_seconds if math.isfinite(metric_seconds) else 0.0
    is_any = is_known.any(0)
    return {"seconds": (start + seconds)[is_any], "mean": mean[is_any], "error": error[is_any]}
