"""Trainings from settings to files: interruption, bad input, what is written."""

import json
import math

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.runs import TrainSettings, evaluate_run, load_trained, run_training

CELL = "|nor_conv_1x1~0|+|none~0|skip_connect~1|+|none~0|none~1|skip_connect~2|"
SMALL = {"architecture": CELL, "data": "digits", "channels": 4, "epochs": 2, "batch_size": 240}


def _lines(folder):
    """Without what tells the time."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if name not in ("images_per_s", "input_share")}
        for line in lines
    ]


def _timeless(record):
    return {name: value for name, value in record.items() if name != "seconds"}


class _StoppedError(Exception):
    pass


def _stop_at(step):
    def on_report(done, num_steps, record):
        if record and done >= step:
            raise _StoppedError

    return on_report


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("train") / "whole"
    return out, run_training(TrainSettings(**SMALL), out)


def test_a_training_leaves_its_files(whole):
    out, result = whole
    record = json.loads((out / "result.json").read_text())
    assert record == json.loads(json.dumps(result.record))
    assert result.num_run == record["steps"] == 2 * (1437 // 240)
    kinds = [line["kind"] for line in _lines(out)]
    assert kinds == ["steps", "epoch", "steps", "epoch"]
    assert record["parameters"] == (4 * 4 + 8) + _rest_of_parameters()
    assert record["architecture"] == CELL
    assert (out / "curves.svg").stat().st_size > 1000
    assert (out / "curves.png").stat().st_size > 1000
    first, last = (line["train_loss"] for line in _lines(out) if line["kind"] == "epoch")
    assert last < first - 0.05
    assert last == record["train_loss"]
    assert 2.0 < record["test_loss"] < 1.1 * math.log(10)
    assert record["data"]["num_train"] == 1437


def _rest_of_parameters():
    """Of four channels and one cell a stage, but for the first stage's 1x1 convolution."""
    stem = 9 * 4 + 8
    cells = sum(c * c + 2 * c for c in (8, 16))
    reductions = sum(9 * c * 2 * c + 9 * 4 * c * c + 2 * c * c + 8 * c for c in (4, 8))
    return stem + cells + reductions + 2 * 16 + 16 * 10 + 10


def test_a_finished_training_is_not_repeated(whole):
    out, result = whole
    again = run_training(TrainSettings(**SMALL), out)
    assert again.num_run == 0
    assert _timeless(again.record) == _timeless(result.record)


def test_a_training_that_was_stopped_ends_the_same(whole, tmp_path):
    out, result = whole
    settings = TrainSettings(**SMALL)
    with pytest.raises(_StoppedError):  # at the end of the first epoch, before it is saved
        run_training(settings, tmp_path, save_every_s=0.0, on_report=_stop_at(5))
    with pytest.raises(_StoppedError):
        run_training(settings, tmp_path, save_every_s=0.0, on_report=_stop_at(10))
    resumed = run_training(settings, tmp_path)
    assert resumed.num_run == 5
    assert _lines(tmp_path) == _lines(out)
    assert _timeless(resumed.record) == _timeless(result.record)


def test_a_damaged_checkpoint_is_told_and_passed_over(whole, tmp_path):
    settings, told = TrainSettings(**SMALL), []
    run_training(settings, tmp_path, save_every_s=0.0)
    (tmp_path / "checkpoints" / "10" / "record" / "metadata").write_text("")
    again = run_training(settings, tmp_path, on_message=told.append)
    assert told == ["the checkpoint of step 10 is damaged; going on from that of step 5"]
    assert again.num_run == 5
    assert _lines(tmp_path) == _lines(whole[0])


def test_a_checkpoint_is_tested_again(whole):
    out, result = whole
    found = evaluate_run(out)
    assert found.accuracy == result.record["test_accuracy"]
    np.testing.assert_allclose(found.loss, result.record["test_loss"], rtol=1e-6)


def test_a_trained_network_is_a_function_of_images(whole):
    out, result = whole
    trained = load_trained(out)
    images, labels = trained.load_splits().test
    logits = jax.jit(trained.apply)(images)
    accuracy = np.mean(np.argmax(logits, -1) == labels)
    assert accuracy == pytest.approx(result.record["test_accuracy"], abs=1e-6)


def test_several_devices_train_the_same(whole, tmp_path):
    _, result = whole
    spread = run_training(TrainSettings(**SMALL), tmp_path, num_devices=2)
    np.testing.assert_allclose(spread.record["train_loss"], result.record["train_loss"], rtol=1e-3)


def test_a_loss_that_is_not_finite_ends_the_run_and_is_not_saved(tmp_path):
    settings = TrainSettings(**SMALL | {"learning_rate": 1e30, "epochs": 4})
    with pytest.raises(InputError, match="the loss must stay finite, got nan at step"):
        run_training(settings, tmp_path, save_every_s=0.0)
    with pytest.raises(InputError, match="must hold a checkpoint, got none|the loss must stay"):
        run_training(settings, tmp_path)


