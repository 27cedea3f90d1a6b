import contextlib
import shutil
import sys
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import prepared_pictures
import pytest

from nasjax.data import base, from_tfds, load_data, load_splits, stream
from nasjax.data.crops import decoded
from nasjax.data.from_tfds import TfdsRecords, read_tfds
from nasjax.errors import InputError


class _Builder:
    """As much of a builder as preparing one needs."""

    data_dir = "/data"
    url_infos = {"http://example.invalid/a": None}

    def __init__(self, error=None, is_ready=False):
        self.error = error
        self.is_ready = is_ready
        self.num_downloads = 0

    def is_prepared(self):
        return self.is_ready

    def download_and_prepare(self):
        self.num_downloads += 1
        if self.error is not None:
            raise self.error


def _answer(error):
    def urlopen(request, timeout):
        assert request.get_method() == "HEAD" and timeout <= 10
        raise error

    return urlopen


@pytest.mark.parametrize("missing", ["tensorflow", "tensorflow_datasets"])
def test_without_tensorflow(monkeypatch, missing):
    if missing == "tensorflow_datasets":  # so that TensorFlow itself is not needed, nor imported
        monkeypatch.setitem(sys.modules, "tensorflow", sys)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match="must be importable, got .*Run `pip install"):
        load_data("tfds:mnist")


def test_no_network_is_told_without_a_download(monkeypatch):
    error = urllib.error.URLError("Name or service not known")
    monkeypatch.setattr(urllib.request, "urlopen", _answer(error))
    builder = _Builder()
    with pytest.raises(InputError, match="needs the network, got .*Name or service not known"):
        from_tfds._prepare("here", builder, download=True)
    assert builder.num_downloads == 0


def test_any_answer_means_network(monkeypatch):
    error = urllib.error.HTTPError("http://example.invalid/a", 403, "Forbidden", None, None)
    monkeypatch.setattr(urllib.request, "urlopen", _answer(error))
    builder = _Builder()
    from_tfds._prepare("here", builder, download=True)
    assert builder.num_downloads == 1
    error.close()


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("Manual directory does not exist\nand more"),
        OSError("No space left on device"),
        NotImplementedError(),
    ],
)
def test_failed_preparation_is_told_in_one_line(monkeypatch, error):
    monkeypatch.setattr(from_tfds, "_check_network", lambda where, builder: None)
    with pytest.raises(InputError, match="must be downloaded and prepared, got ") as caught:
        from_tfds._prepare("here", _Builder(error), download=True)
    assert type(error).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_package_of_tfds_is_named(monkeypatch):
    # tensorflow-datasets 4.9.10 imports importlib_resources, which etils 1.15 no longer brings.
    error = ModuleNotFoundError("No module named 'importlib_resources'", name="importlib_resources")
    monkeypatch.setattr(from_tfds, "_check_network", lambda where, builder: None)
    with pytest.raises(InputError, match="Run `pip install importlib_resources`"):
        from_tfds._prepare("here", _Builder(error), download=True)


def test_download_only_where_needed_and_allowed():
    with pytest.raises(InputError, match="prepared in '/data' where downloads are not allowed"):
        from_tfds._prepare("here", _Builder(), download=False)
    builder = _Builder(is_ready=True)
    from_tfds._prepare("here", builder, download=True)
    assert builder.num_downloads == 0


@pytest.fixture
def mock_tfds(tfds, monkeypatch):
    monkeypatch.setattr(from_tfds, "_check_network", lambda where, builder: None)
    with tfds.testing.mock_data(num_examples=300):
        yield tfds


def test_reads_what_tfds_gives(mock_tfds):
    raw = read_tfds("here", "mnist")
    expected = list(mock_tfds.as_numpy(mock_tfds.load("mnist", split="train")))
    np.testing.assert_array_equal(raw.images, [example["image"] for example in expected])
    np.testing.assert_array_equal(raw.labels, [example["label"] for example in expected])
    assert raw.images.shape == (300, 28, 28, 1)
    assert raw.num_classes == 10
    assert raw.source == "TensorFlow Datasets mnist/3.0.1, split train"


def test_load_data_from_the_catalogue(mock_tfds):
    data = load_data("tfds:cifar100", image_size=16, num_examples=7)
    assert data.images.shape == (7, 16, 16, 3)
    assert data.num_classes == 100
    assert data.provenance["resize"] == "bilinear, antialiased: 32x32 -> 16x16"


def test_load_splits_from_the_catalogue(mock_tfds):
    splits = load_splits("tfds:cifar10")
    expected = list(mock_tfds.as_numpy(mock_tfds.load("cifar10", split="test")))
    np.testing.assert_array_equal(splits.test.images, [example["image"] for example in expected])
    np.testing.assert_array_equal(splits.test.labels, [example["label"] for example in expected])
    assert splits.train.images.shape == (300, 32, 32, 3)
    assert splits.num_classes == 10
    assert splits.provenance["test"].endswith("split test")


