"""DARTS and shared random weights from settings to files, and that interruptions change nothing."""

import dataclasses
import json
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nasjax.runs.darts as runs_darts
from nasjax.data import Examples, hold_out, load_data
from nasjax.errors import InputError
from nasjax.runs import DartsSettings, run_darts, run_darts_seeds
from nasjax.search import darts, mlp_project, mlp_relax, mlp_variables
from nasjax.spaces import mlp_space

TINY = {
    "data": "digits",
    "image_size": 8,
    "num_examples": 100,
    "depth": 3,
    "width": 8,
    "batch_size": 12,
    "epochs": 3,
    "seed": 4,
}
"""49 or 50 examples a part, 4 steps an epoch."""
RANDOM = {**TINY, "algorithm": "random", "num_candidates": 30, "candidate_examples": 20}
PICTURES = ["cells.svg", "cells.png", "choices.svg", "choices.png"]


class StoppedError(Exception):
    """Raised in the middle of a run."""


def stop_at(phase, step):
    def on_step(seen_phase, seen_step, num_steps, record):
        if (seen_phase, seen_step) == (phase, step) and record:
            raise StoppedError

    return on_step


def assert_same_results(folder, other, names):
    for name in ["history.jsonl", *PICTURES, *names]:
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
    records = [json.loads((f / "architecture.json").read_text()) for f in (folder, other)]
    for record in records:
        assert record["search"].pop("seconds") > 0
    assert records[0] == records[1]


def history_of(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    seen = []
    result = run_darts(DartsSettings(**TINY), folder, on_step=lambda *step: seen.append(step))
    return folder, result, seen


@pytest.fixture(scope="module")
def whole_random_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    return folder, run_darts(DartsSettings(**RANDOM), folder)


def _plain_loss(params, weights, x, y):
    """The network written out, of depth 3."""
    x = x.reshape(len(x), -1)
    x = x / jnp.sqrt((x**2).sum(1, keepdims=True))
    functions = [
        lambda z: jnp.maximum(z, 0.0),
        lambda z: jnp.maximum(z, 0.01 * z),
        lambda z: 1 / (1 + jnp.exp(-z)) - 0.5,
        jnp.tanh,
        lambda z: z / (1 + jnp.exp(-z)),
    ]

    def mixed(layer, z):
        return sum(weights["activations"][layer, i] * f(z) for i, f in enumerate(functions))

    first = mixed(0, x @ params["layer_1"]["kernel"])
    second = mixed(1, first @ params["layer_2"]["kernel"]) + weights["skips"][0, 1] * first
    logits = second @ params["output"]["kernel"]
    log_p = logits - jnp.log(jnp.exp(logits).sum(1, keepdims=True))
    loss = -(jax.nn.one_hot(y, 10) * log_p).sum(1).mean()
    return loss, jnp.mean(jnp.argmax(logits, 1) == y)


def test_a_run_is_a_loop_over_its_two_parts(whole_run):
    folder, _, _ = whole_run
    dataset = load_data("digits", image_size=8, channels=1, num_examples=100)
    split, train_seed, held_seed = np.random.SeedSequence(4).generate_state(3).tolist()
    examples = Examples(np.asarray(dataset.images), np.asarray(dataset.labels))
    parts = hold_out(examples, 0.5, seed=split)
    assert [part.num_examples for part in parts] == [50, 50]
    with np.load(folder / "state.npz") as archive:
        final = {name: archive[name] for name in archive.files}
    params_key = jax.random.split(jax.random.key(4), 4)[0]
    length = 64 * 8 + 8 * 8 + 8 * 10
    draw = np.asarray(jax.random.normal(params_key, (1 << length.bit_length(),)))[:length]
    kernels = [draw[:512].reshape(64, 8), draw[512:576].reshape(8, 8), draw[576:].reshape(8, 10)]
    names = ["layer_1", "layer_2", "output"]
    params = {
        name: {"kernel": jnp.asarray(kernel / np.sqrt(8), jnp.float32)}
        for name, kernel in zip(names, kernels, strict=True)
    }
    search = darts(
        _plain_loss,
        init_params=lambda key: params,
        variables=mlp_variables(3, 5),
        relax=mlp_relax,
        project=mlp_project,
        num_steps=12,
    )
    state, step_fn = search.init(jax.random.key(0)), jax.jit(search.step)
    lines, infos = history_of(folder), []
    for step in range(12):
        epoch, place = divmod(step, 4)
        batches = []
        for part, seed in zip(parts, (train_seed, held_seed), strict=True):
            order = np.random.default_rng((seed, epoch)).permutation(50)
            chosen = order[12 * place : 12 * place + 12]
            batches.append((part.images[chosen], part.labels[chosen]))
        state, info = step_fn(jax.random.key(1), state, *batches)
        infos.append(info)
    for name in names:
        kept = final[f"['search'].params['{name}']['kernel']"]
        np.testing.assert_allclose(kept, state.params[name]["kernel"], rtol=1e-4, atol=1e-5)
    with np.load(folder / "logits.npz") as logits:
        for name in ("activations", "skips"):
            np.testing.assert_allclose(logits[name], state.variables[name], rtol=1e-3, atol=1e-6)
    for line, of_epoch in zip(lines, np.split(np.arange(12), 3), strict=True):
        for name in ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy"):
            mean = np.mean([float(getattr(infos[step], name)) for step in of_epoch])
            np.testing.assert_allclose(line[name], mean, rtol=1e-4)
        assert line["num_failed"] == 0


def test_files_explain_the_result(whole_run):
    folder, result, seen = whole_run
    lines = history_of(folder)
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 4), (2, 8), (3, 12)]
    assert [step[:3] for step in seen] == [("search", step, 12) for step in range(13)]
    assert seen[0][3] == {}
    with np.load(folder / "logits.npz") as archive:
        logits = dict(archive)
    exponentials = np.exp(logits["activations"].astype(np.float64))
    expected = exponentials / exponentials.sum(1, keepdims=True)
    record = json.loads((folder / "architecture.json").read_text())
    np.testing.assert_allclose(record["probabilities"]["activations"], expected, rtol=1e-5)
    np.testing.assert_allclose(lines[-1]["activations"], expected, rtol=1e-5)
    np.testing.assert_array_equal(np.float32(lines[-1]["skips"]), logits["skips"])
    chosen = [*expected.argmax(1), *(logits["skips"] > 0.5)]
    np.testing.assert_array_equal(result.genotype, chosen)
    assert record["architecture"] == mlp_space(3).to_string(np.array(chosen, np.int32))
    assert record["data"]["num_weights"] == record["data"]["num_held_out"] == 50
    assert record["rates"]["clip_norm"] == 5.0 and record["versions"]["jax"]
    assert record["search"]["last_epoch"]["train_loss"] == lines[-1]["train_loss"]


