"""Batches of a source of examples: an order an epoch, made ahead of need."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from nasjax.errors import InputError

_NUM_AHEAD = 2
_DRAWS_STREAM = 1


class Source(Protocol):
    """Labelled images, as ``data.Examples`` and ``data.Stream``.

    Attributes:
      num_examples: how many there are.
      image_shape: ``(height, width, channels)``.
      num_draws: uniform numbers that an example of a training batch takes.
    """

    num_examples: int
    image_shape: tuple[int, int, int]
    num_draws: int

    def order(self, seed: int, epoch: int, batch_size: int) -> Int[np.ndarray, " examples"]:
        """Places of the examples of an epoch's whole batches, whatever came before it."""
        ...

    def reader(
        self, chosen: Int[np.ndarray, "steps part"]
    ) -> Callable[[int, Float[np.ndarray, "part draws"] | None], tuple[np.ndarray, np.ndarray]]:
        """``(step, draws) -> (images, labels)``; without draws, images to test with."""
        ...


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
    source: Source,
    *,
    batch_size: int,
    rows: slice,
    seed: int,
    first_step: int,
    num_steps: int,
) -> Iterator[Batch]:
    """The batches of steps, from any step on: a restart draws what an unbroken run would have.

    Args:
      source: of the examples.
      batch_size: over all processes.
      rows: of each batch, what is this process's.
      seed: of the order, and of what the source draws for each example.
      first_step: the step of the first batch.
      num_steps: the step after the last.

    Yields:
      Batches, the next ones gathered meanwhile by another thread.
    """
    in_epoch = steps_per_epoch(source.num_examples, batch_size)
    read, epoch_of_reader = None, None

    def gather(step: int) -> Batch:
        nonlocal read, epoch_of_reader
        epoch, place = divmod(step, in_epoch)
        if epoch != epoch_of_reader:
            order = source.order(seed, epoch, batch_size).reshape(in_epoch, batch_size)
            read, epoch_of_reader = source.reader(order[:, rows]), epoch
        draws = None
        if source.num_draws:
            rng = np.random.default_rng((seed, step, _DRAWS_STREAM))
            draws = rng.random((batch_size, source.num_draws))[rows]
        images, labels = read(place, draws)
        return Batch(images, labels, np.ones(len(labels), bool))

    yield from _ahead(gather, range(first_step, num_steps))


def evaluation_batches(source: Source, *, batch_size: int, rows: slice) -> Iterator[Batch]:
    """All examples in stored order; the last batch is filled up with the first examples again.

    Args:
      source: of the examples.
      batch_size: over all processes.
      rows: of each batch, what is this process's.

    Yields:
      Batches.
    """
    count = source.num_examples
    num_steps = -(-count // batch_size)
    places = np.arange(num_steps * batch_size).reshape(num_steps, batch_size)[:, rows]
    read = source.reader(places % count)

    def gather(step: int) -> Batch:
        return Batch(*read(step, None), places[step] < count)

    yield from _ahead(gather, range(num_steps))


def _ahead(gather, steps: range) -> Iterator[Batch]:
    with ThreadPoolExecutor(1) as worker:
        submitted = (worker.submit(gather, step) for step in steps)
        waiting = deque(islice(submitted, _NUM_AHEAD))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(islice(submitted, 1))
