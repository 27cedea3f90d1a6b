"""Correlations between scores, with bootstrap intervals."""

from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Float

from nasjax.errors import InputError, unknown_name

KINDS = ("kendall", "pearson", "spearman")
"""``kendall``: tau-b; ``pearson``: linear; ``spearman``: of ranks."""

_FEWEST_PAIRS = 8


class Correlation(NamedTuple):
    """A correlation coefficient.

    Attributes:
      value: in [-1, 1]; NaN where one side does not vary.
      low: lower end of the bootstrap interval; NaN for fewer than 8 pairs, whose resamples are too
        few and too alike for one.
      high: upper end.
      num_pairs: that were compared.
    """

    value: float
    low: float
    high: float
    num_pairs: int


def correlation(
    a: Float[np.ndarray, " pairs"],
    b: Float[np.ndarray, " pairs"],
    *,
    kind: str = "spearman",
    level: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Correlation:
    """How two scores of the same things go together.

    Args:
      a: ``[pairs]``.
      b: ``[pairs]``.
      kind: one of ``KINDS``.
      level: of the interval between two percentiles of the bootstrap over pairs.
      num_resamples: of the bootstrap; 0 for no interval.
      seed: of the bootstrap.

    Returns:
      The coefficient. Pairs with a value that is not finite are left out.

    Raises:
      InputError: for an unknown kind, or arrays of other shapes.
    """
    if kind not in KINDS:
        raise unknown_name("correlation", "kind", kind, KINDS)
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise InputError(
            f"correlation: `a` and `b` must be two lists of one length, got {list(a.shape)} and "
            f"{list(b.shape)}."
        )
    is_finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[is_finite], b[is_finite]
    value = _coefficient(a, b, kind)
    num_resamples = num_resamples if len(a) >= _FEWEST_PAIRS else 0
    generator = np.random.default_rng(seed)
    draws = [
        _coefficient(a[chosen], b[chosen], kind)
        for chosen in generator.integers(0, max(len(a), 1), (num_resamples, len(a)))
    ]
    draws = [draw for draw in draws if np.isfinite(draw)]
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(draws, tails) if draws else (np.nan, np.nan)
    return Correlation(value, float(low), float(high), len(a))


def _coefficient(a, b, kind: str) -> float:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return np.nan
    if kind == "kendall":
        return float(scipy.stats.kendalltau(a, b).statistic)
    if kind == "spearman":
        a, b = scipy.stats.rankdata(a), scipy.stats.rankdata(b)
    return float(np.corrcoef(a, b)[0, 1])
