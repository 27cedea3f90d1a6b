"""How large a network is: parameters, and multiply-adds of a forward pass, without running it."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

_AUXILIARY = "auxiliary"


class NetworkSize(NamedTuple):
    """What a network costs.

    Attributes:
      parameters: numbers that are trained, but for those of an auxiliary head.
      multiply_adds: of convolutions and dense layers, in the forward pass of one image.
    """

    parameters: int
    multiply_adds: int


def network_size(network: nn.Module, image_shape: tuple[int, int, int]) -> NetworkSize:
    """Counts as the field does: no auxiliary head; normalisation, sums and pools cost nothing.

    Args:
      network: ``network.apply(variables, x)`` gives class logits. What has a parameter ``kernel``,
        with an axis of outputs last, is a convolution or a dense layer.
      image_shape: ``(height, width, channels)``.

    Returns:
      The size. Cost: tracing the network; nothing is compiled or run.

    Example:
      >>> from nasjax.networks import NasBench201Network
      >>> network_size(NasBench201Network(), (32, 32, 3))  # nor_conv_3x3 on every edge
      NetworkSize(parameters=1524282, multiply_adds=220119680)
    """
    multiply_adds = 0

    def count(next_fun, args, kwargs, context):
        nonlocal multiply_adds
        out, module = next_fun(*args, **kwargs), context.module
        if context.method_name == "__call__" and module.has_variable("params", "kernel"):
            kernel = module.get_variable("params", "kernel")
            # A filter for each output channel; depthwise ones read one channel.
            multiply_adds += out.size * (kernel.size // kernel.shape[-1])
        return out

    x = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    variables = jax.eval_shape(network.init, jax.random.key(0), x)
    trained = {name: tree for name, tree in variables["params"].items() if name != _AUXILIARY}
    kept = {name: tree for name, tree in variables.items() if name != _AUXILIARY}
    with nn.intercept_methods(count):
        jax.eval_shape(network.apply, {**kept, "params": trained}, x)
    return NetworkSize(sum(leaf.size for leaf in jax.tree.leaves(trained)), multiply_adds)
