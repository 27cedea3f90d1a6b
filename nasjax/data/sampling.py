"""Batches: drawn from a data set that is held in memory, or made up."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from nasjax.data.base import check_count
from nasjax.errors import InputError


def sample_batch(
    key: PRNGKeyArray,
    images: Shaped[Array, "examples height width channels"],
    labels: Int[Array, " examples"],
    batch_size: int,
) -> tuple[Shaped[Array, "batch height width channels"], Int[Array, " batch"]]:
    """A uniform batch without replacement; every example is as likely as any other.

    It can be jitted with ``batch_size`` static. Pass the arrays as arguments rather than by
    closure, or they become constants of the compiled program.

    Args:
      key: random key.
      images: ``[examples, height, width, channels]``.
      labels: ``[examples]``.
      batch_size: number of examples to draw; static.

    Returns:
      ``x``, ``[batch, height, width, channels]``, and ``y``, ``[batch]``. Cost: one sort of
      ``examples`` random words.

    Raises:
      InputError: when traced, if the batch is empty or larger than the data, or the numbers of
        images and labels differ.

    Example:
      >>> images, labels = jnp.zeros((4, 8, 8, 1)), jnp.arange(4)
      >>> x, y = sample_batch(jax.random.key(0), images, labels, 4)
      >>> sorted(y.tolist())
      [0, 1, 2, 3]
    """
    batch_size = check_count("sample_batch", "batch_size", batch_size)
    num_examples = images.shape[0]
    if labels.shape != (num_examples,):
        raise InputError(
            f"sample_batch: there must be one label per image, got {num_examples} images and "
            f"labels of shape {labels.shape}. Pass arrays of one set."
        )
    if batch_size > num_examples:
        raise InputError(
            f"sample_batch: `batch_size` must be at most the {num_examples} examples there are, "
            f"got {batch_size}, a batch larger than the data. Use a smaller batch or more data."
        )
    chosen = jax.random.choice(key, num_examples, (batch_size,), replace=False)
    return jnp.asarray(images)[chosen], jnp.asarray(labels)[chosen]


def random_batch(
    key: PRNGKeyArray, batch_size: int, image_size: int, channels: int, num_classes: int
) -> tuple[Float[Array, "batch height width channels"], Int[Array, " batch"]]:
    """Made-up data: N(0, 1) pixels and labels uniform over the classes, all independent.

    It can be jitted with everything but ``key`` static.

    Args:
      key: random key.
      batch_size: number of examples.
      image_size: height and width in pixels.
      channels: number of channels.
      num_classes: number of classes.

    Returns:
      ``x``, ``[batch, image_size, image_size, channels]`` float32, and ``y``, ``[batch]`` int32.

    Raises:
      InputError: when traced, if a size is smaller than 1.

    Example:
      >>> x, y = random_batch(jax.random.key(0), 2, 8, 3, 10)
      >>> x.shape, y.dtype
      ((2, 8, 8, 3), dtype('int32'))
    """
    shape = tuple(
        check_count("random_batch", name, size)
        for name, size in (
            ("batch_size", batch_size),
            ("image_size", image_size),
            ("image_size", image_size),
            ("channels", channels),
        )
    )
    num_classes = check_count("random_batch", "num_classes", num_classes)
    image_key, label_key = jax.random.split(key)
    x = jax.random.normal(image_key, shape, jnp.float32)
    return x, random_labels(label_key, shape[0], num_classes)


def random_labels(key: PRNGKeyArray, num_examples: int, num_classes: int) -> Int[Array, " batch"]:
    """Labels uniform over the classes, independent of each other and of any image.

    Args:
      key: random key.
      num_examples: number of labels.
      num_classes: number of classes.

    Returns:
      ``[num_examples]``, int32, in ``[0, num_classes)``.
    """
    return jax.random.randint(key, (num_examples,), 0, num_classes, jnp.int32)
