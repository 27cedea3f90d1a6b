"""NAS-Bench-101 graphs as text: the upper triangle of the matrix, then the operations."""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from nasjax.errors import InputError
from nasjax.spaces.base import check_text, excerpt, operation_index
from nasjax.spaces.nasbench101_graphs import NUM_INTERIOR, NUM_VERTICES, OPERATIONS, OUTPUT, PAIRS

_INPUT_NAME, _OUTPUT_NAME = "input", "output"


def format_genotype(genotype: Int32[np.ndarray, " decisions"]) -> str:
    """The notation that ``parse_genotype`` reads, with a point between the rows of the matrix.

    Args:
      genotype: ``[26]``.

    Returns:
      ``111101.00011.0001.110.11.0,input|maxpool3x3|...|output``.
    """
    digits = "".join(str(bit) for bit in genotype[: len(PAIRS)].tolist())
    rows = []
    for length in range(OUTPUT, 0, -1):
        rows.append(digits[:length])
        digits = digits[length:]
    names = [OPERATIONS[operation] for operation in genotype[len(PAIRS) :].tolist()]
    return f"{'.'.join(rows)},{'|'.join([_INPUT_NAME, *names, _OUTPUT_NAME])}"


def parse_genotype(where: str, text: str) -> Int32[np.ndarray, " decisions"]:
    """Reads a graph of two to seven vertices.

    The text is the upper triangle of the adjacency matrix, row by row, as digits 0 and 1 (points
    between the rows may be left out), a comma or a space, and one name a vertex, joined by ``|``:
    first ``input``, last ``output``. That is how tables of the benchmark hold a graph, in two
    columns.

    Args:
      where: the function that was called, for messages.
      text: at most 10,000 characters.

    Returns:
      ``[26]`` int32; see ``embed`` for a graph of fewer vertices.

    Raises:
      InputError: names the part that cannot be read.
    """
    text = check_text(where, text)
    triangle, _, names = re.sub(r"\s*,\s*|\s+", ",", text, count=1).partition(",")
    digits = triangle.replace(".", "")
    if not re.fullmatch("[01]+", digits):
        raise InputError(
            f"{where}: `text` must begin with the digits 0 and 1 of an upper triangle, got "
            f"{excerpt(triangle)}. Write it like {format_genotype(np.zeros(26, np.int32))!r}."
        )
    vertices = names.split("|")
    if vertices[0] != _INPUT_NAME or vertices[-1] != _OUTPUT_NAME:
        raise InputError(
            f"{where}: the vertices must be '{_INPUT_NAME}|...|{_OUTPUT_NAME}', got "
            f"{excerpt(names)}. Is the text truncated?"
        )
    size = len(vertices)
    if not 2 <= size <= NUM_VERTICES:
        raise InputError(
            f"{where}: a graph must have 2 to {NUM_VERTICES} vertices, got {size}: "
            f"{excerpt(names)}."
        )
    if len(digits) != size * (size - 1) // 2:
        raise InputError(
            f"{where}: {size} vertices must have a triangle of {size * (size - 1) // 2} digits, "
            f"got {len(digits)}: {excerpt(triangle)}."
        )
    operations = [operation_index(where, name, OPERATIONS) for name in vertices[1:-1]]
    matrix = np.zeros((size, size), bool)
    matrix[np.triu_indices(size, 1)] = [digit == "1" for digit in digits]
    return embed(matrix, operations)


def embed(matrix: np.ndarray, operations: Sequence[int]) -> Int32[np.ndarray, " decisions"]:
    """A graph of two to seven vertices as a genotype.

    The first vertices keep their numbers, the output becomes vertex 6, and what lies between has
    no edges and the first operation.

    Args:
      matrix: ``[vertices, vertices]``, upper triangular, of zeros and ones.
      operations: positions in ``OPERATIONS`` of the vertices between input and output.

    Returns:
      ``[26]`` int32.
    """
    whole = np.zeros((NUM_VERTICES, NUM_VERTICES), np.int32)
    numbers = [*range(len(matrix) - 1), OUTPUT]
    whole[np.ix_(numbers, numbers)] = matrix
    padding = [0] * (NUM_INTERIOR - len(operations))
    return np.array([*(whole[pair] for pair in PAIRS), *operations, *padding], np.int32)
