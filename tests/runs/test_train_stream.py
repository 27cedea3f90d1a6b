"""Trainings with images of many sizes in files: crops, jitter, interruption."""

import json

import prepared_pictures
import pytest

from nasjax.errors import InputError
from nasjax.runs import TrainSettings, run_training

CELL = "|nor_conv_1x1~0|+|none~0|skip_connect~1|+|none~0|none~1|skip_connect~2|"
RECIPE = """
import dataclasses
from nasjax.training import Augmentation, Jitter, get_recipe

RECIPE = dataclasses.replace(
    get_recipe("quick"),
    augmentation=Augmentation(min_area=0.5, is_flipped=True, jitter=Jitter(0.2, 0.2, 0.2, 0.02)),
    moments=((80.0,) * 3, (60.0,) * 3),
)
"""


class _StoppedError(Exception):
    pass


def _stop(done, num_steps, record):
    if record.get("step") == 20:
        raise _StoppedError


def test_a_stream_is_learned_and_an_interruption_leaves_no_trace(pictures, tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(RECIPE)
    settings = TrainSettings(
        architecture=CELL,
        recipe=str(recipe),
        data=f"tfds:{prepared_pictures.NAME}",
        channels=4,
        epochs=3,
        batch_size=24,
        image_size=16,
    )
    whole = run_training(settings, tmp_path / "whole").record
    assert whole["test_accuracy"] > 0.9  # a colour a class
    assert whole["data"]["test"].endswith("split validation")
    assert whole["recipe"]["augmentation"]["jitter"]["hue"] == 0.02
    with pytest.raises(_StoppedError):
        run_training(settings, tmp_path / "stopped", save_every_s=0, on_report=_stop)
    resumed = run_training(settings, tmp_path / "stopped")
    assert resumed.num_run == 20
    for name in ("train_loss", "test_loss", "test_accuracy"):
        assert resumed.record[name] == whole[name]
    assert json.loads((tmp_path / "whole" / "settings.json").read_text())["image_size"] == 16


def test_means_of_the_recipe_must_fit(tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(RECIPE)
    settings = TrainSettings(architecture=CELL, recipe=str(recipe), data="digits", image_size=8)
    with pytest.raises(InputError, match="has means of 3 channels, .* got 1"):
        run_training(settings, tmp_path / "run")
