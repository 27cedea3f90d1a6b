"""The trace norm: exact, and what approximates it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_jit import quick_jit
from small_networks import conv_network, dense_data, dense_network
from tolerances import NUM_STANDARD_ERRORS, assert_close

from nasjax.errors import InputError
from nasjax.ntk import (
    BATCH_AXIS,
    batch_loss_trace_norm,
    empirical_ntk,
    per_example_traces,
    random_trace_norm,
    summed_loss_trace_norm,
)

LABELS = jnp.array([2, 0, 1, 1, 0, 2])


def images(key):
    return jax.random.normal(key, (4, 4, 4, 2))


@pytest.mark.parametrize("coupling", ["none", "exact", "mapped"])
@pytest.mark.parametrize("outputs_at_once", [None, 1, 2])
def test_per_example_traces_are_the_kernels_diagonal(float64, coupling, outputs_at_once):
    normalization = "none" if coupling == "none" else "batch"
    axis = BATCH_AXIS if coupling == "mapped" else None
    apply_fn, params = conv_network(jax.random.key(0), normalization=normalization, batch_axis=axis)
    x = images(jax.random.key(1))
    traces = quick_jit(
        partial(per_example_traces, apply_fn, coupling=coupling, outputs_at_once=outputs_at_once)
    )(params, x)
    kernel = empirical_ntk(apply_fn, params, x, coupling=coupling).matrix
    np.testing.assert_allclose(traces, np.diag(kernel), rtol=1e-10)


def test_the_random_estimate_is_unbiased():
    apply_fn, params = dense_network(jax.random.key(2))
    x = dense_data(jax.random.key(3))
    exact = float(per_example_traces(apply_fn, params, x).sum())
    estimate = jax.jit(lambda key: random_trace_norm(key, apply_fn, params, x).value)
    values = np.asarray(jax.vmap(estimate)(jax.random.split(jax.random.key(4), 4000)))
    error = values.std(ddof=1) / len(values) ** 0.5
    assert abs(values.mean() - exact) < NUM_STANDARD_ERRORS * error
    assert error < 0.01 * exact


def test_the_random_estimate_is_exact_for_orthogonal_outputs():
    """``f = x W``: the gradients of the outputs share no parameter, so signs do not matter."""
    params = jax.random.normal(jax.random.key(5), (5, 3))
    x = dense_data(jax.random.key(6))
    got = random_trace_norm(jax.random.key(7), lambda w, x: x @ w, params, x)
    exact = 3 * jnp.sum(x * x)
    assert_close(got.value, exact)
    spread = 3 * jnp.std(jnp.sum(x * x, 1), ddof=1) * 6**0.5
    assert_close(got.standard_error, spread)


def test_the_standard_error_is_that_of_a_drawn_batch():
    apply_fn, params = dense_network(jax.random.key(8))

    def estimate(key):
        x_key, sign_key = jax.random.split(key)
        return random_trace_norm(sign_key, apply_fn, params, dense_data(x_key, 64))

    got = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(9), 500))
    # The standard deviation of 500 values is known to 3 %.
    told = float(jnp.sqrt(jnp.mean(got.standard_error**2)))
    assert told == pytest.approx(float(jnp.std(got.value, ddof=1)), rel=0.15)


def test_one_gradient_of_a_coupled_batch_is_unbiased_too():
    apply_fn, params = conv_network(jax.random.key(10))
    x = images(jax.random.key(11))
    exact = float(
        quick_jit(partial(per_example_traces, apply_fn, coupling="exact"))(params, x).sum()
    )
    got = jax.jit(
        lambda key: random_trace_norm(key, apply_fn, params, x, coupling="exact", num_draws=2000)
    )(jax.random.key(12))
    assert abs(got.value - exact) < NUM_STANDARD_ERRORS * got.standard_error
    assert got.standard_error < 0.05 * exact


def test_shares_of_a_mapped_batch_are_unbiased_too():
    """All examples of a draw have the same signs: a share is that of all examples' outputs."""
    apply_fn, params = conv_network(jax.random.key(20), batch_axis=BATCH_AXIS)
    x = images(jax.random.key(21))
    exact = float(
        quick_jit(partial(per_example_traces, apply_fn, coupling="mapped"))(params, x).sum()
    )
    got = jax.jit(
        lambda key: random_trace_norm(key, apply_fn, params, x, coupling="mapped", num_draws=2000)
    )(jax.random.key(22))
    assert abs(got.value - exact) < NUM_STANDARD_ERRORS * got.standard_error
    assert got.standard_error < 0.05 * exact