def test_encoded_images_are_those_that_tfds_decodes(tfds, pictures):
    records = TfdsRecords("here", prepared_pictures.NAME, split="train")
    lengths = np.diff(records.bounds)
    assert len(lengths) == prepared_pictures.NUM_FILES and records.bounds[-1] == 250
    one_by_one = tfds.ReadConfig(interleave_cycle_length=1)
    examples = tfds.load(prepared_pictures.NAME, split="train", read_config=one_by_one)
    expected = list(tfds.as_numpy(examples))
    for chunk in (3, 0):
        images, labels = records.read(chunk)
        assert len(images) == lengths[chunk]
        for place, (stored, label) in enumerate(zip(images, labels, strict=True)):
            example = expected[records.bounds[chunk] + place]
            # Two decoders of JPEG round differently.
            difference = np.abs(np.int32(decoded(stored, 3)) - example["image"])
            assert difference.max() <= 6 and difference.mean() < 1.5
            assert label == example["label"]


def test_load_data_takes_the_middle_of_images_of_many_sizes(pictures, monkeypatch):
    monkeypatch.setattr(stream, "WINDOW", 30)
    spec = f"tfds:{prepared_pictures.NAME}"
    data = load_data(spec, image_size=16, num_examples=70)
    splits = load_splits(spec, image_size=16, min_area=0.5)
    stored, labels = splits.train.first(70)
    np.testing.assert_array_equal(data.labels, labels)
    scaled = (stored - stored.mean((0, 1, 2))) / stored.std((0, 1, 2))
    np.testing.assert_allclose(data.images, scaled, atol=1e-5)
    assert data.provenance["source"].endswith("split train, the middle of each image")
    with pytest.raises(InputError, match="at most the 250 that are stored, got 251"):
        load_data(spec, num_examples=251)


def test_where_there_is_no_test_split_validation_is_it(pictures):
    records = TfdsRecords("here", prepared_pictures.NAME, split="test")
    assert records.source.endswith("nasjax_test_pictures/1.0.0, split validation")
    assert records.bounds[-1] == prepared_pictures.NUM_HELD
    with pytest.raises(InputError, match="there must be a split 'middle' .*, got train, valid"):
        TfdsRecords("here", prepared_pictures.NAME, split="middle")


@pytest.mark.parametrize(("label", "held"), [(-1, "validation"), (0, "test")])
def test_a_test_split_without_labels_is_none(tfds, monkeypatch, label, held):
    opened = from_tfds._Opened(
        None, tfds, SimpleNamespace(info=SimpleNamespace(splits=["validation", "test"])), None, None
    )
    monkeypatch.setattr(
        from_tfds, "_told_errors", lambda where, tf, split: contextlib.nullcontext()
    )
    monkeypatch.setattr(tfds, "as_numpy", lambda examples: iter(examples))
    monkeypatch.setattr(from_tfds._Opened, "_examples", lambda *_: [{"label": label}])
    assert opened.split_name("here", "test") == held
    assert opened.split_name("here", "train") == "train"


def test_files_are_cut_into_chunks():
    bounds = from_tfds._chunk_bounds([100, 0, 5000, 2048])
    assert bounds.tolist() == [0, 100, 100 + 1666, 100 + 3333, 5100, 7148]


def test_damaged_files_are_told(tfds, pictures, tmp_path):
    shutil.copytree(pictures, tmp_path, dirs_exist_ok=True)
    (file,) = tmp_path.glob("*/*/*train*00002-of*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)
    builder = tfds.builder(prepared_pictures.NAME, data_dir=tmp_path)
    records = TfdsRecords("here", prepared_pictures.NAME, split="train")
    records._opened = records._opened._replace(builder=builder)
    assert len(records.read(1)[1]) > 0
    with pytest.raises(InputError, match="split 'train' must be readable, got DataLossError"):
        records.read(2)


def test_reading_stops_at_the_limit(mock_tfds, monkeypatch):
    monkeypatch.setattr(base, "MAX_ARRAY_BYTES", 260 * 28 * 28)
    with pytest.raises(InputError, match="the images must hold at most"):
        read_tfds("here", "mnist")
    assert len(read_tfds("here", "mnist", num_examples=260).images) == 260


@pytest.mark.parametrize(
    "name, message",
    [
        ("cifar_10", "in the TensorFlow Datasets catalogue, or .* got .cifar_10.. Did you mean"),
        ("no_such_data_set_at_all", "`tfds.list_builders\\(\\)` lists them"),
        ("mnist/no_config", "must be a data set of the .* catalogue, .* got ValueError"),
        ("mnist:9.9.9", "must be a data set of the .* catalogue, .* got AssertionError"),
        ("../x", "must be a data set of the .* catalogue, .* got ValueError"),
        ("imdb_reviews", "there must be an image feature 'image' and a class feature 'label'"),
        ("imagenette", "images must have one fixed size, got \\(None, None, 3\\)"),
    ],
)
def test_names_that_are_refused(tfds, name, message):
    with pytest.raises(InputError, match=message) as caught:
        read_tfds("here", name, download=False)
    assert "\n" not in str(caught.value)
