"""Changed colours, against Pillow's and the standard library's."""

import colorsys

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from nasjax.errors import InputError
from nasjax.training.jitter import NUM_DRAWS, Jitter, jittered

DRAWS = np.random.default_rng(1).random((64, NUM_DRAWS), np.float32)


def _images(low=0, high=256):
    return np.random.default_rng(0).integers(low, high, (64, 6, 5, 3), np.uint8)


def _amounts(number):
    return 2 * DRAWS[:, number] - 1, np.argsort(DRAWS[:, 4:], -1)


@pytest.mark.parametrize(
    ("name", "number", "enhance"),
    [
        ("brightness", 0, ImageEnhance.Brightness),
        ("contrast", 1, ImageEnhance.Contrast),
        ("saturation", 2, ImageEnhance.Color),
    ],
)
def test_one_change_is_pillows(name, number, enhance):
    images, (amounts, _) = _images(), _amounts(number)
    found = np.asarray(jittered(Jitter(**{name: 0.4}), DRAWS, images))
    for image, changed, amount in zip(images, found, amounts, strict=True):
        expected = np.asarray(enhance(Image.fromarray(image)).enhance(1 + 0.4 * amount), float)
        np.testing.assert_allclose(changed, expected, atol=1.3)  # Pillow rounds greys and results
    assert np.abs(found - images).max() > 30
    assert amounts.min() < -0.9 and amounts.max() > 0.9


def test_hue_is_turned():
    images, (amounts, _) = _images(), _amounts(3)
    images[:, 0, 0] = 7  # grey has no hue
    found = np.asarray(jittered(Jitter(hue=0.2), DRAWS, images))
    for number in range(5):
        for place in np.ndindex(6, 5):
            hue, saturation, value = colorsys.rgb_to_hsv(*images[(number, *place)] / 255)
            turned = colorsys.hsv_to_rgb((hue + 0.2 * amounts[number]) % 1, saturation, value)
            np.testing.assert_allclose(found[(number, *place)] / 255, turned, atol=1e-5)


def test_changes_come_in_an_order_of_their_own():
    """Where white is cut off, brightness and contrast do not commute."""
    images = _images(150, 256)
    (bright, order), (contrast, _) = _amounts(0), _amounts(1)
    found = np.asarray(jittered(Jitter(brightness=0.3, contrast=0.3), DRAWS, images))
    num_bright_first, num_alike = 0, 0
    for number, image in enumerate(images.astype(float)):

        def brightened(x, factor=1 + 0.3 * bright[number]):
            return np.clip(factor * x, 0, 255)

        def contrasted(x, factor=1 + 0.3 * contrast[number]):
            mean = (x @ [0.299, 0.587, 0.114]).mean()
            return np.clip(mean + factor * (x - mean), 0, 255)

        ways = contrasted(brightened(image)), brightened(contrasted(image))
        is_bright_first = list(order[number]).index(0) < list(order[number]).index(1)
        np.testing.assert_allclose(found[number], ways[0 if is_bright_first else 1], atol=0.01)
        num_bright_first += is_bright_first
        num_alike += np.abs(ways[0] - ways[1]).max() < 1
    assert 16 < num_bright_first < 48
    assert num_alike < 40


def test_what_is_refused():
    with pytest.raises(InputError, match="`hue` must be 0 to 0.5, got 0.6"):
        Jitter(hue=0.6)
    with pytest.raises(InputError, match="`contrast` must be 0 to 1, got -1"):
        Jitter(contrast=-1)
    with pytest.raises(InputError, match="images must have 3 channels, got 1"):
        jittered(Jitter(hue=0.1), DRAWS, _images()[..., :1])
