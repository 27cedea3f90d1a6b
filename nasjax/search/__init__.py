"""Searches: tuples of pure functions that know neither networks nor data."""

from nasjax.search.base import SearchAlgorithm
from nasjax.search.baselines import (
    BaselineState,
    random_search,
    ranked,
    regularised_evolution,
    reinforce,
)
from nasjax.search.hnas import HnasState, Probe, grid_probes, hnas
from nasjax.search.nasi import (
    NU_MODES,
    NasiState,
    NasiStepInfo,
    NuEstimate,
    mean_trace_norm,
    nasi,
    nu_estimation,
    optimal_logits,
    zero_logits,
)
from nasjax.search.pool import Evaluated, EvaluateFn, Evaluation, PoolStepInfo

__all__ = [
    "BaselineState",
    "random_search",
    "ranked",
    "regularised_evolution",
    "reinforce",
    "Evaluated",
    "EvaluateFn",
    "Evaluation",
    "HnasState",
    "PoolStepInfo",
    "Probe",
    "grid_probes",
    "hnas",
    "NU_MODES",
    "NasiState",
    "NasiStepInfo",
    "NuEstimate",
    "SearchAlgorithm",
    "mean_trace_norm",
    "nasi",
    "nu_estimation",
    "optimal_logits",
    "zero_logits",
]
