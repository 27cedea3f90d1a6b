"""Whole runs: from settings to a folder of results, with progress and resumption."""

from nasjax.runs.folder import RunFolder, open_run_folder
from nasjax.runs.nasi import DEFAULTS, NasiResult, NasiSettings, run_nasi, versions

__all__ = [
    "DEFAULTS",
    "NasiResult",
    "NasiSettings",
    "RunFolder",
    "open_run_folder",
    "run_nasi",
    "versions",
]
