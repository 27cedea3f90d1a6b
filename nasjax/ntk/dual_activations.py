"""Gaussian moments of activations: what a layer of infinite width does to covariances.

For jointly Gaussian ``(u, v)`` of mean zero, variances ``v1``, ``v2`` and covariance ``c`` these
are ``E[s(u) s(v)]``, ``E[s'(u) s'(v)]`` and ``E[s(u)]``, for every ``s`` of
``networks.activations.ACTIVATIONS``.

ReLU and LeakyReLU have closed forms, by the angle between ``u`` and ``v``. Sigmoid, tanh and swish
are made of the logistic function, which is a mixture of error functions (``logistic_mixture``), and
moments of those have closed forms, too. So quadrature is needed only for the mixture, once and for
all arguments: eight nodes do at any variance. Gauss-Hermite nodes would have to grow with it, to
hundreds by hundreds for a tanh at variance 100. And the result is the moment of *some* function
near ``s``, so that covariance matrices stay positive semi-definite whatever the error.

Error in float64, over variances from 1e-6 to 100 and correlations from -1 to 1, as a share of
``sqrt(E[s(u)^2] E[s(v)^2])`` (of the same with ``s'``): below 5e-10 for the smooth activations.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from nasjax.errors import InputError, unknown_name
from nasjax.networks.activations import ACTIVATIONS, NEGATIVE_SLOPE
from nasjax.ntk.logistic_mixture import NUM_NODES, erf_moments, logistic_mixture

NAMES = tuple(ACTIVATIONS)
"""The activations in the order of the integers that stand for them."""

_NEGATIVE_SLOPES = {"relu": 0.0, "leaky_relu": NEGATIVE_SLOPE}
"""``eta`` of ``max(eta x, x)``; the other activations are smooth."""
_LOGISTIC_FORMS = {"sigmoid": (1.0, 1.0), "tanh": (2.0, 2.0)}
"""``(a, b)`` of ``a (logistic(b x) - 1/2)``; swish is ``x logistic(x)``."""


class GaussianMoments(NamedTuple):
    """Moments of one activation at two jointly Gaussian arguments.

    Attributes:
      product: ``E[s(u) s(v)]``.
      slope_product: ``E[s'(u) s'(v)]``.
    """

    product: Float[Array, "..."]
    slope_product: Float[Array, "..."]


def gaussian_moments(
    activation: str | Int[Array, ""],
    variance: Float[Array, "..."],
    other_variance: Float[Array, "..."],
    covariance: Float[Array, "..."],
) -> GaussianMoments:
    """``E[s(u) s(v)]`` and ``E[s'(u) s'(v)]``, elementwise.

    Values are finite everywhere, and derivatives right where they exist. Where ReLU's have none, at
    variance 0 and, for its slopes, at correlation 1 and -1, they are given as 0; at variance 0 its
    correlation counts as 0, so that the slopes' product is that of independent arguments.

    Args:
      activation: a key of ``ACTIVATIONS``, or its position there, which may be traced: one program
        then serves all activations, and evaluates all of them under ``vmap``.
      variance: of ``u``, at least 0.
      other_variance: of ``v``.
      covariance: of ``u`` and ``v``; but for rounding at most ``sqrt(variance other_variance)``.

    Returns:
      Arrays of the common shape. Cost an entry for the smooth activations: 64 terms in float64, 36
      in float32, each of about 40 operations.

    Raises:
      InputError: if the name is unknown.

    Example:
      >>> one = jnp.float32(1.0)
      >>> gaussian_moments("relu", one, one, one).product
      Array(0.5, dtype=float32)

    References:
      Cho and Saul, `Kernel methods for deep learning
      <https://papers.nips.cc/paper/3628-kernel-methods-for-deep-learning>`_, 2009, for ReLU;
      Williams, `Computing with infinite networks
      <https://papers.nips.cc/paper/1197-computing-with-infinite-networks>`_, 1996, for the error
      function. Those of ``x erf(x)`` follow from the latter by integration by parts.
    """
    arguments = _promoted(variance, other_variance, covariance)
    index = _position("gaussian_moments", activation)
    if isinstance(index, int):
        family = _piecewise_moments if NAMES[index] in _NEGATIVE_SLOPES else _smooth_moments
        return family(index, *arguments)
    is_piecewise = jnp.asarray([name in _NEGATIVE_SLOPES for name in NAMES])[index]
    return lax.cond(is_piecewise, _piecewise_moments, _smooth_moments, index, *arguments)


def gaussian_mean(
    activation: str | Int[Array, ""], variance: Float[Array, "..."]
) -> Float[Array, "..."]:
    """``E[s(u)]``, elementwise: 0 for the odd activations, sigmoid and tanh.

    Args:
      activation: as for ``gaussian_moments``.
      variance: of ``u``, at least 0. At 0, where ReLU's mean has an infinite derivative, it is 0.

    Returns:
      An array of the shape of ``variance``.

    Raises:
      InputError: if the name is unknown.
    """
    (variance,) = _promoted(variance)
    index = _position("gaussian_mean", activation)
    eta = _table([_NEGATIVE_SLOPES.get(name, 1.0) for name in NAMES], index, variance.dtype)
    is_swish = _table([name == "swish" for name in NAMES], index, variance.dtype)
    scales, weights = logistic_mixture(NUM_NODES[variance.dtype.name])
    terms = (
        float(a * w / np.sqrt(np.pi)) * lax.rsqrt(1 + float(2 * a * a) * variance)
        for a, w in zip(scales, weights, strict=True)
    )
    return (1 - eta) * _sqrt(variance / (2 * np.pi)) + is_swish * variance * sum(terms)


def second_moments(
    activation: str | Int[Array, ""], variance: Float[Array, "..."]
) -> GaussianMoments:
    """``E[s(u)^2]`` and ``E[s'(u)^2]``, elementwise.

    Args:
      activation: as for ``gaussian_moments``.
      variance: of ``u``, at least 0.

    Returns:
      Arrays of the shape of ``variance``.
    """
    return gaussian_moments(activation, variance, variance, variance)


def hermite_coefficient(activation: str, order: int, *, variance: float = 1.0) -> float:
    """``mu_r = E[s(sqrt(variance) g) h_r(g)]`` for a standard normal ``g``.

    ``h_r`` is the Hermite polynomial of degree ``r`` with ``E[h_r(g)^2] = 1``, so that the squares
    of all coefficients sum to ``E[s^2]``.

    Args:
      activation: a key of ``ACTIVATIONS``.
      order: ``r``, at least 0.
      variance: positive.

    Returns:
      The coefficient, on the host in float64; error below 1e-12 up to order 40.

    Raises:
      InputError: if the name is unknown or a number out of its range.

    References:
      Eigen-NAS, theorem 1, where ``mu_1`` of the first layer gives the lower bound.
    """
    _position("hermite_coefficient", activation)
    if order < 0 or not variance > 0:
        raise InputError(
            "hermite_coefficient: `order` must be >= 0 and `variance` > 0, got "
            f"{order} and {variance}."
        )
    # Gauss-Legendre panels from 0 outwards, where ReLU has its kink; beyond 14 lies 1e-44.
    scale = float(np.sqrt(variance))
    num_panels = int(np.ceil(14 * max(1.0, scale)))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    starts = np.arange(-num_panels, num_panels)[:, None]
    g = (starts + (nodes[None] + 1) / 2).ravel() * (14 / num_panels)
    density = np.exp(-g * g / 2) / np.sqrt(2 * np.pi)
    weights = np.tile(weights / 2 * (14 / num_panels), 2 * num_panels)
    below, h = np.zeros_like(g), np.ones_like(g)
    for r in range(order):
        below, h = h, (g * h - np.sqrt(r) * below) / np.sqrt(r + 1)
    with jax.enable_x64(True):
        values = np.asarray(ACTIVATIONS[activation](jnp.asarray(scale * g)))
    return float(np.sum(weights * density * values * h))


def _position(where: str, activation) -> int | Int[Array, ""]:
    if not isinstance(activation, str):
        return jnp.asarray(activation)
    if activation not in NAMES:
        raise unknown_name(where, "activation", activation, NAMES)
    return NAMES.index(activation)


def _promoted(*arrays) -> list[Float[Array, "..."]]:
    """Of one floating type, at least float32, and of one shape."""
    dtype = jnp.promote_types(jnp.result_type(*arrays), jnp.float32)
    shape = jnp.broadcast_shapes(*(jnp.shape(array) for array in arrays))
    return [jnp.broadcast_to(jnp.asarray(array, dtype), shape) for array in arrays]


def _table(values, index, dtype):
    """The entry of a constant table, of an index that may be traced."""
    return float(values[index]) if isinstance(index, int) else jnp.asarray(values, dtype)[index]


# --- max(eta x, x) ------------------------------------------------------------------------------


def _piecewise_moments(index, v1, v2, c) -> GaussianMoments:
    """Of ``eta x + (1 - eta) relu(x)``."""
    eta = _table([_NEGATIVE_SLOPES.get(name, 1.0) for name in NAMES], index, c.dtype)
    share = (1 - eta) ** 2
    return GaussianMoments(
        eta * c + share * _relu_product(v1, v2, c), eta + share * _relu_slope_product(v1, v2, c)
    )


def _correlation(v1, v2, c):
    """The correlation and ``sqrt(1 - correlation^2)``; 0 and 1 at variance 0."""
    scale = _sqrt(v1) * _sqrt(v2)
    rho = jnp.where(scale > 0, c / jnp.where(scale > 0, scale, 1), 0)
    # Within rounding of 1 or -1 it is that: the angle would be off by the root of the rounding.
    is_extreme = 1 - jnp.abs(rho) < 8 * jnp.finfo(c.dtype).eps
    rho = jnp.where(is_extreme, jnp.sign(rho), rho)
    return rho, jnp.sqrt((1 - rho) * (1 + rho))


def _sqrt(x):
    """The square root, with derivative 0 at 0."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)


@jax.custom_jvp
def _relu_product(v1, v2, c):
    """``E[relu(u) relu(v)]``: its automatic derivative would be NaN at correlation 1."""
    rho, sine = _correlation(v1, v2, c)
    angle = jnp.arctan2(sine, rho)
    return _sqrt(v1) * _sqrt(v2) * (sine + (np.pi - angle) * rho) / (2 * np.pi)


@_relu_product.defjvp
def _relu_product_jvp(primals, tangents):
    v1, v2, _ = primals
    _, sine = _correlation(*primals)
    slope_product = _relu_slope_product(*primals)
    by_v1, by_v2 = (
        jnp.where(a > 0, _sqrt(b) / (4 * np.pi) * sine / jnp.where(a > 0, _sqrt(a), 1), 0)
        for a, b in ((v1, v2), (v2, v1))
    )
    tangent = by_v1 * tangents[0] + by_v2 * tangents[1] + slope_product * tangents[2]
    return _relu_product(*primals), tangent


@jax.custom_jvp
def _relu_slope_product(v1, v2, c):
    """``P(u > 0, v > 0)``."""
    rho, sine = _correlation(v1, v2, c)
    return (np.pi - jnp.arctan2(sine, rho)) / (2 * np.pi)


@_relu_slope_product.defjvp
def _relu_slope_product_jvp(primals, tangents):
    v1, v2, c = primals
    _, sine = _correlation(*primals)
    root = 2 * np.pi * _sqrt(v1) * _sqrt(v2) * sine
    by_c = jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1), 0)
    by_v1, by_v2 = (jnp.where(v > 0, -c / (2 * jnp.where(v > 0, v, 1)), 0) * by_c for v in (v1, v2))
    tangent = by_v1 * tangents[0] + by_v2 * tangents[1] + by_c * tangents[2]
    return _relu_slope_product(*primals), tangent


# --- mixtures of error functions ----------------------------------------------------------------


def _smooth_moments(index, v1, v2, c) -> GaussianMoments:
    """Of sigmoid, tanh and swish, by the same sums."""
    forms = [_LOGISTIC_FORMS.get(name, (1.0, 1.0)) for name in NAMES]
    height = _table([a * a / 4 for a, _ in forms], index, c.dtype)
    square = _table([b * b for _, b in forms], index, c.dtype)
    product, slope_product, swish, swish_slope = erf_moments(square * v1, square * v2, square * c)
    is_swish = _table([name == "swish" for name in NAMES], index, c.dtype) > 0
    return GaussianMoments(
        jnp.where(is_swish, (c + swish) / 4, height * product),
        jnp.where(is_swish, (1 + swish_slope) / 4, height * square * slope_product),
    )
