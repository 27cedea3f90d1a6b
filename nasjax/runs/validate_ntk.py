"""How well approximations of the NTK trace norm follow the exact one over a search space."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nasjax.data import load_data, sample_batch
from nasjax.errors import InputError, unknown_name
from nasjax.evaluation import draw_validation
from nasjax.networks import (
    INITIALIZATIONS,
    NORMALIZATIONS,
    LayerConfig,
    init_params,
    one_shot_network,
)
from nasjax.ntk import (
    batch_loss_trace_norm,
    cell_network_ntk,
    per_example_traces,
    random_trace_norm,
    summed_loss_trace_norm,
)
from nasjax.runs.folder import RunFolder, open_run_folder, run_name
from nasjax.runs.nasi import IMAGE_SIZE, OnStepFn, versions
from nasjax.runs.validation_summary import as_csv, summarise
from nasjax.search import zero_logits
from nasjax.spaces import Space, get_space

SPACES = ("darts", "nasbench201")
"""Spaces of image networks, which this compares in."""

_INFINITE_EXAMPLES, _INFINITE_IMAGE_SIZE = 4, 8
_NUM_DRAWS = 8
"""Gradients of a coupled batch in one random estimate."""


@dataclasses.dataclass(frozen=True)
class ValidationSettings:
    """Everything that the result of a validation depends on.

    Attributes:
      space: one of ``SPACES``.
      data: what ``data.load_data`` takes.
      num_architectures: drawn uniformly, distinct and connected.
      batch_sizes: examples of the approximations; the largest is also that of the exact trace norm.
      channels: of the first stage.
      cells: a stage in NAS-Bench-201, in all in DARTS.
      seed: of everything random.
      initialization: a key of ``networks.INITIALIZATIONS``.
      normalization: a key of ``networks.NORMALIZATIONS``. With ``"batch"`` gradients go through
        the statistics of the whole batch, at the cost of a gradient of the batch an output and an
        example.
      widths: channels at which finite networks are compared with infinite width, in
        ``nasbench201``; empty for none. These networks have one cell a stage, no normalisation and
        the NTK parameterisation, on four 8x8 images.
      num_infinite: architectures of that comparison.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    space: str = "nasbench201"
    data: str = "random"
    num_architectures: int = 100
    batch_sizes: tuple[int, ...] = (4, 8, 16)
    channels: int = 8
    cells: int = 1
    seed: int = 0
    initialization: str = "lecun"
    normalization: str = "none"
    widths: tuple[int, ...] = (8, 16, 32)
    num_infinite: int = 20

    def __post_init__(self):
        """Checks every value."""
        for option, name, known in (
            ("--space", self.space, SPACES),
            ("--initialization", self.initialization, INITIALIZATIONS),
            ("--normalization", self.normalization, NORMALIZATIONS),
        ):
            if name not in known:
                raise unknown_name(option, option.strip("-"), name, known)
        size = get_space(self.space).size
        for name, least, most in (
            ("num_architectures", 3, size // 2),
            ("channels", 1, 1024),
            ("cells", 1, 100),
            ("num_infinite", 3, self.num_architectures),
        ):
            if not least <= getattr(self, name) <= most:
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option}: must be {least} to {most}, got {getattr(self, name)}.")
        for option, values, least in (
            ("--batch-sizes", self.batch_sizes, 2),
            ("--widths", self.widths, 1),
        ):
            is_ascending = list(values) == sorted(set(values))
            if not is_ascending or (values and values[0] < least):
                raise InputError(
                    f"{option}: must be ascending numbers of at least {least}, got "
                    f"{','.join(map(str, values))}."
                )
        if not self.batch_sizes:
            raise InputError("--batch-sizes: must be numbers, got none.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed: must be in 0 ... 2^32 - 1, got {self.seed}.")

    def run_name(self) -> str:
        """A name for the run's folder: space, data, seed, and what is not a default."""
        return run_name("validate-ntk", self, ValidationSettings(space=self.space))

    @property
    def num_widths(self) -> int:
        """Architectures that are compared with infinite width."""
        return self.num_infinite if self.space == "nasbench201" and self.widths else 0


