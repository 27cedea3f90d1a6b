"""Searches side by side: one pool, one table, one count of evaluations, many seeds."""

import dataclasses
import glob
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from nasjax.data.base import arrays_sha256
from nasjax.errors import InputError, first_line, unknown_name
from nasjax.evaluation import Nasbench201Table, draw_comparison
from nasjax.runs.folder import RunFolder, open_run_folder
from nasjax.runs.hnas import WHOLE_EPOCHS, HnasSettings, table_evaluation
from nasjax.runs.nasi import OnStepFn, versions
from nasjax.runs.options import check_seed
from nasjax.runs.score_pool import ScoredPool
from nasjax.search import (
    SearchAlgorithm,
    best_of_sample,
    parzen,
    predicted,
    pruning,
    random_search,
    ranked,
    regularised_evolution,
    reinforce,
    successive_halving,
)
from nasjax.search.halving import EvaluateAtFn
from nasjax.search.pool import EvaluateFn

TESTED = ("cifar10_test", "cifar100_test", "imagenet16_test")
"""Accuracies of what a search selects, which it does not see."""


_POOL = 0x9001
"""Beside the seed in the generator that draws pools."""


class SearchKind(NamedTuple):
    """A search that may be compared.

    Attributes:
      usage: how it is written, and what it is.
      make: ``(pool, what follows the colon) -> search``.
      num_scored: ``(what follows the colon, steps, size of the pool) -> `` how many architectures
        it scores.
      is_training_free: whether it ends with its first choice, which it does not train.
      has_rungs: whether it evaluates the best again, after the benchmark's whole training.
      needs: what must follow the colon, if anything.
    """

    usage: str
    make: Callable[[ScoredPool, str], SearchAlgorithm]
    num_scored: Callable[[str, int, int], int]
    is_training_free: bool = False
    has_rungs: bool = False
    needs: str = ""


_WHOLE = "cifar10_validation_200"
"""The accuracy after the benchmark's whole training."""


def _none(rest: str, steps: int, size: int) -> int:
    return 0


def _all(rest: str, steps: int, size: int) -> int:
    return size


def _hnas(pool: ScoredPool, metrics: str) -> SearchAlgorithm:
    metric, _, kappa = metrics.partition("+")
    given = {"metric": metric} if metric else {}
    return HnasSettings(**given, **({"kappa": kappa} if kappa else {})).search(pool)


def _weighted(pool: ScoredPool, metrics: str) -> SearchAlgorithm:
    return HnasSettings(weighted=tuple(metrics.split("+"))).search(pool)


def _predicted(pool: ScoredPool, metrics: str) -> SearchAlgorithm:
    return predicted(pool.features(metrics.split("+")))


def _ranking(pool: ScoredPool, metric: str) -> SearchAlgorithm:
    return ranked(_costs(pool, metric))


def _sample(pool: ScoredPool, rest: str) -> SearchAlgorithm:
    count = _count(rest)
    return best_of_sample(_costs(pool, rest.rpartition("+")[0]), count)


def _count(rest: str) -> int:
    count = rest.rpartition("+")[2]
    if not count.isdigit() or not int(count):
        raise InputError(
            f"--searches: sample must name a metric and a number above 0, got {rest!r}. Write "
            f"{SEARCHES['sample'].usage}."
        )
    return int(count)


def _pruning(pool: ScoredPool, metrics: str) -> SearchAlgorithm:
    kappa, _, regions = metrics.partition("+")
    return pruning(
        pool.genotypes,
        pool.score_of(kappa or "condition_number:hnas"),
        pool.score_of(regions or "naswot"),
    )


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


def _costs(pool: ScoredPool, metric: str) -> np.ndarray:
    scores = pool.score_of(metric)
    return -scores if pool.is_higher_better(metric) else scores


