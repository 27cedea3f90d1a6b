"""The loop over steps: trains, tests after every epoch, reports and keeps what a restart needs."""

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from nasjax.errors import InputError
from nasjax.training.batches import Batch, Source, evaluation_batches, train_batches
from nasjax.training.parallel import Parallel
from nasjax.training.step import (
    Task,
    Totals,
    TrainState,
    evaluation_step,
    train_step,
    zero_totals,
)


class Hooks(Protocol):
    """What the loop calls."""

    def report(self, record: dict[str, Any]) -> None:
        """Takes a record: of some steps (``"kind": "steps"``) or of an epoch (``"epoch"``)."""
        ...

    def should_stop(self) -> bool:
        """Whether the loop is to end here, between reports; its state is saved before."""
        ...

    def save(self, step: int, state: TrainState) -> None:
        """Keeps a state, on the host; what was reported before belongs to it."""
        ...


class Measured(NamedTuple):
    """Means over examples.

    Attributes:
      loss: cross-entropy in nats, without smoothing, auxiliary head and weight decay.
      accuracy: the part whose largest logit is the label's.
    """

    loss: float
    accuracy: float


class DivergedError(InputError):
    """Losses or parameters are not finite any more."""


def measured(totals: Totals) -> Measured:
    """Means of totals on the host; NaN where there are no examples."""
    count = int(totals.num_examples)
    if count == 0:
        return Measured(math.nan, math.nan)
    return Measured(float(totals.loss) / count, int(totals.num_correct) / count)


def train(
    task: Task,
    devices: Parallel,
    state: TrainState,
    train_examples: Source,
    test_examples: Source,
    hooks: Hooks,
    *,
    report_every: int = 20,
    save_every_s: float = 60.0,
) -> TrainState:
    """Trains from a state to the end of the recipe.

    States are saved between reports, where a restart finds everything as it was.

    Args:
      task: what is trained.
      devices: where.
      state: on the host, new or restored.
      train_examples: to train with.
      test_examples: to test with, after every epoch.
      hooks: take reports and states.
      report_every: steps between reports; the end of an epoch is one, too.
      save_every_s: least seconds between saved states; the last is always saved.

    Returns:
      The last state, on the host.

    Raises:
      DivergedError: if a loss or the state is not finite; no such state was saved.
      InputError: if the batch does not divide by the devices.
      KeyboardInterrupt: if the hooks ask to stop.
    """
    recipe, in_epoch = task.recipe, task.steps_per_epoch
    rows = devices.local_rows(recipe.batch_size)
    num_steps, first_step = recipe.epochs * in_epoch, int(state.step)
    step_fn = devices.map(train_step(task), is_state_returned=True)
    test_fn = devices.map(evaluation_step(task))
    before = zero_totals() if first_step % in_epoch == 0 else state.totals
    batches = train_batches(
        train_examples,
        batch_size=recipe.batch_size,
        rows=rows,
        seed=task.seed,
        first_step=first_step,
        num_steps=num_steps,
    )
    on_devices, saved_at, reported_at = devices.replicate(state), time.monotonic(), None
    waited_s = 0.0
    for step in range(first_step + 1, num_steps + 1):
        asked_at = time.monotonic()
        batch = next(batches)
        waited_s += time.monotonic() - asked_at
        on_devices = step_fn(on_devices, devices.spread(batch.images), devices.spread(batch.labels))
        is_end = step % in_epoch == 0
        if not is_end and step % in_epoch % report_every:
            continue
        totals = devices.first(on_devices.totals)
        now = time.monotonic()
        record = _steps_record(task, step, before, totals)
        if reported_at is not None:  # the first report's time is that of compilation
            record["images_per_s"] = (
                recipe.batch_size * (step - reported_at[0]) / (now - reported_at[1])
            )
            record["input_share"] = waited_s / (now - reported_at[1])
        hooks.report(record)
        if not math.isfinite(record["loss"]):
            raise _diverged("loss", record["loss"], step, num_steps)
        before = totals
        if is_end:
            before = zero_totals()
            tested = _test(task, devices, test_fn, on_devices, test_examples, rows)
            hooks.report(_epoch_record(task, step, totals, tested))
            if not math.isfinite(tested.loss):
                raise _diverged("loss on the examples to test with", tested.loss, step, num_steps)
        is_stopped = hooks.should_stop() and step < num_steps
        if step == num_steps or is_stopped or time.monotonic() - saved_at >= save_every_s:
            state = devices.first(on_devices)
            if not _is_finite(state):
                raise _diverged("state", "a number that is not", step, num_steps)
            hooks.save(step, state)
            saved_at = time.monotonic()
        if is_stopped:
            raise KeyboardInterrupt
        reported_at, waited_s = (step, time.monotonic()), 0.0
    return state


def _diverged(what: str, got: object, step: int, num_steps: int) -> DivergedError:
    return DivergedError(
        f"train: the {what} must stay finite, got {got} at step {step} of {num_steps}. "
        "Checkpoints before it are kept. Lower the learning rate, or clip gradients."
    )


def _is_finite(state: TrainState) -> bool:
    """Whether all numbers of a state on the host are: the loss tells of those before its step."""
    return all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(state))


def evaluate(task: Task, devices: Parallel, state: TrainState, examples: Source) -> Measured:
    """Tests a state on examples.

    Args:
      task: what was trained.
      devices: where.
      state: on the host.
      examples: to test with.

    Returns:
      Means over all examples.
    """
    rows = devices.local_rows(task.recipe.batch_size)
    test_fn = devices.map(evaluation_step(task))
    return _test(task, devices, test_fn, devices.replicate(state), examples, rows)


def _test(task, devices: Parallel, test_fn, on_devices, examples: Source, rows) -> Measured:
    batches: Iterator[Batch] = evaluation_batches(
        examples, batch_size=task.recipe.batch_size, rows=rows
    )
    found = []
    for place, batch in enumerate(batches):
        weights = ()
        if task.draw_weights is not None:  # another architecture for every batch
            key = jax.random.fold_in(jax.random.key(task.seed), place)
            weights = (devices.replicate(jax.device_get(task.draw_weights(key))),)
        found.append(test_fn(on_devices, *map(devices.spread, batch), *weights))
    parts = [devices.first(totals) for totals in found]
    return measured(jax.tree.map(lambda *leaves: sum(leaves), *parts))


def _steps_record(task: Task, step: int, before: Totals, totals: Totals) -> dict[str, Any]:
    loss, accuracy = measured(jax.tree.map(lambda a, b: a - b, totals, before))
    return {
        "kind": "steps",
        "step": step,
        "epoch": step / task.steps_per_epoch,
        "loss": loss,
        "accuracy": accuracy,
        "learning_rate": float(task.recipe.learning_rate_at(step - 1, task.steps_per_epoch)),
    }


def _epoch_record(task: Task, step: int, totals: Totals, tested: Measured) -> dict[str, Any]:
    trained = measured(totals)
    return {
        "kind": "epoch",
        "step": step,
        "epoch": step // task.steps_per_epoch,
        "train_loss": trained.loss,
        "train_accuracy": trained.accuracy,
        "test_loss": tested.loss,
        "test_accuracy": tested.accuracy,
    }
