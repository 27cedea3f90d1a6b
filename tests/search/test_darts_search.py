"""DARTS against hand-written compositions, finite differences and a plain numpy loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

from nasjax.errors import InputError
from nasjax.search import (
    DartsRates,
    darts,
    mlp_project,
    mlp_relax,
    mlp_variables,
    select_mlp,
)
from nasjax.spaces import mlp_space

STEPS = 7
RATES = DartsRates(clip_norm=1.0)  # some of the gradients are clipped


def _loss(params, weights, x, y):
    """A layer that mixes two activations: small, smooth, and not linear in anything."""
    mix = weights["mix"]
    z = x @ params["w"]
    hidden = mix[0] * jnp.tanh(z) + mix[1] * z**2
    logits = hidden @ params["v"]
    log_p = jax.nn.log_softmax(logits)
    loss = -jnp.take_along_axis(log_p, y[:, None], 1).mean()
    return loss, jnp.mean(jnp.argmax(logits, -1) == y, dtype=loss.dtype)


def _relax(variables):
    return {"mix": jax.nn.softmax(variables["mix"])}


def _project(variables):
    return {"mix": jnp.clip(variables["mix"], -1.0, 1.0)}


def _params(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(rng.normal(size=(3, 4)), float),
        "v": jnp.asarray(rng.normal(size=(4, 2)), float),
    }


def _batch(seed):
    rng = np.random.default_rng(100 + seed)
    x = jnp.asarray(rng.normal(size=(8, 3)), float)
    return x, jnp.asarray(rng.integers(0, 2, 8))


def _search(**changes):
    options = {
        "init_params": lambda key: _params(),
        "variables": {"mix": jnp.asarray([0.3, -0.2], float)},
        "relax": _relax,
        "project": _project,
        "num_steps": STEPS,
        "rates": RATES,
    }
    return darts(_loss, **(options | changes))


def _rate(step):
    half_cosine = (1 + np.cos(np.pi * step / STEPS)) / 2
    return 0.001 + (0.025 - 0.001) * half_cosine


def _looked_ahead(params, velocity, variables, train, step):
    """``w - xi (mu v + grad + lambda w)``, written out."""
    slope = jax.grad(lambda w: _loss(w, _relax(variables), *train)[0])(params)
    return {
        name: w - _rate(step) * (0.9 * velocity[name] + slope[name] + 3e-4 * w)
        for name, w in params.items()
    }


def _composed_gradient(params, velocity, variables, train, validation, step, order):
    def loss(variables):
        ahead = params
        if order == 2:
            ahead = _looked_ahead(params, velocity, variables, train, step)
        return _loss(ahead, _relax(variables), *validation)[0]

    return np.asarray(jax.grad(loss)(variables)["mix"])


@pytest.mark.parametrize("order", [1, 2])
def test_steps_are_those_of_a_plain_loop(order, float64):
    search = _search(order=order)
    state, step_fn = search.init(jax.random.key(0)), jax.jit(search.step)
    params, velocity = _params(), {name: 0 * w for name, w in _params().items()}
    mix, first, second = np.array([0.3, -0.2]), np.zeros(2), np.zeros(2)
    norms = []
    for step in range(STEPS):
        train, validation = _batch(step), _batch(50 + step)
        state, info = step_fn(jax.random.key(step), state, train, validation)
        variables = {"mix": jnp.asarray(mix)}
        slope = _composed_gradient(params, velocity, variables, train, validation, step, order)
        slope = slope + 1e-3 * mix
        first, second = 0.5 * first + 0.5 * slope, 0.999 * second + 0.001 * slope**2
        corrected = first / (1 - 0.5 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        mix = np.clip(mix - 3e-4 * corrected[0] / (np.sqrt(corrected[1]) + 1e-8), -1, 1)
        weights = _relax({"mix": jnp.asarray(mix)})
        (loss, accuracy), gradient = jax.value_and_grad(_loss, has_aux=True)(
            params, weights, *train
        )
        norm = np.sqrt(sum(float((g**2).sum()) for g in gradient.values()))
        norms.append(norm)
        for name, w in params.items():
            clipped = gradient[name] * min(1.0, 1.0 / norm)
            velocity[name] = 0.9 * velocity[name] + clipped + 3e-4 * w
        params = {name: w - _rate(step) * velocity[name] for name, w in params.items()}
        assert_close(state.params, params)
        assert_close(state.variables["mix"], mix)
        assert_close(info.train_loss, loss)
        assert_close(info.train_accuracy, accuracy)
        assert bool(info.is_finite)
    assert min(norms) < 1.0 < max(norms)
    assert int(state.num_steps) == STEPS and int(state.num_failed) == 0


def _adam_slope(search, state, train, validation):
    """The architecture gradient of a step, from the first moment that Adam keeps of it."""
    after, _ = jax.jit(search.step)(jax.random.key(0), state, train, validation)
    moment = [
        leaf
        for path, leaf in jax.tree.leaves_with_path(after.architecture_state)
        if "mu" in jax.tree_util.keystr(path)
    ]
    return np.asarray(moment[0]) / 0.5


def test_second_order_agrees_with_the_finite_differences_of_the_paper(float64):
    rates = DartsRates(architecture_weight_decay=0.0)
    search = _search(order=2, rates=rates)
    state, train, validation = search.init(jax.random.key(0)), _batch(1), _batch(2)
    exact = _adam_slope(search, state, train, validation)
    params, variables = state.params, state.variables
    still = {name: 0 * w for name, w in params.items()}
    ahead = _looked_ahead(params, still, variables, train, 0)
    by_architecture, by_weights = jax.grad(
        lambda a, w: _loss(w, _relax(a), *validation)[0], argnums=(0, 1)
    )(variables, ahead)
    norm = np.sqrt(sum(float((g**2).sum()) for g in by_weights.values()))
    epsilon = 1e-4 / norm
    sides = [
        jax.grad(lambda a, w: _loss(w, _relax(a), *train)[0])(
            variables, {n: w + sign * epsilon * by_weights[n] for n, w in params.items()}
        )["mix"]
        for sign in (1, -1)
    ]
    paper = by_architecture["mix"] - _rate(0) * (sides[0] - sides[1]) / (2 * epsilon)
    np.testing.assert_allclose(exact, paper, rtol=1e-6)
    first_order = _adam_slope(_search(rates=rates), state, train, validation)
    assert np.abs(exact / first_order - 1).max() > 0.01  # the orders do differ


def test_second_order_agrees_with_finite_differences_of_the_whole(float64):
    rates = DartsRates(architecture_weight_decay=0.0)
    search = _search(order=2, rates=rates)
    state, train, validation = search.init(jax.random.key(0)), _batch(1), _batch(2)
    still = {name: 0 * w for name, w in state.params.items()}

    def loss(mix):
        variables = {"mix": jnp.asarray(mix)}
        ahead = _looked_ahead(state.params, still, variables, train, 0)
        return float(_loss(ahead, _relax(variables), *validation)[0])

    start, h = np.asarray(state.variables["mix"]), 1e-5
    slopes = [(loss(start + h * e) - loss(start - h * e)) / (2 * h) for e in np.eye(2)]
    exact = _adam_slope(search, state, train, validation)
    np.testing.assert_allclose(exact, slopes, rtol=1e-6)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_loss_that_is_not_finite_changes_nothing(order, part, float64):
    search = _search(order=order)
    step_fn, state = jax.jit(search.step), search.init(jax.random.key(0))
    state, _ = step_fn(jax.random.key(0), state, _batch(0), _batch(1))
    batches = {"train": _batch(2), "validation": _batch(3)}
    x, y = batches[part]
    batches[part] = x.at[3, 1].set(jnp.nan), y
    after, info = step_fn(jax.random.key(1), state, *batches.values())
    assert not info.is_finite
    assert (int(after.num_steps), int(after.num_failed)) == (2, 1)
    assert_close(after[2:], state[2:], rtol=0.0)
    later, info = step_fn(jax.random.key(2), after, _batch(4), _batch(5))
    unbroken, _ = step_fn(jax.random.key(2), state, _batch(4), _batch(5))
    assert info.is_finite
    assert_close(later[2:], unbroken[2:], rtol=0.0)
    assert not np.array_equal(later.params["w"], state.params["w"])


@pytest.mark.parametrize("order", [1, 2])
def test_later_steps_compile_nothing_and_states_keep_their_types(order):
    num_traces = 0

    def counted(variables):
        nonlocal num_traces
        num_traces += 1
        return _project(variables)

    search = _search(order=order, project=counted)
    step_fn, states = jax.jit(search.step), [search.init(jax.random.key(0))]
    for step in range(3):
        key = jax.random.fold_in(jax.random.key(1), step)
        states.append(step_fn(key, states[-1], _batch(step), _batch(step + 9))[0])
    assert num_traces == 1
    types = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) for state in states]
    assert all(other == types[0] for other in types)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": 3}, "darts: `order` must be 1 or 2, got 3"),
        ({"num_steps": 0}, "darts: `num_steps` must be at least 1, got 0"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(InputError, match=message):
        darts(_loss, **_plain(), **({"num_steps": 1} | changes))


def _plain():
    return {
        "init_params": lambda key: {},
        "variables": {},
        "relax": _relax,
        "project": _project,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, "`learning_rate` must be a number > 0, got 0.0"),
        ({"clip_norm": float("nan")}, "`clip_norm` must be a number > 0, got nan"),
        ({"weight_decay": -1.0}, "`weight_decay` must be a number >= 0, got -1.0"),
        ({"momentum": 1.0}, "`momentum` must be below 1, got 1.0"),
    ],
)
def test_bad_rates(changes, message):
    with pytest.raises(InputError, match=message):
        DartsRates(**changes)


def test_variables_of_fully_connected_networks():
    start = mlp_variables(5, 5)
    weights = mlp_relax(start)
    np.testing.assert_allclose(weights["activations"], np.full((4, 5), 0.2), rtol=1e-6)
    np.testing.assert_array_equal(weights["skips"], np.full((3, 2), 0.5))
    variables = {
        "activations": jnp.log(jnp.asarray([[1.0, 2.0, 5.0], [4.0, 3.0, 1.0]])),
        "skips": jnp.asarray([1.25]),
    }
    weights = mlp_relax(mlp_project(variables))
    np.testing.assert_allclose(
        weights["activations"], [[0.125, 0.25, 0.625], [0.5, 0.375, 0.125]], rtol=1e-6
    )
    np.testing.assert_array_equal(weights["skips"], [[0.0, 1.0]])
    below = mlp_project({**variables, "skips": jnp.asarray([-0.5])})
    np.testing.assert_array_equal(below["skips"], [0.0])
    np.testing.assert_array_equal(below["activations"], variables["activations"])


def test_selection_is_the_most_probable_and_more_than_half():
    space = mlp_space(6)
    just_more = np.nextafter(np.float32(0.5), np.float32(1))
    rng = np.random.default_rng(0)
    variables = {
        "activations": np.float32(rng.normal(size=(5, 5))),
        "skips": np.array([0.5, just_more, 0.0, 1.0], np.float32),
    }
    genotype = select_mlp(variables)
    expected = [max(range(5), key=row.__getitem__) for row in variables["activations"].tolist()]
    assert genotype.tolist() == [*expected, 0, 1, 0, 1]
    logits = {"activations": variables["activations"], "skips": mlp_relax(variables)["skips"]}
    np.testing.assert_array_equal(genotype, space.select(jax.device_get(logits)))
    assert select_mlp(mlp_variables(6, 5)).tolist() == [0] * 9
