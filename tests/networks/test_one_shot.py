"""One-shot networks: drawn against full mixtures, and against the network of one genotype.

The references ("full", static) run on XLA's own convolutions and their derivatives.
"""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lax_convolutions import on_lax_convolutions
from quick_jit import quick_jit
from tolerances import assert_close

from nasjax.errors import InputError
from nasjax.networks import (
    INITIALIZATIONS,
    LayerConfig,
    init_params,
    one_shot_network,
    static_network,
)
from nasjax.networks.drawn_cell import Wiring, drawn_cell
from nasjax.search import zero_logits
from nasjax.spaces import get_space

GENOTYPES_FILE = Path(__file__).parents[3] / "shared/data/darts_genotypes.json"
DARTS_V2 = (
    "Genotype(normal=[('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), "
    "('sep_conv_3x3', 1), ('sep_conv_3x3', 1), ('skip_connect', 0), ('skip_connect', 0), "
    "('dil_conv_3x3', 2)], normal_concat=[2, 3, 4, 5], reduce=[('max_pool_3x3', 0), "
    "('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 1), ('max_pool_3x3', 0), "
    "('skip_connect', 2), ('skip_connect', 2), ('max_pool_3x3', 1)], reduce_concat=[2, 3, 4, 5])"
)
# DARTS with three cells has a normal cell, then two reduction cells: every kind of stage.
NUM_CELLS = {"nasbench201": 1, "darts": 3, "nasbench1shot1_1": 2}
# The static networks of NAS-Bench-1Shot1 are NAS-Bench-101's, which are others.
SHARED = ["darts", "nasbench201"]


# --- networks in float64 ------------------------------------------------------------------------


def _as_float64(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), tree)


def _images(batch=3):
    return jnp.asarray(np.random.default_rng(0).normal(size=(batch, 8, 8, 3)))


def _config(initialization, normalization="none"):
    return LayerConfig(initialization, normalization)


def _one_hot(space_name, key):
    """Weights of a random architecture as NASI draws it: one operation and input a node."""
    weights = {}
    for name, exists in sorted(get_space(space_name).decisions.items()):
        key, subkey = jax.random.split(key)
        logits = jnp.where(exists, 0.0, -jnp.inf)
        drawn = jax.random.categorical(subkey, logits)
        weights[name] = jnp.asarray(np.eye(exists.shape[-1])[np.asarray(drawn)])
    return weights


@functools.cache
def _one_shot_params(space_name, config, num_edges=1):
    kwargs = {"num_edges": num_edges} if space_name == "darts" else {}
    network = one_shot_network(
        space_name, channels=2, num_cells=NUM_CELLS[space_name], config=config, **kwargs
    )
    space = get_space(space_name)
    with jax.enable_x64(False):
        if num_edges == 2:
            weights = space.one_hot(space.sample(jax.random.key(0)))
        else:
            weights = zero_logits(space.decisions)
        return init_params(jax.random.key(11), network, weights, jnp.zeros((1, 8, 8, 3)))


def _one_shot_loss(space_name, mixture, config, num_edges=1):
    """``(params, weights, x) -> (loss, outputs)``, the loss a smooth function of all outputs."""
    kwargs = {"num_edges": num_edges} if space_name == "darts" else {}
    network = one_shot_network(
        space_name,
        channels=2,
        num_cells=NUM_CELLS[space_name],
        config=config,
        mixture=mixture,
        **kwargs,
    )

    def loss(params, weights, x):
        outputs = network.apply({"params": params}, weights, x)
        return _loss_of(outputs), outputs

    return loss


def _loss_of(outputs):
    return jnp.sum(jnp.sin(outputs) * jnp.arange(1.0, outputs.size + 1).reshape(outputs.shape))


@functools.cache
def _one_shot(space_name, mixture, config, num_edges=1):
    """Compiled ``(params, weights, x) -> ((loss, outputs), (params_grad, weights_grad))``."""
    loss = _one_shot_loss(space_name, mixture, config, num_edges)
    gradient = jax.value_and_grad(loss, (0, 1), has_aux=True)
    return quick_jit(on_lax_convolutions(gradient) if mixture == "full" else gradient)


def _static(space_name, genotype, config):
    """Like ``_one_shot`` for the network of a genotype; also its tree of parameter shapes."""
    network = static_network(
        space_name, genotype, channels=2, num_cells=NUM_CELLS[space_name], config=config
    )

    def loss(params, x):
        outputs = network.apply({"params": params}, x)
        return _loss_of(outputs), outputs

    with jax.enable_x64(False):
        shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"]
    return quick_jit(on_lax_convolutions(jax.value_and_grad(loss, has_aux=True))), shapes