SEARCHES = {
    "hnas": SearchKind("hnas, hnas:METRIC or hnas:METRIC+KAPPA: HNAS, eq. (7)", _hnas, _all),
    "weighted": SearchKind(
        "weighted:METRIC+METRIC...: ranks of metrics, their weights tuned",
        *(_weighted, _all),
        needs="metrics",
    ),
    "predicted": SearchKind(
        "predicted:METRIC+METRIC...: a linear model of accuracy by metrics",
        *(_predicted, _all),
        needs="metrics",
    ),
    "ranking": SearchKind(
        "ranking:METRIC: the best by a metric, one after the other",
        *(_ranking, _all),
        needs="a metric",
    ),
    "sample": SearchKind(
        "sample:METRIC+N: the best by a metric of N drawn (NASWOT-N: sample:naswot+N); trains none",
        *(_sample, lambda rest, steps, size: min(_count(rest) * steps, size)),
        is_training_free=True,
        needs="a metric and a number",
    ),
    "pruning": SearchKind(
        "pruning or pruning:KAPPA+REGIONS: pruned by both, as TE-NAS (by naswot for the count of "
        "regions, which saturates); trains none",
        *(_pruning, _all),
        is_training_free=True,
    ),
    "random": SearchKind(
        "random: drawn uniformly",
        *(lambda pool, _: random_search(range(len(pool.genotypes))), _none),
    ),
    "evolution": SearchKind(
        "evolution: regularised evolution, population 10, sample 3", _evolution, _none
    ),
    "reinforce": SearchKind(
        "reinforce: a policy gradient",
        *(lambda pool, _: reinforce(pool.genotypes, len(pool.space.operations)), _none),
    ),
    "parzen": SearchKind(
        "parzen: tree-structured Parzen estimators, the model of BOHB (needs nasjax[parzen])",
        *(lambda pool, _: parzen(pool.genotypes, len(pool.space.operations)), _none),
    ),
    "bohb": SearchKind(
        "bohb: the same, of whose choices the best quarter is trained for 200 epochs, too",
        lambda pool, _: successive_halving(parzen(pool.genotypes, len(pool.space.operations))),
        _none,
        has_rungs=True,
    ),
}
"""What is compared, by the word that comes before the colon."""


