"""Shared weights against a plain loop, and candidates against an exhaustive comparison."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

from nasjax.search import DartsRates, candidate_search, weight_sharing
from nasjax.spaces import mlp_space

SPACE = mlp_space(3)
STEPS = 6


def _features(weights):
    return jnp.concatenate([weights["activations"].ravel(), weights["skips"].ravel()])


def _loss(params, weights, x, y):
    """Quadratic in a parameter for every choice; not finite where the first layer is ``tanh``."""
    error = jnp.vdot(_features(weights), params["w"]) * x - y
    return jnp.mean(error**2), jnp.mean(jnp.abs(error) < 1, dtype=x.dtype)


def _failing_loss(params, weights, x, y):
    loss, accuracy = _loss(params, weights, x, y)
    return jnp.where(weights["activations"][0, 3] > 0, jnp.nan, loss), accuracy


def _search(loss_fn=_loss, num_steps=STEPS, one_hot=SPACE.one_hot):
    return weight_sharing(
        loss_fn,
        init_params=lambda key: {"w": jnp.linspace(-1.0, 1.0, 12)},
        sample=SPACE.sample,
        one_hot=one_hot,
        num_steps=num_steps,
        rates=DartsRates(clip_norm=2.0),
    )


def _counting():
    """``one_hot``, and a list that gets an entry each time it is traced."""
    traces = []

    def one_hot(genotype):
        traces.append(genotype.shape)
        return SPACE.one_hot(genotype)

    return one_hot, traces


DATA = (jnp.asarray([1.0, -2.0, 0.5]), jnp.asarray([0.3, 0.1, -1.0]))


def test_steps_are_those_of_a_plain_loop():
    one_hot, traces = _counting()
    search = _search(one_hot=one_hot)
    state, step_fn = search.init(jax.random.key(0)), jax.jit(search.step)
    w, velocity = np.linspace(-1, 1, 12), np.zeros(12)
    x, y = (np.asarray(array, np.float64) for array in DATA)
    seen, norms = set(), []
    for step in range(STEPS):
        key = jax.random.fold_in(jax.random.key(5), step)
        state, info = step_fn(key, state, DATA)
        genotype = np.asarray(info.genotype)
        np.testing.assert_array_equal(genotype, SPACE.sample(jax.random.clone(key)))
        seen.add(tuple(genotype.tolist()))
        chosen = np.zeros(12)
        chosen[[genotype[0], 5 + genotype[1], 10 + genotype[2]]] = 1
        error = (chosen @ w) * x - y
        gradient = 2 * (error * x).mean() * chosen
        norms.append(np.linalg.norm(gradient))
        velocity = 0.9 * velocity + gradient * min(1, 2.0 / norms[-1]) + 3e-4 * w
        w = w - (0.001 + 0.024 * (1 + np.cos(np.pi * step / STEPS)) / 2) * velocity
        assert_close(state.params["w"], np.float32(w))
        assert_close(info.train_loss, np.float32((error**2).mean()))
    assert len(seen) > 1 and min(norms) < 2.0 < max(norms)
    assert len(traces) == 1


def test_a_failed_step_changes_nothing():
    search = _search(_failing_loss, num_steps=40)
    state, step_fn = search.init(jax.random.key(0)), jax.jit(search.step)
    failed = 0
    for step in range(40):
        before = state
        state, info = step_fn(jax.random.fold_in(jax.random.key(1), step), state, DATA)
        is_tanh = int(info.genotype[0]) == 3
        assert bool(info.is_finite) == (not is_tanh)
        failed += is_tanh
        if is_tanh:
            assert_close(state[2:], before[2:], rtol=0.0)
    assert (int(state.num_steps), int(state.num_failed)) == (40, failed)
    assert 0 < failed < 40


@pytest.mark.parametrize("loss_fn", [_loss, _failing_loss])
def test_the_best_candidate_wins(loss_fn):
    one_hot, traces = _counting()
    search = candidate_search(loss_fn, sample=SPACE.sample, one_hot=one_hot)
    params = {"w": jnp.asarray(np.random.default_rng(0).normal(size=12), jnp.float32)}
    state, step_fn = search.init(jax.random.key(0)), jax.jit(search.step)
    losses = {}
    for step in range(60):
        state, info = step_fn(jax.random.fold_in(jax.random.key(2), step), state, params, DATA)
        genotype = tuple(np.asarray(info.genotype).tolist())
        loss, _ = loss_fn(params, SPACE.one_hot(jnp.asarray(genotype)), *DATA)
        np.testing.assert_allclose(info.validation_loss, loss, rtol=1e-5)
        if np.isfinite(loss):
            losses[genotype] = float(loss)
        if losses:
            best = min(losses, key=losses.get)
            assert tuple(np.asarray(state.genotype).tolist()) == best
            np.testing.assert_allclose(state.loss, losses[best], rtol=1e-5)
    is_tanh = [key for key in losses if key[0] == 3]
    assert bool(is_tanh) == (loss_fn is _loss)
    assert (int(state.num_failed) > 0) == (loss_fn is _failing_loss)
    assert len(losses) > 20
    assert len(traces) == 1


def test_without_a_finite_candidate_there_is_no_loss():
    def broken(params, weights, x, y):
        return jnp.nan * jnp.sum(x), jnp.float32(0)

    search = candidate_search(broken, sample=SPACE.sample, one_hot=SPACE.one_hot)
    state, info = jax.jit(search.step)(
        jax.random.key(1), search.init(jax.random.key(0)), {"w": jnp.ones(12)}, DATA
    )
    assert not info.is_finite and np.isinf(state.loss) and int(state.num_failed) == 1
