"""The NAS-Bench-201 space: one cell of four nodes, six edges, five operations, 15,625 cells.

A genotype is ``[6]`` int32, the operation of every edge in the order of the benchmark's strings:
1<-0, 2<-0, 2<-1, 3<-0, 3<-1, 3<-2. Node 0 is the input of the cell, node 3 its output; a node is
the sum of its edges.

References:
  Dong and Yang, `NAS-Bench-201: Extending the Scope of Reproducible Neural Architecture Search
  <https://arxiv.org/abs/2001.00326>`_, 2020.
"""

import functools
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int32

from nasjax.errors import InputError
from nasjax.spaces.base import (
    CellGraph,
    Space,
    check_text,
    excerpt,
    host_genotype,
    host_logits,
    operation_index,
)
from nasjax.types import Key, Logits

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
NONE, SKIP = OPERATIONS.index("none"), OPERATIONS.index("skip_connect")
EDGES = ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2))
"""``(target, source)`` of the six edges."""

SIZE = len(OPERATIONS) ** len(EDGES)
BOUNDS = np.full(len(EDGES), len(OPERATIONS))
"""How many values each number of a genotype may take."""
_DECISIONS = {"edges": np.broadcast_to(True, (len(EDGES), len(OPERATIONS)))}
_SHUFFLE_SEED = 88


def sample(key: Key) -> Int32[Array, " edges"]:
    """A uniform cell: ``[6]`` int32, every edge independent."""
    return jax.random.randint(key, (len(EDGES),), 0, len(OPERATIONS), jnp.int32)


def mutate(key: Key, genotype: Int32[Array, " edges"]) -> Int32[Array, " edges"]:
    """Another operation on one edge, uniform over the 24 neighbours.

    Args:
      key: random key.
      genotype: ``[6]``.

    Returns:
      ``[6]`` int32, different on exactly one edge.
    """
    edge_key, step_key = jax.random.split(key)
    edge = jax.random.randint(edge_key, (), 0, len(EDGES))
    step = jax.random.randint(step_key, (), 1, len(OPERATIONS), jnp.int32)
    genotype = jnp.asarray(genotype, jnp.int32)
    return genotype.at[edge].set((genotype[edge] + step) % len(OPERATIONS))


def one_hot(
    genotype: Int32[Array, " edges"],
) -> dict[str, Float[Array, "edges operations"]]:
    """The cell as one-shot weights: ``{"edges": [6, 5]}`` float32."""
    return {"edges": jax.nn.one_hot(genotype, len(OPERATIONS), dtype=jnp.float32)}


def select(logits: Logits) -> Int32[np.ndarray, " edges"]:
    """The most probable connected cell when every edge is an independent softmax.

    Exact: all 15,625 cells are compared. Among equals the lexicographically smallest wins. A few
    milliseconds on the host.

    Args:
      logits: ``{"edges": [6, 5]}``; minus infinity excludes an operation.

    Returns:
      ``[6]`` int32.

    Raises:
      InputError: for another shape or NaN, or if no connected cell has any probability.
    """
    edges = host_logits("nasbench201.select", logits, _DECISIONS)["edges"]
    scores = edges[np.arange(len(EDGES)), all_genotypes()].sum(axis=1)
    scores = np.where(_connected(all_genotypes()), scores, -np.inf)
    best = int(scores.argmax())
    if scores[best] == -np.inf:
        raise InputError(
            "nasbench201.select: `logits` must leave a connected cell, got minus infinity on every "
            "path from input to output. Exclude fewer operations."
        )
    return all_genotypes()[best].copy()


