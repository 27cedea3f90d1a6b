"""NAS-Bench-201 networks (Dong and Yang, 2020): a stem, three stages of cells, a classifier."""

import functools
from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from nasjax.networks.drawn_cell import Wiring, as_branches, drawn_cell
from nasjax.networks.layers import (
    Classifier,
    Conv2D,
    LayerConfig,
    Normalization,
    check_images,
    relu,
)
from nasjax.networks.mixed_operation import (
    MixedOperation,
    SingleOperation,
    init_submodule,
    operation_params,
    stack_trees,
)
from nasjax.networks.operations import Identity, Pool, ReluConvNorm, Zero
from nasjax.networks.partial_channels import check_parts, in_part
from nasjax.networks.pooling import halve
from nasjax.networks.stages import check_mixture, run_cells
from nasjax.spaces.base import host_genotype
from nasjax.spaces.nasbench201 import BOUNDS, EDGES, OPERATIONS
from nasjax.types import Images, Weights


def make_operation(operation: str, features: int, config: LayerConfig, **kwargs) -> nn.Module:
    """The module of one of ``OPERATIONS``, which keeps ``features`` channels."""
    make = {
        "none": Zero,
        "skip_connect": Identity,
        "nor_conv_1x1": partial(ReluConvNorm, features, 1, config=config),
        "nor_conv_3x3": partial(ReluConvNorm, features, 3, config=config),
        "avg_pool_3x3": partial(Pool, "avg"),
    }[operation]
    return make(**kwargs)


