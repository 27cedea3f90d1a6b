"""What DARTS networks of full size have besides cells: stems and the auxiliary head."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from nasjax.networks.layers import Classifier, Conv2D, LayerConfig, Normalization, relu
from nasjax.types import Images

STEMS = {
    "cifar": "a 3x3 convolution to three times the channels; both inputs of the first cell",
    "tiny": "the same with stride 2 (Tiny-ImageNet)",
    "imagenet": "three 3x3 convolutions of stride 2, the last between the inputs of the first cell",
}
STEM_DIVISORS = {"cifar": 1, "tiny": 2, "imagenet": 8}
"""How much smaller than the image the first cell's second input is."""


def stem(kind: str, channels: int, config: LayerConfig, x: Images) -> tuple[Images, Images]:
    """From images to the two inputs of the first cell; the layers are those of the calling module.

    Args:
      kind: a key of ``STEMS``.
      channels: of a node in the first cells.
      config: initialisation and normalisation.
      x: ``[batch, height, width, image_channels]``.

    Returns:
      Two images of ``3 channels`` or, for ImageNet, ``channels`` channels.
    """

    def layer(name, features, stride, x):
        x = Conv2D(features, 3, stride, config, name=f"stem_conv{name}")(x)
        return Normalization(config, name=f"stem_norm{name}")(x)

    if kind != "imagenet":
        x = layer("", 3 * channels, STEM_DIVISORS[kind], x)
        return x, x
    x = layer("_0", channels // 2, 2, x)
    first = layer("_1", channels, 2, relu(x))
    return first, layer("_2", channels, 2, relu(first))


class AuxiliaryHead(nn.Module):
    """The classifier beside the network, on what it makes of an image of 8x8 or 7x7 pixels.

    ReLU, mean over 5x5 windows, 1x1 convolution to 128 channels, 2x2 convolution to 768, each with
    normalisation and ReLU, classifier.

    Attributes:
      num_classes: outputs.
      stride: of the windows: 3 on 8x8 pixels (CIFAR), 2 on 7x7 (ImageNet); both leave 2x2.
      is_last_normalized: whether the second convolution is normalised; in DARTS's network for
        ImageNet it is not.
      config: initialisation and normalisation.
    """

    num_classes: int
    stride: int = 3
    is_last_normalized: bool = True
    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Float[jax.Array, "batch classes"]:
        """Class logits of ``[batch, height, width, channels]``, at least 5 + stride a side."""
        x = Conv2D(128, 1, 1, self.config, name="conv_0")(_mean_5x5(relu(x), self.stride))
        x = relu(Normalization(self.config, name="norm_0")(x))
        x = _Conv2x2(768, self.config, name="conv_1")(x)
        if self.is_last_normalized:
            x = Normalization(self.config, name="norm_1")(x)
        return Classifier(self.num_classes, self.config, name="classifier")(relu(x))


class _Conv2x2(nn.Module):
    features: int
    config: LayerConfig

    @nn.compact
    def __call__(self, x):
        shape = (2, 2, x.shape[-1], self.features)
        kernel = self.param("kernel", self.config.kernel_init, shape)
        kernel = kernel * self.config.output_scale(shape)
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout)


def _mean_5x5(x, stride):
    """Means over whole windows: few, so slices are cheaper to compile than XLA's window."""
    tops = range(0, x.shape[1] - 4, stride)
    lefts = range(0, x.shape[2] - 4, stride)
    rows = [
        jnp.stack([x[:, top : top + 5, left : left + 5].mean((1, 2)) for left in lefts], 1)
        for top in tops
    ]
    return jnp.stack(rows, 1)
