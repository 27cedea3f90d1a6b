"""A network as a list of steps between numbered values, which can be walked forward and back."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from nasjax.metrics.conv_rule import ConvBlock
from nasjax.networks import LayerConfig
from nasjax.networks.pooling import avg_pool_3x3, halve, max_pool_3x3
from nasjax.spaces.nasbench201 import EDGES, OPERATIONS, prune

IMAGES = 0
"""The number of the value that is the batch of images."""


class Step(NamedTuple):
    """One operation; values that several steps lead to are sums.

    Attributes:
      kind: ``"conv"``, ``"affine"``, ``"classify"`` or a key of ``PLAIN``.
      source: number of the value that it reads.
      target: number of the value that it adds to; greater than ``source``.
      path: of its parameters in the network's tree; empty where it has none.
      block: of a convolution.
    """

    kind: str
    source: int
    target: int
    path: tuple[str, ...] = ()
    block: ConvBlock | None = None


PLAIN: dict[str, Callable] = {
    "avg_pool": avg_pool_3x3,
    "halve": halve,
    "max_pool": max_pool_3x3,
    "skip": lambda x: x,
}
"""Operations without parameters that treat every example by itself."""


class Plan(NamedTuple):
    """The steps of a network.

    Attributes:
      steps: in an order in which every value is complete before it is read.
      is_dead: whether no path leads from the images to the outputs; there are no steps then.
    """

    steps: tuple[Step, ...]
    is_dead: bool


class _Builder:
    """Collects steps and numbers values."""

    def __init__(self):
        self.steps: list[Step] = []
        self._num_values = 1

    def value(self) -> int:
        self._num_values += 1
        return self._num_values - 1

    def add(self, kind, source, target=None, path=(), block=None) -> int:
        target = self.value() if target is None else target
        self.steps.append(Step(kind, source, target, path, block))
        return target

    def conv(self, source, path, config, *, target=None, stride=1, has_relu=True) -> int:
        """ReLU, convolution and normalisation, as ``ReluConvNorm`` has them under ``path``."""
        is_normalized = config.normalization == "batch"
        block = ConvBlock(has_relu, is_normalized, stride)
        if is_normalized and config.use_affine:
            source = self.add("conv", source, None, (*path, "conv"), block)
            return self.add("affine", source, target, (*path, "norm"))
        return self.add("conv", source, target, (*path, "conv"), block)


def nasbench201_plan(
    genotype: np.ndarray,
    *,
    num_cells: int = 5,
    config: LayerConfig | None = None,
    cell_config: LayerConfig | None = None,
    reduction_config: LayerConfig | None = None,
) -> Plan:
    """The steps of ``NasBench201Network``.

    Args:
      genotype: ``[6]``.
      num_cells: cells a stage.
      config: initialisation and normalisation; None takes ``LayerConfig()``.
      cell_config: of the cells; None takes ``config``.
      reduction_config: of the reduction blocks; None takes ``config``.

    Returns:
      The plan, without edges that no path from input to output takes.
    """
    genotype = prune(genotype)
    if not genotype.any():
        return Plan((), is_dead=True)
    config = config or LayerConfig()
    cell_config, reduction_config = cell_config or config, reduction_config or config
    plan = _Builder()
    stem = ConvBlock(False, config.normalization == "batch")
    x = plan.add("conv", IMAGES, None, ("stem_conv",), stem)
    if stem.is_normalized and config.use_affine:
        x = plan.add("affine", x, None, ("stem_norm",))
    for stage in range(3):
        if stage > 0:
            x = _reduction(plan, x, f"reduction_{stage}", reduction_config)
        for cell in range(num_cells):
            x = _cell(plan, x, genotype, f"stage_{stage}_cell_{cell}", cell_config)
    if config.normalization == "batch":
        x = plan.add("normalize", x)
        if config.use_affine:
            x = plan.add("affine", x, None, ("last_norm",))
    plan.add("classify", x, None, ("classifier",))
    return Plan(tuple(plan.steps), is_dead=False)


def _reduction(plan, x, name, config) -> int:
    middle = plan.conv(x, (name, "conv_a"), config, stride=2)
    target = plan.value()
    plan.conv(middle, (name, "conv_b"), config, target=target)
    halved = plan.add("halve", x)
    return plan.add("conv", halved, target, (name, "shortcut"), ConvBlock(False, False))


def _cell(plan, x, genotype, name, config) -> int:
    nodes = [x, None, None, None]
    for edge, (target, source) in enumerate(EDGES):
        operation = OPERATIONS[genotype[edge]]
        if operation == "none":
            continue
        if nodes[target] is None:
            nodes[target] = plan.value()
        if operation in ("skip_connect", "avg_pool_3x3"):
            kind = {"skip_connect": "skip", "avg_pool_3x3": "avg_pool"}[operation]
            plan.add(kind, nodes[source], nodes[target])
        else:
            path = (name, f"edge_{edge}", operation)
            plan.conv(nodes[source], path, config, target=nodes[target])
    return nodes[3]


PLANS: dict[str, Callable[..., Plan]] = {"nasbench201": nasbench201_plan}
"""``(genotype, num_cells=, config=, ...) -> plan`` by space."""
