"""neural-tangents on current JAX: finite kernels against Jacobians, infinite against samples."""

import contextlib
import importlib.metadata
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from quick_jit import quick_jit
from tolerances import NUM_STANDARD_ERRORS

from nasjax.networks.convolutions import conv2d
from nasjax.ntk import _neural_tangents as bridge
from nasjax.ntk._neural_tangents import neural_tangents

RTOL = {"float32": 2e-5, "float64": 1e-12}
"""Largest difference, relative to the largest entry."""
IMPLEMENTATIONS = (
    "AUTO",
    "JACOBIAN_CONTRACTION",
    "NTK_VECTOR_PRODUCTS",
    "STRUCTURED_DERIVATIVES",
)
NETWORKS = ("dense", "conv")
FAN_IN_WARNING = "`FanIn` layers assume independent inputs"


@pytest.fixture(autouse=True)
def rank_promotion():
    """neural-tangents broadcasts silently, in many places."""
    with jax.numpy_rank_promotion("allow"):
        yield


def _normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def _network(kind):
    """``(apply_fn, params, x1, x2)`` of a small plain network with three outputs."""
    if kind == "dense":
        params = [(_normal(0, 5, 7), _normal(1, 7)), (_normal(2, 7, 3), _normal(3, 3))]

        def apply_fn(params, x):
            (kernel, bias), (readout, last_bias) = params
            return jax.nn.relu(x @ kernel + bias) @ readout + last_bias

        return apply_fn, params, _normal(4, 4, 5), _normal(5, 3, 5)
    params = {"a": _normal(0, 3, 3, 2, 4), "b": _normal(1, 3, 3, 4, 3), "c": _normal(2, 3)}

    def apply_fn(params, x):
        conv = lambda x, kernel: jax.lax.conv_general_dilated(  # noqa: E731
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.gelu(conv(x, params["a"]))
        x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.mean(jnp.tanh(conv(x, params["b"])), (1, 2)) * params["c"]

    return apply_fn, params, _normal(4, 4, 4, 4, 2), _normal(5, 3, 4, 4, 2)


def _rows(apply_fn, params, x):
    """The Jacobian ``[batch, outputs, params]``, from the definition."""
    leaves = jax.tree.leaves(quick_jit(jax.jacrev(apply_fn))(params, x))
    return np.concatenate([np.reshape(leaf, (*leaf.shape[:2], -1)) for leaf in leaves], -1)


def _kernel(rows1, rows2):
    """neural-tangents' layout, ``[n1, n2, outputs, outputs]``."""
    return np.einsum("iap,jbp->ijab", rows1, rows2)


def _traced_kernel(rows1, rows2):
    """The mean over outputs, ``[n1, n2]``: neural-tangents divides the trace by their number."""
    return np.einsum("iap,jap->ij", rows1, rows2) / rows1.shape[1]


def _assert_same(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    difference = np.abs(actual - expected).max()
    assert difference <= RTOL[actual.dtype.name] * np.abs(expected).max()


def _check_implementation(implementation, kind, vmap_axes, wrap):
    """Kernels of two batches, and of one with itself, against their definition."""
    nt = neural_tangents()
    apply_fn, params, x1, x2 = _network(kind)
    full_fn, traced_fn = (
        nt.empirical_ntk_fn(
            apply_fn,
            trace_axes=trace_axes,
            vmap_axes=vmap_axes,
            implementation=nt.NtkImplementation[implementation],
        )
        for trace_axes in ((), (-1,))
    )
    kernels_fn = wrap(lambda *args: (full_fn(*args), traced_fn(*args)))
    rows = _rows(apply_fn, params, jnp.concatenate([x1, x2]))
    rows1, rows2 = rows[: len(x1)], rows[len(x1) :]
    for other, columns in ((x2, rows2), (None, rows1)):
        kernel, traced_kernel = kernels_fn(x1, other, params)
        _assert_same(kernel, _kernel(rows1, columns))
        _assert_same(traced_kernel, _traced_kernel(rows1, columns))


def _unwrapped(fn):
    return fn


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
def test_implementations(implementation, kind):
    _check_implementation(implementation, kind, 0, quick_jit)


@pytest.mark.slow
@pytest.mark.parametrize("vmap_axes", [None, 0])
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize(
    ("implementation", "wrap"),
    # AUTO compiles programs to compare them, which is not possible inside another one.
    [(name, _unwrapped) for name in IMPLEMENTATIONS]
    + [(name, jax.jit) for name in IMPLEMENTATIONS if name != "AUTO"],
)
def test_implementations_in_every_way(implementation, kind, vmap_axes, wrap):
    _check_implementation(implementation, kind, vmap_axes, wrap)


def test_implementations_in_float64(float64):
    for implementation in IMPLEMENTATIONS[1:]:
        _check_implementation(implementation, "dense", None, quick_jit)


def test_auto_counts_operations_and_takes_the_cheapest(capsys):
    nt = neural_tangents()
    apply_fn, params, x, _ = _network("dense")
    kernel = nt.empirical_ntk_fn(
        apply_fn, trace_axes=(), vmap_axes=0, implementation=nt.NtkImplementation.AUTO
    )(x, None, params)
    rows = _rows(apply_fn, params, x)
    _assert_same(kernel, _kernel(rows, rows))
    lines = capsys.readouterr().out.split()
    assert [line for line in lines if line.startswith("impl")] == ["impl=1,", "impl=2,", "impl=3,"]
    counts = [float(line.split("=")[1]) for line in lines if line.startswith("flops")]
    # Forming all 4 x 4 products of three outputs' gradients takes at least one multiply-add each.
    assert min(counts) >= 16 * 9
    assert len(set(counts)) == 3


@jax.jit
def _stack_and_halve(kernel, scale, x):
    return jnp.concatenate([x, kernel]), scale / 2


def _shared_parameters(params, x):
    """Parameters used twice, stacked on data, and passed through a call with two results."""
    stacked, half = _stack_and_halve(params["kernel"], params["scale"], x[:, :2])
    return jnp.tanh(stacked @ params["kernel"]) * params["scale"] - half


@pytest.mark.parametrize("use_forward", [None, True, False])
@pytest.mark.parametrize("use_rules", [True, False])
@pytest.mark.parametrize("apply_fn", [_shared_parameters, lambda params, x: params["kernel"]])
def test_structured_derivatives_with_and_without_rules(apply_fn, use_rules, use_forward):
    nt = neural_tangents()
    params = {"kernel": _normal(0, 2, 2), "scale": _normal(1, 2)}
    x = _normal(2, 3, 4)
    kernel_fn = nt.empirical_ntk_fn(
        apply_fn,
        trace_axes=(),
        implementation=nt.NtkImplementation.STRUCTURED_DERIVATIVES,
        _j_rules=use_rules,
        _fwd=use_forward,
    )
    rows = _rows(apply_fn, params, x)
    _assert_same(quick_jit(kernel_fn)(x, None, params), _kernel(rows, rows))


@pytest.mark.parametrize("use_forward", [True, False])
def test_structured_derivatives_of_our_own_convolution(use_forward):
    nt = neural_tangents()
    x, kernel = _normal(0, 3, 4, 4, 2), _normal(1, 3, 3, 2, 3)

    def apply_fn(kernel, x):
        return jnp.mean(jnp.tanh(conv2d(x, kernel)), (1, 2))

    kernel_fn = nt.empirical_ntk_fn(
        apply_fn,
        trace_axes=(),
        vmap_axes=0,
        implementation=nt.NtkImplementation.STRUCTURED_DERIVATIVES,
        _fwd=use_forward,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = quick_jit(kernel_fn)(x, None, kernel)
    assert {str(w.message) for w in caught} == {"No Jacobian rule found for nasjax_conv2d."}
    rows = _rows(apply_fn, kernel, x)
    _assert_same(actual, _kernel(rows, rows))


# --- infinite width -----------------------------------------------------------------------------


def _bodies():
    """Layers before the readout: ``width -> layer``, inputs, and whether ``FanIn`` warns."""
    stax = neural_tangents().stax
    dense, images = _normal(10, 3, 6), _normal(11, 2, 4, 4, 3)

    def chain(activation):
        def body(width):
            layers = (stax.Dense(width, 1.3, 0.2), activation, stax.Dense(width, 1.2, 0.1))
            return stax.serial(*layers, activation)

        return body, dense, False

    def convolutional(*tail):
        def body(width):
            conv = stax.Conv(width, (3, 3), padding="SAME", W_std=1.4, b_std=0.1)
            return stax.serial(conv, stax.Relu(), *tail)

        return body, images, False

    def deep_convolutional(width):
        conv = stax.Conv(width, (3, 3), (2, 2), padding="SAME", W_std=1.4)
        second = stax.Conv(width, (2, 2), padding="VALID", W_std=1.2)
        return stax.serial(conv, stax.ABRelu(0.2, 1.0), second, stax.Erf(), stax.Flatten())

    def residual(width):
        branch = stax.serial(stax.Relu(), stax.Dense(width, 1.1))
        block = stax.serial(stax.FanOut(2), stax.parallel(branch, stax.Identity()), stax.FanInSum())
        return stax.serial(stax.Dense(width, 1.3), block, stax.Relu())

    return {
        "relu": chain(stax.Relu()),
        "erf": chain(stax.Erf()),
        "leaky_relu": chain(stax.ABRelu(0.2, 1.0)),
        "avg_pool_flatten": convolutional(stax.AvgPool((2, 2), (2, 2)), stax.Flatten()),
        "global_avg_pool": convolutional(stax.GlobalAvgPool()),
        "two_convolutions": (deep_convolutional, images, False),
        "residual": (residual, dense, True),
    }


def _kernels_of_wide_networks(network, x, num_networks):
    """NTKs ``[networks, n, n]`` of random networks with one output, from plain Jacobians."""
    init_fn, apply_fn, _ = network

    def kernel(key):
        _, params = init_fn(key, x.shape)
        leaves = jax.tree.leaves(jax.jacrev(lambda params: apply_fn(params, x)[:, 0])(params))
        rows = [leaf.reshape(len(x), -1) for leaf in leaves]
        return sum(jnp.matmul(row, row.T, precision="highest") for row in rows)

    keys = jax.random.split(jax.random.key(20), num_networks)
    return np.asarray(quick_jit(lambda keys: jax.lax.map(kernel, keys))(keys))


def _assert_mean(samples, expected):
    """The mean over the first axis is as far from its expectation as chance allows."""
    error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    assert (np.abs(samples.mean(0) - expected) <= NUM_STANDARD_ERRORS * error).all()
    # The test can tell: chance allows a quarter of the largest value at most.
    assert (NUM_STANDARD_ERRORS * error <= 0.25 * np.abs(expected).max()).all()


def _fan_in(warns):
    if warns:
        return pytest.warns(UserWarning, match=FAN_IN_WARNING)
    return contextlib.nullcontext()


def _check_infinite_width(name, width, num_networks):
    stax = neural_tangents().stax
    body, x, warns = _bodies()[name]
    network = stax.serial(body(width), stax.Dense(1, 1.5))
    with _fan_in(warns):
        expected = quick_jit(lambda x: network[2](x, None, "ntk"))(x)
    _assert_mean(_kernels_of_wide_networks(network, x, num_networks), expected)


@pytest.mark.parametrize("name", ["relu", "global_avg_pool"])
def test_infinite_width(name):
    _check_infinite_width(name, 256, 60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width", "num_networks"),
    [
        ("relu", 512, 200),
        ("erf", 512, 200),
        ("leaky_relu", 512, 200),
        ("residual", 512, 200),
        ("avg_pool_flatten", 256, 100),
        ("global_avg_pool", 256, 200),
        ("two_convolutions", 256, 100),
    ],
)
def test_infinite_width_of_every_layer(name, width, num_networks):
    _check_infinite_width(name, width, num_networks)


def test_nngp_is_the_mean_product_of_wide_outputs():
    stax = neural_tangents().stax
    body, x, _ = _bodies()["relu"]
    init_fn, apply_fn, kernel_fn = body(2000)
    _, params = init_fn(jax.random.key(21), x.shape)
    outputs = np.asarray(apply_fn(params, x))  # independent across the 2000 units
    _assert_mean(np.einsum("iu,ju->uij", outputs, outputs), kernel_fn(x, None, "nngp"))
    one_more = stax.serial(body(2000), stax.Dense(1, 2.0))[2](x, None, "nngp")
    _assert_same(one_more, 4.0 * kernel_fn(x, None, "nngp"))


def test_fan_in_sum_of_two_identities_is_wrong_by_half():
    """The branches are one and the same: a wide network gives 4 K, the library says 2 K."""
    stax = neural_tangents().stax
    x = _normal(12, 3, 6)
    double = stax.serial(
        stax.FanOut(2), stax.parallel(stax.Identity(), stax.Identity()), stax.FanInSum()
    )
    hidden = (stax.Dense(200), stax.Relu(), stax.Dense(200))
    plain_network = stax.serial(*hidden)
    double_network = stax.serial(*hidden, double)
    kernel = quick_jit(lambda x: plain_network[2](x, None, "ntk"))(x)
    with pytest.warns(UserWarning, match=FAN_IN_WARNING):
        library = quick_jit(lambda x: double_network[2](x, None, "ntk"))(x)
    _assert_same(library, 2.0 * kernel)
    _assert_mean(_kernels_of_wide_networks(plain_network, x, 60), kernel)
    _assert_mean(_kernels_of_wide_networks(double_network, x, 60), 4.0 * kernel)


# --- batching and prediction --------------------------------------------------------------------


@pytest.mark.parametrize("device_count", [0, 2])
def test_batching_changes_nothing(device_count):
    nt = neural_tangents()
    apply_fn, params, x, _ = _network("dense")
    empirical_fn = nt.empirical_ntk_fn(apply_fn, vmap_axes=0)
    batched_fn = nt.batch(empirical_fn, batch_size=2, device_count=device_count)
    rows = _rows(apply_fn, params, x)
    _assert_same(batched_fn(x, None, params), _traced_kernel(rows, rows))
    _, _, kernel_fn = nt.stax.serial(nt.stax.Dense(8), nt.stax.Relu(), nt.stax.Dense(1))
    batched_fn = nt.batch(kernel_fn, batch_size=2, device_count=device_count)
    _assert_same(batched_fn(x, x, "ntk"), kernel_fn(x, x, "ntk"))


def _regression(num_train=5, num_test=3):
    """Kernels of train and test inputs, and targets, in the current type."""
    stax = neural_tangents().stax
    _, _, kernel_fn = stax.serial(stax.Dense(1, 1.4, 0.3), stax.Erf(), stax.Dense(1, 1.2))
    train, test, targets = (
        _normal(30, num_train, 4),
        _normal(31, num_test, 4),
        _normal(32, num_train, 2),
    )
    return kernel_fn, train, test, targets


@pytest.mark.parametrize("time", [None, 0.0, 3.0])
def test_trained_ensemble(float64, time):
    """Lee et al. (2019), eq. 14 and 15: the law of outputs after gradient descent for a while."""
    nt = neural_tangents()
    kernel_fn, train, test, targets = _regression()
    predict_fn = nt.predict.gradient_descent_mse_ensemble(
        kernel_fn, train, targets, learning_rate=0.7
    )
    got = predict_fn(t=time, x_test=test, get="ntk", compute_cov=True)

    theta, theta_test = (np.asarray(kernel_fn(x, train, "ntk")) for x in (train, test))
    k_train, k_cross, k_test = (
        np.asarray(kernel_fn(*pair, "nngp"))
        for pair in ((train, train), (test, train), (test, test))
    )
    # Half the mean square over examples and outputs: the rate is divided by their number.
    decay = (
        np.zeros_like(theta)
        if time is None
        else scipy.linalg.expm(-0.7 * time / targets.size * theta)
    )
    learnt = theta_test @ np.linalg.solve(theta, np.eye(len(theta)) - decay)
    _assert_same(got.mean, learnt @ np.asarray(targets))
    cross = learnt @ k_cross.T
    _assert_same(got.covariance, k_test + learnt @ k_train @ learnt.T - cross - cross.T)


def test_bayesian_ensemble(float64):
    kernel_fn, train, test, targets = _regression()
    predict_fn = neural_tangents().predict.gradient_descent_mse_ensemble(kernel_fn, train, targets)
    got = predict_fn(x_test=test, get="nngp", compute_cov=True)
    k_train, k_cross, k_test = (
        np.asarray(kernel_fn(*pair, "nngp"))
        for pair in ((train, train), (test, train), (test, test))
    )
    learnt = np.linalg.solve(k_train, k_cross.T).T
    _assert_same(got.mean, learnt @ np.asarray(targets))
    _assert_same(got.covariance, k_test - learnt @ k_cross.T)


def test_max_learning_rate_is_where_descent_starts_to_diverge(float64):
    nt = neural_tangents()
    kernel_fn, train, _, targets = _regression()
    theta = kernel_fn(train, None, "ntk")
    rate = nt.predict.max_learning_rate(theta, y_train_size=targets.size)
    assert rate == pytest.approx(2.0 * targets.size / np.linalg.eigvalsh(theta).max(), rel=1e-9)
    step = np.asarray(theta) / targets.size

    def residual_after(rate, num_steps=3000):
        power = np.linalg.matrix_power(np.eye(len(step)) - rate * step, num_steps)
        return np.linalg.norm(power @ np.asarray(targets)) / np.linalg.norm(targets)

    assert residual_after(0.99 * rate) < 1.0
    assert residual_after(1.01 * rate) > 1e3


# --- the bridge itself --------------------------------------------------------------------------

_PROBE = """
import sys, tempfile, warnings
import jax, jax.core
from jax.interpreters import ad
before = set(dir(jax.core)), set(dir(ad))
from nasjax.ntk._neural_tangents import neural_tangents
print("neural_tangents" in sys.modules)
warnings.simplefilter("error")
sys.pycache_prefix = tempfile.mkdtemp()  # compile afresh: the compiler warns once
nt = neural_tangents()
print(nt.__name__, hasattr(nt, "experimental"), neural_tangents() is nt)
unwanted = {"tensorflow", "tf2jax", "jax.util", "neural_tangents.experimental"}
print(sorted(unwanted & set(sys.modules)))
print(before == (set(dir(jax.core)), set(dir(ad))))
"""


def test_import_is_late_quiet_without_tensorflow_and_leaves_jax_alone():
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:-1] == ["False", "neural_tangents False True", "[]", "True"]


def test_bridging_twice_is_bridging_once():
    assert neural_tangents.__wrapped__() is neural_tangents()
    _check_implementation("STRUCTURED_DERIVATIVES", "dense", None, quick_jit)


@pytest.fixture
def missing_function(monkeypatch):
    """A part of neural-tangents that the bridge replaces is not there."""
    empirical = sys.modules[f"{neural_tangents().__name__}._src.empirical"]
    monkeypatch.delattr(empirical, "_eqn_vjp_fn")


def _pretend_jax(monkeypatch, version):
    monkeypatch.setattr(jax, "__version__", ".".join(map(str, version)))
    monkeypatch.setattr(jax, "__version_info__", version)


def test_newer_jax_without_a_needed_name_is_an_import_error(monkeypatch, missing_function):
    _pretend_jax(monkeypatch, (99, 1, 0))
    with pytest.raises(ImportError) as caught:
        neural_tangents.__wrapped__()
    message = str(caught.value)
    assert "JAX must be at most 0.12 for neural-tangents 0.6.5, got JAX 99.1.0" in message
    assert "`_eqn_vjp_fn`" in message


def test_covered_jax_without_a_needed_name_is_a_defect(monkeypatch, missing_function):
    _pretend_jax(monkeypatch, (0, 12, 3))
    with pytest.raises(AttributeError, match="_eqn_vjp_fn"):
        neural_tangents.__wrapped__()


def test_newer_jax_that_still_fits_is_fine(monkeypatch):
    _pretend_jax(monkeypatch, (99, 1, 0))
    assert neural_tangents.__wrapped__() is neural_tangents()


def test_another_release_is_left_as_it_is(monkeypatch):
    package = neural_tangents()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.7.0")
    monkeypatch.setattr(bridge, "_mend_learning_rate", lambda predict: pytest.fail("mended"))
    assert neural_tangents.__wrapped__() is package


def test_a_missing_package_is_named(monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ImportError, match="neural-tangents must be installed"):
        neural_tangents.__wrapped__()
