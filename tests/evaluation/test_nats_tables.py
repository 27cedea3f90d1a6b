"""NATS-Bench's own files, by a stand-in for its package."""

import builtins
import sys
import types

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.evaluation import load_nats_bench
from nasjax.spaces.nasbench201 import genotype_from_index, to_string

DATASETS = ("cifar10", "cifar10-valid", "cifar100", "ImageNet16-120")


class Api:
    """As ``nats_bench.create`` gives it, for the first 100 cells."""

    def __init__(self, path, space, fast_mode, verbose):
        assert (space, fast_mode, verbose) == ("tss", True, False)
        self._indices = {to_string(genotype_from_index(index)): index for index in range(100)}

    def query_index_by_arch(self, arch):
        return self._indices.get(arch, -1)

    def get_more_info(self, index, dataset, iepoch=None, hp="12", is_random=True):
        assert is_random is False
        if index == 99:
            raise AssertionError("invalid data path : 99")
        base = 10 * DATASETS.index(dataset) + int(hp) / 100 + index / 1000
        found = {"test-accuracy": base, "valid-accuracy": base + 5}
        if dataset == "cifar10":
            del found["valid-accuracy"]
        if (dataset, hp) == ("cifar10-valid", "12") and index != 97:
            found |= {"train-all-time": 100.0 + index, "valid-per-time": 0.5}
        return found if index != 98 else {"train-accuracy": base}

    def get_cost_info(self, index, dataset, hp="12"):
        assert dataset == "cifar10"
        return {"params": 1 + index, "flops": 0.0}


@pytest.fixture
def nats_bench(monkeypatch):
    module = types.ModuleType("nats_bench")
    module.create = Api
    monkeypatch.setitem(sys.modules, "nats_bench", module)
    return module


def test_accuracies_are_means_of_the_right_sets(nats_bench, tmp_path):
    cells = [genotype_from_index(index) for index in (7, 3, 7)]
    table = load_nats_bench(tmp_path, cells)
    np.testing.assert_array_equal(table.genotypes, cells[:2])
    np.testing.assert_allclose(table.cifar10_test, [0.02007, 0.02003])
    np.testing.assert_allclose(table.cifar100_test, [0.22007, 0.22003])
    np.testing.assert_allclose(table.imagenet16_test, [0.32007, 0.32003])
    np.testing.assert_allclose(table.cifar10_validation_12, [0.15127, 0.15123])
    np.testing.assert_allclose(table.params_millions, [8, 4])
    np.testing.assert_allclose(table.seconds_12, [107.5, 103.5])
    np.testing.assert_allclose(
        table.seconds_of([cells[1], genotype_from_index(5)]), [103.5, np.nan]
    )
    assert load_nats_bench(tmp_path, [genotype_from_index(97)]).seconds_12 is None
    accuracies = table.accuracies()
    np.testing.assert_allclose(accuracies["cifar10_validation_200"], [0.17007, 0.17003])
    np.testing.assert_allclose(accuracies["imagenet16_validation_12"], [0.35127, 0.35123])
    np.testing.assert_allclose(accuracies["cifar100_test_12"], [0.20127, 0.20123])
    assert len(accuracies) == 10
    entry = table.lookup(cells[1])
    assert entry.cifar10_rank == 2


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, "must hold every cell, got no"),
        (99, "for cell 99, got AssertionError: invalid data path"),
        (98, "must hold test-accuracy of cifar10 after 200 epochs for cell 98, got KeyError"),
    ],
)
def test_what_the_files_lack_is_told(nats_bench, tmp_path, index, message):
    with pytest.raises(InputError, match=message):
        load_nats_bench(tmp_path, None if index is None else [genotype_from_index(index)])


def test_other_files_are_refused(nats_bench, tmp_path):
    def create(*_, **__):
        raise ValueError("Can not find key[meta_archs] in the dict")

    nats_bench.create = create
    with pytest.raises(InputError, match="must be NATS-Bench's topology benchmark.*meta_archs"):
        load_nats_bench(tmp_path)
    with pytest.raises(InputError, match="must be NATS-Bench's folder or file, got .*absent"):
        load_nats_bench(tmp_path / "absent")


def test_the_package_is_asked_for(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *rest):
        if name == "nats_bench":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "nats_bench", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'nasjax\[nats\]'"):
        load_nats_bench(tmp_path)
