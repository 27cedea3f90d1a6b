"""Eigen-NAS over made-up scores, and infinite-width scores of drawn pools."""

import csv
import json

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.evaluation import load_nasbench201_table
from nasjax.ntk import cell_network_ntk, mlp_ntk
from nasjax.runs import (
    EigenSettings,
    InfiniteScoreSettings,
    load_scored_pool,
    run_eigen,
    run_infinite_scores,
    table_evaluation,
)
from nasjax.runs.batch import load_batch
from nasjax.search import Evaluation
from nasjax.spaces import get_space, split_genotype
from nasjax.spaces.nasbench201 import genotype_from_index, to_string

CELLS = [to_string(genotype_from_index(index)) for index in range(0, 15000, 500)]
COLUMNS = ("c10_test200_mean", "c100_test200_mean", "in16_test200_mean", "c10_val12")
EVALUATED_BY = {"table": "made up"}


@pytest.fixture
def files(tmp_path):
    """The metric finds the best cell third, ``other`` last; one cell has no score."""
    accuracy = np.linspace(50, 90, len(CELLS))
    metric = np.arange(len(CELLS), dtype=float)
    metric[-3:] = metric[-3:][::-1]
    rows = [[cell, m, -m] for cell, m in zip(CELLS, metric, strict=True)]
    rows[5][1] = ""
    path = tmp_path / "made.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("architecture", "m", "other"), *rows])
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        rows = [(cell, *[a] * 4, 1.0) for cell, a in zip(CELLS, accuracy, strict=True)]
        csv.writer(file).writerows([("arch", *COLUMNS, "c10_params_M"), *rows])
    return load_scored_pool(path), load_nasbench201_table(table)


def _run(files, out, settings, **kwargs):
    pool, table = files
    evaluate = table_evaluation(pool, table, "cifar10_validation_12", 150.0)
    kwargs = {"evaluate": evaluate, "table": table, **kwargs}
    return run_eigen(
        *(settings, pool, kwargs.pop("evaluate"), out), evaluated_by=EVALUATED_BY, **kwargs
    )


def test_the_best_of_the_first_k_is_selected(files, tmp_path):
    result = _run(files, tmp_path / "run", EigenSettings("m", ("other",), 4))
    record = json.loads((tmp_path / "run" / "architecture.json").read_text())
    assert record["architecture"] == CELLS[-1] == result.record["architecture"]
    assert record["value"] == pytest.approx(0.9)
    assert record["seconds"]["evaluations"] == 600
    found = [one["architecture"] for one in record["selections"]["m"]]
    assert found == [CELLS[-3], CELLS[-2], CELLS[-1], CELLS[-1]]
    beside = record["selections"]["other"]
    assert [one["architecture"] for one in beside] == CELLS[:4]
    assert beside[3]["accuracies"]["cifar10_test"] == pytest.approx(0.5 + 0.4 * 3 / 29)
    assert result.num_run == 8
    for name in ("selection.png", "cells.svg"):
        assert (tmp_path / "run" / name).exists()


def test_a_selection_that_was_stopped_goes_on(files, tmp_path):
    settings = EigenSettings("m", ("other",), 4)
    whole = _run(files, tmp_path / "whole", settings)

    def stop(phase, step, num_steps, record):
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(files, tmp_path / "stopped", settings, on_step=stop)
    again = _run(files, tmp_path / "stopped", settings)
    assert again.num_run == 2 and json.dumps(again.record) == json.dumps(whole.record)
    assert _run(files, tmp_path / "stopped", settings).num_run == 0


def test_failed_candidates_never_win(files, tmp_path):
    best = CELLS[-1]
    pool, table = files
    look_up = table_evaluation(pool, table, "cifar10_validation_12", 150.0)

    def evaluate(place):
        if pool.space.to_string(pool.genotypes[place]) == best:
            raise RuntimeError("out of memory")
        return look_up(place)

    record = _run(files, tmp_path / "run", EigenSettings("m", (), 4), evaluate=evaluate).record
    assert record["architecture"] == CELLS[-2] and record["num_failed"] == 1

    def fail(place):
        raise OSError("no device")

    with pytest.raises(InputError, match="search eigen: .* got 5 failures .*no device"):
        _run(files, tmp_path / "all", EigenSettings("m", (), 9), evaluate=fail)


