"""A convolution block, forward and backward, with everything that metrics read off it.

The block is ``z = N(w * h(x) + b)``, with ``h`` a ReLU or nothing and ``N`` batch normalisation or
nothing. No array has a leading axis of cotangents: over ``[1, batch, ...]`` XLA's loops are 15
times slower.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from nasjax.networks.convolutions import depthwise_conv2d
from nasjax.networks.layers import EPSILON

_LAYOUT = ("NHWC", "HWIO", "NHWC")
_PIXELS_AT_ONCE = 8192
"""Pixels whose patches are multiplied at once: few enough to stay in a processor's cache."""


class ConvBlock(NamedTuple):
    """What a block is; hashable, so that programs are compiled once for each.

    Attributes:
      has_relu: whether a ReLU comes before the convolution.
      is_normalized: whether batch statistics normalise what comes out.
      stride: 1 or 2; 1 for depthwise convolutions.
      is_depthwise: whether every channel has a filter of its own.
      dilation: distance between neighbouring taps; 1 but for depthwise convolutions.
      is_native: whether ``conv_kernels`` computes it, where that serves such blocks.
    """

    has_relu: bool = True
    is_normalized: bool = True
    stride: int = 1
    is_depthwise: bool = False
    dilation: int = 1
    is_native: bool = False


class Saved(NamedTuple):
    """What the backward pass needs beside the input.

    Attributes:
      z: ``[batch, height, width, features]``, the output.
      mean: ``[features]``, of the convolution's output; None without normalisation.
      rate: ``[features]``, one over its standard deviation; None without normalisation.
    """

    z: Array
    mean: Array | None
    rate: Array | None


def convolve(block: ConvBlock, x: Array, kernel: Array) -> Array:
    """A padded convolution, as a matrix product where the kernel is one pixel."""
    if block.is_depthwise:
        return depthwise_conv2d(x, kernel, dilation=block.dilation)
    stride = block.stride
    if kernel.shape[0] == 1 and stride == 1:
        return jnp.matmul(x, kernel[0, 0])
    half = kernel.shape[0] // 2
    pads = ((half, half), (half, half))
    return lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=_LAYOUT)


def convolve_back(block: ConvBlock, g: Array, kernel: Array, in_size: tuple[int, int]) -> Array:
    """The derivative of ``convolve`` with respect to its input, applied to ``g``."""
    if block.is_depthwise:
        return depthwise_conv2d(g, kernel[::-1, ::-1], dilation=block.dilation)
    stride = block.stride
    if kernel.shape[0] == 1 and stride == 1:
        return jnp.matmul(g, kernel[0, 0].T)
    size = kernel.shape[0]
    half = size // 2
    flipped = kernel[::-1, ::-1].swapaxes(2, 3)
    pads = [
        (size - 1 - half, length - (out - 1) * stride - 1 + half)
        for length, out in zip(in_size, g.shape[1:3], strict=True)
    ]
    return lax.conv_general_dilated(
        g, flipped, (1, 1), pads, lhs_dilation=(stride, stride), dimension_numbers=_LAYOUT
    )


def forward(block: ConvBlock, params, x: Array) -> Saved:
    """The block's output and what its backward pass needs.

    Args:
      block: what it is.
      params: ``kernel`` ``[size, size, channels, features]`` or, depthwise,
        ``[size, size, channels]``, and ``bias`` if it has one.
      x: ``[batch, height, width, channels]``.

    Returns:
      The output as ``z``.
    """
    y = convolve(block, _hidden(block, x), params["kernel"])
    if "bias" in params:
        y = y + params["bias"][None, None, None]
    return normalize(y) if block.is_normalized else Saved(y, None, None)


def normalize(y: Array) -> Saved:
    """Batch normalisation of ``[batch, height, width, features]``, each feature on its own."""
    # The mean first: a difference of moments would cancel, and takes no less time.
    mean = _mean(y)
    centred = y - mean
    rate = lax.rsqrt(_mean(centred * centred) + EPSILON)
    return Saved(centred * rate, mean[0, 0, 0], rate[0, 0, 0])


def unnormalized(saved: Saved, g: Float[Array, "batch height width features"]) -> Array:
    """The cotangent of the convolution's output from that of the block's."""
    if saved.rate is None:
        return g
    mean, along = _mean(g), _mean(g * saved.z)
    return saved.rate[None, None, None] * (g - mean - saved.z * along)


def _mean(a):
    """Of every feature, ``[1, 1, 1, features]``; as rows of features, which XLA reduces well."""
    return a.reshape(-1, a.shape[-1]).mean(0)[None, None, None]


def input_cotangent(block: ConvBlock, params, x: Array, gy: Array) -> Array:
    """The cotangent of ``x`` from that of the convolution's output."""
    gx = convolve_back(block, gy, params["kernel"], x.shape[1:3])
    return jnp.where(x > 0, gx, 0) if block.has_relu else gx


