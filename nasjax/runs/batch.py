"""The batch that the networks of a run are evaluated on."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nasjax.data import load_data, sample_batch
from nasjax.errors import InputError
from nasjax.types import Key


class Batch(NamedTuple):
    """Examples of a data set, as the networks of a space take them.

    Attributes:
      x: ``[batch, size, size, 3]``; in ``mlp`` ``[batch, 3 size^2]`` of norm 1, as Eigen-NAS has
        it.
      y: ``[batch]`` labels.
      num_classes: of the data set.
      provenance: where it comes from.
    """

    x: jax.Array
    y: jax.Array
    num_classes: int
    provenance: dict[str, Any]


def load_batch(
    space: str,
    data: str,
    batch_size: int,
    *,
    image_size: int,
    option: str,
    data_key: Key,
    batch_key: Key,
) -> Batch:
    """Loads data and draws a batch of them.

    Args:
      space: whose networks take the batch.
      data: what ``data.load_data`` takes.
      batch_size: number of examples.
      image_size: height and width in pixels.
      option: of the command line that gives the size, for the message.
      data_key: for random data.
      batch_key: chooses the examples.

    Returns:
      The batch.

    Raises:
      InputError: if the data cannot be had or are fewer than the batch.
    """
    num_examples = batch_size if data == "random" else None
    dataset = load_data(data, image_size=image_size, num_examples=num_examples, key=data_key)
    if batch_size > len(dataset.images):
        raise InputError(
            f"{option}: must be at most the {len(dataset.images)} images of {data}, got "
            f"{batch_size}. Give a smaller batch or more data."
        )
    x, y = sample_batch(batch_key, dataset.images, dataset.labels, batch_size)
    return Batch(network_inputs(space, x), y, dataset.num_classes, dataset.provenance)


def network_inputs(space: str, x: jax.Array) -> jax.Array:
    """Images as the networks of a space take them: for ``mlp`` flattened, of norm 1."""
    if space != "mlp":
        return x
    x = x.reshape(len(x), -1)
    norms = jnp.linalg.norm(x, axis=1, keepdims=True)
    return x / jnp.where(norms > 0, norms, 1.0)
