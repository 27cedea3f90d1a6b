import json
import logging
import subprocess
import sys

import jax
import numpy as np
import pytest

from nasjax.data import DATASETS, Dataset, from_tfds, load_data, local, random_batch
from nasjax.data import load as load_module
from nasjax.errors import InputError


@pytest.fixture
def spec(tmp_path):
    """A colour set of 12 examples of 8x8 pixels in classes 0, 1, 2."""
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3)).astype(np.uint8)
    np.savez(tmp_path / "set.npz", x=images, y=np.arange(12) % 3)
    return f"npz:{tmp_path / 'set.npz'}"


@pytest.fixture
def specs(spec, tmp_path, monkeypatch):
    """One spec for each entry of the registry but tfds, which has a test of its own."""
    folder = tmp_path / "fashion"
    folder.mkdir()
    rng = np.random.default_rng(0)
    header = bytes.fromhex("00000803 00000014 0000001c 0000001c")
    pixels = rng.integers(0, 256, 20 * 28 * 28).astype(np.uint8).tobytes()
    (folder / "train-images-idx3-ubyte").write_bytes(header + pixels)
    labels = bytes(range(10)) * 2
    (folder / "train-labels-idx1-ubyte").write_bytes(bytes.fromhex("00000801 00000014") + labels)
    monkeypatch.setenv(local.FASHION_MNIST_VARIABLE, str(folder))
    return {"digits": "digits", "fashion_mnist": "fashion_mnist", "npz": spec, "random": "random"}


def _refused(spec, message, **options):
    with pytest.raises(InputError, match=message) as caught:
        load_data(spec, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"tfds"}))
@pytest.mark.parametrize("labels", ["true", "random"])
@pytest.mark.parametrize("image_size, channels", [(8, 3), (12, 1)])
def test_every_data_set_keeps_the_contract(specs, name, labels, image_size, channels):
    data = load_data(
        specs[name],
        image_size=image_size,
        channels=channels,
        labels=labels,
        num_examples=11,
        key=jax.random.key(0),
    )
    assert isinstance(data, Dataset) and data.name == specs[name]
    assert data.images.shape == (11, image_size, image_size, channels)
    assert data.images.dtype == np.float32 and data.labels.dtype == np.int32
    assert data.labels.shape == (11,)
    assert data.labels.min() >= 0 and data.labels.max() < data.num_classes
    if name != "random":
        images = data.images.astype(np.float64)
        np.testing.assert_allclose(images.mean(axis=(0, 1, 2)), 0, atol=1e-5)
        np.testing.assert_allclose(images.std(axis=(0, 1, 2)), 1, atol=1e-5)
    record = json.loads(json.dumps(data.provenance))
    assert record == data.provenance
    assert len(record["sha256"]) == 64
    assert {"source", "resize", "channels", "standardisation", "labels"} <= set(record)
    assert record["num_examples"] == 11 and record["num_classes"] == data.num_classes


def test_true_labels_and_first_examples(spec):
    data = load_data(spec, image_size=8, num_examples=5)
    assert data.labels.tolist() == [0, 1, 2, 0, 1]
    assert data.num_classes == 3
    with np.load(spec.removeprefix("npz:")) as archive:
        first = archive["x"][:5].astype(np.float64)
    expected = (first - first.mean(axis=(0, 1, 2))) / first.std(axis=(0, 1, 2))
    np.testing.assert_allclose(data.images, expected, atol=1e-5)


def test_random_labels_do_not_touch_the_images(spec):
    true = load_data(spec)
    first, second, again = (
        load_data(spec, labels="random", num_classes=7, key=jax.random.key(seed))
        for seed in (0, 1, 0)
    )
    np.testing.assert_array_equal(first.images, true.images)
    assert first.num_classes == 7
    assert first.labels.tolist() == again.labels.tolist() != second.labels.tolist()
    assert first.provenance == again.provenance
    assert first.provenance["key"] == "threefry2x32:0,0"
    assert second.provenance["key"] == "threefry2x32:0,1"


def test_random_is_the_random_batch():
    data = load_data("random", image_size=4, channels=2, num_classes=5, key=jax.random.key(3))
    x, y = random_batch(jax.random.key(3), 1024, 4, 2, 5)
    np.testing.assert_array_equal(data.images, x)
    np.testing.assert_array_equal(data.labels, y)


def test_hash_changes_with_the_data_alone(spec, tmp_path):
    one = load_data(spec).provenance["sha256"]
    assert load_data(spec, image_size=16, channels=1).provenance["sha256"] == one
    path = spec.removeprefix("npz:")
    with np.load(path) as archive:
        images, labels = archive["x"], archive["y"]
    images[3, 0, 0, 0] ^= 1
    np.savez(path, x=images, y=labels)
    assert load_data(spec).provenance["sha256"] != one


