"""What augmentation does to images, against the same done by hand."""

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.training import Augmentation
from nasjax.training.augment import augmented, standardised

MEAN, STD = (10.0, 20.0), (2.0, 4.0)


def _keys(count):
    return jax.random.split(jax.random.key(5), count)


def _images(count=64, size=6):
    rng = np.random.default_rng(0)
    return rng.integers(30, 256, (count, size, size, 2), np.uint8)


def _run(augmentation, images, keys=None):
    keys = _keys(len(images)) if keys is None else keys
    return np.asarray(augmented(augmentation, keys, images, MEAN, STD))


def test_nothing_but_standardisation_without_augmentation():
    images = _images()
    expected = (images - np.array(MEAN)) / np.array(STD)
    np.testing.assert_allclose(_run(Augmentation(), images), expected, rtol=1e-6)
    np.testing.assert_allclose(standardised(images, MEAN, STD), expected, rtol=1e-6)


def test_crops_are_uniform_windows_of_the_padded_image():
    images = _images(900)
    found = _run(Augmentation(pad=1), images) * np.array(STD) + np.array(MEAN)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    counts = np.zeros((3, 3))
    for image, source in zip(np.rint(found), padded, strict=True):
        places = [
            (top, left)
            for top in range(3)
            for left in range(3)
            if np.array_equal(image, source[top : top + 6, left : left + 6])
        ]
        assert len(places) == 1
        counts[places[0]] += 1
    # 100 are expected at each place, with a standard deviation of 9.4.
    assert np.abs(counts - 100).max() < 4.5 * 9.4


def test_half_of_the_images_are_mirrored():
    images = _images(400)
    found = _run(Augmentation(is_flipped=True), images)
    plain = np.asarray(standardised(images, MEAN, STD))
    is_mirrored = (found == plain[:, :, ::-1]).all((1, 2, 3))
    is_same = (found == plain).all((1, 2, 3))
    assert (is_mirrored ^ is_same).all()
    assert abs(is_mirrored.mean() - 0.5) < 4.5 * 0.5 / 20


def test_cutout_is_a_square_around_a_uniform_pixel():
    images = _images(720)
    is_cut = (_run(Augmentation(cutout=4), images) == 0).all(-1)
    plain = np.asarray(standardised(images, MEAN, STD))
    np.testing.assert_array_equal(_run(Augmentation(cutout=4), images)[~is_cut], plain[~is_cut])
    centres = np.zeros((6, 6))
    for mask in is_cut:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        assert mask.sum() == len(rows) * len(columns)
        # From two pixels before the centre to one behind it, as far as there are pixels.
        row = rows[-1] - 1 if rows[-1] < 5 else rows[0] + 2
        column = columns[-1] - 1 if columns[-1] < 5 else columns[0] + 2
        centres[row, column] += 1
        assert 2 <= len(rows) <= 4 and 2 <= len(columns) <= 4
    # 20 are expected at each place, with a standard deviation of 4.4.
    assert np.abs(centres - 20).max() < 4.5 * 4.4


def test_an_example_is_changed_by_its_own_key_alone():
    augmentation = Augmentation(pad=2, is_flipped=True, cutout=3)
    images, parts = _images(8), (slice(0, 3), slice(3, 8))
    together = _run(augmentation, images)
    apart = np.concatenate([_run(augmentation, images[part], _keys(8)[part]) for part in parts])
    np.testing.assert_allclose(together, apart, rtol=1e-6)


def test_negative_sizes_are_refused():
    with pytest.raises(InputError, match="`cutout` must be >= 0, got -1"):
        Augmentation(cutout=-1)
