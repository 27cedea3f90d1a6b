"""Batches from examples in memory: an order an epoch, made ahead of need."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped

from nasjax.errors import InputError

_NUM_AHEAD = 2


class Batch(NamedTuple):
    """A process's part of a batch.

    Attributes:
      images: ``[part, height, width, channels]``, as stored.
      labels: ``[part]``, int32.
      is_counted: ``[part]``, false for examples that only fill the batch.
    """

    images: Shaped[np.ndarray, "part height width channels"]
    labels: Int[np.ndarray, " part"]
    is_counted: Bool[np.ndarray, " part"]


def epoch_order(seed: int, epoch: int, num_examples: int) -> Int[np.ndarray, " examples"]:
    """The order in which an epoch goes through the examples, whatever came before it."""
    return np.random.default_rng((seed, epoch)).permutation(num_examples)


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Whole batches in the examples.

    Raises:
      InputError: if there is none.
    """
    if num_examples < batch_size:
        raise InputError(
            f"--batch-size: must be at most the {num_examples} examples to train with, got "
            f"{batch_size}."
        )
    return num_examples // batch_size


def train_batches(
    images: np.ndarray,
    labels: np.ndarray,
    *,
    batch_size: int,
    rows: slice,
    seed: int,
    first_step: int,
    num_steps: int,
) -> Iterator[Batch]:
    """The batches of steps, from any step on: a restart draws what an unbroken run would have.

    Args:
      images: ``[examples, height, width, channels]``.
      labels: ``[examples]``.
      batch_size: over all processes.
      rows: of each batch, what is this process's.
      seed: of the order.
      first_step: the step of the first batch.
      num_steps: the step after the last.

    Yields:
      Batches, the next ones gathered meanwhile by another thread.
    """
    in_epoch = steps_per_epoch(len(labels), batch_size)
    order, epoch_of_order = None, None

    def gather(step: int) -> Batch:
        nonlocal order, epoch_of_order
        epoch, place = divmod(step, in_epoch)
        if epoch != epoch_of_order:
            order, epoch_of_order = epoch_order(seed, epoch, len(labels)), epoch
        chosen = order[place * batch_size : (place + 1) * batch_size][rows]
        return Batch(images[chosen], labels[chosen], np.ones(len(chosen), bool))

    yield from _ahead(gather, range(first_step, num_steps))


def evaluation_batches(
    images: np.ndarray, labels: np.ndarray, *, batch_size: int, rows: slice
) -> Iterator[Batch]:
    """All examples in stored order; the last batch is filled up with the first examples again.

    Args:
      images: ``[examples, height, width, channels]``.
      labels: ``[examples]``.
      batch_size: over all processes.
      rows: of each batch, what is this process's.

    Yields:
      Batches.
    """

    def gather(start: int) -> Batch:
        place = np.arange(start, start + batch_size)[rows]
        chosen = place % len(labels)
        return Batch(images[chosen], labels[chosen], place < len(labels))

    yield from _ahead(gather, range(0, len(labels), batch_size))


def _ahead(gather, places: range) -> Iterator[Batch]:
    with ThreadPoolExecutor(1) as worker:
        submitted = (worker.submit(gather, place) for place in places)
        waiting = deque(islice(submitted, _NUM_AHEAD))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(islice(submitted, 1))
