"""Boxes and pixels of crops, against their definition."""

import io

import numpy as np
import pytest
from PIL import Image

from nasjax.data import crops


def _draws(count, seed=0):
    return np.random.default_rng(seed).random((count, crops.NUM_DRAWS))


def test_boxes_have_uniform_areas_and_shapes():
    boxes = [crops.random_box(draws, 500, 500, min_area=0.08) for draws in _draws(4000)]
    left, top, width, height = np.array(boxes).T
    assert (left >= 0).all() and (top >= 0).all()
    assert (left + width <= 500).all() and (top + height <= 500).all()
    ratio = width / height
    assert 0.745 < ratio.min() < 0.76 and 1.32 < ratio.max() < 1.34
    # Below half the area every trial fits, so that areas there are uniform: 42 of 92 parts.
    area = width * height / 500**2
    small = area[area < 0.5]
    quartiles = np.quantile(small, (0.25, 0.5, 0.75))
    np.testing.assert_allclose(quartiles, 0.08 + 0.42 * np.array([0.25, 0.5, 0.75]), atol=0.02)
    np.testing.assert_allclose(np.median(np.log(ratio[area < 0.5])), 0, atol=0.02)
    is_small = area < 0.2
    np.testing.assert_allclose(np.mean(left[is_small] / (500 - width[is_small])), 0.5, atol=0.04)
    np.testing.assert_allclose(np.mean(top[is_small] / (500 - height[is_small])), 0.5, atol=0.04)


def test_the_first_trial_that_fits_is_taken():
    draws = np.full(crops.NUM_DRAWS, 0.5)  # squares
    draws[:3] = 1.0, 0.6, 0.2
    # Squares of 100 x 64 pixels' area, 0.6 of it and 0.2: sides 80, 62 and 36; 64 rows are there.
    assert crops.random_box(draws, 100, 64, min_area=0.0) == (19, 1, 62, 62)


@pytest.mark.parametrize(
    ("size", "box"),
    [((900, 30), (430, 0, 40, 30)), ((30, 900), (0, 430, 30, 40)), ((100, 90), (0, 0, 100, 90))],
)
def test_where_no_trial_fits_the_middle_is_taken(size, box):
    draws = np.full(crops.NUM_DRAWS, 0.5)
    draws[:10], draws[10:20] = 1.0, 0.0 if size == (100, 90) else 0.5
    assert crops.random_box(draws, *size, min_area=0.08) == box


def test_a_crop_is_the_box_resized():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8))
    (draws,) = _draws(1)
    left, top, width, height = crops.random_box(draws, 90, 60, min_area=0.3)
    found = crops.random_crop(image, draws, min_area=0.3, size=24)
    cut = Image.fromarray(np.asarray(image)[top : top + height, left : left + width])
    np.testing.assert_array_equal(found, cut.resize((24, 24), Image.Resampling.BILINEAR))


@pytest.mark.parametrize("is_tall", [False, True])
def test_tested_is_with_the_middle(is_tall):
    """A ramp along the longer side, 512 of 256 pixels: the middle 224 of 256 are 448 of them."""
    ramp = np.tile(np.linspace(0, 255, 768), (512, 1)).astype(np.uint8)
    image = Image.fromarray(ramp.T if is_tall else ramp)
    found = crops.centre_crop(image, size=224)[..., 0]
    line = (found.T if is_tall else found)[100].astype(float)
    expected = 255 * (384 + np.array([-223, 223])) / 767
    np.testing.assert_allclose(line[[0, -1]], expected, atol=1.0)
    assert found.shape == (224, 224)


@pytest.mark.parametrize("size", [(389, 389), (322, 644), (392, 588), (49, 49)])
def test_the_longer_side_is_rounded_down_exactly(size):
    """Sizes at which 256 by the shorter side, in floating point, is a little too small."""
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image = Image.fromarray(pixels)
    whole = image.resize((256, 256 * size[1] // size[0]), Image.Resampling.BILINEAR)
    top = round((whole.size[1] - 224) / 2)
    expected = whole.crop((16, top, 240, top + 224))
    np.testing.assert_array_equal(crops.centre_crop(image, size=224), expected)


def test_files_are_decoded_and_converted():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    np.testing.assert_array_equal(crops.decoded(file.getvalue(), 3), pixels)
    grey = np.asarray(crops.decoded(file.getvalue(), 1), float)
    np.testing.assert_allclose(grey, pixels @ [0.299, 0.587, 0.114], atol=0.51)
    np.testing.assert_array_equal(crops.decoded(pixels[..., :1], 1), pixels[..., 0])
    with pytest.raises(OSError):
        crops.decoded(b"no picture", 3)
    with pytest.raises(OSError):
        crops.decoded(file.getvalue()[:60], 3)


def test_whole_images_are_stretched():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 1), np.uint8)
    image = crops.decoded(pixels, 1)
    np.testing.assert_array_equal(crops.resized(image, 8), pixels)
    # Bilinear with a filter of two pixels' width: 1, 3, 3, 1 eighths within.
    weights = np.array([1, 3, 3, 1]) / 8
    middle = weights @ pixels[1:5, 1:5, 0] @ weights
    np.testing.assert_allclose(crops.resized(image, 4)[1, 1, 0], middle, atol=1.0)
