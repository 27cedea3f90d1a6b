"""Kernels of infinitely wide convolutional layers, for every pair of pixels of a pair of images.

At infinite width every pixel of a feature map is Gaussian, and all channels are independent copies
of one another. A ``PixelKernel`` holds their covariance and their tangent kernel between all
pixels: pools and means mix pixels, so that equal pixels alone would not be enough. The functions
here are the layers of ``nasjax.networks`` in the NTK parameterisation: standard normal weights,
outputs divided by the square root of the fan-in, no bias.

References:
  Arora et al., `On Exact Computation with an Infinitely Wide Neural Net
  <https://arxiv.org/abs/1904.11955>`_, 2019, section 4; there without strides, averages inside the
  network and branches.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from nasjax.networks.pooling import avg_pool_3x3
from nasjax.ntk.dual_activations import gaussian_moments
from nasjax.types import Images


class Pairs(NamedTuple):
    """Which pairs of images a ``PixelKernel`` holds; numbers on the host, fixed when traced.

    The examples are those of ``x`` and then those of ``x2``. Every example's pair with itself comes
    first, because its variances are needed for all others.

    Attributes:
      first: ``[all_pairs]``, an example.
      second: ``[all_pairs]``, the other one.
      num_examples: how many there are.
      index: ``[batch, batch2]``, the position of each entry of the kernel matrix among the last
        pairs, those that ``PixelKernel.ntk`` has.
    """

    first: Int[np.ndarray, " all_pairs"]
    second: Int[np.ndarray, " all_pairs"]
    num_examples: int
    index: Int[np.ndarray, "batch batch2"]


class PixelKernel(NamedTuple):
    """Covariance and tangent kernel of one channel of a feature map.

    Attributes:
      nngp: ``[all_pairs, height, width, height, width]``, the covariance of a pixel of the first
        example of a pair (axes 1, 2) and a pixel of the second (axes 3, 4).
      ntk: ``[pairs, height, width, height, width]``, the product of their gradients with respect to
        all parameters so far; only for the last pairs, those of the kernel matrix.
    """

    nngp: Float[Array, "all_pairs height width height width"]
    ntk: Float[Array, "pairs height width height width"]


def image_pairs(num_examples: int, num_others: int | None = None) -> Pairs:
    """The pairs that a kernel matrix needs.

    Args:
      num_examples: rows of the matrix.
      num_others: columns, of other examples; None for the matrix of the examples with themselves,
        which takes each pair once.

    Returns:
      The pairs.

    Example:
      >>> pairs = image_pairs(2)
      >>> pairs.first.tolist(), pairs.second.tolist(), pairs.index.tolist()
      ([0, 1, 0], [0, 1, 1], [[0, 2], [2, 1]])
    """
    examples = np.arange(num_examples + (num_others or 0))
    if num_others is None:
        rows, columns = np.triu_indices(num_examples, k=1)
        index = np.diag(examples)
        index[rows, columns] = index[columns, rows] = num_examples + np.arange(len(rows))
    else:
        index = np.arange(num_examples * num_others).reshape(num_examples, num_others)
        rows, columns = np.indices(index.shape).reshape(2, -1)
        columns = columns + num_examples
    first, second = np.concatenate([examples, rows]), np.concatenate([examples, columns])
    return Pairs(first, second, len(examples), index)


def image_kernel(x: Images, pairs: Pairs) -> PixelKernel:
    """The images themselves, as if they were the channels of a layer without parameters.

    Args:
      x: ``[batch, height, width, channels]``, all examples.
      pairs: of these examples.

    Returns:
      Their products, averaged over channels; a tangent kernel of zeros.
    """
    nngp = jnp.einsum(
        "nhwc,nijc->nhwij", x[pairs.first], x[pairs.second], precision=lax.Precision.HIGHEST
    )
    nngp = nngp / x.shape[-1]
    num_pairs = pairs.index.max() + 1
    return PixelKernel(nngp, jnp.zeros_like(nngp[-num_pairs:]))


def add_kernels(kernels: Sequence[PixelKernel]) -> PixelKernel:
    """The kernel of a sum of independent feature maps, of which there is at least one."""
    return jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves), *kernels)


def relu_kernel(kernel: PixelKernel, pairs: Pairs) -> PixelKernel:
    """What follows from a Gaussian feature map by ReLU (the result is not Gaussian).

    Where a variance is zero the value is zero and, with the derivative 0 of ReLU at 0, so is its
    gradient.

    Args:
      kernel: of the feature map.
      pairs: its pairs.

    Returns:
      The products of activations, and of gradients of activations.
    """
    variance = jnp.einsum("nhwhw->nhw", kernel.nngp[: pairs.num_examples])
    first = variance[pairs.first][:, :, :, None, None]
    second = variance[pairs.second][:, None, None, :, :]
    moments = gaussian_moments("relu", first, second, kernel.nngp)
    slopes = jnp.where((first > 0) & (second > 0), moments.slope_product, 0)
    return PixelKernel(moments.product, slopes[-len(kernel.ntk) :] * kernel.ntk)


def conv_kernel(kernel: PixelKernel, *, size: int = 3, stride: int = 1) -> PixelKernel:
    """What follows by a convolution with weights of its own: a new, Gaussian feature map.

    Args:
      kernel: of what is convolved.
      size: side of the square filter, odd; padded with zeros by half of it.
      stride: 1, or 2 to halve height and width.

    Returns:
      The average over the taps of the filter, each shifting both images alike; the tangent kernel
      gains the gradient of the new weights.
    """
    nngp = _filter_average(kernel.nngp, size, stride)
    gradient = _filter_average(kernel.ntk, size, stride)
    return PixelKernel(nngp, nngp[-len(gradient) :] + gradient)


def _filter_average(pixels: Array, size: int, stride: int) -> Array:
    for axis, other in ((1, 3), (2, 4)):
        length = pixels.shape[axis]
        padding = [(0, 0)] * 5
        padding[axis] = padding[other] = (size // 2, size // 2)
        padded = jnp.pad(pixels, padding)
        taps = []
        for shift in range(size):
            tap = lax.slice_in_dim(padded, shift, shift + length, stride, axis)
            taps.append(lax.slice_in_dim(tap, shift, shift + length, stride, other))
        pixels = functools.reduce(jnp.add, taps)
    return pixels / size**2


def pool_kernel(kernel: PixelKernel, coefficients: Sequence[int]) -> PixelKernel:
    """What follows by a polynomial of the 3x3 average pool: the sum of several paths of pools.

    Args:
      kernel: of what is pooled.
      coefficients: how many paths there are without a pool, with one, two ...: ``(0, 1)`` is one
        pool and ``(2,)`` two parallel skip connections.

    Returns:
      The same map applied to the pixels of either image of a pair, to both kernels.
    """

    def pool(images):
        powers = [images]
        for _ in coefficients[1:]:
            powers.append(avg_pool_3x3(powers[-1]))
        terms = [c * power for c, power in zip(coefficients, powers, strict=True) if c]
        return functools.reduce(jnp.add, terms)

    def both_sides(pixels):
        num_pairs, height, width = pixels.shape[:3]
        first = pool(pixels.reshape(num_pairs, height, width, height * width))
        second = pool(first.reshape(num_pairs * height * width, height, width, 1))
        return second.reshape(pixels.shape)

    return jax.tree.map(both_sides, kernel)


def halve_kernel(kernel: PixelKernel) -> PixelKernel:
    """What follows by the mean over blocks of 2x2 pixels; height and width are even."""

    def halve(pixels):
        num_pairs, height, width = pixels.shape[:3]
        blocks = (num_pairs, *(height // 2, 2, width // 2, 2) * 2)
        return pixels.reshape(blocks).mean((2, 4, 6, 8))

    return jax.tree.map(halve, kernel)
