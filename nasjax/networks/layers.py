"""Convolution, dense and normalisation layers whose initialisation is an explicit choice."""

import dataclasses
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array, lax
from jaxtyping import Float

from nasjax.errors import InputError, unknown_name
from nasjax.networks.convolutions import conv2d, depthwise_conv2d
from nasjax.types import Images, Key

INITIALIZATIONS = {
    "lecun": "normal, variance 1 / fan_in",
    "he": "normal, variance 2 / fan_in",
    "xavier": "normal, variance 2 / (fan_in + fan_out)",
    "ntk": "standard normal, layer output divided by sqrt(fan_in): the NTK parameterisation",
    "pytorch": "uniform, variance 1 / (3 fan_in), biases of classifiers too: what PyTorch does",
}
NORMALIZATIONS = {
    "batch": "mean and variance over the batch and all pixels, each channel on its own",
    "none": "no normalisation",
}


@dataclasses.dataclass(frozen=True)
class LayerConfig:
    """What every layer of a network shares.

    Attributes:
      initialization: a key of ``INITIALIZATIONS``.
      normalization: a key of ``NORMALIZATIONS``. Batch statistics couple the examples of a batch.
      use_affine: whether normalisation has a trained scale and offset per channel.
      batch_axis: name of the mapped axis that the batch is spread over, if it is: batch statistics
        are then averaged over it. Under ``vmap`` over single examples, gradients with respect to
        the parameters are each example's own share of the gradient of all outputs.
      is_frozen: whether batch statistics count as constants in derivatives.
      use_bias: whether convolutions have a bias, which starts at zero.
      running_rate: the weight of a batch in running means of batch statistics, PyTorch's momentum
        (0.1 there); None keeps none. They are the collection ``batch_stats``: where it is mutable,
        the network normalises by the batch and updates them; where it is not, by them.

    Raises:
      InputError: if a name is unknown or the rate not between 0 and 1.
    """

    initialization: str = "lecun"
    normalization: str = "batch"
    use_affine: bool = False
    batch_axis: str | None = None
    is_frozen: bool = False
    use_bias: bool = False
    running_rate: float | None = None

    def __post_init__(self):
        """Checks the names."""
        if self.initialization not in INITIALIZATIONS:
            raise unknown_name(
                "LayerConfig", "initialization", self.initialization, INITIALIZATIONS
            )
        if self.normalization not in NORMALIZATIONS:
            raise unknown_name("LayerConfig", "normalization", self.normalization, NORMALIZATIONS)
        if self.running_rate is not None and not 0 < self.running_rate <= 1:
            raise InputError(
                f"LayerConfig: `running_rate` must be above 0 and at most 1, got "
                f"{self.running_rate}. PyTorch's is 0.1; None keeps no running statistics."
            )

    def kernel_stddev(self, shape: tuple[int, ...]) -> float:
        """Standard deviation of the initial values of a kernel of this shape."""
        fan_in, fan_out = kernel_fans(shape)
        variance = {
            "lecun": 1.0 / fan_in,
            "he": 2.0 / fan_in,
            "xavier": 2.0 / (fan_in + fan_out),
            "ntk": 1.0,
            "pytorch": 1.0 / (3.0 * fan_in),
        }[self.initialization]
        return math.sqrt(variance)

    def kernel_init(self, key: Key, shape: tuple[int, ...]) -> Array:
        """Initial values of a kernel of this shape, float32."""
        if self.initialization == "pytorch":
            bound = math.sqrt(3.0) * self.kernel_stddev(shape)
            return jax.random.uniform(key, shape, jnp.float32, -bound, bound)
        return self.kernel_stddev(shape) * jax.random.normal(key, shape, jnp.float32)

    def classifier_bias_init(self, key: Key, kernel_shape: tuple[int, int]) -> Array:
        """Initial values of the bias that goes with a dense kernel: zeros but for ``"pytorch"``."""
        if self.initialization != "pytorch":
            return jnp.zeros(kernel_shape[1:], jnp.float32)
        bound = 1.0 / math.sqrt(kernel_shape[0])
        return jax.random.uniform(key, kernel_shape[1:], jnp.float32, -bound, bound)

    def output_scale(self, shape: tuple[int, ...]) -> float:
        """The factor on the output of a layer with such a kernel: 1 but for ``"ntk"``."""
        return 1.0 / math.sqrt(kernel_fans(shape)[0]) if self.initialization == "ntk" else 1.0