def test_bad_settings(files, tmp_path):
    with pytest.raises(InputError, match="--top-k: must be at least 1, got 0"):
        EigenSettings(top_k=0)
    with pytest.raises(InputError, match="--beside: must name other metrics, each once"):
        EigenSettings("m", ("m",))
    with pytest.raises(InputError, match="--top-k: must be at most 28, the architectures .* m, go"):
        _run(files, tmp_path / "run", EigenSettings("m", (), 30))
    with pytest.raises(InputError, match="unknown metric 'n'"):
        _run(files, tmp_path / "run", EigenSettings("n"))
    pool, table = files
    pool = pool._replace(scores={"m": np.ones(len(pool.genotypes))})
    with pytest.raises(InputError, match="m must tell architectures of .*the same for all 29"):
        _run((pool, table), tmp_path / "run", EigenSettings("m", (), 3))
    for space, message in (("darts", "--space must be one of mlp, nasb"), ("mlp", "--depth: must")):
        with pytest.raises(InputError, match=message):
            InfiniteScoreSettings(space, depth=2)


def _batch(settings):
    data_key, batch_key = jax.random.split(jax.random.key(settings.seed))
    return load_batch(
        *(settings.space, settings.data, settings.batch_size),
        image_size=settings.image_size,
        option="",
        data_key=data_key,
        batch_key=batch_key,
    ).x


def test_infinite_scores_of_networks_of_any_depth(tmp_path):
    settings = InfiniteScoreSettings(pool_size=5, depth=4, batch_size=6, image_size=8)
    run_infinite_scores(settings, tmp_path / "run")
    pool = load_scored_pool(tmp_path / "run")
    assert len(pool.genotypes) == 5 and pool.space.genotype_shape == (5,)
    x = np.asarray(_batch(settings), np.float64)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-6)
    for place, genotype in enumerate(pool.genotypes):
        for name, method in (("infinite", "exact"), ("lemma1", "lemma1")):
            with jax.enable_x64(True):
                kernel = np.asarray(mlp_ntk(*split_genotype(genotype), x, method=method).ntk)
            found = pool.score_of(f"min_eigenvalue:{name}")[place]
            assert found == pytest.approx(np.linalg.eigvalsh(kernel)[0], rel=1e-6)
            if name == "infinite":
                bound = pool.score_of("min_eigenvalue:infinite_bound")[place]
                assert bound == pytest.approx(np.trace(kernel) / 6, rel=1e-6) and bound > found
    before = (tmp_path / "run" / "scores.csv").read_bytes()
    run_infinite_scores(settings, tmp_path / "run")
    assert (tmp_path / "run" / "scores.csv").read_bytes() == before


@pytest.mark.slow
def test_infinite_scores_of_cells(tmp_path):
    settings = InfiniteScoreSettings("nasbench201", pool_size=2, batch_size=3, image_size=4)
    run_infinite_scores(settings, tmp_path / "run")
    pool = load_scored_pool(tmp_path / "run")
    with jax.enable_x64(True):
        edges = get_space("nasbench201").describe(pool.genotypes[0])[0].edges
        kernel = np.asarray(cell_network_ntk(edges, np.asarray(_batch(settings), np.float64)).ntk)
    found = pool.score_of("min_eigenvalue:infinite")[0]
    assert found == pytest.approx(np.linalg.eigvalsh(kernel)[0], rel=1e-6)


def test_equal_examples_leave_no_score(tmp_path, monkeypatch):
    x = np.ones((4, 12), np.float32) / np.sqrt(12)
    monkeypatch.setattr(
        "nasjax.runs.infinite_scores.load_batch",
        lambda *args, **kwargs: load_batch(*args, **kwargs)._replace(x=x),
    )
    settings = InfiniteScoreSettings(pool_size=3, depth=3, batch_size=4, image_size=8)
    run_infinite_scores(settings, tmp_path / "run")
    pool = load_scored_pool(tmp_path / "run")
    assert np.isnan(pool.score_of("min_eigenvalue:infinite")).all()
    assert "singular" in (tmp_path / "run" / "scores.csv").read_text()
    with pytest.raises(InputError, match="must be at most 0, the architectures"):
        run_eigen(
            *(EigenSettings("min_eigenvalue:infinite", (), 1), pool),
            *(lambda place: Evaluation(0.5, 1.0), tmp_path / "sel"),
            evaluated_by=EVALUATED_BY,
        )
