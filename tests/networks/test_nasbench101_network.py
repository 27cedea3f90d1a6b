"""NAS-Bench-101 networks: channels, published parameter counts, the function that they compute."""

import csv
import gzip
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lax_convolutions import lax_conv2d, on_lax_convolutions
from quick_jit import quick_jit
from tolerances import assert_close

from nasjax.errors import InputError
from nasjax.networks import LayerConfig, init_params, static_network
from nasjax.networks.nasbench101 import vertex_channels
from nasjax.spaces import get_space, nasbench101
from nasjax.spaces.nasbench101_graphs import OPERATIONS

CONV3, CONV1, POOL = OPERATIONS
# Three vertices share the output's channels unevenly, the first feeds the two others, and the input
# goes to a convolution, to a pool and to the output.
UNEVEN = nasbench101.from_graph(
    [[0, 1, 1, 0, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0] * 5],
    ["input", CONV3, POOL, CONV1, "output"],
)


def _upper(size, pairs):
    matrix = np.zeros((size, size), bool)
    matrix[tuple(zip(*pairs, strict=True))] = True
    return matrix


CHAIN = _upper(4, [(0, 1), (1, 2), (2, 3)])
INNER_BRANCH = _upper(5, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)])
TWO_FEED = _upper(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
THREE_FEED = _upper(5, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)])
WIDEST = _upper(5, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)])
FEEDS_ON = _upper(5, [(0, 1), (0, 3), (1, 2), (1, 4), (2, 3), (3, 4)])


@pytest.mark.parametrize(
    ("matrix", "channels", "expected"),
    [
        (_upper(2, [(0, 1)]), (1, 5), (1, 5)),
        (CHAIN, (8, 16), (8, 16, 16, 16)),
        (CHAIN, (16, 8), (16, 8, 8, 8)),
        (INNER_BRANCH, (8, 16), (8, 16, 16, 16, 16)),
        (TWO_FEED, (16, 8), (16, 4, 4, 8)),
        (TWO_FEED, (8, 15), (8, 8, 7, 15)),
        (THREE_FEED, (8, 8), (8, 3, 3, 2, 8)),
        (THREE_FEED, (8, 15), (8, 5, 5, 5, 15)),
        (WIDEST, (8, 9), (8, 5, 5, 4, 9)),
        (FEEDS_ON, (8, 15), (8, 8, 7, 7, 15)),
    ],
)
def test_channels_are_those_of_the_benchmarks_own_examples(matrix, channels, expected):
    assert vertex_channels(*channels, matrix) == expected


def test_channels_of_random_graphs_never_grow_and_sum_to_the_output():
    space = get_space("nasbench101")
    for seed in range(50):
        graph = nasbench101.to_graph(np.asarray(space.sample(jax.random.key(seed))))
        channels = vertex_channels(7, 64, graph.matrix)
        output = len(graph.matrix) - 1
        inner = range(1, output)
        for source, target in np.argwhere(graph.matrix):
            if source in inner and target in inner:
                assert channels[source] - channels[target] in (0, 1)
                assert channels[source] >= channels[target]
        feeding = [channels[vertex] for vertex in inner if graph.matrix[vertex, output]]
        assert sum(feeding) == (64 if feeding else 0)


# --- published sizes ----------------------------------------------------------------------------


def _rows(name):
    folder = os.environ.get("NASJAX_DATA", Path(__file__).parents[3] / "shared" / "data")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"{path} is not there; set NASJAX_DATA")
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def _num_params(genotype):
    network = static_network("nasbench101", genotype, config=LayerConfig(use_affine=True))
    assert (network.channels, network.num_cells) == (128, 3)
    shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))


def test_num_params_by_hand():
    """A chain of one 3x3 convolution: a projection and the vertex in every module."""
    expected = 27 * 128 + 2 * 128
    before = 128
    for width in (128, 256, 512):
        for _ in range(3):
            expected += before * width + 2 * width + 9 * width * width + 2 * width
            before = width
    expected += 512 * 10 + 10
    chain = nasbench101.from_string(f"101,input|{CONV3}|output")
    assert _num_params(chain) == expected


def test_num_params_of_published_graphs_of_up_to_five_vertices():
    names = {-1: "input", -2: "output", **dict(enumerate(OPERATIONS))}
    for row in _rows("ecnas_nb101_4v5v_4epochs.csv.gz")[::120]:
        vertices = [names[label] for label in json.loads(row["ops"])]
        genotype = nasbench101.from_graph(json.loads(row["adjacency"]), vertices)
        assert _num_params(genotype) == int(row["trainable_params"])


