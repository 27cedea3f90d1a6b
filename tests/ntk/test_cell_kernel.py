"""Kernels of infinitely wide cells against wide networks, dense matrices and closed forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_jit import quick_jit
from tolerances import NUM_STANDARD_ERRORS, assert_close

from nasjax.errors import InputError
from nasjax.networks import LayerConfig, static_network
from nasjax.ntk._neural_tangents import neural_tangents
from nasjax.ntk.cell_kernel import (
    CONVOLUTIONS,
    METHODS,
    POOLS,
    cell_network_memory_bytes,
    cell_network_ntk,
)
from nasjax.ntk.pixel_kernel import (
    conv_kernel,
    halve_kernel,
    image_kernel,
    image_pairs,
    pool_kernel,
    relu_kernel,
)
from nasjax.spaces import nasbench201

# In the order of nasbench201.EDGES: 1<-0, 2<-0, 2<-1, 3<-0, 3<-1, 3<-2.
NONE, SKIP, CONV1, CONV3, POOL = range(5)
DEAD = (CONV3, POOL, NONE, NONE, NONE, NONE)
PARALLEL_SKIPS = (SKIP, NONE, NONE, SKIP, SKIP, NONE)
# Nodes x, P x, x + P x, and x + P P x + convolution(x + P x), where P is the pool.
MIXTURE = (POOL, SKIP, SKIP, SKIP, POOL, CONV3)
CELLS = {
    "skip": (NONE, NONE, NONE, SKIP, NONE, NONE),
    "1x1": (NONE, NONE, NONE, CONV1, NONE, NONE),
    "3x3": (NONE, NONE, NONE, CONV3, NONE, NONE),
    "pool": (NONE, NONE, NONE, POOL, NONE, NONE),
    "parallel skips": PARALLEL_SKIPS,
    "skip beside pool": (SKIP, NONE, NONE, POOL, SKIP, NONE),
    "pools in a row beside one and none": (POOL, SKIP, POOL, POOL, NONE, SKIP),
    "convolution after skip beside another": (SKIP, NONE, NONE, CONV3, CONV3, NONE),
    "one convolution by two ways": (CONV3, NONE, SKIP, NONE, SKIP, POOL),
    "convolutions only": (CONV3, CONV1, CONV3, CONV3, CONV1, CONV3),
    "mixture": MIXTURE,
    "no two branches of one source": (CONV3, POOL, SKIP, SKIP, POOL, CONV3),
    "pool of a sum": (CONV1, SKIP, POOL, NONE, CONV3, POOL),
}


def _edges(genotype):
    return nasbench201.describe(np.array(genotype))[0].edges


@functools.cache
def _kernel_fn(genotype, num_cells=1, method="exact"):
    return quick_jit(
        functools.partial(cell_network_ntk, _edges(genotype), num_cells=num_cells, method=method)
    )


def _images(num_examples, *, size=4, seed=0, dtype=np.float32):
    """Images with something in common, so that their kernels are far from zero."""
    rng = np.random.default_rng(seed)
    common = 0.7 * rng.normal(size=(1, size, size, 3))
    return (common + rng.normal(size=(num_examples, size, size, 3))).astype(dtype)


# --- wide networks ------------------------------------------------------------------------------


def _finite_kernels(genotype, channels, x, *, num_cells, num_seeds):
    """NNGP and NTK of networks drawn from their initial distribution: two ``[seeds, m, m]``."""
    config = LayerConfig("ntk", "none")
    network = static_network(
        "nasbench201",
        np.array(genotype),
        channels=channels,
        num_cells=num_cells,
        num_classes=1,
        config=config,
    )
    shapes = jax.eval_shape(network.init, jax.random.key(0), x)["params"]
    gradient_fn = jax.jit(
        jax.grad(lambda params, x: network.apply({"params": params}, x[None])[0, 0])
    )
    rng = np.random.default_rng(channels)
    nngp, ntk = np.zeros((2, num_seeds, len(x), len(x)))
    for seed in range(num_seeds):
        # The classifier's bias starts at zero and is the only leaf with one axis.
        params = jax.tree.map(
            lambda leaf: rng.standard_normal(leaf.shape, np.float32) * (leaf.ndim > 1), shapes
        )
        rows = [gradient_fn(params, image) for image in x]
        ntk[seed] = _gram(rows)
        # The gradient by the classifier's kernel is its input over the root of its width.
        nngp[seed] = _gram([row["classifier"]["kernel"] for row in rows])
    return nngp, ntk


def _gram(trees):
    vectors = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in trees]
    return np.array([[a @ b for b in vectors] for a in vectors])


def _entries(kernels):
    """Of ``[..., 2, 2]``: three entries, and two of them as shares of the first.

    Entries of one network rise and fall together, so that their shares are known more sharply.
    """
    entries = kernels[..., [0, 0, 1], [0, 1, 1]]
    return np.concatenate([entries, entries[..., 1:] / entries[..., :1]], axis=-1)


def _moments(samples):
    """Mean of ``_entries`` over networks, and its standard error; shares are ratios of means."""
    mean = samples.mean(0)
    # Leaving one network out at a time gives the standard error of a ratio of means.
    count = len(samples)
    others = _entries((count * mean - samples) / (count - 1))
    return _entries(mean), np.sqrt((count - 1) / count * ((others - others.mean(0)) ** 2).sum(0))


def _exact(genotype, x, **kwargs):
    """Of the first two examples: NNGP, and NTK without the bias, which would hide the rest."""
    nngp, ntk = (np.asarray(leaf, float)[:2, :2] for leaf in _kernel_fn(genotype, **kwargs)(x))
    return {"nngp": nngp, "ntk": ntk - 1}


def _finite(genotype, channels, x, *, num_seeds, num_cells=1):
    nngp, ntk = _finite_kernels(genotype, channels, x, num_cells=num_cells, num_seeds=num_seeds)
    return {"nngp": _moments(nngp), "ntk": _moments(ntk - 1)}


def test_a_wide_network_has_this_kernel():
    x, channels = _images(4), 16
    finite = _finite(MIXTURE, channels, x[:2], num_seeds=150)
    exact = _exact(MIXTURE, x)
    independent = _exact(MIXTURE, x, method="independent")
    for name, (mean, error) in finite.items():
        assert (error < 0.07 * np.abs(mean)).all()
        # One width is off by O(1 / channels); the slow test removes this.
        expected = _entries(exact[name])
        limit = NUM_STANDARD_ERRORS * error + expected / channels
        assert (np.abs(mean - expected) < limit).all(), name
        # Branches taken for independent are far off, so the comparison could have failed.
        assert (mean > 1.5 * _entries(independent[name]))[:3].all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "num_cells", "size"),
    [*((cell, 1, 4) for cell in CELLS), ("mixture", 2, 4), ("mixture", 1, 8), ("pool", 1, 8)],
)
def test_wide_networks_converge_to_this_kernel(cell, num_cells, size):
    x = _images(2, size=size, seed=1)
    sizes = {"num_cells": num_cells}
    narrow = _finite(CELLS[cell], 16, x, num_seeds=500, **sizes)
    wide = _finite(CELLS[cell], 32, x, num_seeds=400, **sizes)
    for name, exact in _exact(CELLS[cell], x, **sizes).items():
        # The part of the deviation that is proportional to 1 / channels cancels.
        mean = 2 * wide[name][0] - narrow[name][0]
        error = np.hypot(2 * wide[name][1], narrow[name][1])
        assert (error < 0.2 * np.abs(mean)).all()
        z = (mean - _entries(exact)) / error
        assert (np.abs(z) < NUM_STANDARD_ERRORS).all(), (name, z, error / mean)


@pytest.mark.slow
def test_the_deviation_falls_with_the_width():
    x = _images(2)
    exact = _entries(_exact(MIXTURE, x)["ntk"])[:3]
    deviations = []
    for channels, num_seeds in ((4, 4000), (32, 1000)):
        mean, error = _finite(MIXTURE, channels, x, num_seeds=num_seeds)["ntk"]
        deviations.append((mean[:3] / exact - 1, error[:3] / exact))
    (narrow, narrow_error), (wide, wide_error) = deviations
    assert (narrow > 2 * narrow_error).all()
    assert (np.abs(wide) < NUM_STANDARD_ERRORS * wide_error).all()
    assert np.abs(wide).mean() < narrow.mean() / 2


def test_a_dead_network_is_its_bias():
    x = _images(3)
    kernel = _kernel_fn(DEAD)(x)
    np.testing.assert_array_equal(kernel.nngp, np.zeros((3, 3)))
    np.testing.assert_array_equal(kernel.ntk, np.ones((3, 3)))
    nngp, ntk = _finite_kernels(DEAD, 4, x, num_cells=1, num_seeds=1)
    np.testing.assert_array_equal(nngp[0], np.zeros((3, 3)))
    np.testing.assert_array_equal(ntk[0], np.ones((3, 3)))


# --- dense matrices -----------------------------------------------------------------------------


class _Dense:
    """The same kernels pair by pair in numpy: explicit matrices of pixels, a map for each source.

    A pair is ``(k11, k12, k22, t12)``: covariances of both images, and the tangent kernel.
    """

    def __init__(self, genotype, height, width):
        self.genotype = genotype
        self.shape = height, width

    def windows(self, stride):
        """For each of nine taps the matrix ``[outputs, pixels]`` of ones and zeros."""
        height, width = self.shape
        taps = np.zeros((9, height // stride, width // stride, height, width))
        for tap, (i, j) in enumerate(np.ndindex(3, 3)):
            for a, b in np.ndindex(taps.shape[1:3]):
                row, column = stride * a + i - 1, stride * b + j - 1
                if 0 <= row < height and 0 <= column < width:
                    taps[tap, a, b, row, column] = 1
        return taps.reshape(9, -1, height * width)

    @staticmethod
    def relu(pair):
        """Activations, and the tangent kernel of activations."""
        covariances, tangent = pair[:3], pair[3]
        variances = [np.diag(pair[0]), np.diag(pair[2])]
        products = []
        for k, (a, b) in zip(covariances, ((0, 0), (0, 1), (1, 1)), strict=True):
            scale = np.sqrt(np.outer(variances[a], variances[b]))
            cosine = np.divide(k, scale, out=np.zeros_like(k), where=scale > 0)
            angle = np.arccos(np.clip(cosine, -1, 1))
            products.append(scale * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi))
            if (a, b) == (0, 1):
                slopes = (np.pi - angle) / (2 * np.pi) * (scale > 0)
        return (*products, slopes * tangent)

    @staticmethod
    def convolve(pair, taps):
        *products, gradient = ((taps @ k @ taps.swapaxes(1, 2)).mean(0) for k in pair)
        return (*products, products[1] + gradient)

    @staticmethod
    def apply(pair, matrix):
        return tuple(matrix @ k @ matrix.T for k in pair)

    def cell(self, pair):
        identity = np.eye(self.shape[0] * self.shape[1])
        window = self.windows(1).sum(0)
        pool = window / window.sum(1, keepdims=True)
        sources = {"input": pair}
        nodes = [{"input": identity}, {}, {}, {}]

        def node_pair(node):
            parts = [self.apply(sources[s], matrix) for s, matrix in nodes[node].items()]
            return tuple(sum(part) for part in zip(*parts, strict=True))

        for edge, (target, source) in enumerate(nasbench201.EDGES):
            operation = self.genotype[edge]
            if operation == NONE or not nodes[source]:
                continue
            branch = nodes[source]
            if operation in (CONV1, CONV3):
                taps = self.windows(1) if operation == CONV3 else identity[None]
                sources[edge] = self.convolve(self.relu(node_pair(source)), taps)
                branch = {edge: identity}
            elif operation == POOL:
                branch = {s: pool @ matrix for s, matrix in branch.items()}
            for s, matrix in branch.items():
                nodes[target][s] = nodes[target].get(s, 0) + matrix
        return node_pair(3) if nodes[3] else tuple(np.zeros_like(k) for k in pair)

    def reduction(self, pair):
        height, width = self.shape
        strided = self.windows(2)
        blocks = np.zeros((height // 2, width // 2, height, width))
        for i, j in np.ndindex(height, width):
            blocks[i // 2, j // 2, i, j] = 1 / 4
        blocks = blocks.reshape(-1, height * width)
        self.shape = height // 2, width // 2
        branch = self.convolve(self.relu(pair), strided)
        branch = self.convolve(self.relu(branch), self.windows(1))
        shortcut = self.convolve(self.apply(pair, blocks), np.eye(len(blocks))[None])
        return tuple(a + b for a, b in zip(branch, shortcut, strict=True))

    def __call__(self, image, other, num_cells=1):
        """NNGP and NTK of two images."""
        a, b = (array.reshape(-1, array.shape[-1]) for array in (image, other))
        products = [p @ q.T / a.shape[-1] for p, q in ((a, a), (a, b), (b, b))]
        pair = self.convolve((*products, np.zeros_like(products[0])), self.windows(1))
        for stage in range(3):
            if stage > 0:
                pair = self.reduction(pair)
            for _ in range(num_cells):
                pair = self.cell(pair)
        pair = self.relu(pair)
        return pair[1].mean(), pair[1].mean() + pair[3].mean() + 1


def _check_dense(genotype, num_cells):
    x = _images(2, dtype=np.float64)[:, :, :, :2]
    x = np.concatenate([x, x[:, ::-1]], axis=2)  # 4 x 8: height and width must not be confused
    kernel = _kernel_fn(genotype, num_cells)(x)
    expected = [[_Dense(genotype, 4, 8)(image, other, num_cells) for other in x] for image in x]
    expected = np.moveaxis(np.array(expected), -1, 0)
    # The angle of an image with itself is the root of a rounding error in the plain formula.
    assert_close(kernel.nngp, jnp.asarray(expected[0]), rtol=1e-7)
    assert_close(kernel.ntk, jnp.asarray(expected[1]), rtol=1e-7)


@pytest.mark.parametrize(
    ("genotype", "num_cells"),
    [(MIXTURE, 2), ((POOL, SKIP, CONV3, SKIP, CONV1, POOL), 1), (DEAD, 1)],
)
def test_equals_dense_matrices(genotype, num_cells, float64):
    _check_dense(genotype, num_cells)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_cells_equal_dense_matrices(seed, float64):
    genotype = np.random.default_rng(seed).integers(0, 5, 6)
    _check_dense(tuple(genotype.tolist()), 1)


# --- closed forms and another implementation ----------------------------------------------------


def test_parallel_skips_multiply_by_four():
    x = _images(3)
    one, two, wrong = (
        _kernel_fn(*arguments)(x).nngp
        for arguments in (
            (CELLS["skip"],),
            (PARALLEL_SKIPS,),
            (PARALLEL_SKIPS, 1, "independent"),
        )
    )
    # The network is homogeneous of degree 1 in each of three cells: (1 + 1)^2, not 1 + 1.
    assert_close(two, 4**3 * one)
    assert_close(wrong, 2**3 * one)


def test_skips_alone_do_nothing():
    x = _images(3)
    skeleton = _kernel_fn(DEAD, 0)(x)
    assert_close(_kernel_fn(CELLS["skip"])(x), skeleton)


@pytest.mark.slow
def test_methods_agree_where_no_branches_meet():
    x = _images(2)
    genotype = (CONV3, NONE, POOL, CONV1, NONE, CONV3)
    kernels = [_kernel_fn(genotype, 1, method)(x) for method in METHODS]
    assert_close(kernels[0], kernels[1])


def test_chain_equals_neural_tangents():
    stax = neural_tangents().stax
    conv3, conv1 = (
        stax.Conv(8, (size, size), padding="SAME", W_std=1.0, b_std=None) for size in (3, 1)
    )
    pool = stax.AvgPool((3, 3), padding="SAME", normalize_edges=True)
    chain = [conv3, pool, stax.Relu(), conv3, pool, pool, stax.Relu(), conv1, stax.Relu()]
    *_, kernel_fn = stax.serial(*chain, stax.GlobalAvgPool(), stax.Dense(1, 1.0, None))
    x = _images(3)
    expected = quick_jit(lambda x: kernel_fn(x, None, ("nngp", "ntk")))(x)

    @quick_jit
    def chain_kernels(x):
        pairs = image_pairs(3)
        kernel = pool_kernel(conv_kernel(image_kernel(x, pairs)), (0, 1))
        kernel = pool_kernel(conv_kernel(relu_kernel(kernel, pairs)), (0, 0, 1))
        kernel = relu_kernel(conv_kernel(relu_kernel(kernel, pairs), size=1), pairs)
        nngp, gradient = (leaf.mean((1, 2, 3, 4))[pairs.index] for leaf in kernel)
        return nngp, nngp + gradient

    nngp, ntk = chain_kernels(x)
    assert_close(nngp, expected.nngp)
    # stax rounds the angle of a pixel with itself.
    assert_close(ntk, expected.ntk, rtol=1e-4)


def test_halving_takes_means_of_blocks():
    x = _images(2)
    pairs = image_pairs(2)
    halved = x.reshape(2, 2, 2, 2, 2, 3).mean((2, 4))
    assert_close(halve_kernel(image_kernel(x, pairs)), image_kernel(halved, pairs))


# --- properties ---------------------------------------------------------------------------------


def test_symmetric_positive_and_equivariant():
    x = _images(4)
    kernel_fn = _kernel_fn(MIXTURE)
    order = np.array([2, 0, 3, 1])
    for matrix, permuted in zip(kernel_fn(x), kernel_fn(x[order]), strict=True):
        matrix = np.asarray(matrix, float)
        np.testing.assert_array_equal(matrix, matrix.T)
        eigenvalues = np.linalg.eigvalsh(matrix)
        assert eigenvalues[0] > 1e-3 * eigenvalues[-1]
        assert_close(permuted, matrix[order][:, order].astype(np.float32))


def test_other_images_are_a_block():
    x = _images(4)
    whole = _kernel_fn(MIXTURE)(x)
    blocks = _kernel_fn(MIXTURE)(x[:2], x[2:])
    assert_close(blocks, jax.tree.map(lambda matrix: matrix[:2, 2:], whole))


def test_repeated_images_and_black_pixels():
    x = _images(2)
    x[1, :3, :2] = 0
    kernel = _kernel_fn(MIXTURE)(np.stack([x[0], x[1], x[0], np.zeros_like(x[0])]))
    for matrix, bias in zip(kernel, (0.0, 1.0), strict=True):
        assert np.isfinite(matrix).all()
        assert_close(matrix[2], matrix[0])
        np.testing.assert_array_equal(matrix[3], np.full(4, bias))
    assert (np.diag(kernel.nngp)[:3] > 0).all()


@pytest.mark.slow
def test_compiled_equals_plain():
    x = _images(4)
    assert_close(_kernel_fn(MIXTURE)(x), cell_network_ntk(_edges(MIXTURE), x))


@pytest.mark.parametrize("mode", ["forward", pytest.param("reverse", marks=pytest.mark.slow)])
def test_gradient_by_images(mode, float64):
    x = _images(2, dtype=np.float64)
    x[1, 1, 1] = 0
    weights = np.array([[1.0, 0.3], [-0.2, 0.7]])
    direction = _images(2, seed=3, dtype=np.float64) * (x != 0)

    def objective(step):
        kernel = cell_network_ntk(_edges(MIXTURE), x + step * direction)
        return (weights * (kernel.ntk + kernel.nngp)).sum()

    def value_and_slope(step):
        if mode == "forward":
            return jax.jvp(objective, (step,), (jnp.ones_like(step),))
        return jax.value_and_grad(objective)(step)

    compiled = quick_jit(value_and_slope)
    step = 1e-5
    difference = compiled(step)[0] - compiled(-step)[0]
    assert_close(compiled(0.0)[1], difference / (2 * step), rtol=1e-6)


def test_gradient_of_a_dead_network_is_zero():
    x = _images(2)
    gradient = quick_jit(jax.grad(lambda x: cell_network_ntk(_edges(DEAD), x).ntk.sum()))(x)
    np.testing.assert_array_equal(gradient, np.zeros_like(x))


def test_edges_in_any_order_between_any_nodes():
    x = _images(4)
    names = {"0": "in", "1": "b", "2": "a", "3": "out"}
    edges = [(names[s], names[t], operation) for s, t, operation in reversed(_edges(MIXTURE))]
    edges += [("in", "out", "none"), ("a", "unused", "avg_pool_3x3")]
    kernel_fn = functools.partial(cell_network_ntk, edges, input_node="in", output_node="out")
    assert_close(quick_jit(kernel_fn)(x), _kernel_fn(MIXTURE)(x))


# --- memory and errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("genotype", "sizes"),
    [
        (CELLS["skip"], (4,)),
        pytest.param(MIXTURE, (3, 2), marks=pytest.mark.slow),
        pytest.param((CONV3,) * 6, (4,), marks=pytest.mark.slow),
    ],
)
def test_memory_forecast(genotype, sizes):
    images = [jax.ShapeDtypeStruct((size, 8, 8, 3), jnp.float32) for size in sizes]
    kernel_fn = jax.jit(functools.partial(cell_network_ntk, _edges(genotype)))
    taken = kernel_fn.lower(*images).compile().memory_analysis().temp_size_in_bytes
    forecast = cell_network_memory_bytes(_edges(genotype), (8, 8), *sizes)
    assert forecast / 2 < taken < forecast


def test_too_large_for_the_budget():
    x = np.zeros((8, 32, 32, 3), np.float32)
    needed = cell_network_memory_bytes(_edges(MIXTURE), (32, 32), 8)
    with pytest.raises(InputError, match=rf"`memory_budget_bytes` must be at least {needed} "):
        jax.eval_shape(functools.partial(cell_network_ntk, _edges(MIXTURE)), x)
    enough = functools.partial(cell_network_ntk, _edges(MIXTURE), memory_budget_bytes=needed)
    assert jax.eval_shape(enough, x).ntk.shape == (8, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edges": [("0", "3", "max_pool_3x3")]}, "unknown operation 'max_pool_3x3'"),
        ({"edges": [("1", "2", "none"), ("2", "1", "skip_connect")]}, "must have no cycle, got"),
        ({"edges": [("1", "0", "none")]}, "must not enter the input node '0'"),
        ({"method": "sum"}, "unknown method 'sum'"),
        ({"edges": [(0, 3, "none")]}, r"must be \(source, target, operation\) strings, got \[\(0"),
        ({"edges": "|none~0|"}, "A cell in words becomes edges by get_space"),
        ({"num_cells": -1}, "`num_cells` must be >= 0, got -1"),
        ({"x": np.zeros((1, 6, 4, 3), np.float32)}, "multiples of 4, got 6 x 4"),
        ({"x": np.zeros((4, 4, 3), np.float32)}, r"must be \[batch, height, width, channels\]"),
        ({"x": np.zeros((0, 4, 4, 3), np.float32)}, r"`x` must hold an image .* float32\[0,"),
        ({"x2": np.zeros((1, 4, 4, 3), np.uint8)}, "`x2` must hold an image .* uint8"),
        ({"x2": np.zeros((1, 8, 4, 3), np.float32)}, "`x2` must have images like those of `x`"),
    ],
)
def test_wrong_arguments(arguments, message):
    defaults = {"edges": _edges(MIXTURE), "x": np.zeros((1, 4, 4, 3), np.float32)}
    with pytest.raises(InputError, match=message):
        cell_network_ntk(**defaults | arguments)


def test_operations_are_those_of_the_space():
    assert {"none", *CONVOLUTIONS, *POOLS} == set(nasbench201.OPERATIONS)
