"""Pools against XLA's windows and against loops, exact ties included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tolerances import assert_close

from nasjax.networks.pooling import avg_pool_3x3, max_pool_2x2, max_pool_3x3

SHAPES = [(7, 5), (6, 6), (1, 4), (2, 1)]


def _xla_max_pool(x, stride):
    return lax.reduce_window(
        x,
        -jnp.inf,
        lax.max,
        (1, 3, 3, 1),
        (1, stride, stride, 1),
        ((0, 0), (1, 1), (1, 1), (0, 0)),
    )


def _windows(height, width, stride):
    """Output pixel, and the pixels of its window inside the image in row-major order."""
    for i, row in enumerate(range(0, height, stride)):
        for j, column in enumerate(range(0, width, stride)):
            rows = range(max(row - 1, 0), min(row + 2, height))
            columns = range(max(column - 1, 0), min(column + 2, width))
            yield (i, j), [(a, b) for a in rows for b in columns]


def _looped_max_pool(x, ct, stride):
    """Values, and the cotangent of ``x``: the first maximum of a window takes it all."""
    y, x_ct = np.full(ct.shape, np.nan), np.zeros(x.shape)
    for (i, j), pixels in _windows(*x.shape[1:3], stride):
        for n in range(x.shape[0]):
            for c in range(x.shape[3]):
                values = [x[n, a, b, c] for a, b in pixels]
                first = int(np.argmax(values))
                y[n, i, j, c] = values[first]
                x_ct[n, *pixels[first], c] += ct[n, i, j, c]
    return y, x_ct


def _images(height, width, *, num_values=None):
    rng = np.random.default_rng(height * 100 + width)
    if num_values:
        # All below zero, so that a padded zero that won would show.
        return rng.integers(-num_values, 0, (2, height, width, 2)).astype(float)
    return rng.normal(size=(2, height, width, 2)) - 10


def _cotangent(height, width, stride):
    shape = (2, -(-height // stride), -(-width // stride), 2)
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("num_values", [None, 3, 1])  # no ties, many, nothing else
@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_max_pool(float64, height, width, num_values, stride):
    x = _images(height, width, num_values=num_values)
    ct = _cotangent(height, width, stride)
    y, vjp = jax.vjp(lambda x: max_pool_3x3(x, stride=stride), jnp.asarray(x))
    x_ct = vjp(jnp.asarray(ct))[0]
    expected, expected_ct = _looped_max_pool(x, ct, stride)
    np.testing.assert_array_equal(y, expected)
    assert_close(x_ct, expected_ct)
    y, vjp = jax.vjp(lambda x: _xla_max_pool(x, stride), jnp.asarray(x))
    np.testing.assert_array_equal(y, expected)
    assert_close(x_ct, vjp(jnp.asarray(ct))[0])


def test_two_max_pools_in_a_row_share_out_ties_as_xla_does(float64):
    x = jnp.asarray(_images(7, 6))
    ct = jnp.asarray(_cotangent(7, 6, 1))

    def gradient(pool):
        return jax.grad(lambda x: jnp.vdot(pool(pool(x)), ct))(x)

    assert_close(gradient(max_pool_3x3), gradient(lambda x: _xla_max_pool(x, 1)))


@pytest.mark.parametrize("num_values", [None, 2])
def test_max_pool_2x2(float64, num_values):
    x = _images(6, 4, num_values=num_values)
    ct = np.random.default_rng(0).normal(size=(2, 3, 2, 2))
    expected, expected_ct = np.full(ct.shape, np.nan), np.zeros(x.shape)
    for n, i, j, c in np.ndindex(ct.shape):
        window = x[n, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, c]
        row, column = divmod(int(window.argmax()), 2)  # the first in row-major order
        expected[n, i, j, c] = window[row, column]
        expected_ct[n, 2 * i + row, 2 * j + column, c] = ct[n, i, j, c]
    y, vjp = jax.vjp(max_pool_2x2, jnp.asarray(x))
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(vjp(jnp.asarray(ct))[0], expected_ct)


def test_max_pool_in_forward_mode_is_the_transpose(float64):
    x = jnp.asarray(_images(7, 5, num_values=3))
    tangent = jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    ct = jnp.asarray(_cotangent(7, 5, 1))
    y_tangent = jax.jvp(max_pool_3x3, (x,), (tangent,))[1]
    x_ct = _looped_max_pool(np.asarray(x), np.asarray(ct), 1)[1]
    assert_close(jnp.vdot(y_tangent, ct), np.vdot(tangent, x_ct))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_avg_pool(float64, height, width, stride):
    x, ct = _images(height, width), _cotangent(height, width, stride)
    expected, expected_ct = np.full(ct.shape, np.nan), np.zeros(x.shape)
    for (i, j), pixels in _windows(height, width, stride):
        expected[:, i, j] = np.mean([x[:, a, b] for a, b in pixels], 0)
        for a, b in pixels:
            expected_ct[:, a, b] += ct[:, i, j] / len(pixels)
    y, vjp = jax.vjp(lambda x: avg_pool_3x3(x, stride=stride), jnp.asarray(x))
    assert_close(y, expected)
    assert_close(vjp(jnp.asarray(ct))[0], expected_ct)


@pytest.mark.parametrize("pool", [max_pool_3x3, avg_pool_3x3])
def test_pools_keep_float32_and_a_constant(pool):
    x = jnp.full((1, 5, 4, 2), -3.0, jnp.float32)
    for stride in (1, 2):
        y = pool(x, stride=stride)
        assert_close(y, np.full(y.shape, -3.0, np.float32))
    assert y.shape == (1, 3, 2, 2)
