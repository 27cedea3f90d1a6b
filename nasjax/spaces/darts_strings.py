"""DARTS architectures as text: the notations of the field, read without running them."""

import ast
import json
import re
import warnings

import numpy as np
from jaxtyping import Int32

from nasjax.errors import InputError
from nasjax.spaces.base import check_text, excerpt, operation_index

OPERATIONS = (
    "max_pool_3x3",
    "avg_pool_3x3",
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
    "dil_conv_5x5",
)
CELLS = ("normal", "reduction")
NUM_NODES, NUM_EDGES = 4, 2
_KEYS = ("normal", "reduce")
_CONCAT = list(range(2, 2 + NUM_NODES))


def format_genotype(genotype: Int32[np.ndarray, "cells nodes edges 2"]) -> str:
    """The notation of the DARTS repository, on one line.

    Args:
      genotype: ``[2, 4, 2, 2]``.

    Returns:
      ``Genotype(normal=[('sep_conv_3x3', 1), ...], normal_concat=range(2, 6), reduce=[...],
      reduce_concat=range(2, 6))``.
    """
    parts = []
    for key, cell in zip(_KEYS, genotype.tolist(), strict=True):
        edges = [(OPERATIONS[operation], source) for node in cell for operation, source in node]
        parts.append(f"{key}={edges}, {key}_concat=range(2, {2 + NUM_NODES})")
    return f"Genotype({', '.join(parts)})"


def parse_genotype(where: str, text: str) -> Int32[np.ndarray, "cells nodes edges 2"]:
    """Reads an architecture in one of the published notations; nothing is executed.

    The text is a call, ``Genotype(normal=..., normal_concat=..., reduce=..., reduce_concat=...)``
    (a name may be assigned before it), or a JSON object with these keys, others being ignored.
    A cell is

    - 8 pairs ``(operation, input)``, two a node in order (DARTS), or
    - 4 lists of 2 pairs (GDAS), or
    - 8 triples ``(operation, node 2..5, input)`` in any order (FairDARTS),

    with inputs 0 and 1 for the two cells before and ``2 + j`` for intermediate node ``j``. Its
    ``concat`` is ``range(2, 6)`` or the four numbers.

    Args:
      where: the function that was called, for messages.
      text: at most 10,000 characters.

    Returns:
      ``[2, 4, 2, 2]`` int32, edges in the order of the text.

    Raises:
      InputError: names the part that cannot be read or does not fit the space.
    """
    text = check_text(where, text)
    parts = _read_json(where, text) if text.startswith("{") else _read_call(where, text)
    missing = [key for key in (*_KEYS, *(f"{key}_concat" for key in _KEYS)) if key not in parts]
    if missing:
        raise InputError(
            f"{where}: `text` must have normal, normal_concat, reduce and reduce_concat, got no "
            f"{missing[0]}."
        )
    cells = [_read_cell(where, key, parts[key]) for key in _KEYS]
    for key in _KEYS:
        concat = parts[f"{key}_concat"]
        if not isinstance(concat, list | tuple) or list(concat) != _CONCAT:
            raise InputError(
                f"{where}: {key}_concat must be range(2, {2 + NUM_NODES}), got {excerpt(concat)}. "
                "A cell of this space concatenates all its four nodes."
            )
    return np.array(cells, np.int32)


def _read_json(where: str, text: str) -> dict:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where}: `text` must be one JSON object, got {excerpt(text)} ({_said(error)})."
        ) from error


def _read_call(where: str, text: str) -> dict:
    wanted = f"{where}: `text` must be Genotype(normal=..., ...) or a JSON object"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Warning)
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(
            f"{wanted}, got {excerpt(text)} ({_said(error)}). Is the text truncated?"
        ) from error
    statement = body[0] if len(body) == 1 else None
    call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Name)
        or call.func.id != "Genotype"
        or call.args
    ):
        raise InputError(f"{wanted}, with every part named, got {excerpt(text)}.")
    parts: dict = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in parts:
            raise InputError(f"{where}: every part of Genotype(...) must be named once.")
        parts[keyword.arg] = _literal(where, text, keyword)
    return parts


def _literal(where: str, text: str, keyword: ast.keyword) -> object:
    """Lists, tuples, strings and numbers as they stand; ``range(2, 6)`` as a list."""
    source = ast.get_source_segment(text, keyword.value) or ""
    if re.fullmatch(r"range\(\s*2\s*,\s*6\s*\)", source):
        return _CONCAT
    try:
        return ast.literal_eval(keyword.value)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise InputError(
            f"{where}: {keyword.arg} must be a list or range(2, {2 + NUM_NODES}), got "
            f"{excerpt(source)}."
        ) from error


def _read_cell(where: str, key: str, cell: object) -> list[list[tuple[int, int]]]:
    """Nodes of ``(operation, input)`` from one of the three forms of a cell."""
    if not isinstance(cell, list | tuple) or not cell:
        raise InputError(f"{where}: {key} must be a list of edges, got {excerpt(cell)}.")
    if all(_is_edge(item, 2) for item in cell):
        _check_count(where, key, len(cell) / NUM_EDGES, f"{len(cell)} edges")
        nodes = [cell[place : place + NUM_EDGES] for place in range(0, len(cell), NUM_EDGES)]
    elif all(_is_edge(item, 3) for item in cell):
        nodes = [[(name, i) for name, node, i in cell if node == target] for target in _CONCAT]
        unknown = [node for _, node, _ in cell if node not in _CONCAT]
        if unknown:
            raise InputError(
                f"{where}: {key}: the node of an edge must be 2 to {1 + NUM_NODES}, got "
                f"{excerpt(unknown[0])}."
            )
    elif all(
        isinstance(node, list | tuple) and all(_is_edge(item, 2) for item in node) for node in cell
    ):
        _check_count(where, key, len(cell), f"{len(cell)} nodes")
        nodes = list(cell)
    else:
        raise InputError(
            f"{where}: {key} must hold pairs [operation, input], or lists of two pairs, or triples "
            f"[operation, node, input], got {excerpt(cell)}."
        )
    return [
        _read_node(where, f"{key}: node {number}", number, node)
        for number, node in enumerate(nodes)
    ]


def _read_node(where: str, name: str, number: int, node) -> list[tuple[int, int]]:
    if len(node) != NUM_EDGES:
        raise InputError(f"{where}: {name} must have {NUM_EDGES} edges, got {len(node)}.")
    edges = []
    for operation, source in node:
        index = operation_index(f"{where}: {name}", operation, OPERATIONS)
        if not 0 <= source < number + 2:
            raise InputError(
                f"{where}: {name}: an input must be 0 to {number + 1}, got {excerpt(source)}."
            )
        edges.append((index, source))
    return edges


def _check_count(where: str, key: str, num_nodes: float, got: str) -> None:
    if num_nodes != NUM_NODES:
        raise InputError(
            f"{where}: {key} must have {NUM_NODES} nodes of {NUM_EDGES} edges, got {got}."
        )


def _is_edge(item: object, length: int) -> bool:
    """A name followed by numbers."""
    return (
        isinstance(item, list | tuple)
        and len(item) == length
        and isinstance(item[0], str)
        and all(isinstance(number, int) and not isinstance(number, bool) for number in item[1:])
    )


def _said(error: BaseException) -> str:
    """What the parser said, short."""
    if isinstance(error, SyntaxError):
        return excerpt(error.msg, quote=False)
    return excerpt(str(error).splitlines()[0] if str(error) else type(error).__name__, quote=False)
