"""Infinite-width kernels against wide networks, a scalar reference, and neural-tangents."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from quick_jit import quick_jit
from scipy.special import expit
from tolerances import NUM_STANDARD_ERRORS, assert_close

from nasjax.errors import InputError
from nasjax.networks import one_shot_network
from nasjax.ntk.mlp_kernel import MLP_METHODS, mlp_ntk
from nasjax.spaces import mlp_space
from nasjax.spaces.mlp import split_genotype


def _points(num, num_features=5, seed=0):
    """Rows of norm 1."""
    x = np.random.default_rng(seed).normal(size=(num, num_features))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _genotype(text):
    return mlp_space(text.count("|") + 2).from_string(text)


@functools.cache
def _compiled(method):
    """One program for all architectures of a depth."""
    return quick_jit(functools.partial(mlp_ntk, method=method))


def _kernel(text, x, x2=None, *, method="exact"):
    return _compiled(method)(*split_genotype(_genotype(text)), jnp.asarray(x), x2)


@functools.cache
def _compiled_gradient():
    """Of a weighted sum of the kernel by the inputs."""

    def loss(x, weights, activations, skips):
        return jnp.vdot(weights, mlp_ntk(activations, skips, x).ntk)

    return quick_jit(jax.grad(loss))


def _gradient(text, x, weights):
    return _compiled_gradient()(x, weights, *split_genotype(_genotype(text)))


# --- a scalar reference -------------------------------------------------------------------------

_G = np.arange(-9.0, 9.01, 0.03)
_WEIGHT = 0.03 * np.exp(-_G * _G / 2) / np.sqrt(2 * np.pi)
_SMOOTH = {
    "sigmoid": (lambda z: expit(z) - 0.5, lambda z: expit(z) * expit(-z)),
    "tanh": (np.tanh, lambda z: 1 / np.cosh(z) ** 2),
    "swish": (lambda z: z * expit(z), lambda z: expit(z) * (1 + z * expit(-z))),
}


def _expectation(u, v, v1, v2, c):
    """``E[u(.) v(.)]`` by the trapezoidal rule in the plane."""
    rest = np.sqrt(max(v2 - c * c / v1, 0.0))
    inner = v(c / np.sqrt(v1) * _G[:, None] + rest * _G[None]) @ _WEIGHT
    return float((_WEIGHT * u(np.sqrt(v1) * _G)) @ inner)


def _dual(name, v1, v2, c):
    """``E[s s]``, ``E[s' s']``, ``E[s]`` of the first argument."""
    if name in _SMOOTH:
        s, slope = _SMOOTH[name]
        mean = float(_WEIGHT @ s(np.sqrt(v1) * _G))
        return _expectation(s, s, v1, v2, c), _expectation(slope, slope, v1, v2, c), mean
    eta = {"relu": 0.0, "leaky_relu": 0.01}[name]
    angle = np.arccos(np.clip(c / np.sqrt(v1 * v2), -1, 1))
    arc = np.sqrt(v1 * v2) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    share = (1 - eta) ** 2
    slopes = eta + share * (np.pi - angle) / (2 * np.pi)
    return eta * c + share * arc, slopes, (1 - eta) * np.sqrt(v1 / (2 * np.pi))


def _layer_covariances(layers, xs, *, is_exact):
    """``A_l``, ``G_l`` and ``D_l`` for one pair of inputs, by their definitions."""
    pairs = ((0, 0), (0, 1), (1, 1))
    covariance = {(i, j): float(xs[i] @ xs[j]) for i, j in pairs}
    plain, means = covariance, [0.0, 0.0]
    history = []
    for layer in layers:
        name, has_skip = layer.removesuffix("+skip"), layer.endswith("+skip")
        duals = {
            (i, j): _dual(name, covariance[i, i], covariance[j, j], covariance[i, j])
            for i, j in pairs
        }
        history.append((covariance[0, 1], plain[0, 1], 2 * duals[0, 1][1], has_skip))
        mean = [duals[0, 0][2], duals[1, 1][2]]
        plain = {pair: 2 * dual[0] for pair, dual in duals.items()}
        if has_skip:
            covariance = {
                (i, j): plain[i, j]
                + covariance[i, j]
                + is_exact * 2 * (mean[i] * means[j] + mean[j] * means[i])
                for i, j in pairs
            }
        else:
            covariance = plain
        means = [m + has_skip * before for m, before in zip(mean, means, strict=True)]
    history.append((covariance[0, 1], plain[0, 1], None, False))
    return history


def _scalar_ntk(text, xs, method):
    """The sum over layers of the gradient's inner products, written out."""
    history = _layer_covariances(text.split("|"), xs, is_exact=method == "exact")
    position = 0 if method == "exact" else 1
    total = history[-1][position]
    for layer, entry in enumerate(history[:-1]):
        term = entry[position] * entry[2]
        for _, _, slopes, has_skip in history[layer + 1 : -1]:
            term *= slopes + has_skip
        total += term
    return history[-1][0], total


