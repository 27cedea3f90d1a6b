"""The NAS-Bench-101 space: graphs of up to seven vertices and nine edges, three operations.

A genotype is ``[26]`` int32. The first 21 numbers are the upper triangle of the 7x7 adjacency
matrix, row by row (``PAIRS``): 1 where an edge leads from the earlier to the later vertex. The
last five are the operations of vertices 1 to 5; vertex 0 is the input, vertex 6 the output.

A vertex on no path from input to output is superfluous: it is not part of the network, and graphs
of fewer than seven vertices are written with such vertices. A genotype is valid if input and
output are connected, and at most nine edges are left without the superfluous vertices; this is
what the benchmark checks. There are 423,624 valid graphs up to isomorphism.

There is no one-shot network of the whole space, as nodes have any number of inputs: the spaces of
NAS-Bench-1Shot1 are the parts that have one.

References:
  Ying et al., `NAS-Bench-101: Towards Reproducible Neural Architecture Search
  <https://arxiv.org/abs/1902.09635>`_, 2019.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int32

from nasjax.errors import InputError
from nasjax.spaces.base import CellGraph, Space, host_genotype, host_logits, operation_index
from nasjax.spaces.nasbench101_graphs import (
    MAX_EDGES,
    NUM_INTERIOR,
    NUM_VERTICES,
    OPERATIONS,
    PAIRS,
    Nasbench101Graph,
    graph_hash,
    is_valid,
    num_live_edges,
    placements,
    prune,
)
from nasjax.spaces.nasbench101_strings import embed, format_genotype, parse_genotype
from nasjax.types import Key, Logits

SIZE = 373_754_169
"""1,538,083 valid matrices times 3^5 operations."""

NUM_CLASSES = 423_624
"""Graphs that are not isomorphic: the architectures of the benchmark."""

BOUNDS = np.array([2] * len(PAIRS) + [len(OPERATIONS)] * NUM_INTERIOR)
"""How many values each number of a genotype may take."""
_DECISIONS = {
    "edges": np.broadcast_to(True, (len(PAIRS), 2)),
    "operations": np.broadcast_to(True, (NUM_INTERIOR, len(OPERATIONS))),
}


def sample(key: Key) -> Int32[Array, " decisions"]:
    """A uniform valid genotype: ``[26]`` int32.

    Uniform over matrices and operations as they are written, superfluous vertices included, so
    that a network is the more probable the more genotypes stand for it. The benchmark's own random
    search draws like this. Matrices are drawn until one is valid, 1.4 times on average.
    """
    matrix_key, operation_key = jax.random.split(key)
    _, edges = jax.lax.while_loop(_is_invalid, _draw_edges, _draw_edges((matrix_key, None)))
    operations = jax.random.randint(operation_key, (NUM_INTERIOR,), 0, len(OPERATIONS), jnp.int32)
    return jnp.concatenate([edges.astype(jnp.int32), operations])


def _draw_edges(state):
    """A next key, and edges that are drawn by the one before."""
    key, edges_key = jax.random.split(state[0])
    return key, jax.random.bernoulli(edges_key, 0.5, (len(PAIRS),))


def _is_invalid(state):
    return ~is_valid(list(state[1]))


def mutate(key: Key, genotype: Int32[Array, " decisions"]) -> Int32[Array, " decisions"]:
    """One edge more or less, or another operation: uniform over all such valid genotypes.

    There are ten neighbours by an operation and at most 21 by an edge. A neighbour may be the same
    network, where the change is at a superfluous vertex.

    Args:
      key: random key.
      genotype: ``[26]``, valid.

    Returns:
      ``[26]`` int32, valid, different in exactly one number.
    """
    genotype = jnp.asarray(genotype, jnp.int32)
    edges = genotype[: len(PAIRS)] == 1
    flipped = edges[None] ^ np.eye(len(PAIRS), dtype=bool)
    other_operations = np.ones(2 * NUM_INTERIOR, bool)
    allowed = jnp.concatenate([is_valid(list(flipped.T)), other_operations])
    drawn = jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf))
    # Places and steps of the neighbours, in the order of ``allowed``.
    places = np.concatenate([np.arange(len(PAIRS)), len(PAIRS) + np.arange(10) // 2])
    steps = np.concatenate([np.ones(len(PAIRS), np.int32), 1 + np.arange(10, dtype=np.int32) % 2])
    place = jnp.asarray(places)[drawn]
    bound = jnp.asarray(BOUNDS, jnp.int32)[place]
    return genotype.at[place].set((genotype[place] + jnp.asarray(steps, jnp.int32)[drawn]) % bound)


def one_hot(genotype: Int32[Array, " decisions"]) -> dict[str, Float[Array, "decisions choices"]]:
    """``edges`` ``[21, 2]`` (absent, present) and ``operations`` ``[5, 3]``, float32."""
    edges, operations = genotype[: len(PAIRS)], genotype[len(PAIRS) :]
    return {
        "edges": jax.nn.one_hot(edges, 2, dtype=jnp.float32),
        "operations": jax.nn.one_hot(operations, len(OPERATIONS), dtype=jnp.float32),
    }


def select(logits: Logits) -> Int32[np.ndarray, " decisions"]:
    """The most probable valid genotype when all decisions are independent.

    Exact: all 1.5 million valid matrices are compared. Among equals the lexicographically smallest
    wins. The first call takes about a second, a further one some hundredths.

    Args:
      logits: ``edges`` ``[21, 2]`` and ``operations`` ``[5, 3]``; minus infinity excludes a choice.

    Returns:
      ``[26]`` int32.

    Raises:
      InputError: for other shapes or NaN, or if no valid matrix has any probability.
    """
    checked = host_logits("nasbench101.select", logits, _DECISIONS)
    scores = np.zeros(1)
    for edge in checked["edges"]:
        scores = (scores[:, None] + edge).ravel()
    scores[~_valid_matrices()] = -np.inf
    best = int(scores.argmax())
    if scores[best] == -np.inf:
        raise InputError(
            "nasbench101.select: `logits` must leave a valid graph, got minus infinity on every "
            f"path from input to output, or more than {MAX_EDGES} edges that must be there. "
            "Exclude fewer choices."
        )
    edges = [best >> shift & 1 for shift in reversed(range(len(PAIRS)))]
    return np.array([*edges, *checked["operations"].argmax(axis=1)], np.int32)


@functools.cache
def _valid_matrices() -> Bool[np.ndarray, " matrices"]:
    """Which of the 2^21 matrices are valid, in lexicographic order."""
    codes = np.arange(2 ** len(PAIRS), dtype=np.int32)
    return is_valid([(codes >> shift & 1) == 1 for shift in reversed(range(len(PAIRS)))])


def canonical(genotype: Int32[Array, " decisions"]) -> Int32[np.ndarray, " decisions"]:
    """The representative of all genotypes with the same official hash.

    Superfluous vertices are dropped; of all ways to number the others from 1 on, the
    lexicographically smallest genotype is taken. The benchmark trained one network for a whole
    class; networks of one class can differ in which vertices get a remaining channel. All
    genotypes without a path are one class.

    Args:
      genotype: ``[26]``.

    Returns:
      ``[26]`` int32. At most 120 numberings, about a millisecond.
    """
    graph = _graph("canonical", genotype)
    matrix, operations = graph
    candidates = []
    for numbers in placements(matrix, len(operations)):
        order = np.argsort([0, *numbers, len(numbers) + 1])
        moved = [operations[vertex - 1] for vertex in order[1:-1]]
        candidates.append(embed(matrix[np.ix_(order, order)], moved).tolist())
    return np.array(min(candidates), np.int32)


def official_hash(genotype: Int32[Array, " decisions"]) -> str:
    """The benchmark's name of the architecture, equal for isomorphic graphs; see ``graph_hash``.

    Args:
      genotype: ``[26]``, valid.

    Returns:
      32 hexadecimal digits.

    Raises:
      InputError: if no path leads from input to output.

    Example:
      >>> official_hash(from_string("1,input|output"))
      '043721b9c7fe8c5fad811d47d83132ec'
    """
    return graph_hash(to_graph(genotype, where="official_hash"))


def to_graph(genotype: Int32[Array, " decisions"], *, where: str = "to_graph") -> Nasbench101Graph:
    """The graph without superfluous vertices, which is what the network is built from.

    Args:
      genotype: ``[26]``, valid.
      where: the function that was called, for the message.

    Returns:
      The graph, of two to seven vertices.

    Raises:
      InputError: if no path leads from input to output.
    """
    graph = _graph(where, genotype)
    if not graph.matrix.any():
        raise InputError(
            f"nasbench101.{where}: `genotype` must lead from input to output, got no such path: "
            f"{format_genotype(np.asarray(genotype))}."
        )
    return graph


def from_graph(matrix: np.ndarray, operations: Sequence[str]) -> Int32[np.ndarray, " decisions"]:
    """A graph as the benchmark's library writes it, ``ModelSpec(matrix, ops)``, as a genotype.

    Args:
      matrix: ``[vertices, vertices]``, upper triangular, of zeros and ones, 2 to 7 vertices.
      operations: a name a vertex, ``["input", ..., "output"]``.

    Returns:
      ``[26]`` int32; superfluous vertices are kept.

    Raises:
      InputError: if it is no such graph.
    """
    where = "nasbench101.from_graph"
    matrix = np.asarray(matrix)
    size = len(operations)
    if not 2 <= size <= NUM_VERTICES or operations[0] != "input" or operations[-1] != "output":
        raise InputError(
            f"{where}: `operations` must be 2 to {NUM_VERTICES} names from 'input' to 'output', "
            f"got {list(operations)}."
        )
    if matrix.shape != (size, size) or not np.isin(matrix, (0, 1)).all() or np.tril(matrix).any():
        raise InputError(
            f"{where}: `matrix` must be upper triangular, [{size}, {size}], of zeros and ones, got "
            f"{matrix.tolist()}."
        )
    names = [operation_index(where, name, OPERATIONS) for name in operations[1:-1]]
    return _checked("from_graph", embed(matrix, names))


def is_connected(genotype: Int32[Array, " decisions"]) -> bool:
    """True if a path leads from input to output."""
    return bool(_graph("is_connected", genotype).matrix.any())


def to_string(genotype: Int32[Array, " decisions"]) -> str:
    """The upper triangle and the vertices.

    Example:
      >>> to_string(from_string("111011,input|conv3x3-bn-relu|maxpool3x3|output"))[:27]
      '110001.00001.0001.000.00.0,'
    """
    return format_genotype(_checked("to_string", genotype))


def from_string(text: str) -> Int32[np.ndarray, " decisions"]:
    """Reads the notation that ``parse_genotype`` describes.

    Args:
      text: as ``to_string`` writes it, or for fewer vertices.

    Returns:
      ``[26]`` int32. A graph without a path from input to output is read, too.

    Raises:
      InputError: names the part that cannot be read, or that does not fit the space.
    """
    return _checked("from_string", parse_genotype("nasbench101.from_string", text))


def all_genotypes() -> None:
    """None: there are 3.7e8."""
    return None


def describe(genotype: Int32[Array, " decisions"]) -> list[CellGraph]:
    """One graph, ``module``, without superfluous vertices; the operations are those of nodes."""
    graph, kept = prune(*_parts(_checked("describe", genotype)))
    nodes = ("input", *(str(vertex) for vertex in kept[1:-1]), "output")
    edges = tuple((nodes[a], nodes[b], "") for a, b in np.argwhere(graph.matrix).tolist())
    operations = [OPERATIONS[operation] for operation in graph.operations]
    return [
        CellGraph(
            "module",
            nodes[:1],
            nodes,
            nodes[-1],
            edges,
            tuple(zip(nodes[1:-1], operations, strict=True)),
        )
    ]


def _parts(genotype: np.ndarray) -> tuple[Bool[np.ndarray, " pairs"], list[int]]:
    return genotype[: len(PAIRS)] == 1, genotype[len(PAIRS) :].tolist()


def _graph(function: str, genotype) -> Nasbench101Graph:
    return prune(*_parts(_checked(function, genotype)))[0]


def _checked(function: str, genotype) -> Int32[np.ndarray, " decisions"]:
    """The genotype as numpy array, with at most nine edges that count."""
    checked = host_genotype(f"nasbench101.{function}", genotype, BOUNDS)
    count = int(num_live_edges(_parts(checked)[0]))
    if count > MAX_EDGES:
        raise InputError(
            f"nasbench101.{function}: a graph must have at most {MAX_EDGES} edges on paths from "
            f"input to output, got {count}: {format_genotype(checked)}. Leave some out."
        )
    return checked


NASBENCH101 = Space(
    name="nasbench101",
    genotype_shape=BOUNDS.shape,
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
