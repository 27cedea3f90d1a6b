"""Labelled images by name, brought to one shape and standardised, and batches of them."""

from nasjax.data.base import Dataset
from nasjax.data.examples import Examples, hold_out
from nasjax.data.load import DATASETS, load_data
from nasjax.data.sampling import random_batch, sample_batch
from nasjax.data.splits import Splits, load_splits
from nasjax.data.stream import Stream

__all__ = [
    "DATASETS",
    "Dataset",
    "Examples",
    "Splits",
    "Stream",
    "hold_out",
    "load_data",
    "load_splits",
    "random_batch",
    "sample_batch",
]