def test_labels_must_be_outputs():
    apply_fn, params = dense_network(jax.random.key(23))
    x = dense_data(jax.random.key(24))
    for function in (summed_loss_trace_norm, batch_loss_trace_norm):
        with pytest.raises(InputError, match="from 0 to 2, the last output, got 3"):
            function(apply_fn, params, x, jnp.array([0, 1, 2, 3, 0, 1]))
        with pytest.raises(InputError, match=r"must be \[6\] integers"):
            function(apply_fn, params, x, jnp.array([0]))
    with pytest.raises(InputError, match="`outputs_at_once` must be at least 1, got 0"):
        per_example_traces(apply_fn, params, x, outputs_at_once=0)


def test_loss_approximations_by_hand(float64):
    """A linear network: the gradient of an example's loss is the outer product ``x (p - e_y)``."""
    params = jax.random.normal(jax.random.key(13), (5, 3))
    x = dense_data(jax.random.key(14))
    slopes = jax.nn.softmax(x @ params) - jax.nn.one_hot(LABELS, 3)
    apply_fn = lambda w, x: x @ w  # noqa: E731
    summed = summed_loss_trace_norm(apply_fn, params, x, LABELS)
    assert_close(summed, jnp.sum(jnp.sum(x * x, 1) * jnp.sum(slopes * slopes, 1)))
    batch = batch_loss_trace_norm(apply_fn, params, x, LABELS)
    assert_close(batch, 6 * jnp.sum((x.T @ slopes / 6) ** 2))


def test_the_inequalities_of_eq_11(float64):
    """Mean loss <= sum of losses <= gamma^2 trace norm, with gamma^2 = 2 for the cross-entropy."""
    for seed in range(10):
        network_key, x_key = jax.random.split(jax.random.key(seed))
        apply_fn, params = dense_network(network_key)
        x = dense_data(x_key)
        batch = batch_loss_trace_norm(apply_fn, params, x, LABELS)
        summed = summed_loss_trace_norm(apply_fn, params, x, LABELS)
        assert batch <= summed <= 2 * per_example_traces(apply_fn, params, x).sum()


def test_summed_losses_under_batch_statistics(float64):
    apply_fn, params = conv_network(jax.random.key(15))
    x, labels = images(jax.random.key(16)), LABELS[:4]
    got = quick_jit(partial(summed_loss_trace_norm, apply_fn, coupling="exact"))(params, x, labels)

    def losses(params):
        outputs = jax.nn.log_softmax(apply_fn(params, x))
        return -outputs[jnp.arange(4), labels]

    jacobian = quick_jit(jax.jacrev(losses))(params)
    assert_close(got, sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(jacobian)))
    mapped_fn, _ = conv_network(jax.random.key(15), batch_axis=BATCH_AXIS)
    mapped = quick_jit(partial(summed_loss_trace_norm, mapped_fn, coupling="mapped"))(
        params, x, labels
    )
    assert mapped > 0
    assert abs(mapped / got - 1) > 1e-3


def test_what_has_no_standard_error_is_refused():
    apply_fn, params = dense_network(jax.random.key(17))
    x = dense_data(jax.random.key(18))
    key = jax.random.key(19)
    with pytest.raises(InputError, match="`x` must count at least 2"):
        random_trace_norm(key, apply_fn, params, x[:1])
    with pytest.raises(InputError, match="`num_draws` must count at least 2"):
        random_trace_norm(key, apply_fn, params, x, coupling="exact")
    with pytest.raises(InputError, match="`num_draws` must"):
        random_trace_norm(key, apply_fn, params, x, num_draws=0)