@pytest.mark.parametrize("step", [2, 4, 6, 12])
def test_interruption_changes_nothing(whole_run, tmp_path, monkeypatch, step):
    monkeypatch.setattr(runs_darts, "SAVE_EVERY", 5)  # in an epoch, too
    with pytest.raises(StoppedError):
        run_darts(DartsSettings(**TINY), tmp_path, on_step=stop_at("search", step))
    assert not (tmp_path / "architecture.json").exists()
    seen = []
    result = run_darts(DartsSettings(**TINY), tmp_path, on_step=lambda *told: seen.append(told))
    saved = {2: 0, 4: 4, 6: 5, 12: 12}[step]
    assert result.num_run == 12 - saved
    assert_same_results(whole_run[0], tmp_path, ["logits.npz"])


@pytest.mark.parametrize(("phase", "step"), [("weights", 7), ("candidates", 27)])
def test_interruption_of_random_search_changes_nothing(whole_random_run, tmp_path, phase, step):
    with pytest.raises(StoppedError):
        run_darts(DartsSettings(**RANDOM), tmp_path, on_step=stop_at(phase, step))
    run_darts(DartsSettings(**RANDOM), tmp_path)
    assert_same_results(whole_random_run[0], tmp_path, [])


def test_random_search_takes_the_best_candidate(whole_random_run):
    folder, result = whole_random_run
    lines = history_of(folder)
    assert [line["phase"] for line in lines] == ["weights"] * 3 + ["candidates"] * 30
    assert "validation_loss" not in lines[0] and lines[0]["train_loss"] > 0
    best = min(lines[3:], key=lambda line: line["validation_loss"])
    assert best["architecture"] == result.record["architecture"]
    search = result.record["search"]
    np.testing.assert_allclose(search["best_validation_loss"], best["validation_loss"], rtol=1e-6)
    assert search["best_validation_accuracy"] * 20 == pytest.approx(
        round(search["best_validation_accuracy"] * 20), abs=1e-4
    )
    chosen = np.array(result.record["probabilities"]["activations"]).argmax(1)
    np.testing.assert_array_equal(chosen, result.genotype[:2])
    assert not (folder / "logits.npz").exists()


