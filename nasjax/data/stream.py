"""Examples that do not fit into memory, or of which every epoch cuts out other parts.

An epoch's order is known beforehand, whatever is read when: chunks of neighbouring examples in a
random order, dealt out to lanes of which every batch takes an equal share, and shuffled within
windows of a lane. So a batch mixes examples of many places, few chunks are in memory at a time, a
restart begins with the chunks of its own step, and processes whose rows are whole lanes read only
those.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int, UInt8

from nasjax.data import crops
from nasjax.errors import InputError, first_line

NUM_LANES = 8
"""Lanes of an epoch, or fewer: what divides the batch."""

WINDOW = 1024
"""Examples of a lane that are shuffled among each other."""

READ_AHEAD = 4096
"""Examples whose chunks are read before they are needed."""

_NUM_READERS = 4

Stored = list[bytes] | UInt8[np.ndarray, "chunk height width channels"]


class Records(Protocol):
    """Stored examples, read a chunk at a time.

    Attributes:
      num_classes: how many classes there are.
      channels: 1 or 3.
      source: where they come from, in words.
      bounds: ``[chunks + 1]``: chunk ``i`` is examples ``bounds[i]`` to ``bounds[i + 1]``.
    """

    num_classes: int
    channels: int
    source: str
    bounds: Int[np.ndarray, " bounds"]

    def read(self, chunk: int) -> tuple[Stored, Int[np.ndarray, " chunk"]]:
        """Images, encoded or as pixels, and labels; called by several threads."""
        ...


class ArrayRecords:
    """Images in memory as records, an example a chunk, so that orders are uniform.

    Attributes: as `Records`.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, num_classes: int, source: str):
        """Takes ``[examples, height, width, channels]`` bytes and ``[examples]`` labels.

        Raises:
          InputError: if images are no bytes in 1 or 3 channels.
        """
        if images.dtype != np.uint8 or images.shape[-1] not in (1, 3):
            raise InputError(
                f"{source}: images that are cut and resized must be bytes in 1 or 3 channels, got "
                f"{images.dtype} in {images.shape[-1]}. Store them with `.astype('uint8')`."
            )
        self._images, self._labels = images, labels.astype(np.int32)
        self.num_classes, self.channels, self.source = num_classes, images.shape[-1], source
        self.bounds = np.arange(len(labels) + 1)

    def read(self, chunk: int):
        """An example."""
        return self._images[chunk : chunk + 1], self._labels[chunk : chunk + 1]


def lanes_order(
    seed: int, epoch: int, bounds: Int[np.ndarray, " bounds"], batch_size: int
) -> Int[np.ndarray, " examples"]:
    """The order in which an epoch goes through the examples, whole batches of it.

    Args:
      seed: of the order.
      epoch: from 0; each has an order of its own.
      bounds: of the chunks.
      batch_size: over all processes.

    Returns:
      Places of examples, none of them twice: as many as whole batches hold.
    """
    rng = np.random.default_rng((seed, epoch))
    chunks = rng.permutation(len(bounds) - 1)
    flat = np.concatenate([np.arange(bounds[chunk], bounds[chunk + 1]) for chunk in chunks])
    flat = np.roll(flat, rng.integers(len(flat)))  # what is left out is anywhere in a chunk
    num_lanes = math.gcd(batch_size, NUM_LANES)
    num_steps = len(flat) // batch_size
    lanes = flat[: num_steps * batch_size].reshape(num_lanes, -1)
    for number, lane in enumerate(lanes):
        # Windows begin elsewhere in every lane, so that chunks are asked for one by one.
        first = WINDOW * (number + 1) // num_lanes
        for window in np.split(lane, np.arange(first, len(lane), WINDOW)):
            rng.shuffle(window)
    return lanes.reshape(num_lanes, num_steps, -1).swapaxes(0, 1).ravel()


