"""Pictures of cells: what is in them, where it lies, and how the files are written."""

import itertools
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.evaluation.cell_layout import BOX_WIDTH, LABEL_HEIGHT, lay_out_cell
from nasjax.evaluation.plots import draw_cells
from nasjax.spaces import CellGraph, get_space

LABEL_WIDTH = 0.95


def _graphs(name, seed):
    space = get_space(name)
    return space.describe(np.asarray(space.sample(jax.random.key(seed))))


def _identifiers(path):
    return {element.get("id") for element in ElementTree.parse(path).iter() if element.get("id")}


def test_svg_holds_every_node_edge_and_label(tmp_path):
    graphs = _graphs("darts", 0)
    svg, png = draw_cells(graphs, tmp_path / "cells", title="a title")
    assert (svg, png) == (tmp_path / "cells.svg", tmp_path / "cells.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text()
    identifiers = _identifiers(svg)
    for graph in graphs:
        for number, (_, _, label) in enumerate(graph.edges):
            assert f"{graph.name}-edge-{number}-{label}" in identifiers
        for number in range(len(graph.nodes)):
            assert f"{graph.name}-node-{number}" in identifiers
        assert f"<!-- {graph.name} -->" in text
    assert "<!-- a title -->" in text
    assert text.count("<!-- passed on as it is -->") == 1
    labels = [label for graph in graphs for *_, label in graph.edges if label]
    for label in set(labels):
        # Once on every edge, once in the legend.
        assert text.count(f"<!-- {label} -->") == labels.count(label) + 1


def test_operations_at_nodes_stand_in_their_boxes(tmp_path):
    graph = CellGraph(
        "module",
        ("input",),
        ("input", "1", "2", "output"),
        "output",
        (("input", "1", ""), ("1", "2", ""), ("2", "output", ""), ("input", "2", "")),
        (("1", "conv3x3-bn-relu"), ("2", "maxpool3x3")),
    )
    (svg,) = draw_cells([graph], tmp_path / "module", formats=("svg",))
    text = svg.read_text()
    for name in ("input", "1: conv3x3-bn-relu", "2: maxpool3x3", "output"):
        assert text.count(f"<!-- {name} -->") == 1
    # A plain edge is no identity here: the input is projected.
    assert "passed on as it is" not in text
    styles = {
        element.get("id"): element[0].get("style")
        for element in ElementTree.parse(svg).iter()
        if (element.get("id") or "").startswith("module-node-")
    }
    borders = [styles[f"module-node-{number}"].lower() for number in range(4)]
    assert ["stroke-dasharray" in border for border in borders] == [False, False, True, False]
    assert "#0072b2" in borders[1]


def test_cell_without_edges(tmp_path):
    graphs = get_space("nasbench201").describe(np.zeros(6, int))
    (svg,) = draw_cells(graphs, tmp_path / "cell.svg", formats=("svg",))
    assert svg == tmp_path / "cell.svg"
    identifiers = _identifiers(svg)
    assert {f"cell-node-{number}" for number in range(4)} <= identifiers
    assert not any("-edge-" in identifier for identifier in identifiers)


def test_a_node_that_no_input_reaches_is_drawn_empty(tmp_path):
    edges = (("0", "1", "skip_connect"), ("2", "3", "skip_connect"), ("1", "3", "skip_connect"))
    graph = CellGraph("cell", ("0",), ("0", "1", "2", "3"), "3", edges)
    (svg,) = draw_cells([graph], tmp_path / "cell", formats=("svg",))
    for element in ElementTree.parse(svg).iter():
        identifier = element.get("id") or ""
        if identifier.startswith("cell-node-"):
            assert ("stroke-dasharray" in element[0].get("style")) == (identifier[-1] == "2")


def test_equal_input_gives_equal_files_and_leaves_nothing_else(tmp_path):
    graphs = _graphs("nasbench201", 1)
    formats = ("svg", "png", "pdf")
    first = [path.read_bytes() for path in draw_cells(graphs, tmp_path / "a", formats=formats)]
    second = [path.read_bytes() for path in draw_cells(graphs, tmp_path / "b", formats=formats)]
    again = [path.read_bytes() for path in draw_cells(graphs, tmp_path / "a", formats=formats)]
    assert first == second == again
    assert b"dc:date" not in first[0]
    names = {f"{stem}.{name}" for stem in "ab" for name in formats}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("name", ["darts", "nasbench101", "nasbench201"])
@pytest.mark.parametrize("seed", range(6))
def test_boxes_and_labels_keep_apart(name, seed):
    for graph in _graphs(name, seed):
        box_widths = {node: 1.2 for node, _ in graph.node_operations}
        layout = lay_out_cell(graph, label_width=LABEL_WIDTH, box_widths=box_widths)
        for node, box in layout.boxes.items():
            assert box.width == box_widths.get(node, BOX_WIDTH)
        rectangles = [(b.x, b.y, b.width, b.height) for b in layout.boxes.values()]
        rectangles += [
            (*curve.label_at, LABEL_WIDTH, LABEL_HEIGHT)
            for curve in layout.curves
            if curve.label_at is not None
        ]
        for x, y, width, height in rectangles:
            assert width / 2 < x < layout.width - width / 2
            assert height / 2 < y < layout.height - height / 2
        for a, b in itertools.combinations(rectangles, 2):
            assert (
                abs(a[0] - b[0]) >= (a[2] + b[2]) / 2 - 1e-9
                or abs(a[1] - b[1]) >= (a[3] + b[3]) / 2 - 1e-9
            )
        # Where a curve is level it passes a column; it meets no box and no label of another edge.
        for curve in layout.curves:
            for enter, leave, y in curve.knots[1:-1]:
                for rectangle in rectangles:
                    if rectangle[:2] != curve.label_at and enter <= rectangle[0] <= leave:
                        assert abs(rectangle[1] - y) > rectangle[3] / 2


def test_curves_run_from_source_to_target_and_parallel_edges_differ():
    edges = (("a", "b", "x"), ("a", "b", "x"), ("a", "c", ""), ("b", "c", "y"))
    layout = lay_out_cell(CellGraph("g", ("a",), ("a", "b", "c"), "c", edges), label_width=0.5)
    for curve, (source, target, label) in zip(layout.curves, edges, strict=True):
        start, end = layout.boxes[source], layout.boxes[target]
        assert curve.label == label
        assert (curve.label_at is None) == (label == "")
        assert curve.knots[0][0] == pytest.approx(start.x + BOX_WIDTH / 2)
        assert abs(curve.knots[0][2] - start.y) < start.height / 2
        assert curve.knots[-1][0] == pytest.approx(end.x - BOX_WIDTH / 2)
        assert abs(curve.knots[-1][2] - end.y) < end.height / 2
        places = [x for knot in curve.knots for x in knot[:2]]
        assert places == sorted(places)
    first, second = layout.curves[:2]
    assert abs(first.label_at[1] - second.label_at[1]) > LABEL_HEIGHT
    assert all(a[2] != b[2] for a, b in zip(first.knots, second.knots, strict=True))
    assert layout.boxes["a"].x < layout.boxes["b"].x < layout.boxes["c"].x


def test_wrong_arguments_raise_input_error(tmp_path):
    graphs = _graphs("nasbench201", 2)
    with pytest.raises(InputError, match="unknown format 'sgv'. Did you mean 'svg'"):
        draw_cells(graphs, tmp_path / "a", formats=("sgv",))
    with pytest.raises(InputError, match="must have a cell, got none"):
        draw_cells([], tmp_path / "a")
    with pytest.raises(InputError, match="existing folder"):
        draw_cells(graphs, tmp_path / "missing" / "a")
    (tmp_path / "taken.svg").mkdir()
    with pytest.raises(InputError, match="must be writable"):
        draw_cells(graphs, tmp_path / "taken", formats=("svg",))
    assert [path.name for path in tmp_path.iterdir()] == ["taken.svg"]
    backwards = CellGraph("g", ("a",), ("a", "b"), "b", (("b", "a", "x"),))
    with pytest.raises(InputError, match="must lead from a node to a later one"):
        draw_cells([backwards], tmp_path / "a")


def test_dollar_signs_are_text(tmp_path):
    graph = CellGraph("$g", ("a",), ("a", "$b"), "$b", (("a", "$b", "x$y$"),))
    (svg,) = draw_cells([graph], tmp_path / "a", title="$", formats=("svg",))
    assert "<!-- x$y$ -->" in svg.read_text()


def test_import_loads_no_matplotlib():
    program = "import nasjax.evaluation.plots, sys; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