def test_a_network_outlives_its_recipe_file_and_its_data(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.integers(0, 256, (40, 8, 8, 1), np.uint8), "y": np.arange(40) % 4}
    arrays |= {"x_test": arrays["x"][:8], "y_test": arrays["y"][:8]}
    data, recipe = tmp_path / "data.npz", tmp_path / "mine.py"
    np.savez(data, **arrays)
    recipe.write_text(
        "import dataclasses\nfrom nasjax.training import Augmentation, Jitter, get_recipe\n"
        "RECIPE = dataclasses.replace(get_recipe('quick'), label_smoothing=0.1)\n"
    )
    settings = {**SMALL, "recipe": str(recipe), "data": f"npz:{data}", "batch_size": 20}
    result = run_training(TrainSettings(**settings | {"epochs": 1}), tmp_path / "run")
    recipe.unlink()
    found = evaluate_run(tmp_path / "run")
    assert found.accuracy == result.record["test_accuracy"]
    assert (found.step, found.num_steps, found.num_examples, found.resize) == (2, 2, 8, "none")
    moved = data.rename(tmp_path / "other.npz")
    logits = load_trained(tmp_path / "run").apply(arrays["x"][:3])
    assert logits.shape == (3, 4)
    assert evaluate_run(tmp_path / "run", data=f"npz:{moved}").loss == found.loss
    np.savez(data, **arrays | {"x_test": arrays["x"][1:9]})
    with pytest.raises(InputError, match="with another sha256_test. Give them back"):
        evaluate_run(tmp_path / "run")


def test_recipe_files_that_do_not_run_are_told(tmp_path):
    recipe = tmp_path / "mine.py"
    for text, message in (
        ("RECIPE = (", "must run, got SyntaxError"),
        ("import nothing_here", "must run, got ModuleNotFoundError: No module named"),
        ("RECIPE = 3", "must set RECIPE to a nasjax.training.Recipe, got int"),
    ):
        recipe.write_text(text)
        with pytest.raises(InputError, match=message):
            TrainSettings(**SMALL | {"recipe": str(recipe)})


def test_parts_must_divide_what_a_device_has(tmp_path):
    with pytest.raises(InputError, match="--num-parts: must divide the 120 images .* got 7"):
        run_training(TrainSettings(**SMALL, num_parts=7), tmp_path)


def test_a_run_that_is_asked_to_stop_saves_its_state(whole, tmp_path):
    told = []
    with pytest.raises(KeyboardInterrupt):
        run_training(TrainSettings(**SMALL), tmp_path, should_stop=lambda: True)
    again = run_training(TrainSettings(**SMALL), tmp_path, on_message=told.append)
    assert told == ["going on from the checkpoint of step 5 of 10"] and again.num_run == 5
    assert _lines(tmp_path) == _lines(whole[0])


@pytest.mark.parametrize("batch_size", [1436, 700])
def test_a_state_that_is_not_finite_is_not_saved(tmp_path, batch_size):
    """The loss of a step tells of the state before it."""
    settings = TrainSettings(
        **SMALL | {"learning_rate": 1e30, "epochs": 1, "batch_size": batch_size}
    )
    with pytest.raises(InputError, match="must stay finite, got .* at step [12] of [12]"):
        run_training(settings, tmp_path, save_every_s=0.0)
    with pytest.raises(InputError, match="must hold a checkpoint, got none yet"):
        evaluate_run(tmp_path)


def test_tensorboard_has_the_lines_of_the_history(tmp_path):
    settings = TrainSettings(**SMALL)
    with pytest.raises(_StoppedError):
        run_training(
            settings, tmp_path, save_every_s=0.0, use_tensorboard=True, on_report=_stop_at(10)
        )
    run_training(settings, tmp_path, use_tensorboard=True)
    found = {}
    for file in sorted((tmp_path / "tensorboard").iterdir()):
        for event in _events(file.read_bytes()):
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    expected = {
        (f"{line['kind']}/{name}", line["step"]): value
        for line in _lines(tmp_path)
        for name, value in line.items()
        if name not in ("kind", "step", "epoch")
    }
    assert expected.keys() <= found.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6)


def _events(content):
    """Records are a length in eight bytes, its checksum in four, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    while content:
        length = int.from_bytes(content[:8], "little")
        yield Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]


def test_other_settings_are_refused(whole):
    with pytest.raises(InputError, match="learning_rate: there nothing, here 0.5"):
        run_training(TrainSettings(**SMALL | {"learning_rate": 0.5}), whole[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": "quik"}, "Did you mean 'quick'"),
        (
            {"space": "mlp", "recipe": "nasbench201_12"},
            "has networks of nasbench201, got an architecture of mlp",
        ),
        ({"architecture": None}, "trains one architecture, got none"),
        ({"recipe": "supernet"}, "draws an architecture a step, so none must be given"),
        ({"channels": 0}, "--channels: must be at least 1, got 0"),
        ({"compute_dtype": "float16"}, "unknown type 'float16'"),
        ({"seed": -1}, "--seed: must be"),
        ({"epochs": 0}, "--epochs: must be at least 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        TrainSettings(**SMALL | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 7}, "--batch-size: must be a multiple of the 2 devices, got 7. 6 would do"),
        ({"batch_size": 2000}, "--batch-size: must be at most the 1437 examples"),
        ({"architecture": "|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"}, "a dead network"),
        ({"test_data": "npz:x.npz"}, "`test` goes with npz:PATH"),
    ],
)
def test_runs_that_cannot_be_are_refused_before_a_folder_is_made(change, message, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(InputError, match=message):
        run_training(TrainSettings(**SMALL | change), out, num_devices=2)
    assert not out.exists()


def test_more_devices_than_there_are_are_refused(tmp_path):
    with pytest.raises(InputError, match="--devices: must be 1 to the 2 cpu devices .* got 5"):
        run_training(TrainSettings(**SMALL), tmp_path, num_devices=5)


def test_a_name_tells_what_was_given():
    name = TrainSettings(**SMALL).run_name()
    assert name.startswith("train-quick-")
    assert name.endswith("-nasbench201-digits-epochs=2-batch_size=240-channels=4-seed0")
    other = TrainSettings(**SMALL | {"architecture": "6111"}).run_name()
    assert other != name
