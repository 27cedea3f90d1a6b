"""Validation runs: their numbers by another way, what they leave, and interruption."""

import csv
import dataclasses
import json

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.networks import LayerConfig, static_network
from nasjax.ntk import cell_network_ntk, empirical_ntk, mlp_ntk
from nasjax.runs import ValidationSettings, run_validation
from nasjax.runs import validation_measures as measures
from nasjax.runs.validate_ntk import VALIDATION_DEFAULTS
from nasjax.runs.validation_summary import summarise
from nasjax.spaces import get_space, mlp_space

TINY = ValidationSettings(
    space="mlp",
    num_architectures=4,
    batch_sizes=(2, 4),
    channels=32,
    cells=4,
    widths=(16, 512),
    num_infinite=3,
)
"""Dense networks, which compile fast."""
FILES = ["validation.csv", "validation.json", "validation.png", "validation.svg", "history.jsonl"]


class StoppedError(Exception):
    """Raised in the middle of a run."""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validation")
    seen = []
    result = run_validation(TINY, folder, on_step=lambda *step: seen.append(step[:3]))
    return folder, result, seen


def test_it_leaves_a_table_a_record_and_a_picture(whole_run):
    folder, result, seen = whole_run
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*FILES, "settings.json", ".lock"]
    )
    assert seen == [
        *(("approximations", step, 4) for step in range(5)),
        *(("widths", step, 3) for step in range(4)),
    ]
    with (folder / "validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["architecture"] for row in rows] == [row["architecture"] for row in result.rows]
    assert list(rows[0])[:3] == ["index", "architecture", "exact"]
    for row, expected in zip(rows, result.rows, strict=True):
        assert float(row["exact"]) == expected["exact"]
        assert float(row["batch_loss_4"]) == expected["batch_loss_4"]
    assert [bool(row["infinite"]) for row in rows] == [True, True, True, False]
    record = json.loads((folder / "validation.json").read_text())
    assert record["settings"]["batch_sizes"] == [2, 4]
    assert record["summary"]["num_failed"] == 0
    assert record["versions"]["jax"] == jax.__version__
    assert result.num_run == 7


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nasbench201", "darts"])
def test_trace_norms_of_cells_are_those_of_the_static_network(name, tmp_path):
    widths = (2,) if name == "nasbench201" else ()
    settings = ValidationSettings(
        name, num_architectures=3, batch_sizes=(4,), channels=2, widths=widths
    )
    result = run_validation(settings, tmp_path)
    space = get_space(name)
    data, params = _start_of(settings, space)
    config = LayerConfig("lecun", "none")
    row = result.rows[1]
    genotype = space.from_string(row["architecture"])
    network = static_network(name, genotype, channels=2, num_cells=1, config=config)
    used = jax.eval_shape(network.init, jax.random.key(1), data.x)["params"]
    chosen = _restrict(params, used)
    kernel = empirical_ntk(
        lambda params, x: network.apply({"params": params}, x), chosen, data.x, dtype="float64"
    )
    assert row["exact"] == pytest.approx(np.trace(kernel.matrix), rel=1e-5)
    # Eq. 12 by its definition.
    outputs = lambda params: network.apply({"params": params}, data.x)  # noqa: E731

    def loss(params):
        return -jnp.mean(jax.nn.log_softmax(outputs(params))[jnp.arange(4), data.y])

    gradient = jax.grad(loss)(chosen)
    squares = sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(gradient))
    assert row["batch_loss_4"] == pytest.approx(4 * squares, rel=1e-4)
    if not widths:
        return
    # At infinite width, of the images averaged over squares of 4x4 pixels.
    images = flax.linen.avg_pool(data.x, (4, 4), (4, 4))
    (graph,) = space.describe(genotype)
    infinite = cell_network_ntk(graph.edges, images).ntk
    assert row["infinite"] == pytest.approx(10 * float(jnp.trace(infinite)), rel=1e-4)


def _start_of(settings, space):
    """The batch and the parameters of a run."""
    names = ("data", "batch", "params", "archs", "labels", "images", "signs", "widths")
    keys = dict(zip(names, jax.random.split(jax.random.key(settings.seed), 8), strict=True))
    data = measures.load_batch(settings, keys["data"], keys["batch"])
    programs = measures._programs(
        *(settings.space, data.num_classes, settings.channels, settings.cells),
        *(settings.initialization, settings.normalization),
    )
    return data, measures._params(programs, space, keys["params"], data.x)


def _restrict(params, shapes):
    """The parameters that a static network shares with the one-shot network."""
    if not isinstance(shapes, dict):
        return params
    return {name: _restrict(params[name], tree) for name, tree in shapes.items()}


def test_dense_networks_follow_their_infinite_width(whole_run):
    _, result, _ = whole_run
    assert TINY.initialization == "ntk"
    data, params = _start_of(TINY, mlp_space(4))
    assert data.x.shape == (4, 3072)
    np.testing.assert_allclose(np.linalg.norm(data.x, axis=1), 1.0, rtol=1e-5)
    for row in result.rows:
        genotype = mlp_space(4).from_string(row["architecture"])
        network = static_network("mlp", genotype, width=32)
        kernel = empirical_ntk(
            lambda params, x, network=network: network.apply({"params": params}, x), params, data.x
        )
        assert row["exact"] == pytest.approx(np.trace(kernel.matrix), rel=1e-5)
        if "infinite" in row:
            infinite = mlp_ntk(genotype[:3], genotype[3:], data.x).ntk
            assert row["infinite"] == pytest.approx(10 * float(jnp.trace(infinite)), rel=1e-5)
    errors = [result.summary["widths"][width]["median_relative_error"] for width in (16, 512)]
    assert errors[1] < 0.1
    assert errors[1] < errors[0]