def check_images(where: str, x: Images, *, divisor: int) -> None:
    """Checks what a network is given, before a layer deep inside fails on it.

    Args:
      where: the network, for the message.
      x: to be ``[batch, height, width, image_channels]``.
      divisor: what height and width must be a multiple of.

    Raises:
      InputError: when traced, if it is not of that form.
    """
    if x.ndim != 4:
        raise InputError(
            f"{where}: `x` must be [batch, height, width, channels], got shape {x.shape}."
        )
    if x.shape[1] % divisor or x.shape[2] % divisor:
        raise InputError(
            f"{where}: height and width of `x` must be multiples of {divisor}, got "
            f"{x.shape[1]} x {x.shape[2]}. Pad or resize the images."
        )


def kernel_fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Inputs that an output of the layer reads, and outputs that read an input.

    Args:
      shape: ``[in, out]``, ``[size, size, in, out]`` or, depthwise, ``[size, size, channels]``.

    Returns:
      ``(fan_in, fan_out)``.
    """
    if len(shape) == 3:
        return shape[0] * shape[1], shape[0] * shape[1]
    area = math.prod(shape[:-2])
    return area * shape[-2], area * shape[-1]


class Conv2D(nn.Module):
    """A convolution, padded so that stride 1 keeps the shape.

    Attributes:
      features: output channels.
      size: side of the square kernel, odd.
      stride: 1, or 2 to halve height and width.
      config: initialisation, and whether there is a bias.
    """

    features: int
    size: int = 3
    stride: int = 1
    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Float[Array, "batch out_height out_width features"]:
        """Convolves ``[batch, height, width, channels]``."""
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.config.kernel_init, shape)
        kernel = kernel * self.config.output_scale(shape)
        if self.stride == 1:
            y = conv2d(x, kernel)
        else:
            x, kernel = promote_dtype(x, kernel)
            half = self.size // 2
            y = lax.conv_general_dilated(
                x,
                kernel,
                (self.stride, self.stride),
                ((half, half), (half, half)),
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
        if self.config.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
            y = y + bias[None, None, None]
        return y


class DepthwiseConv2D(nn.Module):
    """A convolution of each channel with its own filter, padded so that stride 1 keeps the shape.

    Attributes:
      size: side of the square kernel, odd.
      stride: 1, or 2 to halve height and width (every second output is kept).
      dilation: distance between neighbouring taps.
      config: initialisation; the fans are ``size^2``.
    """

    size: int = 3
    stride: int = 1
    dilation: int = 1
    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Float[Array, "batch out_height out_width channels"]:
        """Convolves ``[batch, height, width, channels]``."""
        shape = (self.size, self.size, x.shape[-1])
        kernel = self.param("kernel", self.config.kernel_init, shape)
        kernel = kernel * self.config.output_scale(shape)
        y = depthwise_conv2d(x, kernel, dilation=self.dilation)
        return y[:, :: self.stride, :: self.stride]


class Normalization(nn.Module):
    """Normalisation of each channel, by ``config.normalization``.

    Batch statistics are those of the batch at hand, with the biased variance and ``epsilon`` 1e-5;
    running ones (``config.running_rate``) have the unbiased variance, as PyTorch's.
    """

    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Normalises ``[batch, height, width, channels]``."""
        if self.config.normalization == "none":
            return x
        y = self._normalized(x).astype(x.dtype)
        if self.config.use_affine:
            shape = x.shape[-1:]
            scale = self.param("scale", nn.initializers.ones, shape, jnp.float32)
            bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)
            y = y * scale[None, None, None] + bias[None, None, None]
        return y

    def _normalized(self, x: Images) -> Images:
        config = self.config
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))  # moments need the precision
        if config.running_rate is None:
            return normalize_batch(x, axis_name=config.batch_axis, is_frozen=config.is_frozen)
        shape = x.shape[-1:]
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        variance = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        if not self.is_mutable_collection("batch_stats"):
            rate = lax.rsqrt(variance.value + EPSILON)
            return (x - mean.value[None, None, None]) * rate[None, None, None]
        moments = batch_moments(x, axis_name=config.batch_axis, is_frozen=config.is_frozen)
        if not self.is_initializing():
            count = x.size // x.shape[-1]
            if config.batch_axis is not None:
                count *= lax.axis_size(config.batch_axis)
            unbiased = moments.variance * (count / max(count - 1, 1))
            for running, new in ((mean, moments.mean + moments.shift), (variance, unbiased)):
                new = lax.stop_gradient(new[0, 0, 0])
                running.value += config.running_rate * (new - running.value)
        return moments.normalize(x)


