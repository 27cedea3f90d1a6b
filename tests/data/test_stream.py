"""What a stream reads, in which order, and what it gives."""

import threading

import numpy as np
import prepared_pictures
import pytest

from nasjax.data import hold_out, load_splits, stream
from nasjax.data.stream import ArrayRecords, Stream, lanes_order
from nasjax.errors import InputError


class _Records:
    """Grey images whose pixels and labels are their place."""

    num_classes, channels, source = 1000, 1, "places"

    def __init__(self, bounds):
        self.bounds, self.read_chunks, self._lock = np.array(bounds), [], threading.Lock()

    def read(self, chunk):
        with self._lock:
            self.read_chunks.append(chunk)
        places = np.arange(self.bounds[chunk], self.bounds[chunk + 1])
        images = np.zeros((len(places), 4, 4, 1), np.uint8) + places[:, None, None, None]
        return images.astype(np.uint8), places.astype(np.int32)


def _stream(records, **kwargs):
    return Stream("here", records, **{"image_size": 4, "min_area": None, **kwargs})


@pytest.mark.parametrize("batch_size", [8, 6, 5])
def test_an_epoch_has_every_example_of_whole_batches_once(batch_size):
    bounds = [0, 40, 70, 100, 107]
    for epoch in range(3):
        order = lanes_order(3, epoch, bounds, batch_size)
        assert len(order) == 107 // batch_size * batch_size
        assert len(set(order.tolist())) == len(order) and 0 <= order.min() <= order.max() < 107
        np.testing.assert_array_equal(order, lanes_order(3, epoch, bounds, batch_size))
    assert order.tolist() != lanes_order(3, 0, bounds, batch_size).tolist()
    assert order.tolist() != lanes_order(4, 2, bounds, batch_size).tolist()


def test_examples_left_out_are_others_in_every_epoch():
    left = [set(range(107)) - set(lanes_order(0, epoch, [0, 50, 107], 25)) for epoch in range(20)]
    assert len(set.union(*left)) > 50


