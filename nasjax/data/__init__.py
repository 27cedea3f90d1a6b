"""Labelled images by name, brought to one shape and standardised, and batches of them."""

from nasjax.data.base import Dataset
from nasjax.data.load import DATASETS, load_data
from nasjax.data.sampling import random_batch, sample_batch
from nasjax.data.splits import Examples, Splits, hold_out, load_splits

__all__ = [
    "DATASETS",
    "Dataset",
    "Examples",
    "Splits",
    "hold_out",
    "load_data",
    "load_splits",
    "random_batch",
    "sample_batch",
]
