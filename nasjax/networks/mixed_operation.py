"""The mixture of candidate operations on one edge of a one-shot cell."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from nasjax.types import Images, PyTree


class MixedOperation(nn.Module):
    """Weighted sum of all operations on one input: any weights, every order of derivative.

    The parameters of operation ``name`` stand under ``name``, as they do in the static network.

    Attributes:
      names: the operations' names.
      make: ``make(name) -> module``, unbound.
    """

    names: tuple[str, ...]
    make: Callable[[str], nn.Module]

    @nn.compact
    def __call__(self, weights: Float[Array, " choices"], x: Images) -> Images:
        """``sum_j weights_j operation_j(x)`` of ``[batch, height, width, channels]``."""
        modules = [self.make(name) for name in self.names]
        if self.is_initializing():
            for name, module in zip(self.names, modules, strict=True):
                init_submodule(self, name, module, x)
            return x  # operations keep the shape, and nobody asked for values
        params = operation_params(self.variables.get("params", {}), self.names)
        outputs = (
            module.apply({"params": p}, x) for module, p in zip(modules, params, strict=True)
        )
        return sum(weight * y for weight, y in zip(weights, outputs, strict=True))


class SingleOperation(nn.Module):
    """One operation, whose parameters stand where ``MixedOperation`` keeps them.

    Attributes:
      operation: its name.
      make: ``make(operation, name=...) -> module``.
    """

    operation: str
    make: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Applies the operation to ``[batch, height, width, channels]``."""
        return self.make(self.operation, name=self.operation)(x)


def operation_params(params: PyTree, names: Sequence[str]) -> tuple[PyTree, ...]:
    """The parameters of each operation; an empty dictionary where it has none."""
    return tuple(params.get(name, {}) for name in names)


def stack_trees(trees: Sequence[PyTree]) -> PyTree:
    """One tree whose leaves have a leading axis over ``trees``, which are of equal shapes."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def init_submodule(parent: nn.Module, name: str, module: nn.Module, *args) -> None:
    """Makes the parameters of an unbound module and keeps them in ``parent``.

    Args:
      parent: a bound module that is initialising.
      name: where the parameters are kept; nothing is where the module has none.
      module: the unbound module.
      *args: what it is called with; images among them (four axes) are cut to one of 4x4 pixels.
    """
    small = [jnp.zeros((1, 4, 4, a.shape[-1]), a.dtype) if a.ndim == 4 else a for a in args]
    variables = module.init(parent.make_rng("params"), *small)
    if "params" in variables:
        parent.put_variable("params", name, variables["params"])