def kernel_gradients(
    block: ConvBlock, size: int, x: Array, of_batch: Array | None, of_examples: Sequence[Array]
) -> tuple[Array | None, Array | None]:
    """Gradients of the kernel, of one cotangent for the batch and of others for every example.

    Args:
      block: what it is.
      size: of the kernel.
      x: ``[batch, height, width, channels]``.
      of_batch: ``[batch, out_height, out_width, features]``, a cotangent of the convolution's
        output, or None.
      of_examples: such cotangents.

    Returns:
      The gradient of the first, in the kernel's shape, or None, and those of the others,
      ``[batch, cotangents, parameters]`` with parameters in any order, or None.
    """
    if block.is_depthwise:
        return _depthwise_gradients(block, size, x, of_batch, of_examples)
    h = _hidden(block, x)
    if block.stride > 1:
        total, each = _products(h, of_batch, of_examples, (size, size), (1, 1), block.stride)
    else:
        # Cotangents shifted along one axis and images along the other make smaller copies, and
        # products of better proportions, than images shifted along both.
        total, each = _products(h, of_batch, of_examples, (1, size), (size, 1), 1)
    if total is not None:
        if block.stride > 1:
            total = total.reshape(-1, size, size, h.shape[-1]).transpose(1, 2, 3, 0)
        else:
            total = total.reshape(size, -1, size, h.shape[-1])[::-1].transpose(0, 2, 3, 1)
    return total, each


def _products(h, of_batch, of_examples, image_taps, cotangent_taps, stride):
    """Products of shifted cotangents and shifted images, a few images at a time.

    Returns:
      ``[cotangent_taps features, image_taps channels]`` or None, and the same of every example,
      ``[batch, cotangents, ...]`` flat, or None.
    """

    def of_some(some):
        h, of_batch, of_examples = some
        out_size = jax.tree.leaves(some[1:])[0].shape[1:3]
        rows = _patches(h, image_taps, stride, out_size)
        shifted = [_patches(g, cotangent_taps, 1, out_size) for g in of_examples]
        total = None
        if of_batch is not None:
            sides = _patches(of_batch, cotangent_taps, 1, out_size)
            total = sides.reshape(-1, sides.shape[-1]).T @ rows.reshape(-1, rows.shape[-1])
        if not shifted:
            return total, None
        return total, jnp.einsum("bpd,bpc->bdc", jnp.concatenate(shifted, -1), rows)

    everything = (h, of_batch, tuple(of_examples))
    batch, height, width = h.shape[:3]
    most = max(1, _PIXELS_AT_ONCE // (height * width))
    at_once = max(count for count in range(1, batch + 1) if batch % count == 0 and count <= most)
    if at_once == batch:
        total, each = of_some(everything)
    else:
        groups = jax.tree.map(
            lambda a: a.reshape(batch // at_once, at_once, *a.shape[1:]), everything
        )
        sums = jax.eval_shape(of_some, jax.tree.map(lambda a: a[0], groups))[0]
        start = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), sums)

        def step(total, some):
            more, each = of_some(some)
            return jax.tree.map(jnp.add, total, more), each

        total, each = lax.scan(step, start, groups)
    return total, None if each is None else each.reshape(batch, len(of_examples), -1)


