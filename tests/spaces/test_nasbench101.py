"""The NAS-Bench-101 space against published graphs and hashes, and against slower second ways."""

import csv
import gzip
import itertools
import json
import os
from pathlib import Path

import jax
import networkx
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.spaces import nasbench101
from nasjax.spaces.nasbench101 import NASBENCH101, NUM_CLASSES, SIZE
from nasjax.spaces.nasbench101_graphs import (
    OPERATIONS,
    PAIRS,
    Nasbench101Graph,
    graph_hash,
    placements,
    prune,
)

# The best graph of the benchmark, as its paper draws it (figure 3).
BEST_MATRIX = [
    [0, 1, 1, 0, 0, 1, 1],
    [0, 0, 0, 0, 0, 1, 0],
    [0, 0, 0, 1, 0, 0, 1],
    [0, 0, 0, 0, 0, 1, 0],
    [0, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 1],
    [0, 0, 0, 0, 0, 0, 0],
]
CONV3, CONV1, POOL = OPERATIONS


def _rows(name):
    folder = os.environ.get("NASJAX_DATA", Path(__file__).parents[3] / "shared" / "data")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"{path} is not there; set NASJAX_DATA")
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def _digraph(graph):
    """The graph for networkx, every vertex with its label."""
    found = networkx.DiGraph(np.argwhere(graph.matrix).tolist())
    labels = ["input", *graph.operations, "output"]
    networkx.set_node_attributes(found, dict(enumerate(labels)), "label")
    return found


def _is_isomorphic(a, b):
    """By exhaustive search."""
    same_label = networkx.algorithms.isomorphism.categorical_node_match("label", None)
    return networkx.is_isomorphic(_digraph(a), _digraph(b), node_match=same_label)


def _samples(number, seed=0):
    keys = jax.random.split(jax.random.key(seed), number)
    return np.asarray(jax.jit(jax.vmap(nasbench101.sample))(keys))


def _as_networkx_sees_it(genotype):
    """``(number of edges, nodes)`` on paths from input to output, by reachability."""
    whole = networkx.DiGraph([pair for pair, bit in zip(PAIRS, genotype, strict=False) if bit])
    whole.add_nodes_from([0, 6])
    between = (networkx.descendants(whole, 0) | {0}) & (networkx.ancestors(whole, 6) | {6})
    if not {0, 6} <= between:
        return 0, {0, 6}
    return whole.subgraph(between).number_of_edges(), between


# --- published graphs ---------------------------------------------------------------------------


def test_hashes_of_all_published_graphs_of_up_to_five_vertices():
    names = {-1: "input", -2: "output", **dict(enumerate(OPERATIONS))}
    rows = _rows("ecnas_nb101_4v5v_4epochs.csv.gz")
    assert len(rows) == 2532
    representatives = set()
    for row in rows:
        matrix = json.loads(row["adjacency"])
        vertices = [names[label] for label in json.loads(row["ops"])]
        genotype = nasbench101.from_graph(matrix, vertices)
        assert nasbench101.official_hash(genotype) == row["model_hash"]
        graph = nasbench101.to_graph(genotype)
        np.testing.assert_array_equal(graph.matrix, matrix)
        assert [OPERATIONS[operation] for operation in graph.operations] == vertices[1:-1]
        representatives.add(tuple(nasbench101.canonical(genotype)))
    # The benchmark's graphs are all different, and there are no others of this size.
    assert len(representatives) == 2532 == 1 + 6 + 84 + 2441


def test_published_graphs_of_seven_vertices_are_read():
    rows = _rows("nb101_zc_250.csv.gz")
    assert len(rows) == 250
    for row in rows:
        genotype = nasbench101.from_string(f"{row['adj_upper_triangle21']},{row['ops']}")
        text = nasbench101.to_string(genotype)
        assert text.replace(".", "") == f"{row['adj_upper_triangle21']},{row['ops']}"
        assert nasbench101.is_connected(genotype)
        num_edges, _ = _as_networkx_sees_it(genotype)
        assert 1 <= num_edges <= 9


# --- counts -------------------------------------------------------------------------------------


