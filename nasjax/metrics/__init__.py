"""Training-free metrics of any network, alone or a whole set from shared statistics."""

from nasjax.metrics.registry import METRICS, Metric
from nasjax.metrics.score import Scores, score_network
from nasjax.metrics.scorer import ENGINES, ScoreFn, space_scorer
from nasjax.metrics.space_networks import scored_network
from nasjax.metrics.statistics import STATISTICS, ScoredNetwork, statistics
from nasjax.metrics.taps import Tapped, TappedFn
from nasjax.metrics.values import Measured

__all__ = [
    "ENGINES",
    "METRICS",
    "STATISTICS",
    "Measured",
    "Metric",
    "ScoredNetwork",
    "ScoreFn",
    "Scores",
    "Tapped",
    "TappedFn",
    "score_network",
    "scored_network",
    "space_scorer",
    "statistics",
]
