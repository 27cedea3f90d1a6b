"""NASI from settings to files: data, one-shot network, search, selected architecture."""

import dataclasses
import math
import platform
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

import nasjax
from nasjax.data import Dataset, load_data, random_batch, sample_batch
from nasjax.errors import InputError, unknown_name
from nasjax.evaluation import Nasbench201Table, draw_cells
from nasjax.networks import (
    INITIALIZATIONS,
    NORMALIZATIONS,
    LayerConfig,
    init_params,
    one_shot_network,
)
from nasjax.objectives import nasi_objective, one_shot_trace_norm
from nasjax.runs.folder import RunFolder, open_run_folder, run_name
from nasjax.search import (
    NU_MODES,
    mean_trace_norm,
    nasi,
    nu_estimation,
    optimal_logits,
    zero_logits,
)
from nasjax.spaces import Space, get_space
from nasjax.spaces.nasbench1shot1 import NUM_PARENTS, to_nasbench101
from nasjax.spaces.nasbench101 import NASBENCH101, official_hash
from nasjax.spaces.nasbench201 import official_index

IMAGE_SIZE = 32
LABELS = ("true", "random")
NUM_NU_SAMPLES = 50
"""``N`` of eq. (40)."""


class SpaceDefaults(NamedTuple):
    """Search settings of a space where the user gives none.

    Attributes:
      steps: ``T``.
      batch_size: ``b``.
      channels: of the first stage.
      cells: of the one-shot network; a stage, but in DARTS in all.
      nu_mode: ``"fixed"`` or ``"adaptive"``.
      nu: ``nu_0`` of the adaptive constraint.
      nu_scale: factor on the estimate of the fixed constraint.
      mu: the penalty coefficient.
    """

    steps: int
    batch_size: int
    channels: int
    cells: int
    nu_mode: str
    nu: float
    nu_scale: float
    mu: float


_NASBENCH1SHOT1 = SpaceDefaults(
    steps=100,
    batch_size=64,
    channels=16,
    cells=3,
    nu_mode="adaptive",
    nu=1000.0,
    nu_scale=1.0,
    mu=1.0,
)
DEFAULTS = {
    "darts": SpaceDefaults(
        steps=100,
        batch_size=64,
        channels=16,
        cells=8,
        nu_mode="adaptive",
        nu=500.0,
        nu_scale=1.0,
        mu=2.0,
    ),
    "nasbench201": SpaceDefaults(
        steps=100,
        batch_size=32,
        channels=8,
        cells=3,
        nu_mode="fixed",
        nu=500.0,
        nu_scale=2.0,
        mu=2.0,
    ),
    **dict.fromkeys(NUM_PARENTS, _NASBENCH1SHOT1),
}
"""DARTS: NASI sec. 5.2 (NASI-ADA). NAS-Bench-1Shot1: NASI sec. 5.1 for nu and mu; channels and
cells are those of the original one-shot networks. NAS-Bench-201: the paper gives no settings. These
were chosen by the accuracies that they lead to over 8 seeds (benchmarks/README.md); with the
benchmark's five cells a stage the trace norm spans five orders of magnitude and the few largest
decide."""


