"""The NAS-Bench-201 space against the published table and against slower second ways."""

import csv
import gzip
import itertools
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.spaces import nasbench201
from nasjax.spaces.nasbench201 import NASBENCH201

BEST = (
    "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|"
    "+|skip_connect~0|nor_conv_3x3~1|nor_conv_1x1~2|"
)


def _data(name: str) -> Path:
    folder = os.environ.get("NASJAX_DATA", Path(__file__).parents[3] / "shared" / "data")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"{path} is not there; set NASJAX_DATA")
    return path


@pytest.fixture(scope="module")
def rows():
    with gzip.open(_data("nb201_accuracies.csv.gz"), "rt") as file:
        return list(csv.DictReader(file))


def test_official_index_of_all_rows(rows):
    assert len(rows) == 15_625
    for row in rows:
        genotype = nasbench201.from_string(row["arch"])
        assert nasbench201.official_index(genotype) == int(row["index"])
        assert nasbench201.to_string(genotype) == row["arch"]
        assert nasbench201.genotype_from_index(int(row["index"])).tolist() == genotype.tolist()


def test_canonical_gives_the_published_classes(rows):
    ours = [tuple(nasbench201.canonical(nasbench201.from_string(r["arch"]))) for r in rows]
    pairs = set(zip(ours, (row["iso_class"] for row in rows), strict=True))
    # Equal partitions: the pairs are one-to-one.
    assert len(pairs) == len(set(ours)) == len({row["iso_class"] for row in rows}) == 6466


def test_canonical_is_the_smallest_of_its_class():
    cells = nasbench201.all_genotypes()
    for cell in cells[::7]:
        assert tuple(nasbench201.canonical(cell)) <= tuple(cell)
    # 1<-0 is a skip, so nodes 0 and 1 are equal and the operations on them may change places.
    for a, b in itertools.product(range(5), repeat=2):
        left, right = [1, a, b, 0, 0, 1], [1, b, a, 0, 0, 1]
        np.testing.assert_array_equal(
            nasbench201.canonical(np.array(left)), nasbench201.canonical(np.array(right))
        )


def test_known_indices():
    assert nasbench201.to_string(nasbench201.from_string("6111")) == BEST
    assert nasbench201.official_index(nasbench201.from_string(BEST)) == 6111
    assert nasbench201.from_string("0").tolist() == [4, 2, 1, 2, 1, 1]
    assert nasbench201.from_string("00006111").tolist() == [3, 3, 3, 1, 3, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("15625", "between 0 and 15624, got 15625"),
        ("1234567890", "an official index has 5 digits"),
        (BEST[:-1], "node 3 must begin and end with '|'.*truncated"),
        (BEST[:40], "must have 3 nodes joined by '\\+', got 2"),
        (BEST + "+|none~0|", "must have 3 nodes joined by '\\+', got 4"),
        (BEST.replace("nor_conv_1x1~2|", ""), "node 3 must have 3 edges, got 2"),
        (BEST.replace("1x1", "1x2"), "operation 'nor_conv_1x2'. Did you mean 'nor_conv_1x1'"),
        (BEST.replace("1x1~2", "1x1~1"), "edge 2 of node 3 must be 'operation~2', got 'nor_"),
        (BEST.replace("1x1~2", "1x1~-1"), "edge 2 of node 3"),
        (BEST.replace("~2", ""), "edge 2 of node 3 must be 'operation~2', got 'nor_conv_1x1'"),
        ("|a~0|" * 3000, "at most 10,000 characters, got 15,000"),
    ],
)  # fmt: skip
def test_from_string_says_what_is_malformed(text, message):
    with pytest.raises(InputError, match=message):
        nasbench201.from_string(text)


def test_index_bounds():
    for index in (-1, 15_625):
        with pytest.raises(InputError, match=f"got {index}"):
            nasbench201.genotype_from_index(index)


def test_connected_cells_against_all_paths():
    paths = [(3,), (0, 4), (1, 5), (0, 2, 5)]
    cells = nasbench201.all_genotypes()
    expected = np.any([np.all(cells[:, path] != 0, axis=1) for path in paths], axis=0)
    found = [nasbench201.is_connected(cell) for cell in cells[::5]]
    np.testing.assert_array_equal(found, expected[::5])


def test_select_takes_the_most_probable_connected_cell():
    logits = np.random.default_rng(0).normal(size=(6, 5))
    chosen = nasbench201.select({"edges": logits})
    if nasbench201.is_connected(logits.argmax(axis=1)):
        np.testing.assert_array_equal(chosen, logits.argmax(axis=1))
    # `none` is by far the strongest everywhere: the cheapest path is the one edge 3<-0.
    logits = np.zeros((6, 5))
    logits[:, 0] = 5.0
    logits[3] = [5.0, 1.0, 1.0, 2.0, 0.0]
    assert nasbench201.select({"edges": logits}).tolist() == [0, 0, 0, 3, 0, 0]
    # Without that edge it costs less to open 1<-0 and 3<-1 than 2<-0 and 3<-2.
    logits[3, 1:] = -np.inf
    logits[0, 4], logits[4, 2] = 4.0, 4.5
    assert nasbench201.select({"edges": logits}).tolist() == [4, 0, 0, 0, 2, 0]


def test_select_breaks_ties_by_the_lowest_index_and_refuses_the_impossible():
    assert nasbench201.select({"edges": np.zeros((6, 5))}).tolist() == [0, 0, 0, 1, 0, 0]
    logits = np.full((6, 5), -np.inf)
    logits[:, 0] = 0.0
    with pytest.raises(InputError, match="must leave a connected cell"):
        nasbench201.select({"edges": logits})


def test_sample_is_uniform_on_every_edge():
    cells = np.asarray(jax.vmap(NASBENCH201.sample)(jax.random.split(jax.random.key(0), 5000)))
    for edge in range(6):
        counts = np.bincount(cells[:, edge], minlength=5)
        # Binomial(5000, 0.2): mean 1000, standard error 28.3.
        assert np.abs(counts - 1000).max() < 4.5 * 28.3


def test_one_hot_and_describe_of_a_cell():
    genotype = nasbench201.from_string(BEST)
    weights = nasbench201.one_hot(genotype)["edges"]
    np.testing.assert_array_equal(weights, np.eye(5, dtype=np.float32)[[3, 3, 3, 1, 3, 2]])
    (graph,) = nasbench201.describe(np.array([0, 3, 0, 1, 0, 4]))
    assert graph.name == "cell"
    assert graph.inputs == ("0",)
    assert graph.nodes == ("0", "1", "2", "3")
    assert graph.edges == (
        ("0", "2", "nor_conv_3x3"),
        ("0", "3", "skip_connect"),
        ("2", "3", "avg_pool_3x3"),
    )
