"""Stride-1 convolutions that stay fast inside control flow and in every order of differentiation.

Two pairs of primitives, each bilinear and closed under differentiation: a convolution and its
weight gradient are each other's transposes, so that derivatives of any order are built of these
two again, in the layout (``NHWC``, ``HWIO``) for which XLA's CPU backend has its fast library.
XLA brings other layouts into that form only outside control flow: differentiated by JAX's own
rules, a convolution under ``scan`` or ``switch`` is some 50 times slower there
(https://github.com/jax-ml/jax/issues/12868).

On CPU a depthwise convolution is a sum of shifted products; on other platforms it is XLA's grouped
convolution.
"""

import functools
from functools import partial

import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Float

from nasjax.types import Images

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def conv2d(
    x: Images,
    kernel: Float[Array, "size size channels features"],
    *,
    dilation: int = 1,
) -> Float[Array, "batch height width features"]:
    """Convolution of stride 1 with zero padding, so that height and width are kept.

    Args:
      x: ``[batch, height, width, channels]``.
      kernel: ``[size, size, channels, features]``, ``size`` odd.
      dilation: distance between neighbouring taps, in pixels.

    Returns:
      ``[batch, height, width, features]``, in the wider of the two types. Cost: ``2 size^2 channels
      features`` floating-point operations an output pixel.

    Raises:
      ValueError: when traced, if the shapes do not fit, ``size`` is even or the type is not
        floating-point.
    """
    x, kernel = _checked("conv2d", x, kernel, ("size", "size", "channels", "features"))
    return _conv2d_p.bind(x, kernel, dilation=dilation)


def depthwise_conv2d(
    x: Images,
    kernel: Float[Array, "size size channels"],
    *,
    dilation: int = 1,
) -> Images:
    """Convolution of each channel with its own filter: stride 1, zero padding, shape kept.

    Args:
      x: ``[batch, height, width, channels]``.
      kernel: ``[size, size, channels]``, ``size`` odd.
      dilation: distance between neighbouring taps, in pixels.

    Returns:
      An array of the shape of ``x``, in the wider of the two types. Cost: ``2 size^2``
      floating-point operations an element.

    Raises:
      ValueError: when traced, if the shapes do not fit, ``size`` is even or the type is not
        floating-point.
    """
    x, kernel = _checked("depthwise_conv2d", x, kernel, ("size", "size", "channels"))
    return _depthwise_p.bind(x, kernel, dilation=dilation)


def _checked(name: str, x, kernel, kernel_axes: tuple[str, ...]):
    """Both arrays in their common type, if they fit each other."""
    if x.ndim != 4 or kernel.ndim != len(kernel_axes):
        raise ValueError(
            f"{name}: `x` must be [batch, height, width, channels] and `kernel` "
            f"[{', '.join(kernel_axes)}], got shapes {x.shape} and {kernel.shape}."
        )
    if kernel.shape[0] != kernel.shape[1] or kernel.shape[0] % 2 == 0:
        raise ValueError(
            f"{name}: `kernel` must be square and of odd size, got {kernel.shape[:2]}."
        )
    if kernel.shape[2] != x.shape[-1]:
        raise ValueError(
            f"{name}: `kernel` must take the {x.shape[-1]} channels of `x`, got {kernel.shape[2]}."
        )
    if not jnp.issubdtype(jnp.promote_types(x.dtype, kernel.dtype), jnp.floating):
        raise ValueError(
            f"{name}: `x` and `kernel` must be floating-point, got {x.dtype} and {kernel.dtype}."
        )
    return promote_dtype(x, kernel)


