"""ReLU inputs and layer outputs read from programs, against what Flax itself records."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.metrics import TappedFn


class Mixed(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3))(x))
        x = nn.Conv(5, (3, 3), strides=2, use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=False)(x)
        x = jnp.maximum(x, 0)
        x = nn.gelu(nn.Dense(7)(x.reshape(len(x), -1)))
        return nn.Dense(3)(nn.relu6(x))


@pytest.fixture
def network():
    module, x = Mixed(), jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    params = module.init(jax.random.key(1), x)["params"]
    return lambda params, x: module.apply({"params": params}, x, mutable=["batch_stats"])[0], (
        module,
        params,
        x,
    )


def test_outputs_are_those_of_the_network(network):
    apply_fn, (_, params, x) = network
    for run in (TappedFn(apply_fn), jax.jit(TappedFn(apply_fn))):
        np.testing.assert_allclose(run(params, x).outputs, apply_fn(params, x), rtol=1e-5)


def test_layers_are_what_flax_records(network):
    apply_fn, (module, params, x) = network
    state = module.apply(
        {"params": params},
        x,
        mutable=["batch_stats", "intermediates"],
        capture_intermediates=True,
    )[1]["intermediates"]
    tapped = TappedFn(apply_fn)(params, x)
    names = ("Conv_0", "Conv_1", "Dense_0", "Dense_1")
    for name, layer, fan in zip(names, tapped.layers, tapped.fans, strict=True):
        np.testing.assert_array_equal(layer, state[name]["__call__"][0])
        kernel = params[name]["kernel"]
        assert fan == kernel.size // kernel.shape[-1]


def test_relus_are_maxima_with_zero_that_have_examples(network):
    apply_fn, (_, params, x) = network
    relus = TappedFn(apply_fn)(params, x).relus
    # Not the variance of the normalisation, which is kept from falling below zero.
    assert [relu.shape for relu in relus] == [(2, 8, 8, 4), (2, 4, 4, 5), (2, 7)]
    np.testing.assert_allclose(relus[1].mean((0, 1, 2)), np.zeros(5), atol=1e-5)


def test_derivatives_by_offsets_are_those_by_layer_outputs(network):
    apply_fn, (_, params, x) = network
    tapped = TappedFn(apply_fn)
    zeros = [jnp.zeros_like(layer) for layer in tapped(params, x).layers]
    by_offset = jax.grad(lambda offsets: (tapped(params, x, offsets).outputs ** 2).sum())(zeros)
    by_params = jax.grad(lambda params: (apply_fn(params, x) ** 2).sum())(params)
    # A bias adds to its layer's output: the sum of the cotangent over examples and pixels.
    for place, name in ((0, "Conv_0"), (2, "Dense_0"), (3, "Dense_1")):
        total = by_offset[place].reshape(-1, by_offset[place].shape[-1]).sum(0)
        np.testing.assert_allclose(total, by_params[name]["bias"], rtol=2e-4, atol=2e-4)


def test_relu_keeps_its_derivative_at_zero():
    run = TappedFn(lambda w, x: jax.nn.relu(x) @ w)
    gradient = jax.grad(lambda x: run(jnp.eye(2), x).outputs.sum())(jnp.zeros((2, 2)))
    np.testing.assert_array_equal(gradient, np.zeros((2, 2)))
