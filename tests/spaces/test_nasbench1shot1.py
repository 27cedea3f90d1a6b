"""The NAS-Bench-1Shot1 spaces: counts, classes, conversion to NAS-Bench-101, notation."""

import itertools

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.spaces import get_space, nasbench101
from nasjax.spaces.nasbench1shot1 import (
    NUM_PARENTS,
    nasbench1shot1_space,
    parent_sets,
    parent_table,
    to_nasbench101,
)

NAMES = sorted(NUM_PARENTS)
S1, S2, S3 = NAMES
TEXTS = {
    S1: "conv3x3-bn-relu~0|maxpool3x3~0,1|conv1x1-bn-relu~0,2|conv3x3-bn-relu~1,3|output~2,4",
    S2: "conv3x3-bn-relu~0|maxpool3x3~1|conv1x1-bn-relu~0,2|conv3x3-bn-relu~1,3|output~0,2,4",
    S3: "conv3x3-bn-relu~0|maxpool3x3~1|conv1x1-bn-relu~0|conv3x3-bn-relu~1,3|maxpool3x3~0,4"
    "|output~2,5",
}


def _adjacency(name):
    """Every way to wire a cell: 0/1 matrices, loose ends included."""
    for parents in itertools.product(*parent_sets(name)):
        matrix = np.zeros((len(parents) + 1,) * 2, int)
        for node, sources in enumerate(parents, start=1):
            matrix[list(sources), node] = 1
        yield matrix


@pytest.mark.parametrize(
    ("name", "size", "num_read", "published"),
    [(S1, 14_580, 6_240, 6_240), (S2, 29_160, 16_632, 29_160), (S3, 1_312_200, 363_648, 363_648)],
)
def test_sizes_are_the_published_ones(name, size, num_read, published):
    """Published with loose ends: all genotypes, or operations at nodes that are read alone."""
    num_inner = len(NUM_PARENTS[name]) - 1
    wirings = list(_adjacency(name))
    assert len(wirings) * 3**num_inner == get_space(name).size == size
    read = sum(3 ** int(matrix[1:-1].any(axis=1).sum()) for matrix in wirings)
    assert read == num_read
    assert published in (size, num_read)


def _generated(name, matrix, node):
    """The benchmark's generator, which sets parents from the output back until all counts fit."""
    wanted, count = (0, *NUM_PARENTS[name]), matrix.sum(0)
    is_complete = (
        matrix[1:-1].any()
        and matrix[0].any()
        and all(n in (0, m) for n, m in zip(count, wanted, strict=True))
        and (count > 0).sum() == matrix.any(1).sum()
    )
    if is_complete:
        yield matrix
        return
    free = [source for source in range(node) if not matrix[source, node]]
    left = wanted[node] - count[node]
    for parents in [(0,)] if node == 1 else itertools.combinations(free, max(left, 0)):
        grown = matrix.copy()
        for parent in parents:
            grown[parent, node] = 1
            yield from _generated(name, grown, parent)


@pytest.mark.parametrize(("name", "number"), [(S1, 2_487), (S2, 3_609), (S3, 24_066)])
def test_number_that_the_benchmarks_generator_yields(name, number):
    """Without loose ends. It misses some: ``test_canonical_gives_the_classes`` counts all."""
    size = len(NUM_PARENTS[name]) + 1
    found = _generated(name, np.zeros((size, size), int), size - 1)
    assert sum(3 ** int(matrix[1:-1].any(1).sum()) for matrix in found) == number


@pytest.mark.parametrize(
    ("name", "number"), [(S1, 2_685), pytest.param(S2, 7_773, marks=pytest.mark.slow)]
)
def test_canonical_gives_the_classes_of_the_official_hash(name, number):
    space = get_space(name)
    listed = space.all_genotypes()
    hashes, representatives = {}, {}
    for genotype in listed:
        whole = to_nasbench101(name, genotype)
        representative = tuple(space.canonical(genotype))
        # One hash for all that the pruned graph is equal for.
        key = tuple(nasbench101.canonical(whole))
        if key not in hashes:
            hashes[key] = nasbench101.official_hash(whole)
            representatives[key] = representative
            assert nasbench101.official_hash(to_nasbench101(name, representative)) == hashes[key]
        assert representatives[key] == representative <= tuple(genotype)
    assert len(set(hashes.values())) == len(set(representatives.values())) == number


@pytest.mark.slow
def test_number_of_classes_of_the_third_space():
    seen = set()
    for matrix in _adjacency(S3):
        edges = matrix[np.triu_indices(7, 1)]
        used = [v for v in nasbench101.prune(edges == 1, [0] * 5)[1] if 0 < v < 6]
        for operations in itertools.product(range(3), repeat=len(used)):
            whole = np.zeros(26, int)
            whole[:21] = edges
            whole[20 + np.array(used, int)] = operations
            graph = nasbench101.to_graph(whole)
            seen.add((graph.matrix.tobytes(), graph.operations))
    hashes = {
        nasbench101.graph_hash(
            nasbench101.Nasbench101Graph(
                np.frombuffer(matrix, bool).reshape((len(operations) + 2,) * 2), operations
            )
        )
        for matrix, operations in seen
    }
    assert len(hashes) == 55_854