def _part(tree, shapes):
    """What ``shapes`` declares, and whatever else the tree holds (as a flat list)."""
    if not isinstance(shapes, dict):
        return tree, []
    rest = [leaf for name in tree.keys() - shapes.keys() for leaf in jax.tree.leaves(tree[name])]
    part = {}
    for name in shapes:
        part[name], others = _part(tree[name], shapes[name])
        rest += others
    return part, rest


# --- a cell by hand -----------------------------------------------------------------------------


def _toy_branches():
    return (
        lambda p, x: jnp.zeros_like(x),
        lambda p, x: jnp.tanh(x * p["scale"][None, None, None]),
        lambda p, x: jnp.sin(x @ p["matrix"]) + x,
    )


def _toy_params(num_edges):
    rng = np.random.default_rng(1)
    return (
        {},
        {"scale": jnp.asarray(rng.normal(size=(num_edges, 2)))},
        {"matrix": jnp.asarray(rng.normal(size=(num_edges, 2, 2)))},
    )


def _toy_mixture(wiring, operations, inputs, states, params):
    """The definition: every edge adds the weighted operations on its weighted source."""
    nodes = [*states] + [jnp.zeros_like(states[0])] * (wiring.num_nodes - len(states))
    for edge, target in enumerate(wiring.targets):
        if inputs is None:
            x = nodes[wiring.sources[edge]]
        else:
            x = sum(inputs[edge, node] * nodes[node] for node in range(target))
        for j, branch in enumerate(wiring.branches):
            p = jax.tree.map(lambda leaf, edge=edge: leaf[edge], params[j])
            nodes[target] = nodes[target] + operations[edge, j] * branch(p, x)
    return jnp.stack(nodes)


@pytest.mark.parametrize("has_inputs", [False, True])
def test_drawn_cell_against_its_definition(float64, has_inputs):
    targets = (2, 2, 3, 3, 4)
    wiring = Wiring(_toy_branches(), 5, targets, None if has_inputs else (0, 1, 2, 1, 3))
    num_inputs = 2
    rng = np.random.default_rng(2)
    states = jnp.asarray(rng.normal(size=(num_inputs, 3, 2, 2, 2)))
    ct = jnp.asarray(rng.normal(size=(5, 3, 2, 2, 2)))
    params = _toy_params(len(targets))

    def all_derivatives(cell, operations, inputs):
        def loss(operations, inputs, states, params):
            return jnp.vdot(jnp.sin(cell(wiring, operations, inputs, states, params)), ct)

        point = (operations, inputs, states, params)
        gradient = jax.grad(loss, (0, 1, 2, 3) if has_inputs else (0, 2, 3))
        # A direction that leaves alone what was not drawn: the gradient itself, as NASI uses it.
        states_grad, params_grad = gradient(*point)[-2:]

        def of_params(states, params):
            return gradient(operations, inputs, states, params)

        second = jax.jvp(of_params, (states, params), (states_grad, params_grad))[1]
        return loss(*point), gradient(*point), second

    drawn = quick_jit(functools.partial(all_derivatives, drawn_cell))
    mixture = quick_jit(functools.partial(all_derivatives, _toy_mixture))
    draws = []
    for _ in range(6):
        operations = np.eye(3)[rng.integers(0, 3, len(targets))]
        inputs = np.eye(4)[[rng.integers(0, target) for target in targets]]
        draws.append((jnp.asarray(operations), jnp.asarray(inputs) if has_inputs else None))
    expected = [mixture(*draw) for draw in draws]
    for draw, result in zip(draws, expected, strict=True):
        assert_close(drawn(*draw), result)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *draws)
    results = jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected)
    mapped = jax.vmap(functools.partial(all_derivatives, drawn_cell))
    assert_close(quick_jit(mapped)(*stacked), results)


# --- drawn against full -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space_name", "normalization"),
    [
        ("nasbench201", "none"),
        pytest.param("nasbench1shot1_1", "none", marks=pytest.mark.slow),
        pytest.param("darts", "none", marks=pytest.mark.slow),
        *(pytest.param(name, "batch", marks=pytest.mark.slow) for name in sorted(NUM_CELLS)),
    ],
)
def test_drawn_equals_full(float64, space_name, normalization):
    config = _config("lecun", normalization)
    params = _as_float64(_one_shot_params(space_name, config))
    x = _images()
    drawn, full = (_one_shot(space_name, mixture, config) for mixture in ("drawn", "full"))
    for seed in range(4):
        weights = _one_hot(space_name, jax.random.key(seed))
        actual, expected = drawn(params, weights, x), full(params, weights, x)
        assert np.ptp(expected[0][1]) > 1e-6  # the network is alive, and there is something to see
        # Weights of inputs that do not exist are zero and are not read.
        assert_close(actual, expected)


