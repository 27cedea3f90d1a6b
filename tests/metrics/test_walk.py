"""What walks give against automatic differentiation of the same networks, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.metrics import scored_network, space_scorer, statistics
from nasjax.metrics.plan import nasbench201_plan
from nasjax.metrics.walk import WALKED, walk_statistics
from nasjax.networks import LayerConfig, init_params, one_shot_network
from nasjax.spaces import get_space

SPACE = get_space("nasbench201")
SIZES = {"channels": 2, "num_cells": 1, "num_classes": 3}
CONFIGS = {
    "plain": {},
    "code": {
        "config": LayerConfig(use_affine=True),
        "cell_config": LayerConfig(use_bias=True),
    },
    "unnormalised": {"config": LayerConfig("he", "none")},
}
CELLS = {"all": (3, 1, 4, 2, 3, 1), "dangling": (3, 2, 1, 0, 4, 0)}


def _batch(size=6):
    x = jax.random.normal(jax.random.key(0), (size, 8, 8, 3), jnp.float64)
    return x, jnp.arange(size) % 3


def _params(configs):
    """Of all operations; biases and scales are moved from where they start."""
    network = one_shot_network("nasbench201", **SIZES, **configs)
    x, _ = _batch()
    weights = SPACE.one_hot(jnp.zeros(6, jnp.int32))
    params = init_params(jax.random.key(1), network, weights, x)
    rng = np.random.default_rng(2)

    def moved(leaf):
        noise = 0.3 * rng.standard_normal(leaf.shape) if leaf.ndim == 1 else 0.0
        return jnp.asarray(leaf, jnp.float64) + noise

    return jax.tree.map(moved, params)


def _used(array, squares):
    """Of the layers that are used, whatever the order."""
    return np.sort(np.asarray(array)[np.asarray(squares) > 0])


def _compare(name, walked, reference):
    if name in ("gradient", "split_gradients"):
        for one, other in zip(walked, reference, strict=True):
            used = _used(other, reference[0])
            np.testing.assert_allclose(_used(one, walked[0]), used, rtol=1e-6)
        return
    for one, other in zip(jax.tree.leaves(walked), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11 * np.abs(other).max())


def _check(configs, cell, names):
    x, y = _batch()
    params = _params(configs)
    plan = nasbench201_plan(np.array(cell), num_cells=1, **configs)
    walked = walk_statistics(plan, params, x, y, names, num_parts=2)
    network = scored_network("nasbench201", np.array(cell), params, **SIZES, **configs)
    reference = statistics(network, x, y, names, coupling="mapped", num_parts=2)
    for name in names:
        _compare(name, walked[name], reference[name])


@pytest.mark.usefixtures("float64")
def test_walks_give_what_automatic_differentiation_gives():
    _check(CONFIGS["code"], CELLS["all"], ("outputs", "hessian", "kernel:label"))


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("configs", CONFIGS)
def test_all_statistics_of_all_networks(configs, cell):
    names = set(WALKED)
    if cell == "dangling":  # ReLUs that lead nowhere count in a network, and not in a walk
        names -= {"activations"}
    _check(CONFIGS[configs], CELLS[cell], sorted(names))


def test_a_disconnected_cell_is_a_dead_network():
    x, y = jax.random.normal(jax.random.key(0), (6, 8, 8, 3)), jnp.arange(6) % 3
    score = space_scorer(SPACE, x, y, ["grad_norm", "synflow"], network=SIZES, engine="walk")
    scores = score(np.array([3, 3, 3, 0, 0, 0]))
    assert np.isnan(list(scores.values.values())).all()
    assert set(scores.flags) == {"grad_norm", "synflow"}
    assert all("dead network" in flag for flag in scores.flags.values())