@pytest.mark.parametrize("method", sorted(MLP_METHODS))
@pytest.mark.parametrize(
    "text",
    [
        "relu|leaky_relu+skip|sigmoid|tanh+skip|swish+skip",
        "swish|relu+skip|leaky_relu+skip|sigmoid+skip|tanh",
        "tanh|swish+skip",
    ],
)
def test_against_a_scalar_reference(float64, method, text):
    x = _points(3) * np.array([[1.0], [0.3], [2.0]])
    actual = _kernel(text, x, method=method)
    for i in range(3):
        for j in range(3):
            nngp, ntk = _scalar_ntk(text, (x[i], x[j]), method)
            np.testing.assert_allclose(actual.nngp[i, j], nngp, rtol=1e-8)
            np.testing.assert_allclose(actual.ntk[i, j], ntk, rtol=1e-8)


# --- wide networks ------------------------------------------------------------------------------

LAST_ACTIVATIONS = ("relu", "leaky_relu", "sigmoid", "tanh", "swish")
SKIPS = [f"{name}|{name}+skip" for name in LAST_ACTIVATIONS]
PLAIN = [f"{name}|{name}" for name in LAST_ACTIVATIONS]
DEEP = [
    "relu|relu+skip|relu+skip|relu+skip",
    "swish|relu+skip|tanh+skip|leaky_relu+skip",
    "relu|swish|swish+skip|relu+skip",
    "sigmoid|leaky_relu|tanh+skip|swish",
]


@functools.cache
def _networks(num_outputs, initialization, width):
    """Compiled ``(keys, weights, x) -> [draws, batch, outputs, batch, outputs]``, float32."""
    network = one_shot_network(
        "mlp", width=width, num_outputs=num_outputs, initialization=initialization
    )

    def kernel(key, weights, x):
        shapes, structure = jax.tree.flatten(
            jax.eval_shape(network.init, jax.random.key(0), weights, x)["params"]
        )
        keys = jax.random.split(key, len(shapes))
        params = structure.unflatten(
            network.config.kernel_init(leaf_key, leaf.shape)
            for leaf_key, leaf in zip(keys, shapes, strict=True)
        )

        def jacobian(example):
            return jax.jacrev(lambda p: network.apply({"params": p}, weights, example[None])[0])(
                params
            )

        leaves = jax.tree.leaves(lax.map(jacobian, x))
        rows = [leaf.reshape(len(x) * num_outputs, -1) for leaf in leaves]
        matrix = sum(jnp.dot(row, row.T, precision=lax.Precision.HIGHEST) for row in rows)
        return matrix.reshape(len(x), num_outputs, len(x), num_outputs)

    return jax.jit(
        lambda keys, weights, x: lax.map(lambda key: kernel(key, weights, x), keys),
    )


def _kernels_of_networks(
    text, x, *, width, num_draws, num_outputs=1, initialization="ntk"
) -> np.ndarray:
    """Empirical kernels at initialisation: ``[draws, batch, outputs, batch, outputs]``."""
    space = mlp_space(text.count("|") + 2)
    keys = jax.random.split(jax.random.key(5), num_draws)
    weights = space.one_hot(space.from_string(text))
    draws = _networks(num_outputs, initialization, width)
    return np.array(draws(keys, weights, jnp.asarray(x, jnp.float32)), np.float64)


def _assert_within_errors(draws, expected, bias):
    """The mean of the draws, but for ``bias``, the share of the largest entry that width leaves."""
    standard_error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    limit = NUM_STANDARD_ERRORS * standard_error + bias * np.abs(expected).max()
    assert (np.abs(draws.mean(axis=0) - expected) <= limit).all()


def _check_against_networks(text, *, width, num_draws, bias):
    x = _points(4)
    draws = _kernels_of_networks(text, x, width=width, num_draws=num_draws)[:, :, 0, :, 0]
    exact, lemma1 = (np.asarray(_kernel(text, x, method=m).ntk, float) for m in ("exact", "lemma1"))
    _assert_within_errors(draws, exact, bias)
    # The networks can tell: what is published is outside, wherever there are skips.
    if "skip" in text:
        with pytest.raises(AssertionError):
            _assert_within_errors(draws, lemma1, bias)
    else:
        assert_close(lemma1, exact)