@pytest.mark.parametrize(
    "space_name", ["nasbench201", pytest.param("darts", marks=pytest.mark.slow)]
)
def test_drawn_under_vmap_over_draws(float64, space_name):
    config = _config("lecun")
    params = _as_float64(_one_shot_params(space_name, config))
    x = _images()
    draws = [_one_hot(space_name, jax.random.key(seed)) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *draws)
    gradient = jax.value_and_grad(_one_shot_loss(space_name, "drawn", config), (0, 1), has_aux=True)
    actual = quick_jit(jax.vmap(gradient, (None, 0, None)))(params, stacked, x)
    one = _one_shot(space_name, "full", config)
    expected = [one(params, weights, x) for weights in draws]
    assert_close(actual, jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected))


@pytest.mark.slow
def test_drawn_equals_full_with_two_edges_a_node(float64):
    config = _config("ntk")
    space = get_space("darts")
    params = _as_float64(_one_shot_params("darts", config, 2))
    drawn, full = (_one_shot("darts", mixture, config, 2) for mixture in ("drawn", "full"))
    for seed in range(3):
        weights = _as_float64(space.one_hot(space.sample(jax.random.key(seed))))
        assert_close(drawn(params, weights, _images()), full(params, weights, _images()))


# --- one-shot against static --------------------------------------------------------------------


def _genotypes(space, number):
    """Sampled genotypes, the first of NAS-Bench-201 with every operation in it."""
    sampled = [np.asarray(space.sample(jax.random.key(seed))) for seed in range(number)]
    return [np.array([3, 0, 2, 4, 1, 3]), *sampled] if space.name == "nasbench201" else sampled


def _static_cases():
    """Only ``"ntk"`` changes the forward pass: the other three differ in their weights alone."""
    for space_name in SHARED:
        for initialization in sorted(INITIALIZATIONS):
            marks = [] if initialization == "ntk" else [pytest.mark.slow]
            yield pytest.param(space_name, initialization, marks=marks)


@pytest.mark.parametrize(("space_name", "initialization"), list(_static_cases()))
def test_one_shot_equals_static(float64, space_name, initialization):
    space = get_space(space_name)
    config = _config(initialization)
    num_edges = 2 if space_name == "darts" else 1
    params = _as_float64(_one_shot_params(space_name, config, num_edges))
    x = _images()
    one_shot = _one_shot(space_name, "drawn", config, num_edges)
    for genotype in _genotypes(space, 2 if initialization == "ntk" else 4):
        weights = _as_float64(space.one_hot(genotype))
        (_, outputs), (gradient, _) = one_shot(params, weights, x)
        static, shapes = _static(space_name, genotype, config)
        drawn_params, undrawn_params = _part(params, shapes)
        assert jax.tree.map(jnp.shape, drawn_params) == jax.tree.map(jnp.shape, shapes)
        (_, expected), expected_gradient = static(drawn_params, x)
        assert np.ptp(expected) > 1e-6
        assert_close(outputs, expected)
        drawn_gradient, undrawn_gradient = _part(gradient, shapes)
        assert_close(drawn_gradient, expected_gradient)
        assert len(undrawn_gradient) == len(undrawn_params) > 0
        for leaf in undrawn_gradient:
            np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


def test_cell_of_none_alone_ignores_its_input(float64):
    config = _config("lecun")
    space = get_space("nasbench201")
    params = _as_float64(_one_shot_params("nasbench201", config))
    params["classifier"] = {**params["classifier"], "bias": jnp.arange(10.0)}
    weights = _as_float64(space.one_hot(np.zeros(6, int)))
    expected = np.tile(np.arange(10.0), (3, 1))
    bias_gradient = (np.cos(expected) * np.arange(1.0, 31.0).reshape(3, 10)).sum(0)
    for mixture in ("drawn", "full"):
        one_shot = _one_shot("nasbench201", mixture, config)
        (_, outputs), (gradient, weights_gradient) = one_shot(params, weights, _images())
        np.testing.assert_array_equal(outputs, expected)
        assert_close(gradient["classifier"].pop("bias"), bias_gradient)
        # The last ReLU stands at its kink, where its derivative is zero: nothing moves.
        for leaf in jax.tree.leaves((gradient, weights_gradient)):
            np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))
    static, shapes = _static("nasbench201", np.zeros(6, int), config)
    assert "stage_0_cell_0" not in shapes
    (_, outputs), _ = static(_part(params, shapes)[0], _images())
    np.testing.assert_array_equal(outputs, expected)


