"""The picture of a training."""

import pytest

from nasjax.errors import InputError
from nasjax.evaluation import draw_curves

HISTORY = [
    {"kind": "steps", "epoch": 0.5, "loss": 2.0, "accuracy": 0.3},
    {"kind": "steps", "epoch": 1.0, "loss": 1.0, "accuracy": 0.6},
    {"kind": "epoch", "epoch": 1, "test_loss": 1.5, "test_accuracy": 0.5},
]


def test_equal_histories_give_equal_pictures(tmp_path):
    files = [draw_curves(HISTORY, tmp_path / name, title="a title") for name in ("a", "b")]
    assert [path.name for path in files[0]] == ["a.svg", "a.png"]
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes()
    other = draw_curves([*HISTORY[:2], {**HISTORY[2], "test_accuracy": 0.9}], tmp_path / "c")
    assert other[0].read_bytes() != files[0][0].read_bytes()


def test_nothing_is_no_picture(tmp_path):
    with pytest.raises(InputError, match="must hold records of steps, got none"):
        draw_curves(HISTORY[2:], tmp_path / "a")
