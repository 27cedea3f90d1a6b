"""Metrics of small networks against closed forms and definitions written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_networks import conv_network, dense_data, dense_network

from nasjax.errors import InputError
from nasjax.metrics import METRICS, STATISTICS, ScoredNetwork, score_network, scored_network
from nasjax.networks import init_params, static_network
from nasjax.ntk import BATCH_AXIS

X, Y = dense_data(jax.random.key(0), 6), jnp.array([0, 1, 2, 2, 1, 0])
GENERAL = [name for name in METRICS if name != "synflow:code"]


@pytest.fixture(scope="module")
def dense():
    apply_fn, params = dense_network(jax.random.key(1))
    return ScoredNetwork(apply_fn, params)


def _relu_network():
    keys = jax.random.split(jax.random.key(2), 2)
    params = [jax.random.normal(keys[0], (5, 8)), jax.random.normal(keys[1], (8, 3))]
    return ScoredNetwork(lambda p, x: jax.nn.relu(x @ p[0]) @ p[1], params)


def _loss(network, params, x, y):
    logits = network.apply_fn(params, x)
    return -jax.nn.log_softmax(logits)[jnp.arange(len(y)), y].mean()


def test_gradient_metrics_are_their_definitions():
    network = _relu_network()
    params, flat = network.params, lambda tree: jnp.concatenate([a.ravel() for a in tree])
    g = jax.grad(lambda params: _loss(network, params, X, Y))(params)
    hessian = jax.hessian(
        lambda flat: _loss(network, [flat[:40].reshape(5, 8), flat[40:].reshape(8, 3)], X, Y)
    )
    theta = flat(params)
    h = hessian(theta)
    expected = {
        "grad_norm": jnp.linalg.norm(flat(g)),
        "grad_norm:code": sum(jnp.linalg.norm(a) for a in g),
        "snip": abs(theta @ flat(g)),
        "snip:code": jnp.abs(theta * flat(g)).sum(),
        "grasp": abs(theta @ h @ flat(g)),
        "grasp:code": -(theta @ h @ flat(g)),
        "nasi_trace": flat(g) @ flat(g),
    }
    scores = score_network(network, X, Y, list(expected))
    assert not scores.flags
    for name, value in expected.items():
        assert scores.values[name] == pytest.approx(float(value), rel=1e-4), name


def test_kernel_metrics_are_their_definitions():
    network = _relu_network()
    rows = jax.jacrev(network.apply_fn)(network.params, X)  # [batch, outputs, ...] each
    rows = np.concatenate([np.asarray(a, float).reshape(6, 3, -1) for a in rows], -1)
    summed, labelled = rows.sum(1), rows[np.arange(6), np.asarray(Y)]
    kernel = summed @ summed.T
    eigenvalues = np.linalg.eigvalsh(kernel)
    of_label = np.linalg.eigvalsh(labelled @ labelled.T)
    classes = [
        np.linalg.eigvalsh(labelled[np.asarray(Y) == c] @ labelled[np.asarray(Y) == c].T)[0]
        for c in range(3)
    ]
    expected = {
        "trace": np.sqrt((rows**2).sum() / 6),
        "trace:hnas": np.sqrt((labelled**2).sum() / 6),
        "condition_number": eigenvalues[-1] / eigenvalues[0],
        "condition_number:tenas": eigenvalues[-1] / eigenvalues[0],
        "condition_number:hnas": of_label[-1] / of_label[0],
        "min_eigenvalue": eigenvalues.mean(),
        "min_eigenvalue:exact": eigenvalues[0],
        "min_eigenvalue:code": sum(classes),
        "knas": kernel.mean(),
    }
    scores = score_network(network, X, Y, list(expected))
    assert not scores.flags
    for name, value in expected.items():
        assert scores.values[name] == pytest.approx(float(value), rel=1e-3), name


def test_activation_and_input_metrics_are_their_definitions():
    network = _relu_network()
    hidden = np.asarray(X @ network.params[0])
    on = (hidden > 0).astype(float)
    kernel = on @ on.T + (1 - on) @ (1 - on).T
    logits = jax.nn.relu(hidden) @ network.params[1]
    slopes = np.asarray(jax.grad(lambda z: -jax.nn.log_softmax(z)[jnp.arange(6), Y].mean())(logits))
    first, second = (
        slopes @ np.asarray(network.params[1]).T * on * hidden,
        slopes * np.asarray(logits),
    )
    channels = [(a**2).mean(0).sum() / 2 for a in (first, second)]
    inputs = np.asarray(jax.grad(lambda x: network.apply_fn(network.params, x).sum())(X), float)
    values = np.linalg.eigvalsh(np.corrcoef(inputs)) + 1e-5
    magnitudes = [np.abs(np.asarray(p)) for p in network.params]
    expected = {
        "naswot": np.linalg.slogdet(kernel)[1],
        "linear_regions": len(np.unique(on, axis=0)),
        "fisher": sum(channels),
        "fisher:code": 5 * channels[0] + 8 * channels[1],
        "jacob_cov": -np.sum(np.log(values) + 1 / values),
        "synflow": 2 * (np.ones((1, 5)) @ magnitudes[0] @ magnitudes[1]).sum(),
    }
    scores = score_network(network, X, Y, list(expected))
    for name, value in expected.items():
        tolerance = 2e-2 if name == "jacob_cov" else 1e-4
        assert scores.values[name] == pytest.approx(float(value), rel=tolerance), name


def test_zico_is_its_definition():
    network = _relu_network()
    parts = [
        jax.grad(lambda p, i=i: _loss(network, p, X[i : i + 3], Y[i : i + 3]))(network.params)
        for i in (0, 3)
    ]
    expected = {"zico": 0.0, "zico:code": 0.0}
    for one, other in zip(*parts, strict=True):
        gradients = np.stack([one, other]).astype(float)
        for name, values in (("zico", np.abs(gradients)), ("zico:code", gradients)):
            deviation, mean = values.std(0), np.abs(gradients).mean(0)
            used = deviation > 0
            expected[name] += np.log((mean[used] / deviation[used]).sum())
    scores = score_network(network, X, Y, list(expected), num_parts=2)
    for name, value in expected.items():
        assert scores.values[name] == pytest.approx(value, rel=1e-3), name


def test_a_metric_alone_is_what_it_is_among_all(dense):
    together = score_network(dense, X, Y, GENERAL)
    for name in ("snip", "condition_number", "grasp", "synflow"):
        alone = score_network(dense, X, Y, [name])
        assert alone.values[name] == pytest.approx(together.values[name], rel=1e-5)


def test_every_metric_says_what_it_is():
    for name, metric in METRICS.items():
        assert metric.direction in ("higher", "lower"), name
        assert set(metric.needs) <= set(STATISTICS), name
        assert metric.cost, name
        assert metric.domain, name
        assert metric.source, name


def test_splitting_a_batch_changes_the_gradient_norm(dense):
    # So that it is never split to save memory.
    whole = score_network(dense, X, Y, ["grad_norm"]).values["grad_norm"]
    halves = [score_network(dense, X[i : i + 3], Y[i : i + 3], ["grad_norm"]) for i in (0, 3)]
    assert np.mean([half.values["grad_norm"] for half in halves]) > 1.1 * whole


def _normalised(**kwargs):
    apply_fn, params = conv_network(jax.random.key(3), **kwargs)
    return apply_fn, params


def test_couplings_differ_and_are_asked_for():
    apply_fn, params = _normalised()
    network = ScoredNetwork(apply_fn, params, _normalised(batch_axis=BATCH_AXIS)[0])
    x = jax.random.normal(jax.random.key(4), (4, 4, 4, 2))
    y = jnp.array([0, 1, 2, 0])
    names = ["condition_number", "min_eigenvalue"]
    mapped, exact = (
        score_network(network, x, y, names, coupling=coupling).values
        for coupling in ("mapped", "exact")
    )
    assert mapped["min_eigenvalue"] != pytest.approx(exact["min_eigenvalue"], rel=0.01)
    of_code = score_network(network, x, y, ["condition_number:tenas"]).values
    assert np.isfinite(of_code["condition_number:tenas"])


def test_examples_that_act_on_each_other_are_found():
    apply_fn, params = _normalised()
    x = jax.random.normal(jax.random.key(4), (4, 4, 4, 2))
    network = ScoredNetwork(apply_fn, params)
    for name in ("condition_number", "trace", "trace:hnas", "nasi_trace:sum"):
        with pytest.raises(InputError, match=r"depend on the others.*Or give .*`mapped_apply_fn`"):
            score_network(network, x, Y[:4], [name])
    scores = score_network(network, x, Y[:4], ["min_eigenvalue"], coupling="exact")
    with_form = network._replace(mapped_apply_fn=_normalised(batch_axis=BATCH_AXIS)[0])
    again = score_network(with_form, x, Y[:4], ["min_eigenvalue"], coupling="exact")
    assert scores == again


def test_labels_without_an_output_are_refused():
    network = ScoredNetwork(lambda p, x: x @ p, jnp.eye(5)[:, :3])
    with pytest.raises(InputError, match="labels from 0 to 2.*got 20 to"):
        score_network(network, X, Y + 20, ["snip"])


def test_dead_networks_fail_in_everything():
    network = ScoredNetwork(lambda p, x: 0 * (x @ p) + 1, jnp.eye(5)[:, :3])
    scores = score_network(network, X, Y, GENERAL)
    assert np.isnan(list(scores.values.values())).all()
    assert set(scores.flags) == set(GENERAL)
    assert all("dead network" in flag for flag in scores.flags.values())


def test_equal_examples_are_named(dense):
    x = X.at[3].set(X[1])
    names = ["naswot", "jacob_cov", "condition_number", "grad_norm"]
    network = _relu_network()
    scores = score_network(network, x, Y, names)
    assert set(scores.flags) == {"naswot", "jacob_cov", "condition_number"}
    assert all("1 examples equal earlier ones" in flag for flag in scores.flags.values())
    assert np.isfinite(scores.values["grad_norm"])


def test_networks_that_are_not_finite_fail():
    network = ScoredNetwork(lambda p, x: jnp.log(x @ p), jnp.eye(5)[:, :3])
    scores = score_network(network, X, Y, ["grad_norm"])
    assert scores.flags == {"grad_norm": "the network's outputs are not finite"}


def test_patterns_are_asked_of_relus_only(dense):
    scores = score_network(dense, X, Y, ["naswot", "linear_regions"])  # tanh
    assert set(scores.flags.values()) == {"the network has no ReLU"}


def test_saturation_is_a_warning():
    x = 10 * jax.random.normal(jax.random.key(5), (3, 5))
    scores = score_network(_relu_network(), x, Y[:3], ["linear_regions"])
    assert scores.values == {"linear_regions": 3.0}
    assert "saturated" in scores.warnings["linear_regions"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": ["snipp"]}, "unknown metric 'snipp'.*Did you mean 'snip'"),
        ({"metrics": []}, "`metrics` must be a list of names"),
        ({"x": X[:1], "y": Y[:1]}, "two examples or more, got"),
        ({"x": X.at[2, 1].set(jnp.nan)}, "NaN or infinity in 1 of 6 examples, the first at 2"),
        ({"y": Y[:3]}, r"`y` must be \[6\] integers"),
        ({"coupling": "hook"}, "unknown coupling 'hook'"),
        ({"metrics": ["zico"], "num_parts": 4}, "divide the batch of 6, got 4"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
    ],
)
def test_bad_input_is_named(dense, change, message):
    arguments = {"x": X, "y": Y, "metrics": ["snip"], **change}
    x, y, metrics = (arguments.pop(name) for name in ("x", "y", "metrics"))
    with pytest.raises(InputError, match=message):
        score_network(dense, x, y, metrics, **arguments)


def test_synflow_needs_a_network_without_normalisation():
    apply_fn, params = _normalised()
    network = ScoredNetwork(apply_fn, params, _normalised(batch_axis=BATCH_AXIS)[0])
    x = jax.random.normal(jax.random.key(6), (4, 4, 4, 2))
    with pytest.raises(InputError, match="Set `linear_apply_fn`"):
        score_network(network, x, Y[:4], ["synflow"])


def test_float64_is_as_good_as_it_says():
    x = jax.random.normal(jax.random.key(7), (4, 8, 8, 3))
    sizes = {"channels": 2, "num_cells": 1, "num_classes": 3}
    genotype = np.array([2, 1, 4, 1, 2, 1])
    module = static_network("nasbench201", genotype, **sizes)
    params = init_params(jax.random.key(8), module, x)
    network = scored_network("nasbench201", genotype, params, **sizes)
    names = ["grad_norm"]
    found = score_network(network, x, Y[:4], names, dtype="float64")
    again = score_network(network, np.asarray(x), np.asarray(Y[:4]), names)
    for name in names:
        assert again.values[name] == pytest.approx(found.values[name], rel=1e-3)
        assert found.values[name] != again.values[name]
