"""DARTS networks: the one-shot network of NASI's search and the network of one genotype."""

import functools
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from nasjax.errors import unknown_name
from nasjax.networks.drawn_cell import Wiring, as_branches, drawn_cell
from nasjax.networks.drop_path import DropPath, drop_path
from nasjax.networks.full_size import STEM_DIVISORS, STEMS, AuxiliaryHead, stem
from nasjax.networks.layers import Classifier, LayerConfig, check_images
from nasjax.networks.mixed_operation import (
    MixedOperation,
    SingleOperation,
    init_submodule,
    operation_params,
    stack_trees,
)
from nasjax.networks.operations import (
    FactorizedReduce,
    Identity,
    Pool,
    ReluConvNorm,
    SeparableConv,
)
from nasjax.networks.partial_channels import check_parts, in_part
from nasjax.networks.pooling import max_pool_3x3
from nasjax.networks.stages import check_mixture, pad_channels, run_cells, widen_blocks
from nasjax.spaces.base import host_genotype
from nasjax.spaces.darts import BOUNDS
from nasjax.spaces.darts_strings import OPERATIONS
from nasjax.types import Images, Weights

NUM_NODES = 4
NORMAL, REDUCTION = 0, 1
REDUCTIONS = {
    "pool": "3x3 max-pools of stride 2 stand before the reduction cells (NASI)",
    "stride": "the edges that start at a reduction cell's inputs have stride 2 (DARTS)",
}


def make_operation(
    operation: str,
    features: int,
    config: LayerConfig,
    *,
    stride: int = 1,
    is_search: bool = True,
    **kwargs,
) -> nn.Module:
    """The module of one of ``OPERATIONS``.

    Args:
      operation: its name.
      features: channels in and out.
      config: initialisation and normalisation.
      stride: 1, or 2 in the reduction cells of a full-size network.
      is_search: whether a normalisation follows the pools, as in DARTS's search network.
      **kwargs: the module's ``name`` or ``parent``.

    Returns:
      The module.
    """
    shared = {"stride": stride, "config": config}
    identity = Identity if stride == 1 else partial(FactorizedReduce, features, config)
    make = {
        "max_pool_3x3": partial(Pool, "max", is_normalized=is_search, **shared),
        "avg_pool_3x3": partial(Pool, "avg", is_normalized=is_search, **shared),
        "skip_connect": identity,
        "sep_conv_3x3": partial(SeparableConv, features, 3, **shared),
        "sep_conv_5x5": partial(SeparableConv, features, 5, **shared),
        "dil_conv_3x3": partial(SeparableConv, features, 3, dilation=2, repeats=1, **shared),
        "dil_conv_5x5": partial(SeparableConv, features, 5, dilation=2, repeats=1, **shared),
    }[operation]
    return make(**kwargs)


class MixedCell(nn.Module):
    """The one-shot cell: four nodes, each the sum of mixed operations on a mixed input.

    Attributes:
      features: channels of a node.
      num_edges: mixed operations a node sums.
      mixture: a key of ``stages.MIXTURES``.
      config: initialisation and normalisation.
      partial_channels: operations see one channel in so many.
    """

    features: int
    num_edges: int
    mixture: str
    config: LayerConfig
    partial_channels: int = 1

    @nn.compact
    def __call__(self, operations, inputs, x0: Images, x1: Images) -> Images:
        """Concatenated nodes; ``operations`` ``[4, edges, 7]``, ``inputs`` ``[4, edges, 5]``."""
        states = [
            ReluConvNorm(self.features, 1, 1, self.config, name="preprocess_0")(x0),
            ReluConvNorm(self.features, 1, 1, self.config, name="preprocess_1")(x1),
        ]
        edges = [(node, edge) for node in range(NUM_NODES) for edge in range(self.num_edges)]
        names = [f"node_{node}_edge_{edge}" for node, edge in edges]
        if self.mixture == "drawn" and not self.is_initializing():
            params = [self.variables["params"][name] for name in names]
            params = stack_trees([operation_params(edge, OPERATIONS) for edge in params])
            operations = operations.reshape(len(edges), len(OPERATIONS))
            inputs = inputs.reshape(len(edges), NUM_NODES + 1)
            sizes = self.features, self.num_edges, self.partial_channels
            wiring = _wiring(*sizes, self.config)
            nodes = drawn_cell(wiring, operations, inputs, jnp.stack(states), params)
            return jnp.concatenate(list(nodes[2:]), -1)
        make = in_part(make_operation, self.partial_channels)
        make = partial(make, features=self.features, config=self.config, parent=None)
        states += [0.0] * NUM_NODES
        for name, (node, edge) in zip(names, edges, strict=True):
            weights = zip(inputs[node, edge], states[: node + 2], strict=False)
            x = sum(weight * state for weight, state in weights)
            mixed = MixedOperation(OPERATIONS, make, name=name)
            states[node + 2] += mixed(operations[node, edge], x)
        return jnp.concatenate(states[2:], -1)


