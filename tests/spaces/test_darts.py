"""The DARTS space: published architectures, decisions, isomorphism, notations."""

import itertools
import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.spaces import darts
from nasjax.spaces.darts import DARTS

DARTS_V2_TEXT = (
    "Genotype(normal=[('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), "
    "('sep_conv_3x3', 1), ('sep_conv_3x3', 1), ('skip_connect', 0), ('skip_connect', 0), "
    "('dil_conv_3x3', 2)], normal_concat=range(2, 6), reduce=[('max_pool_3x3', 0), "
    "('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 1), ('max_pool_3x3', 0), "
    "('skip_connect', 2), ('skip_connect', 2), ('max_pool_3x3', 1)], reduce_concat=range(2, 6))"
)
DARTS_V2 = np.array(
    [
        [[[3, 0], [3, 1]], [[3, 0], [3, 1]], [[3, 1], [2, 0]], [[2, 0], [5, 2]]],
        [[[0, 0], [0, 1]], [[2, 2], [0, 1]], [[0, 0], [2, 2]], [[2, 2], [0, 1]]],
    ]
)
FITTING = {
    "DARTS_V1", "DARTS_V2", "PC_DARTS_cifar", "PC_DARTS_image", "PDARTS", "TENAS_cifar10",
    "TENAS_imagenet", "TEGNAS_RL", "TEGNAS_Evolution", "TEGNAS_ProbNAS", "GDAS_V1", "MdeNAS",
    "SNAS", "FairDARTS_d",
}  # fmt: skip
REFUSED = {
    "NASNet": "normal must have 4 nodes of 2 edges, got 10 edges",
    "AmoebaNet": "normal must have 4 nodes of 2 edges, got 10 edges",
    "ENASNet": "normal must have 4 nodes of 2 edges, got 10 edges",
    "PNASNet": "normal must have 4 nodes of 2 edges, got 5 nodes",
    "FairDARTS_a": "normal: node 1 must have 2 edges, got 0",
    "FairDARTS_b": "normal: node 1 must have 2 edges, got 1",
    "FairDARTS_c": "normal: node 1 must have 2 edges, got 0",
    "FairDARTS_e": "normal: node 1 must have 2 edges, got 0",
    "FairDARTS_f": "normal: node 1 must have 2 edges, got 1",
    "FairDARTS_g": "normal: node 1 must have 2 edges, got 0",
    "SETN": "normal: node 3: unknown operation 'conv_3x1_1x3'",
}


@pytest.fixture(scope="module")
def published():
    folder = os.environ.get("NASJAX_DATA", Path(__file__).parents[3] / "shared" / "data")
    path = Path(folder) / "darts_genotypes.json"
    if not path.exists():
        pytest.skip(f"{path} is not there; set NASJAX_DATA")
    return json.loads(path.read_text())


def test_published_architectures_fit_or_are_refused_with_the_reason(published):
    assert len(published) == 26
    assert {entry["name"] for entry in published} == FITTING | set(REFUSED)
    for entry in published:
        text = json.dumps(entry)
        if entry["name"] in REFUSED:
            with pytest.raises(InputError) as caught:
                darts.from_string(text)
            assert REFUSED[entry["name"]] in str(caught.value)
        else:
            genotype = darts.from_string(text)
            again = darts.from_string(darts.to_string(genotype))
            np.testing.assert_array_equal(again, genotype)


def test_flat_and_nested_publications_of_one_name(published):
    flat, nested = (entry for entry in published if entry["name"] == "GDAS_V1")
    assert len(flat["normal"]) == 8
    assert len(nested["normal"]) == 4
    a, b = (darts.from_string(json.dumps(entry)) for entry in (flat, nested))
    # The two sources disagree on the last edge: sep_conv_5x5 of input 2, or of input 1.
    assert np.argwhere(a != b).tolist() == [[1, 3, 1, 1]]
    assert (a[1, 3, 1, 1], b[1, 3, 1, 1]) == (2, 1)


