"""Bounds on the generalisation error of a network, from training-free metrics of it.

Each is a pure function of arrays, up to terms and factors that are alike for all architectures of a
space, so that it ranks them: lower is better. An architecture without a metric (NaN, infinite, not
above zero) or without a condition number has the bound infinity, and so never wins.

Source: HNAS, section 4.3 (corollaries 1 and 2), section 4.4 (theorem 3), eq. (7).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

Values = Float[Array, " architectures"]


class Bound(NamedTuple):
    """A bound by name.

    Attributes:
      fn: ``fn(metric, kappa, mu, nu) -> [architectures]``.
      uses_kappa: whether it depends on the condition number.
      has_trade_off: whether it depends on ``mu`` and ``nu``.
      source: paper and equation.
    """

    fn: Callable[[Values, Values, float, float], Values]
    uses_kappa: bool
    has_trade_off: bool
    source: str


def realizable(metric: Values) -> Values:
    """``1 / M``: networks that reach a training error of zero, of one condition number.

    Args:
      metric: ``[architectures]``: gradient norm, SNIP, GraSP or NTK trace norm (HNAS, section 3.2).

    Returns:
      ``[architectures]``.
    """
    return _or_infinite(1.0 / _usable(metric))


def realizable_with_trade_off(metric: Values, mu: float, nu: float) -> Values:
    """``1 / M + mu (M^2 - nu)^2``: the training error is not zero.

    Args:
      metric: ``[architectures]``.
      mu: weight of the training error, in the unit of ``M^-5``.
      nu: where it is least, in the unit of ``M^2``.

    Returns:
      ``[architectures]``.
    """
    metric = _usable(metric)
    return _or_infinite(1.0 / metric + _training_error(metric, mu, nu))


def realizable_with_kappa(metric: Values, kappa: Values) -> Values:
    """``kappa / M``: condition numbers differ.

    Args:
      metric: ``[architectures]``.
      kappa: ``[architectures]``, the condition number of the NTK.

    Returns:
      ``[architectures]``.
    """
    return _or_infinite(_usable(kappa) / _usable(metric))


def non_realizable(metric: Values, kappa: Values, mu: float, nu: float) -> Values:
    """``kappa / M + mu (M^2 - nu)^2`` (HNAS, eq. 7, with ``t = 1``): both.

    Args:
      metric: ``[architectures]``.
      kappa: ``[architectures]``.
      mu: weight of the training error, in the unit of ``kappa M^-5``.
      nu: where it is least, in the unit of ``M^2``.

    Returns:
      ``[architectures]``.
    """
    metric = _usable(metric)
    return _or_infinite(_usable(kappa) / metric + _training_error(metric, mu, nu))


def transfer_gap(
    other_metric: Values,
    kappa: Values,
    trace: Values,
    other_trace: Values,
    *,
    divergence: float,
    input_size: int,
    alpha: float = 1.0,
) -> Values:
    """``kappa / (M' - alpha Z / (2 n0 M_min))``: the gap on one data set by a metric on another.

    Args:
      other_metric: ``[architectures]``, any metric on the other data.
      kappa: ``[architectures]``.
      trace: ``[architectures]``, the NTK trace norm on the data that errors are of.
      other_trace: likewise on the other data.
      divergence: ``Z``, the L1 distance of the two distributions of inputs, from 0 to 2.
      input_size: ``n0``, the numbers that an input has.
      alpha: the theorem's constant.

    Returns:
      ``[architectures]``; infinite where ``M'`` is too small for the theorem.
    """
    least = jnp.minimum(_usable(trace), _usable(other_trace))
    rest = _usable(other_metric) - alpha * divergence / (2.0 * input_size * least)
    return _or_infinite(_usable(kappa) / _usable(rest))


def non_realizable_of_code(metric: Values, kappa: Values, mu: float, nu: float) -> Values:
    """``kappa / M + mu |M^2 - nu|``: the authors' code, which has no square and writes ``nu^2``.

    Args:
      metric: ``[architectures]``.
      kappa: ``[architectures]``.
      mu: weight of the training error, in the unit of ``kappa M^-3``.
      nu: where it is least, in the unit of ``M^2``.

    Returns:
      ``[architectures]``.
    """
    metric = _usable(metric)
    return _or_infinite(_usable(kappa) / metric + mu * jnp.abs(metric**2 - nu))


BOUNDS = {
    "realizable": Bound(lambda m, k, mu, nu: realizable(m), False, False, "HNAS, corollary 1"),
    "realizable_trade_off": Bound(
        lambda m, k, mu, nu: realizable_with_trade_off(m, mu, nu), False, True, "HNAS, table 6"
    ),
    "realizable_kappa": Bound(
        lambda m, k, mu, nu: realizable_with_kappa(m, k), True, False, "HNAS, table 6"
    ),
    "non_realizable": Bound(non_realizable, True, True, "HNAS, corollary 2 and eq. (7)"),
    "non_realizable:code": Bound(non_realizable_of_code, True, True, "the authors' code"),
}
"""Bounds by the scenario that they assume."""


def _training_error(metric, mu, nu):
    return mu * (metric**2 - nu) ** 2


def _usable(values):
    """NaN in the place of what is no finite number above zero."""
    values = jnp.asarray(values)
    return jnp.where(jnp.isfinite(values) & (values > 0), values, jnp.nan)


def _or_infinite(bound):
    return jnp.where(jnp.isfinite(bound), bound, jnp.inf)
