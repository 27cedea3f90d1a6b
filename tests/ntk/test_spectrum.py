"""Spectra: right to the last eigenvalue, and failures that lose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.ntk import FAILURES, empirical_ntk, spectrum


def kernel_of(eigenvalues, seed=0):
    """A matrix with these eigenvalues, to float64 rounding."""
    size = len(eigenvalues)
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    matrix = (q * eigenvalues) @ q.T
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize("seed", range(5))
def test_lambda_min_at_condition_number_1e8(seed):
    eigenvalues = np.geomspace(1e-8, 1.0, 40)
    found = spectrum(kernel_of(eigenvalues, seed))
    assert found.lambda_min == pytest.approx(1e-8, rel=1e-6)
    assert found.condition_number == pytest.approx(1e8, rel=1e-6)
    assert found.trace == pytest.approx(eigenvalues.sum(), rel=1e-12)
    assert (found.rank, found.failure) == (40, None)
    assert found.residual < 1e-15
    np.testing.assert_allclose(found.eigenvalues, eigenvalues, rtol=1e-6)


def test_by_hand():
    found = spectrum(np.array([[2.0, 1.0], [1.0, 2.0]]))
    assert (found.lambda_max, found.lambda_min) == (pytest.approx(3.0), pytest.approx(1.0))
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert found.effective_rank == pytest.approx(np.exp(entropy))
    assert spectrum(np.eye(7) * 3.0).effective_rank == pytest.approx(7.0)
    assert spectrum(np.array([[5.0]])).condition_number == 1.0


def test_float32_kernels_are_judged_in_float64():
    kernel = kernel_of(np.array([1e-3, 1.0, 2.0])).astype(np.float32)
    found = spectrum(kernel)
    expected = np.linalg.eigvalsh(kernel.astype(np.float64))
    np.testing.assert_allclose(found.eigenvalues, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "failure"),
    [
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "non_finite"),
        (np.array([[np.inf, 0.0], [0.0, 1.0]]), "non_finite"),
        (np.zeros((3, 3)), "zero"),
        (np.array([[1.0, 0.5], [0.4, 1.0]]), "asymmetric"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "asymmetric"),
        (np.array([[0.0, 1.0], [-1.0, 0.0]]), "asymmetric"),
        (np.array([[1.0, 1.0], [1.0, 1.0]]), "singular"),
        (kernel_of(np.array([1e-7, 1.0, 1.0])).astype(np.float32), "singular"),
    ],
)
def test_failures_lose(kernel, failure):
    good, bad = spectrum(np.diag([1e-3, 1.0])), spectrum(kernel)
    assert failure in FAILURES
    assert bad.failure == failure
    assert bad.lambda_min < good.lambda_min
    assert bad.condition_number > good.condition_number
    if failure != "singular":
        assert bad.trace < good.trace
    assert not np.isnan([bad.trace, bad.lambda_max, bad.lambda_min, bad.condition_number]).any()


def test_a_singular_kernel_says_its_rank():
    rows = np.random.default_rng(1).standard_normal((6, 2))
    found = spectrum(rows @ rows.T)
    assert (found.failure, found.rank) == ("singular", 2)
    assert found.lambda_max == pytest.approx(np.linalg.svd(rows)[1][0] ** 2)


@pytest.mark.parametrize("shape", [(0, 0), (2, 3), (2, 2, 3, 3), (4,)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(InputError, match="must be a square matrix"):
        spectrum(np.zeros(shape))


def test_kernels_may_be_as_large_and_as_small_as_numbers():
    for scale in (1e308, 1e-307):
        found = spectrum(scale * (np.eye(2) + 0.5))
        assert found.failure is None
        assert found.condition_number == pytest.approx(2.0)
        assert found.lambda_min == pytest.approx(scale)


def test_condition_numbers_of_float32_kernels_hold_to_a_million():
    # Rows times the rounding, 64 of them, would have cut them at 131,072.
    kernel = kernel_of(np.concatenate([[1.0 / 5e5], np.geomspace(1e-4, 1.0, 63)]))
    found = spectrum(kernel.astype(np.float32))
    assert found.failure is None
    assert found.condition_number == pytest.approx(5e5, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_kernels_without_full_rank_are_singular_in_float32(seed):
    rows = jax.random.normal(jax.random.key(seed), (64, 200_000))
    rows = rows.at[1].set(1.5 * rows[0])
    assert spectrum(rows @ rows.T).failure == "singular"
    assert spectrum(rows[2:, :61] @ rows[2:, :61].T).rank == 61


def test_rounding_is_that_of_half_precision_too():
    rows = np.random.default_rng(2).standard_normal((40, 10))
    found = spectrum(jnp.asarray(rows @ rows.T, jnp.bfloat16))
    assert found.failure == "singular"


def test_what_is_no_real_kernel_is_refused():
    result = empirical_ntk(lambda w, x: x @ w, jnp.eye(2), jnp.eye(2))
    for kernel, message in (
        (result, "pass the `.matrix`"),
        (np.eye(2) * 1j, "real numbers, got complex128"),
        (np.array([["a"]]), "real numbers, got <U1"),
    ):
        with pytest.raises(InputError, match=message):
            spectrum(kernel)
    with pytest.raises(InputError, match="`rounding` must be at least 0, got -1"):
        spectrum(np.eye(2), rounding=-1)