def _num_classes(size):
    """Graphs of ``size`` vertices without superfluous ones, up to isomorphism (Burnside)."""
    pairs = list(itertools.combinations(range(size), 2))
    codes = np.arange(2 ** len(pairs))
    matrices = np.zeros((len(codes), size, size), bool)
    for bit, (source, target) in enumerate(pairs):
        matrices[:, source, target] = codes >> bit & 1
    no_dead_end = matrices[:, :-1].any(2).all(1) & matrices[:, :, 1:].any(1).all(1)
    matrices = matrices[no_dead_end & (matrices.sum((1, 2)) <= 9)]
    place = 2.0 ** np.arange(size * size).reshape(size, size)
    own = (matrices * place).sum((1, 2))
    smallest, num_symmetries, num_fixed = own.copy(), 0, 0
    for inner in itertools.permutations(range(1, size - 1)):
        order = [0, *inner, size - 1]
        moved = (matrices[:, order][:, :, order] * place).sum((1, 2))
        smallest = np.minimum(smallest, moved)
        num_cycles = networkx.number_weakly_connected_components(
            networkx.DiGraph(list(enumerate(order)))
        )
        num_symmetries = num_symmetries + (moved == own)
        num_fixed = num_fixed + (moved == own) * 3.0 ** (num_cycles - 2)
    _, first = np.unique(smallest, return_index=True)
    return (num_fixed / num_symmetries)[first].sum()


def test_number_of_architectures_is_the_published_one():
    counts = [_num_classes(size) for size in range(2, 8)]
    assert counts == [1, 6, 84, 2441, 62_010, 359_082]
    assert sum(counts) == NUM_CLASSES == 423_624


def test_size_counts_valid_genotypes():
    assert 3**5 * int(nasbench101._valid_matrices().sum()) == SIZE


# --- isomorphism --------------------------------------------------------------------------------


def _renumbered(genotype, seed):
    """The same graph with other numbers, and with the superfluous vertices changed."""
    graph = nasbench101.to_graph(genotype)
    ways = list(placements(graph.matrix, len(graph.operations)))
    numbers = ways[np.random.default_rng(seed).integers(len(ways))]
    order = np.argsort([0, *numbers, len(numbers) + 1])
    names = ["input", *(OPERATIONS[graph.operations[v - 1]] for v in order[1:-1]), "output"]
    return nasbench101.from_graph(graph.matrix[np.ix_(order, order)].astype(int), names)


def test_hash_and_canonical_are_equal_exactly_for_isomorphic_graphs():
    genotypes = list(_samples(60))
    # Random graphs are rarely isomorphic: some others, and neighbours, which often are nearly so.
    keys = jax.random.split(jax.random.key(5), 60)
    neighbours = np.asarray(jax.jit(jax.vmap(nasbench101.mutate))(keys, np.stack(genotypes)))
    pairs = [(g, _renumbered(g, seed)) for seed, g in enumerate(genotypes)]
    pairs += list(zip(genotypes, neighbours, strict=True))
    pairs += list(itertools.combinations(genotypes[:20], 2))
    seen = []
    for a, b in pairs:
        expected = _is_isomorphic(nasbench101.to_graph(a), nasbench101.to_graph(b))
        assert (nasbench101.official_hash(a) == nasbench101.official_hash(b)) == expected
        same = np.array_equal(nasbench101.canonical(a), nasbench101.canonical(b))
        assert same == expected
        seen.append(expected)
    assert all(seen[:60])
    assert 10 < seen[60:120].count(True) < 50


@pytest.mark.slow
def test_hash_has_no_collisions_up_to_six_vertices():
    """More than 120,000 graphs: as many hashes as there are classes."""
    hashes = set()
    for size in range(2, 7):
        pairs = list(itertools.combinations(range(size), 2))
        for bits in itertools.product((0, 1), repeat=len(pairs)):
            matrix = np.zeros((size, size), bool)
            matrix[tuple(zip(*pairs, strict=True))] = bits
            if matrix.sum() > 9 or not (matrix[:-1].any(1).all() and matrix[:, 1:].any(0).all()):
                continue
            for operations in itertools.product(range(3), repeat=size - 2):
                hashes.add(graph_hash(Nasbench101Graph(matrix, operations)))
    assert len(hashes) == 1 + 6 + 84 + 2441 + 62_010


