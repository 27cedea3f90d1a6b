"""Bounds: they hold for measured kernels, and their constants and tendencies are the paper's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from tolerances import NUM_STANDARD_ERRORS

from nasjax.errors import InputError
from nasjax.networks.activations import ACTIVATIONS, NEGATIVE_SLOPE
from nasjax.ntk import (
    activation_constants,
    data_bound,
    finite_lambda_min_bounds,
    lambda_min_bounds,
    linear_cell_ntk_scales,
    loss_bound,
)
from nasjax.ntk.dual_activations import second_moments

_second_moments = jax.jit(second_moments, static_argnums=0)


def test_loss_bound_holds_along_gradient_descent():
    generator = np.random.default_rng(0)
    for _ in range(50):
        m, n = generator.integers(1, 6, 2)
        rows = generator.standard_normal((m * n, 40))
        values, vectors = np.linalg.eigh(rows @ rows.T)
        labels = generator.random(m * n)
        rate = generator.random() / values[-1]
        for time in (0.0, 0.1, 0.4, 0.5, 1.0, 7.0):
            # Eq. (22): outputs start at zero, the squared loss is a mean over examples.
            loss = np.sum((1 - rate * values) ** (2 * time) * (vectors.T @ labels) ** 2) / m
            bound = loss_bound(values.mean(), rate, time, num_examples=m, num_outputs=n)
            assert loss <= bound * (1 + 1e-12)


def _traces(activation, square_norms, input_dim, depth):
    """Diagonal of the kernel of a fully connected network in Jacot's parameterisation."""
    variance = jnp.asarray(square_norms / input_dim)
    kernel = variance
    for _ in range(depth - 1):
        moments = _second_moments(activation, variance)
        kernel = kernel * moments.slope_product + moments.product
        variance = moments.product
    return np.asarray(kernel)


@pytest.mark.parametrize("activation", ["relu", "tanh", "swish"])
def test_data_bound_holds(float64, activation):
    lipschitz = {"relu": 1.0, "tanh": 1.0, "swish": 1.1}[activation]
    generator = np.random.default_rng(1)
    for _ in range(20):
        input_dim, depth = generator.integers(1, 20), generator.integers(1, 8)
        square_norms = generator.random(6)  # six points of the unit ball
        p, q = generator.dirichlet(np.full(6, 0.3), 2)
        traces = _traces(activation, square_norms, input_dim, depth)
        bound = data_bound(
            np.abs(p - q).sum(), input_dim=input_dim, depth=depth, lipschitz=lipschitz
        )
        assert abs(p @ traces - q @ traces) <= bound
    assert data_bound(2.0, input_dim=4, depth=3) == pytest.approx(1.5)
    assert data_bound(1.0, input_dim=1, depth=3, lipschitz=0.5) == pytest.approx(
        (1 - 0.5**6) / (1 - 0.5**2)
    )


def test_constants_are_those_of_table_1():
    slope = 1 + NEGATIVE_SLOPE**2
    expected = {
        "relu": (1.0, 1.0, 1.0),
        "leaky_relu": (slope, slope, slope),
        "sigmoid": (1 / 8, 1 / 8, None),
        "tanh": (2.0, 2.0, None),
        "swish": (1.0, 1.0168, 0.5),  # the paper has 1.22 for beta_2
    }
    assert list(expected) == list(ACTIVATIONS)
    for name, values in expected.items():
        for got, value in zip(activation_constants(name), values, strict=True):
            assert value is None or got == pytest.approx(value, rel=1e-4), name
    slopes = jax.vmap(jax.grad(ACTIVATIONS["swish"]))(jnp.linspace(-10.0, 10.0, 4001))
    assert float(slopes.max() ** 2) == pytest.approx(1.21, abs=0.01)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
@pytest.mark.parametrize("variance", [0.5, 3.0, 12.0])
def test_beta_3_of_bounded_activations_is_the_papers_integral(activation, variance):
    """``f_S(y)``: the integral of ``2 s'(x)^2`` under a Gaussian of variance ``y``."""
    slope = jax.grad(ACTIVATIONS[activation])

    def integrand(x):
        with jax.enable_x64(True):
            square = float(slope(jnp.float64(x))) ** 2
        return 2 * square * np.exp(-x * x / (2 * variance)) / np.sqrt(2 * np.pi * variance)

    integral = 2 * scipy.integrate.quad(integrand, 0, 10 * variance**0.5, epsabs=1e-9)[0]
    assert activation_constants(activation, variance).beta_3 == pytest.approx(integral, rel=1e-6)


