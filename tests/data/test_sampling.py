import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.data import random_batch, sample_batch
from nasjax.data.sampling import random_labels
from nasjax.errors import InputError

NUM_STANDARD_ERRORS = 4.5


def _numbered(num_examples):
    """Images whose every pixel is the example's number, so that pairs can be checked."""
    labels = jnp.arange(num_examples)
    images = jnp.broadcast_to(labels[:, None, None, None], (num_examples, 2, 2, 1))
    return images.astype(jnp.float32), labels


def test_sample_batch_keeps_pairs_and_never_repeats():
    images, labels = _numbered(50)
    x, y = sample_batch(jax.random.key(0), images, labels, 20)
    assert x.shape == (20, 2, 2, 1)
    np.testing.assert_array_equal(x[:, 1, 1, 0], y)
    assert len(set(y.tolist())) == 20


def test_sample_batch_of_everything_is_a_permutation():
    images, labels = _numbered(50)
    _, y = sample_batch(jax.random.key(1), images, labels, 50)
    assert sorted(y.tolist()) == list(range(50))
    assert y.tolist() != list(range(50))


def test_sample_batch_is_uniform_over_subsets():
    num_examples, batch_size, num_draws = 6, 3, 3000
    images, labels = _numbered(num_examples)
    keys = jax.random.split(jax.random.key(2), num_draws)
    draw = jax.vmap(lambda key: sample_batch(key, images, labels, batch_size)[1])
    is_in = jax.nn.one_hot(draw(keys), num_examples).sum(axis=1)
    for rate, expected in (
        (is_in.mean(axis=0), batch_size / num_examples),
        (
            (is_in[:, 0] * is_in[:, 5]).mean(),  # both of a pair
            batch_size * (batch_size - 1) / (num_examples * (num_examples - 1)),
        ),
    ):
        standard_error = np.sqrt(expected * (1 - expected) / num_draws)
        assert np.all(np.abs(rate - expected) < NUM_STANDARD_ERRORS * standard_error)


def test_sample_batch_jitted_agrees_and_takes_numpy():
    images, labels = _numbered(20)
    jitted = jax.jit(sample_batch, static_argnums=3)
    plain = sample_batch(jax.random.key(3), np.asarray(images), np.asarray(labels), 5)
    for a, b in zip(plain, jitted(jax.random.key(3), images, labels, 5), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "batch_size, message",
    [
        (5, "at most the 4 examples there are, got 5, a batch larger than the data"),
        (0, "must be at least 1, got 0"),
        (-1, "must be at least 1, got -1"),
        (True, "must be at least 1, got True"),
        (2.0, "must be a whole number known before tracing, got 2.0"),
        (None, "must be a whole number known before tracing, got None"),
    ],
)
def test_sample_batch_refuses_sizes_when_traced(batch_size, message):
    images, labels = _numbered(4)

    def draw(key):
        return sample_batch(key, images, labels, batch_size)

    with pytest.raises(InputError, match=message):
        jax.eval_shape(draw, jax.random.key(0))


def test_sample_batch_refuses_a_traced_size():
    images, labels = _numbered(4)
    with pytest.raises(InputError, match="known before tracing, got .*Tracer"):
        jax.jit(sample_batch)(jax.random.key(0), images, labels, 2)


def test_sample_batch_refuses_unequal_lengths():
    images, labels = _numbered(4)
    with pytest.raises(InputError, match="got 4 images and labels of shape \\(3,\\)"):
        sample_batch(jax.random.key(0), images, labels[:3], 2)


def test_random_batch_is_standard_normal_with_uniform_labels():
    x, y = jax.jit(random_batch, static_argnums=(1, 2, 3, 4))(jax.random.key(4), 4000, 4, 3, 10)
    assert x.shape == (4000, 4, 4, 3) and x.dtype == jnp.float32
    assert y.shape == (4000,) and y.dtype == jnp.int32
    x = np.asarray(x, np.float64)
    assert abs(x.mean()) < NUM_STANDARD_ERRORS / np.sqrt(x.size)
    assert abs(x.var() - 1) < NUM_STANDARD_ERRORS * np.sqrt(2 / x.size)
    rates = np.bincount(np.asarray(y), minlength=10) / 4000
    assert len(rates) == 10
    assert np.all(np.abs(rates - 0.1) < NUM_STANDARD_ERRORS * np.sqrt(0.1 * 0.9 / 4000))
    # Independent: the correlation of a label with its image's mean vanishes.
    correlation = np.corrcoef(x.mean(axis=(1, 2, 3)), y)[0, 1]
    assert abs(correlation) < NUM_STANDARD_ERRORS / np.sqrt(4000)


@pytest.mark.parametrize("place", range(4))
def test_random_batch_refuses_sizes_below_one(place):
    sizes = [2, 8, 3, 10]
    sizes[place] = 0
    with pytest.raises(InputError, match="must be at least 1, got 0"):
        random_batch(jax.random.key(0), *sizes)


def test_random_labels_reach_every_class_and_no_other():
    labels = random_labels(jax.random.key(5), 500, 3)
    assert set(labels.tolist()) == {0, 1, 2}
