"""Augmentation on the device: each example by its own key, whatever device it is on."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from nasjax.errors import InputError
from nasjax.training.jitter import NUM_DRAWS, Jitter, jittered
from nasjax.types import Images


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What is done to an image in training, in this order.

    Attributes:
      min_area: least part of an image's area that is cut out at random and resized, before it goes
        to the device (`data.load_splits`); None takes the whole image.
      pad: zero pixels around the image, out of which one of its size is cut at a uniform place.
      is_flipped: whether it is mirrored, left to right, with probability one half.
      cutout: side in pixels of a square that is set to the channels' means, centred on a uniform
        pixel and cut off at the border (DeVries and Taylor, 2017); 0 for none.
      jitter: how far colours are changed, after the image was mirrored.

    Raises:
      InputError: if a number is out of its range.
    """

    pad: int = 0
    is_flipped: bool = False
    cutout: int = 0
    min_area: float | None = None
    jitter: Jitter = Jitter()

    def __post_init__(self):
        """Checks the numbers."""
        for name in ("pad", "cutout"):
            if getattr(self, name) < 0:
                raise InputError(f"Augmentation: `{name}` must be >= 0, got {getattr(self, name)}.")
        if self.min_area is not None and not 0 < self.min_area <= 1:
            raise InputError(
                f"Augmentation: `min_area` must be above 0 and at most 1, got {self.min_area}."
            )


def standardised(
    images: Shaped[Array, "batch height width channels"],
    mean: Float[Array, " channels"],
    std: Float[Array, " channels"],
) -> Images:
    """``(images - mean) / std`` of each channel, float32."""
    mean, std = (jnp.asarray(value, jnp.float32)[None, None, None] for value in (mean, std))
    return (images.astype(jnp.float32) - mean) / std


def augmented(
    augmentation: Augmentation,
    keys: Array,
    images: Shaped[Array, "batch height width channels"],
    mean: Float[Array, " channels"],
    std: Float[Array, " channels"],
) -> Images:
    """Images as a network is trained on them.

    Args:
      augmentation: what is done.
      keys: ``[batch]``, a random key an example.
      images: ``[batch, height, width, channels]``, as stored.
      mean: of each channel, in the unit of the images.
      std: standard deviation likewise.

    Returns:
      ``[batch, height, width, channels]``, float32, standardised.
    """
    height, width = images.shape[1:3]
    has_jitter = augmentation.jitter != Jitter()
    # Row, column, mirror, centre's row, centre's column, colours: uniform in [0, 1).
    num_draws = 5 + (NUM_DRAWS if has_jitter else 0)
    draws = jax.vmap(lambda key: jax.random.uniform(key, (num_draws,)))(keys)
    if augmentation.pad:
        images = _cropped(images, augmentation.pad, draws[:, :2])
    if augmentation.is_flipped:
        is_mirrored = (draws[:, 2] < 0.5)[:, None, None, None]
        images = jnp.where(is_mirrored, images[:, :, ::-1], images)
    if has_jitter:
        images = jittered(augmentation.jitter, draws[:, 5:], images)
    x = standardised(images, mean, std)
    if augmentation.cutout:
        rows = _is_cut(height, augmentation.cutout, draws[:, 3])
        columns = _is_cut(width, augmentation.cutout, draws[:, 4])
        x = jnp.where((rows[:, :, None] & columns[:, None])[..., None], 0.0, x)
    return x


def _cropped(images, pad, draws):
    padded = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    tops = jnp.floor(draws * (2 * pad + 1)).astype(jnp.int32)

    def crop(image, top):
        return jax.lax.dynamic_slice(image, (top[0], top[1], 0), images.shape[1:])

    return jax.vmap(crop)(padded, tops)


def _is_cut(length, side, draws):
    """``[batch, length]``: pixels from half a side before the centre to half a side behind it."""
    centre = jnp.floor(draws * length).astype(jnp.int32)[:, None]
    pixel = jnp.arange(length)[None]
    return (pixel >= centre - side // 2) & (pixel < centre + side // 2)