@pytest.mark.parametrize("text", [*SKIPS, "relu|swish"])
def test_wide_networks(text):
    _check_against_networks(text, width=600, num_draws=40, bias=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("text", PLAIN + SKIPS + DEEP)
def test_wider_networks(text):
    _check_against_networks(text, width=3000, num_draws=16, bias=2e-3)


def test_which_terms_the_published_lemma_lacks(float64):
    """For an odd activation only ``A`` in place of ``G``; for the others means as well."""
    x = _points(4)
    for text in SKIPS:
        exact, lemma1 = (_kernel(text, x, method=method) for method in ("exact", "lemma1"))
        if text.startswith(("sigmoid", "tanh")):
            assert_close(lemma1.nngp, exact.nngp)
        else:
            # At depth 3 there is one skip: 4 E[s_1] E[s_2].
            first, second = (
                _dual(text.split("|")[0], v, v, v)[2]
                for v in (1.0, float(2 * _dual(text.split("|")[0], 1.0, 1.0, 1.0)[0]))
            )
            np.testing.assert_allclose(exact.nngp - lemma1.nngp, 4 * first * second, rtol=1e-8)
        # The last layer's features hold the skip, with the kernel A_2.
        previous = 2 * np.array(
            [[_dual(text.split("|")[0], 1.0, 1.0, c)[0] for c in row] for row in x @ x.T]
        )
        missing = np.asarray(exact.nngp - lemma1.nngp) + previous
        np.testing.assert_allclose(exact.ntk - lemma1.ntk, missing, rtol=1e-8)


def test_outputs_are_independent():
    """The kernel of several outputs is the kernel of one times the identity."""
    x, text = _points(3), "relu|swish+skip"
    draws = _kernels_of_networks(text, x, width=600, num_draws=30, num_outputs=2)
    expected = np.einsum("ij,kl->ikjl", np.asarray(_kernel(text, x).ntk, float), np.eye(2))
    _assert_within_errors(draws, expected, 5e-3)


def test_theorem_2_initialisation():
    """With variance 1 / width and no factor 2, a chain of ReLUs has ``2^(1 - L)`` of the kernel."""
    x, text = _points(3), "relu|relu"
    draws = _kernels_of_networks(text, x, width=500, num_draws=40, initialization="theory")
    expected = np.asarray(_kernel(text, x).ntk, float) / 2**2
    _assert_within_errors(draws[:, :, 0, :, 0], expected, 1e-2)


# --- neural-tangents ----------------------------------------------------------------------------


def test_against_neural_tangents_on_relu_chains(float64):
    stax = pytest.importorskip("nasjax.ntk._neural_tangents").neural_tangents().stax
    x = _points(4) * np.array([[1.0], [0.5], [2.0], [1.0]])
    for text in ("relu|relu|relu", "leaky_relu|relu|leaky_relu|relu"):
        layers = []
        for layer, name in enumerate(text.split("|")):
            scale = np.sqrt(2.0) if layer else np.sqrt(x.shape[1])
            layers.append(stax.Dense(1, scale, None, parameterization="ntk"))
            layers.append(stax.Relu() if name == "relu" else stax.LeakyRelu(0.01))
        layers.append(stax.Dense(1, np.sqrt(2.0), None, parameterization="ntk"))
        expected = stax.serial(*layers)[2](jnp.asarray(x), None, ("nngp", "ntk"))
        actual = _kernel(text, x)
        # Off by the root of the rounding where an input meets itself: its angle is an arc cosine.
        assert_close(actual.nngp, expected.nngp, rtol=1e-7)
        assert_close(actual.ntk, expected.ntk, rtol=1e-7)


# --- properties ---------------------------------------------------------------------------------


def test_one_program_serves_all_architectures(float64):
    space, x = mlp_space(6), jnp.asarray(_points(5))
    genotypes = jax.vmap(space.sample)(jax.random.split(jax.random.key(0), 12))
    one = quick_jit(lambda genotype: mlp_ntk(*split_genotype(genotype), x))
    mapped = quick_jit(jax.vmap(lambda genotype: mlp_ntk(*split_genotype(genotype), x)))(genotypes)
    for i, genotype in enumerate(genotypes):
        kernel = one(genotype)
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], mapped), kernel)
        for matrix in kernel:
            np.testing.assert_array_equal(matrix, matrix.T)
            assert np.linalg.eigvalsh(matrix)[0] > 0
    assert one._cache_size() == 1
    assert len(np.unique(np.asarray(mapped.ntk)[:, 0, 0])) == 12


