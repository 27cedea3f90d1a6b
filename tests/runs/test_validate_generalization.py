"""Theorem 3 against training: the numbers by another way, what a run leaves, and interruption."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.networks import init_params, one_shot_network, static_network
from nasjax.ntk import generalization_terms, mlp_ntk
from nasjax.runs import GeneralizationSettings, run_generalization
from nasjax.runs.validate_generalization import _load, summarise_generalization
from nasjax.spaces import mlp_space
from nasjax.spaces.mlp import ACTIVATION_NAMES, split_genotype

TINY = GeneralizationSettings(
    depth=3, width=16, num_examples=12, num_test=20, num_architectures=4, num_runs=2
)
FILES = [
    *("generalization.csv", "summary.json", "generalization.png", "generalization.svg"),
    "history.jsonl",
]


class StoppedError(Exception):
    """Raised in the middle of a run."""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generalization")
    seen = []
    result = run_generalization(TINY, folder, on_step=lambda *step: seen.append(step[:3]))
    return folder, result, seen


def _keys():
    return jax.random.split(jax.random.key(TINY.seed), 5)


def test_it_leaves_a_table_and_a_record(whole_run):
    folder, result, seen = whole_run
    assert seen == [("architectures", step, 4) for step in range(5)]
    assert result.num_run == 4
    with (folder / "generalization.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["architecture"] for row in rows] == [row["architecture"] for row in result.rows]
    record = json.loads((folder / "summary.json").read_text())
    assert record["num_test"] == 20
    assert record["settings"]["classes"] == [3, 8]
    median = np.median([row["error_practical"] for row in result.rows])
    assert record["steps"]["practical"]["median_error"] == pytest.approx(median)


def test_terms_are_those_of_the_exact_kernel(whole_run, float64):
    _, result, _ = whole_run
    data_key, examples_key = _keys()[:2]
    task = _load(TINY, data_key, examples_key)
    assert task.x.shape == (12, 64)
    np.testing.assert_allclose(np.linalg.norm(task.x, axis=1), 1.0, rtol=1e-5)
    assert set(task.y) == set(task.test_y) == {-1.0, 1.0}
    for row in result.rows[:2]:
        activations, skips = split_genotype(mlp_space(3).from_string(row["architecture"]))
        kernel = mlp_ntk(activations, skips, jnp.asarray(task.x, jnp.float64)).ntk
        names = [ACTIVATION_NAMES[index] for index in activations]
        terms = generalization_terms(np.asarray(kernel), task.y, names, width=16)
        assert row["lambda_min"] == pytest.approx(np.linalg.eigvalsh(kernel)[0], rel=1e-8)
        for name in ("eigenvalue_term", "label_term", "confidence_term", "step_size"):
            assert row[name] == pytest.approx(getattr(terms, name), rel=1e-8)


def test_errors_are_those_of_the_static_network(whole_run):
    """Trained by a plain loop over the examples in the order of the run."""
    _, result, _ = whole_run
    data_key, examples_key, _, params_key, passes_key = _keys()
    task = _load(TINY, data_key, examples_key)
    row = result.rows[1]
    genotype = mlp_space(3).from_string(row["architecture"])
    network = static_network(
        "mlp", tuple(genotype.tolist()), width=16, num_outputs=1, initialization="theory"
    )
    one_shot = one_shot_network("mlp", width=16, num_outputs=1, initialization="theory")

    def output(params, x):
        return network.apply({"params": params}, x)[:, 0]

    @jax.jit
    def step(params, x, y):
        gradient = jax.grad(lambda p: jnp.log1p(jnp.exp(-y * output(p, x[None])[0])))(params)
        return jax.tree.map(lambda w, g: w - TINY.step_size * g, params, gradient)

    errors = []
    for run in range(2):
        weights = mlp_space(3).one_hot(genotype)
        key = jax.random.fold_in(params_key, run)
        params = init_params(key, one_shot, weights, task.x[:1])
        order_key, draw_key = jax.random.split(jax.random.fold_in(passes_key, run))
        order = np.asarray(jax.random.permutation(order_key, 12))
        index = int(jax.random.randint(draw_key, (), 0, 12))
        found = []
        for number, place in enumerate([*order, None]):
            if number in (0, index, 12):
                wrong = task.test_y * np.asarray(output(params, task.test_x)) < 0
                found += [wrong.mean()] * (2 if number == index == 0 else 1)
            if place is not None:
                params = step(params, task.x[place], task.y[place])
        errors.append(found)
    means = np.mean(errors, axis=0)
    # A hundredth of an example: outputs near 0 have no sure sign.
    assert row["initial_error"] == pytest.approx(means[0], abs=5e-4)
    assert row["error_practical"] == pytest.approx(means[1], abs=5e-4)
    assert row["last_error_practical"] == pytest.approx(means[2], abs=5e-4)


def test_interruptions_change_nothing(whole_run, tmp_path):
    folder, _, _ = whole_run

    def stop(phase, step, num_steps, record):
        if step == 2 and record:
            raise StoppedError

    with pytest.raises(StoppedError):
        run_generalization(TINY, tmp_path, on_step=stop)
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"index": 2, ')  # a line that a crash left unfinished
    assert run_generalization(TINY, tmp_path).num_run == 2
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    assert run_generalization(TINY, tmp_path).num_run == 0


def _row(index, term):
    errors = {f"error_{name}": index / 10 for name in ("theory", "practical")}
    last = {f"last_error_{name}": 0.1 for name in ("theory", "practical")}
    losses = {f"loss_{name}": 0.5 for name in ("theory", "practical")}
    terms = {"eigenvalue_term": term, "label_term": term, "confidence_term": 0.1}
    start = {"lambda_min": 10.0 - index, "step_size": 1e-5, "initial_error": 0.2 - 0.02 * index}
    return {"index": index, "architecture": "a", **start, **terms, **errors, **last, **losses}


def test_the_summary_of_made_up_numbers():
    rows = [_row(index, 0.2 + index) for index in range(4)] + [_row(4, None)]
    found = summarise_generalization(rows)
    assert found["share_of_vacuous_bounds"] == pytest.approx(4 / 5)
    assert found["smallest_bound"] == pytest.approx(0.3)
    practical = found["steps"]["practical"]
    assert practical["spearman"]["label_term"]["value"] == pytest.approx(1.0)
    assert practical["spearman"]["label_term"]["num_pairs"] == 4
    assert practical["spearman"]["lambda_min"]["value"] == pytest.approx(-1.0)
    assert found["spearman_untrained"]["lambda_min"]["value"] == pytest.approx(1.0)
    assert practical["median_error"] == pytest.approx(0.2)
    assert practical["share_of_networks_learning"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": (3, 3)}, "--classes: must be two different labels, got 3,3"),
        ({"classes": (3,)}, "--classes: must be two different labels, got 3"),
        ({"depth": 2}, "--depth: must be 3 to 50, got 2"),
        ({"num_examples": 1}, "--num-examples: must be 2"),
        ({"step_size": 0.0}, "--step-size: must be above 0, got 0"),
        ({"kappa": float("nan")}, "--kappa: must be above 0, got nan"),
        ({"delta": 0.5}, r"--delta: must be in \(0, 1/e\], got 0.5"),
        ({"num_architectures": 2}, "--num-architectures: must be 3"),
        ({"seed": -1}, "--seed: must be in 0"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(InputError, match=message):
        GeneralizationSettings(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_examples": 2000}, "--num-examples: must be below 357, the images of digits"),
        ({"classes": (3, 11)}, "--classes: both must be among the examples to train with"),
    ],
)
def test_data_that_do_not_do(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        run_generalization(GeneralizationSettings(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_folders_name_tells_what_is_no_default():
    name = GeneralizationSettings(classes=(1, 7), seed=2).run_name()
    assert name == "validate-generalization-digits-classes=1,7-seed2"
