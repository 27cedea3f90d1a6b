"""What walks give against automatic differentiation of the same networks, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.metrics import scored_network, space_scorer, statistics
from nasjax.metrics.plans import PLANS
from nasjax.metrics.walk import WALKED, walk_statistics
from nasjax.networks import LayerConfig, init_params, static_network
from nasjax.spaces import get_space
from nasjax.spaces.nasbench101 import from_graph

CONFIGS = {
    "plain": {},
    "affine": {"config": LayerConfig(use_affine=True)},
    "unnormalised": {"config": LayerConfig("he", "none", use_bias=True)},
}
DARTS = """Genotype(
    normal=[('sep_conv_3x3', 0), ('dil_conv_5x5', 1), ('max_pool_3x3', 2), ('skip_connect', 0),
            ('sep_conv_5x5', 2), ('avg_pool_3x3', 3), ('dil_conv_3x3', 4), ('skip_connect', 1)],
    normal_concat=range(2, 6),
    reduce=[('max_pool_3x3', 0), ('max_pool_3x3', 1), ('sep_conv_3x3', 2), ('avg_pool_3x3', 0),
            ('dil_conv_3x3', 3), ('skip_connect', 2), ('dil_conv_5x5', 0), ('sep_conv_5x5', 4)],
    reduce_concat=range(2, 6))"""
# Five channels at the output: three and two at the vertices that lead to it.
GRAPH = np.array(
    [
        [0, 1, 1, 0, 0, 1],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0, 0],
    ]
)
GRAPH_OPERATIONS = ("conv3x3-bn-relu", "maxpool3x3", "conv1x1-bn-relu", "conv3x3-bn-relu")
NETWORKS = {
    "all": ("nasbench201", np.array((3, 1, 4, 2, 3, 1)), {"channels": 2, "num_cells": 1}),
    "dangling": ("nasbench201", np.array((3, 2, 1, 0, 4, 0)), {"channels": 2, "num_cells": 1}),
    "darts": ("darts", get_space("darts").from_string(DARTS), {"channels": 2, "num_cells": 3}),
    "graph": (
        "nasbench101",
        from_graph(GRAPH, ("input", *GRAPH_OPERATIONS, "output")),
        {"channels": 5, "num_cells": 1},
    ),
    "one-shot": (
        "nasbench1shot1_2",
        np.asarray(get_space("nasbench1shot1_2").sample(jax.random.key(3))),
        {"channels": 5, "num_cells": 1},
    ),
}


def _batch(size=6):
    x = jax.random.normal(jax.random.key(0), (size, 8, 8, 3), jnp.float64)
    return x, jnp.arange(size) % 3


def _params(space, genotype, network):
    """Biases and scales are moved from where they start."""
    x, _ = _batch()
    params = init_params(jax.random.key(1), static_network(space, genotype, **network), x)
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
            atol = 1e-12 * np.abs(used).max()
            np.testing.assert_allclose(_used(one, walked[0]), used, rtol=1e-6, atol=atol)
        return
    for one, other in zip(jax.tree.leaves(walked), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11 * np.abs(other).max())


def _check(name, configs, statistic_names):
    x, y = _batch()
    space, genotype, sizes = NETWORKS[name]
    network = {"num_classes": 3, **sizes, **configs}
    params = _params(space, genotype, network)
    plan = PLANS[space](genotype, **sizes, **configs)
    walked = walk_statistics(plan, params, x, y, statistic_names, num_parts=2)
    scored = scored_network(space, genotype, params, **network)
    reference = statistics(scored, x, y, statistic_names, coupling="mapped", num_parts=2)
    for statistic in statistic_names:
        _compare(statistic, walked[statistic], reference[statistic])


@pytest.mark.usefixtures("float64")
def test_walks_give_what_automatic_differentiation_gives():
    _check("all", CONFIGS["affine"], ("outputs", "hessian", "kernel:label"))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("network", [pytest.param("darts", marks=pytest.mark.slow), "graph"])
def test_gradients_in_other_spaces(network):
    _check(network, CONFIGS["plain"], ("outputs", "gradient"))


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("configs", CONFIGS)
def test_all_statistics_of_all_networks(configs, network):
    names = set(WALKED)
    if network == "dangling":  # ReLUs that lead nowhere count in a network, and not in a walk
        names -= {"activations"}
    if network == "darts" and configs != "unnormalised":
        names -= {"input_gradient"}  # which is rounding, as normalisation comes last
    _check(network, CONFIGS[configs], sorted(names))


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_all_statistics_where_cells_have_settings_of_their_own():
    configs = {"config": LayerConfig(use_affine=True), "cell_config": LayerConfig(use_bias=True)}
    _check("all", configs, sorted(WALKED))


@pytest.mark.usefixtures("float64")
@pytest.mark.slow
def test_synflow_holds_values_that_float32_does_not():
    space, genotype, sizes = NETWORKS["darts"]
    sizes = {**sizes, "num_cells": 6}
    params = _params(space, genotype, {"num_classes": 3, **sizes})
    params = jax.tree.map(lambda leaf: 100 * leaf, params)
    plan, (x, y) = PLANS[space](genotype, **sizes), _batch(2)
    expected = walk_statistics(plan, params, x, y, ["synflow"], num_parts=2)["synflow"]
    assert expected > np.log(1e60)
    params, x = jax.tree.map(lambda leaf: leaf.astype("float32"), (params, x))
    found = walk_statistics(plan, params, x, y, ["synflow"], num_parts=2)["synflow"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_a_disconnected_cell_is_a_dead_network():
    sizes = {"channels": 2, "num_cells": 1, "num_classes": 3}
    x, y = jax.random.normal(jax.random.key(0), (6, 8, 8, 3)), jnp.arange(6) % 3
    score = space_scorer(
        get_space("nasbench201"), x, y, ["grad_norm", "synflow"], network=sizes, engine="walk"
    )
    scores = score(np.array([3, 3, 3, 0, 0, 0]))
    assert np.isnan(list(scores.values.values())).all()
    assert set(scores.flags) == {"grad_norm", "synflow"}
    assert all("dead network" in flag for flag in scores.flags.values())
