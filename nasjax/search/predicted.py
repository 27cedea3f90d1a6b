"""A linear model of accuracy by training-free metrics, learned while it selects."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.stats
from jaxtyping import Float

from nasjax.errors import InputError
from nasjax.search.base import SearchAlgorithm
from nasjax.search.pool import Evaluation, pool_search

_INTERCEPT_VARIANCE = 1.0


class Prediction(NamedTuple):
    """What the model says of every architecture, in standard deviations of the values seen.

    Attributes:
      mean: ``[pool]``, from the mean of the values seen; minus infinity for unusable ones.
      std: ``[pool]``, of the mean, without the noise of an evaluation.
      weights: ``[metrics]``.
    """

    mean: Float[np.ndarray, " pool"]
    std: Float[np.ndarray, " pool"]
    weights: Float[np.ndarray, " metrics"]


def predict(
    features: Float[np.ndarray, "pool metrics"],
    known: Mapping[int, Evaluation],
    *,
    weight_std: float = 0.5,
    noise_std: float = 1.0,
) -> Prediction:
    """The posterior of Bayesian linear regression whose prior is the plain mean of the metrics.

    Args:
      features: ``[pool, metrics]``, higher is better, each of unit scale, for example those of
        ``objectives.normal_scores``; rows that are not finite are unusable.
      known: evaluations by place; failed ones count as the least value seen.
      weight_std: how far weights may go, relative to those of the prior.
      noise_std: of an evaluation, relative to the spread of the values seen.

    Returns:
      The prediction. Without two different values it is the prior's.

    Raises:
      InputError: if there is no usable architecture, or a scale is not above zero.
    """
    if not (weight_std > 0 and noise_std > 0):
        raise InputError(
            f"predict: `weight_std` and `noise_std` must be above 0, got {weight_std}, {noise_std}."
        )
    features = np.asarray(features, np.float64)
    is_usable = np.isfinite(features).all(1)
    if features.ndim != 2 or not features.size or not is_usable.any():
        raise InputError(
            "predict: `features` must be [pool, metrics] with an architecture that has all of "
            f"them, got shape {list(features.shape)} with {int(is_usable.sum())} such."
        )
    rows = np.where(is_usable[:, None], features, 0.0)
    scale = rows[is_usable].sum(1).std()
    prior = np.full(rows.shape[1], 1.0 / scale if scale > 0 else 1.0)
    inputs = np.c_[np.ones(len(rows)), rows]
    center = np.r_[0.0, prior]
    variances = np.r_[_INTERCEPT_VARIANCE, (weight_std * prior) ** 2]
    places, values = _standardised(known)
    covariance = np.diag(variances)
    if len(places):
        seen = inputs[places]
        gram = seen @ (variances[:, None] * seen.T) + noise_std**2 * np.eye(len(places))
        gain = scipy.linalg.solve(gram, seen * variances, assume_a="pos").T
        center = center + gain @ (values - seen @ center)
        covariance = covariance - gain @ (seen * variances)
    mean = np.where(is_usable, inputs @ center, -math.inf)
    std = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", inputs, covariance, inputs), 0.0))
    return Prediction(mean, std, center[1:])


def predicted(
    features: Float[np.ndarray, "pool metrics"],
    *,
    weight_std: float = 0.5,
    noise_std: float = 1.0,
) -> SearchAlgorithm:
    """Evaluates where the expected improvement of the model of `predict` is greatest.

    Args:
      features: as ``predict`` takes them.
      weight_std: likewise.
      noise_std: likewise.

    Returns:
      The search: ``step(key, state, evaluate) -> (PoolState, PoolStepInfo)``; it begins with the
      best by the mean of the metrics. A step costs ``O(pool metrics^2)``, milliseconds. Chance
      plays no part.

    Raises:
      InputError: if there is no usable architecture, or a scale is not above zero.
    """
    scales = {"weight_std": weight_std, "noise_std": noise_std}
    num_usable = int(np.isfinite(predict(features, {}, **scales).mean).sum())

    def choose(generator: np.random.Generator, known: dict[int, Evaluation]) -> int:
        del generator
        found = predict(features, known, **scales)
        _, values = _standardised(known)
        hope = _expected_improvement(found, values.max()) if len(values) else found.mean
        left = np.isfinite(found.mean)
        left[list(known)] = False
        return int(np.argmax(np.where(left, hope, -math.inf)))

    return pool_search("predicted", num_usable, choose)


def _standardised(known: Mapping[int, Evaluation]) -> tuple[np.ndarray, np.ndarray]:
    """``(places, values)``, of mean 0 and standard deviation 1; none without two different ones."""
    values = np.array([evaluation.value for evaluation in known.values()], np.float64)
    if not np.isfinite(values).any():
        return np.zeros(0, int), np.zeros(0)
    values = np.where(np.isfinite(values), values, np.nanmin(values))
    spread = values.std()
    if not spread > 0:
        return np.zeros(0, int), np.zeros(0)
    return np.array(list(known), int), (values - values.mean()) / spread


def _expected_improvement(found: Prediction, best: float) -> np.ndarray:
    std = np.maximum(found.std, 1e-12)
    ahead = np.where(np.isfinite(found.mean), (found.mean - best) / std, -math.inf)
    improvement = std * (np.maximum(ahead, -1e12) * scipy.stats.norm.cdf(ahead))
    return improvement + std * scipy.stats.norm.pdf(ahead)