def test_canonical_drops_superfluous_vertices():
    genotype = nasbench101.from_graph(
        BEST_MATRIX, ["input", CONV3, CONV1, CONV3, POOL, CONV3, "output"]
    )
    graph, kept = prune(genotype[:21] == 1, genotype[21:])
    assert kept == (0, 1, 2, 3, 5, 6)
    assert graph.matrix.sum() == 9
    assert graph.operations == (0, 1, 0, 0)
    canonical = nasbench101.canonical(genotype)
    assert nasbench101.official_hash(canonical) == nasbench101.official_hash(genotype)
    _, kept = prune(canonical[:21] == 1, canonical[21:])
    assert kept == (0, 1, 2, 3, 4, 6)
    # Whatever the superfluous vertex is, it changes nothing.
    other = nasbench101.from_graph(
        BEST_MATRIX, ["input", CONV3, CONV1, CONV3, CONV1, CONV3, "output"]
    )
    assert not np.array_equal(genotype, other)
    np.testing.assert_array_equal(nasbench101.canonical(other), canonical)


def test_graphs_without_a_path():
    dead_end = nasbench101.from_string("101,input|maxpool3x3|output")
    assert nasbench101.is_connected(dead_end)  # 0 -> 1, 1 -> 2
    for text in ("100,input|maxpool3x3|output", "0,input|output"):
        genotype = nasbench101.from_string(text)
        assert not nasbench101.is_connected(genotype)
        np.testing.assert_array_equal(nasbench101.canonical(genotype), np.zeros(26, int))
        (graph,) = nasbench101.describe(genotype)
        assert (graph.nodes, graph.edges) == (("input", "output"), ())
        with pytest.raises(InputError, match="must lead from input to output"):
            nasbench101.official_hash(genotype)


# --- draws --------------------------------------------------------------------------------------


def test_samples_are_valid_and_uniform():
    genotypes = _samples(20_000, seed=1)
    assert set(np.unique(genotypes[:, 21:])) == {0, 1, 2}
    codes = genotypes[:, :21] @ (1 << np.arange(20, -1, -1))
    valid = nasbench101._valid_matrices()
    assert valid[codes].all()
    for genotype in genotypes[:200]:
        num_edges, _ = _as_networkx_sees_it(genotype)
        assert 1 <= num_edges <= 9
    # How often every edge is there, against all valid matrices: five standard errors.
    all_codes = np.flatnonzero(valid)
    expected = np.array([(all_codes >> shift & 1).mean() for shift in range(20, -1, -1)])
    error = np.abs(genotypes[:, :21].mean(0) - expected)
    assert (error < 5 * np.sqrt(expected * (1 - expected) / 20_000)).all()
    counts = np.bincount(genotypes[:, 21:].ravel(), minlength=3)
    assert np.abs(counts / 100_000 - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 100_000)


def test_prune_and_validity_agree_with_reachability():
    rng = np.random.default_rng(2)
    matrices = rng.random((300, 21)) < rng.random((300, 1))
    valid = nasbench101._valid_matrices()
    for bits in matrices:
        num_edges, between = _as_networkx_sees_it(bits)
        graph, kept = prune(bits, [0] * 5)
        assert set(kept) == between
        assert graph.matrix.sum() == num_edges
        assert valid[int("".join(map(str, bits.astype(int))), 2)] == (1 <= num_edges <= 9)


def test_mutants_are_all_valid_neighbours():
    chain = nasbench101.from_string("1,input|output")
    keys = jax.random.split(jax.random.key(3), 3000)
    mutants = np.unique(jax.vmap(nasbench101.mutate, (0, None))(keys, chain), axis=0)
    # Input and output are joined by one edge: it must stay, the 20 others may come.
    assert len(mutants) == 20 + 10
    assert all(nasbench101.is_connected(mutant) for mutant in mutants)
    assert (mutants[:, PAIRS.index((0, 6))] == 1).all()


# --- select -------------------------------------------------------------------------------------