def canonical(genotype: Int32[Array, " edges"]) -> Int32[np.ndarray, " edges"]:
    """The lexicographically smallest cell of the benchmark's isomorphism class.

    The benchmark writes each node as an expression: the sorted sum of ``(input)@operation`` over
    its edges, where a skip connection is its input's own expression, and ``none``, or any
    operation on an input that is nothing but zero, is a zero symbol. Cells whose output has the
    same expression are one class: 6,466 in all.

    The rule is finer than functional equality, because the zero symbol stays in a sum (``a`` and
    ``a + 0`` differ, and ``0 + 0`` is not taken for zero) and because a sum that a skip passes on
    is sorted as one term of the next sum (``(a + b) + c`` and ``(a + c) + b`` can differ): 6,466
    classes, where dropping zeros and flattening sums leaves 4,930. Cells of one class compute the
    same function, up to which weights sit on which edge, while a batch normalisation has no
    offset, as at initialisation: a convolution block on a zero input can learn an offset.

    Args:
      genotype: ``[6]``.

    Returns:
      ``[6]`` int32. The first call builds the table of all cells (about 0.1 s).
    """
    return all_genotypes()[_representatives()[_rank("canonical", genotype)]].copy()


def prune(genotype: Int32[Array, " edges"]) -> Int32[np.ndarray, " edges"]:
    """The cell with ``none`` on every edge that no path from node 0 to node 3 takes.

    It computes the same function at initialisation, and of a disconnected cell nothing is left.

    Args:
      genotype: ``[6]``.

    Returns:
      ``[6]`` int32.
    """
    genotype = host_genotype("nasbench201.prune", genotype, BOUNDS)
    from_input, to_output = {0}, {3}
    for edge, (target, source) in enumerate(EDGES):
        if genotype[edge] != NONE and source in from_input:
            from_input.add(target)
    for edge, (target, source) in reversed(list(enumerate(EDGES))):
        if genotype[edge] != NONE and target in to_output:
            to_output.add(source)
    is_used = [source in from_input and target in to_output for target, source in EDGES]
    return np.where(is_used, genotype, NONE).astype(np.int32)


def is_connected(genotype: Int32[Array, " edges"]) -> bool:
    """True if a path without ``none`` leads from node 0 to node 3."""
    checked = host_genotype("nasbench201.is_connected", genotype, BOUNDS)
    return bool(_connected(checked[None])[0])


def to_string(genotype: Int32[Array, " edges"]) -> str:
    """The benchmark's notation.

    Example:
      >>> to_string(np.array([3, 3, 4, 1, 3, 1]))
      '|nor_conv_3x3~0|+|nor_conv_3x3~0|avg_pool_3x3~1|+|skip_connect~0|nor_conv_3x3~1|skip_connect~2|'
    """
    genotype = host_genotype("nasbench201.to_string", genotype, BOUNDS)
    terms = [f"{OPERATIONS[op]}~{source}|" for op, (_, source) in zip(genotype, EDGES, strict=True)]
    return f"|{terms[0]}+|{terms[1]}{terms[2]}+|{terms[3]}{terms[4]}{terms[5]}"


def from_string(text: str) -> Int32[np.ndarray, " edges"]:
    """Reads the benchmark's notation, or the official index in decimal digits.

    Args:
      text: as ``to_string`` writes it, or for example ``"6111"``.

    Returns:
      ``[6]`` int32.

    Raises:
      InputError: names the node and the edge that cannot be read.
    """
    where = "nasbench201.from_string"
    text = check_text(where, text)
    if text.isascii() and text.isdigit():
        if len(text) > 9:
            raise InputError(f"{where}: an official index has 5 digits, got {excerpt(text)}.")
        return genotype_from_index(int(text))
    nodes = text.split("+")
    if len(nodes) != 3:
        raise InputError(
            f"{where}: a cell must have 3 nodes joined by '+', got {len(nodes)} in "
            f"{excerpt(text)}. Write it like {to_string(np.full(6, SKIP))!r}, or give its "
            "official index."
        )
    operations = []
    for node, node_text in enumerate(nodes, start=1):
        if len(node_text) < 2 or node_text[0] != "|" or node_text[-1] != "|":
            raise InputError(
                f"{where}: node {node} must begin and end with '|', got {excerpt(node_text)}. "
                "Is the text truncated?"
            )
        edges = node_text[1:-1].split("|")
        if len(edges) != node:
            raise InputError(
                f"{where}: node {node} must have {node} edges, got {len(edges)}: "
                f"{excerpt(node_text)}."
            )
        for source, edge in enumerate(edges):
            name, tilde, index = edge.partition("~")
            if not tilde or index != str(source):
                raise InputError(
                    f"{where}: edge {source} of node {node} must be 'operation~{source}', got "
                    f"{excerpt(edge)}. Inputs stand in increasing order."
                )
            operations.append(operation_index(where, name, OPERATIONS))
    return np.array(operations, np.int32)