def _bounds(activation, depth, skip=0):
    return lambda_min_bounds(
        [activation] * (depth - 1), [skip] * (depth - 2), num_examples=100, input_dim=3
    )


def test_tendencies_with_depth_and_skips():
    depths = range(3, 11)
    lower = {name: [_bounds(name, depth).lower for depth in depths] for name in ACTIVATIONS}
    assert np.ptp(lower["relu"]) < 1e-9
    assert (np.diff(lower["leaky_relu"]) > 0).all()
    for name in ("sigmoid", "tanh", "swish"):
        assert (np.diff(lower[name]) < 0).all(), name
    for name in ACTIVATIONS:
        uppers = [_bounds(name, depth, skip=1).upper for depth in depths]
        assert (np.diff(uppers) > 0).all()
        for pair in (_bounds, _finite_bounds):
            with_skip, without = pair(name, 6, 1), pair(name, 6, 0)
            assert with_skip.lower > without.lower
            assert with_skip.upper > without.upper


def _finite_bounds(activation, depth, skip=0):
    return finite_lambda_min_bounds(
        [activation] * (depth - 1), [skip] * (depth - 2), num_examples=100, input_dim=3
    )


def test_the_upper_bound_is_the_sum_of_the_formula():
    """Depth 3 by hand: layers sigma_1, sigma_2 and a skip."""
    a, b = activation_constants("tanh"), activation_constants("relu")
    got = lambda_min_bounds(["tanh", "relu"], [1], num_examples=8, input_dim=4).upper
    expected = a.beta_2 * (b.beta_2 + 1) + a.beta_1 * (b.beta_2 + 1) + b.beta_1 * a.beta_1
    assert got == pytest.approx(2 * expected)
    finite = finite_lambda_min_bounds(["tanh", "relu"], [1], num_examples=8, input_dim=4)
    assert finite.upper == pytest.approx(2 * ((b.beta_2 + 1) + 1 + 1))
    assert finite.lower == pytest.approx(2 * (b.beta_3 + 1))


def test_linear_cells_have_the_expected_kernels():
    """HNAS, theorem 4: exact for the wide cell, in the mean for the deep one."""
    num_layers, width = 3, 4
    x = jax.random.normal(jax.random.key(0), (2, width))

    def kernels(key):
        weights = jax.random.normal(key, (num_layers, width, width))

        def wide(weights):
            return jnp.sum(jnp.einsum("lij,bj->bi", weights, x), 1)

        def deep(weights):
            return jnp.sum(x @ weights[0].T @ weights[1].T @ weights[2].T, 1)

        jacobians = (jax.jacrev(fn)(weights).reshape(2, -1) for fn in (wide, deep))
        return [jacobian @ jacobian.T for jacobian in jacobians]

    wide, deep = jax.jit(jax.vmap(kernels))(jax.random.split(jax.random.key(1), 50_000))
    products = np.asarray(x @ x.T, np.float64)
    wide_scale, deep_scale = linear_cell_ntk_scales(num_layers, width)
    np.testing.assert_allclose(wide[0], wide_scale * products, rtol=1e-4)
    np.testing.assert_allclose(wide[1], wide[0], rtol=1e-6)
    deep = np.asarray(deep, np.float64)
    error = deep.std(0, ddof=1) / len(deep) ** 0.5
    assert (np.abs(deep.mean(0) - deep_scale * products) < NUM_STANDARD_ERRORS * error).all()
    assert (error < 0.05 * deep_scale * np.diag(products).min()).all()
    conditions = np.linalg.cond(deep[:1000])
    assert np.median(conditions) > np.linalg.cond(products)


def test_bad_input_is_named():
    with pytest.raises(InputError, match=r"must be in \[0, 1\] and `time` >= 0, got 2 and 1"):
        loss_bound(2.0, 1.0, 1.0, num_examples=1, num_outputs=1)
    with pytest.raises(InputError, match="`distance` must be in"):
        data_bound(3.0, input_dim=1, depth=1)
    with pytest.raises(InputError, match="Did you mean 'relu'"):
        activation_constants("rulu")
    for bounds in (lambda_min_bounds, finite_lambda_min_bounds):
        with pytest.raises(InputError, match="`skips` be one fewer, got 3 and 3"):
            bounds(["relu"] * 3, [0] * 3, num_examples=2, input_dim=2)
        with pytest.raises(InputError, match="must be 0 or 1, got 2"):
            bounds(["relu"] * 3, [0, 2], num_examples=2, input_dim=2)
    with pytest.raises(InputError, match="`num_layers` must be at least 1, got 0"):
        linear_cell_ntk_scales(0, 4)
