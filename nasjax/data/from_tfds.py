"""Data sets of the TensorFlow Datasets catalogue; TensorFlow is imported only when one is asked."""

import difflib
import logging
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from nasjax.data import base
from nasjax.data.base import RawData, check_bytes, check_examples
from nasjax.errors import InputError, first_line

_LOGGER = logging.getLogger(__name__)
_READ_BATCH = 256
_MAX_CHUNK = 2048
_PROBE_SECONDS = 10.0


def _is_error(record: logging.LogRecord) -> bool:
    """TensorFlow Datasets warns of every folder that it does not find; errors here say it once."""
    return record.levelno >= logging.ERROR


def _import_tfds(where: str) -> tuple[ModuleType, ModuleType]:
    try:
        with _without_stderr():
            import tensorflow as tf
            import tensorflow_datasets as tfds

            tf.config.list_physical_devices()
    except ImportError as error:
        raise InputError(
            f"{where}: TensorFlow and tensorflow-datasets must be importable, got "
            f"{first_line(error)}. Run `pip install tensorflow tensorflow-datasets`, or use a "
            "data set that needs neither, such as npz:PATH."
        ) from error
    try:
        # It only reads files here, and would otherwise take the accelerator's memory from JAX.
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        _LOGGER.info("TensorFlow was in use before nasjax; it keeps the devices that it holds.")
    return tf, tfds


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Drops what C++ writes to standard error while TensorFlow starts.

    It tells of accelerators that it does not find, which it is not to use here, before its own
    switch for messages works.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _find_builder(where: str, tfds: ModuleType, name: str):
    try:
        return tfds.builder(name)
    except tfds.core.DatasetNotFoundError as error:
        near = difflib.get_close_matches(name, tfds.list_builders(with_community_datasets=False))
        hint = f"Did you mean 'tfds:{near[0]}'?" if near else "`tfds.list_builders()` lists them."
        raise InputError(
            f"{where}: the name must be in the TensorFlow Datasets catalogue, or of a set prepared "
            f"in $TFDS_DATA_DIR ({os.environ.get('TFDS_DATA_DIR', 'not set')}), got {name!r}. "
            f"{hint}"
        ) from error
    except (AssertionError, ImportError, OSError, ValueError) as error:
        # AssertionError: an unknown version.
        raise InputError(
            f"{where}: {name!r} must be a data set of the TensorFlow Datasets catalogue, written "
            f"NAME, NAME/CONFIG or NAME:VERSION, got {type(error).__name__}: "
            f"{first_line(error)}. Check the name."
        ) from error


def _check_network(where: str, builder) -> None:
    """Fails in seconds where the download itself would retry for minutes."""
    for url in list(builder.url_infos or {})[:1]:
        request = urllib.request.Request(url, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=_PROBE_SECONDS).close()
        except urllib.error.HTTPError:
            return  # someone answered
        except (OSError, ValueError) as error:
            raise InputError(
                f"{where}: the data must be downloaded, which needs the network, got "
                f"{first_line(error)}. Prepare it on a machine with network and set "
                "TFDS_DATA_DIR, or use a data set that is here, such as npz:PATH."
            ) from error


def _prepare(where: str, builder, download: bool) -> None:
    if builder.is_prepared():
        return
    if not download:
        raise InputError(
            f"{where}: the data must be prepared in {str(builder.data_dir)!r} where downloads are "
            "not allowed, got none there. Allow the download, or set TFDS_DATA_DIR."
        )
    try:
        _check_network(where, builder)
        builder.download_and_prepare()
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f"{where}: to prepare these data, every package that TensorFlow Datasets uses for it "
            f"must be importable, got {first_line(error)}. Run `pip install {error.name}`."
        ) from error
    except (AssertionError, OSError, ValueError, NotImplementedError) as error:
        # AssertionError: a data set that must be fetched by hand. requests' errors are OSErrors.
        raise InputError(
            f"{where}: the data must be downloaded and prepared, got {type(error).__name__}: "
            f"{first_line(error)}. Prepare it with `tfds build`, or set TFDS_DATA_DIR to where "
            "it is."
        ) from error