def test_batches_mix_many_chunks_and_read_few_at_a_time(monkeypatch):
    monkeypatch.setattr(stream, "WINDOW", 64)
    monkeypatch.setattr(stream, "READ_AHEAD", 16)
    bounds = np.arange(0, 4001, 40)  # 100 chunks
    records = _Records(bounds)
    chosen = lanes_order(0, 0, bounds, 16).reshape(-1, 16)
    assert min(len(np.unique(step // 40)) for step in chosen) >= 7
    opened = _stream(records)
    read = opened.reader(chosen)
    schedule = read.__closure__[[cell for cell in read.__code__.co_freevars].index("schedule")]
    most_held = 0
    for step in range(len(chosen)):
        _, labels = read(step, None)
        np.testing.assert_array_equal(labels, chosen[step])
        most_held = max(most_held, len(schedule.cell_contents._held))
    # A window of 64 touches at most three chunks of a lane, and one more is read ahead.
    assert most_held <= 8 * 4
    assert sorted(records.read_chunks) == list(range(100))
    assert not schedule.cell_contents._held


def test_windows_mix_a_lane():
    """Within a lane's window neighbours come apart: places wander by a third of the window."""
    order = lanes_order(0, 0, [0, 8 * 4096], 8).reshape(-1, 8)
    lane = order[:, 7]  # whose first window is whole
    assert set(lane[:1024]) == set(range(lane[:1024].min(), lane[:1024].max() + 1))
    wandered = np.abs(lane[:1024] - np.sort(lane[:1024])).mean()
    np.testing.assert_allclose(wandered, 1024 / 3, rtol=0.1)


def test_a_restart_reads_only_what_is_left():
    records = _Records(np.arange(0, 401, 10))
    chosen = np.arange(400).reshape(40, 10)
    images, labels = _stream(records).reader(chosen)(37, None)
    assert labels.tolist() == list(range(370, 380))
    np.testing.assert_array_equal(images[:, 2, 2, 0], np.arange(370, 380) % 256)
    assert min(records.read_chunks) == 37


def test_processes_read_lanes_of_their_own():
    bounds = np.arange(0, 1601, 20)
    order = lanes_order(1, 0, bounds, 16).reshape(-1, 16)
    parts = [_Records(bounds), _Records(bounds)]
    for records, rows in zip(parts, (slice(0, 8), slice(8, 16)), strict=True):
        read = _stream(records).reader(order[:, rows])
        for step in range(len(order)):
            np.testing.assert_array_equal(read(step, None)[1], order[step, rows])
    shared = set(parts[0].read_chunks) & set(parts[1].read_chunks)
    assert len(shared) <= 2  # those that the middle of the epoch and its beginning cut


def test_arrays_are_taken_in_a_uniform_order():
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (30, 4, 4, 3), np.uint8), np.arange(30)
    opened = _stream(ArrayRecords(images, labels, 30, "arrays"))
    firsts = [opened.order(seed, 0, 10)[0] for seed in range(600)]
    assert np.bincount(firsts, minlength=30).min() > 3  # 20 are expected
    found, found_labels = opened.reader(np.array([[4, 7]]))(0, None)
    np.testing.assert_array_equal(found, images[[4, 7]])
    assert found_labels.tolist() == [4, 7]
    with pytest.raises(InputError, match="must be bytes in 1 or 3 channels, got float32 in 3"):
        ArrayRecords(images.astype(np.float32), labels, 30, "arrays")


def test_images_that_cannot_be_read_are_named():
    class Damaged(_Records):
        def read(self, chunk):
            return [b"no picture"] * 5, np.zeros(5, np.int32)

    read = _stream(Damaged([0, 5, 10])).reader(np.array([[7]]))
    with pytest.raises(InputError, match="here: image 7 of places must be readable, got cannot"):
        read(0, None)


def test_a_prepared_data_set_of_many_sizes_is_streamed(pictures):
    spec = f"tfds:{prepared_pictures.NAME}"
    splits = load_splits(spec, image_size=16, min_area=0.08)
    assert (splits.train.num_examples, splits.test.num_examples) == (250, 30)
    assert splits.train.image_shape == (16, 16, 3) and splits.num_classes == 3
    images, labels = splits.test.reader(np.arange(30)[None])(0, None)
    assert images.shape == (30, 16, 16, 3) and images.dtype == np.uint8
    np.testing.assert_array_equal(images.mean((1, 2)).argmax(-1), labels)
    # Noise of 0 to 79 and a third of the images 120 higher, in each channel.
    np.testing.assert_allclose(splits.mean, 79.5, atol=3)
    assert splits.provenance["resize"].startswith("random crops of 0.08 to 1 of the area")
    draws = np.random.default_rng(0).random((30, splits.train.num_draws))
    some, same, other = (
        splits.train.reader(np.arange(30)[None])(0, rows)[0] for rows in (draws, draws, 1 - draws)
    )
    np.testing.assert_array_equal(some, same)
    assert (some != other).mean() > 0.9
    with pytest.raises(InputError, match="`image_size` must be given for images of many sizes"):
        load_splits(spec)
    with pytest.raises(InputError, match="hold_out: examples must be in memory, got a stream"):
        hold_out(splits.train, 0.5, seed=0)


def test_crops_come_out_of_arrays_too(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.integers(0, 256, (40, 12, 12, 3), np.uint8), "y": np.arange(40) % 4}
    np.savez(tmp_path / "a.npz", **arrays, x_test=arrays["x"][:7], y_test=arrays["y"][:7])
    splits = load_splits(f"npz:{tmp_path / 'a.npz'}", image_size=8, min_area=0.5)
    assert splits.train.image_shape == (8, 8, 3) and splits.test.num_examples == 7
    assert splits.provenance["num_train"] == 40