def test_select_is_the_most_probable_valid_genotype():
    rng = np.random.default_rng(4)
    valid = np.flatnonzero(nasbench101._valid_matrices())
    bits = (valid[:, None] >> np.arange(20, -1, -1)) & 1
    for _ in range(3):
        logits = {"edges": rng.normal(size=(21, 2)), "operations": rng.normal(size=(5, 3))}
        scores = bits @ (logits["edges"][:, 1] - logits["edges"][:, 0])
        selected = nasbench101.select(logits)
        np.testing.assert_array_equal(selected[:21], bits[scores.argmax()])
        np.testing.assert_array_equal(selected[21:], logits["operations"].argmax(1))
    equal = {"edges": np.zeros((21, 2)), "operations": np.zeros((5, 3))}
    chain = nasbench101.from_string("1,input|output")
    np.testing.assert_array_equal(nasbench101.select(equal)[21:], np.zeros(5))
    np.testing.assert_array_equal(nasbench101.select(equal)[:21], bits[0])
    wanted = np.where(np.eye(2)[chain[:21]] == 1, 0.0, -np.inf)
    np.testing.assert_array_equal(nasbench101.select({**equal, "edges": wanted}), chain)
    with pytest.raises(InputError, match="must leave a valid graph"):
        nasbench101.select({**equal, "edges": np.tile([0.0, -np.inf], (21, 1))})
    with pytest.raises(InputError, match="more than 9 edges"):
        nasbench101.select({**equal, "edges": np.tile([-np.inf, 0.0], (21, 1))})


# --- notations ----------------------------------------------------------------------------------


def test_all_notations_of_one_graph():
    names = ["input", CONV3, CONV1, CONV3, POOL, CONV3, "output"]
    genotype = nasbench101.from_graph(np.array(BEST_MATRIX), names)
    text = f"110011.00010.1001.010.00.1,{'|'.join(names)}"
    assert nasbench101.to_string(genotype) == text
    for other in (text.replace(".", ""), text.replace(",", " "), text.replace(",", " , ")):
        np.testing.assert_array_equal(nasbench101.from_string(other), genotype)
    np.testing.assert_array_equal(genotype[:21], np.array(BEST_MATRIX)[np.triu_indices(7, 1)])
    assert genotype[21:].tolist() == [0, 1, 0, 2, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"12,input|{CONV3}|output", "must begin with the digits 0 and 1 of an upper triangle"),
        ("1", r"must be 'input\|...\|output', got ''. Is the text truncated"),
        (f"110,input|{CONV3}", "Is the text truncated"),
        (f"110,{CONV3}|output", r"must be 'input\|...\|output'"),
        ("1,input", r"must be 'input\|...\|output'"),
        ("1,output", r"must be 'input\|...\|output'"),
        (f"11,input|{CONV3}|output", "3 vertices must have a triangle of 3 digits, got 2"),
        ("110,input|conv3x3-bn-rel|output", "Did you mean 'conv3x3-bn-relu'"),
        (f"1,input|{'|'.join([CONV3] * 6)}|output", "must have 2 to 7 vertices, got 8"),
        ("1" * 21 + f",input|{'|'.join([CONV3] * 5)}|output", "at most 9 edges .* got 21"),
    ],
)
def test_from_string_says_which_part_does_not_fit(text, message):
    with pytest.raises(InputError, match=message):
        nasbench101.from_string(text)


@pytest.mark.parametrize(
    ("matrix", "names", "message"),
    [
        ([[0, 1], [0, 0]], ["input"], "2 to 7 names"),
        ([[0, 1], [0, 0]], ["output", "input"], "from 'input' to 'output'"),
        ([[0, 1], [1, 0]], ["input", "output"], r"upper triangular, \[2, 2\]"),
        ([[1, 1], [0, 0]], ["input", "output"], "upper triangular"),
        ([[0, 2], [0, 0]], ["input", "output"], "zeros and ones"),
        ([[0, 1, 1], [0, 0, 1]], ["input", CONV1, "output"], r"\[3, 3\]"),
        (np.triu(np.ones((3, 3)), 1), ["input", "conv", "output"], "unknown operation 'conv'"),
        (np.triu(np.ones((6, 6)), 1), ["input", *[POOL] * 4, "output"], "at most 9 .* got 15"),
    ],
)
def test_from_graph_says_what_does_not_fit(matrix, names, message):
    with pytest.raises(InputError, match=message):
        nasbench101.from_graph(matrix, names)


def test_describe_has_operations_at_nodes():
    (graph,) = NASBENCH101.describe(
        nasbench101.from_graph(BEST_MATRIX, ["input", CONV3, CONV1, CONV3, POOL, CONV3, "output"])
    )
    assert graph.nodes == ("input", "1", "2", "3", "5", "output")
    assert graph.node_operations == (("1", CONV3), ("2", CONV1), ("3", CONV3), ("5", CONV3))
    assert ("input", "output", "") in graph.edges
    assert ("3", "5", "") in graph.edges
    assert len(graph.edges) == 9
