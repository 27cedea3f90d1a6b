"""The picture of a table of correlations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nasjax.errors import InputError
from nasjax.evaluation.figures import (
    BLUE,
    GREY,
    VERMILION,
    figure_style,
    open_axis,
    write_figure,
)

_COLOURS = {"": GREY, "test error": VERMILION}


def draw_correlations(
    rows: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    title: str | None = None,
    formats: Sequence[str] = ("svg", "png"),
) -> tuple[Path, ...]:
    """Draws Spearman correlations, two points a row, with their intervals or spread.

    Args:
      rows: records with ``score``, ``form``, ``tuned_by``, ``spearman`` (None where there is none),
        ``spearman_all``, and ``low`` and ``high``, or ``std``, or None for these.
      path: where to; each format adds its ending.
      title: above the picture.
      formats: some of ``figures.FORMATS``.

    Returns:
      The files.

    Raises:
      InputError: if there is nothing to draw, or the place cannot be written.
    """
    if not any(row["spearman"] is not None for row in rows):
        raise InputError("draw_correlations: `rows` must hold a correlation, got none.")
    groups = list(dict.fromkeys(row["score"] for row in rows))
    with figure_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 0.9 + 0.19 * (len(rows) + len(groups))), layout="constrained")
        axis = figure.subplots()
        height, ticks, labels = 0.0, [], []
        for group in groups:
            axis.annotate(
                group,
                (0, height),
                xycoords=("axes fraction", "data"),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8,
                fontweight="bold",
            )
            for row in (row for row in rows if row["score"] == group):
                height -= 1
                ticks.append(height)
                tuned = f", by {row['tuned_by']}" if row["tuned_by"] else ""
                labels.append(f"{row['form']}{tuned}")
                _draw_row(axis, height, row)
            height -= 1
        axis.set_yticks(ticks, labels, fontsize=7)
        axis.set_ylim(height, 0.8)
        axis.set_xlabel("Spearman correlation; hollow: architectures without a score last", size=8)
        open_axis(axis)
        if title:
            axis.set_title(title, fontsize=9)
        return write_figure("draw_correlations", figure, Path(path), formats)


def _draw_row(axis, height: float, row) -> None:
    value = row["spearman"]
    if value is None:
        return
    low, high = row["low"], row["high"]
    if low is None and row["std"] is not None:
        low, high = value - row["std"], value + row["std"]
    colour = _COLOURS.get(row["tuned_by"], BLUE)
    if low is not None:
        axis.plot((low, high), (height, height), color=colour, linewidth=1.2)
    axis.plot(value, height, "o", color=colour, markersize=4)
    axis.plot(row["spearman_all"], height, "o", color=colour, markersize=4, fillstyle="none")
