"""Fully connected networks with searched activations and skip connections (Eigen-NAS, eq. 1)."""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array
from jaxtyping import Float

from nasjax.errors import InputError, unknown_name
from nasjax.networks.activations import ACTIVATIONS
from nasjax.networks.layers import LayerConfig
from nasjax.spaces.base import host_genotype
from nasjax.spaces.mlp import genotype_bounds, split_genotype
from nasjax.types import Key, Weights

MLP_INITIALIZATIONS = {
    "ntk": "standard normal; the outputs of all layers but the first times sqrt(2 / width): the "
    "limit that Eigen-NAS lemma 1 describes",
    "theory": "normal, variance 1 / width in every layer: Eigen-NAS algorithm 1 and theorem 2",
    "lecun": "normal, variance 1 / fan_in",
    "he": "normal, variance 2 / fan_in",
    "xavier": "normal, variance 2 / (fan_in + fan_out)",
}


@dataclasses.dataclass(frozen=True)
class MlpConfig:
    """How the layers of a network start.

    Attributes:
      initialization: a key of ``MLP_INITIALIZATIONS``.
      width: of the hidden layers.

    Raises:
      InputError: if the name is unknown or the width below 1.
    """

    initialization: str
    width: int

    def __post_init__(self):
        """Checks the values."""
        if self.initialization not in MLP_INITIALIZATIONS:
            raise unknown_name(
                "MlpConfig", "initialization", self.initialization, MLP_INITIALIZATIONS
            )
        if self.width < 1:
            raise InputError(f"MlpConfig: `width` must be at least 1, got {self.width}.")

    def kernel_stddev(self, shape: tuple[int, ...]) -> float:
        """Standard deviation of the initial values of a kernel ``[in, out]``."""
        if self.initialization == "theory":
            return 1.0 / math.sqrt(self.width)
        return LayerConfig(self.initialization).kernel_stddev(shape)

    def kernel_init(self, key: Key, shape: tuple[int, ...]) -> Array:
        """Initial values of a kernel ``[in, out]``, float32."""
        return self.kernel_stddev(shape) * jax.random.normal(key, shape, jnp.float32)

    def output_scale(self, *, is_first: bool) -> float:
        """The factor on the output of a layer: 1 but for ``"ntk"`` behind the first layer."""
        has_scale = self.initialization == "ntk" and not is_first
        return math.sqrt(2.0 / self.width) if has_scale else 1.0


class Dense(nn.Module):
    """A linear layer without bias.

    Attributes:
      features: outputs.
      config: initialisation.
      is_first: whether it reads the network's input.
    """

    features: int
    config: MlpConfig
    is_first: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "batch features"]) -> Float[Array, "batch out_features"]:
        """Multiplies ``[batch, features]`` by the kernel."""
        kernel = self.param("kernel", self.config.kernel_init, (x.shape[-1], self.features))
        x, kernel = promote_dtype(x, kernel)
        return x @ kernel * self.config.output_scale(is_first=self.is_first)


class _Trunk(nn.Module):
    """What the one-shot and the static network share; a subclass gives what a layer computes."""

    width: int = 1024
    num_outputs: int = 10
    initialization: str = "ntk"

    @property
    def config(self) -> MlpConfig:
        """Initialisation of the layers."""
        return MlpConfig(self.initialization, self.width)

    def trunk(self, x, num_hidden, activate):
        """``activate(layer, z, previous) -> f`` with layers from 0 and ``previous`` None there."""
        if x.ndim < 2:
            raise InputError(
                f"{type(self).__name__}: `x` must be [batch, ...], got shape {x.shape}."
            )
        f = x.reshape(len(x), -1)
        for layer in range(num_hidden):
            z = Dense(self.width, self.config, layer == 0, name=f"layer_{layer + 1}")(f)
            f = activate(layer, z, f if layer else None)
        return Dense(self.num_outputs, self.config, name="output")(f)


class MlpNetwork(_Trunk):
    """The network of one genotype.

    Attributes:
      width: of the hidden layers; the paper takes 1024.
      num_outputs: outputs; 1 in the paper's theory.
      initialization: a key of ``MLP_INITIALIZATIONS``.
      genotype: as in the space ``mlp``, of any depth from 3.

    Raises:
      InputError: when built, if an attribute is unknown or out of range.
    """

    genotype: tuple[int, ...] = (0, 0, 0)

    def __post_init__(self):
        """Checks the attributes."""
        depth = max(3, (len(self.genotype) + 3) // 2)
        host_genotype("MlpNetwork", self.genotype, genotype_bounds(depth))
        MlpConfig(self.initialization, self.width)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Float[Array, "batch ..."]) -> Float[Array, "batch outputs"]:
        """Outputs of ``[batch, ...]``, flattened to ``[batch, features]``."""
        activations, skips = split_genotype(self.genotype)
        functions = [list(ACTIVATIONS.values())[index] for index in activations]

        def activate(layer, z, previous):
            f = functions[layer](z)
            return f + previous if layer and skips[layer - 1] else f

        return self.trunk(x, len(activations), activate)


class MlpOneShot(_Trunk):
    """One-shot network: every layer mixes all activations, and a skip connection with nothing.

    It has the parameters of the static network, under the same names, whatever the weights. All
    activations are evaluated, which costs little beside the layer's product; weights may be
    relaxed, and differentiated to any order.

    Attributes:
      width: of the hidden layers; the paper takes 1024.
      num_outputs: outputs; 1 in the paper's theory.
      initialization: a key of ``MLP_INITIALIZATIONS``.

    Raises:
      InputError: when built, if an attribute is unknown or out of range.
    """

    def __post_init__(self):
        """Checks the attributes."""
        MlpConfig(self.initialization, self.width)
        super().__post_init__()

    @nn.compact
    def __call__(
        self, weights: Weights, x: Float[Array, "batch ..."]
    ) -> Float[Array, "batch outputs"]:
        """Outputs.

        Args:
          weights: ``{"activations": [depth - 1, 5], "skips": [depth - 2, 2]}``; the second weight
            of a skip scales it, the first is that of nothing. The depth is told from the shapes.
          x: ``[batch, ...]``, flattened to ``[batch, features]``.

        Returns:
          ``[batch, num_outputs]``.

        Raises:
          InputError: when traced, if a shape does not fit.
        """
        activations, skips = weights["activations"], weights["skips"]
        shapes = (jnp.shape(activations), jnp.shape(skips))
        num_hidden = shapes[0][0]
        if num_hidden < 2 or shapes != ((num_hidden, len(ACTIVATIONS)), (num_hidden - 1, 2)):
            raise InputError(
                f"MlpOneShot: `weights` must have shapes [depth - 1, {len(ACTIVATIONS)}] and "
                f"[depth - 2, 2] with depth >= 3, got {list(shapes[0])} and {list(shapes[1])}."
            )

        def activate(layer, z, previous):
            mix = activations[layer].astype(z.dtype)
            f = sum(w * function(z) for w, function in zip(mix, ACTIVATIONS.values(), strict=True))
            return f + skips[layer - 1, 1].astype(z.dtype) * previous if layer else f

        return self.trunk(x, num_hidden, activate)
