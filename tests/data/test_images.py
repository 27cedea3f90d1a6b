import numpy as np
import pytest

from nasjax.data import images as images_module
from nasjax.data.images import luminance, resize, standardise, to_network_input
from nasjax.errors import InputError


def _images(shape, seed=0, dtype=np.uint8):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


def _bilinear_weights(size, new_size):
    """Triangle filter, widened by the factor of shrinking; a second, slower way."""
    scale = size / new_size
    centre = (np.arange(new_size)[:, None] + 0.5) * scale - 0.5
    weights = np.maximum(0.0, 1 - np.abs(centre - np.arange(size)) / max(scale, 1.0))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("height, width, image_size", [(8, 8, 32), (28, 28, 32), (32, 20, 8)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64])
def test_resize_against_filter_matrices(height, width, image_size, dtype):
    images = _images((3, height, width, 2), dtype=dtype)
    expected = np.einsum(
        "ih,jw,nhwc->nijc",
        _bilinear_weights(height, image_size),
        _bilinear_weights(width, image_size),
        images.astype(np.float64),
    )
    resized = resize(images, image_size=image_size)
    assert resized.dtype == np.float32
    np.testing.assert_allclose(resized, expected, rtol=1e-5, atol=1e-4)


def test_chunks_do_not_change_the_result(monkeypatch):
    images = _images((7, 12, 12, 3))
    whole, done = to_network_input(images, image_size=8, channels=1)
    monkeypatch.setattr(images_module, "CHUNK_BYTES", 4000)  # 2 images at a time
    parts, parts_done = to_network_input(images, image_size=8, channels=1)
    np.testing.assert_allclose(parts, whole, atol=1e-6)
    assert parts_done == pytest.approx(done)


def test_luminance_of_primaries():
    images = np.zeros((1, 2, 2, 3), np.uint8)
    images[0, 0, 0] = (255, 0, 0)
    images[0, 0, 1] = (0, 255, 0)
    images[0, 1, 0] = (0, 0, 255)
    images[0, 1, 1] = (255, 255, 255)
    expected = [[76.245, 149.685], [29.07, 255.0]]
    np.testing.assert_allclose(luminance(images)[0, :, :, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_standardise_gives_zero_mean_and_unit_deviation(dtype):
    images = _images((40, 6, 5, 3), dtype=dtype)
    standardised, mean, std = standardise(images)
    as_float = images.astype(np.float64)
    np.testing.assert_allclose(mean, as_float.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(std, as_float.std(axis=(0, 1, 2)))
    np.testing.assert_allclose(standardised, (as_float - mean) / std, rtol=1e-5, atol=1e-6)
    standardised = standardised.astype(np.float64)
    np.testing.assert_allclose(standardised.mean(axis=(0, 1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(standardised.std(axis=(0, 1, 2)), 1, atol=1e-6)


def test_standardise_does_not_depend_on_unit_even_near_the_largest_float():
    images = _images((10, 4, 4, 1), dtype=np.float32)
    expected, _, _ = standardise(images)
    scaled, _, _ = standardise(images * np.float32(1e36))
    np.testing.assert_allclose(scaled, expected, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, 255.0])
def test_constant_channel_is_refused(value):
    images = _images((4, 6, 6, 3), dtype=np.float32)
    images[..., 1] = value
    for image_size in (6, 9):  # a resize leaves rounding noise
        with pytest.raises(InputError, match="must vary over the set, got channel 1 of 3 constant"):
            to_network_input(images, image_size=image_size, channels=3)


def test_grey_is_repeated_and_told():
    images = _images((5, 8, 8, 1))
    out, done = to_network_input(images, image_size=8, channels=3)
    assert out.shape == (5, 8, 8, 3)
    np.testing.assert_array_equal(out[..., 0], out[..., 1])
    np.testing.assert_array_equal(out[..., 0], out[..., 2])
    assert done["channels"] == "grey repeated: 1 -> 3"
    assert done["resize"] == "none"
    assert done["mean_0"] == pytest.approx(images.mean())
    assert done["std_0"] == pytest.approx(images.std())
    assert "mean_1" not in done


def test_colour_becomes_luminance_and_is_told():
    images = _images((5, 8, 8, 3))
    out, done = to_network_input(images, image_size=8, channels=1)
    expected, _, _ = standardise(luminance(images))
    np.testing.assert_array_equal(out, expected)
    assert done["channels"] == "luminance (BT.601): 3 -> 1"


def test_resize_is_told_and_comes_before_standardisation():
    out, done = to_network_input(_images((5, 8, 6, 3)), image_size=10, channels=3)
    assert out.shape == (5, 10, 10, 3) and out.dtype == np.float32
    assert done["resize"] == "bilinear, antialiased: 8x6 -> 10x10"
    assert done["channels"] == "none"
    np.testing.assert_allclose(out.astype(np.float64).std(axis=(0, 1, 2)), 1, atol=1e-6)


@pytest.mark.parametrize("stored, asked", [(3, 2), (3, 4), (2, 1), (2, 3), (4, 3)])
def test_other_channel_counts_are_refused(stored, asked):
    with pytest.raises(InputError, match=f"`channels` must be {stored}, as stored.* got {asked}"):
        to_network_input(_images((2, 4, 4, stored)), image_size=4, channels=asked)


def test_too_large_a_result_is_refused_before_it_is_made():
    with pytest.raises(InputError, match="must hold at most 4 GiB, got 3[0-9.]+e\\+04 GiB"):
        to_network_input(_images((2, 4, 4, 1)), image_size=2**20, channels=4)
