"""NASI's Algorithm 1 against numpy, with an objective whose gradients are scripted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

from nasjax.errors import InputError
from nasjax.networks import LayerConfig, init_params, one_shot_network
from nasjax.objectives import NasiInfo, nasi_objective, one_shot_trace_norm
from nasjax.search import (
    NU_MODES,
    NuEstimate,
    mean_trace_norm,
    nasi,
    nu_estimation,
    optimal_logits,
    zero_logits,
)
from nasjax.search.nasi import constraint
from nasjax.spaces import get_space

DECISIONS = {"a": np.ones((2, 3), bool), "b": np.array([True, True, False, True])}
NU = 3.0


def _scripted_objective(logits, key, nu, gradient, trace_norm, is_dead):
    """A linear function of the logits with the given gradient; draws only for show."""
    score = sum(jnp.vdot(gradient[name], logits[name]) for name in sorted(logits)) + trace_norm
    weights = {
        name: jax.nn.one_hot(jax.random.randint(subkey, g.shape[:-1], 0, 3), g.shape[-1])
        for (name, g), subkey in zip(sorted(logits.items()), jax.random.split(key), strict=True)
    }
    excess = jnp.maximum(trace_norm - nu, 0.0)
    return score, NasiInfo(trace_norm, excess, jnp.isfinite(trace_norm), is_dead, weights)


def _gradient(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        name: np.float32(scale * rng.normal(size=mask.shape)) for name, mask in DECISIONS.items()
    }


def _flat(tree):
    return np.concatenate([np.ravel(tree[name]) for name in sorted(tree)]).astype(np.float64)


def _data(gradient, trace_norm, is_dead=False):
    gradient = {name: jnp.asarray(g) for name, g in gradient.items()}
    return gradient, jnp.float32(trace_norm), jnp.asarray(is_dead)


def _run(search, data, start=0):
    """All states and records, one jitted step after the other."""
    step = jax.jit(search.step)
    states, infos = [search.init(jax.random.key(99))], []
    for number, args in enumerate(data):
        key = jax.random.fold_in(jax.random.key(start), number)
        state, info = step(key, states[-1], *_data(*args))
        states.append(state)
        infos.append(info)
    return states, infos


def test_optimal_logits_are_eq_18_with_a_running_maximum():
    # Norms go up, down and up again, so that a maximum over all steps, the step's own norm and the
    # running maximum are three different things.
    scales = [1.0, 0.2, 5.0, 0.01, 2.0, 30.0, 0.5]
    gradients = [_gradient(seed, scale) for seed, scale in enumerate(scales)]
    search = nasi(_scripted_objective, DECISIONS, nu=NU)
    states, infos = _run(search, [(g, 1.0 + t) for t, g in enumerate(gradients)])
    flat = np.stack([_flat(g) for g in gradients])
    norms = np.linalg.norm(flat, axis=1)
    assert not np.allclose(np.maximum.accumulate(norms), norms)
    for steps in range(1, len(scales) + 1):
        running = [max(norms[: t + 1]) for t in range(steps)]
        expected = sum(g / m for g, m in zip(flat[:steps], running, strict=True)) / steps
        actual = _flat(optimal_logits(states[steps]))
        assert_close(np.float32(actual), np.float32(expected))
        actual = _flat(optimal_logits(states[steps], xi=2.5))
        assert_close(np.float32(actual), np.float32(2.5 * expected))
        assert int(states[steps].num_steps) == int(states[steps].num_traces) == steps
        assert_close(states[steps].max_gradient_norm, np.float32(running[-1]))
        assert_close(infos[steps - 1].gradient_norm, np.float32(norms[steps - 1]))
        assert_close(infos[steps - 1].reward, np.float32(steps))  # the logits are zero
        assert np.linalg.norm(actual) <= 2.5 * (1 + 1e-6)  # the ball of radius xi


def test_before_the_first_step():
    state = nasi(_scripted_objective, DECISIONS, nu=NU).init(jax.random.key(0))
    zeros = {name: np.zeros(mask.shape, np.float32) for name, mask in DECISIONS.items()}
    assert_close(optimal_logits(state), zeros)
    assert_close(zero_logits(DECISIONS), zeros)
    assert int(state.num_steps) == 0 and float(state.nu_start) == NU


def test_gradients_of_zero_divide_by_nothing():
    search = nasi(_scripted_objective, DECISIONS, nu=NU)
    zero, later = _gradient(0, 0.0), _gradient(1)
    states, infos = _run(search, [(zero, 1.0), (later, 1.0)])
    np.testing.assert_array_equal(_flat(optimal_logits(states[1])), np.zeros(10))
    assert infos[0].is_finite and float(infos[0].gradient_norm) == 0.0
    expected = _flat(later) / np.linalg.norm(_flat(later)) / 2
    assert_close(np.float32(_flat(optimal_logits(states[2]))), np.float32(expected))


@pytest.mark.parametrize("nu_mode", sorted(NU_MODES))
def test_nu(nu_mode):
    traces = [1.0, 10.0, 4.0, 7.0]
    search = nasi(_scripted_objective, DECISIONS, nu=NU, nu_mode=nu_mode)
    states, infos = _run(search, [(_gradient(0), trace) for trace in traces])
    # Eq. (41) by hand: (3) / 1, (3 + 1) / 2, (3 + 1 + 10) / 3, (3 + 1 + 10 + 4) / 4, then / 5.
    expected = {"fixed": [3.0] * 5, "adaptive": [3.0, 2.0, 14 / 3, 4.5, 5.0]}[nu_mode]
    for trace, nu, info in zip(traces, expected, infos, strict=False):
        assert_close(info.nu, np.float32(nu))
        assert_close(info.excess, np.float32(max(0.0, trace - nu)))
        assert_close(info.trace_norm, np.float32(trace))
    for state, nu in zip(states, expected, strict=True):
        assert_close(constraint(state, nu_mode), np.float32(nu))


def test_adaptive_is_the_default():
    assert sorted(NU_MODES) == ["adaptive", "fixed"]
    _, infos = _run(nasi(_scripted_objective, DECISIONS, nu=NU), [(_gradient(0), 1.0)] * 2)
    assert_close(infos[1].nu, np.float32(2.0))


def _with_value(value):
    gradient = _gradient(5, 100.0)
    gradient["a"][1, 1] = value
    return gradient


FAILURES = {
    "nan in gradient": (_with_value(np.nan), 50.0, False),
    "infinity in gradient": (_with_value(np.inf), 50.0, False),
    "gradient norm overflows": (_with_value(3e38), 50.0, False),
    "dead": (_gradient(5, 100.0), 50.0, True),
    "dead with zero gradient": (_gradient(5, 0.0), 50.0, True),
    "infinite trace norm": (_gradient(5, 100.0), np.inf, False),
    "nan trace norm": (_gradient(5, 100.0), np.nan, False),
    "all nan": (_gradient(5, np.nan), np.nan, True),
}


@pytest.mark.parametrize("nu_mode", sorted(NU_MODES))
@pytest.mark.parametrize("failure", sorted(FAILURES))
def test_failed_steps_count_and_do_nothing_else(failure, nu_mode):
    search = nasi(_scripted_objective, DECISIONS, nu=NU, nu_mode=nu_mode)
    good = [(_gradient(0), 1.0), (_gradient(1, 0.3), 2.0)]
    bad = FAILURES[failure]
    states, infos = _run(search, [bad, good[0], bad, bad, good[1]])
    plain, plain_infos = _run(search, good)
    for state, same in [(1, 0), (2, 1), (3, 1), (4, 1), (5, 2)]:
        assert int(states[state].num_steps) == state
        unchanged = states[state]._replace(num_steps=plain[same].num_steps)
        jax.tree.map(np.testing.assert_array_equal, unchanged, plain[same])
    for position in (0, 2, 3):
        assert float(infos[position].reward) == -np.inf
        assert not infos[position].is_finite or infos[position].is_dead
    for position, same in [(1, 0), (4, 1)]:
        assert_close(infos[position].reward, plain_infos[same].reward)
        assert_close(infos[position].nu, plain_infos[same].nu)
    # The average of eq. (18) is over all steps, the failed ones among them.
    expected = _flat(optimal_logits(plain[2])) * 2 / 5
    assert_close(np.float32(_flat(optimal_logits(states[5]))), np.float32(expected))


def test_nothing_but_failures():
    search = nasi(_scripted_objective, DECISIONS, nu=NU)
    states, _ = _run(search, [FAILURES["all nan"]] * 3)
    np.testing.assert_array_equal(_flat(optimal_logits(states[3])), np.zeros(10))
    assert_close(constraint(states[3], "adaptive"), np.float32(NU))


def test_second_call_compiles_nothing_and_states_keep_their_types():
    num_traces = 0

    def counted(*args):
        nonlocal num_traces
        num_traces += 1
        return _scripted_objective(*args)

    search = nasi(counted, DECISIONS, nu=NU)
    states, _ = _run(search, [(_gradient(t), 1.0) for t in range(4)] + [FAILURES["all nan"]])
    assert num_traces == 1
    types = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) for state in states]
    assert all(other == types[0] for other in types)


def test_jit_and_plain_agree_and_the_key_decides_the_draw():
    search = nasi(_scripted_objective, DECISIONS, nu=NU)
    state, data = search.init(jax.random.key(0)), _data(_gradient(0), 1.0)

    def drawn(step, seed):
        new_state, info = step(jax.random.key(seed), state, *data)
        return new_state, info

    plain, again, jitted = (
        drawn(search.step, 1),
        drawn(search.step, 1),
        drawn(jax.jit(search.step), 1),
    )
    jax.tree.map(np.testing.assert_array_equal, plain, again)
    assert_close(jitted, plain)
    others = [drawn(search.step, seed)[1].drawn["a"].tolist() for seed in range(2, 12)]
    assert len({str(other) for other in others}) > 3


def test_drawn_are_the_positions_of_the_ones():
    def fixed_draw(logits, key, nu, gradient, trace_norm, is_dead):
        del key
        score, info = _scripted_objective(
            logits, jax.random.key(0), nu, gradient, trace_norm, is_dead
        )
        weights = {"a": jnp.eye(3)[jnp.array([2, 0])], "b": jnp.eye(4)[3]}
        return score, info._replace(weights=weights)

    _, infos = _run(nasi(fixed_draw, DECISIONS, nu=NU), [(_gradient(0), 1.0)])
    assert infos[0].drawn["a"].tolist() == [2, 0] and infos[0].drawn["b"].tolist() == 3
    assert infos[0].drawn["a"].dtype == jnp.int32


@pytest.mark.parametrize("nu", [0.0, -1.0, np.nan, np.inf])
def test_bad_nu(nu):
    with pytest.raises(InputError, match="`nu` must be a number > 0, got"):
        nasi(_scripted_objective, DECISIONS, nu=nu)


def test_bad_nu_mode():
    with pytest.raises(InputError, match="Did you mean 'adaptive'"):
        nasi(_scripted_objective, DECISIONS, nu=1.0, nu_mode="adaptve")


def test_nu_estimation_is_the_mean_of_what_did_not_fail():
    search = nu_estimation(_scripted_objective, DECISIONS)
    gradient = _gradient(0)
    data = [
        (gradient, 2.0),
        (gradient, np.inf),
        (gradient, 100.0, True),
        (gradient, np.nan),
        (gradient, 7.0),
        (gradient, 0.5),
    ]
    states, infos = _run(search, data)
    assert (int(states[-1].num_steps), int(states[-1].num_traces)) == (6, 3)
    assert mean_trace_norm(states[-1]) == pytest.approx(9.5 / 3, rel=1e-6)
    assert mean_trace_norm(states[1]) == 2.0
    assert [bool(info.is_finite and not info.is_dead) for info in infos] == [
        True,
        False,
        False,
        False,
        True,
        True,
    ]


def test_nu_estimation_of_failures_alone():
    with pytest.raises(InputError, match="none of the 4 random architectures"):
        mean_trace_norm(NuEstimate(jnp.int32(4), jnp.float32(0), jnp.int32(0)))


def test_three_steps_on_a_network():
    space = get_space("nasbench201")
    network = one_shot_network("nasbench201", channels=2, num_cells=1, config=LayerConfig("he"))
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(4, 8, 8, 3)), jnp.float32)
    y = jnp.array([1, 2, 3, 4])
    params = init_params(jax.random.key(1), network, zero_logits(space.decisions), x)
    objective_fn = nasi_objective(
        one_shot_trace_norm(lambda params, w, x: network.apply({"params": params}, w, x)),
        space.decisions,
        mu=0.5,
    )
    num_traces = 0

    def counted(*args):
        nonlocal num_traces
        num_traces += 1
        return objective_fn(*args)

    search = nasi(counted, space.decisions, nu=1e-3)
    step = jax.jit(search.step, compiler_options={"xla_backend_optimization_level": 0})
    first = search.init(jax.random.key(2))
    state, total, largest, traces, excesses = first, np.zeros((6, 5)), 0.0, [1e-3], []
    for number in range(3):
        key = jax.random.fold_in(jax.random.key(3), number)
        state, info = step(key, state, params, x, y)
        # A first step under the same constraint shows the gradient alone, at length one.
        nu = np.mean(traces)
        alone, seen = step(
            jax.random.clone(key), first._replace(nu_start=jnp.float32(nu)), params, x, y
        )
        gradient = np.asarray(alone.direction["edges"], np.float64) * float(seen.gradient_norm)
        assert info.is_finite and not info.is_dead
        assert_close(info.nu, np.float32(nu), rtol=1e-5)
        assert_close(info.reward, seen.reward, rtol=1e-4)
        np.testing.assert_array_equal(info.drawn["edges"], seen.drawn["edges"])
        excesses.append(float(seen.excess))
        largest = max(largest, np.linalg.norm(gradient))
        total += gradient / largest
        traces.append(float(seen.trace_norm))
    assert num_traces == 1
    assert int(state.num_traces) == 3
    assert max(excesses) > 0  # the penalty was at work
    assert_close(optimal_logits(state)["edges"], np.float32(total / 3), rtol=1e-3)
    assert np.abs(total).max() > 0.1
    assert space.is_connected(space.select(optimal_logits(state)))