@functools.cache
def _wiring(features: int, num_edges: int, num_parts: int, config: LayerConfig) -> Wiring:
    make = in_part(make_operation, num_parts)
    modules = [make(name, features, config, parent=None) for name in OPERATIONS]
    targets = tuple(node + 2 for node in range(NUM_NODES) for _ in range(num_edges))
    return Wiring(as_branches(modules), NUM_NODES + 2, targets)


class DartsOneShot(nn.Module):
    """The one-shot network of NASI's search (App. B.2).

    A node draws an input and an operation independently. Reduction cells keep their size and stand
    behind a 3x3 max-pool of stride 2; they double the channels.

    Attributes:
      num_classes: outputs.
      channels: of a node in the first cells.
      num_cells: cells; the reduction cells are at a third and two thirds of the depth.
      config: initialisation and normalisation.
      num_edges: (input, operation) pairs a node sums: 1 as NASI samples, 2 for whole genotypes.
      mixture: a key of ``stages.MIXTURES``.
      partial_channels: ``K`` of partial channel connections: operations see one channel in ``K``.
    """

    num_classes: int = 10
    channels: int = 16
    num_cells: int = 8
    config: LayerConfig = LayerConfig()
    num_edges: int = 1
    mixture: str = "drawn"
    partial_channels: int = 1

    def __post_init__(self):
        """Checks the names."""
        check_mixture("DartsOneShot", self.mixture)
        check_parts("DartsOneShot", self.partial_channels, self.channels)
        super().__post_init__()

    @nn.compact
    def __call__(self, weights: Weights, x: Images) -> Float[jax.Array, "batch classes"]:
        """Class logits.

        Args:
          weights: ``{"operations": [2, 4, num_edges, 7], "inputs": [2, 4, num_edges, 5]}``, first
            the normal, then the reduction cell; the axis of edges may be left out where
            ``num_edges`` is 1.
          x: ``[batch, height, width, image_channels]``.

        Returns:
          ``[batch, classes]``.
        """
        check_images("DartsOneShot", x, divisor=1)
        operations = weights["operations"].reshape(2, NUM_NODES, self.num_edges, len(OPERATIONS))
        inputs = weights["inputs"].reshape(2, NUM_NODES, self.num_edges, NUM_NODES + 1)
        states = stem("cifar", self.channels, self.config, x)
        for features, kinds, first in stages(self.channels, self.num_cells):
            if kinds[0] == REDUCTION:
                states = tuple(max_pool_3x3(state, stride=2) for state in states)
            cell = MixedCell(
                *(features, self.num_edges, self.mixture, self.config, self.partial_channels),
                parent=None,
            )
            names = [f"cell_{first + i}" for i in range(len(kinds))]
            if self.is_initializing():
                for name in names:
                    init_submodule(self, name, cell, operations[0], inputs[0], *states)
                    states = (states[1], jnp.zeros((*x.shape[:3], 4 * features)))
                continue
            states = self._run_stage(cell, names, kinds, operations, inputs, states)
        return Classifier(self.num_classes, self.config, name="classifier")(states[1])

    def _run_stage(self, cell, names, kinds, operations, inputs, states):
        # Within a stage the two states differ in width at first: they travel in arrays of one
        # width, and the kernels that read them get rows for the channels that are not there.
        wide = 4 * cell.features
        width = max(wide, *(state.shape[-1] for state in states))
        widths = [state.shape[-1] for state in states] + [wide] * len(names)
        preprocess = ("preprocess_0", "preprocess_1")
        cells = [
            widen_blocks(self.get_variable("params", name), preprocess, width, self.config)
            for name in names
        ]

        def step(states, params, kind):
            variables = {"params": params}
            out = cell.apply(variables, operations[kind], inputs[kind], *states)
            return states[1], pad_channels(out, width)

        states = tuple(pad_channels(state, width) for state in states)
        states = run_cells(step, states, cells, kinds, mixture=self.mixture)
        return tuple(s[..., :w] for s, w in zip(states, widths[-2:], strict=True))


