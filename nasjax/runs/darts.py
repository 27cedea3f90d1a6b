"""Searches that train a one-shot network, from settings to files: DARTS, shared random weights."""

import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nasjax.data import Examples, hold_out, load_data
from nasjax.errors import InputError
from nasjax.evaluation import draw_cells, draw_choices
from nasjax.networks import init_params, one_shot_network
from nasjax.runs.batch import network_inputs
from nasjax.runs.darts_settings import DartsSettings
from nasjax.runs.folder import RunFolder, open_run_folder
from nasjax.runs.nasi import OnStepFn, versions
from nasjax.search import (
    LossFn,
    SearchAlgorithm,
    candidate_search,
    darts,
    mlp_project,
    mlp_relax,
    mlp_variables,
    select_mlp,
    weight_sharing,
)
from nasjax.spaces import Space, mlp_space
from nasjax.spaces.mlp import ACTIVATION_NAMES, split_genotype
from nasjax.training import steps_per_epoch
from nasjax.training.batches import train_batches

SAVE_EVERY = 200
"""Steps of training between states, beside those at the ends of epochs."""
_SAVE_EVERY_CANDIDATE = 25
_MEANS = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")


class DartsResult(NamedTuple):
    """A finished run.

    Attributes:
      genotype: the selected architecture.
      record: the content of ``architecture.json``.
      num_run: steps of all phases that this call ran; 0 where the run was finished before.
    """

    genotype: np.ndarray
    record: dict[str, Any]
    num_run: int


class _Task(NamedTuple):
    """What a search works on."""

    space: Space
    loss_fn: LossFn
    init_params: Any
    train: Examples
    held: Examples
    provenance: dict[str, Any]
    steps_per_epoch: int
    seeds: dict[str, int]


def run_darts(
    settings: DartsSettings, out: str | Path, *, on_step: OnStepFn | None = None
) -> DartsResult:
    """Runs or resumes a search that trains a one-shot network, and leaves its files in a folder.

    The folder gets ``settings.json``, ``state.npz`` and ``history.jsonl`` while the search runs (a
    line an epoch, with the means over its steps; then a line a candidate), and
    ``architecture.json``, ``cells.svg``, ``choices.svg``, both as ``.png``, too, at its end; of
    DARTS also ``logits.npz``, its architecture variables. A run that was stopped at any moment goes
    on from its last state, to the same result bit for bit on the same machine and versions; a
    finished run is not repeated. ``state.npz`` takes about ``8 depth width^2`` bytes.

    Args:
      settings: of the run.
      out: the folder, new, empty, or of a run with the same settings.
      on_step: shows progress; its phases are ``"search"`` (DARTS), ``"weights"`` and
        ``"candidates"`` (random), its records those of single steps.

    Returns:
      The selected architecture and its record.

    Raises:
      InputError: if the data or the folder cannot be used, every step of the last epoch failed, or
        every candidate did.
    """
    keys = dict(
        zip(
            ("params", "data", "search", "candidates"),
            jax.random.split(jax.random.key(settings.seed), 4),
            strict=True,
        )
    )
    task = _task(settings, keys["data"])
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(
            {
                **dataclasses.asdict(settings),
                "rates": dataclasses.asdict(settings.rates()),
                "data_provenance": task.provenance,
                "versions": versions(),
            }
        )
        run = _Run(settings, task, folder, on_step or (lambda *_: None))
        return run.darts(keys) if settings.algorithm == "darts" else run.random(keys)


def _task(settings: DartsSettings, data_key) -> _Task:
    dataset = load_data(
        settings.data,
        image_size=settings.image_size,
        channels=settings.channels,
        labels=settings.labels,
        num_examples=settings.num_examples,
        key=data_key,
    )
    # Three seeds: with one, both parts would be gone through in one order.
    words = np.random.SeedSequence(settings.seed).generate_state(3).tolist()
    seeds = dict(zip(("split", "train", "held"), words, strict=True))
    examples = Examples(np.asarray(dataset.images), np.asarray(dataset.labels))
    train, held = hold_out(examples, settings.held_out, seed=seeds["split"])
    in_epoch = steps_per_epoch(train.num_examples, settings.batch_size)
    if settings.batch_size > held.num_examples:
        raise InputError(
            f"--batch-size: must be at most the {held.num_examples} examples held out, got "
            f"{settings.batch_size}. Give a smaller batch or more data."
        )
    network = one_shot_network(
        settings.space,
        num_outputs=dataset.num_classes,
        width=settings.width,
        initialization=settings.initialization,
    )
    space = mlp_space(settings.depth)

    def loss_fn(params, weights, x, y):
        logits = network.apply({"params": params}, weights, network_inputs(settings.space, x))
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return loss, jnp.mean(jnp.argmax(logits, axis=-1) == y, dtype=logits.dtype)

    def init(key):
        x = jax.ShapeDtypeStruct((1, math.prod(train.image_shape)), jnp.float32)
        return init_params(key, network, mlp_relax(_start(settings)), x)

    counts = {"num_weights": train.num_examples, "num_held_out": held.num_examples}
    provenance = dataset.provenance | counts
    return _Task(space, loss_fn, init, train, held, provenance, in_epoch, seeds)