@dataclasses.dataclass(frozen=True)
class CompareSettings:
    """Everything that a comparison depends on but scores and table.

    Attributes:
      searches: names as ``SEARCHES`` has them.
      found: by a label, folders of finished runs (glob patterns), whose architectures stand beside.
      pool_size: architectures that every seed draws of the pool for all searches; None takes all.
      num_seeds: searches of each kind, with the seeds ``seed``, ``seed + 1`` and so on.
      steps: architectures that each evaluates.
      accuracy: what an evaluation gives.
      evaluation_seconds: that one is counted with; None takes the table's, or 150.
      seed: the first.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    searches: tuple[str, ...]
    found: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pool_size: int | None = None
    num_seeds: int = 10
    steps: int = 20
    accuracy: str = "cifar10_validation_12"
    evaluation_seconds: float | None = None
    seed: int = 0

    def __post_init__(self):
        """Checks every value."""
        object.__setattr__(self, "searches", tuple(self.searches))
        for name in self.searches:
            kind, _, rest = name.partition(":")
            if kind not in SEARCHES:
                raise unknown_name("--searches", "search", kind, SEARCHES)
            if SEARCHES[kind].needs and not rest:
                raise InputError(
                    f"--searches: {kind} must name {SEARCHES[kind].needs}, got {name!r}. Write "
                    f"{SEARCHES[kind].usage}."
                )
        told = (*self.searches, *self.found)
        if not told or len(set(told)) < len(told):
            raise InputError(f"--searches: must be distinct, got {','.join(told)!r}.")
        for name in ("num_seeds", "steps", "pool_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
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
    size = settings.pool_size
    if size is not None and size > len(pool.genotypes):
        raise InputError(
            f"--pool-size: must be at most the {len(pool.genotypes)} architectures of "
            f"{pool.source}, got {size}."
        )
    seeds = range(settings.seed, settings.seed + settings.num_seeds)
    for name in settings.searches:  # errors come first
        _make(name, pool)
    runs = {label: _finished(label, pattern, pool) for label, pattern in settings.found.items()}
    units = [(name, seed) for seed in seeds for name in settings.searches]
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(
            {
                **dataclasses.asdict(settings),
                "scores_sha256": pool.sha256,
                "table_sha256": arrays_sha256(table.genotypes, *table.accuracies().values()),
                "versions": versions(),
            }
        )
        done = {(line["search"], line["seed"]) for line in folder.read_history()}
        left = [unit for unit in units if unit not in done]
        on_step("searches", len(units) - len(left), len(units), {})
        for number, (name, seed) in enumerate(left, len(units) - len(left) + 1):
            line = _one(settings, _drawn(pool, size, seed), table, name, seed)
            folder.append_history({"search": name, "seed": seed, **line})
            on_step("searches", number, len(units), line)
        return _finish(settings, pool, table, runs, folder)


def _make(name: str, pool: ScoredPool) -> SearchAlgorithm:
    kind, _, rest = name.partition(":")
    return SEARCHES[kind].make(pool, rest)


def _rungs(*evaluations: EvaluateFn) -> EvaluateAtFn:
    return lambda place, rung: evaluations[rung](place)


def _drawn(pool: ScoredPool, size: int | None, seed: int) -> ScoredPool:
    """The part of the pool that the searches of a seed have."""
    if size is None:
        return pool
    generator = np.random.default_rng([_POOL, seed])
    return pool.part(np.sort(generator.choice(len(pool.genotypes), size, replace=False)))


def _one(settings, pool: ScoredPool, table, name: str, seed: int) -> dict[str, Any]:
    kind = SEARCHES[name.partition(":")[0]]
    cost = 0.0 if kind.is_training_free else settings.evaluation_seconds
    evaluate = table_evaluation(pool, table, settings.accuracy, cost)
    if kind.has_rungs:
        dear_cost = None if cost is None else cost * WHOLE_EPOCHS / 12
        dear = table_evaluation(pool, table, _WHOLE, dear_cost)
        evaluate = _rungs(evaluate, dear)
    search, num_steps = _make(name, pool), 1 if kind.is_training_free else settings.steps
    num_scored = kind.num_scored(name.partition(":")[2], num_steps, len(pool.genotypes))
    key = jax.random.key(seed)
    state, best, values, seconds = search.init(key), [], [], []
    for number in range(num_steps):
        state, info = search.step(jax.random.fold_in(key, number), state, evaluate)
        is_any = info.best_place is not None
        best.append(pool.space.to_string(pool.genotypes[info.best_place]) if is_any else None)
        values.append(info.best_value)
        seconds.append(info.seconds)
    return {
        "best": best,
        "best_values": values,
        "seconds": seconds,
        "metric_seconds": pool.seconds * num_scored / len(pool.genotypes) if num_scored else 0.0,
    }


def _finished(label: str, pattern: str, pool: ScoredPool) -> list[dict[str, Any]]:
    """A line, as `_one` makes it, of each of the runs that a pattern names."""
    lines = []
    for folder in sorted(glob.glob(pattern)):
        where = f"--found {label}={pattern}: {folder}"
        record = _architecture_of(where, Path(folder))
        if record["space"] != pool.space.name:
            raise InputError(f"{where} must be of {pool.space.name}, got {record['space']}.")
        lines.append(
            {
                "search": label,
                "best": [record["architecture"]],
                "best_values": [math.nan],
                "seconds": [0.0],
                "metric_seconds": _total_seconds(record),
            }
        )
    if not lines:
        raise InputError(
            f"--found {label}={pattern}: must name folders of finished runs, got none."
        )
    return lines


def _architecture_of(where: str, folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / "architecture.json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{where} must be the folder of a run that has ended, got {first_line(error)}."
        ) from error
    if not isinstance(record, dict) or not {"space", "architecture"} <= set(record):
        raise InputError(f"{where}: architecture.json must be of a search, got another record.")
    return record


def _total_seconds(record: Mapping[str, Any]) -> float:
    """The cost that a run's record tells, as a number or by its parts; NaN where it does not."""
    seconds = record.get("seconds", record.get("search", {}).get("seconds"))
    if isinstance(seconds, dict):
        return sum(float(value) for value in seconds.values() if value is not None)
    return math.nan if seconds is None else float(seconds)


