"""Pictures of cells for papers and slides."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from nasjax.errors import InputError, unknown_name
from nasjax.evaluation.cell_layout import (
    ARROW_LENGTH,
    BOX_WIDTH,
    LABEL_HEIGHT,
    CellLayout,
    Curve,
    lay_out_cell,
)
from nasjax.evaluation.figures import (
    BLUE,
    FORMATS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    figure_style,
    write_figure,
)
from nasjax.spaces.base import CellGraph

# Kinds of operation differ by the line as well as by the colour.
_STYLES = {
    "nor_conv_3x3": (BLUE, "solid"),
    "nor_conv_1x1": (SKY, "solid"),
    "sep_conv_3x3": (BLUE, "solid"),
    "sep_conv_5x5": (SKY, "solid"),
    "dil_conv_3x3": (VERMILION, "solid"),
    "dil_conv_5x5": (ORANGE, "solid"),
    "max_pool_3x3": (PURPLE, (0, (4, 1.2))),
    "avg_pool_3x3": (GREEN, (0, (4, 1.2))),
    "conv3x3-bn-relu": (BLUE, "solid"),
    "conv1x1-bn-relu": (SKY, "solid"),
    "maxpool3x3": (PURPLE, (0, (4, 1.2))),
    "skip_connect": (GREY, (0, (1.2, 1.2))),
    "relu": (BLUE, "solid"),
    "leaky_relu": (SKY, "solid"),
    "sigmoid": (PURPLE, "solid"),
    "tanh": (VERMILION, "solid"),
    "swish": (GREEN, "solid"),
    "skip": (GREY, (0, (1.2, 1.2))),
    "": ("#9A9A9A", "solid"),
}
_PLAIN = ("#333333", "solid")
"""The border of a node without an operation."""
_PASSED_ON = "passed on as it is"
"""What the legend calls an edge without operation."""
_OTHER_STYLES = [(VERMILION, "solid"), (PURPLE, "solid"), (GREEN, "solid"), (ORANGE, "solid")]
_NODE_COLOURS = {"input": "#D9E8F5", "output": "#D8EFE3", "inner": "#F4F4F4", "dead": "white"}
_LABEL_SIZE, _NODE_SIZE, _NAME_SIZE, _TITLE_SIZE = 7.5, 9.0, 10.0, 11.5
_NAME_SPACE, _TITLE_SPACE, _LEGEND_ROW, _LEGEND_ENTRY = 0.2, 0.38, 0.24, 1.35


def draw_cells(
    graphs: Sequence[CellGraph],
    path: str | Path,
    *,
    title: str | None = None,
    formats: Sequence[str] = ("svg", "png"),
) -> tuple[Path, ...]:
    """Draws cells below one another, every edge or node with the name of its operation.

    A node that no input reaches is drawn empty, with a broken border.

    Equal input gives equal files, byte for byte, under one version of matplotlib. A file is
    complete or absent: it is written beside its place and then renamed.

    Args:
      graphs: the cells, as ``Space.describe`` gives them.
      path: where to, for example ``out/cell``; each format adds its ending. An ending of
        ``FORMATS`` in ``path`` is dropped.
      title: a line above the cells.
      formats: some of ``FORMATS``.

    Returns:
      The files, in the order of ``formats``. About a second, mostly matplotlib's start.

    Raises:
      InputError: for an unknown format, no cells, a graph whose edges do not lead forwards, or a
        place that cannot be written.

    Example:
      >>> from nasjax.spaces import get_space
      >>> space = get_space("nasbench201")
      >>> draw_cells(space.describe(space.from_string("6111")), "cell")  # doctest: +SKIP
      (PosixPath('cell.svg'), PosixPath('cell.png'))
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown_name("draw_cells", "format", name, FORMATS)
    if not graphs:
        raise InputError("draw_cells: `graphs` must have a cell, got none.")
    path = Path(path)
    stem = path.stem if path.suffix[1:] in FORMATS else path.name
    if not stem or not path.parent.is_dir():
        raise InputError(
            f"draw_cells: `path` must be a file name in an existing folder, got {str(path)!r}. "
            "Create the folder first."
        )
    with figure_style():
        return write_figure("draw_cells", _figure(graphs, title), path.parent / stem, formats)


