"""Where the boxes, curves and labels of a drawn cell go, so that none lies on another.

Nodes stand in columns by the length of the longest path that leads to them. Between two columns of
nodes lies a column of labels. An edge has a place of its own in every column that it passes, and
its label takes the last one, so labels and boxes keep apart by construction; what is left is to
order the places of each column for few crossings, and to space them for straight edges. This is
the layered method of Sugiyama, Tagawa and Toda (1981), with labels as places.

All lengths are inches; y grows upwards.
"""

import itertools
import random
from collections.abc import Mapping
from typing import NamedTuple

from nasjax.errors import InputError
from nasjax.spaces.base import CellGraph

BOX_WIDTH = 0.46
LABEL_HEIGHT = 0.2
ARROW_LENGTH = 0.09
_PORT_PITCH = 0.11
_LINE_HEIGHT = 0.06
_SPACING = 0.09
_MARGIN = 0.12
_RESTARTS, _SWEEPS = 12, 8
_STRAIGHTNESS = 6


class Box(NamedTuple):
    """A node: its centre and its size."""

    x: float
    y: float
    width: float
    height: float


class Curve(NamedTuple):
    """An edge.

    Attributes:
      label: of the edge, may be empty.
      knots: ``(x_enter, x_leave, y)`` in order: the curve is level between the two, and bends
        smoothly from one knot to the next. The first is the source's port, the last the target's.
      label_at: the centre of the label, or None.
    """

    label: str
    knots: tuple[tuple[float, float, float], ...]
    label_at: tuple[float, float] | None


class CellLayout(NamedTuple):
    """A laid-out cell, within ``[0, width] x [0, height]``."""

    width: float
    height: float
    boxes: dict[str, Box]
    curves: tuple[Curve, ...]


class _Place(NamedTuple):
    """What may stand in a column: a node, or an edge (numbered) that passes."""

    column: int
    node: str | None = None
    edge: int | None = None


def lay_out_cell(
    graph: CellGraph, *, label_width: float, box_widths: Mapping[str, float] | None = None
) -> CellLayout:
    """Places the nodes and edges of a cell.

    Args:
      graph: the cell; its nodes must be in topological order.
      label_width: of the widest label.
      box_widths: of nodes that are wider than ``BOX_WIDTH``.

    Returns:
      The layout. Deterministic; about 30 ms for a cell of 12 edges.

    Raises:
      InputError: if an edge names an unknown node or leads backwards.
    """
    depths = _depths(graph)
    chains = [
        [
            _Place(2 * depths[source], node=source),
            *(_Place(c, edge=number) for c in range(2 * depths[source] + 1, 2 * depths[target])),
            _Place(2 * depths[target], node=target),
        ]
        for number, (source, target, _) in enumerate(graph.edges)
    ]
    links = sorted({pair for chain in chains for pair in itertools.pairwise(chain)}, key=repr)
    places = {_Place(2 * depths[node], node=node): None for node in graph.nodes}
    places |= {place: None for chain in chains for place in chain}
    columns: list[list[_Place]] = [[] for _ in range(2 * max(depths.values()) + 1)]
    for place in places:
        columns[place.column].append(place)
    columns = _ordered(columns, links)

    heights = {place: _height(graph, depths, place) for place in places}
    y = _spaced(columns, links, heights)
    box_widths = {node: BOX_WIDTH for node in graph.nodes} | dict(box_widths or {})
    widths = [_width(graph, column, label_width, box_widths) for column in columns]
    x = _column_centres(widths, links, y)
    boxes = {
        p.node: Box(x[p.column], y[p], box_widths[p.node], heights[p])
        for p in places
        if p.node is not None
    }
    curves = []
    for number, (chain, edge) in enumerate(zip(chains, graph.edges, strict=True)):
        knots = [
            (x[p.column] - widths[p.column] / 2, x[p.column] + widths[p.column] / 2, y[p])
            for p in chain[1:-1]
            if widths[p.column]  # nothing to keep clear of in a column without boxes
        ]
        start = _port(chains, y, number, boxes[edge[0]], leaving=True)
        end = _port(chains, y, number, boxes[edge[1]], leaving=False)
        label_at = (x[chain[-2].column], y[chain[-2]]) if edge[2] else None
        curves.append(Curve(edge[2], (start, *knots, end), label_at))
    top = max(y[place] + heights[place] / 2 for place in places) + _MARGIN
    return CellLayout(x[-1] + widths[-1] / 2 + _MARGIN, top, boxes, tuple(curves))


