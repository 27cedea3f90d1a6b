"""Whole runs: from settings to a folder of results, with progress and resumption."""

from nasjax.runs.folder import RunFolder, open_run_folder
from nasjax.runs.nasi import DEFAULTS, NasiResult, NasiSettings, run_nasi, versions
from nasjax.runs.validate_ntk import Validation, ValidationSettings, run_validation

__all__ = [
    "DEFAULTS",
    "NasiResult",
    "NasiSettings",
    "RunFolder",
    "Validation",
    "ValidationSettings",
    "open_run_folder",
    "run_nasi",
    "run_validation",
    "versions",
]
