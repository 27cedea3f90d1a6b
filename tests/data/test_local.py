import gzip
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from nasjax.data import base, local
from nasjax.data.local import (
    FASHION_MNIST_VARIABLE,
    parse_idx,
    parse_npz_target,
    read_digits,
    read_fashion_mnist,
    read_npz,
)
from nasjax.errors import InputError

DATA = Path(os.environ.get("NASJAX_DATA", Path(__file__).parents[3] / "shared" / "data"))


def _good(num_examples=6):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (num_examples, 4, 5, 3)).astype(np.uint8)
    return {"x": images, "y": np.arange(num_examples) % 3}


@pytest.fixture
def save(tmp_path):
    def save_arrays(**arrays):
        path = tmp_path / "set.npz"
        np.savez(path, **arrays)
        return str(path)

    return save_arrays


def _refused(target, message):
    with pytest.raises(InputError, match=message) as caught:
        read_npz("here", target)
    assert str(caught.value).startswith("here: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("save_fn", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("labels_dtype", ["u1", "<i8", ">i4"])
def test_npz_holds_what_was_saved(tmp_path, save_fn, order, labels_dtype):
    arrays = _good()
    path = tmp_path / "a#b.npz"  # a path may contain the mark of a choice of keys
    save_fn(path, x=np.asarray(arrays["x"], order=order), y=arrays["y"].astype(labels_dtype))
    raw = read_npz("here", str(path))
    np.testing.assert_array_equal(raw.images, arrays["x"])
    np.testing.assert_array_equal(raw.labels, arrays["y"])
    assert raw.num_classes == 3
    assert str(path) in raw.source


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_npz_without_channels_gets_one(save, dtype):
    arrays = _good()
    images = arrays["x"][..., 0].astype(dtype)
    raw = read_npz("here", save(x=images, y=arrays["y"]))
    np.testing.assert_array_equal(raw.images, images[..., None])


def test_npz_keys_can_be_chosen(save):
    arrays = _good()
    path = save(train_x=arrays["x"], train_y=arrays["y"], y=np.zeros(1))
    raw = read_npz("here", f"{path}#images=train_x,labels=train_y")
    np.testing.assert_array_equal(raw.images, arrays["x"])
    _refused(path, "must hold the arrays 'x' and 'y', got 'train_x', 'train_y', 'y'. .*#images=KEY")


def test_npz_target():
    assert parse_npz_target("here", "a#b.npz") == (Path("a#b.npz"), "x", "y")
    assert parse_npz_target("here", "a#b#images=i") == (Path("a#b"), "i", "y")
    assert parse_npz_target("here", "~/a") == (Path.home() / "a", "x", "y")


@pytest.mark.parametrize(
    "target", ["a#image=x", "a#images=", "a#images=x,labels", "a#images=x,key=y"]
)
def test_npz_choice_of_keys_must_be_understood(target):
    _refused(target, "must be images=KEY,labels=KEY, got ")


@pytest.mark.parametrize("target", ["", "#images=x"])
def test_npz_needs_a_path(target):
    _refused(target, "a path must follow 'npz:'")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x": np.zeros((6, 4), np.uint8)}, "images must be .n, height, width. or .* \\(6, 4\\)"),
        ({"x": np.zeros((6, 4, 4, 3, 1), np.uint8)}, "got shape \\(6, 4, 4, 3, 1\\)"),
        ({"x": np.zeros((6, 4, 4), np.int32)}, "uint8 or floating point, got int32"),
        ({"x": np.zeros((6, 4, 4), complex)}, "uint8 or floating point, got complex128"),
        ({"x": np.zeros((6, 4, 4), bool)}, "uint8 or floating point, got bool"),
        ({"x": np.full((6, 4, 4), "a")}, "uint8 or floating point, got <U1"),
        ({"x": np.zeros((6, 4, 4), [("a", "f4")])}, "uint8 or floating point, got "),
        ({"x": np.full((6, 4, 4), None)}, "uint8 or floating point, got object"),
        ({"y": np.full(6, None)}, "labels must be integers, got object"),
        ({"y": np.zeros(6)}, "labels must be integers, got float64"),
        ({"y": np.zeros(6, bool)}, "labels must be integers, got bool"),
        ({"y": np.zeros((6, 1), int)}, "labels must be .n., .* got shape \\(6, 1\\)"),
        ({"y": np.array(0)}, "labels must be .n., .* got shape \\(\\)"),
        ({"y": np.array([0, 1, -1, 0, 1, 2])}, "from 0 to 99999, got -1 to 2"),
        ({"y": np.array([0, 1, 10**9, 0, 1, 2])}, "from 0 to 99999, got 0 to 1000000000"),
        ({"y": np.full(6, 2**64 - 1, np.uint64)}, "got 18446744073709551615 to"),
        ({"y": np.arange(5)}, "one label per image, got 6 images and 5 labels"),
        ({"x": np.zeros((0, 4, 4, 3), np.uint8), "y": np.zeros(0, int)}, "at least one image"),
        ({"x": np.zeros((6, 0, 4, 3), np.uint8)}, "at least one image"),
    ],
)
def test_npz_with_wrong_arrays_is_refused(save, change, message):
    _refused(save(**(_good() | change)), message)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_npz_with_values_that_are_not_finite_is_refused(save, value):
    images = np.ones((2000, 2, 2, 1))
    images[1500, 1, 0, 0] = value
    _refused(save(x=images, y=np.zeros(2000, int)), "finite in float32, .* images 1024 to 1999")