# --- what a drawn mixture refuses ---------------------------------------------------------------


def _second_derivatives(loss):
    """Traceable functions of (params, weights) that differentiate the weights twice, or forward."""

    def gradient(params, weights):
        return jax.grad(loss, 1)(params, weights)

    def total(tree):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))

    return {
        "grad of grad": lambda p, w: jax.grad(lambda w: total(gradient(p, w)))(w),
        "jvp of grad": lambda p, w: jax.jvp(lambda w: gradient(p, w), (w,), (w,))[1],
        "hessian": lambda p, w: jax.hessian(lambda w: loss(p, w))(w),
        "weights after params": lambda p, w: jax.grad(lambda w: total(jax.grad(loss, 0)(p, w)))(w),
    }


@pytest.mark.parametrize("space_name", sorted(NUM_CELLS))
@pytest.mark.parametrize(
    "order", ["grad of grad", "jvp of grad", "hessian", "weights after params"]
)
def test_weights_cannot_be_differentiated_twice_silently(space_name, order):
    config = _config("lecun")
    loss = _one_shot_loss(space_name, "drawn", config)
    x = jnp.zeros((3, 8, 8, 3))
    second = _second_derivatives(lambda p, w: loss(p, w, x)[0])[order]
    weights = zero_logits(get_space(space_name).decisions)
    with pytest.raises(NotImplementedError, match="mixture='full'"):
        jax.eval_shape(second, _one_shot_params(space_name, config), weights)


@pytest.mark.parametrize("space_name", sorted(NUM_CELLS))
def test_weights_cannot_be_differentiated_forward_silently(space_name):
    config = _config("lecun")
    loss = _one_shot_loss(space_name, "drawn", config)
    params, x = _one_shot_params(space_name, config), jnp.zeros((3, 8, 8, 3))
    weights = zero_logits(get_space(space_name).decisions)

    def slope(weights):
        return jax.jvp(lambda w: loss(params, w, x)[0], (weights,), (weights,))[1]

    with pytest.raises((NotImplementedError, TypeError), match="forward"):
        jax.jit(slope).lower(weights)


# --- other types, and what a network refuses ----------------------------------------------------


@pytest.mark.parametrize("space_name", sorted(NUM_CELLS))
def test_initial_parameters_are_float32_whatever_the_default(float64, space_name):
    """By Flax, which draws in JAX's default type unless told otherwise."""
    space = get_space(space_name)
    genotype = np.asarray(space.sample(jax.random.key(0)))
    config = LayerConfig(use_affine=True)
    network = static_network(space_name, genotype, channels=2, num_cells=1, config=config)
    x = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
    params = jax.eval_shape(network.init, jax.random.key(0), x)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}


@pytest.mark.parametrize("types", [("bfloat16", "bfloat16"), ("float32", "bfloat16")])
@pytest.mark.parametrize("space_name", sorted(NUM_CELLS))
def test_drawn_gradients_have_the_types_of_what_they_are_for(space_name, types):
    """Weights stay float32 where the network computes in bfloat16."""
    params_type, x_type = types
    config = _config("lecun", "batch")
    params = jax.tree.map(lambda p: p.astype(params_type), _one_shot_params(space_name, config))
    x = _images().astype(x_type)
    weights = jax.tree.map(lambda w: w.astype(jnp.float32), _one_hot(space_name, jax.random.key(0)))
    loss = _one_shot_loss(space_name, "drawn", config)
    gradient = jax.eval_shape(jax.grad(lambda *args: loss(*args)[0], (0, 1)), params, weights, x)
    types = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (params, weights))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), gradient) == types


def test_bfloat16_gradient_is_that_of_float32_but_for_rounding():
    config = _config("lecun")
    params = _one_shot_params("nasbench201", config)
    gradient = _one_shot("nasbench201", "drawn", config)
    weights = {"edges": jnp.eye(5)[jnp.array([3, 0, 2, 4, 1, 3])]}
    x = _images()
    expected = gradient(params, weights, x)[1]
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (params, x))
    actual = gradient(half[0], weights, half[1])[1]
    actual = jax.tree.map(lambda a: a.astype(jnp.float32), actual)
    assert_close(actual, expected, rtol=0.1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: one_shot_network("nasbench201", mixture="drwn"), "Did you mean 'drawn'"),
        (lambda: one_shot_network("darts", mixture="fulll"), "Did you mean 'full'"),
        (lambda: static_network("darts", _darts_genotype(), reduction="strided"), "'stride'"),
        (lambda: static_network("darts", _darts_genotype()[:, :3]), r"shape \[2, 4, 2, 2\]"),
        (lambda: static_network("darts", _darts_genotype() + 5), "must be between 0 and"),
        (lambda: static_network("nasbench201", [3, 3, 3, 3, 3, 5]), r"genotype\[5\]"),
        (lambda: static_network("nasbench201", [3] * 7), r"shape \[6\]"),
    ],
)
def test_bad_networks(make, words):
    with pytest.raises(InputError, match=words):
        make()