class _Opened(NamedTuple):
    """A data set that is there, of images of three or one channels and classes."""

    tf: ModuleType
    tfds: ModuleType
    builder: Any
    image: Any
    label: Any

    def split_name(self, where: str, split: str) -> str:
        """A split's own name.

        What a data set is tested with is ``test``, or ``validation`` where there is none or where
        the labels of ``test`` are kept secret, as those of ImageNet are.
        """
        names = self.builder.info.splits
        if split != "test" or "validation" not in names:
            return split
        if "test" not in names:
            return "validation"
        with _told_errors(where, self.tf, split):
            first = next(iter(self.tfds.as_numpy(self._examples("test[:1]", self.no_pixels))))
        return "validation" if first["label"] < 0 else "test"

    @property
    def no_pixels(self) -> dict[str, Any]:
        """What leaves images encoded."""
        return {"image": self.tfds.decode.SkipDecoding()}

    def batches(self, split: Any, decoders: dict[str, Any] | None, limit: int | None = None):
        """Images and labels in stored order, some at a time."""
        examples = self._examples(split, decoders)
        if limit is not None:
            examples = examples.take(limit)
        examples = examples.map(lambda example: (example["image"], example["label"]))
        return self.tfds.as_numpy(examples.batch(_READ_BATCH))

    def _examples(self, split, decoders):
        return self.builder.as_dataset(split=split, decoders=decoders, shuffle_files=False)


@contextmanager
def _told_errors(where: str, tf: ModuleType, split: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, tf.errors.OpError) as error:
        # ValueError: no such split. OpError: damaged files.
        raise InputError(
            f"{where}: the split {split!r} must be readable, got {type(error).__name__}: "
            f"{first_line(error)}. Prepare the data again with `tfds build`."
        ) from error


def _describe(where: str, name: str) -> _Opened:
    tf, tfds = _import_tfds(where)
    logging.getLogger("absl").addFilter(_is_error)
    builder = _find_builder(where, tfds, name)
    features = builder.info.features
    features = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    image, label = features.get("image"), features.get("label")
    is_usable = isinstance(image, tfds.features.Image) and isinstance(
        label, tfds.features.ClassLabel
    )
    if not is_usable:
        held = ", ".join(f"{key} {feature.shape}" for key, feature in features.items())
        raise InputError(
            f"{where}: there must be an image feature 'image' and a class feature 'label', got "
            f"{held or 'none'}. Convert it to an npz archive and use npz:PATH."
        )
    return _Opened(tf, tfds, builder, image, label)


def _open(where: str, name: str, *, download: bool) -> _Opened:
    opened = _describe(where, name)
    _prepare(where, opened.builder, download)
    return opened


def has_many_sizes(where: str, name: str) -> bool:
    """Whether the images of a set of the catalogue differ in size.

    Raises:
      InputError: as ``read_tfds``, but for what concerns its files.
    """
    return None in _describe(where, name).image.shape


def fits_into_memory(where: str, name: str, *, download: bool = True) -> bool:
    """Whether a set's images to train with have one size and are at most 4 GiB.

    Args:
      where: the function and data set, for the messages.
      name: as ``read_tfds`` takes it.
      download: whether it may be downloaded if it is not there.

    Raises:
      InputError: as ``read_tfds``.
    """
    opened = _open(where, name, download=download)
    if None in opened.image.shape:
        return False
    splits = opened.builder.info.splits
    count = splits["train"].num_examples if "train" in splits else 0
    num_bytes = count * np.prod(opened.image.shape) * np.dtype(opened.image.np_dtype).itemsize
    return num_bytes <= base.MAX_ARRAY_BYTES