def _finish(settings, pool: ScoredPool, table, runs, folder: RunFolder):
    history = [*folder.read_history(), *(line for lines in runs.values() for line in lines)]
    tested = _Tested(pool, table, history)
    found, curves = {}, {}
    for name in (*settings.searches, *settings.found):
        lines = [line for line in history if line["search"] == name]
        last = [line["best"][-1] for line in lines]
        found[name] = {
            "validation": _spread([line["best_values"][-1] for line in lines]),
            **{test: _spread([tested.of(test, text) for text in last]) for test in TESTED},
            "seconds": float(np.mean([line["seconds"][-1] for line in lines])),
            "metric_seconds": float(np.mean([_or_nan(line["metric_seconds"]) for line in lines])),
            "num_searches": len(lines),
        }
        if name in settings.searches or math.isfinite(found[name]["metric_seconds"]):
            curves[name] = _curve(lines, tested, found[name]["metric_seconds"])
    best = {test: float(np.nanmax(table.accuracy_of(test, pool.genotypes))) for test in TESTED}
    record = {
        "searches": found,
        "optimum_of_pool": best,
        "settings": dataclasses.asdict(settings),
        "scores": {"file": pool.source, "sha256": pool.sha256, "num": len(pool.genotypes)},
        "versions": versions(),
    }
    title = f"{settings.num_seeds} searches each, mean and standard error"
    draw_comparison(curves, folder.path / "comparison", title=title, optimum=best[TESTED[0]])
    folder.write_json("comparison.json", record)
    return found


class _Tested:
    """Tested accuracies of what searches found."""

    def __init__(self, pool: ScoredPool, table: Nasbench201Table, history):
        texts = {text for line in history for text in line["best"] if text is not None}
        self._rows = {text: row for row, text in enumerate(sorted(texts))}
        genotypes = [pool.space.from_string(text) for text in self._rows]
        self._values = {test: table.accuracy_of(test, np.stack(genotypes)) for test in TESTED}

    def of(self, test: str, text: str | None) -> float:
        return math.nan if text is None else float(self._values[test][self._rows[text]])


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _spread(values: Sequence[float | None]) -> dict[str, float]:
    values = np.array([_or_nan(value) for value in values], float)
    values = values[np.isfinite(values)]
    if not len(values):
        return dict.fromkeys(("mean", "std", "low", "high"), math.nan)
    std = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return {
        "mean": float(values.mean()),
        "std": std,
        "low": float(values.min()),
        "high": float(values.max()),
    }


def _curve(lines, tested: _Tested, metric_seconds: float) -> dict[str, np.ndarray]:
    """Mean and standard error of the tested accuracy of the best so far, by cost."""
    tested = np.array([[tested.of(TESTED[0], text) for text in line["best"]] for line in lines])
    seconds = np.mean([line["seconds"] for line in lines], axis=0)
    is_known = np.isfinite(tested)
    count = np.maximum(is_known.sum(0), 1)
    mean = np.where(is_known, tested, 0).sum(0) / count
    spread = np.where(is_known, (tested - mean) ** 2, 0).sum(0)
    error = np.sqrt(spread / np.maximum(count - 1, 1) / count)
    start = metric_seconds if math.isfinite(metric_seconds) else 0.0
    is_any = is_known.any(0)
    return {"seconds": (start + seconds)[is_any], "mean": mean[is_any], "error": error[is_any]}