def _figure(graphs: Sequence[CellGraph], title: str | None):
    from matplotlib.figure import Figure

    operations = sorted({label for graph in graphs for *_, label in graph.edges if label})
    at_nodes = {operation for graph in graphs for _, operation in graph.node_operations}
    styles = _operation_styles(sorted({*operations, *at_nodes}))
    label_width = max([_text_width(name) for name in operations], default=0.0) + 0.14
    layouts = [
        lay_out_cell(graph, label_width=label_width, box_widths=_box_widths(graph))
        for graph in graphs
    ]
    width = max(4.2, *(layout.width for layout in layouts))
    entries = [(name, styles[name]) for name in operations]
    if not at_nodes and any(not label for graph in graphs for *_, label in graph.edges):
        entries.append((_PASSED_ON, styles[""]))
    num_rows = math.ceil(len(entries) / int(width / _LEGEND_ENTRY))
    legend_height = _LEGEND_ROW * num_rows + (0.16 if entries else 0.0)
    title_height = _TITLE_SPACE if title else 0.06
    height = title_height + legend_height + sum(x.height + _NAME_SPACE for x in layouts)

    figure = Figure(figsize=(width, height), facecolor="white")
    if title:
        figure.text(
            0.5,
            1 - title_height / 2 / height,
            title,
            size=_TITLE_SIZE,
            weight="bold",
            ha="center",
            va="center",
            parse_math=False,
        )
    top = height - title_height
    for graph, layout in zip(graphs, layouts, strict=True):
        top -= layout.height + _NAME_SPACE
        panel = (layout.width, layout.height + _NAME_SPACE)
        left = (width - layout.width) / 2
        axes = figure.add_axes(
            (left / width, top / height, panel[0] / width, panel[1] / height), label=graph.name
        )
        axes.set(xlim=(0, panel[0]), ylim=(0, panel[1]))
        axes.set_axis_off()
        _draw_cell(axes, graph, layout, styles, name_at=(0.12 - left, layout.height + 0.02))
    if entries:
        figure.legend(
            handles=[_legend_line(name, style) for name, style in entries],
            loc="lower center",
            ncols=math.ceil(len(entries) / num_rows),
            frameon=False,
            fontsize=_LABEL_SIZE + 0.5,
            handlelength=2.4,
            columnspacing=1.4,
            borderaxespad=0.3,
        )
    return figure


def _draw_cell(axes, graph: CellGraph, layout: CellLayout, styles, *, name_at) -> None:
    axes.text(*name_at, graph.name, size=_NAME_SIZE, weight="bold", parse_math=False)
    for number, curve in enumerate(layout.curves):
        _draw_curve(axes, curve, styles[curve.label], f"{graph.name}-edge-{number}-{curve.label}")
    alive = _fed(graph)
    operations = dict(graph.node_operations)
    for number, node in enumerate(graph.nodes):
        kind = "input" if node in graph.inputs else "output" if node == graph.output else "inner"
        kind = kind if node in alive else "dead"
        style = styles[operations[node]] if node in operations else _PLAIN
        text = _box_text(node, operations)
        _draw_box(axes, text, layout.boxes[node], kind, style, f"{graph.name}-node-{number}")


def _box_text(node: str, operations) -> str:
    return f"{node}: {operations[node]}" if node in operations else node


def _box_widths(graph: CellGraph) -> dict[str, float]:
    """Of the nodes with an operation, and of names that are too long for the usual box."""
    operations = dict(graph.node_operations)
    texts = {node: _box_text(node, operations) for node in graph.nodes}
    widths = {
        node: _text_width(text, _NODE_SIZE) + 0.16
        for node, text in texts.items()
        if not _is_math(node)
    }
    return {node: width for node, width in widths.items() if width > BOX_WIDTH}


