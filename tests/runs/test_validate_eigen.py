"""Theorem 1 against kernels: the numbers by another way, what a run leaves, and interruption."""

import csv
import json

import jax
import numpy as np
import pytest
import scipy.stats

from nasjax.errors import InputError
from nasjax.ntk import lambda_min_bounds, mlp_lambda_min, mlp_trace_bound
from nasjax.runs import EigenValidationSettings, run_eigen_validation
from nasjax.runs.eigen_claims import claims, layer_importance, tendency
from nasjax.runs.validate_eigen import _points
from nasjax.spaces import mlp_space

TINY = EigenValidationSettings(
    num_points=8, input_dim=6, max_depth=4, num_seeds=2, num_architectures=100
)
FILES = ["lambda_min.csv", "summary.json", "lambda_min.png", "lambda_min.svg", "history.jsonl"]


class StoppedError(Exception):
    """Raised in the middle of a run."""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eigen")
    seen = []
    result = run_eigen_validation(TINY, folder, on_step=lambda *step: seen.append(step[:3]))
    return folder, result, seen


def test_the_table_holds_what_single_calls_give(whole_run):
    folder, result, seen = whole_run
    assert seen == [
        *(("chains", step, 8) for step in range(9)),
        *(("architectures", step, 1) for step in range(2)),
    ]
    assert result.num_run == 9
    with (folder / "lambda_min.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2 * 10
    x = _points(TINY, jax.random.split(jax.random.key(0))[0], 1)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-14)
    chosen = [row for row in rows if (row["method"], row["draw"]) == ("exact", "1")]
    for row in chosen:
        if row["depth"] != "4":
            continue
        skip = "+skip" if row["skips"] == "1" else ""
        name = row["activation"]
        genotype = mlp_space(4).from_string(f"{name}|{name}{skip}|{name}{skip}")
        value = mlp_lambda_min(genotype[None], x, chunk=16)
        diagonal = mlp_trace_bound(genotype[None], x, over="examples")
        assert float(row["lambda_min"]) == pytest.approx(value[0], rel=1e-9)
        assert float(row["mean_diagonal"]) == pytest.approx(diagonal[0], rel=1e-12)
        bounds = lambda_min_bounds([name] * 3, [int(row["skips"])] * 2, num_examples=8, input_dim=6)
        assert (float(row["lower"]), float(row["upper"])) == bounds
    assert {row["activation"] for row in chosen} == {
        *("relu", "leaky_relu", "sigmoid", "tanh", "swish")
    }


def test_the_summary_says_what_the_table_does(whole_run):
    folder, result, _ = whole_run
    record = json.loads((folder / "summary.json").read_text())
    assert record["settings"]["num_points"] == 8
    found = record["claims"]["exact"]
    means = {
        (skips, depth): np.mean(
            [
                row["lambda_min"]
                for row in result.rows
                if (row["method"], row["activation"], row["skips"], row["depth"])
                == ("exact", "tanh", skips, depth)
            ]
        )
        for skips in (0, 1)
        for depth in (3, 4)
    }
    tanh = found["depth"]["tanh"]
    assert tanh["deepest_over_shallowest"] == pytest.approx(means[0, 4] / means[0, 3])
    assert tanh["deepest_over_shallowest_with_skips"] == pytest.approx(means[1, 4] / means[1, 3])
    assert tanh["found"] == ("growing" if means[0, 4] > means[0, 3] else "falling")
    # What the bounds themselves do is the paper's second remark.
    for one in found["depth"].values():
        assert one["bound_holds_claim"]
    assert found["bounds"]["holds"]
    assert record["importance"]["exact"]["lambda_min"]["num_architectures"] == 100


def test_interruptions_change_nothing(whole_run, tmp_path):
    folder, _, _ = whole_run

    def stop(phase, step, num_steps, record):
        if (phase, step) == ("chains", 5) and record:
            raise StoppedError

    with pytest.raises(StoppedError):
        run_eigen_validation(TINY, tmp_path, on_step=stop)
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"phase": "cha')  # a line that a crash left unfinished
    assert run_eigen_validation(TINY, tmp_path).num_run == 4
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    assert run_eigen_validation(TINY, tmp_path).num_run == 0


