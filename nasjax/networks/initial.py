"""Initial parameters of a whole network in one draw."""

import math

import flax.linen as nn
import jax
import numpy as np

from nasjax.types import Key, PyTree


def init_params(key: Key, network: nn.Module, *args) -> PyTree:
    """Initial parameters, with the distribution of ``network.init`` but without its compilations.

    Flax draws each kernel by itself, and on CPU each new shape costs about a second of compilation;
    here the shapes are found without running anything, and one draw serves all kernels.

    Args:
      key: drawn from once.
      network: a network of this package, whose ``config`` gives the initialisation.
      *args: what the network is called with, arrays or ``jax.ShapeDtypeStruct``.

    Returns:
      The tree ``network.init(key, *args)["params"]``: kernels normal (uniform with ``"pytorch"``,
      classifiers' biases too), scales 1, biases 0.
    """
    shapes = jax.eval_shape(network.init, jax.random.key(0), *args)["params"]
    paths, structure = jax.tree.flatten_with_path(shapes)
    is_uniform = network.config.initialization == "pytorch"
    leaves = {path: leaf for path, leaf in paths}
    kernels = {path: _kernel_of(path, leaves, is_uniform=is_uniform) for path in leaves}
    sizes = [0 if kernels[path] is None else leaf.size for path, leaf in paths]
    # A longer draw begins with the same numbers: few lengths, as each one compiles a program.
    length = 1 << sum(sizes).bit_length()
    if is_uniform:
        bound = math.sqrt(3.0)  # of variance 1
        draw = jax.random.uniform(key, (length,), np.float32, -bound, bound)
    else:
        draw = jax.random.normal(key, (length,), np.float32)
    draw, ends = np.asarray(draw), np.cumsum(sizes)

    def initial(path, leaf, size, end):
        if kernels[path] is None:
            return np.full(leaf.shape, {"scale": 1.0, "bias": 0.0}[path[-1].key], np.float32)
        stddev = np.float32(network.config.kernel_stddev(kernels[path].shape))
        return stddev * draw[end - size : end].reshape(leaf.shape)

    drawn = [
        initial(path, leaf, size, end)
        for (path, leaf), size, end in zip(paths, sizes, ends, strict=True)
    ]
    return jax.tree.map(jax.numpy.asarray, jax.tree.unflatten(structure, drawn))


def _kernel_of(path, leaves, *, is_uniform: bool):
    """The kernel whose fans give a drawn leaf its variance; None where the leaf is not drawn."""
    if path[-1].key == "kernel":
        return leaves[path]
    kernel = leaves.get((*path[:-1], jax.tree_util.DictKey("kernel")))
    is_drawn = is_uniform and path[-1].key == "bias" and kernel is not None and kernel.ndim == 2
    return kernel if is_drawn else None
