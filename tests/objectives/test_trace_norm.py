"""NASI's objective against the naive double gradient, finite differences and closed forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lax_convolutions import on_lax_convolutions
from quick_jit import quick_jit
from tolerances import assert_close

from nasjax.networks import LayerConfig, init_params, one_shot_network
from nasjax.objectives import cross_entropy, nasi_objective, one_shot_trace_norm
from nasjax.spaces import get_space
from nasjax.spaces.darts_strings import OPERATIONS as DARTS_OPERATIONS


def _double(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), tree)


# --- a linear softmax model ---------------------------------------------------------------------


def _linear_apply(params, weights, x):
    return sum(w * (x @ p) for w, p in zip(weights["a"], params, strict=True))


def _linear_data(seed=0):
    rng = np.random.default_rng(seed)
    params = list(rng.normal(size=(3, 4, 5)))
    return params, rng.normal(size=(6, 4)), rng.integers(0, 5, 6)


def _linear_trace_norm(w, params, x, y):
    """T and dT/dw in closed form."""
    batch = len(y)
    parts = np.stack([x @ p for p in params])
    outputs = np.einsum("j,jbc->bc", w, parts)
    probabilities = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    slope = x.T @ (probabilities - np.eye(5)[y]) / batch  # dL/dp_j = w_j * slope
    square = np.sum(slope**2)
    gradient = np.zeros(3)
    for j, part in enumerate(parts):
        moved = probabilities * (part - (probabilities * part).sum(1, keepdims=True))
        gradient[j] = 2 * w[j] * square
        gradient[j] += np.sum(w**2) * 2 * np.sum(slope * (x.T @ moved)) / batch
    return np.sum(w**2) * square, gradient


@pytest.mark.parametrize("w", [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.2, 0.5, 0.3]])
def test_linear_softmax_model_in_closed_form(float64, w):
    params, x, y = _linear_data()
    trace_norm_fn = one_shot_trace_norm(_linear_apply)

    def scalar(weights):
        return trace_norm_fn(weights, [jnp.asarray(p) for p in params], jnp.asarray(x), y)

    weights = {"a": jnp.asarray(w)}
    (value, is_dead), gradient = jax.jit(jax.value_and_grad(scalar, has_aux=True))(weights)
    expected, expected_gradient = _linear_trace_norm(np.asarray(w), params, x, y)
    assert_close(value, expected)
    assert_close(gradient["a"], expected_gradient)
    assert not is_dead
    assert_close(scalar(weights)[0], expected)


def test_cross_entropy():
    outputs = jnp.array([[0.0, np.log(3.0)], [1000.0, 0.0]])
    assert_close(cross_entropy(outputs, jnp.array([0, 0])), np.float32(np.log(4.0) / 2))
    assert cross_entropy(outputs, jnp.array([1, 1])) > 499


# --- the penalised objective --------------------------------------------------------------------


def _objective_case(mu, nu, temperature, monkeypatch):
    """Score, info and gradient of the linear model; by hand: T, dT/dw, the soft sample."""
    params, x, y = _linear_data(1)
    noise = np.array([0.3, 1.9, -0.4])
    monkeypatch.setattr(jax.random, "gumbel", lambda key, shape, dtype: jnp.asarray(noise))
    objective_fn = nasi_objective(
        one_shot_trace_norm(_linear_apply),
        {"a": np.ones(3, bool)},
        mu=mu,
        temperature=temperature,
    )
    logits = np.array([0.5, 0.1, -0.2])
    gradient_fn = jax.value_and_grad(objective_fn, has_aux=True)
    (score, info), gradient = gradient_fn(
        {"a": jnp.asarray(logits)},
        jax.random.key(0),
        jnp.asarray(nu),
        [jnp.asarray(p) for p in params],
        jnp.asarray(x),
        y,
    )
    soft = np.exp((logits + noise) / temperature)
    soft /= soft.sum()
    drawn = np.eye(3)[1]
    value, weights_gradient = _linear_trace_norm(drawn, params, x, y)
    softmax_jacobian = (np.diag(soft) - np.outer(soft, soft)) / temperature
    return score, info, gradient["a"], value, softmax_jacobian.T @ weights_gradient, drawn


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("nu_factor", [0.25, 4.0])
def test_objective_on_both_sides_of_the_constraint(
    float64, monkeypatch, mu, nu_factor, temperature
):
    value = _linear_trace_norm(np.eye(3)[1], *_linear_data(1))[0]
    nu = nu_factor * value
    score, info, gradient, value, unpenalised, drawn = _objective_case(
        mu, nu, temperature, monkeypatch
    )
    is_violated = nu_factor < 1
    excess = value - nu if is_violated else 0.0
    assert_close(info.trace_norm, value)
    assert_close(info.excess, np.float64(excess))
    assert_close(score, np.float64(value - mu * excess), rtol=1e-9)
    np.testing.assert_array_equal(info.weights["a"], drawn)
    assert info.is_finite and not info.is_dead
    expected = (1 - mu * is_violated) * unpenalised
    assert np.abs(unpenalised).max() > 1e-3
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_bad_mu(value):
    with pytest.raises(ValueError, match="`mu` must be a number >= 0"):
        nasi_objective(one_shot_trace_norm(_linear_apply), {}, mu=value)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_bad_temperature(value):
    with pytest.raises(ValueError, match="`temperature` must be a number > 0"):
        nasi_objective(one_shot_trace_norm(_linear_apply), {}, mu=1.0, temperature=value)


# --- real networks ------------------------------------------------------------------------------


def _apply_fn(space_name, mixture, num_cells):
    network = one_shot_network(
        space_name,
        channels=2,
        num_cells=num_cells,
        config=LayerConfig("he", "none"),
        mixture=mixture,
    )
    return lambda params, weights, x: network.apply({"params": params}, weights, x)


@functools.cache
def _params(space_name, num_cells):
    network = one_shot_network(
        space_name, channels=2, num_cells=num_cells, config=LayerConfig("he", "none")
    )
    with jax.enable_x64(False):
        decisions = get_space(space_name).decisions
        weights = {name: jnp.zeros(mask.shape) for name, mask in decisions.items()}
        return init_params(jax.random.key(1), network, weights, jnp.zeros((1, 8, 8, 3)))


def _data():
    rng = np.random.default_rng(3)
    return jnp.asarray(rng.normal(size=(4, 8, 8, 3))), jnp.array([3, 1, 4, 1])


@functools.cache
def _ours(space_name, num_cells):
    """Compiled ``(weights, params, x, y) -> ((T, is_dead), dT/dweights)``."""
    trace_norm_fn = one_shot_trace_norm(_apply_fn(space_name, "drawn", num_cells))
    return quick_jit(jax.value_and_grad(trace_norm_fn, has_aux=True))


def _naive_trace_norm(space_name, num_cells):
    """``(weights, params, x, y) -> T``: no trick, any weights."""
    apply_fn = _apply_fn(space_name, "full", num_cells)

    def trace_norm(weights, params, x, y):
        def loss(params):
            probabilities = jax.nn.softmax(apply_fn(params, weights, x))
            return -jnp.mean(jnp.log(probabilities[jnp.arange(len(y)), y]))

        return sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(loss)(params)))

    return on_lax_convolutions(trace_norm)


@functools.cache
def _naive(space_name, num_cells):
    """Compiled ``(weights, params, x, y) -> (T, dT/dweights)``, by reverse over reverse."""
    return quick_jit(jax.value_and_grad(_naive_trace_norm(space_name, num_cells)))


def _one_hot(space_name, seed):
    rng = np.random.default_rng(seed)
    weights = {}
    for name, exists in get_space(space_name).decisions.items():
        probabilities = exists / exists.sum(-1, keepdims=True)
        rows = [rng.multinomial(1, row) for row in probabilities.reshape(-1, exists.shape[-1])]
        weights[name] = jnp.asarray(np.reshape(rows, exists.shape), jnp.float64)
    return weights


def _existing(space_name, gradient):
    """Without the inputs that do not exist: a full mixture would read weights that nobody has."""
    decisions = get_space(space_name).decisions
    return {name: np.where(decisions[name], g, 0.0) for name, g in gradient.items()}


NETWORKS = [
    ("nasbench201", 1),
    pytest.param("darts", 1, marks=pytest.mark.slow),
    pytest.param("nasbench1shot1_1", 1, marks=pytest.mark.slow),
    pytest.param("darts", 3, marks=pytest.mark.slow),
    pytest.param("nasbench201", 2, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("space_name", "num_cells"), NETWORKS)
def test_trace_norm_and_gradient_equal_the_naive_form(float64, space_name, num_cells):
    params, (x, y) = _double(_params(space_name, num_cells)), _data()
    num_alive = 0
    for seed in range(6):
        weights = _one_hot(space_name, seed)
        (value, is_dead), gradient = _ours(space_name, num_cells)(weights, params, x, y)
        expected, expected_gradient = _naive(space_name, num_cells)(weights, params, x, y)
        assert_close(value, expected)
        assert_close(gradient, _existing(space_name, expected_gradient), rtol=1e-9)
        largest = max(np.abs(g).max() for g in gradient.values())
        num_alive += not is_dead and float(value) > 1e-3 and largest > 1e-3
    assert num_alive >= 4


def _smooth_architecture(space_name):
    """Drawn weights at which the full mixture is differentiable in every direction.

    No node is exactly zero (ReLU) and no max-pool reads a max-pool (ties).
    """
    if space_name == "nasbench201":
        return {"edges": jnp.asarray(np.eye(5)[[3, 1, 2, 4, 3, 1]])}
    names = ["sep_conv_3x3", "skip_connect", "avg_pool_3x3", "dil_conv_5x5"]
    operations = np.eye(7)[[DARTS_OPERATIONS.index(name) for name in names]]
    return {
        "operations": jnp.asarray(np.stack([operations] * 2)),
        "inputs": jnp.asarray(np.stack([np.eye(5)[[0, 1, 2, 3]]] * 2)),
    }


@pytest.mark.parametrize(("space_name", "num_cells"), NETWORKS[:2])
def test_gradient_equals_finite_differences_of_the_mixture(float64, space_name, num_cells):
    params, (x, y) = _double(_params(space_name, num_cells)), _data()
    weights = _smooth_architecture(space_name)
    _, gradient = _ours(space_name, num_cells)(weights, params, x, y)
    decisions = get_space(space_name).decisions
    rng = np.random.default_rng(7)
    for _ in range(3):
        direction = {name: rng.normal(size=m.shape) * m for name, m in decisions.items()}

        def along(step, direction=direction):
            moved = {name: w + step * direction[name] for name, w in weights.items()}
            return float(_naive(space_name, num_cells)(moved, params, x, y)[0])

        step = 1e-5  # at 1e-4, some ReLUs and maxima change sides
        # Fourth order, so that the error of the formula is far below that of the check.
        difference = 8 * (along(step) - along(-step)) - (along(2 * step) - along(-2 * step))
        expected = difference / (12 * step)
        actual = sum(np.vdot(gradient[name], direction[name]) for name in direction)
        assert abs(actual - expected) <= 1e-8 * max(abs(expected), abs(along(0.0)))


@pytest.mark.slow
def test_trace_norm_under_vmap_over_draws(float64):
    params, (x, y) = _double(_params("nasbench201", 1)), _data()
    draws = [_one_hot("nasbench201", seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *draws)
    trace_norm_fn = one_shot_trace_norm(_apply_fn("nasbench201", "drawn", 1))
    mapped = jax.vmap(jax.value_and_grad(trace_norm_fn, has_aux=True), (0, None, None, None))
    expected = [_ours("nasbench201", 1)(weights, params, x, y) for weights in draws]
    actual = quick_jit(mapped)(stacked, params, x, y)
    assert_close(actual, jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected))


# --- failures -----------------------------------------------------------------------------------


@functools.cache
def _real_objective():
    """Compiled gradient of the objective on a NAS-Bench-201 network in float32."""
    objective_fn = nasi_objective(
        one_shot_trace_norm(_apply_fn("nasbench201", "drawn", 1)),
        get_space("nasbench201").decisions,
        mu=1.0,
    )
    return quick_jit(jax.value_and_grad(objective_fn, has_aux=True))


def _evaluate(operation, x):
    """The objective where ``operation`` is all but certain on every edge."""
    logits = {"edges": jnp.zeros((6, 5)).at[:, operation].set(60.0)}
    params, y = _params("nasbench201", 1), jnp.array([3, 1, 4, 1])
    return _real_objective()(logits, jax.random.key(0), jnp.float32(1.0), params, x, y)


def test_dead_network():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8, 8, 3)), jnp.float32)
    (score, info), gradient = _evaluate(0, x)
    np.testing.assert_array_equal(info.weights["edges"][:, 0], np.ones(6))
    assert score == -np.inf
    assert info.is_dead and info.is_finite
    # The bias of the classifier still has a gradient: T alone would not tell.
    assert info.trace_norm > 0
    np.testing.assert_array_equal(gradient["edges"], np.zeros((6, 5)))


def test_living_network_is_not_dead():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8, 8, 3)), jnp.float32)
    (score, info), gradient = _evaluate(3, x)
    assert np.isfinite(score) and info.is_finite and not info.is_dead
    assert np.isfinite(gradient["edges"]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_numbers_that_are_not_finite(value):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8, 8, 3)), jnp.float32)
    (score, info), gradient = _evaluate(3, x.at[1, 2, 3, 0].set(value))
    assert not info.is_finite
    assert score == -np.inf
    np.testing.assert_array_equal(gradient["edges"], np.zeros((6, 5)))