class TfdsRecords:
    """Encoded images of a split, of any size, read in intervals of their stored order.

    Attributes:
      num_classes: by the catalogue.
      channels: 1 or 3.
      source: name, version and split.
      bounds: ``[chunks + 1]``: chunk ``i`` is examples ``bounds[i]`` to ``bounds[i + 1]``, a file
        or a part of one.
    """

    def __init__(self, where: str, name: str, *, split: str, download: bool = True):
        """Opens a split.

        Args:
          where: the function and data set, for the messages.
          name: as ``read_tfds`` takes it.
          split: as there.
          download: whether it may be downloaded if it is not there.

        Raises:
          InputError: as ``read_tfds``, or if the images are not of bytes in 1 or 3 channels.
        """
        self._where = where
        self._opened = _open(where, name, download=download)
        image = self._opened.image
        if image.shape[-1] not in (1, 3) or image.np_dtype != np.uint8:
            raise InputError(
                f"{where}: images must be bytes in 1 or 3 channels, got {image.np_dtype} of shape "
                f"{image.shape}. Convert them to an npz archive and use npz:PATH."
            )
        self.channels = int(image.shape[-1])
        self.num_classes = int(self._opened.label.num_classes)
        self._split = self._opened.split_name(where, split)
        splits = self._opened.builder.info.splits
        if self._split not in splits or not splits[self._split].num_examples:
            raise InputError(
                f"{where}: there must be a split {self._split!r} with examples, got "
                f"{', '.join(splits) or 'none'}. Prepare the data again with `tfds build`."
            )
        info = self._opened.builder.info
        self.source = f"TensorFlow Datasets {info.full_name}, split {self._split}"
        self.bounds = _chunk_bounds(splits[self._split].shard_lengths)

    def read(self, chunk: int) -> tuple[list[bytes], Int[np.ndarray, " chunk"]]:
        """The encoded images and the labels of a chunk. Threads may read at once.

        Raises:
          InputError: if the files are damaged, or a label is no class.
        """
        start, stop = (int(bound) for bound in self.bounds[chunk : chunk + 2])
        part = self._opened.tfds.core.ReadInstruction(self._split, from_=start, to=stop, unit="abs")
        images, labels = [], []
        with _told_errors(self._where, self._opened.tf, self._split):
            for image_batch, label_batch in self._opened.batches(part, self._opened.no_pixels):
                images.extend(image_batch)
                labels.append(label_batch)
        if len(images) != stop - start:
            raise InputError(
                f"{self._where}: the split {self._split!r} must hold the examples {start} to "
                f"{stop - 1}, got {len(images)} of them. Prepare the data again with `tfds build`."
            )
        labels = np.concatenate(labels).astype(np.int32)
        if labels.min() < 0 or labels.max() >= self.num_classes:
            raise InputError(
                f"{self._where}: labels must be class numbers from 0 to {self.num_classes - 1}, "
                f"got {labels.min()} to {labels.max()}. Use a split with labels."
            )
        return images, labels


def _chunk_bounds(file_lengths: list[int]) -> Int[np.ndarray, " bounds"]:
    """Files, those of more than ``_MAX_CHUNK`` examples in equal parts."""
    bounds, start = [np.zeros(1, int)], 0
    for length in file_lengths:
        if length:
            num_parts = -(-length // _MAX_CHUNK)
            bounds.append(start + np.arange(1, num_parts + 1) * length // num_parts)
        start += length
    return np.concatenate(bounds)


def read_tfds(
    where: str,
    name: str,
    *,
    num_examples: int | None = None,
    download: bool = True,
    split: str = "train",
) -> RawData:
    """A split of a data set of the catalogue, in its stored order.

    The data set must have a feature ``image`` of fixed size and a feature ``label`` of classes.
    It is sought under ``TFDS_DATA_DIR``, or ``~/tensorflow_datasets``.

    Args:
      where: the function and data set, for the messages.
      name: ``NAME``, ``NAME/CONFIG`` or ``NAME:VERSION``.
      num_examples: read only so many, the first ones; None reads all.
      download: whether it may be downloaded if it is not there.
      split: its name; ``"test"`` is ``"validation"`` where there is no test split with labels.

    Returns:
      The raw data.

    Raises:
      InputError: if TensorFlow is missing, the name is unknown, the features are others, there is
        no network for a download, or the data are beyond 4 GiB.
    """
    opened = _describe(where, name)
    if None in opened.image.shape:
        raise InputError(
            f"{where}: images must have one fixed size, got {opened.image.shape}. Give the size "
            "that they are brought to."
        )
    _prepare(where, opened.builder, download)
    builder, image, label = opened.builder, opened.image, opened.label
    split = opened.split_name(where, split)
    images, labels, num_read = [], [], 0
    image_bytes = np.dtype(image.np_dtype).itemsize
    with _told_errors(where, opened.tf, split):
        for image_batch, label_batch in opened.batches(split, None, num_examples):
            num_read += len(image_batch)
            check_bytes(where, "the images", (num_read, *image.shape), image_bytes)
            images.append(image_batch)
            labels.append(label_batch)
    if not images:
        raise InputError(
            f"{where}: the split {split!r} must hold examples, got none. Prepare the data again."
        )
    images, labels = check_examples(where, np.concatenate(images), np.concatenate(labels))
    source = f"TensorFlow Datasets {builder.info.full_name}, split {split}"
    return RawData(images, labels, int(label.num_classes), source)