def test_num_params_of_published_graphs_of_seven_vertices():
    for row in _rows("nb101_zc_250.csv.gz")[::12]:
        genotype = nasbench101.from_string(f"{row['adj_upper_triangle21']},{row['ops']}")
        assert _num_params(genotype) == round(1e6 * float(row["params"]))


# --- the function -------------------------------------------------------------------------------


def _block(params, x):
    y = lax_conv2d(x, params["conv"]["kernel"])
    return jnp.maximum(y, 0.0)


def _pool(x, size, stride, padding):
    return jax.lax.reduce_window(
        x,
        -jnp.inf,
        jax.lax.max,
        (1, size, size, 1),
        (1, stride, stride, 1),
        ((0, 0), (padding, padding), (padding, padding), (0, 0)),
    )


def _uneven_module(params, x, channels):
    """The module of ``UNEVEN``, written out for its three vertices."""
    first, second, third = channels
    one = _block(params["vertex_1"], _block(params["projection_1"], x))
    two = one[..., :second] + _block(params["projection_2"], x)
    two = _pool(two, 3, 1, 1)
    three = _block(params["vertex_3"], one[..., :third])
    assert one.shape[-1] == first
    return jnp.concatenate([one, two, three], -1) + _block(params["projection_output"], x)


def _uneven_network(params, x):
    x = _block(params["stem"], x)
    for stage, channels in enumerate([(2, 1, 1), (3, 3, 2), (6, 5, 5)]):
        x = _pool(x, 2, 2, 0) if stage else x
        for cell in range(2):
            x = _uneven_module(params[f"stage_{stage}_cell_{cell}"], x, channels)
    return x.mean((1, 2)) @ params["classifier"]["kernel"] + params["classifier"]["bias"][None]


def test_network_is_its_definition_written_out(float64):
    config = LayerConfig("he", "none")
    network = static_network("nasbench101", UNEVEN, channels=4, num_cells=2, config=config)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 8, 3)))
    with jax.enable_x64(False):
        params = init_params(jax.random.key(1), network, jnp.zeros((1, 8, 8, 3)))
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
    loss = [
        lambda params, apply=apply: jnp.sum(jnp.sin(apply(params)) * jnp.arange(10.0)[None])
        for apply in (
            lambda params: network.apply({"params": params}, x),
            lambda params: _uneven_network(params, x),
        )
    ]
    actual, expected = (quick_jit(jax.value_and_grad(fn))(params) for fn in loss)
    assert abs(float(expected[0])) > 1e-3
    assert_close(actual, expected)


def test_superfluous_vertices_change_nothing():
    space = get_space("nasbench101")
    genotype = space.sample(jax.random.key(3))
    canonical = space.canonical(genotype)
    assert not np.array_equal(genotype, canonical)
    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    shapes = [
        jax.eval_shape(static_network("nasbench101", g, channels=8, num_cells=1).init, key, x)
        for g, key in ((genotype, jax.random.key(1)), (canonical, jax.random.key(2)))
    ]
    sizes = [sorted(leaf.shape for leaf in jax.tree.leaves(tree)) for tree in shapes]
    assert sizes[0] == sizes[1]


def test_batch_normalised_network_of_every_operation():
    network = static_network("nasbench101", UNEVEN, channels=4, num_cells=1, num_classes=7)
    x = jax.random.normal(jax.random.key(0), (4, 8, 8, 3))
    params = init_params(jax.random.key(1), network, x)
    outputs = quick_jit(on_lax_convolutions(network.apply))({"params": params}, x)
    assert outputs.shape == (4, 7)
    assert np.isfinite(outputs).all()
    assert np.ptp(outputs, axis=0).min() > 1e-3


# --- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("genotype", "message"),
    [
        (np.zeros(26, int), "must lead from input to output"),
        (np.ones(26, int), "at most 9 edges .* got 21"),
        (np.zeros(25, int), r"must be integers of shape \[26\]"),
        (np.full(26, 3), "must be between 0 and 1, got 3"),
    ],
)
def test_bad_genotypes(genotype, message):
    with pytest.raises(InputError, match=message):
        static_network("nasbench101", genotype)


def test_too_few_channels_and_bad_images():
    network = static_network("nasbench101", UNEVEN, channels=2, num_cells=1)
    with pytest.raises(InputError, match="must be at least 3, .* got 2. Give the network more"):
        jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 8, 8, 3)))
    network = static_network("nasbench101", UNEVEN, channels=4, num_cells=1)
    with pytest.raises(InputError, match="multiples of 4, got 6 x 8"):
        jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 6, 8, 3)))
