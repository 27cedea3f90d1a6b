"""Whole runs: from settings to a folder of results, with progress and resumption."""

from nasjax.runs.candidates import CandidateEvaluation, training_evaluation
from nasjax.runs.compare import SEARCHES, CompareSettings, run_comparison
from nasjax.runs.correlate import CorrelateSettings, run_correlation
from nasjax.runs.darts import DartsResult, run_darts
from nasjax.runs.darts_seeds import DartsSeedsResult, run_darts_seeds
from nasjax.runs.darts_settings import DARTS_ALGORITHMS, DartsSettings
from nasjax.runs.eigen import EigenSettings, run_eigen
from nasjax.runs.folder import RunFolder, SharedFolder, open_run_folder, open_shared_folder
from nasjax.runs.hnas import HnasSettings, PoolSearchResult, run_hnas, table_evaluation
from nasjax.runs.infinite_scores import (
    INFINITE_SCORES,
    InfiniteScoreSettings,
    run_infinite_scores,
)
from nasjax.runs.nasi import DEFAULTS, NasiResult, NasiSettings, run_nasi, versions
from nasjax.runs.processes import Process, join_processes
from nasjax.runs.score import SCORE_DEFAULTS, ScoreRun, ScoreSettings, run_score
from nasjax.runs.score_pool import ScoredPool, load_scored_pool
from nasjax.runs.score_request import (
    Request,
    request_all,
    request_file,
    request_sample,
    request_strings,
)
from nasjax.runs.torch_score import score_torch_weights
from nasjax.runs.train import TrainResult, run_training
from nasjax.runs.train_settings import TrainSettings
from nasjax.runs.trained import Trained, evaluate_run, load_trained
from nasjax.runs.validate_eigen import (
    EigenValidation,
    EigenValidationSettings,
    run_eigen_validation,
)
from nasjax.runs.validate_generalization import (
    Generalization,
    GeneralizationSettings,
    run_generalization,
)
from nasjax.runs.validate_ntk import Validation, ValidationSettings, run_validation

__all__ = [
    "DARTS_ALGORITHMS",
    "DEFAULTS",
    "DartsResult",
    "DartsSeedsResult",
    "DartsSettings",
    "SCORE_DEFAULTS",
    "INFINITE_SCORES",
    "EigenSettings",
    "EigenValidation",
    "EigenValidationSettings",
    "Generalization",
    "GeneralizationSettings",
    "InfiniteScoreSettings",
    "HnasSettings",
    "NasiResult",
    "SEARCHES",
    "CandidateEvaluation",
    "CompareSettings",
    "CorrelateSettings",
    "NasiSettings",
    "PoolSearchResult",
    "Process",
    "Request",
    "RunFolder",
    "ScoreRun",
    "ScoreSettings",
    "ScoredPool",
    "SharedFolder",
    "TrainResult",
    "TrainSettings",
    "Trained",
    "Validation",
    "ValidationSettings",
    "evaluate_run",
    "join_processes",
    "load_scored_pool",
    "load_trained",
    "open_run_folder",
    "open_shared_folder",
    "request_all",
    "request_file",
    "request_sample",
    "request_strings",
    "run_comparison",
    "run_correlation",
    "run_darts",
    "run_darts_seeds",
    "run_eigen",
    "run_eigen_validation",
    "run_generalization",
    "run_hnas",
    "run_infinite_scores",
    "run_nasi",
    "run_score",
    "run_training",
    "run_validation",
    "score_torch_weights",
    "table_evaluation",
    "training_evaluation",
    "versions",
]
