"""What a data set is, and what its arrays must satisfy before anything is done to them."""

import hashlib
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from nasjax.errors import InputError

MAX_ARRAY_BYTES = 4 * 2**30
"""No array larger than this is held in memory; a larger one is refused before it is read."""

MAX_CLASSES = 100_000
"""Labels at or above this number are taken for a mistake (an identifier, a pixel)."""


class Dataset(NamedTuple):
    """Labelled images, ready for a network.

    Attributes:
      name: the data set as it was asked for, for example ``"npz:foo.npz"``.
      images: ``[batch, height, width, channels]``, float32, standardised: every channel has mean
        0 and standard deviation 1 over this set (its pixels and examples). The data set
        ``random`` is left as drawn, which is so in expectation.
      labels: ``[batch]``, int32, in ``[0, num_classes)``.
      num_classes: how many classes there are; not every one need occur.
      provenance: where the arrays came from and what was done to them, for the record of a run:
        ``source``, ``sha256`` of the raw arrays used, ``resize``, ``channels``,
        ``standardisation``, ``mean_0``, ``std_0`` and so on. JSON can hold it.
    """

    name: str
    images: Float[np.ndarray, "batch height width channels"]
    labels: Int[np.ndarray, " batch"]
    num_classes: int
    provenance: dict[str, str | int | float]


class RawData(NamedTuple):
    """Images and labels as a source holds them, checked by `check_examples`.

    Attributes:
      images: ``[batch, height, width, channels]``, uint8 or floating point.
      labels: ``[batch]``, integers.
      num_classes: number of classes by the source's own account.
      source: where the arrays came from, in words.
    """

    images: np.ndarray
    labels: np.ndarray
    num_classes: int
    source: str


def check_count(where: str, name: str, value: object, *, minimum: int = 1) -> int:
    """A whole number that must be at least ``minimum``, known when a program is traced.

    Args:
      where: the function that was given the number, for the message.
      name: the argument's name.
      value: what was given.
      minimum: the least value allowed.

    Returns:
      ``value`` as an int.

    Raises:
      InputError: if it is no whole number, a traced value, or too small.
    """
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:  # JAX's error for a traced value is a TypeError too
        raise InputError(
            f"{where}: `{name}` must be a whole number known before tracing, got "
            f"{repr(value).splitlines()[0][:100]}. Pass an int (under `jit`, a static argument)."
        ) from error
    if isinstance(value, bool) or count < minimum:
        raise InputError(
            f"{where}: `{name}` must be at least {minimum}, got {value!r}. Pass a larger number."
        )
    return count


def check_key(where: str, key: object, purpose: str) -> None:
    """Checks that a random key was given where one is needed.

    Args:
      where: the function that needs the key.
      key: what was given.
      purpose: what is drawn from it.

    Raises:
      InputError: unless ``key`` is one typed key, as `jax.random.key` makes it.
    """
    is_key = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_key or key.shape != ():
        got = f"{key.dtype}{list(key.shape)}" if isinstance(key, jax.Array) else repr(key)
        raise InputError(
            f"{where}: `key` must be one random key, from which {purpose} are drawn, got {got}. "
            "Pass `key=jax.random.key(seed)`."
        )


def check_bytes(where: str, what: str, shape: Sequence[int], itemsize: int) -> None:
    """Refuses an array that would be too large, before it is allocated.

    Args:
      where: the function that would hold the array.
      what: the array, in words.
      shape: its declared shape.
      itemsize: bytes per element.

    Raises:
      InputError: if it exceeds `MAX_ARRAY_BYTES`.
    """
    num_bytes = itemsize
    for length in shape:
        num_bytes *= int(length)
    if num_bytes > MAX_ARRAY_BYTES:
        raise InputError(
            f"{where}: {what} must hold at most {MAX_ARRAY_BYTES / 2**30:g} GiB, got "
            f"{num_bytes / 2**30:.4g} GiB (shape {tuple(shape)}). Use fewer or smaller images."
        )


def check_dtypes(where: str, images_dtype: np.dtype, labels_dtype: np.dtype) -> None:
    """Checks the types of raw arrays; their headers are enough, so no object is ever unpickled.

    Args:
      where: the function and data set, for the message.
      images_dtype: type of the images.
      labels_dtype: type of the labels.

    Raises:
      InputError: unless images are uint8 or real floating point and labels are integers.
    """
    if images_dtype != np.uint8 and images_dtype.kind != "f":
        raise InputError(
            f"{where}: images must be uint8 or floating point, got {images_dtype}. "
            "Store them with `.astype('uint8')` or `.astype('float32')`."
        )
    if labels_dtype.kind not in "iu":
        raise InputError(
            f"{where}: labels must be integers, got {labels_dtype}. "
            "Store class numbers 0, 1, 2, ... with `.astype('int32')`."
        )


def check_examples(
    where: str, images: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Checks raw arrays from outside.

    Args:
      where: the function and data set, for the message.
      images: should be ``[batch, height, width]`` or ``[batch, height, width, channels]``.
      labels: should be ``[batch]``.

    Returns:
      The images with a channel axis, and the labels.

    Raises:
      InputError: for a wrong type, rank or length, no data, values that are not finite as
        float32, or labels that are no class numbers.
    """
    check_dtypes(where, images.dtype, labels.dtype)
    if images.ndim not in (3, 4):
        raise InputError(
            f"{where}: images must be [n, height, width] or [n, height, width, channels], got "
            f"shape {images.shape}. Reshape them."
        )
    if labels.ndim != 1:
        raise InputError(
            f"{where}: labels must be [n], one class number per image, got shape {labels.shape}. "
            "Flatten them, or take the argmax of one-hot rows."
        )
    if images.size == 0 or labels.size == 0:
        raise InputError(
            f"{where}: there must be at least one image and one label, got images {images.shape} "
            f"and labels {labels.shape}. Use a set that is not empty."
        )
    if len(images) != len(labels):
        raise InputError(
            f"{where}: there must be one label per image, got {len(images)} images and "
            f"{len(labels)} labels. Make the lengths equal."
        )
    if images.dtype.kind == "f":
        for start in range(0, len(images), 1024):
            with np.errstate(over="ignore"):
                part = images[start : start + 1024].astype(np.float32)
            if not np.isfinite(part).all():
                raise InputError(
                    f"{where}: images must be finite in float32, got NaN, infinity or a value "
                    f"beyond {np.finfo(np.float32).max:.3g} among images {start} to "
                    f"{start + len(part) - 1}. Remove or repair them."
                )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= MAX_CLASSES:
        raise InputError(
            f"{where}: labels must be class numbers from 0 to {MAX_CLASSES - 1}, got {low} to "
            f"{high}. Renumber the classes from 0."
        )
    return images if images.ndim == 4 else images[..., None], labels


def arrays_sha256(*arrays: np.ndarray) -> str:
    """SHA-256 over the type, shape and bytes (row-major) of some arrays.

    Args:
      *arrays: any number of arrays, in this order.

    Returns:
      64 hexadecimal digits.

    Example:
      >>> arrays_sha256(np.zeros(2, np.uint8))[:8]
      '11170b97'
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
