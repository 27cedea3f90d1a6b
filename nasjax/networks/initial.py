"""Initial parameters of a whole network in one draw."""

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
      The tree ``network.init(key, *args)["params"]``: kernels normal, scales 1, biases 0.
    """
    shapes = jax.eval_shape(network.init, jax.random.key(0), *args)["params"]
    paths, structure = jax.tree.flatten_with_path(shapes)
    sizes = [leaf.size if path[-1].key == "kernel" else 0 for path, leaf in paths]
    # A longer draw begins with the same numbers: few lengths, as each one compiles a program.
    length = 1 << sum(sizes).bit_length()
    draw = np.asarray(jax.random.normal(key, (length,), np.float32))
    ends = np.cumsum(sizes)

    def initial(path, leaf, size, end):
        name = path[-1].key
        if name != "kernel":
            return np.full(leaf.shape, {"scale": 1.0, "bias": 0.0}[name], np.float32)
        stddev = np.float32(network.config.kernel_stddev(leaf.shape))
        return stddev * draw[end - size : end].reshape(leaf.shape)

    leaves = [
        initial(path, leaf, size, end)
        for (path, leaf), size, end in zip(paths, sizes, ends, strict=True)
    ]
    return jax.tree.map(jax.numpy.asarray, jax.tree.unflatten(structure, leaves))