class DartsNetwork(nn.Module):
    """The network of one genotype.

    With ``reduction="pool"`` and one or two edges a node it is what ``DartsOneShot`` computes for
    one-hot weights, and its parameters are a part of the one-shot network's, under the same names.
    With ``reduction="stride"`` it is DARTS's evaluation network: the edges of a reduction cell that
    start at its inputs have stride 2, and no normalisation follows pools.

    Attributes:
      genotype: nested tuple ``[2][4][edges][2]`` of (operation, input), first the normal cell.
      num_classes: outputs.
      channels: of a node in the first cells.
      num_cells: cells; the reduction cells are at a third and two thirds of the depth.
      config: initialisation and normalisation.
      reduction: a key of ``REDUCTIONS``.
      stem: a key of ``STEMS``.
      has_auxiliary: whether there is a second classifier, behind the cell at two thirds of the
        depth. Its logits are sown in the collection ``auxiliary``, and only where that is mutable.
    """

    genotype: tuple
    num_classes: int = 10
    channels: int = 16
    num_cells: int = 8
    config: LayerConfig = LayerConfig()
    reduction: str = "pool"
    stem: str = "cifar"
    has_auxiliary: bool = False

    def __post_init__(self):
        """Checks the genotype and the names."""
        if self.stem not in STEMS:
            raise unknown_name("DartsNetwork", "stem", self.stem, STEMS)
        if self.reduction not in REDUCTIONS:
            raise unknown_name("DartsNetwork", "reduction", self.reduction, REDUCTIONS)
        num_edges = 1 if np.shape(self.genotype)[2:3] == (1,) else 2
        host_genotype("DartsNetwork", self.genotype, BOUNDS[:, :, :num_edges])
        super().__post_init__()

    @property
    def num_paths(self) -> int:
        """Paths that drop path may drop: the edges of all cells."""
        return self.num_cells * NUM_NODES * len(self.genotype[0][0])

    @nn.compact
    def __call__(
        self, x: Images, *, drop_path: DropPath | None = None
    ) -> Float[jax.Array, "batch classes"]:
        """Class logits.

        Args:
          x: ``[batch, height, width, image_channels]``.
          drop_path: draws for ``num_paths`` paths, of which identities are never dropped; None
            drops nothing.

        Returns:
          ``[batch, classes]``.

        Raises:
          InputError: when traced, if ``x`` has another form; its sides must be even before each
            stride of the stem and, where strides reduce, each reduction (a multiple of 4 for two).
        """
        num_reductions = len(_reduction_cells(self.num_cells))
        divisor = STEM_DIVISORS[self.stem]
        divisor *= 2**num_reductions if self.reduction == "stride" else 1
        check_images("DartsNetwork", x, divisor=divisor)
        states = stem(self.stem, self.channels, self.config, x)
        paths = np.arange(self.num_paths).reshape(self.num_cells, -1)
        for features, kinds, first in stages(self.channels, self.num_cells):
            for i, kind in enumerate(kinds):
                if kind == REDUCTION and self.reduction == "pool":
                    states = tuple(max_pool_3x3(state, stride=2) for state in states)
                cell = Cell(
                    self.genotype[kind],
                    features,
                    self.config,
                    stride=2 if kind == REDUCTION and self.reduction == "stride" else 1,
                    is_search=self.reduction == "pool",
                    name=f"cell_{first + i}",
                )
                drop = drop_path
                if drop is not None:
                    drop = drop._replace(draws=drop.draws[:, paths[first + i]])
                states = states[1], cell(*states, drop)
                if self.has_auxiliary and first + i == 2 * self.num_cells // 3:
                    self._sow_auxiliary(states[1])
        return Classifier(self.num_classes, self.config, name="classifier")(states[1])

    def _sow_auxiliary(self, x):
        if not self.is_mutable_collection("auxiliary"):
            return
        is_imagenet = self.stem == "imagenet"
        head = AuxiliaryHead(
            self.num_classes,
            stride=2 if is_imagenet else 3,
            is_last_normalized=not is_imagenet,
            config=self.config,
            name="auxiliary",
        )
        self.sow("auxiliary", "logits", head(x))


class Cell(nn.Module):
    """The cell of one genotype."""

    nodes: tuple
    features: int
    config: LayerConfig
    stride: int
    is_search: bool

    @nn.compact
    def __call__(self, x0: Images, x1: Images, drop: DropPath | None = None) -> Images:
        """The concatenated nodes; ``drop`` has a draw an edge."""
        if x0.shape[1] != x1.shape[1]:  # the cell before the last one reduced
            x0 = FactorizedReduce(self.features, self.config, name="preprocess_0")(x0)
        else:
            x0 = ReluConvNorm(self.features, 1, 1, self.config, name="preprocess_0")(x0)
        states = [x0, ReluConvNorm(self.features, 1, 1, self.config, name="preprocess_1")(x1)]
        for node, edges in enumerate(self.nodes):
            total = 0.0
            for edge, (operation, source) in enumerate(edges):
                stride = self.stride if source < 2 else 1
                make = partial(
                    make_operation,
                    features=self.features,
                    config=self.config,
                    stride=stride,
                    is_search=self.is_search,
                )
                name = f"node_{node}_edge_{edge}"
                y = SingleOperation(OPERATIONS[operation], make, name=name)(states[source])
                is_identity = OPERATIONS[operation] == "skip_connect" and stride == 1
                if drop is not None and not is_identity:
                    y = drop_path(y, drop, len(edges) * node + edge)
                total += y
            states.append(total)
        return jnp.concatenate(states[2:], -1)


def _reduction_cells(num_cells: int) -> set[int]:
    """Positions of the reduction cells."""
    return {num_cells // 3, 2 * num_cells // 3}


def stages(channels: int, num_cells: int) -> list[tuple[int, list[int], int]]:
    """(features, kind of each cell, position of the first cell) of each run of equal sizes."""
    stages: list[tuple[int, list[int], int]] = []
    for position in range(num_cells):
        is_reduction = position in _reduction_cells(num_cells)
        if is_reduction or position == 0:
            features = channels if not stages else stages[-1][0] * (2 if is_reduction else 1)
            if is_reduction and position == 0:
                features = 2 * channels
            stages.append((features, [], position))
        stages[-1][1].append(REDUCTION if is_reduction else NORMAL)
    return stages
