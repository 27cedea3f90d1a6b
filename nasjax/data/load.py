"""From the name of a data set to arrays that a network can take, with their history."""

import logging

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from nasjax.data import from_tfds, local
from nasjax.data.base import (
    MAX_CLASSES,
    Dataset,
    RawData,
    arrays_sha256,
    check_bytes,
    check_count,
    check_key,
)
from nasjax.data.images import to_network_input
from nasjax.data.sampling import random_batch, random_labels
from nasjax.data.stream import Stream
from nasjax.errors import InputError, unknown_name

_LOGGER = logging.getLogger(__name__)

DATASETS: dict[str, str] = {
    "digits": "digits: scikit-learn's 1,797 grey 8x8 handwritten digits, 10 classes",
    "fashion_mnist": "fashion_mnist: 60,000 grey 28x28 pictures of clothes, 10 classes; from "
    "Debian's dataset-fashion-mnist, the folder NASJAX_FASHION_MNIST, or TensorFlow Datasets",
    "npz": "npz:PATH: arrays x (images) and y (labels) of a NumPy archive; other names as "
    "npz:PATH#images=KEY,labels=KEY",
    "random": "random: N(0, 1) pixels and uniform labels, drawn from the key",
    "tfds": "tfds:NAME: the train split of a TensorFlow Datasets image classification set",
}
"""What `load_data` knows: the name, and one line on how it is written and what it is."""

LABELS = ("true", "random")
"""The choices of `load_data` for labels."""

RANDOM_NUM_EXAMPLES = 1024
"""Size of the data set ``random`` if none is asked."""

RANDOM_NUM_CLASSES = 10
"""Classes of the data set ``random`` if no number is asked."""


def load_data(
    spec: str,
    *,
    image_size: int = 32,
    channels: int = 3,
    labels: str = "true",
    num_examples: int | None = None,
    key: PRNGKeyArray | None = None,
    num_classes: int | None = None,
    download: bool = True,
) -> Dataset:
    """Loads labelled images, brings them to one shape and standardises them.

    Stored images are made grey, resized, standardised and repeated over channels as
    `to_network_input` says; of images of many sizes the middle is taken, a shorter side of
    ``256 / 224`` cut to 1. What was done is logged (level INFO) and kept in ``provenance``.

    Args:
      spec: one of `DATASETS`: ``random``, ``digits``, ``fashion_mnist``, ``npz:PATH``,
        ``npz:PATH#images=KEY,labels=KEY`` or ``tfds:NAME``.
      image_size: height and width of the images in pixels.
      channels: channels of the images. Grey is repeated, 3 channels become 1 by luminance, and
        nothing else is changed.
      labels: ``"true"`` for the stored labels; ``"random"`` for labels uniform over the classes
        and independent of the images.
      num_examples: take only so many examples, the first ones in stored order; None takes all,
        or 1024 of ``random``.
      key: random key; needed for ``random`` and for random labels, else unused.
      num_classes: number of classes; None takes the source's own: its catalogue, the greatest
        label + 1 (``npz``), or 10 (``random``).
      download: whether TensorFlow Datasets may download what is not there.

    Returns:
      The data set, in memory.

    Raises:
      InputError: if the data cannot be had, are no labelled images, hold fewer than two classes
        or values that are not finite, or exceed 4 GiB; the message is one line.

    Example:
      >>> data = load_data("digits", image_size=8, channels=1, num_examples=100)
      >>> data.images.shape, data.num_classes, data.provenance["resize"]
      ((100, 8, 8, 1), 10, 'none')
    """
    where = f"load_data({spec!r})"
    image_size = check_count(where, "image_size", image_size)
    channels = check_count(where, "channels", channels)
    if num_examples is not None:
        num_examples = check_count(where, "num_examples", num_examples)
    if num_classes is not None:
        num_classes = check_count(where, "num_classes", num_classes, minimum=2)
        if num_classes > MAX_CLASSES:
            raise InputError(
                f"{where}: `num_classes` must be at most {MAX_CLASSES}, got {num_classes}. "
                "Pass the number of classes."
            )
    if labels not in LABELS:
        raise unknown_name(where, "choice of labels", str(labels), LABELS)
    source, target = parse_spec("load_data", spec)
    is_random = source == "random"
    if is_random or labels == "random":
        check_key(where, key, "images and labels" if is_random else "labels")
    try:
        if is_random:
            dataset = _random_dataset(where, key, image_size, channels, num_examples, num_classes)
        else:
            if source == "tfds" and from_tfds.has_many_sizes(where, target):
                raw = _read_middles(where, target, image_size, num_examples, download)
            else:
                raw = read_split(
                    where, source, target, num_examples=num_examples, download=download
                )
                raw = _take(where, raw, num_examples)
            dataset = _to_dataset(where, spec, raw, image_size, channels, labels, key, num_classes)
    except MemoryError as error:
        raise InputError(
            f"{where}: the data must fit into memory, got an allocation that failed. "
            "Pass a smaller `num_examples` or `image_size`."
        ) from error
    _LOGGER.info("%s", _describe(dataset))
    return dataset


