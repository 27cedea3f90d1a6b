"""Fully connected networks in ``nasjax train``: any depth, no cells."""

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.networks import init_params, static_network
from nasjax.runs import TrainSettings, run_training
from nasjax.runs.train_settings import TrainedOn, make_task
from nasjax.spaces import get_space, space_of

TEXT = "relu|tanh+skip|swish"
SETTINGS = TrainSettings(
    space="mlp",
    architecture=TEXT,
    recipe="quick",
    data="digits",
    channels=64,
    epochs=3,
    batch_size=32,
)


def test_the_space_of_a_string_has_its_depth():
    assert space_of("mlp", TEXT).to_string(space_of("mlp", TEXT).from_string(TEXT)) == TEXT
    assert space_of("nasbench201", "6111") is get_space("nasbench201")
    with pytest.raises(InputError, match="unknown space 'mlps'"):
        space_of("mlps", TEXT)


def test_the_network_is_that_of_the_space():
    trained_on = TrainedOn((8, 8, 1), 10, (0.0,), (1.0,), 1000)
    task = make_task(SETTINGS.final_recipe(), SETTINGS, trained_on)
    own = static_network("mlp", np.array([0, 3, 4, 1, 0]), num_outputs=10, width=64)
    x = jax.random.normal(jax.random.key(0), (3, 8, 8, 1))
    params = init_params(jax.random.key(1), task.network, x)
    own = own.clone(initialization="lecun")
    np.testing.assert_array_equal(
        task.network.apply({"params": params}, x), own.apply({"params": params}, x)
    )


def test_it_learns(tmp_path):
    record = run_training(SETTINGS, tmp_path / "run").record
    assert record["parameters"] == 64 * (64 + 64 + 64 + 10)
    assert record["test_accuracy"] > 0.5 and record["architecture"] == TEXT


def test_cells_are_refused():
    with pytest.raises(InputError, match="--cells: is of cells, .*got 3"):
        TrainSettings(space="mlp", architecture=TEXT, recipe="quick", cells=3)
