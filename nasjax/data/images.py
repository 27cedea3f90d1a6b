"""From images as stored to the input of a network: channels, size, standardisation.

Every step says in words what it did; `to_network_input` gathers the words for the record.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped

from nasjax.data.base import check_bytes
from nasjax.errors import InputError

LUMINANCE_WEIGHTS = (0.299, 0.587, 0.114)
"""Red, green and blue parts of luminance, Rec. ITU-R BT.601."""

CHUNK_BYTES = 32 * 2**20
"""Float32 bytes of input and output that one step of a chunked loop may hold."""

MIN_RELATIVE_STD = 1e-6
"""A channel that varies less than this, relative to its mean, is constant up to rounding."""


def _chunks(num_examples: int, num_floats: int) -> list[slice]:
    """Slices of the batch axis such that ``num_floats`` per example stay in `CHUNK_BYTES`."""
    step = max(1, CHUNK_BYTES // (4 * num_floats))
    return [slice(start, start + step) for start in range(0, num_examples, step)]


def luminance(
    images: Shaped[np.ndarray, "batch height width 3"],
) -> Float[np.ndarray, "batch height width 1"]:
    """Grey images from red, green and blue, in the same unit.

    Args:
      images: ``[batch, height, width, 3]``, uint8 or floating point.

    Returns:
      ``[batch, height, width, 1]``, float32.

    References:
      Recommendation ITU-R BT.601: ``Y = 0.299 R + 0.587 G + 0.114 B``.
    """
    grey = np.empty((*images.shape[:3], 1), np.float32)
    weights = np.asarray(LUMINANCE_WEIGHTS, np.float32)
    for part in _chunks(len(images), images[0].size):
        grey[part, ..., 0] = images[part].astype(np.float32) @ weights
    return grey


@functools.partial(jax.jit, static_argnames="image_size")
def _resize_chunk(images: jax.Array, image_size: int) -> jax.Array:
    shape = (images.shape[0], image_size, image_size, images.shape[3])
    return jax.image.resize(images.astype(jnp.float32), shape, "bilinear", antialias=True)


def resize(
    images: Shaped[np.ndarray, "batch height width channels"], *, image_size: int
) -> Float[np.ndarray, "batch image_size image_size channels"]:
    """Square images by bilinear interpolation, low-pass filtered where they shrink.

    A rectangle is stretched, not cropped. The work is done in chunks of about `CHUNK_BYTES`.

    Args:
      images: ``[batch, height, width, channels]``, uint8 or floating point.
      image_size: height and width of the result in pixels.

    Returns:
      ``[batch, image_size, image_size, channels]``, float32.
    """
    num_channels = images.shape[3]
    resized = np.empty((len(images), image_size, image_size, num_channels), np.float32)
    for part in _chunks(len(images), images[0].size + image_size**2 * num_channels):
        chunk = images[part]
        if chunk.dtype != np.uint8:
            # Here, not in JAX: there float64 and float16 mean different things by configuration.
            chunk = chunk.astype(np.float32)
        resized[part] = jax.device_get(_resize_chunk(chunk, image_size))
    return resized


def standardise(
    images: Shaped[np.ndarray, "batch height width channels"], *, where: str = "standardise"
) -> tuple[Float[np.ndarray, "batch height width channels"], np.ndarray, np.ndarray]:
    """Images whose channels have mean 0 and standard deviation 1 over all pixels and examples.

    Args:
      images: ``[batch, height, width, channels]``, uint8 or floating point.
      where: who asks, for the message.

    Returns:
      The images (float32), and what was taken off and divided by: mean and standard deviation
      (population, not sample) per channel, ``[channels]``, float64, in the unit of ``images``.

    Raises:
      InputError: if a channel is constant (see `MIN_RELATIVE_STD`).
    """
    mean, std = channel_moments(images, where=where)
    standardised = np.empty(images.shape, np.float32)
    for part in _chunks(len(images), images[0].size):
        standardised[part] = (images[part].astype(np.float64) - mean) / std
    return standardised, mean, std


def channel_moments(
    images: Shaped[np.ndarray, "batch height width channels"], *, where: str = "channel_moments"
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (population, not sample) of each channel.

    Args:
      images: ``[batch, height, width, channels]``, uint8 or floating point.
      where: who asks, for the message.

    Returns:
      Both ``[channels]``, float64, in the unit of ``images``.

    Raises:
      InputError: if a channel is constant (see `MIN_RELATIVE_STD`).
    """
    num_values = images[..., 0].size
    parts = _chunks(len(images), images[0].size)
    mean = sum(images[part].sum(axis=(0, 1, 2), dtype=np.float64) for part in parts) / num_values
    total = np.zeros_like(mean)
    for part in parts:
        total += np.square(images[part].astype(np.float64) - mean).sum(axis=(0, 1, 2))
    std = np.sqrt(total / num_values)
    is_constant = std <= MIN_RELATIVE_STD * np.abs(mean)
    if is_constant.any():
        channel = int(np.flatnonzero(is_constant)[0])
        raise InputError(
            f"{where}: every channel of the images must vary over the set, got channel {channel} "
            f"of {len(mean)} constant (mean {mean[channel]:.6g}, standard deviation "
            f"{std[channel]:.3g}). Use images that differ, or drop the channel."
        )
    return mean, std