class Validation(NamedTuple):
    """A finished validation.

    Attributes:
      rows: a dictionary an architecture, the content of ``validation.csv``.
      summary: the correlations, as in ``validation.json``.
      num_run: architectures that this call computed; 0 where the run was finished before.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    num_run: int


def run_validation(
    settings: ValidationSettings, out: str | Path, *, on_step: OnStepFn | None = None
) -> Validation:
    """Runs or resumes a validation and leaves its files in a folder.

    ``history.jsonl`` gets a line an architecture while it runs; ``validation.csv``,
    ``validation.json``, ``validation.png`` and ``validation.svg`` follow at the end. A run that was
    stopped at any moment goes on where it was, to the same numbers; a finished one is not repeated.

    Args:
      settings: of the run.
      out: the folder, new, empty, or of a run with the same settings.
      on_step: shows progress; phases ``"approximations"`` and ``"widths"``.

    Returns:
      The numbers.

    Raises:
      InputError: if the data or the folder cannot be used, or fewer than three networks are alive.

    References:
      NASI, figure 1 and table 7.
    """
    on_step = on_step or (lambda *_: None)
    keys = dict(
        zip(
            ("data", "batch", "params", "archs", "labels", "images", "signs", "widths"),
            jax.random.split(jax.random.key(settings.seed), 8),
            strict=True,
        )
    )
    data = _load(settings, keys)
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(
            {
                **dataclasses.asdict(settings),
                "data_provenance": data.provenance,
                "versions": versions(),
            }
        )
        space = get_space(settings.space)
        genotypes = _architectures(space, settings.num_architectures, keys["archs"])
        records = folder.read_history()
        first = len(records)
        phases = (
            ("approximations", settings.num_architectures, _approximations),
            ("widths", settings.num_widths, _widths),
        )
        done = 0
        for phase, count, make in phases:
            start = min(max(len(records) - done, 0), count)
            if start < count:
                on_step(phase, start, count, {})
                measure = make(settings, space, data, keys)
            for index in range(start, count):
                measured = measure(genotypes[index])
                record = {
                    "phase": phase,
                    "index": index,
                    "architecture": space.to_string(genotypes[index]),
                    **measured,
                }
                folder.append_history(record)
                records.append(record)
                on_step(phase, index + 1, count, record)
            done += count
        return _finish(settings, data, folder, records, len(records) - first)


class _Data(NamedTuple):
    x: jax.Array
    y: jax.Array
    num_classes: int
    provenance: dict[str, Any]


def _load(settings: ValidationSettings, keys) -> _Data:
    largest = settings.batch_sizes[-1]
    is_random = settings.data == "random"
    dataset = load_data(
        settings.data,
        image_size=IMAGE_SIZE,
        num_examples=largest if is_random else None,
        key=keys["data"],
    )
    if largest > len(dataset.images):
        raise InputError(
            f"--batch-sizes: must be at most the {len(dataset.images)} images of {settings.data}, "
            f"got {largest}. Give smaller batches or more data."
        )
    x, y = sample_batch(keys["batch"], dataset.images, dataset.labels, largest)
    return _Data(x, y, dataset.num_classes, dataset.provenance)


def _architectures(space: Space, count: int, key) -> list[np.ndarray]:
    """Distinct connected architectures, the same ones first for every count."""
    found: dict[bytes, np.ndarray] = {}
    for draw in _draws(space, key):
        if space.is_connected(draw):
            found.setdefault(draw.tobytes(), draw)
        if len(found) == count:
            return list(found.values())
    raise AssertionError("unreachable")


def _draws(space: Space, key) -> Iterator[np.ndarray]:
    sample = jax.jit(jax.vmap(space.sample))
    block = 0
    while True:
        keys = jax.random.split(jax.random.fold_in(key, block), 256)
        yield from np.asarray(sample(keys))
        block += 1


class _Programs(NamedTuple):
    """Compiled functions of ``(weights, params, x, ...)`` for every architecture of a space."""

    network: Any
    traces: Callable
    approximations: Callable
    batch_loss: Callable


@functools.lru_cache(maxsize=16)
def _programs(
    space: str, num_classes: int, channels: int, num_cells: int, config: LayerConfig
) -> _Programs:
    """Compiled once a process, whatever the data and the seed."""
    network = one_shot_network(
        space, num_classes=num_classes, channels=channels, num_cells=num_cells, config=config
    )
    coupling = "none" if config.normalization == "none" else "exact"

    def bound(weights):
        return lambda params, x: network.apply({"params": params}, weights, x)

    def traces(weights, params, x):
        return per_example_traces(bound(weights), params, x, coupling=coupling, outputs_at_once=1)

    def approximations(weights, params, x, y, key):
        num_draws = 1 if coupling == "none" else _NUM_DRAWS
        estimate = random_trace_norm(
            key, bound(weights), params, x, coupling=coupling, num_draws=num_draws
        )
        summed = summed_loss_trace_norm(bound(weights), params, x, y, coupling=coupling)
        return summed, batch_loss(weights, params, x, y), *estimate

    def batch_loss(weights, params, x, y):
        return batch_loss_trace_norm(bound(weights), params, x, y)

    return _Programs(network, jax.jit(traces), jax.jit(approximations), jax.jit(batch_loss))


def _approximations(settings, space: Space, data: _Data, keys) -> Callable:
    """``(genotype) -> numbers``: exact trace norm and approximations of one architecture."""
    config = LayerConfig(settings.initialization, settings.normalization)
    programs = _programs(
        settings.space, data.num_classes, settings.channels, settings.cells, config
    )
    params = _params(programs, space, keys["params"], data.x)
    random_y = jax.random.randint(keys["labels"], data.y.shape, 0, data.num_classes)
    random_x = jax.random.normal(keys["images"], data.x.shape)
    names = ("summed_loss", "batch_loss", "random_outputs", "random_outputs_error")

    def measure(genotype):
        weights = space.one_hot(jnp.asarray(genotype))
        numbers = {"exact": programs.traces(weights, params, data.x).sum()}
        for size in settings.batch_sizes:
            x, y = data.x[:size], data.y[:size]
            key = jax.random.fold_in(keys["signs"], size)
            found = programs.approximations(weights, params, x, y, key)
            numbers |= {f"{name}_{size}": value for name, value in zip(names, found, strict=True)}
        numbers["random_labels"] = programs.batch_loss(weights, params, data.x, random_y)
        numbers["random_data"] = programs.batch_loss(weights, params, random_x, random_y)
        return {name: float(value) for name, value in numbers.items()}

    return measure


def _params(programs: _Programs, space: Space, key, x):
    return init_params(key, programs.network, zero_logits(space.decisions), x[:2])


def _widths(settings, space: Space, data: _Data, keys) -> Callable:
    """``(genotype) -> numbers``: trace norms at finite and at infinite width."""
    side = IMAGE_SIZE // _INFINITE_IMAGE_SIZE
    x = data.x[:_INFINITE_EXAMPLES]
    shape = (len(x), _INFINITE_IMAGE_SIZE, side, _INFINITE_IMAGE_SIZE, side, x.shape[-1])
    x = x.reshape(shape).mean((2, 4))
    networks = {}
    for width in settings.widths:
        programs = _programs(settings.space, data.num_classes, width, 1, LayerConfig("ntk", "none"))
        key = jax.random.fold_in(keys["widths"], width)
        networks[width] = programs.traces, _params(programs, space, key, x)

    def measure(genotype):
        weights = space.one_hot(jnp.asarray(genotype))
        numbers = {
            f"width_{width}": float(traces(weights, params, x).sum())
            for width, (traces, params) in networks.items()
        }
        (graph,) = space.describe(genotype)
        kernel = _infinite_kernel(graph.edges)(x)
        return numbers | {"infinite": data.num_classes * float(jnp.trace(kernel))}

    return measure


@functools.lru_cache(maxsize=64)
def _infinite_kernel(edges) -> Callable:
    return jax.jit(lambda x: cell_network_ntk(edges, x).ntk)


def _finish(settings, data: _Data, folder: RunFolder, records, num_run: int) -> Validation:
    rows = [record for record in records if record["phase"] == "approximations"]
    widths = [record for record in records if record["phase"] == "widths"]
    summary = summarise(rows, widths, settings.batch_sizes, settings.widths)
    merged = [row | (widths[i] if i < len(widths) else {}) for i, row in enumerate(rows)]
    for row in merged:
        row.pop("phase")
    folder.write_text("validation.csv", as_csv(merged))
    title = f"NTK trace norm, {settings.space}, {settings.data}, seed {settings.seed}"
    draw_validation(rows, widths, summary, folder.path / "validation", title=title)
    folder.write_json(
        "validation.json",
        {
            "summary": summary,
            "settings": dataclasses.asdict(settings),
            "data": data.provenance,
            "versions": versions(),
        },
    )
    return Validation(merged, summary, num_run)
