"""Scoring of architectures by training-free metrics: from settings to a table on disk."""

import dataclasses
import functools
import hashlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from nasjax.data.base import arrays_sha256
from nasjax.errors import InputError, unknown_name
from nasjax.evaluation import Nasbench201Table
from nasjax.metrics import ENGINES, METRICS, Scores, conv_kernels, space_scorer
from nasjax.metrics.plans import PLANS
from nasjax.metrics.scorer import engine_shares
from nasjax.networks import LayerConfig
from nasjax.runs.batch import Batch, load_batch
from nasjax.runs.folder import SharedFolder, open_shared_folder, run_name
from nasjax.runs.nasi import OnStepFn, versions
from nasjax.runs.options import check_layers, check_number, check_seed
from nasjax.runs.processes import Process
from nasjax.runs.score_record import Recorded, ScoreRecord, Unit, lacking
from nasjax.runs.score_request import Request
from nasjax.runs.score_table import Row, as_csv, as_parquet, correlations, failed, table_rows
from nasjax.spaces import Space, get_space, mlp_space

DEFAULT_METRICS = ("grad_norm", "snip", "synflow", "naswot", "jacob_cov", "condition_number")

_DATA, _LONGEST_NAME = 0xDA7A, 150


class ScoreDefaults(NamedTuple):
    """Settings of a space where the user gives none.

    Attributes:
      channels: of the first stage; in ``mlp`` the width of the hidden layers.
      cells: a stage in NAS-Bench-201, in all in DARTS; in ``mlp`` the layers of weights.
      initialization: of all layers.
      normalization: of all layers.
    """

    channels: int
    cells: int
    initialization: str
    normalization: str


SCORE_DEFAULTS = {
    "darts": ScoreDefaults(16, 8, "lecun", "batch"),
    "mlp": ScoreDefaults(256, 10, "ntk", "none"),
    "nasbench201": ScoreDefaults(16, 5, "lecun", "batch"),
    "nasbench101": ScoreDefaults(16, 3, "lecun", "batch"),
    **{f"nasbench1shot1_{number}": ScoreDefaults(16, 3, "lecun", "batch") for number in (1, 2, 3)},
}
"""The spaces that are scored. NAS-Bench-201: the benchmark's own networks; NAS-Bench-101 has 128
channels, which take 64 times as long."""