@pytest.mark.parametrize("name", NAMES)
def test_parent_table_holds_the_sets(name):
    table = parent_table(name)
    for node, choices in enumerate(parent_sets(name)):
        assert len(set(choices)) == len(choices)
        for choice, row in enumerate(table[node]):
            expected = choices[choice] if choice < len(choices) else ()
            assert tuple(np.flatnonzero(row)) == expected
            assert len(expected) in (0, NUM_PARENTS[name][node])
            assert all(source <= node for source in expected)
    np.testing.assert_array_equal(get_space(name).decisions["parents"], table.any(axis=-1))
    num_choices = {S1: [1, 1, 3, 6, 10], S2: [1, 2, 3, 6, 10], S3: [1, 2, 3, 6, 10, 15]}[name]
    assert table.any(axis=-1).sum(axis=-1).tolist() == num_choices


@pytest.mark.parametrize("name", NAMES)
def test_one_cell_in_every_notation(name):
    space = get_space(name)
    genotype = space.from_string(TEXTS[name])
    assert space.to_string(genotype) == TEXTS[name]
    whole = to_nasbench101(name, genotype)
    nodes = [node.split("~") for node in TEXTS[name].split("|")]
    matrix = np.zeros((7, 7), int)
    for number, (_, parents) in enumerate(nodes, start=1):
        matrix[[int(p) for p in parents.split(",")], 6 if number == len(nodes) else number] = 1
    names = [operation for operation, _ in nodes[:-1]]
    names += ["conv3x3-bn-relu"] * (5 - len(names))
    expected = nasbench101.from_graph(matrix, ["input", *names, "output"])
    np.testing.assert_array_equal(whole, expected)
    assert matrix.sum() == sum(NUM_PARENTS[name]) <= 9
    (graph,) = space.describe(genotype)
    assert graph == nasbench101.describe(whole)[0]


def test_loose_ends_do_not_count():
    space = get_space(S1)
    text = "maxpool3x3~0|conv1x1-bn-relu~0,1|{}|output~0,2"
    loose = ["conv3x3-bn-relu~0,1|conv3x3-bn-relu~0,1", "maxpool3x3~1,2|conv1x1-bn-relu~2,3"]
    genotypes = [space.from_string(text.format(nodes)) for nodes in loose]
    np.testing.assert_array_equal(*(space.canonical(genotype) for genotype in genotypes))
    # The second node moves to the last place: the lowest operations come first.
    text = "maxpool3x3~0|conv3x3-bn-relu~0,1|conv3x3-bn-relu~0,1|conv1x1-bn-relu~0,1|output~0,4"
    assert space.to_string(space.canonical(genotypes[0])) == text
    (graph,) = space.describe(genotypes[1])
    assert graph.node_operations == (("1", "maxpool3x3"), ("2", "conv1x1-bn-relu"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("~1,3", "~1,4", "node 4 must have 2 parents in increasing order, 0,1 or 0,2 .* got '1,4'"),
        ("~1,3", "~3,1", "increasing order"),
        ("~1,3", "~1", "must have 2 parents"),
        ("~2,4", "~0,2,4", "node 5 must have 2 parents"),
        ("~2,4", "", "node 5 must have 2 parents .* got ''"),
        ("output", "outptu", r"must be 'output~parents', got 'outptu~2,4'. Is the text truncated"),
        ("maxpool3x3", "maxpool3x33", "Did you mean 'maxpool3x3'"),
        ("|output~2,4", "", "must have 5 parts joined by"),
    ],
)
def test_from_string_says_which_part_does_not_fit(old, new, message):
    assert old in TEXTS[S1]
    with pytest.raises(InputError, match=message):
        get_space(S1).from_string(TEXTS[S1].replace(old, new))


def test_select_takes_the_most_probable_choices():
    space = get_space(S2)
    genotype = space.from_string(TEXTS[S2])
    weights = space.one_hot(genotype)
    np.testing.assert_array_equal(space.select(weights), genotype)
    # Choices that do not exist are not read.
    logits = {name: np.where(space.decisions[name], w, 99.0) for name, w in weights.items()}
    np.testing.assert_array_equal(space.select(logits), genotype)


def test_unknown_space():
    with pytest.raises(InputError, match="unknown space 'nasbench1shot1_4'. Did you mean"):
        nasbench1shot1_space("nasbench1shot1_4")
    with pytest.raises(InputError, match="must be between 0 and 2, got 7"):
        to_nasbench101(S1, np.full(9, 7))
