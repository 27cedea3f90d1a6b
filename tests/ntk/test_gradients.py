"""Gradients of single outputs, with and without batch statistics."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_jit import quick_jit
from small_networks import (
    FlaxModel,
    conv_network,
    dense_data,
    dense_network,
    mapped,
)
from tolerances import assert_close

from nasjax.errors import InputError
from nasjax.ntk import BATCH_AXIS, flax_apply_fn, output_gradients
from nasjax.ntk.gradients import output_cotangents


def gradients(apply_fn, params, x, cotangents, **kwargs):
    run = quick_jit(partial(output_gradients, apply_fn, **kwargs))
    return run(params, x, cotangents)


def images(key):
    return jax.random.normal(key, (4, 4, 4, 2))


def test_rows_are_those_of_the_jacobian(float64):
    apply_fn, params = dense_network(jax.random.key(0))
    x = dense_data(jax.random.key(1))
    cotangents = output_cotangents("test", "all", len(x), 3, None)
    expected = quick_jit(jax.jacrev(apply_fn))(params, x)
    for coupling in ("none", "exact"):
        got = gradients(apply_fn, params, x, cotangents, coupling=coupling)
        assert_close(got, expected)
    chosen = jnp.array([4, 1])
    some = gradients(apply_fn, params, x, cotangents[:2], examples=chosen)
    assert_close(some, jax.tree.map(lambda leaf: leaf[chosen], expected))


def test_sum_and_label_weigh_the_outputs(float64):
    apply_fn, params = dense_network(jax.random.key(2))
    x = dense_data(jax.random.key(3), 3)
    jacobian = quick_jit(jax.jacrev(apply_fn))(params, x)
    labels = jnp.array([2, 0, 2])
    cases = {
        "sum": jax.tree.map(lambda leaf: leaf.sum(1, keepdims=True), jacobian),
        "label": jax.tree.map(lambda leaf: leaf[jnp.arange(3), labels][:, None], jacobian),
    }
    for outputs, expected in cases.items():
        cotangents = output_cotangents("test", outputs, 3, 3, labels)
        assert_close(gradients(apply_fn, params, x, cotangents), expected)


def test_exact_gradients_go_through_the_batch_statistics(float64):
    apply_fn, params = conv_network(jax.random.key(4))
    x = images(jax.random.key(5))
    cotangents = output_cotangents("test", "all", 4, 3, None)
    got = gradients(apply_fn, params, x, cotangents, coupling="exact")
    assert_close(got, quick_jit(jax.jacrev(apply_fn))(params, x))


def test_mapped_gradients_are_each_examples_share(float64):
    """Every example is given parameters of its own, and all outputs are differentiated."""
    whole_fn, params = conv_network(jax.random.key(6))
    apply_fn, _ = conv_network(jax.random.key(6), batch_axis=BATCH_AXIS)
    x = images(jax.random.key(7))
    own = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, *leaf.shape)), params)
    run = mapped(apply_fn)
    assert_close(run(own, x), whole_fn(params, x))
    cotangents = output_cotangents("test", "sum", 4, 3, None)
    got = gradients(apply_fn, params, x, cotangents, coupling="mapped")
    expected = quick_jit(jax.grad(lambda own: run(own, x).sum()))(own)
    assert_close(jax.tree.map(lambda leaf: leaf[:, 0], got), expected)
    # Together the shares are the gradient of the batch.
    total = jax.tree.map(lambda leaf: leaf[:, 0].sum(0), got)
    assert_close(total, quick_jit(jax.grad(lambda params: whole_fn(params, x).sum()))(params))


def test_frozen_statistics_are_constants(float64):
    apply_fn, params = conv_network(jax.random.key(8), batch_axis=BATCH_AXIS, is_frozen=True)
    x = images(jax.random.key(9))
    cotangents = output_cotangents("test", "sum", 4, 3, None)
    got = gradients(apply_fn, params, x, cotangents, coupling="mapped")
    own = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, *leaf.shape)), params)
    # An example's parameters move its own output alone.
    jacobian = quick_jit(jax.jacrev(lambda own: mapped(apply_fn)(own, x).sum(1)))(own)
    for leaf, row in zip(jax.tree.leaves(jacobian), jax.tree.leaves(got), strict=True):
        for i in range(4):
            np.testing.assert_allclose(leaf[i, i], row[i, 0], rtol=1e-10, atol=1e-12)
            assert not np.delete(leaf[i], i, 0).any()
    hook_fn, _ = conv_network(jax.random.key(8), batch_axis=BATCH_AXIS)
    hook = gradients(hook_fn, params, x, cotangents, coupling="mapped")
    assert max(jax.tree.leaves(jax.tree.map(lambda a, b: abs(a - b).max(), hook, got))) > 1e-3


def test_flax_models_come_as_pairs(float64):
    model = FlaxModel()
    x = dense_data(jax.random.key(10), 4)
    variables = model.init(jax.random.key(11), x, train=False)
    apply_fn, params = flax_apply_fn(model, variables, train=False)
    assert_close(apply_fn(params, x), model.apply(variables, x, train=False))
    train_fn, _ = flax_apply_fn(model, variables, train=True, mutable=["batch_stats"])
    expected, _ = model.apply(variables, x, train=True, mutable=["batch_stats"])
    assert_close(train_fn(params, x), expected)
    with pytest.raises(InputError, match="must hold the collection 'params', got batch_stats"):
        flax_apply_fn(model, {"batch_stats": variables["batch_stats"]})


def test_bad_choices_are_named():
    with pytest.raises(InputError, match="unknown kind of outputs 'al'. Did you mean 'all'"):
        output_cotangents("ntk", "al", 2, 3, None)
    for labels in (None, jnp.zeros(3, int)):
        with pytest.raises(InputError, match=r"`labels` must be \[2\] integers"):
            output_cotangents("ntk", "label", 2, 3, labels)