class Stream:
    """Labelled images, read and cut out while they are trained with.

    Attributes:
      num_examples: how many there are.
      num_classes: how many classes there are.
      image_shape: ``(size, size, channels)`` of what is given.
      num_draws: uniform numbers that an example of a training batch takes.
      source: where they come from, in words.
    """

    def __init__(self, where: str, records: Records, *, image_size: int, min_area: float | None):
        """Describes the stream; nothing is read yet.

        Args:
          where: the function and data set, for the messages.
          records: what is stored.
          image_size: height and width in pixels of what is given.
          min_area: least part of an image's area that a random crop takes; None stretches whole
            images, in testing as in training.
        """
        self._where, self._records, self._size = where, records, image_size
        self._min_area = min_area
        self.num_examples = int(records.bounds[-1])
        self.num_classes, self.source = records.num_classes, records.source
        self.image_shape = (image_size, image_size, records.channels)
        self.num_draws = 0 if min_area is None else crops.NUM_DRAWS
        self._readers = ThreadPoolExecutor(_NUM_READERS)
        self._cutters = ThreadPoolExecutor(os.cpu_count())

    @property
    def how(self) -> str:
        """What is done to an image, in words."""
        size = f"{self._size}x{self._size}"
        if self._min_area is None:
            return f"bilinear, antialiased (Pillow) -> {size}"
        return (
            f"random crops of {self._min_area:g} to 1 of the area, tested with the middle; "
            f"bilinear, antialiased (Pillow) -> {size}"
        )

    def order(self, seed: int, epoch: int, batch_size: int) -> Int[np.ndarray, " examples"]:
        """As `lanes_order`."""
        return lanes_order(seed, epoch, self._records.bounds, batch_size)

    def reader(
        self, chosen: Int[np.ndarray, "steps part"]
    ) -> Callable[[int, Float[np.ndarray, "part draws"] | None], tuple[np.ndarray, np.ndarray]]:
        """Reads what steps need, in their order, and what follows meanwhile.

        Args:
          chosen: places of the examples of each step.

        Returns:
          ``(step, draws) -> (images, labels)`` of a step, any one first and then in order:
          ``[part, size, size, channels]`` bytes and ``[part]`` int32. Without draws, images are
          those to test with.

        Raises:
          InputError: (of the function) if files or images are damaged.
        """
        chunk_of = np.searchsorted(self._records.bounds, chosen, side="right") - 1
        schedule = _Schedule(self._records, self._readers, chunk_of)

        def read(step: int, draws: np.ndarray | None):
            chunks = schedule.chunks_of(step)
            stored, labels = [], np.empty(chosen.shape[1], np.int32)
            for row, (place, chunk) in enumerate(zip(chosen[step], chunk_of[step], strict=True)):
                images, chunk_labels = chunks[chunk]
                inside = place - self._records.bounds[chunk]
                stored.append(images[inside])
                labels[row] = chunk_labels[inside]
            rows = [None] * len(stored) if draws is None else draws
            images = list(self._cutters.map(self._cut, chosen[step], stored, rows))
            return np.stack(images), labels

        return read

    def first(self, count: int) -> tuple[UInt8[np.ndarray, "..."], Int[np.ndarray, " count"]]:
        """The first examples in stored order, as they are tested with, in memory."""
        images = np.empty((count, *self.image_shape), np.uint8)
        labels = np.empty(count, np.int32)
        for start in range(0, count, WINDOW):
            part = np.arange(start, min(start + WINDOW, count))
            images[part], labels[part] = self.reader(part[None])(0, None)
        return images, labels

    def _cut(self, place, stored, draws):
        try:
            image = crops.decoded(stored, self.image_shape[-1])
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(
                f"{self._where}: image {place} of {self.source} must be readable, got "
                f"{first_line(error)}. Prepare the data again."
            ) from error
        if self._min_area is None:
            return crops.resized(image, self._size)
        if draws is None:
            return crops.centre_crop(image, size=self._size)
        return crops.random_crop(image, draws, min_area=self._min_area, size=self._size)


class _Schedule:
    """The chunks that steps need: read ahead of them, and dropped after their last."""

    def __init__(self, records: Records, readers: ThreadPoolExecutor, chunk_of: np.ndarray):
        self._records, self._readers = records, readers
        steps = np.broadcast_to(np.arange(len(chunk_of))[:, None], chunk_of.shape)
        self._needed = [np.unique(chunks) for chunks in chunk_of]
        self._last = np.full(len(records.bounds) - 1, -1)
        np.maximum.at(self._last, chunk_of.ravel(), steps.ravel())
        self._steps_ahead = max(1, READ_AHEAD // chunk_of.shape[1])
        self._held: dict[int, Future] = {}
        self._next_step = None

    def chunks_of(self, step: int) -> dict[int, tuple]:
        if self._next_step is None:
            self._next_step = step
        stop = min(step + self._steps_ahead + 1, len(self._needed))
        for ahead in range(self._next_step, stop):
            for chunk in self._needed[ahead]:
                if chunk not in self._held:
                    self._held[chunk] = self._readers.submit(self._records.read, int(chunk))
        self._next_step = max(self._next_step, stop)
        found = {chunk: self._held[chunk].result() for chunk in self._needed[step]}
        for chunk in self._needed[step]:
            if self._last[chunk] <= step:
                del self._held[chunk]
        return found
