"""Convolutions against XLA's own, and against loops in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from lax_convolutions import lax_conv2d, lax_depthwise_conv2d
from quick_jit import quick_jit
from tolerances import assert_close

from nasjax.networks.convolutions import conv2d, depthwise_conv2d

# size, dilation, height, width: up to 8 rows and above, odd and even, dilated past the edge
CASES = [
    (1, 1, 7, 5),
    (3, 1, 7, 5),
    (3, 2, 9, 6),
    (5, 1, 10, 3),
    (5, 2, 6, 7),
]

KINDS = {"dense": (conv2d, lax_conv2d), "depthwise": (depthwise_conv2d, lax_depthwise_conv2d)}


@pytest.fixture(params=sorted(KINDS))
def kind(request):
    return request.param


def _arrays(kind, size, height, width, seed=0, batch=2, channels=2):
    """Images, kernel, and directions of both."""
    rng = np.random.default_rng(seed)
    shape = (size, size, channels) + ((3,) if kind == "dense" else ())
    x, vx = rng.normal(size=(2, batch, height, width, channels))
    kernel, vk = rng.normal(size=(2, *shape))
    return jnp.asarray(x), jnp.asarray(kernel), jnp.asarray(vx), jnp.asarray(vk)


def _looped(x, kernel, dilation):
    """A convolution written out over pixels and taps."""
    size, (batch, height, width, channels) = kernel.shape[0], x.shape
    features = channels if kernel.ndim == 3 else kernel.shape[-1]
    out = np.zeros((batch, height, width, features))
    for i in range(height):
        for j in range(width):
            for a in range(size):
                for b in range(size):
                    row, column = (
                        i + (a - size // 2) * dilation,
                        j + (b - size // 2) * dilation,
                    )
                    if 0 <= row < height and 0 <= column < width:
                        pixel, tap = x[:, row, column], kernel[a, b]
                        out[:, i, j] += pixel * tap if kernel.ndim == 3 else pixel @ tap
    return out


@pytest.mark.parametrize(("size", "dilation", "height", "width"), CASES)
def test_values(float64, kind, size, dilation, height, width):
    conv, reference = KINDS[kind]
    x, kernel, _, _ = _arrays(kind, size, height, width)
    y = conv(x, kernel, dilation=dilation)
    assert_close(y, _looped(np.asarray(x), np.asarray(kernel), dilation))
    assert_close(y, reference(x, kernel, dilation=dilation))


def test_float32_stays_float32(kind):
    conv, reference = KINDS[kind]
    arrays = [a.astype(jnp.float32) for a in _arrays(kind, 3, 7, 5)[:2]]
    gradient = jax.grad(lambda x, kernel: jnp.sum(conv(x, kernel) ** 2), (0, 1))
    expected = jax.grad(lambda x, kernel: jnp.sum(reference(x, kernel) ** 2), (0, 1))
    assert_close(conv(*arrays), reference(*arrays))
    assert_close(gradient(*arrays), expected(*arrays))


def _all_derivatives(conv, x, kernel, vx, vk):
    """First derivatives and every order of composing two."""

    def loss(x, kernel):
        return jnp.sum(jnp.sin(conv(x, kernel)))

    def along(tree):
        return jnp.vdot(tree[0], vx) + jnp.vdot(tree[1], vk)

    point, direction = (x, kernel), (vx, vk)
    gradient = jax.grad(loss, (0, 1))

    def slope(*point):
        return jax.jvp(loss, point, direction)[1]

    return {
        "grad": gradient(*point),
        "jvp": jax.jvp(conv, point, direction)[1],
        "jvp of jvp": jax.jvp(slope, point, direction)[1],
        "jvp of grad": jax.jvp(gradient, point, direction)[1],
        "grad of jvp": jax.grad(slope, (0, 1))(*point),
        "grad of grad": jax.grad(lambda *point: along(gradient(*point)), (0, 1))(*point),
        # Only one argument each: the mixed blocks, through the weight gradient's own transposes.
        "kernel, x": jax.grad(lambda x: jnp.vdot(jax.grad(loss, 1)(x, kernel), vk))(x),
        "x, kernel": jax.grad(lambda kernel: jnp.vdot(jax.grad(loss, 0)(x, kernel), vx))(kernel),
    }


@pytest.mark.parametrize(("size", "dilation", "height", "width"), CASES)
def test_first_and_second_derivatives(float64, kind, size, dilation, height, width):
    arrays = _arrays(kind, size, height, width)

    def derivatives(conv):
        return quick_jit(
            lambda *arrays: _all_derivatives(
                lambda x, kernel: conv(x, kernel, dilation=dilation), *arrays
            )
        )(*arrays)

    conv, reference = KINDS[kind]
    actual = derivatives(conv)
    assert_close(actual, derivatives(reference))
    # The Hessian is symmetric: these three are one product, whatever the reference says.
    assert_close(actual["jvp of grad"], actual["grad of grad"])
    assert_close(actual["jvp of grad"], actual["grad of jvp"])


def test_third_derivative(float64, kind):
    conv, reference = KINDS[kind]
    x, kernel, vx, vk = _arrays(kind, 3, 5, 4)

    def third(conv):
        def loss(x, kernel):
            return jnp.sum(jnp.sin(conv(x, kernel)))

        def product(x, kernel):
            return jax.jvp(jax.grad(loss, (0, 1)), (x, kernel), (vx, vk))[1]

        def squared(x, kernel):
            return sum(jnp.vdot(leaf, leaf) for leaf in product(x, kernel))

        return quick_jit(jax.grad(squared, (0, 1)))(x, kernel)

    assert_close(third(conv), third(reference))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (2, 1)])
def test_vmap_of_values_and_gradients(float64, kind, axes):
    conv, reference = KINDS[kind]
    parts = [_arrays(kind, 3, 9, 5, seed) for seed in range(3)]
    stacked = [
        parts[0][arg] if axis is None else jnp.stack([part[arg] for part in parts], axis)
        for arg, axis in enumerate(axes)
    ]

    def at(part):
        return [parts[0 if axis is None else part][arg] for arg, axis in enumerate(axes)]

    def value_and_gradients(conv, *point):
        gradient = jax.grad(lambda *point: jnp.sum(jnp.sin(conv(*point))), (0, 1))
        direction = (jnp.cos(point[0]), jnp.cos(point[1]))
        product = jax.jvp(gradient, point, direction)[1]
        return conv(*point, dilation=2), gradient(*point), product

    mapped = jax.vmap(lambda *point: value_and_gradients(conv, *point), axes)
    expected = quick_jit(lambda *point: value_and_gradients(reference, *point))
    expected = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *[expected(*at(i)) for i in range(3)]
    )
    assert_close(quick_jit(mapped)(*stacked), expected)


@pytest.mark.parametrize("height", [5, 9])
def test_per_example_kernel_gradients(float64, kind, height):
    conv, reference = KINDS[kind]
    x, kernel, _, _ = _arrays(kind, 3, height, 4, batch=3)

    def gradient(conv, image):
        return jax.grad(lambda kernel: jnp.sum(jnp.sin(conv(image[None], kernel))))(kernel)

    actual = quick_jit(jax.vmap(lambda image: gradient(conv, image)))(x)
    expected = jnp.stack([gradient(reference, image) for image in x])
    assert_close(actual, expected)


@pytest.mark.parametrize("mapped", ["images", "cotangents"])
def test_vmap_of_kernel_gradient_over_one_argument(float64, kind, mapped):
    conv, reference = KINDS[kind]
    x, kernel, vx, _ = _arrays(kind, 3, 9, 4)
    ct = jnp.cos(reference(x, kernel))
    axes = (0, None) if mapped == "images" else (None, 0)
    point = (jnp.stack([x, vx]), ct) if mapped == "images" else (x, jnp.stack([ct, ct**2]))

    def gradient(conv):
        return jax.vmap(lambda x, ct: jax.vjp(lambda k: conv(x, k), kernel)[1](ct)[0], axes)

    assert_close(quick_jit(gradient(conv))(*point), gradient(reference)(*point))


def test_inside_scan_and_switch(float64, kind):
    x, kernel, vx, vk = _arrays(kind, 3, 9, 4)
    kernel, vk = (k[..., :2] if kind == "dense" else k for k in (kernel, vk))
    kernels = jnp.stack([kernel, vk, kernel - vk])
    branches = jnp.array([1, 0, 2])

    def looped(conv, x, kernels):
        def step(x, inputs):
            branch, kernel = inputs
            cases = [
                lambda x, k: jnp.tanh(conv(x, k)),
                lambda x, k: jnp.tanh(conv(x, k, dilation=2)),
                lambda x, k: x,
            ]
            return lax.switch(branch, cases, x, kernel), None

        return jnp.sum(lax.scan(step, x, (branches, kernels))[0] ** 2)

    def unrolled(x, kernels):
        conv = KINDS[kind][1]
        y = jnp.tanh(conv(x, kernels[0], dilation=2))
        return jnp.sum(jnp.tanh(conv(y, kernels[1])) ** 2)

    direction = (vx, jnp.cos(kernels))

    def derivatives(loss):
        gradient = jax.grad(loss, (0, 1))
        values = quick_jit(lambda *point: (loss(*point), *jax.jvp(gradient, point, direction)))
        return values(x, kernels)

    conv = KINDS[kind][0]
    assert_close(derivatives(lambda x, k: looped(conv, x, k)), derivatives(unrolled))


@pytest.mark.parametrize(
    ("x_shape", "kernel_shape", "words"),
    [
        ((2, 5, 5, 3), (2, 2, 3), "odd size"),
        ((2, 5, 5, 3), (4, 4, 3), "odd size"),
        ((2, 5, 5, 3), (3, 3, 4), "3 channels"),
        ((2, 5, 5, 3), (1, 1, 4), "3 channels"),
        ((2, 5, 5, 3), (1, 3, 3), "square"),
        ((2, 5, 5, 3), (3, 3), r"got shapes \(2, 5, 5, 3\) and \(3, 3"),
        ((2, 5, 5, 3), (3, 3, 3, 1), r"got shapes \(2, 5, 5, 3\) and \(3, 3, 3, 1"),
        ((5, 5, 3), (3, 3, 3), "height, width"),
        ((5, 5, 3), (1, 1, 3), "height, width"),
    ],
)
def test_errors(kind, x_shape, kernel_shape, words):
    conv = KINDS[kind][0]
    kernel_shape += (2,) if kind == "dense" else ()
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(conv, jnp.zeros(x_shape), jnp.zeros(kernel_shape))


@pytest.mark.parametrize("size", [1, 3])
def test_mixed_types_compute_in_the_wider_one(kind, size):
    conv = KINDS[kind][0]
    x, kernel = (a.astype(jnp.bfloat16) for a in _arrays(kind, size, 7, 5)[:2])
    assert conv(x, kernel).dtype == jnp.bfloat16
    expected = conv(x.astype(jnp.float32), kernel.astype(jnp.float32))
    np.testing.assert_array_equal(conv(x.astype(jnp.float32), kernel), expected)
    np.testing.assert_array_equal(conv(x, kernel.astype(jnp.float32)), expected)
    with pytest.raises(ValueError, match="floating-point, got int32 and int32"):
        conv(x.astype(jnp.int32), kernel.astype(jnp.int32))


def test_calls_outside_jit_compile_once(kind, caplog):
    conv = KINDS[kind][0]
    x, kernel, _, _ = _arrays(kind, 3, 4, 11)
    with jax.log_compiles():
        conv(x, kernel)
        first = len(caplog.records)
        conv(x, kernel)
    assert first > 0
    assert len(caplog.records) == first


def test_values_without_jit():
    x = jax.random.normal(jax.random.key(0), (1, 4, 4, 2))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 2, 3))
    with jax.disable_jit():
        got = conv2d(x, kernel)
    assert_close(got, lax_conv2d(x, kernel))
