"""The straight-through Gumbel-softmax: exact draws, and the gradient of the soft sample."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import NUM_STANDARD_ERRORS, assert_close

from nasjax.objectives import straight_through_gumbel_softmax
from nasjax.spaces import SPACES

NUM_DRAWS = 20_000


def _draws(logits, decisions, seed=0, num_draws=NUM_DRAWS, **kwargs):
    keys = jax.random.split(jax.random.key(seed), num_draws)
    sample = jax.jit(
        jax.vmap(lambda key: straight_through_gumbel_softmax(key, logits, decisions, **kwargs)),
        compiler_options={"xla_backend_optimization_level": 0},
    )
    return jax.tree.map(np.asarray, sample(keys))


def test_samples_are_exactly_one_hot():
    rng = np.random.default_rng(0)
    for space in SPACES.values():
        logits = {
            name: jnp.asarray(rng.normal(size=mask.shape) * 5, jnp.float32)
            for name, mask in space.decisions.items()
        }
        drawn = _draws(logits, space.decisions, num_draws=500, temperature=0.3)
        assert sorted(drawn) == sorted(space.decisions)
        for name, weights in drawn.items():
            assert weights.dtype == np.float32
            assert weights.shape == (500, *space.decisions[name].shape)
            assert set(np.unique(weights)) == {0.0, 1.0}
            np.testing.assert_array_equal(weights.sum(-1), np.ones(weights.shape[:-1]))


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_frequencies_are_the_softmax_of_the_logits(temperature):
    logits = {
        "a": jnp.array([[0.0, 0.0, 0.0, 0.0], [1.0, -1.0, 0.5, 2.0]]),
        "b": jnp.array([3.0, 0.0, -1.0]),
    }
    decisions = {"a": np.ones((2, 4), bool), "b": np.array([True, True, False])}
    drawn = _draws(logits, decisions, seed=1, temperature=temperature)
    for name, weights in drawn.items():
        exponentials = np.where(decisions[name], np.exp(np.asarray(logits[name], float)), 0.0)
        expected = exponentials / exponentials.sum(-1, keepdims=True)
        standard_error = np.sqrt(expected * (1 - expected) / NUM_DRAWS)
        error = np.abs(weights.mean(0) - expected)
        assert (error <= NUM_STANDARD_ERRORS * standard_error).all(), (name, error)


def test_decisions_are_independent():
    """Two decisions of one shape, and two rows of one decision, share no noise."""
    decisions = {name: np.ones((2, 2), bool) for name in ("a", "b")}
    drawn = _draws({name: jnp.zeros((2, 2)) for name in "ab"}, decisions, seed=2)
    bits = np.concatenate([drawn["a"][..., 0], drawn["b"][..., 0]], 1) - 0.5
    correlation = bits.T @ bits / NUM_DRAWS * 4
    limit = NUM_STANDARD_ERRORS / np.sqrt(NUM_DRAWS)
    assert np.abs(correlation - np.eye(4)).max() < limit


def test_masked_choices_are_never_drawn_and_have_no_gradient():
    exists = np.array([[True, False, True], [False, False, True]])
    logits = {"a": jnp.array([[0.0, 1e6, 0.0], [50.0, 1e6, -1e6]])}
    weights = _draws(logits, {"a": exists}, seed=3, num_draws=2000)["a"]
    assert weights[:, ~exists].max() == 0.0
    np.testing.assert_array_equal(weights[:, 1, 2], np.ones(2000))

    def first(logits):
        sample = straight_through_gumbel_softmax(jax.random.key(4), logits, {"a": exists})
        return jnp.sum(sample["a"] * jnp.arange(6.0).reshape(2, 3))

    gradient = jax.grad(first)(logits)["a"]
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient)[~exists], np.zeros(3))
    assert abs(gradient[0, 0]) > 1e-3


def test_gradient_is_that_of_the_soft_sample(float64, monkeypatch):
    rng = np.random.default_rng(5)
    noise, values, ct = rng.gumbel(size=(3, 2, 4)), rng.normal(size=(2, 4)), rng.normal(size=(2, 4))
    exists = np.ones((2, 4), bool)
    exists[1, 3] = False
    temperature = 0.7
    monkeypatch.setattr(jax.random, "gumbel", lambda key, shape, dtype: jnp.asarray(noise[0]))

    def scalar(logits):
        sample = straight_through_gumbel_softmax(
            jax.random.key(0), {"a": logits}, {"a": exists}, temperature=temperature
        )
        return jnp.vdot(sample["a"], ct), sample["a"]

    (_, drawn), gradient = jax.value_and_grad(scalar, has_aux=True)(jnp.asarray(values))
    perturbed = np.where(exists, values + noise[0], -np.inf)
    np.testing.assert_array_equal(np.argmax(drawn, -1), np.argmax(perturbed, -1))
    soft = np.exp(perturbed / temperature)
    soft /= soft.sum(-1, keepdims=True)
    expected = soft * (ct - (soft * ct).sum(-1, keepdims=True)) / temperature
    assert_close(gradient, expected)


def test_temperature_does_not_change_the_draw():
    logits = {"a": jnp.array([0.3, 0.1, -0.2])}
    decisions = {"a": np.ones(3, bool)}
    cold, warm = (_draws(logits, decisions, 6, 200, temperature=t) for t in (0.01, 100.0))
    np.testing.assert_array_equal(cold["a"], warm["a"])


@pytest.mark.parametrize(
    "logits",
    [
        {},
        {"a": jnp.zeros((2, 3))},
        {"b": jnp.zeros((2, 4))},
        {"a": jnp.zeros((2, 4)), "b": jnp.zeros(2)},
        {"a": jnp.zeros(4)},
    ],
)
def test_bad_shapes(logits):
    with pytest.raises(ValueError, match="must have the shapes of `decisions`"):
        straight_through_gumbel_softmax(jax.random.key(0), logits, {"a": np.ones((2, 4), bool)})