def _fed(graph: CellGraph) -> set[str]:
    """The nodes that an input reaches."""
    fed = set(graph.inputs)
    for node in graph.nodes:
        if any(target == node and source in fed for source, target, _ in graph.edges):
            fed.add(node)
    return fed


def _draw_curve(axes, curve: Curve, style, gid: str) -> None:
    from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
    from matplotlib.path import Path as Outline

    colour, dashes = style
    tip = curve.knots[-1]
    knots = [*curve.knots[:-1], (tip[0] - ARROW_LENGTH * 0.8, tip[0], tip[2])]
    points, codes = [(knots[0][1], knots[0][2])], [Outline.MOVETO]
    for (_, x0, y0), (x1, leave, y1) in zip(knots[:-1], knots[1:], strict=True):
        middle = (x0 + x1) / 2
        points += [(middle, y0), (middle, y1), (x1, y1)]
        codes += [Outline.CURVE4] * 3
        if leave > x1 and leave != tip[0]:
            points.append((leave, y1))
            codes.append(Outline.LINETO)
    line = {"edgecolor": colour, "linewidth": 1.5, "linestyle": dashes, "capstyle": "butt"}
    outline = PathPatch(Outline(points, codes), facecolor="none", zorder=1, **line)
    outline.set_gid(_identifier(gid))
    axes.add_patch(outline)
    x, _, y = tip
    head = [(x, y), (x - ARROW_LENGTH, y + 0.038), (x - ARROW_LENGTH, y - 0.038)]
    axes.add_patch(Polygon(head, closed=True, facecolor=colour, edgecolor="none", zorder=2))
    if curve.label_at is None:
        return
    x, y = curve.label_at
    width = _text_width(curve.label) + 0.1
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - LABEL_HEIGHT / 2),
            width,
            LABEL_HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.06",
            facecolor="white",
            edgecolor=colour,
            linewidth=0.8,
            zorder=3,
        )
    )
    _centred_text(axes, x, y, curve.label, _LABEL_SIZE, is_math=False)


def _draw_box(axes, text: str, box, kind: str, style, gid: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    patch = FancyBboxPatch(
        (box.x - box.width / 2, box.y - box.height / 2),
        box.width,
        box.height,
        boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=_NODE_COLOURS[kind],
        edgecolor=style[0],
        linewidth=1.0 if style is _PLAIN else 1.5,
        linestyle=style[1] if kind != "dead" else (0, (3, 2)),
        zorder=3,
    )
    patch.set_gid(_identifier(gid))
    axes.add_patch(patch)
    is_math = _is_math(text)
    text = f"${text.replace('-', '{-}')}$" if is_math else text
    _centred_text(axes, box.x, box.y, text, _NODE_SIZE, is_math=is_math)


def _is_math(text: str) -> bool:
    """Whether it is a name with an index, such as ``c_{k-1}``."""
    return re.fullmatch(r"\w+_\{[\w+-]+\}", text) is not None


def _centred_text(axes, x: float, y: float, text: str, size: float, *, is_math: bool) -> None:
    axes.text(
        x,
        y,
        text,
        size=size,
        ha="center",
        va="center_baseline" if not is_math else "center",
        color="#1A1A1A",
        parse_math=is_math,
        zorder=4,
    )


def _legend_line(name: str, style):
    from matplotlib.lines import Line2D

    return Line2D([], [], color=style[0], linestyle=style[1], linewidth=1.8, label=name)


def _operation_styles(operations: Sequence[str]) -> dict:
    others = [name for name in operations if name not in _STYLES]
    return _STYLES | {
        name: _OTHER_STYLES[number % len(_OTHER_STYLES)] for number, name in enumerate(others)
    }


def _text_width(text: str, size: float = _LABEL_SIZE) -> float:
    """Inches, in the font of the labels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(family="DejaVu Sans")
    escaped = text.replace("$", r"\$")
    return TextPath((0, 0), escaped, size=size, prop=font).get_extents().width / 72


def _identifier(text: str) -> str:
    return re.sub(r"[^\w-]", "-", text)