def to_network_input(
    images: Shaped[np.ndarray, "batch height width channels"],
    *,
    image_size: int,
    channels: int,
    where: str = "to_network_input",
) -> tuple[Float[np.ndarray, "batch height width out_channels"], dict[str, str | float]]:
    """Brings stored images to one shape and standardises them, in this order.

    1. Colour to luminance, if ``channels=1`` is asked of three channels.
    2. `resize`, if the size differs.
    3. `standardise`, always.
    4. Grey repeated, if more channels are asked of one.

    Args:
      images: ``[batch, height, width, channels]``, uint8 or floating point.
      image_size: height and width of the result in pixels.
      channels: number of channels of the result.
      where: who asks, for the messages.

    Returns:
      The images, ``[batch, image_size, image_size, channels]`` float32, and what was done:
      ``resize``, ``channels`` and ``standardisation`` in words, ``mean_0``, ``std_0``, ... in the
      unit of the stored images, one per channel before grey is repeated.

    Raises:
      InputError: for any other change of channels, a constant channel, or a result larger than
        4 GiB.
    """
    num_channels = images.shape[3]
    check_bytes(
        where, "the images", (len(images), image_size, image_size, max(channels, num_channels)), 4
    )
    if num_channels == channels:
        channels_done = "none"
    elif num_channels == 1:
        channels_done = f"grey repeated: 1 -> {channels}"
    elif (num_channels, channels) == (3, 1):
        channels_done = "luminance (BT.601): 3 -> 1"
        images = luminance(images)
    else:
        raise InputError(
            f"{where}: `channels` must be {num_channels}, as stored"
            f"{', or 1 for luminance' if num_channels == 3 else ''}, got {channels}. "
            "Only grey images can be repeated and only 3-channel images made grey."
        )
    height, width = images.shape[1:3]
    resize_done = "none"
    if (height, width) != (image_size, image_size):
        resize_done = f"bilinear, antialiased: {height}x{width} -> {image_size}x{image_size}"
        images = resize(images, image_size=image_size)
    images, mean, std = standardise(images, where=where)
    done = {
        "resize": resize_done,
        "channels": channels_done,
        "standardisation": "per channel over this set, after the resize",
    }
    for channel, (channel_mean, channel_std) in enumerate(zip(mean, std, strict=True)):
        done[f"mean_{channel}"] = float(channel_mean)
        done[f"std_{channel}"] = float(channel_std)
    if images.shape[3] != channels:
        images = np.repeat(images, channels, axis=3)
    return images, done
