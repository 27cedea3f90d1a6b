"""Convolution, dense and normalisation layers whose initialisation is an explicit choice."""

import dataclasses
import math

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

    Raises:
      InputError: if a name is unknown.
    """

    initialization: str = "lecun"
    normalization: str = "batch"
    use_affine: bool = False
    batch_axis: str | None = None
    is_frozen: bool = False
    use_bias: bool = False

    def __post_init__(self):
        """Checks the names."""
        if self.initialization not in INITIALIZATIONS:
            raise unknown_name(
                "LayerConfig", "initialization", self.initialization, INITIALIZATIONS
            )
        if self.normalization not in NORMALIZATIONS:
            raise unknown_name("LayerConfig", "normalization", self.normalization, NORMALIZATIONS)

    def kernel_stddev(self, shape: tuple[int, ...]) -> float:
        """Standard deviation of the initial values of a kernel of this shape."""
        fan_in, fan_out = kernel_fans(shape)
        variance = {
            "lecun": 1.0 / fan_in,
            "he": 2.0 / fan_in,
            "xavier": 2.0 / (fan_in + fan_out),
            "ntk": 1.0,
        }[self.initialization]
        return math.sqrt(variance)

    def kernel_init(self, key: Key, shape: tuple[int, ...]) -> Array:
        """Initial values of a kernel of this shape, float32."""
        return self.kernel_stddev(shape) * jax.random.normal(key, shape, jnp.float32)

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

    Batch statistics are those of the batch at hand, with the biased variance and ``epsilon`` 1e-5.
    """

    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Normalises ``[batch, height, width, channels]``."""
        if self.config.normalization == "none":
            return x
        y = normalize_batch(x, axis_name=self.config.batch_axis, is_frozen=self.config.is_frozen)
        if self.config.use_affine:
            shape = x.shape[-1:]
            scale = self.param("scale", nn.initializers.ones, shape, jnp.float32)
            bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)
            y = y * scale[None, None, None] + bias[None, None, None]
        return y


def normalize_batch(
    x: Images, *, epsilon: float = 1e-5, axis_name: str | None = None, is_frozen: bool = False
) -> Images:
    """Zero mean and unit variance per channel over batch, height and width.

    Args:
      x: ``[batch, height, width, channels]``.
      epsilon: added to the (biased) variance.
      axis_name: a mapped axis that the batch is spread over in equal parts; None where ``x`` is
        the whole batch.
      is_frozen: whether mean and variance count as constants in derivatives.

    Returns:
      An array of the shape of ``x``.
    """
    # Both moments in one pass. About a mean far from zero their difference would cancel; about a
    # value of the batch itself it does not, and no derivative depends on that value.
    x -= _over_batch(lax.stop_gradient(jnp.mean(x[:1], (0, 1, 2), keepdims=True)), axis_name)
    source = lax.stop_gradient(x) if is_frozen else x
    mean = _over_batch(jnp.mean(source, (0, 1, 2), keepdims=True), axis_name)
    square = _over_batch(jnp.mean(source * source, (0, 1, 2), keepdims=True), axis_name)
    variance = jnp.maximum(square - mean * mean, 0.0)
    return (x - mean) * lax.rsqrt(variance + epsilon)


def _over_batch(value: Array, axis_name: str | None) -> Array:
    return value if axis_name is None else lax.pmean(value, axis_name)


class Classifier(nn.Module):
    """Mean over all pixels, then a dense layer with a bias that starts at zero.

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
        bias = self.param("bias", nn.initializers.zeros, (self.num_classes,), jnp.float32)
        return x @ kernel * self.config.output_scale(shape) + bias[None]


def relu(x: Array) -> Array:
    """``max(x, 0)``, with derivative 0 at 0."""
    return jax.nn.relu(x)