@dataclasses.dataclass(frozen=True)
class ScoreSettings:
    """Everything that the scores of an architecture depend on.

    Attributes:
      space: a key of ``SCORE_DEFAULTS``.
      metrics: keys of ``metrics.METRICS``.
      data: what ``data.load_data`` takes.
      batch_size: examples that every network is scored on.
      image_size: of these, in pixels.
      channels: of the first stage; in ``mlp`` the width of the hidden layers. None takes the
        space's default, like every None.
      cells: a stage in NAS-Bench-201, in all in DARTS; in ``mlp`` the layers of weights.
      num_seeds: draws of weights, with the seeds ``seed``, ``seed + 1`` and so on.
      seed: of everything random. The batch is drawn once, whatever the number of seeds.
      initialization: a key of ``networks.INITIALIZATIONS``, in ``mlp`` of ``MLP_INITIALIZATIONS``.
      normalization: a key of ``networks.NORMALIZATIONS``, in ``mlp`` ``"none"``.
      coupling: ``"mapped"`` or ``"exact"``: how kernels treat batch statistics.
      num_parts: of the batch, for ``zico``.
      engine: a key of ``metrics.ENGINES``.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    space: str = "nasbench201"
    metrics: tuple[str, ...] = DEFAULT_METRICS
    data: str = "random"
    batch_size: int = 64
    image_size: int = 32
    channels: int | None = None
    cells: int | None = None
    num_seeds: int = 1
    seed: int = 0
    initialization: str | None = None
    normalization: str | None = None
    coupling: str = "mapped"
    num_parts: int = 2
    engine: str = "auto"

    def __post_init__(self):
        """Fills in the space's defaults and checks every value."""
        if self.space not in SCORE_DEFAULTS:
            raise unknown_name("--space", "space", self.space, SCORE_DEFAULTS)
        for name, value in SCORE_DEFAULTS[self.space]._asdict().items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        object.__setattr__(self, "metrics", check_metric_names(self.metrics))
        is_mlp = self.space == "mlp"
        check_layers(self.space, self.initialization, self.normalization)
        # Most metrics compare examples.
        check_number("--batch-size", self.batch_size, 2, 2**16)
        check_number("--image-size", self.image_size, 8, 1024)
        if self.image_size % 4:
            raise InputError(f"--image-size: must be a multiple of 4, got {self.image_size}.")
        check_number("--channels", self.channels, 1, 2**16 if is_mlp else 1024)
        check_number("--cells", self.cells, 3 if is_mlp else 1, 100)
        check_number("--num-seeds", self.num_seeds, 1, 1000)
        check_seed(self.seed)
        check_seed(self.seed + self.num_seeds - 1)
        if self.coupling not in ("exact", "mapped"):
            raise unknown_name("--coupling", "coupling", self.coupling, ("exact", "mapped"))
        if self.engine not in ENGINES:
            raise unknown_name("--engine", "engine", self.engine, ENGINES)
        needs = {need for name in self.metrics for need in METRICS[name].needs}
        if "split_gradients" in needs and (self.num_parts < 2 or self.batch_size % self.num_parts):
            raise InputError(
                "--num-parts: must be at least 2 and divide the batch of "
                f"{self.batch_size}, got {self.num_parts}."
            )
        if "synflow:code" in needs and self.space != "nasbench201" and self.normalization != "none":
            raise InputError(
                "--metrics: synflow:code must be asked for in nasbench201, whose reduction blocks "
                f"it keeps normalised, got {self.space}. Give synflow."
            )

    @property
    def seeds(self) -> range:
        """Of the weights."""
        return range(self.seed, self.seed + self.num_seeds)

    @property
    def may_be_native(self) -> bool:
        """Whether kernels for CPUs are asked for, where there are any."""
        return self.engine in ("auto", "native") and self.space in PLANS

    def run_name(self) -> str:
        """A name for the run's folder: space, data, seed, and what is not a default."""
        name = run_name("score", self, ScoreSettings(space=self.space)).replace(":", ".")
        if len(name) <= _LONGEST_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        return f"{name[: _LONGEST_NAME - 9]}-{digest}"

    def space_of(self) -> Space:
        """The space; that of ``mlp`` has the depth that is asked for."""
        return mlp_space(self.cells) if self.space == "mlp" else get_space(self.space)

    def network(self, num_classes: int) -> dict[str, Any]:
        """Attributes of the networks that are scored."""
        if self.space == "mlp":
            return {
                "num_outputs": num_classes,
                "width": self.channels,
                "initialization": self.initialization,
            }
        return {
            "num_classes": num_classes,
            "channels": self.channels,
            "num_cells": self.cells,
            "config": LayerConfig(self.initialization, self.normalization),
        }


