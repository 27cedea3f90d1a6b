"""Objectives with a few constants, for a search that tunes them by evaluations.

Constants come as a point of the unit cube, in units that suit any pool: a metric relative to its
median, a quantile of it, the weight of its rank.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Float

from nasjax.errors import InputError, unknown_name
from nasjax.objectives.bounds import BOUNDS

Pool = Float[np.ndarray, " pool"]


class TradeOffRanges(NamedTuple):
    """Where the constants of HNAS, eq. (7), are sought.

    Attributes:
      log10_mu: least and greatest. None goes from where the trade-off adds a hundredth at most to
        the bound of any architecture to where it is a hundred times the rest of it for half of
        them, with the median of ``M^2`` for ``nu``.
      nu: least and greatest; None takes the quantiles of ``M^2`` over the pool, from 0 to 1.
      is_scaled: whether metric and condition number are divided by their medians over the pool.
    """

    log10_mu: tuple[float, float] | None = None
    nu: tuple[float, float] | None = None
    is_scaled: bool = True


RANGES = {
    "scaled": TradeOffRanges(),
    "hnas": TradeOffRanges((-4.0, 0.0), (0.0, 5e3), is_scaled=False),
}
"""``scaled`` suits any metric and pool; ``hnas`` has the numbers of the paper's code for
NAS-Bench-201, in the units of its metrics."""


class TradeOffObjective(NamedTuple):
    """A bound as a function of where its constants lie in their ranges.

    Attributes:
      values_at: ``(mu, nu) -> [pool]``.
      constants_at: ``point -> (mu, nu)``, for metrics and condition numbers in units of their
        medians if the ranges are scaled. ``()`` has 0 for both.
    """

    values_at: Callable[[float, float], Pool]
    constants_at: Callable[[tuple[float, ...]], tuple[float, float]]

    def __call__(self, point: tuple[float, ...]) -> Pool:
        """``[pool]``, lower is better."""
        return self.values_at(*self.constants_at(point))


def trade_off_objective(
    metric: Pool,
    kappa: Pool,
    *,
    bound: str = "non_realizable",
    ranges: TradeOffRanges = RANGES["scaled"],
) -> TradeOffObjective:
    """A bound as a function of where its ``mu`` and ``nu`` lie in their ranges.

    Args:
      metric: ``[pool]``, in any unit.
      kappa: ``[pool]``, the condition number; unused by bounds without it.
      bound: a key of ``BOUNDS``.
      ranges: of the constants.

    Returns:
      ``(place of mu, place of nu) -> [pool]``, lower is better; infinite where metric or condition
      number are not finite or not above zero. Bounds without these constants take ``()``.

    Raises:
      InputError: for an unknown bound, or arrays of other shapes.
    """
    if bound not in BOUNDS:
        raise unknown_name("trade_off_objective", "bound", bound, BOUNDS)
    metric, kappa = _same_length("trade_off_objective", metric, kappa)
    is_usable = np.isfinite(metric) & (metric > 0)
    if BOUNDS[bound].uses_kappa:
        is_usable &= np.isfinite(kappa) & (kappa > 0)
    if ranges.is_scaled and is_usable.any():
        metric = metric / np.median(metric[is_usable])
        if BOUNDS[bound].uses_kappa:
            kappa = kappa / np.median(kappa[is_usable])
    squares = metric[is_usable] ** 2

    def values_at(mu: float, nu: float) -> Pool:
        with jax.enable_x64(True):
            return np.asarray(BOUNDS[bound].fn(jnp.asarray(metric), jnp.asarray(kappa), mu, nu))

    def nu_at(place: float) -> float:
        if ranges.nu is not None:
            return ranges.nu[0] + (ranges.nu[1] - ranges.nu[0]) * place
        return float(np.quantile(squares, place)) if len(squares) else 0.0

    if not BOUNDS[bound].has_trade_off:
        return TradeOffObjective(values_at, lambda point: (0.0, 0.0))
    low, high = ranges.log10_mu or _log10_mu(values_at, nu_at(0.5))

    def constants_at(point: tuple[float, ...]) -> tuple[float, float]:
        return 10.0 ** (low + (high - low) * point[0]), nu_at(point[1])

    return TradeOffObjective(values_at, constants_at)


def _log10_mu(values_at, nu: float) -> tuple[float, float]:
    """From where ``mu`` does next to nothing to where it decides."""
    rest = values_at(0.0, nu)
    with np.errstate(all="ignore"):
        ratios = rest / (values_at(1.0, nu) - rest)
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    if not len(ratios):  # there is nothing to weigh
        return (0.0, 0.0)
    return float(np.log10(ratios.min())) - 2.0, float(np.log10(np.median(ratios))) + 2.0


def weighted_ranks_objective(
    metrics: Mapping[str, Pool], is_higher_better: Mapping[str, bool]
) -> Callable[[tuple[float, ...]], Pool]:
    """Minus a weighted sum of metrics, each as the normal score of its rank in the pool.

    Ranks need no unit and let no outlier decide; normal scores (van der Waerden's) keep the ends of
    the order apart, where the best architectures are.

    Args:
      metrics: ``[pool]`` each, by name.
      is_higher_better: by name.

    Returns:
      ``weights in [0, 1], in the order of the metrics -> [pool]``, lower is better; infinite where
      a metric is not finite.

    Raises:
      InputError: if there is no metric, or arrays have other shapes.
    """
    scores = normal_scores(metrics, is_higher_better)

    def objective_fn(point: tuple[float, ...]) -> Pool:
        found = -scores @ np.asarray(point, np.float64)
        return np.where(np.isnan(found), np.inf, found)

    return objective_fn


def normal_scores(
    metrics: Mapping[str, Pool], is_higher_better: Mapping[str, bool]
) -> Float[np.ndarray, "pool metrics"]:
    """Metrics as the normal scores of their ranks in the pool (van der Waerden's).

    Args:
      metrics: ``[pool]`` each, by name.
      is_higher_better: by name.

    Returns:
      ``[pool, metrics]``, higher is better, each of mean 0 and nearly unit variance; equal values
      share a score; NaN throughout for what lacks a metric.

    Raises:
      InputError: if there is no metric, or arrays have other shapes.
    """
    if not metrics:
        raise InputError("normal_scores: `metrics` must name a metric, got none.")
    columns = np.stack(_same_length("normal_scores", *metrics.values()))
    is_usable = np.isfinite(columns).all(0)
    scores = np.full(columns.shape[::-1], np.nan)
    for row, name in enumerate(metrics):
        values = columns[row, is_usable]
        ranks = scipy.stats.rankdata(values if is_higher_better[name] else -values)
        scores[is_usable, row] = scipy.stats.norm.ppf(ranks / (len(values) + 1))
    return scores


def _same_length(where: str, *arrays: Pool) -> list[Pool]:
    arrays = [np.asarray(array, np.float64) for array in arrays]
    if any(array.ndim != 1 or array.shape != arrays[0].shape for array in arrays):
        shapes = ", ".join(str(list(array.shape)) for array in arrays)
        raise InputError(f"{where}: metrics must be lists of one length, got shapes {shapes}.")
    return arrays
