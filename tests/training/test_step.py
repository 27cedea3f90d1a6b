"""A step is the recipe's, on one device and on several."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close
from training_tasks import darts_task, examples, nasbench201_task, supernet_task

from nasjax.networks.layers import Conv2D
from nasjax.training import Augmentation, Parallel, evaluation_step, init_state, train_step

KEY = 3


def _trained(task, num_devices, images, labels, *, num_steps=1):
    devices = Parallel(num_devices)
    step_fn = devices.map(train_step(task), is_state_returned=True)
    state = devices.replicate(init_state(task, jax.random.key(KEY)))
    for _ in range(num_steps):
        state = step_fn(state, devices.spread(images), devices.spread(labels))
    return devices.first(state)


def test_a_step_is_that_of_plain_differentiation():
    task = nasbench201_task(augmentation=Augmentation(), clip_norm=None)
    images, labels = examples(task, 8)
    before = init_state(task, jax.random.key(KEY))
    x = (images - np.array(task.mean)) / np.array(task.std)
    x = jnp.asarray(x, jnp.float32)

    def loss_fn(params):
        variables = {"params": params, "batch_stats": before.batch_stats}
        logits, changed = task.network.apply(variables, x, mutable=["batch_stats"])
        losses = -jax.nn.log_softmax(logits)[np.arange(8), labels]
        return losses.mean(), (changed["batch_stats"], losses.sum(), logits)

    (_, (stats, loss, logits)), gradient = jax.value_and_grad(loss_fn, has_aux=True)(before.params)
    after = _trained(task, 1, images, labels)
    # The first step's momentum is the decayed gradient itself; the rate is the recipe's first.
    expected = jax.tree.map(lambda p, g: p - 0.1 * (g + 0.01 * p), before.params, gradient)
    assert_close(after.params, jax.device_get(expected), rtol=1e-4)
    assert_close(after.batch_stats, jax.device_get(stats), rtol=1e-4)
    np.testing.assert_allclose(after.totals.loss, loss, rtol=1e-5)
    assert after.totals.num_correct == (np.argmax(logits, -1) == labels).sum()
    assert after.totals.num_examples == 8
    assert after.step == 1


def test_running_statistics_are_pytorchs():
    task = nasbench201_task(augmentation=Augmentation())
    images, labels = examples(task, 8)
    before = init_state(task, jax.random.key(KEY))
    x = jnp.asarray((images - np.array(task.mean)) / np.array(task.std), jnp.float32)
    stem = Conv2D(4, 3, 1, task.network.config).apply({"params": before.params["stem_conv"]}, x)
    stats = _trained(task, 2, images, labels).batch_stats["stem_norm"]
    stem = np.asarray(stem, np.float64)
    np.testing.assert_allclose(stats["mean"], 0.1 * stem.mean((0, 1, 2)), rtol=1e-4, atol=1e-6)
    variance = stem.var((0, 1, 2), ddof=1)
    np.testing.assert_allclose(stats["var"], 0.9 + 0.1 * variance, rtol=1e-5)


def test_gradients_are_clipped():
    task = nasbench201_task(augmentation=Augmentation(), clip_norm=1e-3, weight_decay=0.0)
    images, labels = examples(task, 8)
    before = init_state(task, jax.random.key(KEY))
    after = _trained(task, 1, images, labels)
    moves = jax.tree.leaves(jax.tree.map(jnp.subtract, after.params, before.params))
    norm = np.sqrt(sum(float((move**2).sum()) for move in moves))
    np.testing.assert_allclose(norm, 0.1 * 1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "num_devices"),
    [
        (nasbench201_task, 2),
        (nasbench201_task, 4),
        pytest.param(darts_task, 2, marks=pytest.mark.slow),
        (supernet_task, 2),
        (darts_task, 4),
    ],
)
def test_devices_make_one_devices_step(make, num_devices):
    if num_devices > len(jax.devices()):
        pytest.skip("run by test_four_devices_make_one_devices_step")
    task = make()
    images, labels = examples(task, 8)
    together = _trained(task, 1, images, labels, num_steps=2)
    spread = _trained(task, num_devices, images, labels, num_steps=2)
    # Statistics of a few pixels magnify rounding.
    assert_close(spread.params, together.params, rtol=1e-3)
    assert_close(spread.batch_stats, together.batch_stats, rtol=1e-3)
    assert spread.totals.num_correct == together.totals.num_correct
    np.testing.assert_allclose(spread.totals.loss, together.totals.loss, rtol=1e-4)


@pytest.mark.parametrize(
    "make", ["nasbench201_task", pytest.param("darts_task", marks=pytest.mark.slow)]
)
def test_four_devices_make_one_devices_step(make):
    name = f"{__file__}::test_devices_make_one_devices_step[{make}-4]"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", name],
        env={**os.environ, "NASJAX_TEST_DEVICES": "4"},
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout, done.stdout


def test_micro_batches_without_coupling_are_one_batch():
    task = nasbench201_task()
    plain = task.network.clone(
        config=task.network.config.__class__("pytorch", normalization="none")
    )
    task = task._replace(network=plain)
    images, labels = examples(task, 8)
    whole = _trained(task, 1, images, labels)
    parts = _trained(task._replace(num_parts=4), 1, images, labels)
    assert_close(parts.params, whole.params, rtol=1e-4)
    np.testing.assert_allclose(parts.totals.loss, whole.totals.loss, rtol=1e-5)
    assert parts.totals.num_examples == 8


def test_micro_batches_have_their_own_statistics_one_after_the_other():
    task = nasbench201_task(augmentation=Augmentation(), num_parts=2)
    images, labels = examples(task, 8)
    stats = _trained(task, 1, images, labels).batch_stats["stem_norm"]["mean"]
    before = init_state(task, jax.random.key(KEY))
    x = jnp.asarray((images - np.array(task.mean)) / np.array(task.std), jnp.float32)
    stem = Conv2D(4, 3, 1, task.network.config).apply({"params": before.params["stem_conv"]}, x)
    first, second = np.asarray(stem).reshape(2, -1, 4).mean(1)
    np.testing.assert_allclose(stats, 0.09 * first + 0.1 * second, rtol=1e-4, atol=1e-6)


def test_totals_begin_anew_with_an_epoch():
    task = nasbench201_task()
    images, labels = examples(task, 8)
    counts = [
        int(_trained(task, 1, images, labels, num_steps=steps).totals.num_examples)
        for steps in (1, 3, 4)
    ]
    assert counts == [8, 24, 8]


@pytest.mark.slow
def test_the_auxiliary_head_learns_by_its_weight():
    def moved(weight):
        task = darts_task(auxiliary_weight=weight, weight_decay=0.0)
        images, labels = examples(task, 4)
        before = init_state(task, jax.random.key(KEY)).params["auxiliary"]
        after = _trained(task, 1, images, labels).params["auxiliary"]
        return float(jnp.abs(after["conv_0"]["kernel"] - before["conv_0"]["kernel"]).max())

    assert moved(0.0) == 0.0
    assert moved(0.4) > 0.0


def test_testing_uses_running_statistics_and_counts_no_filling():
    task = nasbench201_task()
    images, labels = examples(task, 8)
    devices = Parallel(2)
    state = _trained(task, 1, images, labels, num_steps=2)
    is_counted = np.arange(8) < 5
    arrays = map(devices.spread, (images, labels, is_counted))
    found = devices.first(devices.map(evaluation_step(task))(devices.replicate(state), *arrays))
    x = jnp.asarray((images - np.array(task.mean)) / np.array(task.std), jnp.float32)
    logits = task.network.apply({"params": state.params, "batch_stats": state.batch_stats}, x)
    losses = -jax.nn.log_softmax(logits)[np.arange(8), labels]
    np.testing.assert_allclose(found.loss, losses[:5].sum(), rtol=1e-5)
    assert found.num_correct == (np.argmax(logits, -1) == labels)[:5].sum()
    assert found.num_examples == 5


def test_bfloat16_keeps_parameters_and_statistics_in_float32():
    task = nasbench201_task()
    images, labels = examples(task, 8)
    exact = _trained(task, 1, images, labels)
    rough = _trained(task._replace(compute_dtype="bfloat16"), 1, images, labels)
    assert {leaf.dtype.name for leaf in jax.tree.leaves((rough.params, rough.batch_stats))} == {
        "float32"
    }
    np.testing.assert_allclose(rough.totals.loss, exact.totals.loss, rtol=0.02)
    # What differs by 8 bits of mantissa and no more is computed in bfloat16.
    assert abs(float(rough.totals.loss / exact.totals.loss) - 1) > 1e-6
