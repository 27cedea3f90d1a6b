"""Fully connected networks: both against a loop in NumPy, and each against the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_jit import quick_jit
from scipy.special import expit
from tolerances import NUM_STANDARD_ERRORS, assert_close

from nasjax.errors import InputError
from nasjax.networks import MLP_INITIALIZATIONS, init_params, one_shot_network, static_network
from nasjax.networks.activations import ACTIVATIONS
from nasjax.spaces import mlp_space
from nasjax.spaces.mlp import ACTIVATION_NAMES, split_genotype

DEPTH, WIDTH = 6, 7
SPACE = mlp_space(DEPTH)
GENOTYPES = [
    SPACE.from_string(text)
    for text in (
        "relu|leaky_relu+skip|sigmoid|tanh+skip|swish",
        "swish|relu|leaky_relu|sigmoid|tanh",
        "tanh|swish+skip|relu+skip|leaky_relu+skip|sigmoid+skip",
    )
]
FUNCTIONS = [
    lambda z: np.maximum(z, 0),
    lambda z: np.where(z > 0, z, 0.01 * z),
    lambda z: expit(z) - 0.5,
    np.tanh,
    lambda z: z * expit(z),
]


def _x(batch=3):
    return np.random.default_rng(0).normal(size=(batch, 2, 2, 1))


def _params(network, *args, seed=1):
    with jax.enable_x64(False):
        params = init_params(jax.random.key(seed), network, *args)
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), params)


def _by_hand(params, activations, skips, x, scale):
    """Eq. (1) for mixtures: ``activations`` ``[layers, 5]`` weights, ``skips`` numbers."""
    f = x.reshape(len(x), -1)
    for layer, mix in enumerate(activations):
        z = f @ np.asarray(params[f"layer_{layer + 1}"]["kernel"]) * (scale if layer else 1.0)
        y = sum(weight * function(z) for weight, function in zip(mix, FUNCTIONS, strict=True))
        f = y + skips[layer - 1] * f if layer else y
    return f @ np.asarray(params["output"]["kernel"]) * scale


def test_names_are_those_of_the_space():
    assert tuple(ACTIVATIONS) == ACTIVATION_NAMES


@pytest.mark.parametrize("initialization", ["ntk", "theory"])  # only "ntk" scales its outputs
def test_static_and_one_shot_network(float64, initialization):
    kwargs = {"width": WIDTH, "num_outputs": 3, "initialization": initialization}
    scale = np.sqrt(2 / WIDTH) if initialization == "ntk" else 1.0
    one_shot = one_shot_network("mlp", **kwargs)
    x = jnp.asarray(_x())

    def one_shot_loss(params, genotype):
        outputs = one_shot.apply({"params": params}, SPACE.one_hot(genotype), x)
        return jnp.sum(jnp.sin(outputs) * jnp.arange(9.0).reshape(3, 3)), outputs

    one_shot_gradient = quick_jit(jax.grad(one_shot_loss, has_aux=True))
    for genotype in GENOTYPES:
        static = static_network("mlp", genotype, **kwargs)

        def static_loss(params, static=static):
            outputs = static.apply({"params": params}, x)
            return jnp.sum(jnp.sin(outputs) * jnp.arange(9.0).reshape(3, 3)), outputs

        params = _params(static, jax.ShapeDtypeStruct(x.shape, jnp.float32))
        activations, skips = split_genotype(genotype)
        expected = _by_hand(params, np.eye(5)[activations], skips, _x(), scale)
        assert np.ptp(expected) > 1e-3
        gradient, outputs = quick_jit(jax.grad(static_loss, has_aux=True))(params)
        assert_close(outputs, expected)
        # The one-shot network has the same parameters and, of a traced genotype, the same values.
        assert_close(one_shot_gradient(params, genotype), (gradient, outputs))


def test_one_shot_network_mixes_relaxed_weights(float64):
    rng = np.random.default_rng(3)
    weights = {"activations": rng.uniform(size=(5, 5)), "skips": rng.uniform(size=(4, 2))}
    network = one_shot_network("mlp", width=WIDTH, num_outputs=2)
    params = _params(network, weights, _x())
    actual = network.apply({"params": params}, jax.tree.map(jnp.asarray, weights), _x())
    scale = np.sqrt(2 / WIDTH)
    expected = _by_hand(params, weights["activations"], weights["skips"][:, 1], _x(), scale)
    assert_close(actual, expected)


@pytest.mark.parametrize("initialization", sorted(MLP_INITIALIZATIONS))
@pytest.mark.parametrize("is_by_flax", [False, True])
def test_initial_variances(initialization, is_by_flax):
    width, num_features, num_outputs = 120, 300, 80
    network = static_network(
        "mlp", [0, 1, 0], width=width, num_outputs=num_outputs, initialization=initialization
    )
    x = jnp.zeros((1, num_features))
    key = jax.random.key(2)
    params = network.init(key, x)["params"] if is_by_flax else init_params(key, network, x)
    assert sorted(params) == ["layer_1", "layer_2", "output"]
    fans = {
        "layer_1": (num_features, width),
        "layer_2": (width, width),
        "output": (width, num_outputs),
    }
    for name, (fan_in, fan_out) in fans.items():
        kernel = np.asarray(params[name].pop("kernel"))
        assert params[name] == {}  # no biases
        assert kernel.shape == (fan_in, fan_out)
        assert kernel.dtype == np.float32
        expected = {
            "ntk": 1.0,
            "theory": 1.0 / width,
            "lecun": 1.0 / fan_in,
            "he": 2.0 / fan_in,
            "xavier": 2.0 / (fan_in + fan_out),
        }[initialization]
        limit = NUM_STANDARD_ERRORS / np.sqrt(kernel.size)
        assert abs((kernel**2).mean() / expected - 1) < limit * np.sqrt(2)
        assert abs(kernel.mean()) < limit * np.sqrt(expected)


@pytest.mark.parametrize("types", [("bfloat16", "bfloat16"), ("float32", "bfloat16")])
def test_gradients_have_the_types_of_what_they_are_for(types):
    params_type, x_type = types
    network = one_shot_network("mlp", width=WIDTH)
    weights, x = SPACE.one_hot(GENOTYPES[0]), jnp.asarray(_x(), x_type)
    params = init_params(jax.random.key(0), network, weights, x)
    params = jax.tree.map(lambda leaf: leaf.astype(params_type), params)

    def loss(params, weights):
        return jnp.sum(network.apply({"params": params}, weights, x))

    gradient = jax.eval_shape(jax.grad(loss, (0, 1)), params, weights)
    types = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (params, weights))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), gradient) == types


def test_initial_parameters_are_float32_whatever_the_default(float64):
    network = static_network("mlp", GENOTYPES[0], width=WIDTH)
    params = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 4), jnp.float32))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: one_shot_network("mlp", initialization="nkt"), "Did you mean 'ntk'"),
        (lambda: static_network("mlp", [0] * 3, initialization="thery"), "Did you mean 'theory'"),
        (lambda: one_shot_network("mlp", width=0), "`width` must be at least 1, got 0"),
        (lambda: static_network("mlp", [0] * 3, width=-2), "`width` must be at least 1, got -2"),
        (lambda: static_network("mlp", [0] * 4), r"shape \[3\], got int64 of shape \[4\]"),
        (lambda: static_network("mlp", [0]), r"shape \[3\], got int64 of shape \[1\]"),
        (lambda: static_network("mlp", [0, 0, 2]), r"genotype\[2\]` must be between 0 and 1"),
        (lambda: static_network("mlp", [0, 5, 1]), r"genotype\[1\]` must be between 0 and 4"),
        (lambda: static_network("mlp", [[0, 0, 0]]), r"got int64 of shape \[1, 3\]"),
    ],
)
def test_bad_networks(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("shapes", "x_shape", "words"),
    [
        (((5, 4), (4, 2)), (2, 3), r"\[depth - 1, 5\] and .*got \[5, 4\] and \[4, 2\]"),
        (((5, 5), (5, 2)), (2, 3), r"got \[5, 5\] and \[5, 2\]"),
        (((1, 5), (0, 2)), (2, 3), "depth >= 3"),
        (((5, 5), (4, 2)), (3,), r"`x` must be \[batch, ...\], got shape \(3,\)"),
    ],
)
def test_bad_inputs(shapes, x_shape, words):
    weights = {"activations": jnp.zeros(shapes[0]), "skips": jnp.zeros(shapes[1])}
    network = one_shot_network("mlp", width=WIDTH)
    with pytest.raises(InputError, match=words):
        jax.eval_shape(network.init, jax.random.key(0), weights, jnp.zeros(x_shape))