def test_a_candidate_has_the_loss_of_its_network(whole_random_run):
    folder, _ = whole_random_run
    dataset = load_data("digits", image_size=8, channels=1, num_examples=100)
    split, _, held_seed = np.random.SeedSequence(4).generate_state(3).tolist()
    examples = Examples(np.asarray(dataset.images), np.asarray(dataset.labels))
    _, held = hold_out(examples, 0.5, seed=split)
    chosen = np.sort(np.random.default_rng(held_seed).permutation(50)[:20])
    with np.load(folder / "state.npz") as archive:
        params = {
            name: {"kernel": archive[f"['search'].params['{name}']['kernel']"]}
            for name in ("layer_1", "layer_2", "output")
        }
    space = mlp_space(3)
    for line in history_of(folder)[3:8]:
        weights = space.one_hot(space.from_string(line["architecture"]))
        loss, accuracy = _plain_loss(params, weights, held.images[chosen], held.labels[chosen])
        np.testing.assert_allclose(line["validation_loss"], loss, rtol=1e-4)
        np.testing.assert_allclose(line["validation_accuracy"], accuracy, rtol=1e-6)


def test_finished_run_is_not_repeated(whole_run):
    folder, result, _ = whole_run
    names = ["state.npz", "architecture.json", "history.jsonl", "logits.npz", *PICTURES]
    before = {name: (folder / name).read_bytes() for name in names}
    steps = []
    again = run_darts(DartsSettings(**TINY), folder, on_step=lambda *step: steps.append(step))
    assert steps == []
    assert (result.num_run, again.num_run) == (12, 0)
    assert {name: (folder / name).read_bytes() for name in names} == before


def test_the_order_is_passed_on(whole_run, tmp_path):
    run_darts(DartsSettings(**TINY, order=2), tmp_path)
    found = []
    for folder in (whole_run[0], tmp_path):
        with np.load(folder / "logits.npz") as archive:
            found.append(archive["activations"])
    assert 0 < np.abs(found[0] - found[1]).max() < 12 * 2 * 3e-4  # 12 steps of Adam at most apart