def _start(settings: DartsSettings) -> dict[str, jax.Array]:
    return mlp_variables(settings.depth, len(ACTIVATION_NAMES))


class _Run:
    """A run under way in its folder."""

    def __init__(self, settings: DartsSettings, task: _Task, folder: RunFolder, on_step: OnStepFn):
        self._settings, self._task, self._folder = settings, task, folder
        self._on_step, self._num_run = on_step, 0
        self._num_steps = settings.epochs * task.steps_per_epoch

    def darts(self, keys) -> DartsResult:
        """Runs DARTS."""
        task, settings = self._task, self._settings
        algorithm = darts(
            task.loss_fn,
            init_params=task.init_params,
            variables=_start(settings),
            relax=mlp_relax,
            project=mlp_project,
            num_steps=self._num_steps,
            order=settings.order,
            rates=settings.rates(),
        )
        state = self._load({"search": algorithm.init(keys["params"])})
        self._train("search", algorithm, keys["search"], state, self._batches(state, "held"))
        variables = jax.device_get(state["search"].variables)
        self._folder.write_arrays("logits.npz", variables)
        probabilities = {
            "activations": np.asarray(mlp_relax(variables)["activations"]),
            "skips": variables["skips"],
        }
        return self._finish(state, select_mlp(variables), probabilities, {})

    def random(self, keys) -> DartsResult:
        """Runs random search with weight sharing."""
        task, settings = self._task, self._settings
        choices = {"sample": task.space.sample, "one_hot": task.space.one_hot}
        algorithm = weight_sharing(
            task.loss_fn,
            init_params=task.init_params,
            num_steps=self._num_steps,
            rates=settings.rates(),
            **choices,
        )
        candidates = candidate_search(task.loss_fn, **choices)
        first = candidates.init(keys["candidates"])
        state = self._load({"search": algorithm.init(keys["params"]), "candidates": first})
        self._train("weights", algorithm, keys["search"], state, self._batches(state))
        self._compare(candidates, keys["candidates"], state)
        best = state["candidates"]
        if not np.isfinite(best.loss):
            raise InputError(
                f"search darts: all {int(best.num_steps)} candidates had a loss that is not "
                "finite. Choose another initialisation or a smaller learning rate."
            )
        genotype = np.asarray(best.genotype)
        activations, skips = split_genotype(genotype)
        probabilities = {
            "activations": np.eye(len(ACTIVATION_NAMES))[activations],
            "skips": skips.astype(float),
        }
        found = {
            "num_candidates": int(best.num_steps),
            "num_candidates_failed": int(best.num_failed),
            "best_validation_loss": float(best.loss),
            "best_validation_accuracy": float(best.accuracy),
        }
        return self._finish(state, genotype, probabilities, found)

    def _load(self, state: dict[str, Any]) -> dict[str, Any]:
        """The last state, with what the run itself carries beside the search's."""
        own = {"sums": np.zeros(len(_MEANS)), "num_fine": np.zeros((), np.int64)}
        counts = {"num_lines": np.zeros((), np.int64), "seconds": np.zeros(())}
        state = self._folder.load_state({**state, **own, **counts})
        self._folder.cut_history(int(state["num_lines"]))
        return state

    def _batches(self, state, *others: str) -> Iterator[tuple[tuple[np.ndarray, np.ndarray], ...]]:
        """From the step under way on: a batch to train with, and of the other parts."""
        task = self._task
        streams = (
            train_batches(
                getattr(task, part),
                batch_size=self._settings.batch_size,
                rows=slice(None),
                seed=task.seeds[part],
                first_step=int(state["search"].num_steps),
                num_steps=self._num_steps,
            )
            for part in ("train", *others)
        )
        for batches in zip(*streams, strict=True):
            yield tuple((batch.images, batch.labels) for batch in batches)

    def _train(self, phase: str, algorithm: SearchAlgorithm, key, state, batches) -> None:
        """Steps to the end of the last epoch, from where the state is."""
        step_fn, num_steps = jax.jit(algorithm.step), self._num_steps
        in_epoch = self._task.steps_per_epoch
        first = int(state["search"].num_steps)
        if first < num_steps:
            self._on_step(phase, first, num_steps, {})
        for step, data in enumerate(batches, first + 1):
            start = time.perf_counter()
            step_key = jax.random.fold_in(key, step - 1)
            state["search"], info = step_fn(step_key, state["search"], *data)
            record = {"phase": phase, "step": step, **jax.device_get(info)._asdict()}
            if record["is_finite"]:
                values = [record.get(name, 0.0) for name in _MEANS]
                state["sums"] = state["sums"] + np.array(values, np.float64)
                state["num_fine"] = state["num_fine"] + 1
            state["seconds"] = state["seconds"] + (time.perf_counter() - start)
            if step % in_epoch == 0:
                self._end_epoch(phase, step, state, record)
            if step % in_epoch == 0 or step % SAVE_EVERY == 0:
                self._folder.save_state(state)
            self._num_run += 1
            self._on_step(phase, step, num_steps, record)
        self._last_epoch()

    def _end_epoch(self, phase: str, step: int, state, record) -> None:
        """Writes the line of an epoch, and begins the sums of the next."""
        in_epoch, count = self._task.steps_per_epoch, int(state["num_fine"])
        line = {"phase": phase, "epoch": step // in_epoch, "step": step}
        means = dict(zip(_MEANS, state["sums"] / max(count, 1), strict=True))
        line |= {name: mean if count else None for name, mean in means.items() if name in record}
        line["num_failed"] = in_epoch - count
        if phase == "search":
            variables = state["search"].variables
            line["activations"] = mlp_relax(variables)["activations"]
            line["skips"] = variables["skips"]
        self._folder.append_history(line)
        state["num_lines"] = state["num_lines"] + 1
        state["sums"], state["num_fine"] = np.zeros(len(_MEANS)), np.zeros((), np.int64)

    def _compare(self, algorithm: SearchAlgorithm, key, state) -> None:
        """Evaluates candidates on the same examples, from where the state is."""
        step_fn, num_steps = jax.jit(algorithm.step), self._settings.num_candidates
        held, count = self._task.held, self._settings.candidate_examples
        # In stored order the first examples may be of one class.
        chosen = np.random.default_rng(self._task.seeds["held"]).permutation(held.num_examples)
        chosen = np.sort(chosen[:count])
        data = jax.device_put((held.images[chosen], held.labels[chosen]))
        first = int(state["candidates"].num_steps)
        if first < num_steps:
            self._on_step("candidates", first, num_steps, {})
        for step in range(first + 1, num_steps + 1):
            start = time.perf_counter()
            step_key = jax.random.fold_in(key, step - 1)
            params = state["search"].params
            state["candidates"], info = step_fn(step_key, state["candidates"], params, data)
            found = jax.device_get(info)._asdict()
            architecture = self._task.space.to_string(found["genotype"])
            record = {"phase": "candidates", "step": step, "architecture": architecture, **found}
            state["seconds"] = state["seconds"] + (time.perf_counter() - start)
            self._folder.append_history(record)
            state["num_lines"] = state["num_lines"] + 1
            if step % _SAVE_EVERY_CANDIDATE == 0 or step == num_steps:
                self._folder.save_state(state)
            self._num_run += 1
            self._on_step("candidates", step, num_steps, record)

    def _last_epoch(self) -> dict[str, Any]:
        """The line of the last epoch; weights that diverged have failed in all its steps."""
        last = [line for line in self._folder.read_history() if "epoch" in line][-1]
        if last["num_failed"] == self._task.steps_per_epoch:
            raise InputError(
                f"search darts: all {last['num_failed']} steps of the last epoch had a loss or "
                "gradient that is not finite. Choose another initialisation or a smaller learning "
                "rate."
            )
        return last

    def _finish(self, state, genotype, probabilities, found) -> DartsResult:
        settings, task, search = self._settings, self._task, state["search"]
        last = self._last_epoch()
        record = {
            "space": settings.space,
            "architecture": task.space.to_string(genotype),
            "genotype": genotype,
            "algorithm": settings.algorithm,
            "probabilities": probabilities,
            "activation_names": ACTIVATION_NAMES,
            "settings": dataclasses.asdict(settings),
            "rates": dataclasses.asdict(settings.rates()),
            "data": task.provenance,
            "versions": versions(),
            "search": {
                "seconds": float(state["seconds"]),
                "num_steps": int(search.num_steps),
                "num_failed": int(search.num_failed),
                "steps_per_epoch": task.steps_per_epoch,
                "last_epoch": {name: last[name] for name in _MEANS if name in last},
                **found,
            },
        }
        title = f"{settings.title()}, seed {settings.seed}"
        folder = self._folder
        draw_cells(task.space.describe(genotype), folder.path / "cells", title=title)
        chosen = probabilities["activations"][None], probabilities["skips"][None]
        draw_choices(*chosen, folder.path / "choices", title=title)
        folder.write_json("architecture.json", record)
        return DartsResult(genotype, record, self._num_run)
