"""Small networks that the kernel tests share."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from nasjax.networks import LayerConfig
from nasjax.networks.layers import Classifier, Conv2D, Normalization, relu
from nasjax.ntk import BATCH_AXIS


def dense_network(key, *, num_outputs=3):
    """Two hidden layers: ``(apply_fn, params)`` for inputs ``[batch, 5]``."""
    widths = (5, 11, 7, num_outputs)
    keys = jax.random.split(key, 3)
    params = [
        jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, shape in zip(keys, zip(widths[:-1], widths[1:], strict=True), strict=True)
    ]

    def apply_fn(params, x):
        for kernel in params[:-1]:
            x = jnp.tanh(x @ kernel)
        return x @ params[-1]

    return apply_fn, params


def dense_data(key, num_examples=6):
    return jax.random.normal(key, (num_examples, 5))


class ConvNetwork(nn.Module):
    """Two convolutions, normalised."""

    config: LayerConfig

    @nn.compact
    def __call__(self, x):
        for size in (3, 1):
            x = Conv2D(3, size, 1, self.config)(x)
            x = relu(Normalization(self.config)(x))
        return Classifier(3, self.config)(x)


def conv_network(key, *, batch_axis=None, is_frozen=False, normalization="batch"):
    """``(apply_fn, params)`` for images ``[batch, 4, 4, 2]``; parameters in JAX's default type."""
    config = LayerConfig(
        "lecun", normalization, use_affine=True, batch_axis=batch_axis, is_frozen=is_frozen
    )
    plain = ConvNetwork(LayerConfig("lecun", normalization, use_affine=True))
    params = plain.init(key, jnp.zeros((2, 4, 4, 2)))["params"]
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.zeros(()).dtype), params)
    return lambda params, x: ConvNetwork(config).apply({"params": params}, x), params


def mapped(apply_fn):
    """A network that reads its statistics over ``BATCH_AXIS``, on a batch with own parameters."""

    def run(params, x):
        one = lambda params, x: apply_fn(params, x[None])[0]  # noqa: E731
        return jax.vmap(one, axis_name=BATCH_AXIS)(params, x)

    return run


class FlaxModel(nn.Module):
    """A Flax model with its own batch normalisation and dropout."""

    dropout: float = 0.0

    @nn.compact
    def __call__(self, x, *, train):
        x = nn.Dense(9)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.Dropout(self.dropout, deterministic=not train)(nn.relu(x))
        return nn.Dense(3)(x)
