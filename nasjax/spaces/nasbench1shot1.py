"""The three NAS-Bench-1Shot1 spaces: parts of NAS-Bench-101 that a one-shot network can hold.

Every node has a fixed number of inputs.

A cell has an input (node 0), inner nodes 1 ... n with an operation each, and an output (node
n + 1). A genotype is ``[2 n + 1]`` int32: the operations of the inner nodes, then, for the inner
nodes and the output, which set of parents it reads. The sets of ``k`` parents among the earlier
nodes are numbered in lexicographic order: for two among nodes 0, 1, 2 these are (0, 1), (0, 2),
(1, 2). So every decision is one categorical choice, and every draw an architecture of the space.
The original draws a weight for every single parent and keeps the k largest.

A node that no path leads from to the output is a loose end. It is part of the genotype, and not of
the NAS-Bench-101 network.

How many architectures a space has depends on what is counted:

========================================================  =======  =======  =========
what is counted                                           space 1  space 2  space 3
========================================================  =======  =======  =========
genotypes, ``Space.size``                                  14,580   29,160  1,312,200
the same, without operations of nodes that nothing reads    6,240   16,632    363,648
published, with loose ends                                  6,240   29,160    363,648
NAS-Bench-101 architectures (official hashes)               2,685    7,773     55,854
what the benchmark's code generates without loose ends      2,487    3,609     24,066
========================================================  =======  =======  =========

The published number of space 2 is that of all genotypes, those of the others leave out the
operations of nodes that nothing reads. The benchmark's generator without loose ends stops at the
first set of parents that completes a graph, and so misses graphs.

References:
  Zela, Siems and Hutter, `NAS-Bench-1Shot1: Benchmarking and Dissecting One-shot Neural
  Architecture Search <https://arxiv.org/abs/2001.10422>`_, 2020, table 1.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int32

from nasjax.errors import InputError, unknown_name
from nasjax.spaces import nasbench101
from nasjax.spaces.base import (
    CellGraph,
    Space,
    change_one_number,
    check_text,
    excerpt,
    host_genotype,
    host_logits,
    operation_index,
)
from nasjax.spaces.nasbench101_graphs import OPERATIONS, placements
from nasjax.spaces.nasbench101_strings import embed
from nasjax.types import Key, Logits

NUM_PARENTS = {
    "nasbench1shot1_1": (1, 2, 2, 2, 2),
    "nasbench1shot1_2": (1, 1, 2, 2, 3),
    "nasbench1shot1_3": (1, 1, 1, 2, 2, 2),
}
"""Parents of the inner nodes, then of the output, by the name of the space."""

_OUTPUT_NAME = "output"
_LISTED_SIZE = 100_000
"""Spaces that are larger have no list of all genotypes."""


def parent_sets(name: str) -> list[list[tuple[int, ...]]]:
    """For every inner node and the output, the sets of parents that it chooses from.

    Args:
      name: a key of ``NUM_PARENTS``.

    Raises:
      InputError: if there is no such space.
    """
    if name not in NUM_PARENTS:
        raise unknown_name("nasbench1shot1", "space", name, NUM_PARENTS)
    return [
        list(itertools.combinations(range(node), count))
        for node, count in enumerate(NUM_PARENTS[name], start=1)
    ]


def parent_table(name: str) -> Bool[np.ndarray, "nodes choices sources"]:
    """``parent_sets`` as an array: True where the set of that number holds the source.

    Sets that do not exist are empty.
    """
    sets = parent_sets(name)
    table = np.zeros((len(sets), max(map(len, sets)), len(sets)), bool)
    for node, choices in enumerate(sets):
        for choice, parents in enumerate(choices):
            table[node, choice, list(parents)] = True
    return table


def genotype_bounds(name: str) -> np.ndarray:
    """How many values each number of a genotype may take, ``[2 n + 1]``."""
    sets = parent_sets(name)
    return np.array([len(OPERATIONS)] * (len(sets) - 1) + [len(choices) for choices in sets])


def to_nasbench101(
    name: str, genotype: Int32[Array, " decisions"], *, where: str = "to_nasbench101"
) -> Int32[np.ndarray, " 101-decisions"]:
    """The NAS-Bench-101 genotype of a cell, loose ends included as superfluous vertices.

    Args:
      name: a key of ``NUM_PARENTS``.
      genotype: of that space.
      where: the function that was called, for the message.

    Returns:
      ``[26]`` int32, valid.

    Raises:
      InputError: if it is no genotype of that space.
    """
    genotype = host_genotype(f"{name}.{where}", genotype, genotype_bounds(name))
    sets = parent_sets(name)
    operations, choices = np.split(genotype, [len(sets) - 1])
    matrix = np.zeros((len(sets) + 1, len(sets) + 1), bool)
    for node, (parents, choice) in enumerate(zip(sets, choices, strict=True), start=1):
        matrix[list(parents[choice]), node] = True
    return embed(matrix, operations.tolist())


@functools.cache
def nasbench1shot1_space(name: str) -> Space:
    """One of the three spaces.

    Args:
      name: a key of ``NUM_PARENTS``.

    Returns:
      The space. Every architecture is connected. ``canonical`` gives the same representative for
      exactly the genotypes with the same official NAS-Bench-101 hash. ``all_genotypes`` lists
      spaces 1 and 2.

    Raises:
      InputError: if there is no such space.

    Example:
      >>> space = nasbench1shot1_space("nasbench1shot1_1")
      >>> space.to_string(np.zeros(9, np.int32))[-31:]
      '|conv3x3-bn-relu~0,1|output~0,1'
    """
    sets = parent_sets(name)
    num_inner = len(sets) - 1
    bounds = genotype_bounds(name)
    size = math.prod(bounds.tolist())
    exists = parent_table(name).any(axis=-1)
    decisions = {
        "operations": np.broadcast_to(True, (num_inner, len(OPERATIONS))),
        "parents": np.broadcast_to(exists, exists.shape),
    }

    def sample(key: Key) -> Int32[Array, " decisions"]:
        """Uniform: every operation and every set of parents independent."""
        return jax.random.randint(key, bounds.shape, 0, bounds, jnp.int32)

    def mutate(key: Key, genotype: Int32[Array, " decisions"]) -> Int32[Array, " decisions"]:
        """Another operation or another set of parents at one node: uniform over all of them."""
        return change_one_number(key, genotype, bounds)

    def one_hot(genotype: Int32[Array, " decisions"]) -> dict[str, Float[Array, "nodes choices"]]:
        """``operations`` ``[n, 3]`` and ``parents`` ``[n + 1, largest number of sets]``."""
        operations, choices = genotype[:num_inner], genotype[num_inner:]
        return {
            "operations": jax.nn.one_hot(operations, len(OPERATIONS), dtype=jnp.float32),
            "parents": jax.nn.one_hot(choices, exists.shape[-1], dtype=jnp.float32),
        }

    def select(logits: Logits) -> Int32[np.ndarray, " decisions"]:
        """The most probable architecture; among equals the lowest index."""
        checked = host_logits(f"{name}.select", logits, decisions)
        chosen = [checked[key].argmax(axis=-1) for key in ("operations", "parents")]
        return np.concatenate(chosen).astype(np.int32)

    def canonical(genotype: Int32[Array, " decisions"]) -> Int32[np.ndarray, " decisions"]:
        """The smallest genotype of the space with the same official hash.

        Loose ends are dropped and the other nodes numbered in every way that gives each the number
        of parents of its place; places that are left get the lowest operation and parents.
        """
        graph = nasbench101.to_graph(to_nasbench101(name, genotype, where="canonical"))
        candidates = []
        for numbers in placements(graph.matrix, num_inner):
            place_of = [0, *numbers, num_inner + 1]
            candidate = [0] * len(bounds)
            for vertex, place in enumerate(place_of[1:], start=1):
                sources = np.flatnonzero(graph.matrix[:, vertex])
                parents = tuple(sorted(place_of[source] for source in sources))
                if parents not in sets[place - 1]:
                    break
                candidate[num_inner + place - 1] = sets[place - 1].index(parents)
                if place <= num_inner:
                    candidate[place - 1] = graph.operations[vertex - 1]
            else:
                candidates.append(candidate)
        return np.array(min(candidates), np.int32)

    def is_connected(genotype: Int32[Array, " decisions"]) -> bool:
        """Always True: every node has an earlier parent."""
        host_genotype(f"{name}.is_connected", genotype, bounds)
        return True

    def to_string(genotype: Int32[Array, " decisions"]) -> str:
        """``operation~parents`` of the inner nodes, then the output, joined by ``|``."""
        genotype = host_genotype(f"{name}.to_string", genotype, bounds).tolist()
        names = [*(OPERATIONS[operation] for operation in genotype[:num_inner]), _OUTPUT_NAME]
        parents = [choices[i] for choices, i in zip(sets, genotype[num_inner:], strict=True)]
        nodes = zip(names, parents, strict=True)
        return "|".join(f"{node}~{','.join(map(str, sources))}" for node, sources in nodes)

    def from_string(text: str) -> Int32[np.ndarray, " decisions"]:
        """Reads what ``to_string`` writes."""
        return _parse(f"{name}.from_string", text, sets)

    def all_genotypes() -> Int32[np.ndarray, "size decisions"] | None:
        """In lexicographic order, or None for more than 100,000."""
        if size > _LISTED_SIZE:
            return None
        return np.array(list(itertools.product(*map(range, bounds))), np.int32)

    def describe(genotype: Int32[Array, " decisions"]) -> list[CellGraph]:
        """The NAS-Bench-101 graph, without loose ends."""
        return nasbench101.describe(to_nasbench101(name, genotype, where="describe"))

    return Space(
        name=name,
        genotype_shape=bounds.shape,
        operations=OPERATIONS,
        size=size,
        decisions=decisions,
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


def _parse(
    where: str, text: str, sets: list[list[tuple[int, ...]]]
) -> Int32[np.ndarray, " decisions"]:
    nodes = check_text(where, text).split("|")
    if len(nodes) != len(sets):
        raise InputError(
            f"{where}: a cell must have {len(sets)} parts joined by '|', {len(sets) - 1} inner "
            f"nodes and the output, got {len(nodes)} in {excerpt(text)}."
        )
    operations, chosen = [], []
    for number, (node, choices) in enumerate(zip(nodes, sets, strict=True), start=1):
        name, _, sources = node.partition("~")
        if number == len(sets) and name != _OUTPUT_NAME:
            raise InputError(
                f"{where}: the last part must be '{_OUTPUT_NAME}~parents', got {excerpt(node)}. "
                "Is the text truncated?"
            )
        known = [",".join(map(str, parents)) for parents in choices]
        if sources not in known:
            raise InputError(
                f"{where}: node {number} must have {len(choices[0])} parents in increasing order, "
                f"{excerpt(' or '.join(known), quote=False)}, got {excerpt(sources)}."
            )
        chosen.append(known.index(sources))
        if number < len(sets):
            operations.append(operation_index(where, name, OPERATIONS))
    return np.array(operations + chosen, np.int32)


NASBENCH1SHOT1 = tuple(nasbench1shot1_space(name) for name in NUM_PARENTS)
"""The registry entries."""
