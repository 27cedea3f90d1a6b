"""Which architectures a scoring run is asked for."""

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.runs import request_all, request_file, request_sample
from nasjax.runs.score_request import index_of
from nasjax.spaces import get_space, mlp_space
from nasjax.spaces.nasbench201 import official_index

CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|avg_pool_3x3~1|+|skip_connect~0|nor_conv_3x3~1|none~2|"
NASBENCH201 = get_space("nasbench201")


def test_all_cells_come_in_their_official_order():
    request = request_all(NASBENCH201)
    assert len(request.genotypes) == 15_625
    assert [official_index(cell) for cell in request.genotypes[:50]] == list(range(50))
    assert index_of(NASBENCH201, request.genotypes[6111], 3) == 6111


def test_all_of_a_large_space_is_refused():
    with pytest.raises(InputError, match="--all: darts must be .*--num-architectures"):
        request_all(get_space("darts"))
    assert len(request_all(mlp_space(3)).genotypes) == 50


@pytest.mark.parametrize("space", [NASBENCH201, get_space("darts"), mlp_space(3)])
def test_samples_are_distinct_and_begin_alike(space):
    many, few = (
        [cell.tobytes() for cell in request_sample(space, count, 5).genotypes] for count in (40, 7)
    )
    assert len(set(many)) == 40
    assert many[:7] == few
    assert [cell.tobytes() for cell in request_sample(space, 7, 6).genotypes] != few


def test_a_whole_small_space_can_be_drawn():
    drawn = request_sample(mlp_space(3), 50, 0).genotypes
    assert len({cell.tobytes() for cell in drawn}) == 50
    with pytest.raises(InputError, match="must be 1 to 50 in mlp, got 51"):
        request_sample(mlp_space(3), 51, 0)
    with pytest.raises(InputError, match="must be 1 to 15625 in nasbench201, got 0"):
        request_sample(NASBENCH201, 0, 0)


def test_bad_lines_of_a_file_are_told_and_the_rest_is_taken(tmp_path):
    path = tmp_path / "cells.txt"
    lines = ["\ufeff# best cells", CELL, "", "6111", CELL[:-5], "conv", " 7 ", "99999", CELL]
    path.write_text("\n".join(lines), encoding="utf-8")
    request = request_file(NASBENCH201, path)
    strings = [NASBENCH201.to_string(cell) for cell in request.genotypes]
    assert strings[0] == strings[3] == CELL
    np.testing.assert_array_equal(
        [official_index(cell) for cell in request.genotypes[1:3]], [6111, 7]
    )
    assert [line.split(": ")[0] for line in request.bad_lines] == [
        f"--archs {path}, line {number}" for number in (5, 6, 8)
    ]
    assert all("\n" not in line for line in request.bad_lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must hold an architecture of nasbench201; it is empty"),
        (b"\xff\xfe\x00", "the first of 1 bad lines: .*line 1"),
        (b"x\ny\n", "the first of 2 bad lines: .*line 1"),
        (None, "must be a readable file.*No such file"),
    ],
)
def test_files_without_architectures_are_refused(tmp_path, content, message):
    path = tmp_path / "cells.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        request_file(NASBENCH201, path)