@pytest.mark.parametrize("method", sorted(MLP_METHODS))
def test_two_sets_of_inputs_are_a_block(float64, method):
    x, x2 = _points(4), _points(3, seed=1) * 2
    text = "swish|relu+skip|tanh+skip"
    whole = _kernel(text, np.concatenate([x, x2]), method=method)
    block = _kernel(text, x, jnp.asarray(x2), method=method)
    assert_close(block, jax.tree.map(lambda matrix: matrix[:4, 4:], whole))
    assert_close(
        _kernel(text, x, method=method), jax.tree.map(lambda matrix: matrix[:4, :4], whole)
    )


def test_float32_is_near_float64(float64):
    x = _points(8)
    text = "swish|relu+skip|tanh+skip|leaky_relu|sigmoid+skip"
    single = _kernel(text, x.astype(np.float32))
    assert single.ntk.dtype == np.float32
    double = _kernel(text, x)
    assert_close(jax.tree.map(lambda matrix: matrix.astype(jnp.float64), single), double, rtol=3e-6)


@pytest.mark.parametrize("name", LAST_ACTIVATIONS)
def test_dead_and_repeated_inputs(float64, name):
    x = _points(3)
    x = np.concatenate([x, x[:1], np.zeros((1, 5))])
    text = f"{name}|{name}+skip|relu"
    kernel = _kernel(text, x)
    for matrix in kernel:
        # No input, no output and no gradient: also at ReLU's kink, where A_l is 0.
        np.testing.assert_array_equal(matrix[4], np.zeros(5))
        np.testing.assert_allclose(matrix[3, :4], matrix[0, :4], rtol=1e-13)
        np.testing.assert_allclose(matrix[3, 3], matrix[0, 3], rtol=1e-13)
    assert np.isfinite(_gradient(text, jnp.asarray(x), jnp.ones((5, 5)))).all()


def test_derivative_by_the_inputs(float64):
    x = jnp.asarray(_points(3))
    direction = jnp.asarray(_points(3, seed=2))
    weights = jnp.asarray(np.random.default_rng(4).normal(size=(3, 3)))
    text = "relu|swish+skip|tanh+skip|leaky_relu"

    slope = jnp.vdot(_gradient(text, x, weights), direction)
    above, below = (_kernel(text, x + step * direction).ntk for step in (1e-5, -1e-5))
    numeric = jnp.vdot(weights, above - below) / 2e-5
    np.testing.assert_allclose(slope, numeric, rtol=1e-6)


@pytest.mark.parametrize(
    ("activations", "skips", "shape", "words"),
    [
        ([0, 1, 2], [0, 0, 0], (2, 3), r"depth >= 3, got \[3\] and \[3\]"),
        ([0], [], (2, 3), r"depth >= 3, got \[1\] and \[0\]"),
        ([[0, 1]], [0], (2, 3), r"got \[1, 2\] and \[1\]"),
        ([0, 5], [0], (2, 3), "`activations` must be between 0 and 4, got 5"),
        ([0, -1], [0], (2, 3), "`activations` must be between 0 and 4, got -1"),
        ([0, 1], [2], (2, 3), "`skips` must be between 0 and 1, got 2"),
        ([0, 1], [1], (2, 3, 1), r"got \[2, 3, 1\]. Flatten images first"),
    ],
)
def test_bad_arguments(activations, skips, shape, words):
    with pytest.raises(InputError, match=words):
        mlp_ntk(np.array(activations), np.array(skips, int), jnp.zeros(shape))


def test_more_bad_arguments():
    with pytest.raises(InputError, match=r"got \[2, 3\] and \[2, 4\]"):
        mlp_ntk(np.array([0, 1]), np.array([0]), jnp.zeros((2, 3)), jnp.zeros((2, 4)))
    with pytest.raises(InputError, match="`activations` must be integers, got \\['relu'"):
        mlp_ntk(["relu", "relu"], np.array([0]), jnp.zeros((2, 3)))
    whole = mlp_ntk(np.array([0, 1]), np.array([0]), np.eye(2, dtype=int))
    np.testing.assert_array_equal(
        whole.ntk, mlp_ntk(np.array([0, 1]), np.array([0]), jnp.eye(2)).ntk
    )
    with pytest.raises(InputError, match="unknown method 'lemma'. Did you mean 'lemma1'"):
        mlp_ntk(np.array([0, 1]), np.array([0]), jnp.zeros((2, 3)), method="lemma")