def _padding(size: int, dilation: int) -> tuple[int, int]:
    half = dilation * (size // 2)
    return half, half


# --- dense ------------------------------------------------------------------------------------


def _conv2d(x, kernel, *, dilation):
    if kernel.shape[0] == 1:
        return (_rows(x) @ kernel[0, 0]).reshape(*x.shape[:-1], kernel.shape[-1])
    pad = _padding(kernel.shape[0], dilation)
    return lax.conv_general_dilated(
        x, kernel, (1, 1), (pad, pad), rhs_dilation=(dilation, dilation), dimension_numbers=_LAYOUT
    )


def _conv2d_kernel_grad(x, ct, *, size, dilation):
    if size == 1:  # as a product over three axes it would take two to four times as long
        return (_rows(x).T @ _rows(ct))[None, None]
    # Batch and channels change places: the images become filters as large as the image.
    pad = _padding(size, dilation)
    grad = lax.conv_general_dilated(
        x.transpose(3, 1, 2, 0),
        ct.transpose(1, 2, 0, 3),
        (dilation, dilation),
        (pad, pad),
        dimension_numbers=_LAYOUT,
    )
    return grad.transpose(1, 2, 0, 3)


def _rows(x):
    """A row a pixel."""
    return x.reshape(-1, x.shape[-1])


def _flip_conv2d(kernel):
    return kernel[::-1, ::-1].swapaxes(2, 3)


def _conv2d_aval(x, kernel, *, dilation):
    return ShapedArray((*x.shape[:-1], kernel.shape[-1]), x.dtype)


def _conv2d_kernel_grad_aval(x, ct, *, size, dilation):
    return ShapedArray((size, size, x.shape[-1], ct.shape[-1]), x.dtype)


# --- depthwise --------------------------------------------------------------------------------


def _depthwise_grouped(x, kernel, *, dilation):
    pad = _padding(kernel.shape[0], dilation)
    return lax.conv_general_dilated(
        x,
        kernel[:, :, None],
        (1, 1),
        (pad, pad),
        rhs_dilation=(dilation, dilation),
        dimension_numbers=_LAYOUT,
        feature_group_count=x.shape[-1],
    )


def _taps(size: int, dilation: int):
    return [(i * dilation, j * dilation) for i in range(size) for j in range(size)]


def _depthwise_shifted(x, kernel, *, dilation):
    size, (height, width) = kernel.shape[0], x.shape[1:3]
    pad = _padding(size, dilation)
    padded = jnp.pad(x, ((0, 0), pad, pad, (0, 0)))
    flat = kernel.reshape(size * size, -1)
    products = (
        padded[:, i : i + height, j : j + width] * flat[tap][None, None, None]
        for tap, (i, j) in enumerate(_taps(size, dilation))
    )
    return sum(products)


def _depthwise_kernel_grad_shifted(x, ct, *, size, dilation):
    batch, height, width, channels = x.shape
    pad = _padding(size, dilation)
    padded = jnp.pad(x, ((0, 0), pad, pad, (0, 0)))
    if height <= 8:  # a small image: one reduction a tap is cheaper than a loop over images
        grads = [
            jnp.sum(padded[:, i : i + height, j : j + width] * ct, (0, 1, 2))
            for i, j in _taps(size, dilation)
        ]
        return jnp.stack(grads).reshape(size, size, channels)
    # One image at a time stays in cache for all taps; rows are kept whole for wide vector loads.
    padded = padded.reshape(batch, height + sum(pad), -1)
    ct = ct.reshape(batch, height, -1)

    def add_image(total, image):
        x_rows, ct_rows = image
        grads = [
            jnp.sum(x_rows[i : i + height, j * channels : (j + width) * channels] * ct_rows, 0)
            for i, j in _taps(size, dilation)
        ]
        return total + jnp.stack(grads), None

    total, _ = lax.scan(
        add_image, jnp.zeros((size * size, width * channels), x.dtype), (padded, ct)
    )
    return total.reshape(size, size, width, channels).sum(2)


def _depthwise_kernel_grad_grouped(x, ct, *, size, dilation):
    kernel = jnp.zeros((size, size, x.shape[-1]), x.dtype)
    transpose = jax.linear_transpose(lambda k: _depthwise_grouped(x, k, dilation=dilation), kernel)
    return transpose(ct)[0]


def _flip_depthwise(kernel):
    return kernel[::-1, ::-1]


def _depthwise_aval(x, kernel, *, dilation):
    return ShapedArray(x.shape, x.dtype)


def _depthwise_kernel_grad_aval(x, ct, *, size, dilation):
    return ShapedArray((size, size, x.shape[-1]), x.dtype)


# --- primitives -------------------------------------------------------------------------------


def _define(name, abstract_eval, default_fn, cpu_fn):
    """A primitive that computes ``cpu_fn`` on CPU and ``default_fn`` elsewhere and under vmap."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(abstract_eval)

    @functools.cache
    def compiled(**params):
        return jax.jit(partial(primitive.bind, **params))

    def run(*args, **params):
        with jax.disable_jit(False):  # or ``jit`` would evaluate the primitive by itself again
            return compiled(**params)(*args)

    primitive.def_impl(run)
    mlir.register_lowering(primitive, mlir.lower_fun(default_fn, multiple_results=False))
    if cpu_fn is not default_fn:
        lowering = mlir.lower_fun(cpu_fn, multiple_results=False)
        mlir.register_lowering(primitive, lowering, platform="cpu")

    def batch(args, axes, **params):
        if axes[1] is None and not name.endswith("grad"):
            # Only the images are mapped: fold the mapped axis into the batch and stay fast.
            x = jnp.moveaxis(args[0], axes[0], 0)
            folded = primitive.bind(x.reshape(-1, *x.shape[2:]), args[1], **params)
            return folded.reshape(*x.shape[:2], *folded.shape[1:]), 0
        return jax.vmap(partial(default_fn, **params), in_axes=axes)(*args), 0

    batching.primitive_batchers[primitive] = batch
    return primitive


def _define_pair(name, conv, kernel_grad, flip, avals, cpu_fns):
    """A convolution and its weight gradient, tied together as each other's transposes."""
    conv_p = _define(name, avals[0], conv, cpu_fns[0])
    grad_p = _define(f"{name}_kernel_grad", avals[1], kernel_grad, cpu_fns[1])
    ad.defbilinear(
        conv_p,
        lambda ct, x, kernel, *, dilation: conv_p.bind(ct, flip(kernel), dilation=dilation),
        lambda ct, x, kernel, *, dilation: grad_p.bind(
            x, ct, size=kernel.aval.shape[0], dilation=dilation
        ),
    )
    ad.defbilinear(
        grad_p,
        lambda kernel, x, ct, *, size, dilation: conv_p.bind(ct, flip(kernel), dilation=dilation),
        lambda kernel, x, ct, *, size, dilation: conv_p.bind(x, kernel, dilation=dilation),
    )
    return conv_p


_conv2d_p = _define_pair(
    "nasjax_conv2d",
    _conv2d,
    _conv2d_kernel_grad,
    _flip_conv2d,
    (_conv2d_aval, _conv2d_kernel_grad_aval),
    (_conv2d, _conv2d_kernel_grad),
)
_depthwise_p = _define_pair(
    "nasjax_depthwise_conv2d",
    _depthwise_grouped,
    _depthwise_kernel_grad_grouped,
    _flip_depthwise,
    (_depthwise_aval, _depthwise_kernel_grad_aval),
    (_depthwise_shifted, _depthwise_kernel_grad_shifted),
)
