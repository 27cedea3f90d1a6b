"""Accuracies of NAS-Bench-201 from NATS-Bench's own files, by its package ``nats_bench``."""

import math
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from nasjax.errors import InputError
from nasjax.evaluation.tables import Nasbench201Table
from nasjax.spaces import nasbench201
from nasjax.spaces.base import Genotype

_WHERE = "load_nats_bench"
_FAILURES = (OSError, ValueError, KeyError, EOFError, AssertionError, pickle.UnpicklingError)
"""How the package tells that files are missing or others than it expects."""

_QUERIES = {
    "cifar10_test": ("cifar10", "200", "test-accuracy"),
    "cifar100_test": ("cifar100", "200", "test-accuracy"),
    "imagenet16_test": ("ImageNet16-120", "200", "test-accuracy"),
    "cifar10_validation_12": ("cifar10-valid", "12", "valid-accuracy"),
}
_OTHER_QUERIES = {
    "cifar10_validation_200": ("cifar10-valid", "200", "valid-accuracy"),
    "cifar10_test_12": ("cifar10", "12", "test-accuracy"),
    "cifar100_test_12": ("cifar100", "12", "test-accuracy"),
    "imagenet16_test_12": ("ImageNet16-120", "12", "test-accuracy"),
    "cifar100_validation_12": ("cifar100", "12", "valid-accuracy"),
    "imagenet16_validation_12": ("ImageNet16-120", "12", "valid-accuracy"),
}
"""Data set, epochs and what of them, by the names of ``Nasbench201Table.accuracies``."""


def load_nats_bench(
    path: str | Path, genotypes: Iterable[Genotype] | None = None
) -> Nasbench201Table:
    """Reads accuracies out of NATS-Bench's topology search space.

    Accuracies are means over the benchmark's seeds, as in the tables that are published of it.

    Args:
      path: the folder ``NATS-tss-v1_0-3ffb9-simple``, or the file ``...pickle.pbz2`` of that name.
        Both are pickles, which can run any program: take them from the authors alone.
      genotypes: the cells to read, each ``[6]``; None reads all 15,625. In the folder each is a
        file, so that a few are read in seconds.

    Returns:
      The table of these cells.

    Raises:
      InputError: if the package is missing, or the files are, or are none of the benchmark's.

    References:
      Dong et al., `NATS-Bench <https://arxiv.org/abs/2009.00437>`_, 2021, and its API.
    """
    path = Path(path)
    try:
        import nats_bench
    except ImportError as error:
        raise InputError(
            f"{_WHERE}: the package nats_bench must be installed, and is not. "
            "`pip install 'nasjax[nats]'`."
        ) from error
    if not path.exists():
        raise InputError(f"{_WHERE}: `path` must be NATS-Bench's folder or file, got {path}.")
    try:
        api = nats_bench.create(str(path), "tss", fast_mode=path.is_dir(), verbose=False)
    except _FAILURES as error:
        raise InputError(
            f"{_WHERE}: {path} must be NATS-Bench's topology benchmark, got another "
            f"({type(error).__name__}: {error})."
        ) from error
    if genotypes is None:
        genotypes = nasbench201.all_genotypes()
    cells = list({tuple(np.asarray(cell).tolist()): None for cell in genotypes})
    if not cells:
        raise InputError(f"{_WHERE}: `genotypes` must be cells, got none.")
    columns = {name: [] for name in (*_QUERIES, *_OTHER_QUERIES)}
    params, seconds = [], []
    for cell in cells:
        arch = nasbench201.to_string(np.array(cell, np.int32))
        index = api.query_index_by_arch(arch)
        if index < 0:
            raise InputError(f"{_WHERE}: {path} must hold every cell, got no {arch}.")
        for name, query in (_QUERIES | _OTHER_QUERIES).items():
            columns[name].append(_accuracy(api, path, index, *query))
        seconds.append(_seconds(api, index))
        params.append(float(api.get_cost_info(index, "cifar10", hp="12")["params"]))
    arrays = {name: np.array(values) / 100.0 for name, values in columns.items()}
    table = Nasbench201Table(
        np.array(cells, np.int32),
        **{name: arrays.pop(name) for name in _QUERIES},
        params_millions=np.array(params),
        others=arrays,
        seconds_12=np.array(seconds) if np.isfinite(seconds).all() else None,
    )
    table.check(f"{_WHERE}: {path}")
    return table


def _seconds(api: Any, index: int) -> float:
    """Of 12 epochs and one validation, as the benchmark's own simulation counts; NaN if untold."""
    try:
        info = api.get_more_info(index, "cifar10-valid", hp="12", is_random=False)
        return float(info["train-all-time"]) + float(info["valid-per-time"])
    except (*_FAILURES, TypeError):
        return math.nan


def _accuracy(api: Any, path: Path, index: int, dataset: str, epochs: str, kind: str) -> float:
    try:
        info = api.get_more_info(index, dataset, hp=epochs, is_random=False)
        accuracy = float(info[kind])
    except _FAILURES as error:
        raise InputError(
            f"{_WHERE}: {path} must hold {kind} of {dataset} after {epochs} epochs for cell "
            f"{index}, got {type(error).__name__}: {error}."
        ) from error
    if not 0.0 <= accuracy <= 100.0:
        raise InputError(
            f"{_WHERE}: {path}: {kind} of cell {index} must be a percentage, got {accuracy}."
        )
    return accuracy