class _Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_pickles_are_never_executed(tmp_path, save):
    sprung = tmp_path / "sprung"
    trap = np.empty(6, object)
    trap[:] = _Trap(sprung)
    _refused(save(x=_good()["x"], y=trap), "labels must be integers, got object")
    _refused(save(x=trap, y=_good()["y"]), "uint8 or floating point, got object")
    bare = tmp_path / "bare.npz"
    bare.write_bytes(pickle.dumps(_Trap(sprung)))
    _refused(str(bare), "must be a NumPy archive")
    with zipfile.ZipFile(bare, "w") as archive:
        archive.writestr("x.npy", pickle.dumps(_Trap(sprung)))
        archive.writestr("y.npy", pickle.dumps(_Trap(sprung)))
    _refused(str(bare), "must be a NumPy archive")
    assert not sprung.exists()


@pytest.mark.filterwarnings("error")
def test_files_that_are_no_archive_are_refused(tmp_path, save):
    path = Path(save(**_good()))
    whole = path.read_bytes()
    array = io.BytesIO()
    np.save(array, _good()["x"])
    for content in (b"", b"hello", whole[: len(whole) // 2], whole[:-1], array.getvalue()):
        path.write_bytes(content)
        _refused(str(path), "must be a NumPy archive as `numpy.savez` writes it, got BadZipFile")
    changed = bytearray(whole)
    changed[300] ^= 255  # within the pixels: the checksum no longer fits
    path.write_bytes(changed)
    _refused(str(path), "must be a NumPy archive .* got BadZipFile: Bad CRC-32")


def _write_member(path, header, data):
    """An archive whose array ``x`` has any header, true or not."""
    text = header.encode().ljust(117) + b"\n"
    labels = io.BytesIO()
    np.save(labels, _good()["y"])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data)
        archive.writestr("y.npy", labels.getvalue())


@pytest.mark.parametrize(
    "shape, message",
    [
        ((6, 4, 4), "got ValueError: shape \\(6, 4, 4\\) of uint8, 96 bytes, over 10 bytes"),
        ((6, -1, 4), "must be a NumPy archive"),
        ((2**20, 2**20, 3), "must hold at most 4 GiB, got 3072 GiB"),
        ((2**62, 2**62, 2**62), "must hold at most 4 GiB, got "),
    ],
)
def test_headers_that_do_not_fit_are_refused_unread(tmp_path, shape, message):
    path = tmp_path / "set.npz"
    header = repr({"descr": "|u1", "fortran_order": False, "shape": shape})
    _write_member(path, header, bytes(10))
    _refused(str(path), message)


@pytest.mark.parametrize(
    "header", ["{", "[]", "__import__('os')", "{'descr': 'O'}", "{b'a': 0, 'b': 0}"]
)
def test_headers_that_are_none_are_refused(tmp_path, header):
    path = tmp_path / "set.npz"
    _write_member(path, header, bytes(10))
    _refused(str(path), "must be a NumPy archive .* got ValueError")


def test_the_limit_is_on_the_declared_size(save, monkeypatch):
    monkeypatch.setattr(base, "MAX_ARRAY_BYTES", 300)
    monkeypatch.setattr(local.np.lib.format, "read_array", None)  # not reached
    _refused(save(**_good()), "the array 'x.npy' must hold at most .* \\(6, 4, 5, 3\\)")


def test_paths_that_are_no_file(tmp_path, monkeypatch):
    _refused(str(tmp_path / "none.npz"), "none.npz' must be a file .* got no such file")
    _refused(str(tmp_path), "got a folder")
    _refused("a\0b", "must be a file")
    _refused("a" * 300, "must be a file")
    _refused("/dev/null", "got something that is not a regular file")


def test_a_file_that_must_not_be_read(save, monkeypatch):
    # The superuser may read anything, so the refusal of the system is made up.
    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", path)

    path = save(**_good())
    monkeypatch.setattr(local, "open", refuse, raising=False)
    _refused(path, "got an error when opening it: Permission denied")


def _idx(array, magic=None):
    magic = bytes([0, 0, 8, array.ndim]) if magic is None else magic
    return magic + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_idx_written_by_hand():
    data = bytes.fromhex("00000803 00000002 00000002 00000003 000102 030405 060708 fdfeff")
    expected = [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [253, 254, 255]]]
    parsed = parse_idx(data, num_dimensions=3)
    assert parsed.dtype == np.uint8
    assert parsed.tolist() == expected
    assert parse_idx(data[:4] + bytes(12), num_dimensions=3).shape == (0, 0, 0)


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "must begin with 00000801, got nothing"),
        (b"\0\0", "must begin with 00000801, got 0000"),
        (bytes.fromhex("00000803 00000001 07"), "must begin with 00000801, got 00000803"),
        (bytes.fromhex("00000d01 00000001 07"), "must begin with 00000801, got 00000d01"),
        (bytes.fromhex("01080000 00000001 07"), "must begin with 00000801, got 01080000"),
        (bytes.fromhex("00000801 0000"), "must have 8 bytes, got 6"),
        (bytes.fromhex("00000801 00000003 0708"), "must hold 3 bytes .* got 2"),
        (bytes.fromhex("00000801 00000001 0708"), "must hold 1 bytes .* got 2"),
        (bytes.fromhex("00000801 ffffffff 07"), "must hold 4294967295 bytes .* got 1"),
    ],
)
def test_idx_that_is_damaged_is_refused(data, message):
    with pytest.raises(InputError, match=message):
        parse_idx(data, num_dimensions=1)