def test_all_notations_of_one_architecture():
    assert darts.to_string(DARTS_V2) == DARTS_V2_TEXT
    cells = {"normal": DARTS_V2[0], "reduce": DARTS_V2[1]}
    named = {
        key: [[(DARTS.operations[op], int(i)) for op, i in node] for node in cell]
        for key, cell in cells.items()
    }
    concat = {"normal_concat": [2, 3, 4, 5], "reduce_concat": [2, 3, 4, 5]}
    triples = {
        key: [(op, 2 + node, i) for node, edges in enumerate(cell) for op, i in edges]
        for key, cell in named.items()
    }
    flat = {key: sum(cell, []) for key, cell in named.items()}
    texts = [
        DARTS_V2_TEXT,
        f"DARTS_V2 = {DARTS_V2_TEXT}",
        DARTS_V2_TEXT.replace(", reduce=", ",\n reduce = "),
    ]
    texts += [
        DARTS_V2_TEXT.replace("range(2, 6)", form)
        for form in ("[2, 3, 4, 5]", "(2,3,4,5)", "range(2,6)")
    ]
    for form in (named, flat, triples):
        texts.append(json.dumps(form | concat | {"name": "any", "reported": {"params_M": 3.3}}))
        parts = (form | concat).items()
        texts.append(f"Genotype({', '.join(f'{key}={value}' for key, value in parts)})")
    for text in texts:
        np.testing.assert_array_equal(darts.from_string(text), DARTS_V2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("range(2, 6), reduce", "range(2, 7), reduce", r"normal_concat .* got 'range\(2, 7\)'"),
        ("range(2, 6), reduce", "[4, 5], reduce", r"normal_concat must be range.* got \[4, 5\]"),
        ("range(2, 6), reduce", "open('x'), reduce", "normal_concat must be a list"),
        ("range(2, 6))", "range(2, 10**99))", "reduce_concat must be a list"),
        ("normal_concat=range(2, 6), ", "", "got no normal_concat"),
        ("('dil_conv_3x3', 2)", "('sep_conv_7x7', 2)", "operation 'sep_conv_7x7'. Did you"),
        ("('dil_conv_3x3', 2)", "('none', 2)", "normal: node 3: unknown operation 'none'"),
        ("('dil_conv_3x3', 2)", "('dil_conv_3x3', 5)", "node 3: an input must be 0 to 4, got 5"),
        ("('dil_conv_3x3', 2)", "('dil_conv_3x3', -1)", "an input must be 0 to 4, got -1"),
        ("('dil_conv_3x3', 2)", "('dil_conv_3x3', True)", "normal must hold pairs"),
        ("('dil_conv_3x3', 2)", "('dil_conv_3x3', 2.0)", "normal must hold pairs"),
        (", ('dil_conv_3x3', 2)", "", "normal must have 4 nodes of 2 edges, got 7 edges"),
        ("reduce=[", "reduce=[], rest=[", "reduce must be a list of edges"),
        ("reduce=[", "normal=[", "must be named once"),
        ("Genotype(", "print(", "must be Genotype"),
        ("Genotype(", "x.Genotype(", "must be Genotype"),
        ("Genotype(", "Genotype(*[], ", "every part named"),
        ("Genotype(", "Genotype(**{}, ", "must be named once"),
        ("Genotype(", "import os; Genotype(", "must be Genotype"),
    ],
)  # fmt: skip
def test_from_string_says_which_part_does_not_fit(old, new, message):
    assert old in DARTS_V2_TEXT
    with pytest.raises(InputError, match=message):
        darts.from_string(DARTS_V2_TEXT.replace(old, new))


def test_triples_need_two_edges_at_every_node():
    edges = [["sep_conv_3x3", node, place] for node in range(2, 6) for place in (0, 1)]
    entry = {
        "normal": edges,
        "reduce": edges,
        "normal_concat": [2, 3, 4, 5],
        "reduce_concat": [2, 3, 4, 5],
    }
    assert darts.from_string(json.dumps(entry))[0, 3].tolist() == [[3, 0], [3, 1]]
    with pytest.raises(InputError, match="the node of an edge must be 2 to 5, got 6"):
        darts.from_string(json.dumps(entry | {"normal": [*edges[:-1], ["sep_conv_3x3", 6, 1]]}))
    with pytest.raises(InputError, match="node 2 must have 2 edges, got 3"):
        darts.from_string(json.dumps(entry | {"normal": [*edges[:-1], ["sep_conv_3x3", 4, 1]]}))


def test_decisions_mask_inputs_that_do_not_exist():
    assert DARTS.decisions["operations"].shape == (2, 4, 7)
    assert DARTS.decisions["inputs"].sum(axis=-1).tolist() == [[2, 3, 4, 5]] * 2
    assert DARTS.decisions["inputs"][1, 1].tolist() == [True, True, True, False, False]