class ReductionBlock(nn.Module):
    """Residual block between stages: halves height and width.

    Attributes:
      features: output channels.
      config: initialisation and normalisation.
    """

    features: int
    config: LayerConfig = LayerConfig()

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Maps ``[batch, height, width, channels]`` (height, width even) to half the size."""
        y = ReluConvNorm(self.features, 3, 2, self.config, name="conv_a")(x)
        y = ReluConvNorm(self.features, 3, 1, self.config, name="conv_b")(y)
        return y + Conv2D(self.features, 1, 1, self.config, name="shortcut")(halve(x))


@functools.cache
def _wiring(features: int, num_parts: int, config: LayerConfig) -> Wiring:
    make = in_part(make_operation, num_parts)
    modules = [make(name, features, config, parent=None) for name in OPERATIONS]
    targets, sources = zip(*EDGES, strict=True)
    return Wiring(as_branches(modules), 4, targets, sources)


class MixedCell(nn.Module):
    """The one-shot cell: four nodes, a mixed operation on each of the six edges.

    Attributes:
      features: channels.
      mixture: a key of ``stages.MIXTURES``.
      config: initialisation and normalisation.
      partial_channels: operations see one channel in so many.
    """

    features: int
    mixture: str
    config: LayerConfig
    partial_channels: int = 1

    @nn.compact
    def __call__(self, weights: Float[Array, "edges choices"], x: Images) -> Images:
        """The last node; ``weights`` ``[6, 5]`` mix the operations of each edge."""
        names = [f"edge_{edge}" for edge in range(len(EDGES))]
        if self.mixture == "drawn" and not self.is_initializing():
            edges = [self.variables.get("params", {}).get(name, {}) for name in names]
            params = stack_trees([operation_params(edge, OPERATIONS) for edge in edges])
            wiring = _wiring(self.features, self.partial_channels, self.config)
            return drawn_cell(wiring, weights, None, x[None], params)[-1]
        make = in_part(make_operation, self.partial_channels)
        make = partial(make, features=self.features, config=self.config, parent=None)
        nodes = [x, 0.0, 0.0, 0.0]
        for edge, (target, source) in enumerate(EDGES):
            mixed = MixedOperation(OPERATIONS, make, name=names[edge])
            nodes[target] += mixed(weights[edge], nodes[source])
        return nodes[-1]


class Cell(nn.Module):
    """The cell of one genotype; edges with ``none`` are left out."""

    genotype: tuple[int, ...]
    features: int
    config: LayerConfig

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """The last node of the cell."""
        nodes = [x] + [jnp.zeros_like(x)] * 3
        for edge, (target, source) in enumerate(EDGES):
            name = OPERATIONS[self.genotype[edge]]
            if name == "none":
                continue
            operation = SingleOperation(
                name,
                partial(make_operation, features=self.features, config=self.config),
                name=f"edge_{edge}",
            )
            nodes[target] += operation(nodes[source])
        return nodes[-1]


class _Trunk(nn.Module):
    """What the one-shot and the static network share; a subclass gives the cells of a stage."""

    num_classes: int = 10
    channels: int = 16
    num_cells: int = 5
    config: LayerConfig = LayerConfig()
    cell_config: LayerConfig | None = None
    reduction_config: LayerConfig | None = None

    def trunk(self, x, run_stage):
        check_images(type(self).__name__, x, divisor=4)
        x = Conv2D(self.channels, 3, 1, self.config, name="stem_conv")(x)
        x = Normalization(self.config, name="stem_norm")(x)
        for stage in range(3):
            features = self.channels * 2**stage
            if stage > 0:
                reduction = self.reduction_config or self.config
                x = ReductionBlock(features, reduction, name=f"reduction_{stage}")(x)
            names = [f"stage_{stage}_cell_{cell}" for cell in range(self.num_cells)]
            x = run_stage(x, features, names)
        x = relu(Normalization(self.config, name="last_norm")(x))
        return Classifier(self.num_classes, self.config, name="classifier")(x)


class NasBench201OneShot(_Trunk):
    """One-shot network: every cell holds all five operations on each edge.

    Attributes:
      num_classes: outputs.
      channels: of the first stage; doubled in each further one.
      num_cells: cells a stage.
      config: initialisation and normalisation.
      cell_config: of the cells, where it is another; None takes ``config``.
      reduction_config: of the reduction blocks, likewise.
      mixture: a key of ``stages.MIXTURES``.
      partial_channels: ``K`` of partial channel connections: operations see one channel in ``K``.
    """

    mixture: str = "drawn"
    partial_channels: int = 1

    def __post_init__(self):
        """Checks the names."""
        check_mixture("NasBench201OneShot", self.mixture)
        check_parts("NasBench201OneShot", self.partial_channels, self.channels)
        super().__post_init__()

    @nn.compact
    def __call__(self, weights: Weights, x: Images) -> Float[Array, "batch classes"]:
        """Class logits.

        Args:
          weights: ``{"edges": [6, 5]}``, shared by all cells.
          x: ``[batch, height, width, image_channels]``, height and width divisible by 4.

        Returns:
          ``[batch, classes]``.

        Raises:
          InputError: when traced, if ``x`` has another form.
        """

        def run_stage(x, features, names):
            config = self.cell_config or self.config
            cell = MixedCell(features, self.mixture, config, self.partial_channels, parent=None)
            if self.is_initializing():
                for name in names:
                    init_submodule(self, name, cell, weights["edges"], x)
                return x
            params = [self.get_variable("params", name) for name in names]

            def step(x, cell_params, kind):
                return cell.apply({"params": cell_params}, weights["edges"], x)

            return run_cells(step, x, params, [0] * len(names), mixture=self.mixture)

        return self.trunk(x, run_stage)


class NasBench201Network(_Trunk):
    """The network of one genotype.

    With ``num_cells=5``, ``channels=16`` and affine batch normalisation it is the benchmark's own.
    Its parameters are a part of the one-shot network's, under the same names.

    Attributes:
      num_classes: outputs.
      channels: of the first stage; doubled in each further one.
      num_cells: cells a stage.
      config: initialisation and normalisation.
      cell_config: of the cells, where it is another; None takes ``config``.
      reduction_config: of the reduction blocks, likewise.
      genotype: six positions in ``OPERATIONS``, in the order of ``EDGES``.
    """

    genotype: tuple[int, ...] = (3,) * 6

    def __post_init__(self):
        """Checks the genotype."""
        host_genotype("NasBench201Network", self.genotype, BOUNDS)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Images) -> Float[Array, "batch classes"]:
        """Class logits of ``[batch, height, width, image_channels]``, sides divisible by 4."""

        def run_stage(x, features, names):
            for name in names:
                x = Cell(self.genotype, features, self.cell_config or self.config, name=name)(x)
            return x

        return self.trunk(x, run_stage)