def _darts_genotype():
    return get_space("darts").from_string(DARTS_V2)


@pytest.mark.parametrize(
    ("space_name", "shape", "words"),
    [
        ("nasbench201", (2, 10, 8, 3), "multiples of 4, got 10 x 8"),
        ("nasbench201", (8, 8, 3), "got shape"),
        ("darts", (2, 8, 10, 3), "multiples of 4, got 8 x 10"),
        ("darts", (8, 8, 3), "got shape"),
    ],
)
def test_bad_images(space_name, shape, words):
    kwargs = {"reduction": "stride", "num_cells": 3} if space_name == "darts" else {"num_cells": 1}
    genotype = _darts_genotype() if space_name == "darts" else [3] * 6
    network = static_network(space_name, genotype, channels=2, **kwargs)
    with pytest.raises(InputError, match=words):
        jax.eval_shape(network.init, jax.random.key(0), jnp.zeros(shape))


def test_one_shot_network_refuses_bad_images():
    network = one_shot_network("nasbench201", channels=2, num_cells=1)
    weights = {"edges": jnp.zeros((6, 5))}
    with pytest.raises(InputError, match="multiples of 4, got 6 x 6"):
        jax.eval_shape(network.init, jax.random.key(0), weights, jnp.zeros((1, 6, 6, 3)))


# --- published sizes ----------------------------------------------------------------------------


def _num_params(network):
    shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))


@pytest.mark.parametrize(
    "genotype", [[0] * 6, [3] * 6, [2] * 6, [3, 1, 2, 4, 0, 3], [2, 2, 3, 1, 4, 0]]
)
def test_num_params_of_nasbench201(genotype):
    network = static_network(
        "nasbench201", genotype, num_classes=10, config=LayerConfig(use_affine=True)
    )
    assert (network.channels, network.num_cells) == (16, 5)
    # The benchmark's own numbers, 0.073306 M and multiples of 0.24304 M and 0.028 M.
    expected = 73_306 + 243_040 * genotype.count(3) + 28_000 * genotype.count(2)
    assert _num_params(network) == expected


def _darts_evaluation_network(genotype):
    return static_network(
        "darts",
        genotype,
        channels=36,
        num_cells=20,
        config=LayerConfig(use_affine=True),
        reduction="stride",
    )


def test_num_params_of_darts_v2():
    genotype = get_space("darts").from_string(DARTS_V2)
    assert abs(_num_params(_darts_evaluation_network(genotype)) / 1e6 - 3.3) <= 0.05


def test_num_params_of_published_darts_architectures():
    if not GENOTYPES_FILE.exists():
        pytest.skip(f"needs {GENOTYPES_FILE}")
    entries = {entry["name"]: entry for entry in json.loads(GENOTYPES_FILE.read_text())}
    space = get_space("darts")

    def num_params(name):
        text = json.dumps({key: value for key, value in entries[name].items() if key != "name"})
        return _num_params(_darts_evaluation_network(space.from_string(text)))

    assert abs(num_params("PC_DARTS_cifar") / 1e6 - 3.6) <= 0.05
    # Counted by a user of the original code: https://github.com/chenxin061/pdarts/issues/7
    assert num_params("PDARTS") == 3_433_798


def test_strided_reduction_halves_twice():
    genotype = get_space("darts").from_string(DARTS_V2)
    shared = {"channels": 2, "num_cells": 3}
    x = jnp.zeros((2, 8, 8, 3))
    for reduction in ("pool", "stride"):
        network = static_network("darts", genotype, reduction=reduction, **shared)
        variables = jax.eval_shape(network.init, jax.random.key(0), x)
        _, state = jax.eval_shape(
            lambda v, x, network=network: network.apply(
                v, x, capture_intermediates=True, mutable=["intermediates"]
            ),
            variables,
            x,
        )
        shapes = [state["intermediates"][f"cell_{i}"]["__call__"][0].shape[1:] for i in range(3)]
        assert shapes == [(8, 8, 8), (4, 4, 16), (2, 2, 32)]
