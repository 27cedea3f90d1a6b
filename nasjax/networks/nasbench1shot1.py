"""The one-shot networks of NAS-Bench-1Shot1 (Zela et al., 2020)."""

import functools
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from nasjax.networks.drawn_cell import Wiring, as_branches, drawn_cell
from nasjax.networks.layers import Classifier, LayerConfig, check_images
from nasjax.networks.mixed_operation import (
    MixedOperation,
    init_submodule,
    operation_params,
    stack_trees,
)
from nasjax.networks.nasbench101 import NUM_STACKS, make_operation
from nasjax.networks.operations import ConvNormRelu, ReluConvNorm
from nasjax.networks.pooling import max_pool_2x2
from nasjax.networks.stages import check_mixture, pad_channels, run_cells, widen_blocks
from nasjax.spaces.nasbench1shot1 import parent_sets, parent_table
from nasjax.spaces.nasbench101_graphs import OPERATIONS
from nasjax.types import Images, Weights


@functools.cache
def _wiring(features: int, config: LayerConfig) -> Wiring:
    """One mixed operation, from a node that is given to a second one."""
    modules = [make_operation(name, features, config, parent=None) for name in OPERATIONS]
    return Wiring(as_branches(modules), 2, targets=(1,), sources=(0,))


class MixedCell(nn.Module):
    """The one-shot cell: every inner node applies a mixed operation to the sum of its inputs.

    The cell's input comes to every node, the output included, through a 1x1 convolution block of
    that node's own. The output concatenates this block and all inner nodes.

    Attributes:
      num_inner: inner nodes.
      features: channels of a node.
      mixture: a key of ``stages.MIXTURES``.
      config: initialisation and normalisation.
    """

    num_inner: int
    features: int
    mixture: str
    config: LayerConfig

    @nn.compact
    def __call__(
        self,
        operations: Float[Array, "inner choices"],
        edges: Float[Array, "nodes sources"],
        x: Images,
    ) -> Images:
        """``num_inner + 1`` times ``features`` channels.

        Args:
          operations: ``[num_inner, 3]``.
          edges: ``[num_inner + 1, num_inner + 1]``, how much of every source comes to a node; the
            first source is the cell's input, the last node its output.
          x: ``[batch, height, width, channels]``.
        """
        edges = edges.astype(x.dtype)
        is_drawn = self.mixture == "drawn" and not self.is_initializing()
        states = self._drawn(operations, edges, x) if is_drawn else self._full(operations, edges, x)
        states = [self._projection("output")(x), *states]
        return jnp.concatenate([w * y for w, y in zip(edges[-1], states, strict=True)], -1)

    def _projection(self, node):
        return ConvNormRelu(self.features, 1, self.config, name=f"projection_{node}")

    def _full(self, operations, edges, x):
        make = partial(make_operation, features=self.features, config=self.config, parent=None)
        states = []
        for node in range(1, self.num_inner + 1):
            sources = [self._projection(node)(x), *states]
            inputs = sum(w * y for w, y in zip(edges[node - 1], sources, strict=False))
            mixed = MixedOperation(OPERATIONS, make, name=f"node_{node}")
            states.append(mixed(operations[node - 1], inputs))
        return states

    def _drawn(self, operations, edges, x):
        """The same as a loop over the nodes, so that one node is compiled."""
        params = self.variables["params"]
        numbers = range(1, self.num_inner + 1)
        projections = stack_trees([params[f"projection_{node}"] for node in numbers])
        mixed = stack_trees(
            [operation_params(params.get(f"node_{node}", {}), OPERATIONS) for node in numbers]
        )
        wiring = _wiring(self.features, self.config)
        projection = ConvNormRelu(self.features, 1, self.config, parent=None)

        def run_node(states, node):
            number, operation, sources, projection_params, params = node
            inputs = sources[0] * projection.apply({"params": projection_params}, x)
            inputs += jnp.tensordot(sources[1:], states, 1)
            params = stack_trees([params])
            y = drawn_cell(wiring, operation[None], None, inputs[None], params)[1]
            return states.at[number].set(y), None

        empty = jnp.zeros((self.num_inner, *x.shape[:3], self.features), x.dtype)
        nodes = (jnp.arange(self.num_inner), operations, edges[:-1], projections, mixed)
        # Without the checkpoint a second derivative with respect to the operations, which are not
        # the same in every pass of the loop, would silently be wrong: JAX drops drawn_cell's rule
        # that refuses it. It costs no time and saves memory.
        run_node = jax.checkpoint(run_node, prevent_cse=False)
        return list(lax.scan(run_node, empty, nodes)[0])


