"""A network as a list of steps between numbered values, which can be walked forward and back."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from nasjax.metrics import conv_kernels
from nasjax.metrics.conv_rule import ConvBlock
from nasjax.networks import LayerConfig
from nasjax.networks.pooling import avg_pool_3x3

IMAGES = 0
"""The number of the value that is the batch of images."""

PlainFn = Callable[[Array], Array]
"""An operation without parameters that treats every example by itself."""


class Step(NamedTuple):
    """One operation; values that several steps lead to are sums.

    Attributes:
      kind: ``"conv"``, ``"normalize"``, ``"affine"``, ``"concat"``, ``"plain"`` or ``"classify"``:
        the mean over all pixels and a dense layer.
      sources: numbers of the values that it reads; one, but for ``"concat"``.
      target: number of the value that it adds to; greater than those of its sources.
      path: of its parameters in the network's tree; empty where it has none.
      block: of a convolution.
      operation: of a plain step.
    """

    kind: str
    sources: tuple[int, ...]
    target: int
    path: tuple[str, ...] = ()
    block: ConvBlock | None = None
    operation: PlainFn | None = None


class Plan(NamedTuple):
    """The steps of a network.

    Attributes:
      steps: in an order in which every value is complete before it is read.
      is_dead: whether no path leads from the images to the outputs; there are no steps then.
    """

    steps: tuple[Step, ...]
    is_dead: bool


def native_plan(plan: Plan) -> Plan:
    """The same with convolutions by ``conv_kernels``, of blocks that it serves, and mean pools."""

    def native(step):
        if step.block is not None:
            return step._replace(block=step.block._replace(is_native=True))
        if step.operation is avg_pool_3x3:
            return step._replace(operation=conv_kernels.avg_pool_3x3)
        return step

    return plan._replace(steps=tuple(map(native, plan.steps)))


def same(x: Array) -> Array:
    """The operation of a skip connection."""
    return x


def relu(x: Array) -> Array:
    """A ReLU that stands by itself, not before a convolution of the plan."""
    return jnp.where(x > 0, x, 0)


@functools.cache
def first_channels(count: int) -> PlainFn:
    """The operation that keeps the first channels, one object a count: programs are kept by it."""
    return lambda x: x[..., :count]


class PlanBuilder:
    """Collects steps and numbers values."""

    def __init__(self):
        """Starts with the images alone."""
        self._steps: list[Step] = []
        self._num_values = 1

    def value(self) -> int:
        """The number of a new value, which steps are to be added to."""
        self._num_values += 1
        return self._num_values - 1

    def add(self, kind: str, source: int, target: int | None = None, **attributes) -> int:
        """Adds a step of one source; the number of its target, a new one for None."""
        target = self.value() if target is None else target
        self._steps.append(Step(kind, (source,), target, **attributes))
        return target

    def plain(self, operation: PlainFn, source: int, target: int | None = None) -> int:
        """Adds an operation without parameters."""
        return self.add("plain", source, target, operation=operation)

    def concat(self, sources: list[int]) -> int:
        """Adds the concatenation of values along their channels."""
        target = self.value()
        self._steps.append(Step("concat", tuple(sources), target))
        return target

    def conv(
        self,
        source: int,
        conv_path: tuple[str, ...],
        norm_path: tuple[str, ...],
        config: LayerConfig,
        target: int | None = None,
        **block,
    ) -> int:
        """Adds a convolution and the normalisation that follows.

        Args:
          source: what it reads.
          conv_path: of its kernel.
          norm_path: of the scale and offset of the normalisation, where there are any.
          config: which of that there is.
          target: what it adds to; None for a new value.
          **block: attributes of ``ConvBlock``.

        Returns:
          The number of the target.
        """
        is_normalized = config.normalization == "batch"
        block = ConvBlock(is_normalized=is_normalized, **block)
        if not (is_normalized and config.use_affine):
            return self.add("conv", source, target, path=conv_path, block=block)
        source = self.add("conv", source, path=conv_path, block=block)
        return self.add("affine", source, target, path=norm_path)

    def normalize(
        self, source: int, path: tuple[str, ...], config: LayerConfig, target: int | None = None
    ) -> int:
        """Adds a normalisation by itself; nothing new for a network without."""
        if config.normalization == "none":
            return source if target is None else self.plain(same, source, target)
        if not config.use_affine:
            return self.add("normalize", source, target)
        return self.add("affine", self.add("normalize", source), target, path=path)

    def plan(self) -> Plan:
        """All steps."""
        return Plan(tuple(self._steps), is_dead=False)
