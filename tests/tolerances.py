"""Relative tolerances of all comparisons by dtype, and the comparison of trees that uses them."""

import jax
import numpy as np

RTOL = {"float32": 2e-5, "float64": 1e-10}
NUM_STANDARD_ERRORS = 4.5
"""How far a random result may be from its expectation: 1 in 150,000 draws is further."""


def assert_close(actual, expected, *, rtol=None):
    """Trees agree in structure, shapes and dtypes, and in values relative to each leaf's largest.

    Leaves without an entry in ``RTOL`` (booleans, integers) must be equal.

    A leaf whose expected values are far below the tree's largest (1e-5) is held to that floor: what
    it contains may be the rounding of a cancellation.
    """
    actual = dict(_leaves(actual))
    expected = dict(_leaves(expected))
    assert sorted(actual) == sorted(expected)
    largest = max((np.abs(leaf).max(initial=0.0) for leaf in expected.values()), default=0.0)
    for path, leaf in expected.items():
        got = actual[path]
        assert got.shape == leaf.shape, (path, got.shape, leaf.shape)
        assert got.dtype == leaf.dtype, (path, got.dtype, leaf.dtype)
        if leaf.dtype.name not in RTOL:
            np.testing.assert_array_equal(got, leaf, err_msg=path)
            continue
        scale = max(np.abs(leaf).max(initial=0.0), 1e-5 * largest)
        limit = (RTOL[leaf.dtype.name] if rtol is None else rtol) * scale
        difference = np.abs(got - leaf).max(initial=0.0)
        assert difference <= limit, f"{path}: {difference} > {limit} (largest value {scale})"


def _leaves(tree):
    return [
        (jax.tree_util.keystr(path), np.asarray(leaf))
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]
