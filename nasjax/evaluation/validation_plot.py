"""The picture of a validation: how approximations follow the exact trace norm."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nasjax.evaluation.figures import (
    BLUE,
    GREEN,
    GREY,
    VERMILION,
    figure_style,
    write_figure,
)

_STYLES = {
    "summed_loss": ("summed losses (eq. 11)", BLUE, "o"),
    "batch_loss": ("batch loss (eq. 12)", VERMILION, "s"),
    "random_outputs": ("random outputs (unbiased)", GREEN, "^"),
}


def draw_validation(
    rows: Sequence[Mapping[str, Any]],
    widths: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    path: str | Path,
    *,
    title: str,
) -> tuple[Path, ...]:
    """Draws approximations against exact values, correlations, and the way to infinite width.

    Args:
      rows: an architecture each, with ``exact`` and ``NAME_BATCH`` for each approximation.
      widths: an architecture each, with ``infinite`` and ``width_WIDTH``; may be empty.
      summary: as ``runs.Validation`` has it.
      path: where to, without ending.
      title: above the panels.

    Returns:
      The files, ``.svg`` and ``.png``.

    Raises:
      InputError: if they cannot be written.
    """
    with figure_style():
        from matplotlib.figure import Figure

        num_panels = 3 if widths else 2
        figure = Figure(figsize=(4.2 * num_panels, 4.0), facecolor="white", layout="constrained")
        panels = figure.subplots(1, num_panels)
        _draw_pairs(panels[0], rows, summary)
        _draw_correlations(panels[1], summary)
        if widths:
            _draw_widths(panels[2], widths, summary)
        figure.suptitle(title, weight="bold")
        return write_figure("draw_validation", figure, Path(path), ("svg", "png"))


def _draw_pairs(axes, rows, summary) -> None:
    exact = np.array([row["exact"] for row in rows], float)
    for name, (label, colour, marker) in _STYLES.items():
        size, found = max(summary["approximations"][name].items())
        values = np.array([row[f"{name}_{size}"] for row in rows], float)
        # Constant factors do not matter: every approximation is drawn relative to its median.
        shown = values / np.nanmedian(values)
        axes.loglog(
            *(exact / np.nanmedian(exact), shown, marker),
            color=colour,
            markersize=3.5,
            alpha=0.7,
            label=f"{label}: r = {found['pearson']['value']:.3f}",
        )
    ends = np.array(axes.get_xlim())
    axes.plot(ends, ends, color=GREY, linewidth=0.8, zorder=0)
    axes.set(
        xlabel="exact trace norm / median",
        ylabel="approximation / median",
        title=f"batch {size}, {len(rows)} architectures",
    )
    axes.legend(fontsize=7.5, frameon=False)


def _draw_correlations(axes, summary) -> None:
    for shift, (name, (_, colour, marker)) in zip((0.94, 1.0, 1.06), _STYLES.items(), strict=True):
        found = summary["approximations"][name]
        sizes = sorted(found)
        # Side by side, so that the intervals of one do not hide those of another.
        places = [size * shift for size in sizes]
        pearson, low, high = (
            np.array([found[size]["pearson"][end] for size in sizes])
            for end in ("value", "low", "high")
        )
        axes.errorbar(
            *(places, pearson, [np.maximum(pearson - low, 0), np.maximum(high - pearson, 0)]),
            fmt=marker,
            color=colour,
            linestyle="solid",
            markersize=4,
            elinewidth=0.9,
            capsize=2,
        )
        spearman = [found[size]["spearman"]["value"] for size in sizes]
        axes.plot(places, spearman, color=colour, linestyle="dashed", linewidth=0.9)
    axes.plot([], [], color=GREY, label="Pearson, with 95 % interval")
    axes.plot([], [], color=GREY, linestyle="dashed", label="Spearman")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="batch", ylabel="correlation with the exact trace norm")
    axes.set_title("by batch")
    axes.legend(fontsize=7.5, frameon=False, loc="lower right")


def _draw_widths(axes, widths, summary) -> None:
    names = sorted(summary["widths"])
    ratios = np.array(
        [[row[f"width_{width}"] / row["infinite"] for width in names] for row in widths]
    )
    for row in ratios:
        axes.plot(names, row, color=BLUE, alpha=0.3, linewidth=0.9)
    axes.plot(names, np.median(ratios, 0), "o", color=VERMILION, linestyle="solid", label="median")
    axes.axhline(1.0, color=GREY, linewidth=0.8, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(names, [str(width) for width in names])
    axes.set(xlabel="width", ylabel="trace norm / that of infinite width")
    axes.plot([], [], color=BLUE, alpha=0.3, linewidth=0.9, label="one architecture")
    axes.set_title(f"finite width, {len(widths)} architectures")
    axes.legend(fontsize=7.5, frameon=False)