@dataclasses.dataclass(frozen=True)
class NasiSettings:
    """Everything that the result of a NASI run depends on.

    Attributes:
      space: a key of ``DEFAULTS``.
      data: what ``data.load_data`` takes: ``random``, ``digits``, ``npz:PATH`` ...
      labels: ``"true"`` or ``"random"``.
      steps: ``T``, gradients that are averaged.
      batch_size: ``b``, images a gradient.
      channels: of the first stage.
      cells: see ``SpaceDefaults``.
      nu: ``nu_0``; None with ``nu_mode="fixed"`` estimates it from 50 architectures, eq. (40).
      nu_mode: ``"fixed"`` or ``"adaptive"``.
      nu_scale: factor on that estimate; above 1 it favours more complex architectures (App. B.1).
      mu: the penalty coefficient.
      seed: of everything random.
      initialization: a key of ``networks.INITIALIZATIONS``.
      normalization: a key of ``networks.NORMALIZATIONS``.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    space: str = "nasbench201"
    data: str = "random"
    labels: str = "true"
    steps: int | None = None
    batch_size: int | None = None
    channels: int | None = None
    cells: int | None = None
    nu: float | None = None
    nu_mode: str | None = None
    nu_scale: float | None = None
    mu: float | None = None
    seed: int = 0
    initialization: str = "lecun"
    normalization: str = "batch"

    def __post_init__(self):
        """Fills in the space's defaults and checks every value."""
        if self.space == NASBENCH101.name:
            raise InputError(
                f"--space: must have a one-shot network, got {self.space}. Search one of its "
                f"parts: {', '.join(NUM_PARENTS)}."
            )
        if self.space not in DEFAULTS:
            raise unknown_name("--space", "space", self.space, DEFAULTS)
        defaults = DEFAULTS[self.space]._asdict()
        for name in ("steps", "batch_size", "channels", "cells", "nu_mode", "mu"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults[name])
        if self.nu is None and self.nu_mode == "adaptive":
            object.__setattr__(self, "nu", defaults["nu"])
        if self.nu is None and self.nu_scale is None:
            object.__setattr__(self, "nu_scale", defaults["nu_scale"])
        if self.nu_mode not in NU_MODES:
            raise unknown_name("--nu-mode", "mode", self.nu_mode, NU_MODES)
        if self.labels not in LABELS:
            raise unknown_name("--labels", "kind of labels", self.labels, LABELS)
        for name in ("steps", "batch_size", "channels", "cells"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option}: must be at least 1, got {getattr(self, name)}.")
        if self.batch_size == 1:
            raise InputError("--batch-size: must be at least 2, to tell dead networks, got 1.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed: must be in 0 ... 2^32 - 1, got {self.seed}.")
        if not (math.isfinite(self.mu) and self.mu >= 0):
            raise InputError(f"--mu: must be a number >= 0, got {self.mu}.")
        if self.nu is not None and not (math.isfinite(self.nu) and self.nu > 0):
            raise InputError(f"--nu: must be a number > 0, got {self.nu}.")
        if self.nu_scale is not None:
            if self.nu is not None:
                raise InputError(
                    "--nu-scale: is a factor on the estimate of a fixed nu, but nu is "
                    f"{self.nu:g}, {self.nu_mode}. Leave it out."
                )
            if not (math.isfinite(self.nu_scale) and self.nu_scale > 0):
                raise InputError(f"--nu-scale: must be a number > 0, got {self.nu_scale}.")
        if self.initialization not in INITIALIZATIONS:
            raise unknown_name(
                "--initialization", "initialisation", self.initialization, INITIALIZATIONS
            )
        if self.normalization not in NORMALIZATIONS:
            raise unknown_name(
                "--normalization", "normalisation", self.normalization, NORMALIZATIONS
            )

    def run_name(self) -> str:
        """A name for the run's folder: space, data, seed, and what is not the space's default."""
        return run_name("nasi", self, NasiSettings(space=self.space))

    def layer_config(self) -> LayerConfig:
        """Initialisation and normalisation of all layers."""
        return LayerConfig(self.initialization, self.normalization)


class OnStepFn(Protocol):
    """Told of each step as it ends."""

    def __call__(self, phase: str, step: int, num_steps: int, record: dict[str, Any]) -> None:
        """Shows progress.

        Args:
          phase: ``"nu"`` (the estimate of eq. 40) or ``"search"``.
          step: how many steps of the phase are done.
          num_steps: of the phase.
          record: the line of the history; empty where the phase begins or is resumed.
        """
        ...


