"""Theorem 3's terms against what they are by definition."""

import math

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.ntk import generalization_terms, lipschitz_constant


def test_slopes_are_the_largest():
    assert lipschitz_constant("relu") == 1.0
    assert lipschitz_constant("leaky_relu") == 1.0
    assert lipschitz_constant("tanh") == pytest.approx(1.0, abs=1e-12)
    assert lipschitz_constant("sigmoid") == pytest.approx(0.25, abs=1e-12)
    # Swish's slope is largest where z tanh(z / 2) = 2.
    z = 2.3993572805154
    assert z * math.tanh(z / 2) == pytest.approx(2.0, abs=1e-11)
    s = 1 / (1 + math.exp(-z))
    assert lipschitz_constant("swish") == pytest.approx(s + z * s * (1 - s), abs=1e-8)
    with pytest.raises(InputError, match="unknown activation 'tan'. Did you mean 'tanh'"):
        lipschitz_constant("tan")


def _kernel(num=6):
    a = np.random.default_rng(0).normal(size=(num, num + 2))
    return a @ a.T


@pytest.mark.parametrize(
    ("activations", "lipschitz"),
    [(["sigmoid"] * 3, 0.25), (["sigmoid", "relu", "tanh", "relu"], 1)],
)
def test_terms_by_hand(activations, lipschitz):
    kernel, y = _kernel(), np.array([1, -1, -1, 1, 1, -1])
    found = generalization_terms(kernel, y, activations, width=50, kappa=0.3, delta=0.05)
    depth = len(activations) + 1
    c_2 = math.sqrt(depth) * (3 * lipschitz + 1) ** (depth - 1)
    values, vectors = np.linalg.eigh(kernel)
    quadratic = sum((vectors[:, i] @ y) ** 2 / values[i] for i in range(6))
    assert found.lipschitz == pytest.approx(lipschitz, rel=1e-9)
    assert found.c_2 == pytest.approx(c_2, rel=1e-8)
    assert found.c_1 == pytest.approx(depth / c_2, rel=1e-8)
    assert found.label_norm == pytest.approx(math.sqrt(quadratic), rel=1e-9)
    step = 0.3 * depth / c_2 * math.sqrt(quadratic) / (50 * math.sqrt(6))
    assert found.step_size == pytest.approx(step, rel=1e-8)
    assert found.eigenvalue_term == pytest.approx(c_2 / math.sqrt(values[0]), rel=1e-8)
    assert found.label_term == pytest.approx(c_2 * math.sqrt(quadratic / 6), rel=1e-8)
    assert found.confidence_term == pytest.approx(math.sqrt(math.log(20) / 6), rel=1e-12)
    assert found.label_term < found.eigenvalue_term


def test_both_terms_agree_where_labels_are_the_hardest():
    """With K a multiple of the identity every label vector is an eigenvector of the smallest."""
    found = generalization_terms(3 * np.eye(4), [1, 1, -1, 1], ["relu", "relu"], width=1)
    assert found.label_term == pytest.approx(found.eigenvalue_term, rel=1e-12)
    assert found.eigenvalue_term == pytest.approx(16 * math.sqrt(3) / math.sqrt(3), rel=1e-12)


def test_singular_kernels_bound_nothing():
    kernel = np.ones((3, 3))
    found = generalization_terms(kernel, [1, 1, -1], ["relu", "relu"], width=1)
    for name in ("label_norm", "step_size", "eigenvalue_term", "label_term"):
        assert getattr(found, name) == math.inf
    assert math.isfinite(found.confidence_term)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"y": np.array([0, 1, 1])},
            "`y` must be -1 or 1, got 0. For classes 0 and 1 pass 2 y - 1",
        ),
        ({"y": np.ones(2)}, r"got \[3, 3\] and \[2\]"),
        ({"kernel": np.ones((3, 2))}, r"got \[3, 2\] and \[3\]"),
        ({"activations": ["relu"]}, "got 1, 5, 1 and 0.1"),
        ({"delta": 0.5}, r"`delta` in \(0, 1/e\], got 2, 5, 1 and 0.5"),
        ({"kappa": 0.0}, "`kappa` above 0"),
        ({"width": 0}, "`width` at least 1"),
        ({"activations": ["relu", "rely"]}, "unknown activation 'rely'. Did you mean 'relu'"),
    ],
)
def test_bad_arguments(change, words):
    arguments = {"kernel": np.eye(3), "y": np.ones(3), "activations": ["relu"] * 2, "width": 5}
    with pytest.raises(InputError, match=words):
        generalization_terms(**(arguments | change))