def _depthwise_gradients(block, size, x, of_batch, of_examples):
    """Sums over pixels of shifted images times cotangents, an image at a time."""
    h, (batch, height, width, channels) = _hidden(block, x), x.shape
    pad = block.dilation * (size // 2)
    padded = jnp.pad(h, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows = padded.reshape(batch, height + 2 * pad, -1)
    given = [*([] if of_batch is None else [of_batch]), *of_examples]
    shifts = [block.dilation * tap for tap in range(size)]

    def step(total, image):
        rows, cotangents = image
        # Rows of pixels and channels are kept whole, for wide vector loads.
        shifted = (
            rows[i : i + height, j * channels : (j + width) * channels]
            for i in shifts
            for j in shifts
        )
        taps = [[jnp.sum(a * g, 0) for g in cotangents] for a in shifted]
        sums = jnp.stack([jnp.stack(one) for one in zip(*taps, strict=True)])
        sums = sums.reshape(len(given), size * size, width, channels).sum(2)
        if of_batch is None:
            return total, sums
        return total + sums[0], sums[1:]

    cotangents = [g.reshape(batch, height, -1) for g in given]
    start = jnp.zeros((size * size, channels) if of_batch is not None else (), h.dtype)
    total, each = lax.scan(step, start, (rows, cotangents))
    total = None if of_batch is None else total.reshape(size, size, channels)
    return total, each.reshape(batch, len(of_examples), -1) if of_examples else None


def _hidden(block, x):
    return jnp.maximum(x, 0) if block.has_relu else x


def _patches(images, taps, stride, out_size):
    """``[images, pixels, taps channels]``: images shifted by every tap of a padded window."""
    halves = [(tap // 2, tap // 2) for tap in taps]
    padded = jnp.pad(images, ((0, 0), *halves, (0, 0)))
    height, width = ((length - 1) * stride + 1 for length in out_size)
    shifted = [
        padded[:, i : i + height : stride, j : j + width : stride]
        for i in range(taps[0])
        for j in range(taps[1])
    ]
    return jnp.concatenate(shifted, -1).reshape(len(images), -1, len(shifted) * images.shape[-1])


# --- along the parameters: for the product of Hessian, gradient and parameters -----------------


class Tangent(NamedTuple):
    """Derivatives of ``Saved`` as weights grow in proportion to themselves.

    Attributes:
      z: ``[batch, height, width, features]``.
      rate: ``[features]``, or None.
    """

    z: Array
    rate: Array | None


def forward_tangent(
    block: ConvBlock, params, x: Array, x_tangent: Array | None, saved: Saved
) -> Tangent:
    """How the block's output moves, as its kernel moves along itself and its input along a tangent.

    Args:
      block: what it is.
      params: its parameters; the bias stays.
      x: its input.
      x_tangent: of the input; None for zero.
      saved: of ``forward``.

    Returns:
      The derivatives.
    """
    # A convolution is linear in its kernel: its derivative along the kernel is its own output.
    moved = None
    if x_tangent is not None:
        masked = jnp.where(x > 0, x_tangent, 0) if block.has_relu else x_tangent
        moved = convolve(block, masked, params["kernel"])
    if not block.is_normalized:
        own = saved.z - params["bias"][None, None, None] if "bias" in params else saved.z
        return Tangent(own if moved is None else own + moved, None)
    # Normalisation undoes that, but for epsilon.
    rate = saved.rate
    shrink = EPSILON * rate * rate
    own = Tangent(saved.z * shrink[None, None, None], -rate * (1 - shrink))
    return own if moved is None else add_tangents(own, normalize_tangent(saved, moved))


def normalize_tangent(saved: Saved, moved: Array) -> Tangent:
    """How what ``normalize`` gives moves as its argument moves."""
    z, rate = saved.z, saved.rate
    product = _mean(moved * z)
    change = moved - _mean(moved) - z * product
    return Tangent(rate[None, None, None] * change, -rate * rate * product[0, 0, 0])


def add_tangents(one: Tangent, other: Tangent) -> Tangent:
    """Tangents along two directions, along both."""
    return Tangent(one.z + other.z, one.rate + other.rate)


def backward_tangent(
    block: ConvBlock,
    params,
    x: Array,
    x_tangent: Array | None,
    saved: Saved,
    tangent: Tangent,
    g: Array,
    g_tangent: Array,
    gradient: Array,
    *,
    is_input_asked: bool,
) -> tuple[Array | None, Array]:
    """How the backward pass moves, and the gradient's movement along the gradient itself.

    Args:
      block: what it is.
      params: its parameters.
      x: its input.
      x_tangent: of the input; None for zero.
      saved: of ``forward``.
      tangent: of ``forward_tangent``.
      g: ``[batch, out_height, out_width, features]``, the cotangent of its output.
      g_tangent: how that moves.
      gradient: of the kernel, in its shape.
      is_input_asked: whether the input's is asked for.

    Returns:
      How the cotangent of ``x`` moves, or None, and the inner product of ``gradient`` with the
      movement of the kernel's gradient, ``[]``.
    """
    gy, gy_tangent = g, g_tangent
    if block.is_normalized:
        gy, gy_tangent = unnormalized_tangent(saved, tangent, g, g_tangent)
    # The gradient's movement is a product of cotangents and patches; its inner product with the
    # gradient is that of cotangents and convolutions by it, which is the faster kernel.
    h = _hidden(block, x)
    if x_tangent is None:
        product = jnp.vdot(gy_tangent, convolve(block, h, gradient))
    else:
        masked = jnp.where(x > 0, x_tangent, 0) if block.has_relu else x_tangent
        both = convolve(block, jnp.concatenate([h, masked]), gradient)
        product = jnp.vdot(jnp.concatenate([gy_tangent, gy]), both)
    if not is_input_asked:
        return None, product
    # The kernel moves along itself: the cotangent through it moves by what passes it, once more.
    return input_cotangent(block, params, x, gy_tangent + gy), product


def unnormalized_tangent(
    saved: Saved, tangent: Tangent, g: Array, g_tangent: Array
) -> tuple[Array, Array]:
    """``unnormalized`` of one cotangent, and how it moves."""
    z = saved.z
    rate, rate_tangent = saved.rate[None, None, None], tangent.rate[None, None, None]
    along = _mean(g * z)
    centred = g - _mean(g) - z * along
    moved = g_tangent - _mean(g_tangent) - tangent.z * along
    moved = moved - z * (_mean(g_tangent * z) + _mean(g * tangent.z))
    return rate * centred, rate_tangent * centred + rate * moved
