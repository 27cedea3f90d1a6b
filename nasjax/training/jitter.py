"""Random changes of brightness, contrast, saturation and hue, on the device."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from nasjax.errors import InputError
from nasjax.types import Images

LUMINANCE_WEIGHTS = (0.299, 0.587, 0.114)
NUM_DRAWS = 8
"""Uniform numbers that an image takes: how far each change goes, and when it comes."""

_WHITE = 255.0


@dataclasses.dataclass(frozen=True)
class Jitter:
    """How far colours are changed, in an order drawn for each image.

    Attributes:
      brightness: pixels are multiplied by a uniform number at most so far from 1.
      contrast: differences from the mean luminance of the image likewise.
      saturation: differences from a pixel's luminance likewise.
      hue: a uniform shift at most so far either way, in turns of the circle of colours.

    Raises:
      InputError: if a number is out of its range.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self):
        """Checks the numbers."""
        for name in ("brightness", "contrast", "saturation", "hue"):
            value, most = getattr(self, name), 0.5 if name == "hue" else 1.0
            if not 0 <= value <= most:
                raise InputError(f"Jitter: `{name}` must be 0 to {most:g}, got {value}.")


def jittered(jitter: Jitter, draws: Float[Array, "batch draws"], images: Images) -> Images:
    """Images with other colours.

    Every change is cut off at black and white, as in torchvision, which rounds to bytes after it.

    Args:
      jitter: how far.
      draws: ``[batch, NUM_DRAWS]``, uniform in [0, 1).
      images: ``[batch, height, width, 3]``, in 0 to 255.

    Returns:
      ``[batch, height, width, 3]``, float32.

    Raises:
      InputError: for images that have no three channels.
    """
    if images.shape[-1] != 3:
        raise InputError(
            f"Jitter: images must have 3 channels, got {images.shape[-1]}. Use a recipe without "
            "jitter."
        )
    changes = (
        (_brightened, jitter.brightness, 1.0),
        (_contrasted, jitter.contrast, 1.0),
        (_saturated, jitter.saturation, 1.0),
        (_turned, jitter.hue, 0.0),
    )
    turn = jnp.argsort(draws[:, len(changes) :], axis=-1)
    x = images.astype(jnp.float32)
    for position in range(len(changes)):
        changed = x
        for number, (change, most, neutral) in enumerate(changes):
            if not most:
                continue
            amount = (neutral + most * (2 * draws[:, number] - 1))[:, None, None, None]
            is_now = (turn[:, position] == number)[:, None, None, None]
            changed = jnp.where(is_now, jnp.clip(change(x, amount), 0.0, _WHITE), changed)
        x = changed
    return x


def _luminance(x) -> Float[Array, "batch height width 1"]:
    return (x @ jnp.asarray(LUMINANCE_WEIGHTS, x.dtype))[..., None]


def _brightened(x, factor):
    return factor * x


def _contrasted(x, factor):
    mean = _luminance(x).mean((1, 2, 3), keepdims=True)
    return mean + factor * (x - mean)


def _saturated(x, factor):
    grey = _luminance(x)
    return grey + factor * (x - grey)


def _turned(x, shift):
    """Hue, saturation and value, and back with another hue."""
    red, green, blue = (x[..., channel, None] for channel in range(3))
    value, least = x.max(-1, keepdims=True), x.min(-1, keepdims=True)
    span = value - least
    safe = jnp.where(span > 0, span, 1.0)
    sixth = jnp.where(
        value == red,
        (green - blue) / safe,
        jnp.where(value == green, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe),
    )
    sixth = sixth + 6.0 * shift
    place = (jnp.asarray([5.0, 3.0, 1.0], x.dtype)[None, None, None] + sixth) % 6.0
    return value - span * jnp.clip(jnp.minimum(place, 4.0 - place), 0.0, 1.0)