def test_sample_draws_every_pair_of_inputs_alike():
    draws = np.asarray(jax.vmap(DARTS.sample)(jax.random.split(jax.random.key(0), 6000)))
    inputs = draws[..., 1]
    assert (inputs[..., 0] < inputs[..., 1]).all()
    for node, num_pairs in enumerate((1, 3, 6, 10)):
        pairs, counts = np.unique(inputs[:, 0, node], axis=0, return_counts=True)
        assert len(pairs) == num_pairs
        assert pairs.max() == node + 1
        mean = 6000 / num_pairs
        assert np.abs(counts - mean).max() <= 4.5 * np.sqrt(mean * (1 - 1 / num_pairs))
    counts = np.bincount(draws[:, 1, 3, 1, 0], minlength=7)
    assert np.abs(counts - 6000 / 7).max() < 4.5 * np.sqrt(6000 * 6 / 49)


def test_mutate_keeps_inputs_distinct_and_reaches_all_neighbours():
    genotype = np.asarray(DARTS.sample(jax.random.key(1)))
    expected = set()
    for place in itertools.product(range(2), range(4), range(2)):
        for part, bound in ((0, 7), (1, place[1] + 2)):
            for value in range(bound):
                near = genotype.copy()
                near[(*place, part)] = value
                if (near != genotype).any() and (near[..., 0, 1] != near[..., 1, 1]).all():
                    expected.add(near.tobytes())
    keys = jax.random.split(jax.random.key(2), 3000)
    mutants = np.asarray(jax.jit(jax.vmap(DARTS.mutate, in_axes=(0, None)))(keys, genotype))
    assert {mutant.tobytes() for mutant in mutants} == expected


def test_one_hot_has_two_edges_a_node():
    weights = DARTS.one_hot(DARTS_V2)
    assert weights["operations"].shape == (2, 4, 2, 7)
    assert weights["inputs"].shape == (2, 4, 2, 5)
    np.testing.assert_array_equal(weights["operations"].argmax(-1), DARTS_V2[..., 0])
    np.testing.assert_array_equal(weights["inputs"].argmax(-1), DARTS_V2[..., 1])


def test_select_pairs_the_two_strongest_by_rank():
    logits = {name: np.zeros(exists.shape) for name, exists in DARTS.decisions.items()}
    logits["operations"][0, 2, [5, 1]] = 2.0, 1.0
    logits["inputs"][0, 2, [0, 3]] = 1.0, 2.0
    logits["inputs"][1, 0, [4, 1]] = 9.0, 1.0  # input 4 does not exist at node 0
    chosen = darts.select(logits)
    assert chosen.dtype == np.int32
    assert chosen[0, 2].tolist() == [[5, 3], [1, 0]]
    assert chosen[1, 0].tolist() == [[0, 1], [1, 0]]
    assert chosen[1, 3].tolist() == [[0, 0], [1, 1]]  # ties: lowest index first


def test_canonical_of_relabelled_architectures_is_one():
    for key in jax.random.split(jax.random.key(5), 20):
        genotype = np.asarray(DARTS.sample(key))
        expected = darts.canonical(genotype)
        for order in itertools.permutations(range(4)):
            position = np.array([0, 1, *(2 + order.index(node) for node in range(4))])
            moved = genotype[:, list(order)]
            moved[..., 1] = position[moved[..., 1]]
            if (moved[..., 1] < np.arange(2, 6)[:, None]).all():
                np.testing.assert_array_equal(darts.canonical(moved[:, :, ::-1]), expected)


def test_canonical_keeps_different_architectures_apart():
    genotype = np.asarray(DARTS.sample(jax.random.key(6)))
    other = genotype.copy()
    other[0, 3, 0, 0] = (other[0, 3, 0, 0] + 1) % 7
    assert (darts.canonical(genotype) != darts.canonical(other)).any()
    # The operation belongs to its input: swapping operations alone is another architecture.
    cell = [[[3, 0], [0, 1]]] * 4
    swapped = [[[0, 0], [3, 1]], *cell[1:]]
    a, b = (darts.canonical(np.array([c, c])) for c in (cell, swapped))
    assert (a != b).any()


def test_describe():
    normal, reduction = darts.describe(DARTS_V2)
    assert (normal.name, reduction.name) == ("normal", "reduction")
    assert normal.nodes == ("c_{k-2}", "c_{k-1}", "0", "1", "2", "3", "c_{k}")
    assert normal.inputs == ("c_{k-2}", "c_{k-1}")
    assert normal.edges[6:8] == (("c_{k-2}", "3", "skip_connect"), ("0", "3", "dil_conv_3x3"))
    assert normal.edges[8:] == tuple((str(node), "c_{k}", "") for node in range(4))
    assert reduction.edges[2] == ("0", "1", "skip_connect")
