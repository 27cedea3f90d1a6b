"""The one-shot networks of NAS-Bench-1Shot1 against their definition, written out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lax_convolutions import lax_conv2d, on_lax_convolutions
from quick_jit import quick_jit
from tolerances import assert_close

from nasjax.errors import InputError
from nasjax.networks import LayerConfig, init_params, one_shot_network, static_network
from nasjax.spaces import get_space, nasbench101
from nasjax.spaces.nasbench1shot1 import NUM_PARENTS, parent_sets, to_nasbench101

NAMES = sorted(NUM_PARENTS)
OPERATIONS = ("conv3x3-bn-relu", "conv1x1-bn-relu", "maxpool3x3")
CHANNELS, NUM_CELLS = 2, 2
CONFIG = LayerConfig("ntk", "none")


def _conv(params, x):
    kernel = params["conv"]["kernel"]
    fan_in = kernel.shape[0] * kernel.shape[1] * kernel.shape[2]
    return lax_conv2d(x, kernel) / np.sqrt(fan_in)


def _block(params, x):
    return jnp.maximum(_conv(params, x), 0.0)


def _pool(x, size, stride, padding):
    return jax.lax.reduce_window(
        x,
        -jnp.inf,
        jax.lax.max,
        (1, size, size, 1),
        (1, stride, stride, 1),
        ((0, 0), (padding, padding), (padding, padding), (0, 0)),
    )


def _cell(params, operations, edges, x):
    """What has no weight is left out, so that only an architecture's own parts are computed."""
    states = []
    for node, row in enumerate(edges, start=1):
        name = "output" if node == len(edges) else node
        sources = [_block(params[f"projection_{name}"], x), *states]
        read = [weight * y for weight, y in zip(row, sources, strict=False)]
        if node == len(edges):
            return jnp.concatenate(read, -1)
        total = sum(y for weight, y in zip(row, read, strict=False) if weight)
        state = 0.0
        for weight, operation in zip(operations[node - 1], OPERATIONS, strict=True):
            if weight and operation == "maxpool3x3":
                state += weight * _pool(total, 3, 1, 1)
            elif weight:
                state += weight * _block(params[f"node_{node}"][operation], total)
        states.append(state)
    raise AssertionError("the output is the last node")


def _reference(name, weights, params, x):
    """``weights``: numpy arrays. The weight of an edge is that of all sets that hold it."""
    sets = parent_sets(name)
    edges = np.zeros((len(sets), len(sets)))
    for node, choices in enumerate(sets):
        for choice, parents in enumerate(choices):
            edges[node, list(parents)] += weights["parents"][node, choice]
    x = _block(params["stem"], x)
    for stage in range(3):
        x = _pool(x, 2, 2, 0) if stage else x
        for cell in range(NUM_CELLS):
            x = _cell(params[f"stage_{stage}_cell_{cell}"], weights["operations"], edges, x)
    x = _conv(params["postprocess"], jnp.maximum(x, 0.0)).mean((1, 2))
    kernel, bias = params["classifier"]["kernel"], params["classifier"]["bias"]
    return x @ kernel / np.sqrt(len(kernel)) + bias[None]


def _network(name, mixture="drawn"):
    return one_shot_network(
        name, channels=CHANNELS, num_cells=NUM_CELLS, config=CONFIG, mixture=mixture
    )


@functools.cache
def _params(name):
    weights = get_space(name).one_hot(np.zeros(get_space(name).genotype_shape, int))
    with jax.enable_x64(False):
        network = _network(name)
        params = init_params(jax.random.key(1), network, weights, jnp.zeros((1, 8, 8, 3)))
    return jax.tree.map(np.asarray, params)


def _double(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), tree)


def _images():
    return jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 8, 3)))


def _loss(outputs):
    return jnp.sum(jnp.sin(outputs) * jnp.arange(1.0, outputs.size + 1).reshape(outputs.shape))


def _compare(name, mixture, weights, params):
    """Outputs and parameter gradients of the network against the reference."""
    x, network = _images(), _network(name, mixture)
    traced = _double(weights)
    fixed = jax.tree.map(np.asarray, traced)

    def ours(params):
        outputs = network.apply({"params": params}, traced, x)
        return _loss(outputs), outputs

    def theirs(params):
        outputs = _reference(name, fixed, params, x)
        return _loss(outputs), outputs

    (_, outputs), gradient = quick_jit(jax.value_and_grad(ours, has_aux=True))(params)
    (_, expected), expected_gradient = quick_jit(jax.value_and_grad(theirs, has_aux=True))(params)
    assert np.ptp(expected, axis=0).min() > 1e-10  # alive, if small in this parameterisation
    assert_close(outputs, expected)
    assert_close(gradient, expected_gradient)
    return gradient


