"""The candidate operations of the cell search spaces, as Flax modules that keep the channels."""

import flax.linen as nn
import jax.numpy as jnp

from nasjax.networks.layers import Conv2D, DepthwiseConv2D, LayerConfig, Normalization, relu
from nasjax.networks.pooling import avg_pool_3x3, max_pool_3x3
from nasjax.types import Images


class Identity(nn.Module):
    """The input itself."""

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Returns ``x``."""
        return x


class Zero(nn.Module):
    """No connection: zeros of the shape of the input."""

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Returns zeros."""
        return jnp.zeros_like(x)


class Pool(nn.Module):
    """A 3x3 pool, normalised where the search space says so.

    Attributes:
      kind: ``"max"`` or ``"avg"``.
      stride: 1 or 2.
      is_normalized: whether a normalisation follows (DARTS during search).
      config: normalisation.
    """

    kind: str
    stride: int = 1
    is_normalized: bool = False
    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Pools ``[batch, height, width, channels]``."""
        y = {"max": max_pool_3x3, "avg": avg_pool_3x3}[self.kind](x, stride=self.stride)
        return Normalization(self.config, name="norm")(y) if self.is_normalized else y


class ReluConvNorm(nn.Module):
    """ReLU, convolution, normalisation.

    Attributes:
      features: output channels.
      size: side of the kernel.
      stride: 1 or 2.
      config: initialisation and normalisation.
    """

    features: int
    size: int
    stride: int = 1
    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Maps ``[batch, height, width, channels]`` to ``features`` channels."""
        x = Conv2D(self.features, self.size, self.stride, self.config, name="conv")(relu(x))
        return Normalization(self.config, name="norm")(x)


class ConvNormRelu(nn.Module):
    """Convolution, normalisation, ReLU.

    Attributes:
      features: output channels.
      size: side of the kernel.
      config: initialisation and normalisation.
    """

    features: int
    size: int
    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Maps ``[batch, height, width, channels]`` to ``features`` channels."""
        x = Conv2D(self.features, self.size, 1, self.config, name="conv")(x)
        return relu(Normalization(self.config, name="norm")(x))


class SeparableConv(nn.Module):
    """ReLU, depthwise and 1x1 convolution, normalisation; ``repeats`` times.

    DARTS's separable convolution repeats twice, the first with the stride; its dilated separable
    convolution has dilation 2 and one repeat.

    Attributes:
      features: channels in and out.
      size: side of the depthwise kernel.
      dilation: of the depthwise kernel.
      repeats: how often the block is applied.
      stride: 1 or 2, in the first block.
      config: initialisation and normalisation.
    """

    features: int
    size: int
    dilation: int = 1
    repeats: int = 2
    stride: int = 1
    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Maps ``[batch, height, width, channels]`` to the shape that the stride leaves."""
        for repeat in range(self.repeats):
            stride = self.stride if repeat == 0 else 1
            depthwise = DepthwiseConv2D(
                self.size, stride, self.dilation, self.config, name=f"depthwise_{repeat}"
            )
            x = depthwise(relu(x))
            x = Conv2D(self.features, 1, 1, self.config, name=f"pointwise_{repeat}")(x)
            x = Normalization(self.config, name=f"norm_{repeat}")(x)
        return x


class FactorizedReduce(nn.Module):
    """ReLU, two 1x1 convolutions of stride 2 (one shifted by a pixel), normalisation.

    Attributes:
      features: output channels, even.
      config: initialisation and normalisation.
    """

    features: int
    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Halves height and width of ``[batch, height, width, channels]`` (both even)."""
        x = relu(x)
        half = self.features // 2
        even = Conv2D(half, 1, 1, self.config, name="conv_0")(x[:, ::2, ::2])
        odd = Conv2D(self.features - half, 1, 1, self.config, name="conv_1")(x[:, 1::2, 1::2])
        return Normalization(self.config, name="norm")(jnp.concatenate([even, odd], -1))
