"""Examples to train and to test with, from every source."""

import gzip
import struct

import numpy as np
import pytest

from nasjax.data import Examples, hold_out, load_splits
from nasjax.data.local import FASHION_MNIST_VARIABLE
from nasjax.errors import InputError

RNG = np.random.default_rng(0)


def _npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def _images(count, size=6, channels=3):
    return RNG.integers(0, 256, (count, size, size, channels), np.uint8)


def test_digits_keep_a_part_for_testing():
    splits = load_splits("digits")
    assert splits.train.images.shape == (1437, 8, 8, 1)
    assert splits.test.images.shape == (360, 8, 8, 1)
    assert splits.train.images.dtype == np.uint8
    both = np.concatenate([splits.train.images, splits.test.images]).reshape(1797, -1)
    from sklearn.datasets import load_digits

    expected = load_digits().images.astype(np.uint8).reshape(1797, -1)
    assert sorted(map(bytes, both)) == sorted(map(bytes, expected))
    again = load_splits("digits")
    np.testing.assert_array_equal(again.test.images, splits.test.images)


def test_moments_are_those_of_the_training_part(tmp_path):
    train, test = _images(20), _images(10)
    path = _npz(
        tmp_path / "a.npz", x=train, y=np.arange(20) % 3, x_test=test, y_test=np.ones(10, int)
    )
    splits = load_splits(f"npz:{path}")
    np.testing.assert_allclose(splits.mean, train.mean((0, 1, 2)))
    np.testing.assert_allclose(splits.std, train.std((0, 1, 2)))
    np.testing.assert_array_equal(splits.train.images, train)
    np.testing.assert_array_equal(splits.test.images, test)
    assert splits.test.labels.dtype == np.int32
    assert splits.num_classes == 3
    assert splits.provenance["num_train"] == 20
    assert splits.provenance["resize"] == "none"


def test_another_file_may_hold_the_test(tmp_path):
    train = _npz(tmp_path / "a.npz", x=_images(4), y=np.arange(4))
    test = _npz(tmp_path / "b.npz", a=_images(5), b=np.arange(5))
    splits = load_splits(f"npz:{train}", test=f"npz:{test}#images=a,labels=b")
    assert len(splits.test.labels) == 5
    assert splits.num_classes == 5


def test_other_sizes_are_resized_and_rounded(tmp_path):
    x = np.repeat(np.array([[10], [200]], np.uint8), 4, 1).reshape(2, 2, 2, 1)
    path = _npz(tmp_path / "a.npz", x=x, y=np.arange(2), x_test=x, y_test=np.arange(2))
    splits = load_splits(f"npz:{path}", image_size=4)
    assert splits.train.images.shape == (2, 4, 4, 1)
    assert splits.train.images.dtype == np.uint8
    assert set(np.unique(splits.train.images)) == {10, 200}
    assert "2x2 -> 4x4, rounded to bytes" in splits.provenance["resize"]


def test_random_data_are_the_seeds():
    one, same, other = (load_splits("random", image_size=4, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.train.images, same.train.images)
    assert not np.allclose(one.train.images, other.train.images)
    assert one.train.images.shape == (1024, 4, 4, 3)
    assert not np.allclose(one.train.images[:256], one.test.images)


def _write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def test_fashion_mnist_has_both_parts(tmp_path, monkeypatch):
    monkeypatch.setenv(FASHION_MNIST_VARIABLE, str(tmp_path))
    for name, count in (("train", 6), ("t10k", 4)):
        _write_idx(tmp_path / f"{name}-images-idx3-ubyte.gz", _images(count, 5, 1)[..., 0])
        _write_idx(tmp_path / f"{name}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8))
    splits = load_splits("fashion_mnist")
    assert splits.train.images.shape == (6, 5, 5, 1)
    assert splits.test.labels.tolist() == [0, 1, 2, 3]
    assert splits.provenance["test"].startswith("Fashion-MNIST test part")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": _images(4), "y": np.arange(4)}, "the arrays x_test and y_test in"),
        (
            {
                "x": _images(4),
                "y": np.arange(4),
                "x_test": _images(2, channels=1),
                "y_test": [0, 1],
            },
            "the same channels, got 3 and 1",
        ),
        (
            {"x": _images(4)[:, :3], "y": np.arange(4), "x_test": _images(2), "y_test": [0, 1]},
            r"to test with must have one size, got \(3, 6\) and \(6, 6\)",
        ),
        (
            {
                "x": _images(4)[:, :3],
                "y": np.arange(4),
                "x_test": _images(2)[:, :3],
                "y_test": [0, 1],
            },
            "and square, got 3 x 6",
        ),
    ],
)
def test_files_that_do_not_do_are_refused(tmp_path, arrays, message):
    path = _npz(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message):
        load_splits(f"npz:{path}")


def test_test_data_go_with_files_alone():
    with pytest.raises(InputError, match="`test` goes with npz:PATH"):
        load_splits("digits", test="npz:a.npz")


def test_a_part_is_held_out():
    examples = Examples(_images(10), np.arange(10, dtype=np.int32))
    kept, held = hold_out(examples, 0.3, seed=1)
    assert sorted([*kept.labels, *held.labels]) == list(range(10))
    assert len(held.labels) == 3
    np.testing.assert_array_equal(held.images, examples.images[held.labels])
    assert held.labels.tolist() != hold_out(examples, 0.3, seed=2)[1].labels.tolist()
    with pytest.raises(InputError, match="must leave examples on both sides, got 0.01 of 10"):
        hold_out(examples, 0.01, seed=0)