def test_interruptions_change_nothing(whole_run, tmp_path):
    folder, _, _ = whole_run

    def stop_at(*place):
        def on_step(phase, step, num_steps, record):
            if (phase, step) == place and record:
                raise StoppedError

        return on_step

    for place in (("approximations", 2), ("widths", 1)):
        with pytest.raises(StoppedError):
            run_validation(TINY, tmp_path, on_step=stop_at(*place))
        with (tmp_path / "history.jsonl").open("a") as file:
            file.write('{"phase": "approxim')  # a line that a crash left unfinished
    run_validation(TINY, tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_a_finished_run_is_not_repeated(whole_run):
    folder, result, _ = whole_run
    steps = []
    again = run_validation(TINY, folder, on_step=lambda *step: steps.append(step))
    assert (steps, again.num_run, again.rows) == ([], 0, result.rows)


def test_more_architectures_keep_the_first(whole_run, tmp_path):
    _, result, _ = whole_run
    settings = dataclasses.replace(TINY, num_architectures=3, widths=(), batch_sizes=(4,))
    fewer = run_validation(settings, tmp_path)
    assert [row["architecture"] for row in fewer.rows] == [
        row["architecture"] for row in result.rows[:3]
    ]
    assert fewer.rows[0]["exact"] == pytest.approx(result.rows[0]["exact"])
    assert fewer.summary["widths"] == {}


@pytest.mark.slow
def test_batch_statistics_are_gone_through(tmp_path):
    settings = ValidationSettings(
        num_architectures=3, batch_sizes=(3,), channels=2, normalization="batch", widths=()
    )
    result = run_validation(settings, tmp_path)
    for row in result.rows:
        assert 0 < row["batch_loss_3"] <= row["summed_loss_3"] <= 2 * row["exact"]


def test_failed_networks_are_counted_and_left_out():
    row = {"exact": 1.0, "random_labels": 1.0, "random_data": 1.0}
    names = ("summed_loss", "batch_loss", "random_outputs")
    rows = [
        {"phase": "approximations", "architecture": "a"}
        | {name: value * (1 + index) for name, value in row.items()}
        | {f"{name}_2": 1.0 + index for name in names}
        for index in range(4)
    ]
    rows.append(rows[0] | {"exact": None, "summed_loss_2": 1e9})
    summary = summarise(rows, [], (2,), ())
    assert (summary["num_architectures"], summary["num_failed"]) == (5, 1)
    assert summary["approximations"]["summed_loss"][2]["pearson"]["value"] == pytest.approx(1.0)
    with pytest.raises(InputError, match="3 of 3 trace norms must be finite, got 2"):
        summarise([rows[0], rows[1], rows[4]], [], (2,), ())


@pytest.mark.parametrize("name", VALIDATION_DEFAULTS)
def test_every_space_is_measured(name):
    """By shapes alone: to compile the programs of all spaces takes minutes."""
    settings = ValidationSettings(name, batch_sizes=(2, 3), channels=2)
    space = measures.space_of(settings)
    data, params = _start_of(settings, space)
    genotype = space.sample(jax.random.key(0))
    programs = measures._programs(
        *(name, 10, 2, settings.cells, settings.initialization, settings.normalization)
    )
    arguments = space.one_hot(genotype), params, data.x
    assert jax.eval_shape(programs.traces, *arguments).shape == (3,)
    found = jax.eval_shape(programs.approximations, *arguments, data.y, jax.random.key(1))
    assert [value.shape for value in found] == [()] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": "darst"}, "--space: unknown space 'darst'. Did you mean 'darts'"),
        ({"space": "mlp", "normalization": "batch"}, "--normalization: unknown .* in mlp 'batch'"),
        ({"space": "mlp", "cells": 2}, "--cells: must be 3 to 100, got 2"),
        ({"space": "mlp", "cells": 3, "num_architectures": 26}, "--num-architectures: .* 3 to 25"),
        ({"initialization": "theory"}, "--initialization: unknown"),
        ({"space": "darts", "widths": (8,)}, "--widths: must be empty in darts"),
        ({"num_architectures": 2}, "--num-architectures: must be 3 to 7812, got 2"),
        ({"num_architectures": 9999}, "--num-architectures: must be 3 to 7812"),
        (
            {"batch_sizes": (8, 4)},
            "--batch-sizes: must be ascending numbers of at least 2, got 8,4",
        ),
        ({"batch_sizes": (1, 4)}, "--batch-sizes: must be ascending numbers of at least 2"),
        ({"batch_sizes": ()}, "--batch-sizes: must be numbers, got none"),
        ({"widths": (8, 8)}, "--widths: must be ascending"),
        ({"num_infinite": 101}, "--num-infinite: must be 3 to 100, got 101"),
        ({"channels": 0}, "--channels: must be 1 to 1024, got 0"),
        ({"initialization": "kaiming"}, "--initialization: unknown"),
        ({"normalization": "layer"}, "--normalization: unknown"),
        ({"seed": -1}, "--seed: must be in 0"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(InputError, match=message):
        ValidationSettings(**change)


def test_a_batch_beyond_the_data_is_refused(tmp_path):
    x = np.random.default_rng(0).random((5, 8, 8, 3))
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(5))
    settings = ValidationSettings(data=f"npz:{tmp_path / 'data.npz'}", batch_sizes=(4, 8))
    with pytest.raises(InputError, match="--batch-sizes: must be at most the 5 images"):
        run_validation(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
