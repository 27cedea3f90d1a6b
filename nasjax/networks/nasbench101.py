"""NAS-Bench-101 networks (Ying et al., 2019): a stem, three stacks of modules, a classifier."""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from nasjax.errors import InputError
from nasjax.networks.layers import Classifier, LayerConfig, check_images
from nasjax.networks.operations import ConvNormRelu, Pool
from nasjax.networks.pooling import max_pool_2x2
from nasjax.spaces import nasbench101
from nasjax.spaces.nasbench1shot1 import to_nasbench101
from nasjax.spaces.nasbench101_graphs import OPERATIONS, Nasbench101Graph
from nasjax.types import Images

NUM_STACKS = 3
CONV_SIZES = {"conv3x3-bn-relu": 3, "conv1x1-bn-relu": 1}
"""Sides of the kernels of the operations that are convolution blocks."""


def make_operation(operation: str, features: int, config: LayerConfig, **kwargs) -> nn.Module:
    """The module of one of ``OPERATIONS``, which keeps ``features`` channels."""
    if operation == "maxpool3x3":
        return Pool("max", **kwargs)
    return ConvNormRelu(features, CONV_SIZES[operation], config, **kwargs)


def vertex_channels(
    input_channels: int, output_channels: int, matrix: Bool[np.ndarray, "vertices vertices"]
) -> tuple[int, ...]:
    """How many channels every vertex of a module has.

    The vertices that the output reads share its channels; where they do not divide evenly, the
    first get one more. Every other vertex has as many as the widest that it feeds.

    Args:
      input_channels: of the module.
      output_channels: of the module.
      matrix: of a graph without superfluous vertices.

    Returns:
      Channels by vertex, input and output included.

    Raises:
      InputError: if a vertex would have none.

    References:
      The function ``compute_vertex_channels`` of the benchmark's library has the same results.
    """
    output = len(matrix) - 1
    channels = [input_channels, *[0] * (output - 1), output_channels]
    feeding = [vertex for vertex in range(1, output) if matrix[vertex, output]]
    if output_channels < len(feeding):
        raise InputError(
            f"vertex_channels: `output_channels` must be at least {len(feeding)}, as many vertices "
            f"share them, got {output_channels}. Give the network more channels."
        )
    for place, vertex in enumerate(feeding):
        share, rest = divmod(output_channels, len(feeding))
        channels[vertex] = share + (place < rest)
    for vertex in reversed(range(1, output)):
        if vertex not in feeding:
            channels[vertex] = max(channels[target] for target in np.flatnonzero(matrix[vertex]))
    return tuple(channels)


class Cell(nn.Module):
    """One module, as the benchmark calls its cells.

    A vertex applies its operation to the sum of its inputs, of which it reads as many channels as
    it has. The module's input comes through a 1x1 convolution block of the vertex's own. The
    output concatenates what it reads; the input, again through such a block, is added.

    Attributes:
      graph: without superfluous vertices: the matrix as nested tuples, and the operations.
      features: output channels.
      config: initialisation and normalisation.
    """

    graph: tuple[tuple[tuple[bool, ...], ...], tuple[int, ...]]
    features: int
    config: LayerConfig

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Maps ``[batch, height, width, channels]`` to ``features`` channels."""
        matrix, operations = np.array(self.graph[0]), self.graph[1]
        channels = vertex_channels(x.shape[-1], self.features, matrix)
        output = len(matrix) - 1

        def projection(vertex, name):
            return ConvNormRelu(channels[vertex], 1, self.config, name=f"projection_{name}")(x)

        states = [x]
        for vertex in range(1, output):
            sources = [source for source in range(1, vertex) if matrix[source, vertex]]
            inputs = [states[source][..., : channels[vertex]] for source in sources]
            if matrix[0, vertex]:
                inputs.append(projection(vertex, vertex))
            operation = OPERATIONS[operations[vertex - 1]]
            apply = make_operation(
                operation, channels[vertex], self.config, name=f"vertex_{vertex}"
            )
            states.append(apply(sum(inputs)))
        read = [states[vertex] for vertex in range(1, output) if matrix[vertex, output]]
        if not read:
            return projection(output, "output")
        y = jnp.concatenate(read, -1)
        return y + projection(output, "output") if matrix[0, output] else y


class NasBench101Network(nn.Module):
    """The network of one genotype.

    With the defaults and affine batch normalisation it is the benchmark's own. Genotypes of one
    class differ at most in which vertices get a channel that is left over.

    Attributes:
      num_classes: outputs.
      channels: of the stem and the first stack; doubled in each further one.
      num_cells: modules a stack.
      config: initialisation and normalisation.
      genotype: of ``nasbench101``, valid.

    Raises:
      InputError: when built, if the genotype is not valid.
    """

    num_classes: int = 10
    channels: int = 128
    num_cells: int = 3
    config: LayerConfig = LayerConfig()
    genotype: tuple[int, ...] = (0,) * 5 + (1,) + (0,) * 20

    def __post_init__(self):
        """Checks the genotype."""
        self._graph()
        super().__post_init__()

    def _graph(self) -> Nasbench101Graph:
        return nasbench101.to_graph(self.genotype, where="NasBench101Network")

    @nn.compact
    def __call__(self, x: Images) -> Float[Array, "batch classes"]:
        """Class logits of ``[batch, height, width, image_channels]``, sides divisible by 4.

        Raises:
          InputError: when traced, if ``x`` has another form, or a vertex would have no channel.
        """
        check_images("NasBench101Network", x, divisor=2 ** (NUM_STACKS - 1))
        matrix, operations = self._graph()
        graph = (tuple(map(tuple, matrix.tolist())), operations)
        x = ConvNormRelu(self.channels, 3, self.config, name="stem")(x)
        for stage in range(NUM_STACKS):
            x = max_pool_2x2(x) if stage else x
            for cell in range(self.num_cells):
                name = f"stage_{stage}_cell_{cell}"
                x = Cell(graph, self.channels * 2**stage, self.config, name=name)(x)
        return Classifier(self.num_classes, self.config, name="classifier")(x)


def nasbench1shot1_network(space: str, *, genotype: Sequence[int], **kwargs) -> NasBench101Network:
    """The NAS-Bench-101 network of a cell of NAS-Bench-1Shot1.

    Args:
      space: a key of ``spaces.nasbench1shot1.NUM_PARENTS``.
      genotype: of that space.
      **kwargs: attributes of ``NasBench101Network``.

    Returns:
      The network, without loose ends.

    Raises:
      InputError: if it is no genotype of that space.
    """
    whole = to_nasbench101(space, genotype, where="static_network")
    return NasBench101Network(genotype=tuple(whole.tolist()), **kwargs)