def test_shares_of_variance_are_those_of_an_analysis_of_variance():
    rng = np.random.default_rng(0)
    activations, skips = rng.integers(0, 5, (200, 3)), rng.integers(0, 2, (200, 2))
    logs = activations[:, 1] ** 2 + 2.0 * skips[:, 0] + rng.normal(size=200)
    found = layer_importance(activations, skips, np.append(np.exp(logs[:-1]), 0.0))
    assert (found["num_architectures"], found["num_failed"]) == (199, 1)
    for column, share in zip(
        [*activations[:-1].T, *skips[:-1].T], [*found["activations"], *found["skips"]], strict=True
    ):
        groups = [logs[:-1][column == group] for group in np.unique(column)]
        f = scipy.stats.f_oneway(*groups).statistic
        between = f * (len(groups) - 1)
        assert share == pytest.approx(between / (between + 199 - len(groups)), rel=1e-9)
    assert np.argmax(found["activations"]) == 1
    with pytest.raises(InputError, match="3 of 200 smallest eigenvalues must be above 0, got 0"):
        layer_importance(activations, skips, np.zeros(200))


def test_tendencies():
    assert tendency([1.0, 1.01, 0.99]) == "unchanged"
    assert tendency([1.0, 2.0, 3.0]) == "growing"
    assert tendency([3.0, 2.0, 1.0]) == "falling"
    assert tendency([1.0, 3.0, 2.0]) == "mixed"
    assert tendency([1.0, np.nan]) == "unknown"


def _row(name, skips, depth, value, upper=100.0):
    return {
        "method": "exact",
        "draw": 0,
        "activation": name,
        "skips": skips,
        "depth": depth,
        "lambda_min": value,
        "lambda_max": 2.0,
        "mean_diagonal": 1.0,
        "lower": 0.1,
        "upper": upper,
    }


def test_claims_can_fail():
    """Made-up eigenvalues: skips lower one of them, and one is above its upper bound."""
    names = ("relu", "leaky_relu", "sigmoid", "tanh", "swish")
    rows = [
        _row(name, skips, depth, 1.0 + 0.5 * skips)
        for name in names
        for skips in (0, 1)
        for depth in (3, 4)
    ]
    importance = {
        "lambda_min": {"activations": [0.1, 0.3]},
        "relative": {"activations": [0.3, 0.1]},
    }
    found = claims(rows, {"exact": importance})["exact"]
    assert [found["depth"][name]["holds"] for name in names] == [True, False, False, False, False]
    assert found["skips"]["holds"]
    assert found["skips"]["median_ratio"] == 1.5
    assert found["bounds"]["holds"]
    assert found["resolution"]["holds"]
    assert not found["first_layer"]["holds"]
    assert found["first_layer"]["largest_at_layer"] == 2
    assert found["first_layer_relative"]["holds"]
    rows[2] |= {"lambda_min": 0.5}
    rows[5] |= {"upper": 0.5, "lambda_max": 1e9}
    found = claims(rows, {"exact": importance})["exact"]
    assert found["skips"]["share_of_chains"] == pytest.approx(0.9)
    assert not any(found[name]["holds"] for name in ("skips", "bounds", "resolution"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_points": 1}, "--num-points: must be 2 to 4096, got 1"),
        ({"input_dim": 1}, "--input-dim: must be 2"),
        ({"max_depth": 3}, "--max-depth: must be 4 to 50, got 3"),
        ({"num_seeds": 0}, "--num-seeds: must be 1"),
        ({"num_architectures": 99}, "--num-architectures: must be 100"),
        ({"seed": -1}, "--seed: must be in 0"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(InputError, match=message):
        EigenValidationSettings(**change)


def test_the_folders_name_tells_what_is_no_default():
    assert EigenValidationSettings(seed=3).run_name() == "validate-eigen-seed3"
    assert EigenValidationSettings(input_dim=4).run_name() == "validate-eigen-input_dim=4-seed0"
