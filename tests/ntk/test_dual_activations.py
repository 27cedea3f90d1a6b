"""Gaussian moments against integration by other means, at every variance and correlation."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_jit import quick_jit
from scipy import integrate
from scipy.special import erf, expit, ndtr
from tolerances import assert_close

from nasjax.errors import InputError
from nasjax.networks.activations import ACTIVATIONS
from nasjax.ntk.dual_activations import (
    NAMES,
    gaussian_mean,
    gaussian_moments,
    hermite_coefficient,
    second_moments,
)
from nasjax.ntk.logistic_mixture import logistic_mixture

SMOOTH = ("sigmoid", "tanh", "swish")
ETA = {"relu": 0.0, "leaky_relu": 0.01}
VARIANCES = (1e-6, 1e-3, 0.1, 1.0, 5.0, 30.0, 100.0)
CORRELATIONS = (-1.0, -0.9, -0.3, 0.0, 0.2, 0.7, 0.99, 1.0)
CASES = np.array(
    [
        (v1, v2, rho)
        for v1, v2 in itertools.combinations_with_replacement(VARIANCES, 2)
        for rho in CORRELATIONS
    ]
)
SMOOTH_ERROR = {"float32": 1e-6, "float64": 5e-10}
"""What the docstring promises in float64, as a share of the moments of each variance alone."""


def _density(g):
    return np.exp(-g * g / 2) / np.sqrt(2 * np.pi)


def _smooth(name, x):
    """The activation and its slope, in NumPy."""
    logistic = expit(x)
    slope = logistic * expit(-x)
    return {
        "sigmoid": lambda: (logistic - 0.5, slope),
        "tanh": lambda: (np.tanh(x), 4 * expit(2 * x) * expit(-2 * x)),
        "swish": lambda: (x * logistic, logistic + x * slope),
    }[name]()


@functools.cache
def _smooth_reference(name, v1, v2, rho):
    """The trapezoidal rule in the plane, which converges exponentially for analytic functions."""
    # The nearest pole lies pi / (2 sqrt(v)) from the real line for tanh, farther for the others.
    step = min(0.1, 0.3 / np.sqrt(max(v1, v2)))
    if abs(rho) == 1.0:
        step /= 3
    g = np.arange(-9, 9 + step / 2, step)
    weight = step * _density(g)
    s_u, slope_u = _smooth(name, np.sqrt(v1) * g)
    if abs(rho) == 1.0:
        s_v, slope_v = _smooth(name, np.sqrt(v2) * rho * g)
        return weight @ (s_u * s_v), weight @ (slope_u * slope_v)
    v = np.sqrt(v2) * (rho * g[:, None] + np.sqrt(1 - rho**2) * g[None])
    s_v, slope_v = _smooth(name, v)
    return weight * s_u @ (s_v @ weight), weight * slope_u @ (slope_v @ weight)


def _piecewise_reference(name, v1, v2, rho):
    """The mean over ``v`` given ``u`` in closed form, then adaptive integration over ``u``."""
    eta, scale = ETA[name], np.sqrt(v2 * (1 - rho**2))

    def conditional(g):
        mean = np.sqrt(v2) * rho * g
        if scale == 0:
            return max(mean, eta * mean), 1.0 if mean > 0 else eta
        relu = mean * ndtr(mean / scale) + scale * _density(mean / scale)
        return eta * mean + (1 - eta) * relu, eta + (1 - eta) * ndtr(mean / scale)

    def integral(fn):
        return sum(
            integrate.quad(fn, low, high, epsabs=0, epsrel=1e-12)[0]
            for low, high in ((-12, 0), (0, 12))
        )

    def product(g):
        u = np.sqrt(v1) * g
        return _density(g) * max(u, eta * u) * conditional(g)[0]

    return integral(product), integral(
        lambda g: _density(g) * (1.0 if g > 0 else eta) * conditional(g)[1]
    )


def _arguments(cases, dtype):
    v1, v2, rho = np.asarray(cases).T
    return [jnp.asarray(a, dtype) for a in (v1, v2, rho * np.sqrt(v1 * v2))]


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_smooth_moments(float64, name, dtype):
    moments = gaussian_moments(name, *_arguments(CASES, dtype))
    assert moments.product.dtype == dtype
    own = {v: np.array(_smooth_reference(name, v, v, 1.0)) for v in VARIANCES}
    errors = [
        np.abs(np.array(moments)[:, i] - _smooth_reference(name, *case.tolist()))
        / np.sqrt(own[case[0]] * own[case[1]])
        for i, case in enumerate(CASES)
    ]
    assert np.max(errors) < SMOOTH_ERROR[dtype]


@pytest.mark.parametrize("name", sorted(ETA))
def test_piecewise_moments(float64, name):
    cases = [case for case in CASES if abs(case[2]) < 1]
    moments = gaussian_moments(name, *_arguments(cases, "float64"))
    expected = np.array([_piecewise_reference(name, *case) for case in cases]).T
    for actual, values in zip(moments, expected, strict=True):
        np.testing.assert_allclose(actual, values, rtol=1e-9, atol=0)


def test_reference_against_adaptive_integration_in_the_plane():
    for name, v1, v2, rho in (("swish", 1.0, 30.0, 0.7), ("tanh", 5.0, 5.0, -0.9)):

        def integrand(h, g, order, name=name, v1=v1, v2=v2, rho=rho):
            u, v = np.sqrt(v1) * g, np.sqrt(v2) * (rho * g + np.sqrt(1 - rho**2) * h)
            return _density(g) * _density(h) * _smooth(name, u)[order] * _smooth(name, v)[order]

        for order, value in enumerate(_smooth_reference(name, v1, v2, rho)):
            adaptive = integrate.dblquad(integrand, -8, 8, -8, 8, (order,), 1e-9, 1e-9)[0]
            assert abs(adaptive - value) < 1e-8 * abs(value)


@pytest.mark.parametrize("name", NAMES)
def test_mean(float64, name):
    reference = {
        "relu": lambda x: max(x, 0.0),
        "leaky_relu": lambda x: max(x, 0.01 * x),
    }.get(name, lambda x: _smooth(name, x)[0])
    variances = jnp.array([0.0, *VARIANCES])
    expected = [
        sum(
            integrate.quad(
                lambda g, v=v: _density(g) * reference(np.sqrt(v) * g), *ends, epsrel=1e-12
            )[0]
            for ends in ((-12, 0), (0, 12))
        )
        for v in np.asarray(variances)
    ]
    actual = gaussian_mean(name, variances)
    limits = 5e-10 * np.sqrt(second_moments(name, variances).product) + 1e-14
    assert (np.abs(actual - np.array(expected)) <= limits).all()


@pytest.mark.parametrize("name", NAMES)
def test_extreme_correlations_and_dead_inputs(float64, name):
    """At correlation 1 and -1 the moments are those of one variable; at 0 variance of none."""
    eta = ETA.get(name)
    for v in (0.3, 7.0):
        same, opposite = (gaussian_moments(name, v, 4 * v, sign * 2 * v) for sign in (1, -1))
        if eta is None:
            expected = [_smooth_reference(name, v, 4 * v, rho) for rho in (1.0, -1.0)]
            np.testing.assert_allclose(same, expected[0], rtol=1e-9)
            np.testing.assert_allclose(opposite, expected[1], rtol=0, atol=1e-9 * v)
        else:
            np.testing.assert_allclose(same, [(1 + eta**2) * v, (1 + eta**2) / 2], rtol=1e-14)
            np.testing.assert_allclose(opposite, [-2 * eta * v, eta], rtol=1e-12, atol=1e-14)
    slope_at_zero = {"relu": 0.5, "leaky_relu": 0.505, "sigmoid": 0.25, "tanh": 1.0, "swish": 0.5}
    own = gaussian_moments(name, 0.0, 0.0, 0.0)
    np.testing.assert_allclose(own, [0.0, slope_at_zero[name] ** 2], rtol=1e-14)
    product, slopes = gaussian_moments(name, 0.0, 2.0, 0.0)
    mean_slope = slope_at_zero[name]
    if eta is None:
        g = np.linspace(-9, 9, 2001)
        mean_slope = (_density(g) * _smooth(name, np.sqrt(2) * g)[1]).sum() * (g[1] - g[0])
    np.testing.assert_allclose(product, 0.0, atol=1e-16)
    np.testing.assert_allclose(slopes, slope_at_zero[name] * mean_slope, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_covariances_stay_positive_semidefinite(float64, name):
    x = np.random.default_rng(0).normal(size=(40, 3)) * np.linspace(0.01, 5, 40)[:, None]
    covariance = x @ x.T
    v = np.diag(covariance)
    moments = gaussian_moments(name, *np.broadcast_arrays(v[:, None], v[None], covariance))
    for matrix in moments:
        values = np.linalg.eigvalsh(matrix)
        assert values[0] > -1e-14 * values[-1]


# --- derivatives --------------------------------------------------------------------------------

INTERIOR = [(1.3, 0.4, 0.2), (0.5, 2.0, -0.95), (20.0, 60.0, 30.0), (1e-3, 1e-3, 5e-4)]
EDGES = [(2.0, 2.0, 2.0), (2.0, 2.0, -2.0), (0.5, 2.0, 1.0), (0.0, 0.0, 0.0), (0.0, 2.0, 0.0)]
POINTS = np.array(INTERIOR + EDGES).T


@functools.cache
def _compiled():
    """Moments, ``[points, 2]``, and their derivatives, three of ``[points, 2]``; by position."""

    def moments(index, v1, v2, c):
        return jnp.stack(gaussian_moments(index, v1, v2, c))

    over_points = (None, 0, 0, 0)
    return (
        quick_jit(jax.vmap(moments, over_points)),
        quick_jit(jax.vmap(jax.jacrev(moments, (1, 2, 3)), over_points)),
    )


@pytest.mark.parametrize("name", NAMES)
def test_derivatives(float64, name):
    index = NAMES.index(name)
    moments, jacobian = _compiled()
    slopes = np.array(jacobian(index, *POINTS))
    # Price: the slopes' product is the derivative by the covariance, at the edges as well.
    values = np.array(moments(index, *POINTS))
    np.testing.assert_allclose(slopes[2, :, 0], values[:, 1], rtol=1e-10)
    # Duplicates and dead inputs.
    assert np.isfinite(slopes).all()
    # Along the diagonal of a kernel all three arguments move together, at correlation 1.
    step = 1e-5 * np.maximum(POINTS[0], 1e-3)
    ends = [np.array(moments(index, *(POINTS + sign * step))) for sign in (1, -1)]
    numeric = (ends[0] - ends[1])[len(INTERIOR)] / (2 * step[len(INTERIOR)])
    np.testing.assert_allclose(slopes.sum(axis=0)[len(INTERIOR)], numeric, rtol=1e-5, atol=1e-8)
    # Inside, each argument on its own.
    scale = np.array(moments(index, *POINTS[[0, 0, 0]])) / np.maximum(POINTS[0], 1e-3)[:, None]
    for position in range(3):
        moved = np.eye(3)[position][:, None] * step
        ends = [np.array(moments(index, *(POINTS + sign * moved))) for sign in (1, -1)]
        numeric = (ends[0] - ends[1]) / (2 * step[:, None])
        limit = 1e-7 * scale + 1e-6 * np.abs(numeric)
        error = np.abs(slopes[position] - numeric)
        assert (error < limit)[: len(INTERIOR)].all()


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_in_float32(float64, name):
    _, jacobian = _compiled()
    index = NAMES.index(name)
    single = np.array(jacobian(index, *POINTS.astype(np.float32)))
    assert single.dtype == np.float32
    double = np.array(jacobian(index, *POINTS))
    limit = 1e-4 * np.abs(double) + 1e-5
    assert (np.abs(single - double) < limit).all()


def test_derivative_of_the_mean(float64):
    for name in NAMES:
        slope = jax.grad(functools.partial(gaussian_mean, name))
        assert np.isfinite(slope(0.0))
        numeric = (gaussian_mean(name, 2.0001) - gaussian_mean(name, 1.9999)) / 2e-4
        np.testing.assert_allclose(slope(2.0), numeric, rtol=1e-6, atol=1e-12)


# --- one program for all activations ------------------------------------------------------------


def test_traced_position_under_jit_and_vmap(float64):
    arguments = _arguments(CASES, "float64")
    expected = [gaussian_moments(name, *arguments) for name in NAMES]
    means = [gaussian_mean(name, arguments[0]) for name in NAMES]
    positions = jnp.arange(len(NAMES))
    one_by_one = quick_jit(lambda index: gaussian_moments(index, *arguments))
    mapped = quick_jit(jax.vmap(lambda index: gaussian_moments(index, *arguments)))(positions)
    mapped_means = quick_jit(jax.vmap(lambda index: gaussian_mean(index, arguments[0])))(positions)
    for index in range(len(NAMES)):
        assert_close(one_by_one(index), expected[index])
        assert_close(jax.tree.map(lambda leaf, i=index: leaf[i], mapped), expected[index])
        assert_close(mapped_means[index], means[index])
    assert one_by_one._cache_size() == 1


def test_names_are_checked():
    for function in (
        functools.partial(gaussian_moments, variance=1.0, other_variance=1.0, covariance=0.0),
        functools.partial(gaussian_mean, variance=1.0),
        functools.partial(hermite_coefficient, order=1),
    ):
        with pytest.raises(InputError, match="unknown activation 'swich'. Did you mean 'swish'"):
            function("swich")
    for order, variance in ((-1, 1.0), (1, 0.0), (1, float("nan"))):
        with pytest.raises(InputError, match="`order` must be >= 0 and `variance` > 0"):
            hermite_coefficient("relu", order, variance=variance)


# --- Hermite coefficients and the mixture -------------------------------------------------------


def test_hermite_coefficients_of_relu():
    expected = [1 / np.sqrt(2 * np.pi), 0.5, 1 / np.sqrt(4 * np.pi), 0, -1 / np.sqrt(48 * np.pi), 0]
    actual = [hermite_coefficient("relu", order) for order in range(6)]
    np.testing.assert_allclose(actual, expected, atol=1e-14)
    # Homogeneous: of degree 1 in the standard deviation.
    assert abs(hermite_coefficient("relu", 2, variance=9.0) - 3 * expected[2]) < 1e-13


@pytest.mark.parametrize("name", NAMES)
def test_hermite_series_is_the_product(float64, name):
    """Mehler: ``E[s(u) s(v)] = sum_r mu_r(v1) mu_r(v2) rho^r``, another way to all moments."""
    v1, v2, rho = 1.0, 2.5, 0.4
    orders = range(32)  # 0.4^32 = 2e-13
    series = sum(
        hermite_coefficient(name, r, variance=v1)
        * hermite_coefficient(name, r, variance=v2)
        * rho**r
        for r in orders
    )
    product = gaussian_moments(name, v1, v2, rho * np.sqrt(v1 * v2)).product
    assert abs(series - product) < 1e-9 * product


def test_hermite_coefficients_hold_the_second_moment(float64):
    for name in SMOOTH:
        squares = sum(hermite_coefficient(name, r) ** 2 for r in range(41))
        second = second_moments(name, jnp.float64(1.0)).product
        assert abs(squares - second) < 1e-6 * second
        # Stein: mu_1 = E[s(g) g] = E[s'(g)].
        slope = integrate.quad(lambda g, n=name: _density(g) * _smooth(n, g)[1], -12, 12)[0]
        assert abs(hermite_coefficient(name, 1) - slope) < 1e-12


def test_logistic_mixture():
    x = np.linspace(-40, 40, 8001)
    errors = []
    for num_nodes in (6, 7, 8):
        scales, weights = logistic_mixture(num_nodes)
        assert (weights > 0).all()
        assert abs(weights.sum() - 1) < 1e-14
        mixture = (weights * erf(x[:, None] * scales)).sum(1) / 2
        errors.append(np.abs(mixture - (expit(x) - 0.5)).max())
        # The slope at 0 is exactly 1/4: moments of tiny variance have no error at all.
        assert abs((weights * scales).sum() / np.sqrt(np.pi) - 0.25) < 1e-12
    assert errors[2] < 9e-8
    assert errors[0] / errors[1] > 3
    assert errors[1] / errors[2] > 3


def test_activations_are_those_that_were_integrated():
    x = np.linspace(-5, 5, 101)
    for name in SMOOTH:
        np.testing.assert_allclose(
            ACTIVATIONS[name](jnp.asarray(x)), _smooth(name, x)[0], atol=2e-7
        )