def parse_spec(where: str, spec: object) -> tuple[str, str]:
    """The name in `DATASETS` and what follows its colon.

    Raises:
      InputError: if it is no such name, or what follows does not fit it.
    """
    if not isinstance(spec, str):
        raise InputError(
            f"{where}: `spec` must be a string, got {type(spec).__name__}. "
            f"Pass one of {', '.join(DATASETS)}."
        )
    source, mark, target = spec.partition(":")
    if source not in DATASETS:
        unknown = unknown_name(where, "data set", source or spec, DATASETS)
        raise InputError(f"{unknown} A file is written npz:PATH, a catalogue's set tfds:NAME.")
    if source in ("npz", "tfds"):
        if not target:
            raise InputError(
                f"{where}: {'a path' if source == 'npz' else 'a name'} must follow "
                f"'{source}:', got {spec!r}. Write {DATASETS[source]}."
            )
    elif mark:
        raise InputError(f"{where}: nothing may follow {source!r}, got {spec!r}. Write {source}.")
    return source, target


def read_split(
    where: str,
    source: str,
    target: str,
    *,
    split: str = "train",
    num_examples: int | None = None,
    download: bool = True,
) -> RawData:
    """Raw images and labels of a source that has them stored.

    Args:
      where: the function and data set, for the messages.
      source: a key of `DATASETS` but ``random``; of ``digits`` and ``npz`` there is one split.
      target: what follows its colon.
      split: ``"train"`` or ``"test"``.
      num_examples: as many may do, where reading all costs more.
      download: whether TensorFlow Datasets may download.

    Returns:
      The raw data.

    Raises:
      InputError: if they cannot be had.
    """
    if source == "digits":
        return local.read_digits(where)
    if source == "npz":
        return local.read_npz(where, target)
    if source == "tfds":
        return from_tfds.read_tfds(
            where, target, num_examples=num_examples, download=download, split=split
        )
    folder = local.find_fashion_mnist()
    if folder is not None:
        return local.read_fashion_mnist(where, folder, split=split)
    try:
        return from_tfds.read_tfds(
            where, "fashion_mnist", num_examples=num_examples, download=download, split=split
        )
    except InputError as error:
        raise InputError(
            f"{error} For files instead: `apt-get install dataset-fashion-mnist`, or name their "
            f"folder in {local.FASHION_MNIST_VARIABLE}."
        ) from error


def _read_middles(where, name, image_size, num_examples, download) -> RawData:
    """Images of many sizes as a network is tested with them."""
    records = from_tfds.TfdsRecords(where, name, split="train", download=download)
    stream = Stream(where, records, image_size=image_size, min_area=1.0)
    count = stream.num_examples if num_examples is None else num_examples
    if count > stream.num_examples:
        raise _too_many(where, stream.num_examples, count)
    check_bytes(where, "the images", (count, *stream.image_shape), 1)
    source = f"{stream.source}, the middle of each image"
    return RawData(*stream.first(count), stream.num_classes, source)