class NasiResult(NamedTuple):
    """A finished run.

    Attributes:
      genotype: the selected architecture.
      logits: ``alpha*``, numpy arrays.
      record: the content of ``architecture.json``.
      num_run: steps of both phases that this call ran; 0 where the run was finished before.
    """

    genotype: np.ndarray
    logits: dict[str, np.ndarray]
    record: dict[str, Any]
    num_run: int


def run_nasi(
    settings: NasiSettings,
    out: str | Path,
    *,
    table: Nasbench201Table | None = None,
    on_step: OnStepFn | None = None,
) -> NasiResult:
    """Runs or resumes NASI and leaves its files in a folder.

    The folder gets ``settings.json``, ``state.npz`` and ``history.jsonl`` (a line a step) while the
    search runs, and ``architecture.json``, ``logits.npz``, ``cells.svg`` and ``cells.png`` at its
    end. A run that was stopped at any moment goes on where it was, to the same result bit for bit
    on the same machine and versions; a finished run is not repeated.

    Args:
      settings: of the run.
      out: the folder, new, empty, or of a run with the same settings.
      table: NAS-Bench-201 accuracies, to report those of the selected cell.
      on_step: shows progress.

    Returns:
      The selected architecture and its record.

    Raises:
      InputError: if the data or the folder cannot be used, or every sampled network failed.
    """
    if table is not None and settings.space != "nasbench201":
        raise InputError(
            f"--table: holds NAS-Bench-201 cells, but --space is {settings.space}. Leave it out."
        )
    keys = dict(
        zip(
            ("params", "data", "nu", "search"),
            jax.random.split(jax.random.key(settings.seed), 4),
            strict=True,
        )
    )
    dataset = _load(settings, keys["data"])
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(
            {
                **dataclasses.asdict(settings),
                "data_provenance": dataset.provenance,
                "versions": versions(),
            }
        )
        state, num_run = _search(settings, dataset, keys, folder, on_step or (lambda *_: None))
        return _finish(settings, dataset, folder, state, table, num_run)


def versions() -> dict[str, str]:
    """Versions that a result may depend on, and the platform it was computed on."""
    import flax
    import jaxlib

    modules = {"nasjax": nasjax, "jax": jax, "jaxlib": jaxlib, "flax": flax, "numpy": np}
    found = {name: module.__version__ for name, module in modules.items()}
    device = jax.devices()[0]
    return {**found, "python": platform.python_version(), "device": device.device_kind}


def _load(settings: NasiSettings, key) -> Dataset:
    num_examples = settings.batch_size if settings.data == "random" else None
    dataset = load_data(
        settings.data,
        image_size=IMAGE_SIZE,
        labels=settings.labels,
        num_examples=num_examples,
        key=key,
    )
    if settings.data == "random":
        return dataset._replace(
            provenance={
                "source": "random",
                "images": "N(0, 1), drawn anew each step",
                "labels": f"uniform over {dataset.num_classes} classes, drawn anew each step",
            }
        )
    if settings.batch_size > len(dataset.images):
        raise InputError(
            f"--batch-size: must be at most the {len(dataset.images)} images of {settings.data}, "
            f"got {settings.batch_size}. Give a smaller batch or more data."
        )
    return dataset


