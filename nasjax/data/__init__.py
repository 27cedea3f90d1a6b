"""Labelled images by name, brought to one shape and standardised, and batches of them."""

from nasjax.data.base import Dataset
from nasjax.data.load import DATASETS, load_data
from nasjax.data.sampling import random_batch, sample_batch

__all__ = [
    "DATASETS",
    "Dataset",
    "load_data",
    "random_batch",
    "sample_batch",
]