def _write_fashion_mnist(folder, *, packed, num_labels=4):
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28)).astype(np.uint8)
    labels = np.array([9, 0, 3, 3, 1], np.uint8)[:num_labels]
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        path = folder / f"train-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(_idx(array)) if packed else _idx(array))
    return images, labels


@pytest.mark.parametrize("packed", [False, True])
def test_fashion_mnist_from_files(tmp_path, packed):
    images, labels = _write_fashion_mnist(tmp_path, packed=packed)
    raw = read_fashion_mnist("here", tmp_path)
    np.testing.assert_array_equal(raw.images, images[..., None])
    np.testing.assert_array_equal(raw.labels, labels)
    assert raw.num_classes == 10


def test_fashion_mnist_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FASHION_MNIST_VARIABLE, str(tmp_path / "named"))
    assert local.find_fashion_mnist() == tmp_path / "named"
    monkeypatch.delenv(FASHION_MNIST_VARIABLE)
    monkeypatch.setattr(local, "FASHION_MNIST_FOLDER", tmp_path)
    assert local.find_fashion_mnist() == tmp_path
    monkeypatch.setattr(local, "FASHION_MNIST_FOLDER", tmp_path / "none")
    assert local.find_fashion_mnist() is None


def test_fashion_mnist_files_that_are_damaged(tmp_path):
    def refused(message):
        with pytest.raises(InputError, match=message):
            read_fashion_mnist("here", tmp_path)

    refused("train-images-idx3-ubyte.gz' must be a file that can be read, got no such file")
    _write_fashion_mnist(tmp_path, packed=True, num_labels=5)
    refused("got 4 images and 5 labels")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for content in (whole[:100], b"hello", b"", whole[:-8] + bytes(8)):
        path.write_bytes(content)
        refused("must be a gzip file, got|must begin with")


def test_real_fashion_mnist():
    folder = local.find_fashion_mnist()
    if folder is None:
        pytest.skip("Fashion-MNIST is not on this machine (apt-get install dataset-fashion-mnist)")
    raw = read_fashion_mnist("here", folder)
    assert raw.images.shape == (60000, 28, 28, 1)
    assert np.bincount(raw.labels).tolist() == [6000] * 10
    # The figures that are given for its normalisation everywhere: 0.2860 and 0.3530.
    assert raw.images.mean() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert raw.images.std() / 255 == pytest.approx(0.3530, abs=5e-5)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    raw = read_digits("here")
    expected = load_digits()
    np.testing.assert_array_equal(raw.images[..., 0], expected.images)
    np.testing.assert_array_equal(raw.labels, expected.target)
    assert raw.images.dtype == np.uint8 and raw.num_classes == 10


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match="scikit-learn must be importable"):
        read_digits("here")


def test_real_cifar10_subset():
    path = DATA / "cifar10_jpeg_subset_1000_500.npz"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside the repository, nor in NASJAX_DATA")
    raw = read_npz("here", f"{path}#images=x_train,labels=y_train")
    with np.load(path) as archive:
        np.testing.assert_array_equal(raw.images, archive["x_train"])
        np.testing.assert_array_equal(raw.labels, archive["y_train"])
    assert raw.num_classes == 10