def test_a_search_learns(tmp_path):
    """Four classes told by the bright corner: the mixture gets nearly all held-out images right."""
    rng = np.random.default_rng(0)
    labels = np.arange(192) % 4
    images = rng.integers(0, 60, (192, 6, 6), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[3 * (label // 2) : 3 * (label // 2) + 3, 3 * (label % 2) : 3 * (label % 2) + 3] += 150
    np.savez(tmp_path / "corners.npz", x=images, y=labels)
    settings = DartsSettings(
        data=f"npz:{tmp_path / 'corners.npz'}",
        image_size=6,
        depth=4,
        width=32,
        batch_size=16,
        epochs=20,
        learning_rate=0.1,
        initialization="he",
    )
    run_darts(settings, tmp_path / "run")
    first, *_, last = history_of(tmp_path / "run")
    assert first["validation_accuracy"] < 0.75 and last["validation_accuracy"] > 0.95
    assert last["validation_loss"] < 0.3 < first["validation_loss"]


@pytest.mark.parametrize("settings", [TINY, RANDOM])
def test_weights_that_diverge_win_nothing(tmp_path, settings):
    with pytest.raises(InputError, match="all 4 steps of the last epoch had a loss or gradient"):
        run_darts(DartsSettings(**settings, learning_rate=1e30), tmp_path)
    lines = history_of(tmp_path)
    assert 0 < lines[0]["num_failed"] < 4
    assert [line["num_failed"] for line in lines[1:]] == [4, 4]
    assert lines[0]["train_loss"] > 0 and lines[1]["train_loss"] is None
    assert not (tmp_path / "architecture.json").exists()


COMMAND = [
    *(sys.executable, "-m", "nasjax", "search", "darts", "--data", "digits", "--image-size", "8"),
    *("--num-examples", "100", "--depth", "3", "--width", "8", "--batch-size", "12"),
    *("--epochs", "300", "--seed", "4"),
]


@pytest.mark.slow
def test_kill_9_changes_nothing(tmp_path):
    whole, killed = ([*COMMAND, "--out", str(tmp_path / name)] for name in ("whole", "killed"))
    subprocess.run(whole, stdout=subprocess.DEVNULL, check=True)
    process = subprocess.Popen(killed, stdout=subprocess.DEVNULL)
    history = tmp_path / "killed" / "history.jsonl"
    deadline = time.monotonic() + 300
    while not (history.exists() and history.read_bytes().count(b"\n") >= 20):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    finished = subprocess.run(killed, capture_output=True, text=True, check=True)
    assert "written to" in finished.stdout
    assert_same_results(tmp_path / "whole", tmp_path / "killed", ["logits.npz"])


def test_several_seeds_are_joined(whole_run, tmp_path):
    settings = dataclasses.replace(DartsSettings(**TINY), seed=3)
    seen = []
    with pytest.raises(StoppedError):
        run_darts_seeds(settings, tmp_path, num_seeds=3, on_step=stop_at("search", 18))
    result = run_darts_seeds(
        settings, tmp_path, num_seeds=3, on_step=lambda *step: seen.append(step)
    )
    assert [step[1:3] for step in seen] == [(step, 36) for step in range(17, 37)]
    assert_same_results(whole_run[0], tmp_path / "seed-4", ["logits.npz"])
    records = [
        json.loads((tmp_path / f"seed-{seed}" / "architecture.json").read_text())
        for seed in (3, 4, 5)
    ]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == json.loads(json.dumps(result.summary))
    genotypes = [record["genotype"] for record in records]
    for layer in range(2):
        told = summary["layers"][layer]
        assert told["layer"] == layer + 1
        for place, name in enumerate(("relu", "leaky_relu", "sigmoid", "tanh", "swish")):
            one = told["activations"][name]
            assert one["num_won"] == sum(genotype[layer] == place for genotype in genotypes)
            values = [r["probabilities"]["activations"][layer][place] for r in records]
            mean = sum(values) / 3
            assert one["mean"] == pytest.approx(mean, rel=1e-6)
            variance = sum((value - mean) ** 2 for value in values) / 2
            assert one["stddev"] == pytest.approx(variance**0.5, rel=1e-3, abs=1e-9)
    assert "skip" not in summary["layers"][0]
    assert summary["layers"][1]["skip"]["num_kept"] == sum(g[2] for g in genotypes)
    assert sum(summary["num_won"].values()) == summary["num_choices"] == 6
    assert [run["seed"] for run in summary["runs"]] == [3, 4, 5]
    assert (tmp_path / "choices.svg").exists() and (tmp_path / "choices.png").exists()
    with pytest.raises(InputError, match="other settings.*width"):
        run_darts_seeds(dataclasses.replace(settings, width=9), tmp_path, num_seeds=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": "darts"}, "--space: must be mlp, got darts"),
        ({"algorithm": "dart"}, "Did you mean 'darts'"),
        ({"order": 3}, "--order: must be 1 or 2, got 3"),
        ({"algorithm": "random", "order": 2}, "--order: is of --algorithm darts, got 2"),
        ({"labels": "tru"}, "Did you mean 'true'"),
        ({"depth": 2}, "--depth: must be at least 3, got 2"),
        ({"width": 0}, "--width: must be at least 1, got 0"),
        ({"epochs": 0}, "--epochs: must be at least 1, got 0"),
        ({"num_examples": 1}, "--num-examples: must be at least 2, got 1"),
        ({"num_candidates": 0}, "--num-candidates: must be at least 1, got 0"),
        ({"held_out": 1.0}, "--held-out: must be above 0 and below 1, got 1.0"),
        ({"held_out": float("nan")}, "--held-out: must be above 0"),
        ({"seed": -1}, "--seed: must be in"),
        ({"initialization": "hee"}, "Did you mean 'he'"),
        ({"learning_rate": 0.0}, "`learning_rate` must be a number > 0, got 0.0"),
        ({"architecture_learning_rate": -1.0}, "`architecture_learning_rate` must be a number"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(InputError, match=message):
        DartsSettings(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 51}, "--batch-size: must be at most the 50 examples to train with"),
        ({"held_out": 0.1}, "--batch-size: must be at most the 10 examples held out, got 12"),
        ({"data": "npz:nowhere.npz"}, "no such file"),
        ({"num_examples": 4000}, "at most the 1797 that are stored"),
        ({"num_examples": 3, "held_out": 0.01}, "must leave examples on both sides"),
    ],
)
def test_data_that_do_not_do(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        run_darts(DartsSettings(**{**TINY, **change}), tmp_path / "run")


def test_seeds_out_of_range(tmp_path):
    settings = DartsSettings(**TINY)
    with pytest.raises(InputError, match="--num-seeds: must be at least 1, got 0"):
        run_darts_seeds(settings, tmp_path, num_seeds=0)
    with pytest.raises(InputError, match="--seed: must be in"):
        run_darts_seeds(dataclasses.replace(settings, seed=2**32 - 1), tmp_path, num_seeds=2)


def test_run_names_tell_what_differs():
    assert DartsSettings().run_name() == "darts-mlp-fashion_mnist-seed0"
    settings = DartsSettings(order=2, data="digits", depth=4, seed=7)
    assert settings.run_name() == "darts-mlp-digits-order=2-depth=4-seed7"
