"""The DARTS space as NASI searches it: a normal and a reduction cell, seven operations, no zero.

A genotype is ``[2, 4, 2, 2]`` int32: cell (0 normal, 1 reduction), intermediate node, edge,
``(operation, input)``. Inputs 0 and 1 are the outputs of the two cells before, input ``2 + j`` is
intermediate node ``j``. A node sums its two edges; the cell concatenates its four nodes.

References:
  Liu, Simonyan and Yang, `DARTS: Differentiable Architecture Search
  <https://arxiv.org/abs/1806.09055>`_, 2019, for the cells; Shu et al., `NASI: Label- and
  Data-agnostic Neural Architecture Search at Initialization
  <https://arxiv.org/abs/2109.00817>`_, 2022, App. B.2, for the operations and the decisions.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int32

from nasjax.spaces.base import CellGraph, Space, host_genotype, host_logits
from nasjax.spaces.darts_strings import (
    CELLS,
    NUM_EDGES,
    NUM_NODES,
    OPERATIONS,
    format_genotype,
    parse_genotype,
)
from nasjax.types import Key, Logits

NUM_INPUTS = tuple(node + 2 for node in range(NUM_NODES))
"""How many inputs each intermediate node may choose from."""

_SHAPE = (len(CELLS), NUM_NODES, NUM_EDGES, 2)
BOUNDS = np.stack(
    np.broadcast_arrays(len(OPERATIONS), np.array(NUM_INPUTS)[None, :, None]), axis=-1
) * np.ones(_SHAPE, int)
"""How many values each number of a genotype may take."""
_INPUT_EXISTS = np.broadcast_to(
    np.arange(max(NUM_INPUTS)) < np.array(NUM_INPUTS)[:, None],
    (len(CELLS), NUM_NODES, max(NUM_INPUTS)),
)
_DECISIONS = {
    "operations": np.broadcast_to(True, (len(CELLS), NUM_NODES, len(OPERATIONS))),
    "inputs": _INPUT_EXISTS,
}
_PAIRS = np.array([(low, high) for high in range(1, max(NUM_INPUTS)) for low in range(high)])
"""Pairs of inputs by the later one: the first ``n (n - 1) / 2`` are those of ``n`` inputs."""
_NUM_PAIRS = np.array([n * (n - 1) // 2 for n in NUM_INPUTS])
SIZE = int(np.prod(_NUM_PAIRS)) ** 2 * len(OPERATIONS) ** 16


def sample(key: Key) -> Int32[Array, "cells nodes edges 2"]:
    """A uniform architecture.

    Operations are uniform and independent; the two inputs of a node are distinct, in increasing
    order, every pair equally likely.

    Args:
      key: random key.

    Returns:
      ``[2, 4, 2, 2]`` int32.
    """
    operation_key, input_key = jax.random.split(key)
    operations = jax.random.randint(operation_key, _SHAPE[:3], 0, len(OPERATIONS), jnp.int32)
    limits = np.broadcast_to(_NUM_PAIRS, _SHAPE[:2])
    pairs = jax.random.randint(input_key, _SHAPE[:2], 0, limits, jnp.int32)
    inputs = jnp.asarray(_PAIRS, jnp.int32)[pairs]
    return jnp.stack([operations, inputs], axis=-1)


def mutate(
    key: Key, genotype: Int32[Array, "cells nodes edges 2"]
) -> Int32[Array, "cells nodes edges 2"]:
    """Another operation or another input on one edge, uniform over all such genotypes.

    An edge never takes the input of the other edge of its node, so distinct inputs stay distinct.
    Edges keep their places: inputs need not stay in increasing order. Of an architecture with
    distinct inputs there are 120 neighbours, 96 by an operation and 24 by an input.

    Args:
      key: random key.
      genotype: ``[2, 4, 2, 2]``.

    Returns:
      ``[2, 4, 2, 2]`` int32, different in exactly one number.
    """
    genotype = jnp.asarray(genotype, jnp.int32)
    operations, inputs = genotype[..., 0], genotype[..., 1]
    other_operation = jnp.arange(len(OPERATIONS))[None, None, None] != operations[..., None]
    choices = jnp.arange(max(NUM_INPUTS))[None, None, None]
    free_input = (
        jnp.asarray(_INPUT_EXISTS)[:, :, None, :]
        & (choices != inputs[..., None])
        & (choices != inputs[..., ::-1, None])
    )
    # Every way to change one number, in one row: the draw is uniform over those that exist.
    allowed = jnp.concatenate([other_operation, free_input], axis=-1)
    drawn = jax.random.categorical(key, jnp.where(allowed.ravel(), 0.0, -jnp.inf))
    edge, choice = jnp.divmod(drawn, allowed.shape[-1])
    is_input = choice >= len(OPERATIONS)
    place = edge * 2 + is_input
    value = jnp.where(is_input, choice - len(OPERATIONS), choice).astype(jnp.int32)
    return genotype.ravel().at[place].set(value).reshape(_SHAPE)


def one_hot(
    genotype: Int32[Array, "cells nodes edges 2"],
) -> dict[str, Float[Array, "cells nodes edges choices"]]:
    """The architecture as weights of every edge.

    Args:
      genotype: ``[2, 4, 2, 2]``.

    Returns:
      ``operations``: ``[2, 4, 2, 7]`` and ``inputs``: ``[2, 4, 2, 5]``, float32.
    """
    return {
        "operations": jax.nn.one_hot(genotype[..., 0], len(OPERATIONS), dtype=jnp.float32),
        "inputs": jax.nn.one_hot(genotype[..., 1], max(NUM_INPUTS), dtype=jnp.float32),
    }


def select(logits: Logits) -> Int32[np.ndarray, "cells nodes edges 2"]:
    """The final architecture of NASI: the two strongest operations and inputs of every node.

    The paper keeps the top two of both distributions and does not say which operation goes with
    which input. Here they pair by rank, the strongest operation with the strongest input. Among
    equals the lowest index comes first. Every architecture of the space is connected.

    Args:
      logits: ``operations`` ``[2, 4, 7]`` and ``inputs`` ``[2, 4, 5]``; logits of inputs that do
        not exist are not read.

    Returns:
      ``[2, 4, 2, 2]`` int32, edges by falling probability.

    Raises:
      InputError: for other shapes or NaN.

    References:
      NASI, App. B.2.
    """
    checked = host_logits("darts.select", logits, _DECISIONS)
    operations, inputs = (
        np.argsort(-checked[name], axis=-1, kind="stable")[..., :NUM_EDGES]
        for name in ("operations", "inputs")
    )
    return np.stack([operations, inputs], axis=-1).astype(np.int32)


def canonical(
    genotype: Int32[Array, "cells nodes edges 2"],
) -> Int32[np.ndarray, "cells nodes edges 2"]:
    """The representative of all architectures that differ only by the order of nodes and edges.

    Of every valid topological order of a cell's intermediate nodes, with the edges of a node
    sorted by input, then operation, it is the one whose ``(input, operation)`` pairs are
    lexicographically smallest. The networks of one class are equal up to the order of the
    channels that the cell concatenates.

    Args:
      genotype: ``[2, 4, 2, 2]``.

    Returns:
      ``[2, 4, 2, 2]`` int32. Cost: 24 orders a cell, well under a millisecond.
    """
    genotype = host_genotype("darts.canonical", genotype, BOUNDS)
    return np.array([_canonical_cell(cell) for cell in genotype.tolist()], np.int32)


def is_connected(genotype: Int32[Array, "cells nodes edges 2"]) -> bool:
    """Always True: no operation is zero, and every node has inputs.

    Raises:
      InputError: if ``genotype`` is not one of the space.
    """
    host_genotype("darts.is_connected", genotype, BOUNDS)
    return True


def to_string(genotype: Int32[Array, "cells nodes edges 2"]) -> str:
    """The notation of the field, ``Genotype(normal=[('sep_conv_3x3', 1), ...], ...)``, one line."""
    return format_genotype(host_genotype("darts.to_string", genotype, BOUNDS))


def from_string(text: str) -> Int32[np.ndarray, "cells nodes edges 2"]:
    """Reads the notations that ``parse_genotype`` lists.

    Args:
      text: as ``to_string`` writes it, or as JSON.

    Returns:
      ``[2, 4, 2, 2]`` int32.

    Raises:
      InputError: names the part that does not fit the space.
    """
    return parse_genotype("darts.from_string", text)


def all_genotypes() -> None:
    """None: there are about 1.1e18."""
    return None


def describe(genotype: Int32[Array, "cells nodes edges 2"]) -> list[CellGraph]:
    """Two graphs, ``normal`` and ``reduction``; edges into the output have no label."""
    genotype = host_genotype("darts.describe", genotype, BOUNDS)
    nodes = ("c_{k-2}", "c_{k-1}", *(str(node) for node in range(NUM_NODES)), "c_{k}")
    graphs = []
    for name, cell in zip(CELLS, genotype.tolist(), strict=True):
        edges = [
            (nodes[source], str(node), OPERATIONS[operation])
            for node in range(NUM_NODES)
            for operation, source in cell[node]
        ]
        edges += [(str(node), nodes[-1], "") for node in range(NUM_NODES)]
        graphs.append(CellGraph(name, nodes[:2], nodes, nodes[-1], tuple(edges)))
    return graphs


def _canonical_cell(cell: list[list[list[int]]]) -> list[list[tuple[int, int]]]:
    """The smallest relabelling of one cell, as ``(operation, input)`` pairs."""
    candidates = []
    for order in itertools.permutations(range(NUM_NODES)):
        position = {2 + node: 2 + place for place, node in enumerate(order)} | {0: 0, 1: 1}
        nodes = [sorted((position[i], op) for op, i in cell[node]) for node in order]
        if all(i < 2 + place for place, node in enumerate(nodes) for i, _ in node):
            candidates.append(nodes)
    return [[(op, i) for i, op in node] for node in min(candidates)]


DARTS = Space(
    name="darts",
    genotype_shape=_SHAPE,
    operations=OPERATIONS,
    size=SIZE,
    decisions=_DECISIONS,
    sample=sample,
    mutate=mutate,
    one_hot=one_hot,
    select=select,
    canonical=canonical,
    is_connected=is_connected,
    to_string=to_string,
    from_string=from_string,
    all_genotypes=all_genotypes,
    describe=describe,
)
"""The registry entry."""
