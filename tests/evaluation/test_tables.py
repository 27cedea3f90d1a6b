"""The NAS-Bench-201 table: published values, and files that are no such table."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.evaluation.tables import Nasbench201Table, load_nasbench201_table
from nasjax.spaces.nasbench201 import genotype_from_index, to_string

HEADER = "index,arch,c10_test200_mean,c100_test200_mean,in16_test200_mean,c10_val12,c10_params_M"
ROWS = [
    f"{index},{to_string(genotype_from_index(index))},{values}"
    for index, values in (
        (0, "85.5,52.9,26.6,63.3,0.129306"),
        (6111, "94.3733,73.22,46.7111,84.384,1.073466"),
        (1, "85.5,70.2,44.0,82.8,0.802426"),
        (2, "10,1,0.83,100,0.073306"),
    )
]


@pytest.fixture
def write(tmp_path):
    def write(lines, name="table.csv"):
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


def _raises(path, message):
    with pytest.raises(InputError, match=message) as caught:
        load_nasbench201_table(path)
    assert str(path) in str(caught.value)


def test_published_table():
    folder = os.environ.get("NASJAX_DATA", Path(__file__).parents[3] / "shared" / "data")
    path = Path(folder) / "nb201_accuracies.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there; set NASJAX_DATA")
    table = load_nasbench201_table(path)
    assert table.genotypes.shape == (15_625, 6)
    for index, name, accuracy in (
        (6111, "cifar10_test", 0.943733),
        (9930, "cifar100_test", 0.735133),
        (857, "imagenet16_test", 0.473111),
    ):
        assert getattr(table, name).argmax() == index
        entry = table.lookup(genotype_from_index(index))
        assert getattr(entry, name) == pytest.approx(accuracy, abs=1e-9)
    assert table.lookup(genotype_from_index(6111)).cifar10_rank == 1
    assert len(table.accuracies()) == 10
    assert table.accuracies()["cifar10_validation_200"].max() == pytest.approx(0.91607, abs=1e-5)
    convolutions = np.stack([(table.genotypes == op).sum(axis=1) for op in (2, 3)])
    params = 0.073306 + 0.028 * convolutions[0] + 0.24304 * convolutions[1]
    # The published numbers are rounded to six places, the slopes to five.
    np.testing.assert_allclose(table.params_millions, params, atol=2e-4)


def test_lookup_gives_fractions_and_ranks(write):
    table = load_nasbench201_table(write([HEADER, *ROWS]))
    entry = table.lookup(genotype_from_index(6111))
    assert entry == pytest.approx((0.943733, 0.7322, 0.467111, 0.84384, 1.073466, 1))
    ranks = [table.lookup(genotype_from_index(i)).cifar10_rank for i in (6111, 0, 1, 2)]
    assert ranks == [1, 2, 2, 4]
    with pytest.raises(InputError, match="must be in the table of 4 cells"):
        table.lookup(genotype_from_index(3))
    with pytest.raises(InputError, match="must be integers of shape"):
        table.lookup(np.zeros(5, int))


def test_columns_may_stand_in_any_order_and_files_may_be_gzipped(write, tmp_path):
    plain = load_nasbench201_table(write([HEADER, *ROWS]))
    reordered = [",".join(reversed(line.split(","))) for line in (HEADER, *ROWS)]
    path = tmp_path / "zipped"
    path.write_bytes(gzip.compress("\r\n".join(reordered).encode("utf-8-sig")))
    zipped = load_nasbench201_table(path)
    np.testing.assert_array_equal(zipped.genotypes, plain.genotypes)
    np.testing.assert_array_equal(zipped.cifar100_test, plain.cifar100_test)
    np.testing.assert_array_equal(zipped.params_millions, [0.129306, 1.073466, 0.802426, 0.073306])


def test_other_accuracies_are_read_where_they_are_there(write):
    header = HEADER.replace("c10_val12", "c10_val12,in16_val12,c10_test12")
    rows = [row.rsplit(",", 2) for row in ROWS]
    lines = [f"{start},{val},{n},{n + 10},{params}" for n, (start, val, params) in enumerate(rows)]
    table = load_nasbench201_table(write([header, *lines]))
    assert list(table.others) == ["cifar10_test_12", "imagenet16_validation_12"]
    np.testing.assert_allclose(table.others["imagenet16_validation_12"], [0, 0.01, 0.02, 0.03])
    np.testing.assert_allclose(table.others["cifar10_test_12"], [0.1, 0.11, 0.12, 0.13])
    np.testing.assert_allclose(table.params_millions, [0.129306, 1.073466, 0.802426, 0.073306])
    assert table.accuracies()["cifar10_validation_12"][1] == pytest.approx(0.84384)
    plain = load_nasbench201_table(write([HEADER, *ROWS]))
    assert plain.others == {} and plain.seconds_12 is None and plain.seconds_of([]) is None


def test_seconds_are_read_where_they_are_there(write):
    header = HEADER.replace("c10_val12", "c10_val12,c10_test12") + ",c10_seconds12"
    rows = [row.rsplit(",", 1) for row in ROWS]
    lines = [f"{start},{n},{params},{1000 + n}" for n, (start, params) in enumerate(rows)]
    table = load_nasbench201_table(write([header, *lines]))
    np.testing.assert_array_equal(table.seconds_12, [1000, 1001, 1002, 1003])
    np.testing.assert_array_equal(table.seconds_of(table.genotypes[2:3]), [1002])
    assert list(table.others) == ["cifar10_test_12"]
    with pytest.raises(InputError, match="c10_seconds12 must be a number >= 0, got '-1'"):
        load_nasbench201_table(write([header, lines[0].replace(",1000", ",-1")]))


def test_whole_tables_must_have_the_best_cells_of_the_benchmark():
    best = {6111: (94.3733, 73.22, 46.7), 9930: (94, 73.5133, 46), 857: (94, 73, 47.3111)}
    rows = {index: (50.0, 50.0, 40.0) for index in range(15_625)} | best

    def table(rows):
        columns = np.array([rows[index] for index in range(15_625)]).T / 100
        cells = np.stack([genotype_from_index(index) for index in range(15_625)])
        return Nasbench201Table(cells, *columns, columns[0], columns[0])

    table(rows).check("file")
    swapped = rows | {6111: rows[0], 0: rows[6111]}
    with pytest.raises(InputError, match="file: .* cifar10_test must be 6111 with 94.37 %, got 0 "):
        table(swapped).check("file")
    with pytest.raises(InputError, match="imagenet16_test must be 857 .*, got 857 with 47.50 %"):
        table(rows | {857: (94, 73, 47.5)}).check("file")


def test_missing_file_says_what_to_do(tmp_path):
    _raises(tmp_path / "none.csv.gz", "No such file.*--table.*NASJAX_DATA")
    _raises(tmp_path, "Is a directory")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([""], "must have the columns.* got no arch"),
        ([HEADER], "got only a header"),
        ([HEADER.replace("c10_val12", "x"), *ROWS], "got no c10_val12"),
        ([HEADER, *ROWS, ROWS[1]], r"line 6: every cell .* \(first on line 3\)"),
        ([HEADER, ROWS[0], ROWS[1][:-20]], "line 3: a row must have 7 columns, got [56]"),
        ([HEADER, ROWS[0].replace("52.9", "52,9")], "line 2: a row must have 7 columns, got 8"),
        ([HEADER, ROWS[0].replace("52.9", "nan")], "line 2: c100_.* a percentage, .*got 'nan'"),
        ([HEADER, ROWS[0].replace("52.9", "")], "c100_test200_mean must be a percentage.*got ''"),
        ([HEADER, ROWS[0].replace("52.9", "152.9")], "c100_test200_mean must be a percentage"),
        ([HEADER, ROWS[0].replace("0.129306", "inf")], "c10_params_M must be a number .*'inf'"),
        ([HEADER, ROWS[0].replace("connect~2", "~2")], "line 2: `arch`: .*operation 'skip_'"),
        ([HEADER, ROWS[0].replace("85.5", "0.855")], "must be in percent, got at most 0.855"),
        ([HEADER, ROWS[0], "5" + ROWS[2][1:]], "line 3: index must be 1, .* got '5'"),
        ([HEADER, "\x00" + "x" * 200_000], "line 2"),
    ],
)  # fmt: skip
def test_damaged_tables_name_path_and_line(write, lines, message):
    _raises(write(lines), message)


def test_truncated_and_foreign_files(tmp_path):
    content = gzip.compress("\n".join([HEADER, *ROWS]).encode())
    path = tmp_path / "table.csv.gz"
    for damaged in (content[:-20], content[:12], content[:20] + b"\xff" * 30 + content[50:]):
        path.write_bytes(damaged)
        _raises(path, "got a damaged one")
    path.write_bytes(b"\x89PNG\xff\xfe")
    _raises(path, "got a damaged one")