def test_what_was_done_is_logged(spec, caplog):
    with caplog.at_level(logging.INFO, logger="nasjax.data"):
        load_data(spec, image_size=16, channels=1)
    assert "resize bilinear, antialiased: 8x8 -> 16x16" in caplog.text
    assert "channels luminance (BT.601): 3 -> 1" in caplog.text


@pytest.mark.parametrize(
    "name, message",
    [
        ("fashon_mnist", "unknown data set 'fashon_mnist'. Did you mean 'fashion_mnist'\\?"),
        ("nzp:a.npz", "unknown data set 'nzp'. Did you mean 'npz'\\?"),
        ("a.npz", "A file is written npz:PATH"),
        ("cifar10", "Known: digits, fashion_mnist, npz, random, tfds.* set tfds:NAME"),
        ("", "unknown data set ''"),
        (":", "unknown data set ':'"),
        ("npz", "a path must follow 'npz:', got 'npz'"),
        ("npz:", "a path must follow 'npz:', got 'npz:'"),
        ("tfds:", "a name must follow 'tfds:', got 'tfds:'"),
        ("digits:8", "nothing may follow 'digits', got 'digits:8'"),
        ("random:", "nothing may follow 'random'"),
        (None, "`spec` must be a string, got NoneType"),
        ("npz:/no/such\nfile", "must be a file that can be read, got no such file"),
    ],
)
def test_unknown_specs_are_refused(name, message):
    _refused(name, message)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"image_size": 0}, "`image_size` must be at least 1, got 0"),
        ({"image_size": 8.0}, "`image_size` must be a whole number"),
        ({"channels": -1}, "`channels` must be at least 1, got -1"),
        ({"channels": 2}, "`channels` must be 3, as stored, or 1 for luminance, got 2"),
        ({"num_examples": 0}, "`num_examples` must be at least 1, got 0"),
        ({"num_examples": 13}, "`num_examples` must be at most the 12 that are stored, got 13"),
        ({"num_examples": 1}, "at least 2 classes, got only class 0 in 1 examples"),
        ({"num_classes": 1}, "`num_classes` must be at least 2, got 1"),
        ({"num_classes": 2}, "`num_classes` must exceed the greatest label, 2, got 2"),
        ({"num_classes": 10**6}, "`num_classes` must be at most 100000, got 1000000"),
        ({"labels": "randm"}, "unknown choice of labels 'randm'. Did you mean 'random'\\?"),
        ({"labels": "random"}, "`key` must be one random key, .* got None"),
        ({"labels": "random", "key": 0}, "`key` must be one random key, .* got 0"),
        ({"image_size": 10**6}, "must hold at most 4 GiB"),
    ],
)
def test_options_that_are_refused(spec, options, message):
    _refused(spec, message, **options)


def test_random_needs_one_key_and_a_size_that_fits():
    _refused("random", "`key` must be one random key, from which images and labels are drawn")
    keys = jax.random.split(jax.random.key(0))
    _refused("random", "got key<fry>\\[2\\]", key=keys)
    _refused("random", "must hold at most 4 GiB", key=jax.random.key(0), num_examples=10**9)


def test_one_class_or_constant_images_are_refused(tmp_path):
    path = tmp_path / "set.npz"
    images = np.random.default_rng(0).random((4, 8, 8))
    np.savez(path, x=images, y=np.zeros(4, int))
    _refused(f"npz:{path}", "at least 2 classes, got only class 0 in 4 examples")
    _refused(f"npz:{path}", "random labels need", labels="random", key=jax.random.key(0))
    load_data(f"npz:{path}", labels="random", key=jax.random.key(0), num_classes=2)
    np.savez(path, x=np.full((4, 8, 8), 0.3), y=np.arange(4))
    _refused(f"npz:{path}", "must vary over the set, got channel 0 of 1 constant")


def test_lack_of_memory_is_told(spec, monkeypatch):
    def fail(*args, **options):
        raise MemoryError

    monkeypatch.setattr(load_module, "to_network_input", fail)
    _refused(spec, "the data must fit into memory")


def test_fashion_mnist_falls_back_to_the_catalogue(monkeypatch):
    def fail(where, name, *, num_examples, download, split):
        assert (name, num_examples, download, split) == ("fashion_mnist", 5, False, "train")
        raise InputError(f"{where}: no network.")

    monkeypatch.setattr(local, "find_fashion_mnist", lambda: None)
    monkeypatch.setattr(from_tfds, "read_tfds", fail)
    message = "no network. .*apt-get install dataset-fashion-mnist.*NASJAX_FASHION_MNIST"
    _refused("fashion_mnist", message, num_examples=5, download=False)


def test_import_is_light():
    code = (
        "import sys, nasjax.data; "
        "print([m for m in ('tensorflow', 'tensorflow_datasets', 'sklearn') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert output.stdout.decode().strip() == "[]"