def _too_many(where: str, num_stored: int, num_asked: int) -> InputError:
    return InputError(
        f"{where}: `num_examples` must be at most the {num_stored} that are stored, got "
        f"{num_asked}. Pass a smaller number, or none for all."
    )


def _take(where: str, raw: RawData, num_examples: int | None) -> RawData:
    """The first examples; never fewer than asked."""
    num_stored = len(raw.images)
    if num_examples is None or num_examples == num_stored:
        return raw
    if num_examples > num_stored:
        raise _too_many(where, num_stored, num_examples)
    return raw._replace(images=raw.images[:num_examples], labels=raw.labels[:num_examples])


def _to_dataset(
    where: str,
    spec: str,
    raw: RawData,
    image_size: int,
    channels: int,
    labels: str,
    key: PRNGKeyArray | None,
    num_classes: int | None,
) -> Dataset:
    num_classes = raw.num_classes if num_classes is None else num_classes
    provenance = {"source": raw.source, "sha256": arrays_sha256(raw.images, raw.labels)}
    if labels == "random":
        if num_classes < 2:
            raise InputError(
                f"{where}: random labels need at least 2 classes, got {num_classes} in the data. "
                "Pass `num_classes`."
            )
        provenance |= {"labels": "random, uniform", "key": _key_words(key)}
        chosen = np.asarray(random_labels(key, len(raw.images), num_classes))
    else:
        provenance["labels"] = "true"
        chosen = raw.labels.astype(np.int32)
        if num_classes <= chosen.max():
            raise InputError(
                f"{where}: `num_classes` must exceed the greatest label, {chosen.max()}, got "
                f"{num_classes}. Pass at least {chosen.max() + 1}, or none."
            )
        if len(np.unique(chosen)) < 2:
            raise InputError(
                f"{where}: the labels must hold at least 2 classes, got only class {chosen[0]} in "
                f"{len(chosen)} examples. Take more examples, shuffle the file, or pass "
                "`labels='random'` with `num_classes`."
            )
    images, done = to_network_input(
        raw.images, image_size=image_size, channels=channels, where=where
    )
    return _with_counts(Dataset(spec, images, chosen, num_classes, provenance | done))


def _random_dataset(
    where: str,
    key: PRNGKeyArray,
    image_size: int,
    channels: int,
    num_examples: int | None,
    num_classes: int | None,
) -> Dataset:
    num_examples = RANDOM_NUM_EXAMPLES if num_examples is None else num_examples
    num_classes = RANDOM_NUM_CLASSES if num_classes is None else num_classes
    check_bytes(where, "the images", (num_examples, image_size, image_size, channels), 4)
    key_words = _key_words(key)
    images, labels = jax.device_get(
        random_batch(key, num_examples, image_size, channels, num_classes)
    )
    provenance = {
        "source": "drawn: N(0, 1) pixels, uniform labels",
        "sha256": arrays_sha256(images, labels),
        "labels": "random, uniform",
        "key": key_words,
        "resize": "none",
        "channels": "none",
        "standardisation": "none: N(0, 1) as drawn",
    }
    return _with_counts(Dataset("random", images, labels, num_classes, provenance))


def _with_counts(dataset: Dataset) -> Dataset:
    counts = {
        "num_examples": len(dataset.labels),
        "num_classes": dataset.num_classes,
        "num_classes_present": len(np.unique(dataset.labels)),
        "image_size": dataset.images.shape[1],
        "num_channels": dataset.images.shape[3],
    }
    return dataset._replace(provenance=dataset.provenance | counts)


def _key_words(key: PRNGKeyArray) -> str:
    """The key in words, enough to make it again."""
    words = np.asarray(jax.random.key_data(key)).ravel()
    return f"{jax.random.key_impl(key)}:{','.join(str(word) for word in words)}"


def _describe(dataset: Dataset) -> str:
    record = dataset.provenance
    return (
        f"{dataset.name}: {record['num_examples']} images from {record['source']}; "
        f"resize {record['resize']}; channels {record['channels']}; standardisation "
        f"{record['standardisation']}; labels {record['labels']}, "
        f"{record['num_classes_present']} of {record['num_classes']} classes present"
    )
