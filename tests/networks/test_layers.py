"""Initialisation, the NTK parameterisation and normalisation, each against its closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import NUM_STANDARD_ERRORS, assert_close

from nasjax.errors import InputError
from nasjax.networks import (
    INITIALIZATIONS,
    NORMALIZATIONS,
    LayerConfig,
    init_params,
    one_shot_network,
    static_network,
)
from nasjax.networks.layers import (
    Classifier,
    Conv2D,
    DepthwiseConv2D,
    Normalization,
    normalize_batch,
)
from nasjax.spaces import get_space

# Variances written out: 3x3 convolution from 40 to 60 channels, dense layer from 40 to 200,
# depthwise 5x5 filters.
VARIANCES = {
    "lecun": {"conv": 1 / 360, "dense": 1 / 40, "depthwise": 1 / 25},
    "he": {"conv": 2 / 360, "dense": 2 / 40, "depthwise": 2 / 25},
    "xavier": {"conv": 2 / 900, "dense": 2 / 240, "depthwise": 2 / 50},
    "ntk": {"conv": 1.0, "dense": 1.0, "depthwise": 1.0},
}
CHANNELS = {"conv": 40, "dense": 40, "depthwise": 300}


def _layer(name, config):
    return {
        "conv": Conv2D(60, 3, config=config),
        "dense": Classifier(200, config),
        "depthwise": DepthwiseConv2D(5, config=config),
    }[name]


def _check_normal(values, variance):
    """First, second and fourth moment of a centred normal distribution."""
    values = np.asarray(values, np.float64).ravel() / np.sqrt(variance)
    for power, mean, spread in [(1, 0, 1), (2, 1, 2), (4, 3, 96)]:
        standard_error = np.sqrt(spread / len(values))
        assert abs(np.mean(values**power) - mean) < NUM_STANDARD_ERRORS * standard_error, power


def test_every_initialization_is_tested():
    # Uniform draws have a test of their own, in test_full_size.
    assert sorted([*VARIANCES, "pytorch"]) == sorted(INITIALIZATIONS)
    assert sorted(NORMALIZATIONS) == ["batch", "none"]


@pytest.mark.parametrize("initialization", sorted(VARIANCES))
@pytest.mark.parametrize("layer", sorted(CHANNELS))
def test_initial_variance(layer, initialization):
    network = _layer(layer, LayerConfig(initialization))
    x = jnp.zeros((1, 2, 2, CHANNELS[layer]))
    variance = VARIANCES[initialization][layer]
    by_flax = network.init(jax.random.key(3), x)["params"]
    by_us = init_params(jax.random.key(4), network, x)
    _check_normal(by_flax["kernel"], variance)
    _check_normal(by_us["kernel"], variance)
    assert not np.array_equal(by_flax["kernel"], by_us["kernel"])
    for params in (by_flax, by_us):
        np.testing.assert_array_equal(params.get("bias", np.zeros(200)), np.zeros(200))


def _networks():
    config = LayerConfig("xavier", use_affine=True)
    x = jnp.zeros((2, 8, 8, 3))
    space = get_space("darts")
    genotype = space.sample(jax.random.key(5))
    shared = {"channels": 2, "num_cells": 3, "config": config}
    weights = space.one_hot(genotype)
    one_shot = one_shot_network("darts", num_edges=2, **shared)
    yield pytest.param(one_shot, (weights, x), id="one-shot darts")
    yield pytest.param(static_network("darts", genotype, **shared), (x,), id="static darts")
    shared["num_cells"] = 1
    weights = {"edges": jnp.eye(5)[jnp.zeros(6, int)]}
    one_shot = one_shot_network("nasbench201", **shared)
    yield pytest.param(one_shot, (weights, x), id="one-shot nasbench201")


@pytest.mark.parametrize(("network", "args"), list(_networks()))
def test_init_params_makes_the_tree_of_init(network, args):
    expected = jax.eval_shape(network.init, jax.random.key(0), *args)["params"]
    params = init_params(jax.random.key(1), network, *args)
    described = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    assert jax.tree.structure(described) == jax.tree.structure(expected)
    assert jax.tree.leaves(described) == jax.tree.leaves(expected)
    standardised = []
    for path, leaf in jax.tree.leaves_with_path(params):
        if path[-1].key == "kernel":
            size, (fan_in, fan_out) = leaf.shape[:-2], leaf.shape[-2:]
            if leaf.ndim == 3:
                size, fan_in, fan_out = leaf.shape[:2], 1, 1
            standardised.append(leaf.ravel() * np.sqrt(np.prod(size) * (fan_in + fan_out) / 2))
        else:
            constant = {"scale": 1.0, "bias": 0.0}[path[-1].key]
            np.testing.assert_array_equal(leaf, np.full(leaf.shape, constant))
    values = np.concatenate(standardised)
    _check_normal(values, 1.0)
    assert len(np.unique(values)) > 0.99 * len(values)  # no number is used for two kernels


def test_flax_init_of_a_whole_network_has_the_variance_of_each_kernel():
    config = LayerConfig("he")
    network = static_network("nasbench201", [2] * 6, channels=4, num_cells=1, config=config)
    x = jnp.zeros((1, 4, 4, 3))

    def kernels(key):
        params = network.init(key, x)["params"]
        return (
            params["stage_0_cell_0"]["edge_3"]["nor_conv_1x1"]["conv"]["kernel"],
            params["stem_conv"]["kernel"],
            params["reduction_1"]["conv_a"]["conv"]["kernel"],
        )

    # Only these kernels are compiled, not the forward pass that Flax runs to find their shapes.
    drawn = jax.jit(jax.vmap(kernels))(jax.random.split(jax.random.key(2), 100))
    shapes = [(1, 1, 4, 4), (3, 3, 3, 4), (3, 3, 4, 8)]
    assert [kernel.shape[1:] for kernel in drawn] == shapes
    for kernel, variance in zip(drawn, [2 / 4, 2 / 27, 2 / 36], strict=True):
        _check_normal(kernel, variance)


def _kernel_ntk(layer, x, output_fn, *, seed=0):
    """NTK of the layer's kernel between all pairs of ``output_fn``'s rows, in float64."""
    params = init_params(jax.random.key(seed), layer, x)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)

    def outputs(kernel):
        return output_fn(layer.apply({"params": {**params, "kernel": kernel}}, x))

    jacobian = jax.jacrev(outputs)(params["kernel"])
    flat = jacobian.reshape(*jacobian.shape[:2], -1)
    return jnp.einsum("bip,cjp->bcij", flat, flat)


@pytest.mark.parametrize(("initialization", "factor"), [("ntk", 1 / 7), ("lecun", 1.0)])
def test_ntk_of_a_linear_layer(float64, initialization, factor):
    x = np.random.default_rng(0).normal(size=(3, 7))
    images = jnp.asarray(x)[:, None, None]
    expected = np.einsum("bn,cn,ij->bcij", x, x, np.eye(4)) * factor
    config = LayerConfig(initialization)
    assert_close(_kernel_ntk(Classifier(4, config), images, lambda y: y), expected)
    conv = Conv2D(4, 1, config=config)
    assert_close(_kernel_ntk(conv, images, lambda y: y[:, 0, 0]), expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_ntk_of_3x3_convolutions(float64, stride):
    x = np.random.default_rng(1).normal(size=(3, 6, 5, 2))
    config = LayerConfig("ntk")
    # Output pixel (1, 1) of stride 1 reads rows 0-2; of stride 2, rows 1-3.
    patch = x[:, stride - 1 : stride + 2, stride - 1 : stride + 2]
    dense = np.einsum("bhwc,dhwc,ij->bdij", patch, patch, np.eye(3)) / 18
    actual = _kernel_ntk(Conv2D(3, 3, stride, config), jnp.asarray(x), lambda y: y[:, 1, 1])
    assert_close(actual, dense)
    depthwise = np.einsum("bhwi,dhwj,ij->bdij", patch, patch, np.eye(2)) / 9
    layer = DepthwiseConv2D(3, stride, config=config)
    assert_close(_kernel_ntk(layer, jnp.asarray(x), lambda y: y[:, 1, 1]), depthwise)


def test_normalization(float64):
    spread = np.array([1.0, 1e-5**0.5, 30.0])
    x = np.random.default_rng(2).normal(size=(4, 5, 3, 3)) * spread + np.array([0.0, 2.0, -7.0])
    y = np.asarray(normalize_batch(jnp.asarray(x)))
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    assert_close(y, (x - mean) / np.sqrt(variance + 1e-5))
    np.testing.assert_allclose(y.mean((0, 1, 2)), 0, atol=1e-10)
    np.testing.assert_allclose(y.var((0, 1, 2))[[0, 2]], 1, rtol=2e-5)  # but for epsilon
    np.testing.assert_allclose(y.var((0, 1, 2))[1], 0.5, rtol=0.1)  # as large as epsilon


def test_normalization_far_from_zero():
    """The moments of N(10000, 1) in float32, where squares have a spacing of 8."""
    x = 1e4 + np.random.default_rng(6).normal(size=(8, 4, 4, 3))
    x = jnp.asarray(x, jnp.float32)
    exact = np.asarray(x, np.float64)
    expected = (exact - exact.mean((0, 1, 2))) / np.sqrt(exact.var((0, 1, 2)) + 1e-5)
    np.testing.assert_allclose(normalize_batch(x), expected, atol=1e-4)


def test_normalization_gradient(float64):
    rng = np.random.default_rng(3)
    x, ct = rng.normal(size=(2, 4, 3, 2, 2))
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    y = (x - mean) / np.sqrt(variance + 1e-5)
    # Ioffe and Szegedy (2015), Sec. 3, with the terms collected.
    expected = ct - ct.mean((0, 1, 2)) - y * (ct * y).mean((0, 1, 2))
    actual = jax.vjp(normalize_batch, jnp.asarray(x))[1](jnp.asarray(ct))[0]
    assert_close(actual, expected / np.sqrt(variance + 1e-5))


@pytest.mark.parametrize("value", [0.0, 0.1, 1234.567])
def test_constant_channel_stays_finite(value):
    x = jnp.full((4, 3, 3, 2), value, jnp.float32)
    x = x.at[..., 1].set(jnp.arange(36, dtype=jnp.float32).reshape(4, 3, 3))
    y, vjp = jax.vjp(normalize_batch, x)
    gradient = vjp(jnp.cos(x))[0]
    assert np.isfinite(y).all() and np.isfinite(gradient).all()
    # A sum of 36 may be off by 36 units in the last place, which epsilon magnifies 316 times.
    assert np.abs(y[..., 0]).max() <= 316.3 * 36 * np.spacing(np.float32(value))


def test_affine_and_none(float64):
    x = jnp.asarray(np.random.default_rng(4).normal(size=(4, 3, 2, 2)))
    layer = Normalization(LayerConfig(use_affine=True))
    params = {"scale": jnp.array([2.0, -1.0]), "bias": jnp.array([0.5, 3.0])}
    shapes = jax.eval_shape(layer.init, jax.random.key(0), x)["params"]
    assert jax.tree.structure(shapes) == jax.tree.structure(params)
    expected = np.asarray(normalize_batch(x)) * [2.0, -1.0] + [0.5, 3.0]
    assert_close(layer.apply({"params": params}, x), expected)
    assert Normalization(LayerConfig()).init(jax.random.key(0), x) == {}
    unchanged = Normalization(LayerConfig(normalization="none", use_affine=True))
    assert unchanged.init(jax.random.key(0), x) == {}
    np.testing.assert_array_equal(unchanged.apply({}, x), x)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LayerConfig(initialization="lecunn"), "Did you mean 'lecun'"),
        (lambda: LayerConfig(normalization="layer"), "normalization 'layer'"),
        (lambda: one_shot_network("dartz"), "Did you mean 'darts'"),
        (lambda: static_network("nasbench", [0] * 6), "Did you mean 'nasbench201'"),
        (lambda: static_network("nasbench201", [0.0] * 6), "integer array, got float64"),
    ],
)
def test_bad_names(make, words):
    with pytest.raises(InputError, match=words):
        make()
