"""Square images of one size out of images of any: what training and testing on ImageNet see.

Pillow decodes, cuts and resizes, as it does under torchvision's transforms, with which the field
trains: the same box gives the same pixels.
"""

import io
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

NUM_DRAWS = 22
"""Uniform numbers that a random crop takes: areas and shapes of ten trials, and a place."""

_NUM_TRIALS = 10
_MAX_RATIO = 4 / 3
_MARGIN = 256 / 224
_MODES = {1: "L", 3: "RGB"}


class Box(NamedTuple):
    """A rectangle of an image, in pixels.

    Attributes:
      left: first column.
      top: first row.
      width: columns.
      height: rows.
    """

    left: int
    top: int
    width: int
    height: int


def random_box(
    draws: Float[np.ndarray, " draws"], width: int, height: int, *, min_area: float
) -> Box:
    """A part of an image, of uniform area and of a shape whose logarithm is uniform.

    Of ten trials the first that lies within the image is taken; if none does, the middle of the
    image, its longer side cut off where it is beyond 4:3.

    Args:
      draws: ``[NUM_DRAWS]``, uniform in [0, 1).
      width: of the image, in pixels.
      height: likewise.
      min_area: least part of the image's area; the greatest is 1. Shapes are from 3:4 to 4:3.

    Returns:
      The box.

    References:
      Szegedy et al., "Going deeper with convolutions", 2015, section 6.
    """
    areas = width * height * (min_area + (1 - min_area) * draws[:_NUM_TRIALS])
    ratios = _MAX_RATIO ** (2 * draws[_NUM_TRIALS : 2 * _NUM_TRIALS] - 1)
    for area, ratio in zip(areas, ratios, strict=True):
        own_width, own_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < own_width <= width and 0 < own_height <= height:
            left = int(draws[-1] * (width - own_width + 1))
            top = int(draws[-2] * (height - own_height + 1))
            return Box(left, top, own_width, own_height)
    own_width = min(width, round(height * _MAX_RATIO))
    own_height = min(height, round(width * _MAX_RATIO))
    return Box((width - own_width) // 2, (height - own_height) // 2, own_width, own_height)


def decoded(stored: bytes | UInt8[np.ndarray, "height width channels"], channels: int):
    """An image for Pillow.

    Args:
      stored: an encoded file, or pixels.
      channels: 1 for grey, 3 for red, green and blue.

    Returns:
      The image. What it holds beyond these channels (opacity, a palette) is converted.

    Raises:
      OSError, SyntaxError: if the file is damaged or no picture.
    """
    if isinstance(stored, bytes):
        image = Image.open(io.BytesIO(stored))
        image.load()
    else:
        image = Image.fromarray(stored[..., 0] if stored.shape[-1] == 1 else stored)
    return image if image.mode == _MODES[channels] else image.convert(_MODES[channels])


def random_crop(
    image: Image.Image, draws: Float[np.ndarray, " draws"], *, min_area: float, size: int
) -> UInt8[np.ndarray, "size size channels"]:
    """A ``random_box`` of an image, resized."""
    left, top, width, height = random_box(draws, *image.size, min_area=min_area)
    return resized(image.crop((left, top, left + width, top + height)), size)


def centre_crop(image: Image.Image, *, size: int) -> UInt8[np.ndarray, "size size channels"]:
    """The middle of an image whose shorter side was resized to ``256 / 224`` of the size."""
    short = round(size * _MARGIN)
    width, height = image.size
    longer = short * max(width, height) // min(width, height)
    width, height = (short, longer) if width <= height else (longer, short)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return _pixels(image.crop((left, top, left + size, top + size)))


def resized(image: Image.Image, size: int) -> UInt8[np.ndarray, "size size channels"]:
    """A whole image, stretched to a square; bilinear, low-pass filtered where it shrinks."""
    if image.size == (size, size):
        return _pixels(image)
    return _pixels(image.resize((size, size), Image.Resampling.BILINEAR))


def _pixels(image: Image.Image) -> np.ndarray:
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels
