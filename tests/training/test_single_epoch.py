"""One pass of SGD against a plain loop in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.networks import static_network
from nasjax.training import single_epoch_sgd


def _plain_loop(w, x, y, step_size):
    """All iterates and the losses of a tanh unit, its gradient written out."""
    iterates, losses = [w], []
    for example, label in zip(x, y, strict=True):
        hidden = np.tanh(w["in"] @ example)
        output = w["out"] @ hidden
        losses.append(np.log1p(np.exp(-label * output)))
        slope = -label / (1 + np.exp(label * output))
        back = slope * w["out"] * (1 - hidden**2)
        w = {
            "in": w["in"] - step_size * np.outer(back, example),
            "out": w["out"] - step_size * slope * hidden,
        }
        iterates.append(w)
    return iterates, losses


def _apply(w, x):
    return jnp.tanh(x @ w["in"].T) @ w["out"]


def _task(num=12):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(num, 4)), rng.choice([-1.0, 1.0], num)
    return {"in": rng.normal(size=(5, 4)), "out": rng.normal(size=5)}, x, y


def test_as_a_plain_loop(float64):
    w, x, y = _task()
    iterates, losses = _plain_loop(w, x, y, 0.3)
    run = jax.jit(lambda w, x, y, key: single_epoch_sgd(_apply, w, x, y, 0.3, key))
    for seed in range(4):
        found = run(w, x, y, jax.random.key(seed))
        expected = iterates[int(found.index)]
        for name in ("in", "out"):
            np.testing.assert_allclose(found.params[name], expected[name], rtol=1e-11)
            np.testing.assert_allclose(found.last_params[name], iterates[-1][name], rtol=1e-11)
        assert float(found.mean_loss) == pytest.approx(np.mean(losses), rel=1e-12)


def test_every_iterate_before_the_last_is_as_likely():
    w, x, y = _task(num=4)
    draw = jax.jit(jax.vmap(lambda key: single_epoch_sgd(_apply, w, x, y, 0.1, key).index))
    counts = np.bincount(draw(jax.random.split(jax.random.key(0), 4000)), minlength=4)
    # A standard error of a count is 27.
    assert counts.shape == (4,)
    assert (np.abs(counts - 1000) < 4.5 * 27.4).all()


def test_a_network_learns_in_one_pass():
    """Two clusters on the sphere, which steps of a practical size tell apart."""
    rng = np.random.default_rng(1)
    y = rng.choice([-1.0, 1.0], 200).astype(np.float32)
    x = rng.normal(size=(200, 6)).astype(np.float32) + 2 * y[:, None]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    network = static_network("mlp", (0, 3, 1), width=64, num_outputs=1, initialization="theory")
    params = network.init(jax.random.key(0), x[:1])["params"]

    def apply_fn(params, x):
        return network.apply({"params": params}, x)[:, 0]

    found = jax.jit(
        lambda step, key: single_epoch_sgd(apply_fn, params, x[:150], y[:150], step, key)
    )
    moved = found(0.3, jax.random.key(1))
    still = found(0.0, jax.random.key(1))
    assert np.mean(np.sign(apply_fn(moved.last_params, x[150:])) == y[150:]) > 0.95
    assert float(moved.mean_loss) < 0.5 * float(still.mean_loss)
    jax.tree.map(np.testing.assert_array_equal, still.last_params, params)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.ones((3, 4)), np.array([0, 1, 1]), "must be -1 or 1, got 0. For classes 0 and 1"),
        (np.ones((3, 4)), np.ones(2), r"got \[3, 4\] and \[2\]"),
        (np.ones((0, 4)), np.ones(0), r"with an example, got \[0, 4\] and \[0\]"),
        (np.ones((3, 4)), np.ones((3, 1)), r"got \[3, 4\] and \[3, 1\]"),
    ],
)
def test_bad_arguments(x, y, words):
    with pytest.raises(InputError, match=words):
        single_epoch_sgd(_apply, _task()[0], x, y, 0.1, jax.random.key(0))