def _depths(graph: CellGraph) -> dict[str, int]:
    """The longest path to every node; the output stands behind all others."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    for source, target, _ in graph.edges:
        if source not in order or target not in order or order[source] >= order[target]:
            raise InputError(
                f"lay_out_cell: edges of {graph.name!r} must lead from a node to a later one of "
                f"{list(graph.nodes)}, got {source!r} -> {target!r}."
            )
    depths: dict[str, int] = {}
    for node in graph.nodes:
        sources = [depths[source] for source, target, _ in graph.edges if target == node]
        first = 0 if node in graph.inputs else 1
        depths[node] = max([first, *(depth + 1 for depth in sources)])
    others = [depth for node, depth in depths.items() if node != graph.output]
    return depths | {graph.output: max([depths[graph.output], *(depth + 1 for depth in others)])}


def _ordered(columns, links) -> list[list[_Place]]:
    """Orders every column for few crossings: sweeps of barycentres from several starts.

    Among equals, mirror images included, nodes keep the order of the graph best.
    """
    generator = random.Random(0)
    rank = {place: number for column in columns for number, place in enumerate(column)}
    best, least = columns, (_crossings(columns, links), 0)
    for start in range(_RESTARTS):
        trial = [list(column) for column in columns]
        if start:
            for column in trial:
                generator.shuffle(column)
        for sweep in range(_SWEEPS):
            _sweep(trial, links, forward=sweep % 2 == 0)
            crossings = _crossings(trial, links)
            for picture in (trial, [column[::-1] for column in trial]):
                cost = (crossings, _inversions(picture, rank))
                if cost < least:
                    best, least = [list(column) for column in picture], cost
    return best


def _sweep(columns, links, *, forward: bool) -> None:
    """Sorts every column by the mean position of its neighbours in the column before it."""
    neighbours: dict[_Place, list[_Place]] = {}
    for left, right in links:
        neighbours.setdefault(right if forward else left, []).append(left if forward else right)
    rank = {place: number for column in columns for number, place in enumerate(column)}

    def barycentre(place: _Place) -> float:
        near = neighbours.get(place)
        return sum(rank[other] for other in near) / len(near) if near else rank[place]

    for column in columns if forward else columns[::-1]:
        column.sort(key=barycentre)
        rank.update({place: number for number, place in enumerate(column)})


def _crossings(columns, links) -> int:
    rank = {place: number for column in columns for number, place in enumerate(column)}
    lines: dict[int, list[tuple[int, int]]] = {}
    for left, right in links:
        lines.setdefault(left.column, []).append((rank[left], rank[right]))
    return sum(
        (a[0] - b[0]) * (a[1] - b[1]) < 0
        for column in lines.values()
        for a, b in itertools.combinations(column, 2)
    )


def _inversions(columns, rank) -> int:
    """Pairs of nodes that stand in another order than in the graph."""
    return sum(
        a.node is not None and b.node is not None and rank[a] > rank[b]
        for column in columns
        for a, b in itertools.combinations(column, 2)
    )


def _spaced(columns, links, heights) -> dict[_Place, float]:
    """Heights of all places: each near the mean of its neighbours, in order, apart."""
    neighbours: dict[_Place, list[_Place]] = {}
    for left, right in links:
        # Long edges should be straight: what lies between two places of one edge counts more.
        weight = 1 if left.edge is None or right.edge is None else _STRAIGHTNESS
        neighbours.setdefault(left, []).extend([right] * weight)
        neighbours.setdefault(right, []).extend([left] * weight)
    y = {}
    for column in columns:
        y |= zip(column, _apart([0.0] * len(column), [heights[p] for p in column]), strict=True)
    for sweep in range(60):
        for column in columns if sweep % 2 == 0 else columns[::-1]:
            wanted = [
                sum(y[other] for other in near) / len(near) if (near := neighbours.get(p)) else y[p]
                for p in column
            ]
            y |= zip(column, _apart(wanted, [heights[p] for p in column]), strict=True)
    bottom = min(y[place] - heights[place] / 2 for place in y)
    return {place: value - bottom + _MARGIN for place, value in y.items()}


def _apart(wanted: list[float], heights: list[float]) -> list[float]:
    """The nearest positions (least squares) in the given order that leave the spacing between."""
    if not wanted:
        return []
    offsets = [0.0]
    for above, below in itertools.pairwise(heights):
        offsets.append(offsets[-1] + (above + below) / 2 + _SPACING)
    # Pool adjacent violators: blocks of (sum, count) with falling means, first place on top.
    blocks: list[tuple[float, int]] = []
    for value, offset in zip(wanted, offsets, strict=True):
        blocks.append((value + offset, 1))
        while len(blocks) > 1 and blocks[-1][0] / blocks[-1][1] > blocks[-2][0] / blocks[-2][1]:
            total, count = blocks.pop()
            blocks[-1] = (blocks[-1][0] + total, blocks[-1][1] + count)
    means = [total / count for total, count in blocks for _ in range(count)]
    return [mean - offset for mean, offset in zip(means, offsets, strict=True)]


def _height(graph: CellGraph, depths: dict[str, int], place: _Place) -> float:
    if place.node is not None:
        leaving = sum(source == place.node for source, _, _ in graph.edges)
        entering = sum(target == place.node for _, target, _ in graph.edges)
        return max(0.34, _PORT_PITCH * (max(leaving, entering) + 1))
    _, target, label = graph.edges[place.edge]
    return LABEL_HEIGHT if label and place.column == 2 * depths[target] - 1 else _LINE_HEIGHT


def _width(graph: CellGraph, column: list[_Place], label_width: float, box_widths) -> float:
    if any(place.node is not None for place in column):
        return max(box_widths[place.node] for place in column if place.node is not None)
    return label_width if any(graph.edges[place.edge][2] for place in column) else 0.0


def _column_centres(widths, links, y) -> list[float]:
    """Columns from left to right, farther apart where edges climb."""
    centres = [_MARGIN + widths[0] / 2]
    for column in range(1, len(widths)):
        climb = max((abs(y[a] - y[b]) for a, b in links if a.column == column - 1), default=0.0)
        gap = min(0.75, 0.26 + 0.28 * climb)
        centres.append(centres[-1] + (widths[column - 1] + widths[column]) / 2 + gap)
    return centres


def _port(chains, y, number: int, box: Box, *, leaving: bool) -> tuple[float, float, float]:
    """Where an edge touches a box: the edges of one side in the order of where they go."""
    own, near = (0, 1) if leaving else (-1, -2)
    place = chains[number][own]
    same = [n for n, chain in enumerate(chains) if chain[own] == place]
    same.sort(key=lambda n: (-y[chains[n][near]], n))
    y_port = box.y + _PORT_PITCH * ((len(same) - 1) / 2 - same.index(number))
    x_port = box.x + (box.width / 2 if leaving else -box.width / 2)
    return (x_port, x_port, y_port)