@functools.cache
def all_genotypes() -> Int32[np.ndarray, "cells edges"]:
    """Every cell in lexicographic order: ``[15625, 6]`` int32, read-only."""
    genotypes = np.array(list(itertools.product(range(len(OPERATIONS)), repeat=6)), np.int32)
    genotypes.setflags(write=False)
    return genotypes


def describe(genotype: Int32[Array, " edges"]) -> list[CellGraph]:
    """One graph, ``cell``; edges with ``none`` are left out."""
    genotype = host_genotype("nasbench201.describe", genotype, BOUNDS)
    edges = tuple(
        (str(source), str(target), OPERATIONS[op])
        for op, (target, source) in zip(genotype, EDGES, strict=True)
        if op != NONE
    )
    return [CellGraph("cell", ("0",), ("0", "1", "2", "3"), "3", edges)]


def official_index(genotype: Int32[Array, " edges"]) -> int:
    """The number of the cell in the benchmark, 0 to 15,624.

    The official order is the lexicographic order of the operations, shuffled by Python's
    generator with seed 88. It is computed here, and equals the index of all 15,625 rows of the
    published table.

    Example:
      >>> official_index(np.array([4, 2, 1, 2, 1, 1]))
      0
    """
    return int(_official_indices()[_rank("official_index", genotype)])


def genotype_from_index(index: int) -> Int32[np.ndarray, " edges"]:
    """The cell of an official number.

    Args:
      index: 0 to 15,624.

    Returns:
      ``[6]`` int32.

    Raises:
      InputError: if ``index`` is outside.
    """
    if not 0 <= index < SIZE:
        raise InputError(
            f"nasbench201.genotype_from_index: `index` must be between 0 and {SIZE - 1}, got "
            f"{index}."
        )
    return all_genotypes()[_official_order()[index]].copy()


def _rank(function: str, genotype) -> int:
    """The position in lexicographic order."""
    checked = host_genotype(f"nasbench201.{function}", genotype, BOUNDS)
    return int(np.ravel_multi_index(tuple(checked), tuple(BOUNDS)))


@functools.cache
def _official_order() -> np.ndarray:
    """The lexicographic position of every official index, ``[15625]``."""
    order = list(range(SIZE))
    random.Random(_SHUFFLE_SEED).shuffle(order)
    return np.array(order)


@functools.cache
def _official_indices() -> np.ndarray:
    """The official index of every lexicographic position, ``[15625]``."""
    return np.argsort(_official_order())


@functools.cache
def _representatives() -> np.ndarray:
    """The first lexicographic position of the class of every position, ``[15625]``."""
    first: dict[str, int] = {}
    cells = enumerate(all_genotypes().tolist())
    return np.array([first.setdefault(_expression(cell), position) for position, cell in cells])


def _expression(cell: list[int]) -> str:
    """The benchmark's expression of node 3; ``x`` is the cell's input and ``#`` is zero."""
    terms: list[list[str]] = [["x"], [], [], []]
    for op, (target, source) in zip(cell, EDGES, strict=True):
        value = "+".join(sorted(terms[source]))
        if op == NONE or value == "#":
            terms[target].append("#")
        else:
            terms[target].append(value if op == SKIP else f"({value})@{OPERATIONS[op]}")
    return "+".join(sorted(terms[3]))


def _connected(genotypes: np.ndarray) -> np.ndarray:
    """Whether node 0 reaches node 3, ``[n, 6] -> [n]``."""
    reached = [np.ones(len(genotypes), bool)] + [np.zeros(len(genotypes), bool) for _ in range(3)]
    for edge, (target, source) in enumerate(EDGES):
        reached[target] |= reached[source] & (genotypes[:, edge] != NONE)
    return reached[3]


NASBENCH201 = Space(
    name="nasbench201",
    genotype_shape=(len(EDGES),),
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