def check_metric_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of ``--metrics`` without repetitions; ``InputError`` for none and unknown ones."""
    names = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not names:
        raise InputError(f"--metrics: must name metrics, got none. Known: {', '.join(METRICS)}.")
    for name in names:
        if name not in METRICS:
            raise unknown_name("--metrics", "metric", name, METRICS)
    return names


class ScoreRun(NamedTuple):
    """What a scoring run, or a process's share of one, gives.

    Attributes:
      rows: the table, the content of ``scores.csv``; empty where other processes have not done
        their shares.
      metadata: the content of ``metadata.json``; empty in that case.
      num_run: networks that this call scored; 0 where they had all been scored before.
      num_missing: networks that other processes have to score yet.
    """

    rows: list[Row]
    metadata: dict[str, Any]
    num_run: int
    num_missing: int


def run_score(
    settings: ScoreSettings,
    request: Request,
    out: str | Path,
    *,
    process: Process | None = None,
    table: Nasbench201Table | None = None,
    on_step: OnStepFn | None = None,
) -> ScoreRun:
    """Scores architectures, or goes on with it, and leaves the table in a folder.

    ``record-ID.jsonl`` gets a line a network while the run goes on; ``scores.csv``,
    ``scores.parquet`` and ``metadata.json`` follow at the end. A run that was stopped at any moment
    goes on where it was, to the same table bit for bit on the same machine and versions. The record
    keeps every score that was made with these settings: another request to the same folder scores
    what is new to it, by architecture and metric, and the table becomes that of the last request.

    Equivalent architectures (of one canonical form) are scored once, as their canonical form.
    Weights are drawn once a seed and shared by edge; in NAS-Bench-101 and 1Shot1, where widths
    depend on the graph, once a seed and network.

    Several processes may work in one folder: each scores every ``count``-th class and has a record
    of its own, and the last one to end writes the table. In a process the networks are spread over
    its devices.

    Args:
      settings: of the run.
      request: the architectures.
      out: the folder, new, empty, or of a run with the same settings.
      process: which share to take; None takes everything.
      table: NAS-Bench-201 accuracies, for correlations.
      on_step: shows progress; the phase is ``"scores"``, and a step a network.

    Returns:
      The table, where it could be made.

    Raises:
      InputError: if the data or the folder cannot be used, or a metric cannot be had.
    """
    if table is not None and settings.space != "nasbench201":
        raise InputError(
            f"--table: holds NAS-Bench-201 cells, but --space is {settings.space}. Leave it out."
        )
    start = time.perf_counter()
    process = process or Process()
    space = settings.space_of()
    batch = _batch(settings)
    shares = engine_shares(
        "--engine",
        space,
        settings.metrics,
        settings.network(batch.num_classes),
        coupling=settings.coupling,
        engine=settings.engine,
    )
    engines = {name: list(statistics) for name, statistics in shares.items() if statistics}
    with open_shared_folder(
        Path(out), process_id=process.id, num_processes=process.count
    ) as folder:
        with folder.alone():
            folder.check_settings(
                {
                    **_settings_of_record(settings),
                    "data_provenance": batch.provenance,
                    "versions": versions(),
                }
            )
        record = ScoreRecord(folder, process.id)
        canonicals, classes = _classes(space, request.genotypes)
        units = [Unit(text, seed) for text in classes for seed in settings.seeds]
        texts = list(classes)[process.id :: process.count]
        own = [Unit(text, seed) for text in texts for seed in settings.seeds]
        num_run = _score_units(
            _scorer(settings, space, batch),
            classes,
            own,
            settings.metrics,
            record,
            on_step or (lambda *_: None),
        )
        found = record.read()
        num_missing = sum(bool(lacking(found.get(unit), settings.metrics)) for unit in units)
        if num_missing:
            return ScoreRun([], {}, num_run, num_missing)
        rows = table_rows(
            space, request.genotypes, canonicals, settings.metrics, settings.seeds, found
        )
        metadata = _metadata(settings, batch, request, rows, found, units)
        metadata["engines"] = engines
        metadata["seconds"]["this_call"] = round(time.perf_counter() - start, 3)
        if table is not None:
            metadata["correlations"] = correlations(
                rows, request.genotypes, settings.metrics, table
            )
        with folder.alone():
            _export(folder, rows, metadata)
    return ScoreRun(rows, metadata, num_run, 0)


def _settings_of_record(settings: ScoreSettings) -> dict[str, Any]:
    """What all scores of a folder share: not their metrics, to which others may be added."""
    shared = dataclasses.asdict(settings)
    del shared["metrics"]
    is_native = settings.may_be_native and conv_kernels.why_not() is None
    # The last bits are those of the kernels.
    return {**shared, "kernels": "native" if is_native else "XLA"}


def _batch(settings: ScoreSettings) -> Batch:
    # Weights are drawn from the seed's key itself.
    key = jax.random.fold_in(jax.random.key(settings.seed), _DATA)
    data_key, batch_key = jax.random.split(key)
    return load_batch(
        settings.space,
        settings.data,
        settings.batch_size,
        image_size=settings.image_size,
        option="--batch-size",
        data_key=data_key,
        batch_key=batch_key,
    )


def _classes(space: Space, genotypes) -> tuple[list[str], dict[str, np.ndarray]]:
    """The canonical string of every architecture, and the genotype that is scored by string."""
    canonicals, classes = [], {}
    for genotype in genotypes:
        canonical = space.canonical(genotype)
        text = space.to_string(canonical)
        canonicals.append(text)
        classes.setdefault(text, canonical)
    return canonicals, classes


def _scorer(
    settings: ScoreSettings, space: Space, batch: Batch
) -> Callable[[jax.Device, np.ndarray, int, tuple[str, ...]], Scores]:
    x, y = np.asarray(batch.x), np.asarray(batch.y)

    @functools.cache
    def of(device, seed, metrics):
        return space_scorer(
            space,
            x,
            y,
            metrics,
            seed=seed,
            network=settings.network(batch.num_classes),
            coupling=settings.coupling,
            num_parts=settings.num_parts,
            engine=settings.engine,
        )

    def score(device, genotype, seed, metrics):
        with jax.default_device(device):
            return of(device, seed, metrics)(genotype)

    return score


def _score_units(
    score, classes, units: Sequence[Unit], metrics: Sequence[str], record: ScoreRecord, on_step
) -> int:
    """Scores and records what has not been; returns how many units."""
    done = record.read()
    missing = {unit: lacking(done.get(unit), metrics) for unit in units}
    remaining = [unit for unit in units if missing[unit]]
    num_done = len(units) - len(remaining)
    if not remaining:
        return 0

    def timed(device, unit):
        start = time.perf_counter()
        scores = score(device, classes[unit.architecture], unit.seed, missing[unit])
        return Recorded(scores, time.perf_counter() - start)

    on_step("scores", num_done, len(units), {})
    for unit, recorded in _spread(timed, remaining, jax.local_devices()):
        record.append(unit, recorded)
        num_done += 1
        on_step("scores", num_done, len(units), recorded.scores._asdict())
    return len(remaining)


def _spread(work, units: Sequence[Unit], devices) -> Iterator[tuple[Unit, Recorded]]:
    """Works on units, one at a time on every device, and gives them as they are done."""
    if len(devices) == 1 or len(units) == 1:
        for unit in units:
            yield unit, work(devices[0], unit)
        return
    waiting, idle = deque(units), list(devices)
    running: dict[Future, tuple[Unit, jax.Device]] = {}
    with ThreadPoolExecutor(len(devices)) as pool:
        while waiting or running:
            while waiting and idle:
                unit, device = waiting.popleft(), idle.pop()
                running[pool.submit(work, device, unit)] = unit, device
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                unit, device = running.pop(future)
                idle.append(device)
                yield unit, future.result()


def _metadata(settings, batch: Batch, request: Request, rows, found, units) -> dict[str, Any]:
    return {
        "num_architectures": len(rows),
        "num_distinct": len({row["canonical"] for row in rows}),
        "num_failed": {name: sum(failed(row, name) for row in rows) for name in settings.metrics},
        "failures": _failures(settings.metrics, [found[unit].scores.flags for unit in units]),
        "architectures": request.chosen,
        "bad_lines": list(request.bad_lines),
        "settings": dataclasses.asdict(settings),
        "weight_seeds": list(settings.seeds),
        "data": batch.provenance,
        "batch": {
            "num_examples": len(batch.x),
            "num_classes": batch.num_classes,
            "sha256": arrays_sha256(np.asarray(batch.x), np.asarray(batch.y)),
        },
        "metrics": {
            name: {
                field: getattr(METRICS[name], field)
                for field in ("direction", "unit", "domain", "source")
            }
            for name in settings.metrics
        },
        "seconds": {"scoring": round(sum(found[unit].seconds for unit in units), 3)},
        "versions": versions(),
    }


def _failures(metrics, flags: Sequence[dict[str, str]]) -> dict[str, dict[str, int]]:
    """How many networks failed in each metric, by reason."""
    reasons = {name: Counter(flag[name] for flag in flags if name in flag) for name in metrics}
    return {name: dict(counts) for name, counts in reasons.items() if counts}


def _export(folder: SharedFolder, rows, metadata) -> None:
    folder.write_text("scores.csv", as_csv(rows))
    folder.write_bytes("scores.parquet", as_parquet(rows))
    folder.write_json("metadata.json", metadata)
