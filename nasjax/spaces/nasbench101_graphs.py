"""Graphs of NAS-Bench-101: which vertices count, which graphs are valid, and when two are the same.

A graph has up to seven vertices in topological order. The first is the input, the last the output,
and each vertex between them has one of three operations.
"""

import functools
import hashlib
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jax import Array
from jaxtyping import Bool

OPERATIONS = ("conv3x3-bn-relu", "conv1x1-bn-relu", "maxpool3x3")
"""In the order of the labels that the benchmark's hash sees."""

NUM_VERTICES, NUM_INTERIOR, MAX_EDGES = 7, 5, 9
OUTPUT = NUM_VERTICES - 1
PAIRS = tuple(itertools.combinations(range(NUM_VERTICES), 2))
"""``(source, target)`` of every possible edge: the upper triangle, row by row."""

_INPUT_LABEL, _OUTPUT_LABEL = -1, -2


class Nasbench101Graph(NamedTuple):
    """A graph without superfluous vertices.

    Attributes:
      matrix: ``[vertices, vertices]`` bool, True where an edge leads from row to column.
      operations: positions in ``OPERATIONS``, one for each vertex between input and output.
    """

    matrix: Bool[np.ndarray, "vertices vertices"]
    operations: tuple[int, ...]


def live_edges(edges: Sequence[Bool[Array, "..."]]) -> list[Bool[Array, "..."]]:
    """The edges that lie on a path from input to output.

    Args:
      edges: one array for each of ``PAIRS``, numpy's or traced ones, all of one shape.

    Returns:
      The same, False where the edge is superfluous.
    """
    edge = dict(zip(PAIRS, edges, strict=True))
    true = edges[0] | ~edges[0]
    fed, needed = {0: true}, {OUTPUT: true}
    for vertex in range(1, NUM_VERTICES):
        fed[vertex] = _any(edge[source, vertex] & fed[source] for source in range(vertex))
    for vertex in reversed(range(OUTPUT)):
        targets = range(vertex + 1, NUM_VERTICES)
        needed[vertex] = _any(edge[vertex, target] & needed[target] for target in targets)
    return [edge[pair] & fed[pair[0]] & needed[pair[1]] for pair in PAIRS]


def num_live_edges(edges: Sequence[Bool[Array, "..."]]) -> Array:
    """How many edges ``live_edges`` leaves: 0 where no path leads from input to output."""
    return sum(edge.astype(np.int32) for edge in live_edges(edges))


def is_valid(edges: Sequence[Bool[Array, "..."]]) -> Bool[Array, "..."]:
    """Whether the benchmark has the graph: input and output connected by at most nine edges.

    Like the benchmark, this counts edges after superfluous vertices are gone.
    """
    count = num_live_edges(edges)
    return (count > 0) & (count <= MAX_EDGES)


def _any(arrays):
    return functools.reduce(operator.or_, arrays)


def prune(
    edges: Bool[np.ndarray, " pairs"], operations: Sequence[int]
) -> tuple[Nasbench101Graph, tuple[int, ...]]:
    """Drops every vertex that lies on no path from input to output.

    Args:
      edges: ``[21]``, in the order of ``PAIRS``.
      operations: five positions in ``OPERATIONS``.

    Returns:
      The graph, and the old numbers of its vertices. Where no path exists, input and output are
      left without an edge.
    """
    live = [pair for pair, edge in zip(PAIRS, live_edges(edges), strict=True) if edge]
    kept = tuple(sorted({0, OUTPUT, *(vertex for pair in live for vertex in pair)}))
    matrix = np.zeros((len(kept), len(kept)), bool)
    for source, target in live:
        matrix[kept.index(source), kept.index(target)] = True
    return Nasbench101Graph(matrix, tuple(int(operations[v - 1]) for v in kept[1:-1])), kept


def placements(
    matrix: Bool[np.ndarray, "vertices vertices"], num_interior: int
) -> Iterator[tuple[int, ...]]:
    """All ways to number the vertices between input and output so that edges lead upwards.

    Args:
      matrix: of a graph.
      num_interior: the numbers 1 to this are given out, none twice.

    Yields:
      The new number of each such vertex, in order; at most 120 of them.
    """
    inner = matrix[1:-1, 1:-1]
    edges = [(int(a), int(b)) for a, b in np.argwhere(inner)]
    for numbers in itertools.permutations(range(1, num_interior + 1), len(inner)):
        if all(numbers[source] < numbers[target] for source, target in edges):
            yield numbers


def graph_hash(graph: Nasbench101Graph) -> str:
    """The benchmark's name for all graphs that are isomorphic to this one: 32 hexadecimal digits.

    Every vertex starts with the MD5 of ``(out-degree, in-degree, label)`` and then, as often as
    there are vertices, takes the MD5 of the sorted hashes of its sources, the sorted hashes of its
    targets and its own. The MD5 of the sorted list of all hashes is the result.

    References:
      Ying et al., `NAS-Bench-101: Towards Reproducible Neural Architecture Search
      <https://arxiv.org/abs/1902.09635>`_, 2019, sec. 2.1 and algorithm 1. The text that is hashed
      is that of the function ``hash_module`` of the benchmark's library, so that the names are its
      names.
    """
    matrix = graph.matrix
    labels = (_INPUT_LABEL, *graph.operations, _OUTPUT_LABEL)
    degrees = zip(matrix.sum(1).tolist(), matrix.sum(0).tolist(), labels, strict=True)
    hashes = [_md5(str(vertex)) for vertex in degrees]
    for _ in labels:
        joined = [
            [
                "".join(sorted(itertools.compress(hashes, sources))),
                "".join(sorted(itertools.compress(hashes, targets))),
                own,
            ]
            for sources, targets, own in zip(matrix.T, matrix, hashes, strict=True)
        ]
        hashes = [_md5("|".join(parts)) for parts in joined]
    return _md5(str(sorted(hashes)))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
