"""The picture of theorem 3: bounds and smallest eigenvalues against errors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nasjax.evaluation.figures import BLUE, GREY, figure_style, open_axis, write_figure

_PANELS = (
    ("label_term", "bound's first term, from the labels"),
    ("eigenvalue_term", "bound's first term, from the smallest eigenvalue"),
    ("lambda_min", "smallest eigenvalue"),
)


def draw_generalization(
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    path: str | Path,
    *,
    title: str,
) -> tuple[Path, ...]:
    """Draws errors of drawn iterates against what theorem 3 has.

    Args:
      rows: an architecture each, as in ``generalization.csv``.
      summary: as ``runs.Generalization`` has it.
      path: where to, without ending.
      title: above the panels.

    Returns:
      The files, ``.svg`` and ``.png``.

    Raises:
      InputError: if they cannot be written.
    """
    with figure_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11.4, 3.8), facecolor="white", layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        for axis, (name, label) in zip(panels, _PANELS, strict=True):
            for step, words, colour, marker in (
                ("theory", "the theory's step size", GREY, "x"),
                ("practical", "a practical one", BLUE, "o"),
            ):
                known = [row for row in rows if row[name]]
                values, errors = (
                    np.array([row[column] for row in known], float)
                    for column in (name, f"error_{step}")
                )
                found = summary["steps"][step]["spearman"][name]["value"]
                told = f"{words}: Spearman {found:.2f}"
                axis.semilogx(values, errors, marker, color=colour, ms=4, alpha=0.75, label=told)
            axis.set_xlabel(label)
            axis.legend(fontsize=7.5, frameon=False, loc="upper center")
            open_axis(axis)
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(min(low, 0), high + 0.2 * (high - low))  # room for the legends
        panels[0].set_ylabel("0-1 error of the drawn iterate")
        figure.suptitle(title, fontsize=9.5)
        return write_figure("draw_generalization", figure, Path(path), ("svg", "png"))