class NasBench1Shot1OneShot(nn.Module):
    """The one-shot network: three stages of cells that hold every operation and every edge.

    As the original, it differs from the NAS-Bench-101 network of a genotype: nodes do not share the
    channels of the output but have ``channels`` of their own, the output concatenates the
    projected input, and a 1x1 convolution block follows the last cell. Other than in the original,
    where max-pools between stages are padded by a pixel, height and width are halved exactly; and
    where the original weighs single parents, a decision is among sets of parents (see
    ``spaces.nasbench1shot1``), so that an edge weighs as much as all sets that hold it.

    Attributes:
      space: a key of ``spaces.nasbench1shot1.NUM_PARENTS``.
      num_classes: outputs.
      channels: of a node in the first stage; doubled in each further one.
      num_cells: cells a stage.
      config: initialisation and normalisation.
      mixture: a key of ``stages.MIXTURES``.

    Raises:
      InputError: when built, if a name is unknown.
    """

    space: str
    num_classes: int = 10
    channels: int = 16
    num_cells: int = 3
    config: LayerConfig = LayerConfig()
    mixture: str = "drawn"

    def __post_init__(self):
        """Checks the names."""
        check_mixture("NasBench1Shot1OneShot", self.mixture)
        parent_sets(self.space)
        super().__post_init__()

    @nn.compact
    def __call__(self, weights: Weights, x: Images) -> Float[Array, "batch classes"]:
        """Class logits.

        Args:
          weights: ``{"operations": [n, 3], "parents": [n + 1, sets]}``, shared by all cells;
            weights of sets that do not exist are not read.
          x: ``[batch, height, width, image_channels]``, height and width divisible by 4.

        Returns:
          ``[batch, classes]``.

        Raises:
          InputError: when traced, if ``x`` has another form.
        """
        check_images("NasBench1Shot1OneShot", x, divisor=2 ** (NUM_STACKS - 1))
        operations, parents = weights["operations"], weights["parents"]
        table = jnp.asarray(parent_table(self.space), parents.dtype)
        edges = jnp.einsum("nc,ncs->ns", parents, table)
        num_inner = len(edges) - 1
        x = ConvNormRelu(self.channels, 3, self.config, name="stem")(x)
        for stage in range(NUM_STACKS):
            x = max_pool_2x2(x) if stage else x
            features = self.channels * 2**stage
            cell = MixedCell(num_inner, features, self.mixture, self.config, parent=None)
            names = [f"stage_{stage}_cell_{number}" for number in range(self.num_cells)]
            width = (num_inner + 1) * features
            if self.is_initializing():
                for name in names:
                    init_submodule(self, name, cell, operations, edges, x)
                    x = jnp.zeros((*x.shape[:3], width), x.dtype)
                continue
            # The first cell of a stage reads fewer channels than the others: all read the same.
            blocks = [f"projection_{node}" for node in (*range(1, num_inner + 1), "output")]
            cells = [
                widen_blocks(self.get_variable("params", name), blocks, width, self.config)
                for name in names
            ]

            def step(x, params, kind, cell=cell):
                return cell.apply({"params": params}, operations, edges, x)

            x = run_cells(
                step, pad_channels(x, width), cells, [0] * len(names), mixture=self.mixture
            )
        features = self.channels * 2 ** (NUM_STACKS - 1)
        x = ReluConvNorm(features, 1, 1, self.config, name="postprocess")(x)
        return Classifier(self.num_classes, self.config, name="classifier")(x)