EPSILON = 1e-5
"""Added to variances before the square root."""


class Moments(NamedTuple):
    """Of each channel over batch, height and width, all ``[1, 1, 1, channels]``.

    Attributes:
      shift: a value near the mean, a constant in derivatives.
      mean: of ``x - shift``.
      variance: biased.
    """

    shift: Array
    mean: Array
    variance: Array

    def normalize(self, x: Images) -> Images:
        """``x`` with zero mean and unit variance."""
        return (x - self.shift - self.mean) * lax.rsqrt(self.variance + EPSILON)


def batch_moments(x: Images, *, axis_name: str | None = None, is_frozen: bool = False) -> Moments:
    """Mean and variance of each channel over batch, height and width.

    Args:
      x: ``[batch, height, width, channels]``.
      axis_name: a mapped axis that the batch is spread over in equal parts; None where ``x`` is
        the whole batch.
      is_frozen: whether mean and variance count as constants in derivatives.

    Returns:
      The moments.
    """
    # Both moments in one pass. About a mean far from zero their difference would cancel; about a
    # value of the batch itself it does not, and no derivative depends on that value.
    shift = _over_batch(lax.stop_gradient(jnp.mean(x[:1], (0, 1, 2), keepdims=True)), axis_name)
    source = lax.stop_gradient(x) if is_frozen else x
    source = source - shift
    mean = _over_batch(jnp.mean(source, (0, 1, 2), keepdims=True), axis_name)
    square = _over_batch(jnp.mean(source * source, (0, 1, 2), keepdims=True), axis_name)
    return Moments(shift, mean, jnp.maximum(square - mean * mean, 0.0))


def normalize_batch(x: Images, *, axis_name: str | None = None, is_frozen: bool = False) -> Images:
    """Zero mean and unit variance per channel over batch, height and width.

    ``batch_moments`` has the arguments; the result has the shape of ``x``.
    """
    return batch_moments(x, axis_name=axis_name, is_frozen=is_frozen).normalize(x)


def _over_batch(value: Array, axis_name: str | None) -> Array:
    return value if axis_name is None else lax.pmean(value, axis_name)


class Classifier(nn.Module):
    """Mean over all pixels, then a dense layer with a bias.

    Attributes:
      num_classes: outputs.
      config: initialisation.
    """

    num_classes: int
    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Float[Array, "batch classes"]:
        """Class logits of ``[batch, height, width, channels]``."""
        x = jnp.mean(x, (1, 2))
        shape = (x.shape[-1], self.num_classes)
        kernel = self.param("kernel", self.config.kernel_init, shape)
        bias = self.param("bias", self.config.classifier_bias_init, shape)
        return x @ kernel * self.config.output_scale(shape) + bias[None]


def relu(x: Array) -> Array:
    """``max(x, 0)``, with derivative 0 at 0."""
    return jax.nn.relu(x)
