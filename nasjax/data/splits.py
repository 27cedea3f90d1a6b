"""Data to train and to test with: as stored, in one byte a value where the source has that."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from nasjax.data import base, local
from nasjax.data.base import RawData, arrays_sha256
from nasjax.data.examples import Examples
from nasjax.data.from_tfds import TfdsRecords, fits_into_memory
from nasjax.data.images import channel_moments, resize
from nasjax.data.load import RANDOM_NUM_CLASSES, parse_spec, read_split
from nasjax.data.sampling import random_batch
from nasjax.data.stream import ArrayRecords, Stream
from nasjax.errors import InputError

RANDOM_SIZES = {"train": 1024, "test": 256}
"""Examples of the data set ``random``."""

RANDOM_IMAGE_SIZE = 32
_DIGITS_HELD_OUT = 360
_NPZ_TEST_ARRAYS = ("x_test", "y_test")
_NUM_FOR_MOMENTS = 1024


class Splits(NamedTuple):
    """What a network is trained and tested with.

    Attributes:
      name: as it was asked for.
      train: examples to train with.
      test: examples to test with, none of which is in ``train``.
      num_classes: how many classes there are.
      mean: of each channel over ``train``, in the unit of the images; of a stream over the first
        1,024 examples, as they are tested with.
      std: standard deviation likewise.
      provenance: sources, numbers of examples, ``resize``, and of examples in memory
        ``sha256_train`` and ``sha256_test``; JSON can hold it.
    """

    name: str
    train: Examples | Stream
    test: Examples | Stream
    num_classes: int
    mean: Float[np.ndarray, " channels"]
    std: Float[np.ndarray, " channels"]
    provenance: dict[str, str | int | float]


def load_splits(
    spec: str,
    *,
    test: str | None = None,
    image_size: int | None = None,
    min_area: float | None = None,
    seed: int = 0,
    download: bool = True,
) -> Splits:
    """Loads images to train and to test with, or opens them as streams.

    ``fashion_mnist`` and ``tfds:NAME`` have both parts. Of ``npz:PATH`` the second is ``test``, or
    the arrays ``x_test`` and ``y_test`` of the same file. Of ``digits``, 360 examples drawn with a
    fixed seed are kept for it. Of ``random`` both are drawn.

    Streams are read while they are used (`Stream`): sets of ``tfds:NAME`` whose images have many
    sizes or exceed 4 GiB, and all sets out of which random crops are cut.

    Args:
      spec: one of ``DATASETS``.
      test: another ``npz:PATH`` with the examples to test with; None as above.
      image_size: height and width in pixels; None keeps what is stored. Other sizes are resized as
        ``load_data`` does, and bytes are rounded.
      min_area: least part of an image's area that a random crop to train with takes; tested is
        with the middle, a shorter side of ``256 / 224`` cut to 1. None takes whole images.
      seed: of ``random``.
      download: whether TensorFlow Datasets may download what is not there.

    Returns:
      The splits. Labels and images in memory are checked.

    Raises:
      InputError: if they cannot be had, do not fit each other, or there is nothing to test with.
    """
    where = f"load_splits({spec!r})"
    source, target = parse_spec("load_splits", spec)
    if test is not None and source != "npz":
        raise InputError(
            f"{where}: `test` goes with npz:PATH, as the others have examples to test with, got "
            f"{test!r}. Leave it out."
        )
    if source == "tfds":
        streams = _tfds_streams(where, target, image_size, min_area, download)
        if streams is not None:
            return _streamed(spec, where, *streams)
    if source == "random":
        train, held = (_random(split, image_size, seed) for split in ("train", "test"))
    elif source == "npz":
        train, held = _read_npz(where, target, test)
    elif source == "digits":
        train, held = _hold_digits_out(read_split(where, source, target))
    else:
        train, held = (
            read_split(where, source, target, split=split, download=download)
            for split in ("train", "test")
        )
    if train.images.shape[3] != held.images.shape[3]:
        raise InputError(
            f"{where}: images to train and to test with must have the same channels, got "
            f"{train.images.shape[3]} and {held.images.shape[3]}. Use parts of one data set."
        )
    num_classes = max(train.num_classes, held.num_classes)
    if min_area is not None:
        size = image_size or _side(where, train.images)
        records = (ArrayRecords(*raw) for raw in (train, held))
        opened = (Stream(where, kind, image_size=size, min_area=min_area) for kind in records)
        return _streamed(spec, where, *opened)
    if image_size is None and train.images.shape[1:3] != held.images.shape[1:3]:
        raise InputError(
            f"{where}: images to train and to test with must have one size, got "
            f"{train.images.shape[1:3]} and {held.images.shape[1:3]}. Give `image_size`, on the "
            "command line --image-size."
        )
    size = image_size or _side(where, train.images)
    (first, done), (second, _) = (_resized(raw, size) for raw in (train, held))
    mean, std = channel_moments(first.images, where=where)
    provenance = {
        "train": train.source,
        "test": held.source,
        "sha256_train": arrays_sha256(train.images, train.labels),
        "sha256_test": arrays_sha256(held.images, held.labels),
        "num_train": len(first.labels),
        "num_test": len(second.labels),
        "num_classes": num_classes,
        "resize": done,
    }
    return Splits(spec, first, second, num_classes, mean, std, provenance)


def _tfds_streams(where, name, image_size, min_area, download) -> tuple[Stream, Stream] | None:
    """Streams, or None where the set is better read into memory."""
    if min_area is None and fits_into_memory(where, name, download=download):
        return None
    if image_size is None:
        raise InputError(
            f"{where}: `image_size` must be given for images of many sizes or more than "
            f"{base.MAX_ARRAY_BYTES / 2**30:g} GiB, got none. On the command line, --image-size."
        )
    records = (
        TfdsRecords(where, name, split=split, download=download) for split in ("train", "test")
    )
    return tuple(Stream(where, kind, image_size=image_size, min_area=min_area) for kind in records)


def _streamed(spec: str, where: str, train: Stream, held: Stream) -> Splits:
    count = min(_NUM_FOR_MOMENTS, train.num_examples)
    images, _ = train.first(count)
    mean, std = channel_moments(images, where=where)
    provenance = {
        "train": train.source,
        "test": held.source,
        "num_train": train.num_examples,
        "num_test": held.num_examples,
        "num_classes": max(train.num_classes, held.num_classes),
        "resize": train.how,
    }
    return Splits(spec, train, held, provenance["num_classes"], mean, std, provenance)


def _read_npz(where: str, target: str, test: str | None) -> tuple[RawData, RawData]:
    if test is not None:
        source, other = parse_spec("load_splits", test)
        if source != "npz":
            raise InputError(f"{where}: `test` must be npz:PATH, got {test!r}.")
    else:
        path, _, _ = local.parse_npz_target(where, target)
        held = local.npz_arrays(where, path)
        if not set(_NPZ_TEST_ARRAYS) <= set(held):
            raise InputError(
                f"{where}: there must be examples to test with: the arrays x_test and y_test in "
                f"{str(path)!r}, got {', '.join(held) or 'nothing'}; or name them, as "
                "npz:PATH#images=KEY,labels=KEY (on the command line, --test-data)."
            )
        other = f"{path}#images=x_test,labels=y_test"
    return local.read_npz(where, target), local.read_npz(where, other)


def _hold_digits_out(raw: RawData) -> tuple[RawData, RawData]:
    order = np.random.default_rng(0).permutation(len(raw.labels))
    parts = np.sort(order[_DIGITS_HELD_OUT:]), np.sort(order[:_DIGITS_HELD_OUT])
    names = (f"{raw.source}, all but {_DIGITS_HELD_OUT}", f"{raw.source}, {_DIGITS_HELD_OUT} drawn")
    return tuple(
        RawData(raw.images[part], raw.labels[part], raw.num_classes, name)
        for part, name in zip(parts, names, strict=True)
    )


def _random(split: str, image_size: int | None, seed: int) -> RawData:
    key = jax.random.fold_in(jax.random.key(seed), list(RANDOM_SIZES).index(split))
    size = image_size or RANDOM_IMAGE_SIZE
    images, labels = random_batch(key, RANDOM_SIZES[split], size, 3, RANDOM_NUM_CLASSES)
    source = "drawn: N(0, 1) pixels, uniform labels"
    return RawData(np.asarray(images), np.asarray(labels), RANDOM_NUM_CLASSES, source)


def _side(where: str, images: np.ndarray) -> int:
    height, width = images.shape[1:3]
    if height != width:
        raise InputError(
            f"{where}: images must be [n, height, width, channels] and square, got {height} x "
            f"{width}. Give `image_size`, on the command line --image-size, which stretches them."
        )
    return height


def _resized(raw: RawData, size: int) -> tuple[Examples, str]:
    images, done = raw.images, "none"
    height, width = images.shape[1:3]
    if (height, width) != (size, size):
        done = f"bilinear, antialiased: {height}x{width} -> {size}x{size}"
        resized = resize(images, image_size=size)
        if images.dtype == np.uint8:
            done += ", rounded to bytes"
            resized = np.clip(np.rint(resized), 0, 255).astype(np.uint8)
        images = resized
    if images.dtype != np.uint8:
        images = images.astype(np.float32)
    return Examples(images, raw.labels.astype(np.int32)), done
