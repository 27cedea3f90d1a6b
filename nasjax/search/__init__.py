"""Searches: tuples of pure functions that know neither networks nor data."""

from nasjax.search.base import SearchAlgorithm
from nasjax.search.baselines import (
    random_search,
    ranked,
    regularised_evolution,
    reinforce,
)
from nasjax.search.darts import DARTS_ORDERS, DartsRates, DartsState, DartsStepInfo, LossFn, darts
from nasjax.search.darts_mlp import mlp_project, mlp_relax, mlp_variables, select_mlp
from nasjax.search.halving import EvaluateAtFn, successive_halving
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
from nasjax.search.parzen import parzen
from nasjax.search.pool import Evaluated, EvaluateFn, Evaluation, PoolState, PoolStepInfo
from nasjax.search.predicted import Prediction, predict, predicted
from nasjax.search.training_free import best_of_sample, pruning
from nasjax.search.weight_sharing import (
    CandidateInfo,
    CandidateState,
    SharedState,
    SharedStepInfo,
    candidate_search,
    weight_sharing,
)

__all__ = [
    "random_search",
    "ranked",
    "regularised_evolution",
    "reinforce",
    "EvaluateAtFn",
    "Evaluated",
    "EvaluateFn",
    "Evaluation",
    "HnasState",
    "PoolState",
    "PoolStepInfo",
    "Prediction",
    "Probe",
    "best_of_sample",
    "grid_probes",
    "hnas",
    "parzen",
    "predict",
    "successive_halving",
    "predicted",
    "pruning",
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
    "DARTS_ORDERS",
    "CandidateInfo",
    "CandidateState",
    "DartsRates",
    "DartsState",
    "DartsStepInfo",
    "LossFn",
    "SharedState",
    "SharedStepInfo",
    "candidate_search",
    "darts",
    "mlp_project",
    "mlp_relax",
    "mlp_variables",
    "select_mlp",
    "weight_sharing",
]
