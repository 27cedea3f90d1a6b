"""Networks as they are trained: published sizes, auxiliary head, drop path, running statistics."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.networks import LayerConfig, init_params, one_shot_network, static_network
from nasjax.networks.counts import network_size
from nasjax.networks.drop_path import DropPath, drop_path
from nasjax.networks.full_size import AuxiliaryHead
from nasjax.networks.operations import Identity
from nasjax.networks.partial_channels import PartialChannels
from nasjax.spaces import get_space

CONFIG = LayerConfig("pytorch", use_affine=True, running_rate=0.1)
DARTS_V2 = """Genotype(
    normal=[('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), ('sep_conv_3x3', 1),
            ('sep_conv_3x3', 1), ('skip_connect', 0), ('skip_connect', 0), ('dil_conv_3x3', 2)],
    normal_concat=range(2, 6),
    reduce=[('max_pool_3x3', 0), ('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 1),
            ('max_pool_3x3', 0), ('skip_connect', 2), ('skip_connect', 2), ('max_pool_3x3', 1)],
    reduce_concat=range(2, 6))"""
CIFAR = {"channels": 36, "num_cells": 20, "reduction": "stride", "has_auxiliary": True}
IMAGENET = {**CIFAR, "channels": 48, "num_cells": 14, "num_classes": 1000, "stem": "imagenet"}


def _darts(**changes):
    genotype = get_space("darts").from_string(DARTS_V2)
    return static_network("darts", genotype, config=CONFIG, **changes)


def test_darts_networks_have_the_published_numbers_of_parameters():
    # 3.3 and 4.7 million (Liu et al., 2019), as that work's programs print them in full.
    assert network_size(_darts(**CIFAR), (32, 32, 3)).parameters == 3_349_342
    size = network_size(_darts(**IMAGENET), (224, 224, 3))
    assert size.parameters == 4_718_752
    # The paper's 574 million multiply-adds are not the convolutions' (README, "Train").
    assert size.multiply_adds == 529_911_552


def test_the_thesis_counts_the_auxiliary_head():
    x = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    shapes = jax.eval_shape(_darts(**CIFAR).init, jax.random.key(0), x)["params"]
    total = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert round(total / 1e6, 2) == 3.83  # thesis, table 4.1


@pytest.mark.parametrize(
    ("cell", "multiply_adds"),
    [("0", 15.64737), ("|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+"
      "|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_3x3~2|", 220.11969)],
)  # fmt: skip
def test_nasbench201_networks_have_the_published_sizes(cell, multiply_adds):
    genotype = get_space("nasbench201").from_string(cell)
    network = static_network(
        "nasbench201", genotype, channels=16, num_cells=5, config=LayerConfig(use_affine=True)
    )
    size = network_size(network, (32, 32, 3))
    counts = [np.sum(np.asarray(genotype) == operation) for operation in (3, 2)]
    expected = 0.073306 + 0.24304 * counts[0] + 0.028 * counts[1]
    assert size.parameters / 1e6 == pytest.approx(expected, abs=1e-6)
    # The benchmark counts an addition for each of the classifier's ten biases.
    assert size.multiply_adds + 10 == round(1e6 * multiply_adds)


def _variables(network, x, seed=0):
    params = init_params(jax.random.key(seed), network, x)
    shapes = jax.eval_shape(network.init, jax.random.key(0), x)["batch_stats"]
    start = {"mean": jnp.zeros, "var": jnp.ones}
    stats = jax.tree.map_with_path(lambda path, leaf: start[path[-1].key](leaf.shape), shapes)
    return {"params": params, "batch_stats": stats}


SMALL = {"channels": 4, "num_cells": 3, "num_classes": 3, "reduction": "stride"}


def test_the_auxiliary_head_speaks_only_where_it_is_asked():
    network = _darts(**SMALL, has_auxiliary=True)
    x = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
    variables = _variables(network, x)
    logits, found = network.apply(variables, x, mutable=["auxiliary"])
    (auxiliary,) = found["auxiliary"]["logits"]
    assert auxiliary.shape == logits.shape == (2, 3)
    np.testing.assert_array_equal(network.apply(variables, x), logits)
    without = {name: tree for name, tree in variables["params"].items() if name != "auxiliary"}
    plain = _darts(**SMALL)
    np.testing.assert_array_equal(plain.apply({**variables, "params": without}, x), logits)


@pytest.mark.parametrize(("size", "stride"), [(8, 3), (7, 2)])
def test_the_auxiliary_head_by_hand(size, stride):
    config = LayerConfig("lecun", "none")
    head = AuxiliaryHead(3, stride=stride, config=config)
    x = jax.random.normal(jax.random.key(0), (2, size, size, 4))
    variables = head.init(jax.random.key(1), x)
    params = jax.tree.map(np.asarray, variables["params"])
    pooled = nn.avg_pool(jnp.maximum(x, 0), (5, 5), (stride, stride))
    assert pooled.shape[1:3] == (2, 2)
    h = np.maximum(pooled @ params["conv_0"]["kernel"][0, 0], 0)
    h = np.maximum(np.einsum("nhwc,hwcf->nf", h, params["conv_1"]["kernel"]), 0)
    expected = h @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    np.testing.assert_allclose(head.apply(variables, x), expected, rtol=1e-4, atol=1e-5)


def test_dropped_paths_are_left_out_example_by_example():
    x = jnp.ones((3, 2, 2, 4))
    drop = DropPath(jnp.float32(0.25), jnp.array([[0.9, 0.1], [0.1, 0.9], [0.25, 0.3]]))
    found = drop_path(x, drop, 0)
    np.testing.assert_allclose(found[:, 0, 0, 0], [4 / 3, 0.0, 4 / 3], rtol=1e-6)
    np.testing.assert_allclose(drop_path(x, drop, 1)[:, 0, 0, 0], [0, 4 / 3, 4 / 3], rtol=1e-6)


def test_identities_are_never_dropped():
    genotype = get_space("darts").from_string(DARTS_V2)
    skips = np.asarray(genotype).copy()
    skips[..., 0] = 2
    network = static_network("darts", skips, config=CONFIG, **SMALL)
    x = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
    variables = _variables(network, x)
    kept = DropPath(jnp.float32(0.5), jnp.ones((2, network.num_paths)))
    # Normal cell 0 holds identities alone: its eight draws change nothing.
    lost = kept._replace(draws=kept.draws.at[:, :8].set(0.0))
    found = [network.apply(variables, x, drop_path=drop) for drop in (kept, lost)]
    np.testing.assert_array_equal(*found)
    # Reductions have strides: what they pass on is no identity.
    lost = kept._replace(draws=jnp.zeros((2, network.num_paths)))
    assert not np.allclose(network.apply(variables, x, drop_path=lost), found[0])


def test_a_draw_is_an_example_s_own():
    network = _darts(**SMALL)
    x = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
    variables = _variables(network, x)
    draws = jax.random.uniform(jax.random.key(2), (2, network.num_paths))
    together = network.apply(variables, x, drop_path=DropPath(jnp.float32(0.5), draws))
    for row in range(2):
        drop = DropPath(jnp.float32(0.5), draws[row : row + 1])
        alone = network.apply(variables, x[row : row + 1], drop_path=drop)
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-4, atol=1e-5)


def test_running_statistics_are_used_where_they_are_not_changed():
    network = static_network("nasbench201", (1, 2, 0, 3, 0, 1), config=CONFIG, channels=4,
                             num_cells=1)  # fmt: skip
    x = 3.0 + jax.random.normal(jax.random.key(1), (8, 8, 8, 3))
    variables = _variables(network, x)
    own, changed = network.apply(variables, x, mutable=["batch_stats"])
    one = dataclasses.replace(CONFIG, running_rate=1.0)
    network = network.clone(config=one)
    _, last = network.apply(variables, x, mutable=["batch_stats"])
    for name, tree in changed["batch_stats"].items():
        for kind, start in (("mean", 0.0), ("var", 1.0)):
            for small, whole in zip(
                jax.tree.leaves({k: v for k, v in tree.items() if k == kind}),
                jax.tree.leaves({k: v for k, v in last["batch_stats"][name].items() if k == kind}),
                strict=True,
            ):
                np.testing.assert_allclose(small, start + 0.1 * (whole - start), rtol=1e-4,
                                           atol=1e-6)  # fmt: skip
    # After a batch that counts for all, the network sees it as it did (but for n - 1).
    again = network.apply({**variables, **last}, x)
    np.testing.assert_allclose(again, own, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(InputError, match="`running_rate` must be above 0 and at most 1"):
        LayerConfig(running_rate=rate)


def test_pytorchs_initialisation_is_uniform():
    network = static_network("nasbench201", (3, 3, 3, 3, 3, 3), config=CONFIG)
    x = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    params = init_params(jax.random.key(0), network, x)
    kernel = np.asarray(params["stage_2_cell_0"]["edge_0"]["nor_conv_3x3"]["conv"]["kernel"])
    bound = 1 / np.sqrt(9 * 64)
    assert np.abs(kernel).max() <= bound
    assert np.abs(kernel).max() > 0.999 * bound
    assert kernel.std() == pytest.approx(bound / np.sqrt(3), rel=0.01)
    bias = np.asarray(params["classifier"]["bias"])
    assert 0.3 / 8 < np.abs(bias).max() <= 1 / 8
    flax = network.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"]
    assert jax.tree.map(jnp.shape, flax) == jax.tree.map(jnp.shape, params)
    assert np.abs(flax["classifier"]["bias"]).max() <= 1 / 8


def test_partial_channels_pass_the_others_by():
    x = jnp.arange(12.0).reshape(1, 1, 2, 6)
    found = PartialChannels(Identity(parent=None), 3).apply({}, x)
    assert found[0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("space", ["nasbench201", "darts"])
def test_partial_channels_in_one_shot_networks(space):
    kind = {"channels": 4, "num_cells": 1, "num_classes": 3, "partial_channels": 2}
    drawn, full = (
        one_shot_network(space, mixture=mixture, **kind) for mixture in ("drawn", "full")
    )
    found = get_space(space)
    genotype = found.sample(jax.random.key(2))
    weights = found.one_hot(genotype)
    if space == "darts":
        weights = {name: leaf[:, :, :1] for name, leaf in weights.items()}
    x = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))
    params = init_params(jax.random.key(0), drawn, weights, x)
    one = drawn.apply({"params": params}, weights, x)
    np.testing.assert_allclose(
        one, full.apply({"params": params}, weights, x), rtol=1e-4, atol=1e-5
    )
    channels = {
        leaf.shape[-1]
        for path, leaf in jax.tree.leaves_with_path(params)
        if any(name in jax.tree_util.keystr(path) for name in ("nor_conv", "pointwise"))
    }
    assert channels == ({2, 4, 8} if space == "nasbench201" else {4})
    with pytest.raises(InputError, match="must be at least 1 and divide the 4 channels, got 3"):
        one_shot_network(space, **kind | {"partial_channels": 3})
