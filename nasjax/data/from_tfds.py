"""Data sets of the TensorFlow Datasets catalogue; TensorFlow is imported only when one is asked."""

import difflib
import logging
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np

from nasjax.data.base import RawData, check_bytes, check_examples, first_line
from nasjax.errors import InputError

_LOGGER = logging.getLogger(__name__)
_READ_BATCH = 256
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
            f"{where}: the name must be in the TensorFlow Datasets catalogue, got {name!r}. {hint}"
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


def _held_split(splits: Collection[str]) -> str:
    """What a data set with these splits is tested with."""
    return "validation" if "validation" in splits and "test" not in splits else "test"


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
      split: its name; ``"test"`` is ``"validation"`` where the data set has no test split.

    Returns:
      The raw data.

    Raises:
      InputError: if TensorFlow is missing, the name is unknown, the features are others, there is
        no network for a download, or the data are beyond 4 GiB.
    """
    tf, tfds = _import_tfds(where)
    logging.getLogger("absl").addFilter(_is_error)
    builder = _find_builder(where, tfds, name)
    features = builder.info.features
    features = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    image, label = features.get("image"), features.get("label")
    is_usable = isinstance(image, tfds.features.Image) and isinstance(
        label, tfds.features.ClassLabel
    )
    if not is_usable or None in image.shape:
        held = ", ".join(f"{key} {feature.shape}" for key, feature in features.items())
        raise InputError(
            f"{where}: there must be a feature 'image' of one fixed size and a class feature "
            f"'label', got {held or 'none'}. Convert it to an npz archive and use npz:PATH."
        )
    _prepare(where, builder, download)
    if split == "test":
        split = _held_split(builder.info.splits)
    images, labels, num_read = [], [], 0
    image_bytes = np.dtype(image.np_dtype).itemsize
    try:
        examples = builder.as_dataset(split=split, shuffle_files=False)
        if num_examples is not None:
            examples = examples.take(num_examples)
        examples = examples.map(lambda example: (example["image"], example["label"]))
        for image_batch, label_batch in tfds.as_numpy(examples.batch(_READ_BATCH)):
            num_read += len(image_batch)
            check_bytes(where, "the images", (num_read, *image.shape), image_bytes)
            images.append(image_batch)
            labels.append(label_batch)
    except InputError:
        raise
    except (OSError, ValueError, tf.errors.OpError) as error:
        # ValueError: no such split. OpError: damaged files.
        raise InputError(
            f"{where}: the split {split!r} must be readable, got {type(error).__name__}: "
            f"{first_line(error)}. Prepare the data again with `tfds build`."
        ) from error
    if not images:
        raise InputError(
            f"{where}: the split {split!r} must hold examples, got none. Prepare the data again."
        )
    images, labels = check_examples(where, np.concatenate(images), np.concatenate(labels))
    source = f"TensorFlow Datasets {builder.info.full_name}, split {split}"
    return RawData(images, labels, int(label.num_classes), source)
