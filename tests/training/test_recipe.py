"""Recipes: rates over time, against the formulas of papers and public code."""

import dataclasses
import importlib

import jax.numpy as jnp
import numpy as np
import pytest
from training_tasks import RECIPE

from nasjax.errors import InputError
from nasjax.training import RECIPES, Recipe, get_recipe


def _rates(recipe, in_epoch, steps):
    return [float(recipe.learning_rate_at(jnp.int32(step), in_epoch)) for step in steps]


def test_darts_rate_is_a_cosine_by_epochs():
    recipe = get_recipe("cifar10")
    epochs = np.array([0, 1, 300, 599])
    expected = 0.025 * (1 + np.cos(np.pi * epochs / 600)) / 2
    np.testing.assert_allclose(_rates(recipe, 520, 520 * epochs), expected, rtol=2e-4)
    np.testing.assert_allclose(_rates(recipe, 520, 520 * epochs + 519), expected, rtol=2e-4)


def test_nasbench201_rate_is_a_cosine_by_epochs():
    recipe = get_recipe("nasbench201_12")
    steps = np.array([0, 1, 195 * 6, 195 * 12 - 1])
    expected = 0.1 * (1 + np.cos(np.pi * (steps // 195) / 12)) / 2
    np.testing.assert_allclose(_rates(recipe, 195, steps), expected, rtol=1e-4, atol=1e-9)


def test_imagenet_rate_warms_up_and_falls_in_a_line():
    rates = _rates(get_recipe("imagenet"), 10, 10 * np.array([0, 1, 4, 5, 6, 249]))
    expected = [0.1, 0.2, 0.5, 0.5, 0.5 * 244 / 245, 0.5 / 245]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_cifar100_rate_ends_above_zero():
    recipe = dataclasses.replace(get_recipe("cifar100"), schedule_unit="step")
    assert _rates(recipe, 5, [3000]) == pytest.approx([0.001])


def test_drop_path_grows_from_zero():
    recipe = get_recipe("cifar10")
    rates = [float(recipe.drop_path_rate_at(jnp.int32(step), 520)) for step in (0, 519, 520 * 300)]
    assert rates == pytest.approx([0.0, 0.0, 0.1])


def test_the_optimiser_is_pytorchs():
    """Three steps by hand: clip, decay, momentum, Nesterov."""
    recipe = dataclasses.replace(RECIPE, schedule="linear", epochs=4, is_nesterov=True)
    optimizer = recipe.optimizer(1)
    weight, momentum = np.array([3.0, -1.0]), np.zeros(2)
    params = jnp.asarray(weight, jnp.float32)
    state = optimizer.init(params)
    for step, gradient in enumerate(([3.0, 4.0], [0.3, 0.4], [-6.0, 8.0])):
        updates, state = optimizer.update(jnp.array(gradient), state, params)
        params = params + updates
        clipped = np.array(gradient) * min(1.0, 1.0 / np.linalg.norm(gradient))
        decayed = clipped + 0.01 * weight
        momentum = 0.9 * momentum + decayed
        weight = weight - 0.1 * (1 - step / 4) * (decayed + 0.9 * momentum)
        np.testing.assert_allclose(params, weight, rtol=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_what_it_costs_and_gives(name):
    recipe = get_recipe(name)
    text = importlib.import_module(f"nasjax.training.recipes.{name}").__doc__
    assert all(word in text for word in ("Command:", "Cost"))
    assert "Expected:" in text or "result" in text
    assert f"--recipe {name}" in text or name == "quick"
    assert recipe.networks


def test_a_recipe_of_ones_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import dataclasses\nfrom nasjax.training import get_recipe\n"
        "RECIPE = dataclasses.replace(get_recipe('quick'), epochs=7)\n"
    )
    assert get_recipe(str(file)).epochs == 7
    file.write_text("RECIPE = 3")
    with pytest.raises(InputError, match="must set RECIPE to a nasjax.training.Recipe, got int"):
        get_recipe(str(file))
    with pytest.raises(InputError, match="must be a file, got 'none.py'"):
        get_recipe("none.py")
    with pytest.raises(InputError, match="Did you mean 'quick'"):
        get_recipe("quik")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"schedule_unit": "year"}, "unknown unit of the schedule 'year'"),
        ({"epochs": 0}, "--epochs: must be at least 1, got 0"),
        ({"learning_rate": float("nan")}, "`learning_rate` must be a number >= 0, got nan"),
        ({"drop_path_rate": 1.0}, "at least 0 and below 1, got 1.0"),
        ({"warmup_epochs": 4}, "fewer than the 4 epochs, got 4"),
    ],
)
def test_values_out_of_range_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(RECIPE, **change)


def test_a_recipe_cannot_be_changed():
    recipe = Recipe(**{**vars(RECIPE), "networks": {"darts": {"channels": 3}}})
    with pytest.raises(TypeError):
        recipe.networks["darts"]["channels"] = 4
