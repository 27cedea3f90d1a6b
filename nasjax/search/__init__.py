"""Searches: tuples of pure functions that know neither networks nor data."""

from nasjax.search.base import SearchAlgorithm
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

__all__ = [
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
