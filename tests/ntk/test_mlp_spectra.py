"""Spectra of many kernels: one by one, against neural-tangents, and what is refused."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.ntk import mlp_lambda_min, mlp_ntk, mlp_spectra, mlp_trace_bound, spectrum
from nasjax.ntk.mlp_spectra import _diagonal_program, _kernel_program, _on_sphere
from nasjax.ntk.sphere_kernel import common_norm, interpolated, is_resolved, pair_angles
from nasjax.spaces import mlp_space
from nasjax.spaces.mlp import ACTIVATION_NAMES, split_genotype


def _points(num, num_features=5, seed=0):
    """Rows of norm 1."""
    x = np.random.default_rng(seed).normal(size=(num, num_features))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _architectures(num, depth=5, seed=0):
    space = mlp_space(depth)
    return np.asarray(jax.vmap(space.sample)(jax.random.split(jax.random.key(seed), num)))


@pytest.mark.parametrize("method", ["exact", "lemma1"])
def test_as_one_by_one(float64, method):
    genotypes, x = _architectures(7), _points(12)
    found = mlp_spectra(genotypes, x, method=method, chunk=4)
    assert len(np.unique(found.lambda_min)) == 7
    for row, genotype in enumerate(genotypes):
        kernel = mlp_ntk(*split_genotype(genotype), jnp.asarray(x), method=method).ntk
        alone = spectrum(kernel)
        for name in ("lambda_min", "lambda_max", "trace"):
            assert getattr(found, name)[row] == pytest.approx(getattr(alone, name), rel=1e-10)
    np.testing.assert_array_equal(
        mlp_lambda_min(genotypes, x, method=method, chunk=4), found.lambda_min
    )


def test_chunks_and_order_change_nothing():
    genotypes, x = _architectures(9), _points(12)
    whole = mlp_lambda_min(genotypes, x, chunk=9)
    order = np.random.default_rng(1).permutation(9)
    for chunk in (4, 100):
        shuffled = mlp_lambda_min(genotypes[order], x, chunk=chunk)
        np.testing.assert_allclose(shuffled, whole[order], rtol=1e-11)
    # And the points' order does not matter to eigenvalues.
    np.testing.assert_allclose(mlp_lambda_min(genotypes, x[::-1]), whole, rtol=1e-10)


def test_one_compilation():
    program = _kernel_program("exact")
    x = _points(4, seed=3)
    before = program._cache_size()
    for num in (9, 13, 16, 40):
        assert mlp_lambda_min(_architectures(num), x, chunk=8).shape == (num,)
    assert program._cache_size() == before + 1


def test_float32_points_do_not_cost_digits():
    """Arrays of any type are computed with in float64, wherever they come from."""
    x = _points(12).astype(np.float32)
    genotypes = _architectures(4)
    expected = mlp_lambda_min(genotypes, x.astype(np.float64))
    np.testing.assert_allclose(mlp_lambda_min(genotypes, jnp.asarray(x)), expected, rtol=1e-12)


def _stax_kernel(text, x):
    stax = pytest.importorskip("nasjax.ntk._neural_tangents").neural_tangents().stax
    layers = []
    for layer, name in enumerate(text.split("|")):
        scale = np.sqrt(2.0) if layer else np.sqrt(x.shape[1])
        layers.append(stax.Dense(1, scale, None, parameterization="ntk"))
        layers.append(stax.LeakyRelu(0.01) if name == "leaky_relu" else stax.Relu())
    layers.append(stax.Dense(1, np.sqrt(2.0), None, parameterization="ntk"))
    return np.asarray(stax.serial(*layers)[2](jnp.asarray(x), None, "ntk"))


def test_against_neural_tangents_without_skips(float64):
    x = _points(16, num_features=8)
    texts = ("relu|relu|leaky_relu|relu", "leaky_relu|relu|relu|leaky_relu")
    genotypes = np.array([mlp_space(5).from_string(text) for text in texts])
    found = mlp_spectra(genotypes, x)
    for row, text in enumerate(texts):
        values = np.linalg.eigvalsh(_stax_kernel(text, x))
        # neural-tangents has the root of the rounding on the diagonal, an arc cosine at 1.
        error = 3e-7 * values[-1]
        assert error < 1e-4 * values[0]
        assert found.lambda_min[row] == pytest.approx(values[0], abs=error)
        assert found.lambda_max[row] == pytest.approx(values[-1], abs=error)


# --- on a sphere ---------------------------------------------------------------------------------


def _on_circle(angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


DEEP = [
    "relu|relu|relu|relu|relu|relu|relu|relu|relu",
    "relu|relu+skip|relu+skip|relu+skip|relu+skip|relu+skip|relu+skip|relu+skip|relu+skip",
    "tanh|tanh+skip|tanh+skip|tanh+skip|tanh+skip|tanh+skip|tanh+skip|tanh+skip|tanh+skip",
    "swish|swish+skip|relu+skip|swish+skip|swish+skip|leaky_relu|leaky_relu+skip|tanh+skip|tanh",
    "sigmoid|leaky_relu|sigmoid|relu|leaky_relu+skip|leaky_relu+skip|tanh|leaky_relu+skip|swish",
]


@pytest.mark.parametrize("method", ["exact", "lemma1"])
def test_a_few_angles_give_the_kernel(float64, method):
    """Close and opposite points included, on a sphere that is not the unit one."""
    angles = np.concatenate(
        [np.linspace(0.1, 6, 20), 1 + np.array([1e-7, 1e-3, np.pi, np.pi + 1e-6])]
    )
    x = 1.5 * _on_circle(angles)
    genotypes = np.array([mlp_space(10).from_string(text) for text in DEEP])
    norm = common_norm(x)
    assert norm == pytest.approx(1.5)
    found = list(_on_sphere("test", method, genotypes, x, norm, None, 2**30))
    whole = np.asarray(_kernel_program(method)(genotypes, x))
    for kernel, expected in zip(found, whole, strict=True):
        np.testing.assert_array_equal(kernel, kernel.T)
        np.testing.assert_allclose(kernel, expected, atol=1e-9 * expected.max(), rtol=0)


def test_angles_do_not_lose_digits():
    turns = np.array([0.0, 1e-9, 1e-4, 1.0, np.pi - 1e-9, np.pi])
    found = pair_angles(3 * _on_circle(turns))[: len(turns)]
    np.testing.assert_allclose(found, turns, rtol=1e-6, atol=1e-16)
    assert found[0] == 0.0


def test_too_few_angles_are_noticed():
    """``1 / (0.01 + angle^2)``, whose polynomials converge slowly."""
    for num_angles, expected in ((33, False), (385, True)):
        angles = np.pi * np.sin(np.pi / 2 * np.arange(num_angles) / (num_angles - 1)) ** 2
        values = np.stack([1 / (0.01 + angles**2), np.cos(angles)])
        np.testing.assert_array_equal(is_resolved(values), [expected, True])
        if expected:
            places = np.array([0.0, 0.05, 1.0, 3.0, np.pi])
            exact = np.stack([1 / (0.01 + places**2), np.cos(places)])
            np.testing.assert_allclose(interpolated(values, places), exact, rtol=1e-7)


def test_unresolved_architectures_are_computed_otherwise(monkeypatch):
    """Too few angles for all: the pairs themselves take their place."""
    genotypes, x = _architectures(4), _points(12)
    expected = mlp_lambda_min(genotypes, x)
    module = importlib.import_module("nasjax.ntk.mlp_spectra")  # hidden by its function's name
    monkeypatch.setattr(module, "_NUM_ANGLES", (5, 9))
    np.testing.assert_allclose(mlp_lambda_min(genotypes, x), expected, rtol=1e-10)


def test_which_points_have_one_norm():
    x = _points(20, num_features=300)
    assert common_norm(x) == pytest.approx(1.0)
    assert common_norm(x.astype(np.float32)) == pytest.approx(1.0)
    # The rounding of float32 counts as such in float32 alone.
    assert common_norm(x.astype(np.float32).astype(np.float64)) is None
    for bad in (x * np.linspace(1, 1.1, 20)[:, None], 0 * x, x * np.nan):
        assert common_norm(bad) is None
    assert common_norm(np.eye(3, dtype=int)) == 1.0


# --- failures -----------------------------------------------------------------------------------


def test_failed_kernels_lose():
    genotypes = np.array([mlp_space(3).from_string("relu|tanh+skip")])
    points = _points(3)
    repeated = mlp_spectra(genotypes, np.concatenate([points, points[:1]]))
    assert (repeated.lambda_min[0], repeated.failures) == (0.0, ("singular",))
    assert np.isfinite(repeated.trace[0])
    bad = points.copy()
    bad[1, 2] = np.nan
    for x, failure in ((bad, "non_finite"), (np.zeros((3, 5)), "zero")):
        found = mlp_spectra(genotypes, x)
        assert found.failures == (failure,)
        assert found.lambda_min[0] == found.trace[0] == -np.inf
        assert found.lambda_max[0] == np.inf
    assert np.isnan(mlp_trace_bound(genotypes, bad)[0])


# --- the bound of the trace ---------------------------------------------------------------------


@pytest.mark.parametrize("method", ["exact", "lemma1"])
def test_the_trace_bound_is_the_trace(method):
    genotypes, x = _architectures(5), _points(12) * np.linspace(0.5, 2, 12)[:, None]
    trace = mlp_spectra(genotypes, x, method=method, chunk=4).trace
    for over, divisor in (("features", 5), ("examples", 12)):
        bound = mlp_trace_bound(genotypes, x, method=method, over=over, chunk=4)
        np.testing.assert_allclose(bound, trace / divisor, rtol=1e-11)


def test_when_the_published_bound_holds():
    genotypes = _architectures(4)
    x = _points(12)
    assert (mlp_lambda_min(genotypes, x) <= mlp_trace_bound(genotypes, x)).all()
    # With fewer points than features it need not: for orthogonal points it never does here.
    x = np.eye(12, 120)
    smallest = mlp_lambda_min(genotypes, x)
    assert (smallest > mlp_trace_bound(genotypes, x)).all()
    assert (smallest <= mlp_trace_bound(genotypes, x, over="examples")).all()


def test_the_bound_needs_no_pairs():
    """Thousands of points, whose matrix would take more memory than is allowed."""
    genotypes, x = _architectures(2), np.tile(_points(4), (2000, 1))
    with pytest.raises(InputError, match=r"\(5.2 GiB\) for 8000 points.*Give fewer.*mlp_trace_b"):
        mlp_lambda_min(genotypes, x)
    x[0] *= 2
    with pytest.raises(InputError, match=r"\(19.1 GiB\) for 8000 points and a chunk of 1, got"):
        mlp_lambda_min(genotypes, x)
    with pytest.raises(InputError, match="8000 points and a chunk of 2, got 100000000.*`chunk`"):
        mlp_lambda_min(genotypes, x, chunk=2, memory_budget_bytes=10**8)
    x[0] /= 2
    few = mlp_trace_bound(genotypes, x[:4], over="examples")
    many = mlp_trace_bound(genotypes, x, over="examples", memory_budget_bytes=10**8)
    np.testing.assert_allclose(many, few, rtol=1e-11)


def test_memory_is_forecast_from_above():
    x, num = _points(40) * np.linspace(0.5, 1, 40)[:, None], 8
    genotypes = _architectures(num)
    for program, mapped, pairs in (
        (_kernel_program("exact"), mlp_lambda_min, 40 * 41 // 2),
        (_diagonal_program("exact"), mlp_trace_bound, 40),
    ):
        with jax.enable_x64(True):
            sizes = program.lower(genotypes, x).compile().memory_analysis()
        needed = sizes.temp_size_in_bytes + sizes.output_size_in_bytes
        forecast = 8 * pairs * (32 * num + 48)
        assert needed < forecast < 3 * needed
        mapped(genotypes, x, chunk=num, memory_budget_bytes=forecast)
        with pytest.raises(InputError, match=f"must be at least {forecast} "):
            mapped(genotypes, x, chunk=num, memory_budget_bytes=forecast - 1)


@pytest.mark.parametrize(
    ("genotypes", "x", "words"),
    [
        ([0, 0, 0], np.eye(3), r"depth >= 3, got \[3\]"),
        (np.zeros((2, 4), int), np.eye(3), r"depth >= 3, got \[2, 4\]"),
        (np.zeros((2, 1), int), np.eye(3), r"depth >= 3, got \[2, 1\]"),
        (np.zeros((0, 3), int), np.eye(3), r"depth >= 3, got \[0, 3\]"),
        (np.zeros((2, 3)), np.eye(3), "must be integers, got float64"),
        ([["relu", "relu", "0"]], np.eye(3), "must be integers, got <U"),
        ([[0, 0, 0], [0, 5, 0]], np.eye(3), r"got \[0, 5, 0\] at 1"),
        ([[0, 0, 2]], np.eye(3), r"got \[0, 0, 2\] at 0"),
        ([[0, 0, 0]], np.ones((2, 2, 3)), r"got float64\[2, 2, 3\]. Flatten"),
        ([[0, 0, 0]], np.ones((0, 2)), r"got float64\[0, 2\]"),
        ([[0, 0, 0]], np.ones((2, 2), complex), "real numbers, got complex128"),
    ],
)
def test_bad_arrays(genotypes, x, words):
    for mapped in (mlp_spectra, mlp_trace_bound):
        with pytest.raises(InputError, match=words):
            mapped(np.asarray(genotypes), x)


def test_bad_options():
    genotypes = np.zeros((1, 3), int)
    with pytest.raises(InputError, match="unknown method 'lemma'. Did you mean 'lemma1'"):
        mlp_spectra(genotypes, np.eye(3), method="lemma")
    with pytest.raises(InputError, match="`chunk` must be at least 1, got 0"):
        mlp_spectra(genotypes, np.eye(3), chunk=0)
    with pytest.raises(InputError, match="unknown divisor 'feature'. Did you mean 'features'"):
        mlp_trace_bound(genotypes, np.eye(3), over="feature")


def test_activations_stand_for_what_the_space_says():
    """ReLU's kernel at depth 3 and orthogonal points: 3 on the diagonal."""
    assert ACTIVATION_NAMES[0] == "relu"
    bound = mlp_trace_bound(np.array([[0, 0, 0]]), np.eye(4), over="examples")
    assert bound[0] == pytest.approx(3.0, rel=1e-12)