@pytest.mark.parametrize(
    "name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])]
)
def test_one_hot_weights_give_the_network_of_the_genotype(float64, name):
    space, params = get_space(name), _double(_params(name))
    genotype = np.array(space.sample(jax.random.key(4)))
    # One of each operation; the other nodes as they were drawn.
    genotype[:3] = [1, 0, 2]
    gradient = _compare(name, "drawn", space.one_hot(genotype), params)
    for cell in range(NUM_CELLS):
        first = gradient[f"stage_0_cell_{cell}"]["node_1"]
        np.testing.assert_array_equal(first["conv3x3-bn-relu"]["conv"]["kernel"], 0.0)
        assert np.abs(first["conv1x1-bn-relu"]["conv"]["kernel"]).max() > 1e-9


@pytest.mark.slow
def test_relaxed_weights_mix_operations_and_sets_of_parents(float64):
    name = NAMES[1]
    rng = np.random.default_rng(3)
    weights = {
        key: np.where(exists, rng.random(exists.shape), 0.0)
        for key, exists in get_space(name).decisions.items()
    }
    _compare(name, "full", weights, _double(_params(name)))


def test_weights_of_sets_that_do_not_exist_are_not_read():
    name = NAMES[0]
    space, network = get_space(name), _network(name)
    weights = space.one_hot(space.sample(jax.random.key(2)))
    others = {key: jnp.where(space.decisions[key], w, 7.0) for key, w in weights.items()}
    apply = quick_jit(on_lax_convolutions(network.apply))
    x = _images()
    results = [apply({"params": _params(name)}, w, x) for w in (weights, others)]
    np.testing.assert_array_equal(*results)


def test_loose_ends_do_not_reach_the_outputs():
    name = NAMES[0]
    space, network = get_space(name), _network(name)
    text = "conv3x3-bn-relu~0|conv1x1-bn-relu~0,1|{}|output~0,2"
    genotypes = [
        space.from_string(text.format(nodes))
        for nodes in (
            "conv3x3-bn-relu~0,1|conv3x3-bn-relu~0,1",
            "maxpool3x3~1,2|conv1x1-bn-relu~2,3",
        )
    ]
    apply = quick_jit(on_lax_convolutions(network.apply))
    results = [apply({"params": _params(name)}, space.one_hot(g), _images()) for g in genotypes]
    np.testing.assert_array_equal(*results)


def test_static_network_is_that_of_the_converted_cell():
    x = jnp.zeros((1, 8, 8, 3))
    for name in NAMES:
        space = get_space(name)
        genotype = np.asarray(space.sample(jax.random.key(5)))
        network = static_network(name, genotype, channels=4, num_cells=1)
        converted = to_nasbench101(name, genotype)
        assert network.genotype == tuple(converted.tolist())
        assert nasbench101.official_hash(network.genotype) == nasbench101.official_hash(converted)
        shapes = jax.eval_shape(network.init, jax.random.key(0), x)["params"]
        graph = nasbench101.to_graph(converted)
        cell = shapes["stage_0_cell_0"]
        convolutions = sum(operation != 2 for operation in graph.operations)
        assert sum(key.startswith("vertex") for key in cell) == convolutions
        assert sum(key.startswith("projection") for key in cell) == graph.matrix[0].sum()


def test_bad_networks():
    with pytest.raises(InputError, match="Did you mean 'drawn'"):
        one_shot_network(NAMES[0], mixture="drwn")
    with pytest.raises(InputError, match=r"must have a one-shot network, got 'nasbench101'. Its"):
        one_shot_network("nasbench101")
    with pytest.raises(InputError, match=r"static_network: .* shape \[9\]"):
        static_network(NAMES[0], np.zeros(11, int))
    with pytest.raises(InputError, match="must be between 0 and 2, got 3"):
        static_network(NAMES[0], np.full(9, 3))
    network = one_shot_network(NAMES[0], channels=2, num_cells=1)
    weights = get_space(NAMES[0]).one_hot(np.zeros(9, int))
    with pytest.raises(InputError, match="multiples of 4, got 6 x 8"):
        jax.eval_shape(network.init, jax.random.key(0), weights, jnp.zeros((1, 6, 8, 3)))
