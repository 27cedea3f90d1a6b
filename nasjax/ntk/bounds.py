"""The papers' bounds on kernels, as functions of what they depend on.

Constants that a paper computes for its activations are computed here, from Gaussian moments. Where
a bound has a constant without a name (``Theta``), 1 stands for it: then only its tendency means
something, and the docstring says so.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nasjax.errors import InputError, unknown_name
from nasjax.networks.activations import ACTIVATIONS
from nasjax.ntk.dual_activations import hermite_coefficient, second_moments


class ActivationConstants(NamedTuple):
    """What a layer of infinite width does to variances, with the factor 2 of Eigen-NAS.

    Attributes:
      beta_1: largest ``2 E[s(u)^2] / E[u^2]`` over all variances of ``u``.
      beta_2: largest ``2 E[s'(u)^2]``.
      beta_3: smallest ``2 E[s'(u)^2]`` over variances up to a given one.
    """

    beta_1: float
    beta_2: float
    beta_3: float


class Bounds(NamedTuple):
    """A lower and an upper bound."""

    lower: float
    upper: float


def loss_bound(
    mean_eigenvalue: float,
    learning_rate: float,
    time: float,
    *,
    num_examples: int,
    num_outputs: int,
) -> float:
    r"""Loss ``|Y - f|^2 / m`` of an infinitely wide network after gradient descent.

    .. math:: L_t \le m n^2 (1 - \eta \bar\lambda)^q, \quad q = \min(2t, 1)

    The paper adds a term that falls with the width, with a constant that it does not name.

    Args:
      mean_eigenvalue: of the kernel, its trace norm over ``num_examples * num_outputs``.
      learning_rate: below one over the largest eigenvalue.
      time: steps of gradient descent.
      num_examples: ``m``.
      num_outputs: ``n``.

    Returns:
      The bound, for labels and outputs in [0, 1].

    Raises:
      InputError: if ``learning_rate * mean_eigenvalue`` is outside [0, 1], time is negative, or
        there is no example or output.

    References:
      NASI, proposition 1, eq. (6).
    """
    _check_counts("loss_bound", num_examples=num_examples, num_outputs=num_outputs)
    share = learning_rate * mean_eigenvalue
    if not 0 <= share <= 1 or time < 0:
        raise InputError(
            "loss_bound: `learning_rate * mean_eigenvalue` must be in [0, 1] and `time` >= 0, got "
            f"{share:g} and {time:g}. Take a rate below one over the largest eigenvalue."
        )
    return num_examples * num_outputs**2 * (1 - share) ** (2 * time if time < 0.5 else 1)


def data_bound(distance: float, *, input_dim: int, depth: int, lipschitz: float = 1.0) -> float:
    r"""How far the mean eigenvalue of one architecture may be apart on two distributions of data.

    .. math:: n_0^{-1} Z D(\gamma), \quad
       D = L \text{ if } \gamma = 1 \text{ else } (1 - \gamma^{2L}) / (1 - \gamma^2)

    It holds for fully connected networks of infinite width without biases, in Jacot's
    parameterisation (first layer divided by the root of ``input_dim``), with an activation
    ``|s(x)| <= |x|`` that is ``lipschitz``-continuous, for inputs in the unit ball.

    Args:
      distance: ``Z``, the integral of ``|P - Q|``, in [0, 2].
      input_dim: ``n_0``.
      depth: ``L``, layers with weights.
      lipschitz: ``gamma``.

    Returns:
      The bound on the difference of trace norms over examples and outputs.

    Raises:
      InputError: if a number is out of its range.

    References:
      NASI, proposition 2.
    """
    if not 0 <= distance <= 2 or input_dim < 1 or depth < 1 or not lipschitz > 0:
        raise InputError(
            "data_bound: `distance` must be in [0, 2], `input_dim` and `depth` at least 1 and "
            f"`lipschitz` above 0, got {distance:g}, {input_dim}, {depth} and {lipschitz:g}."
        )
    square = lipschitz**2
    return distance / input_dim * sum(square**layer for layer in range(depth))


_second_moments = jax.jit(second_moments, static_argnums=0)


@functools.cache
def activation_constants(activation: str, max_variance: float = np.inf) -> ActivationConstants:
    """The constants of an activation, from Gaussian moments over variances from 1e-8 to 1e8.

    They agree with the paper's table 1 but for swish's ``beta_2``: the paper has 1.22, about the
    square of its largest slope, where the mean over Gaussians is at most 1.017.

    Args:
      activation: a key of ``ACTIVATIONS``.
      max_variance: above 0; largest variance that ``beta_3`` looks at; where it grows, a bounded
        activation's ``beta_3`` goes to 0. The paper takes ``3 (1 + eta^2) (2 + eta^2)^(L - 3)``.

    Returns:
      The constants, accurate to 1e-6.

    Raises:
      InputError: if the activation is unknown, or the variance not above 0.

    References:
      Eigen-NAS, table 1.
    """
    if activation not in ACTIVATIONS:
        raise unknown_name("activation_constants", "activation", activation, ACTIVATIONS)
    if not max_variance > 0:
        raise InputError(
            f"activation_constants: `max_variance` must be above 0, got {max_variance:g}."
        )
    with jax.enable_x64(True):
        variances = jnp.append(jnp.logspace(-8, 8, 1001), min(max(max_variance, 1e-8), 1e8))
        moments = _second_moments(activation, variances)
    squares = 2 * np.asarray(moments.product / variances)
    slopes = 2 * np.asarray(moments.slope_product)
    is_reached = np.asarray(variances) <= max(max_variance, 1e-8)
    return ActivationConstants(
        float(squares.max()), float(slopes.max()), float(slopes[is_reached].min())
    )


def lambda_min_bounds(
    activations: Sequence[str], skips: Sequence[int], *, num_examples: int, input_dim: int
) -> Bounds:
    r"""Bounds on the smallest eigenvalue of lemma 1's kernel, on the unit sphere.

    .. math::
       2 \mu_1(\sigma_1)^2 \tfrac N d \prod_{p=3}^L (\beta_3(\sigma_{p-1}) + \alpha_{p-2}),
       \quad \tfrac N d \sum_{l=1}^L \prod_{p=2}^{l-1} (\beta_1(\sigma_{p-1}) + \alpha_{p-2})
       \beta_1(\sigma_{l-1}) \prod_{p=l+1}^L (\beta_2(\sigma_{p-1}) + \alpha_{p-2})

    The lower bound has an unnamed constant before ``N / d``, for which 1 stands: use its changes
    with depth, activations and skips. The upper bound is the mean of the kernel's diagonal bounded
    layer by layer, times ``N / d``, so it holds for any inputs of norm 1 where ``N >= d``.

    Args:
      activations: ``sigma_1 ... sigma_{L-1}``, keys of ``ACTIVATIONS``.
      skips: ``alpha_1 ... alpha_{L-2}``, 0 or 1.
      num_examples: ``N``.
      input_dim: ``d``.

    Returns:
      Both bounds.

    Raises:
      InputError: if the lists do not fit together.

    References:
      Eigen-NAS, theorem 1, with ``beta_1(sigma_0) = 1`` and ``alpha_0 = 0``.
    """
    _check_counts("lambda_min_bounds", num_examples=num_examples, input_dim=input_dim)
    layers = _layer_constants("lambda_min_bounds", activations, skips)
    growth = [layer.beta_1 + skip for layer, skip in zip(layers, (0, *skips), strict=True)]
    slopes = [layer.beta_2 + skip for layer, skip in zip(layers, (0, *skips), strict=True)]
    ratio = num_examples / input_dim
    lower = 2 * hermite_coefficient(activations[0], 1) ** 2 * ratio
    for layer, skip in zip(layers[1:], skips, strict=True):
        lower *= layer.beta_3 + skip
    upper = 0.0
    for number in range(1, len(activations) + 2):
        last = 1.0 if number == 1 else layers[number - 2].beta_1
        upper += last * np.prod(growth[: max(number - 2, 0)]) * np.prod(slopes[number - 1 :])
    return Bounds(float(lower), float(ratio * upper))


def finite_lambda_min_bounds(
    activations: Sequence[str], skips: Sequence[int], *, num_examples: int, input_dim: int
) -> Bounds:
    r"""The bounds for a network of finite width whose weights are all N(0, 1 / width).

    .. math::
       \tfrac N d \prod_{i=2}^{L-1} (\beta_3(\sigma_i) + \alpha_{i-1}), \quad
       \tfrac N d \sum_{k=0}^{L-1} \prod_{i=k+2}^{L-1} (\beta_2(\sigma_i) + \alpha_{i-1})

    Both have unnamed constants, for which 1 stands: only tendencies mean something.

    Args:
      activations: ``sigma_1 ... sigma_{L-1}``, keys of ``ACTIVATIONS``.
      skips: ``alpha_1 ... alpha_{L-2}``, 0 or 1.
      num_examples: ``N``.
      input_dim: ``d``.

    Returns:
      Both bounds.

    Raises:
      InputError: if the lists do not fit together.

    References:
      Eigen-NAS, theorem 2.
    """
    _check_counts("finite_lambda_min_bounds", num_examples=num_examples, input_dim=input_dim)
    layers = _layer_constants("finite_lambda_min_bounds", activations, skips)[1:]
    lowers = [layer.beta_3 + skip for layer, skip in zip(layers, skips, strict=True)]
    uppers = [layer.beta_2 + skip for layer, skip in zip(layers, skips, strict=True)]
    ratio = num_examples / input_dim
    total = sum(np.prod(uppers[start:]) for start in range(len(activations) + 1))
    return Bounds(float(ratio * np.prod(lowers)), float(ratio * total))


def linear_cell_ntk_scales(num_layers: int, width: int) -> tuple[float, float]:
    r"""Expected kernels of a wide and a deep linear cell, as multiples of ``x_i . x_j``.

    The wide cell is ``1' sum_i W_i x`` and the deep one ``1' prod_i W_i x``, with ``num_layers``
    square matrices of standard normal entries. The wide cell's kernel has this value whatever the
    weights; the deep one's varies about it, and with it its condition number.

    Args:
      num_layers: ``L``.
      width: ``n``, inputs and units of every layer.

    Returns:
      ``(L n, L n^L)``, the second infinite where it is larger than numbers get.

    Raises:
      InputError: if a number is below 1.

    References:
      HNAS, theorem 4.
    """
    _check_counts("linear_cell_ntk_scales", num_layers=num_layers, width=width)
    with np.errstate(over="ignore"):
        deep = float(num_layers * np.float64(width) ** num_layers)
    return float(num_layers * width), deep


def _check_counts(where: str, **counts: int) -> None:
    for name, count in counts.items():
        if not count >= 1:
            raise InputError(f"{where}: `{name}` must be at least 1, got {count}.")


def _layer_constants(
    where: str, activations: Sequence[str], skips: Sequence[int]
) -> list[ActivationConstants]:
    """Those of every hidden layer, at the largest variance that the layers before it allow."""
    if len(activations) < 2 or len(skips) != len(activations) - 1:
        raise InputError(
            f"{where}: `activations` must name at least 2 layers and `skips` be one fewer, got "
            f"{len(activations)} and {len(skips)}."
        )
    for activation in activations:
        if activation not in ACTIVATIONS:
            raise unknown_name(where, "activation", str(activation), ACTIVATIONS)
    for skip in skips:
        if skip not in (0, 1):
            raise InputError(f"{where}: `skips` must be 0 or 1, got {skip}.")
    variance, layers = 1.0, []
    for activation, skip in zip(activations, (0, *skips), strict=True):
        layers.append(activation_constants(activation, variance))
        variance *= layers[-1].beta_1 + skip
    return layers