def _search(settings, dataset, keys, folder: RunFolder, on_step):
    space = get_space(settings.space)
    objective_fn, data = _objective(settings, dataset, space, keys["params"])
    estimation = nu_estimation(objective_fn, space.decisions)
    num_estimates = NUM_NU_SAMPLES if settings.nu is None else 0
    state = {
        "estimate": estimation.init(keys["nu"]),
        "search": nasi(objective_fn, space.decisions, nu=settings.nu or 1.0).init(keys["search"]),
        "seconds": np.zeros(()),
    }
    state = folder.load_state(state)
    done = int(state["estimate"].num_steps) + int(state["search"].num_steps)
    folder.cut_history(done)

    def run(phase, algorithm, name, key, num_steps):
        step = jax.jit(algorithm.step)
        first = int(state[name].num_steps)
        if first < num_steps:
            on_step(phase, first, num_steps, {})
        for index in range(first, num_steps):
            start = time.perf_counter()
            state[name], info = step(jax.random.fold_in(key, index), state[name], *data)
            record = {"phase": phase, "step": index + 1, **jax.device_get(info)._asdict()}
            state["seconds"] = state["seconds"] + (time.perf_counter() - start)
            folder.append_history(record)
            folder.save_state(state)
            on_step(phase, index + 1, num_steps, record)

    run("nu", estimation, "estimate", keys["nu"], num_estimates)
    nu = settings.nu
    if nu is None:
        nu = settings.nu_scale * mean_trace_norm(state["estimate"])
    algorithm = nasi(objective_fn, space.decisions, nu=nu, nu_mode=settings.nu_mode)
    state["search"] = state["search"]._replace(nu_start=jnp.float32(nu))
    run("search", algorithm, "search", keys["search"], settings.steps)
    return state, num_estimates + settings.steps - done


def _objective(settings, dataset: Dataset, space: Space, params_key):
    """The objective as a function of the data that it draws its batches from, and these data."""
    network = one_shot_network(
        settings.space,
        num_classes=dataset.num_classes,
        channels=settings.channels,
        num_cells=settings.cells,
        config=settings.layer_config(),
    )
    shape = (settings.batch_size, IMAGE_SIZE, IMAGE_SIZE, dataset.images.shape[-1])
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    params = init_params(params_key, network, zero_logits(space.decisions), x)
    trace_norm_fn = one_shot_trace_norm(
        lambda params, weights, x: network.apply({"params": params}, weights, x)
    )
    penalized_fn = nasi_objective(trace_norm_fn, space.decisions, mu=settings.mu)

    def objective_fn(logits, key, nu, params, *arrays):
        batch_key, draw_key = jax.random.split(key)
        if settings.data == "random":
            x, y = random_batch(
                batch_key, settings.batch_size, IMAGE_SIZE, shape[-1], dataset.num_classes
            )
        else:
            x, y = sample_batch(batch_key, *arrays, settings.batch_size)
        return penalized_fn(logits, draw_key, nu, params, x, y)

    arrays = () if settings.data == "random" else (dataset.images, dataset.labels)
    return objective_fn, jax.device_put((params, *arrays))


def _finish(settings, dataset, folder: RunFolder, state, table, num_run: int) -> NasiResult:
    search = state["search"]
    if int(search.num_traces) == 0:
        raise InputError(
            f"search nasi: all {int(search.num_steps)} sampled networks failed (history.jsonl says "
            "how). Choose another initialisation, normalisation or data."
        )
    space = get_space(settings.space)
    logits = {name: np.asarray(array) for name, array in optimal_logits(search).items()}
    genotype = np.asarray(space.select(logits))
    record = {
        "space": settings.space,
        "architecture": space.to_string(genotype),
        "genotype": genotype,
        "algorithm": "nasi",
        "settings": dataclasses.asdict(settings),
        "data": dataset.provenance,
        "versions": versions(),
        "search": {
            "seconds": float(state["seconds"]),
            "nu_start": float(search.nu_start),
            "mean_trace_norm": float(search.trace_sum) / int(search.num_traces),
            "max_gradient_norm": float(search.max_gradient_norm),
            "num_steps": int(search.num_steps),
            "num_failed": int(search.num_steps - search.num_traces),
        },
    }
    if settings.space == "nasbench201":
        record["official_index"] = official_index(genotype)
    if settings.space in NUM_PARENTS:
        record["official_hash"] = official_hash(to_nasbench101(settings.space, genotype))
    if table is not None:
        record["accuracies"] = table.lookup(genotype)._asdict()
    folder.write_arrays("logits.npz", logits)
    title = f"NASI, {settings.space}, seed {settings.seed}"
    draw_cells(space.describe(genotype), folder.path / "cells", title=title)
    folder.write_json("architecture.json", record)
    return NasiResult(genotype, logits, record, num_run)
