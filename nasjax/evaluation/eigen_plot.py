"""The picture of smallest eigenvalues by depth, and of how much each layer's choice matters."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nasjax.evaluation.choices_plot import ACTIVATION_COLOURS, ACTIVATION_LABELS, ACTIVATION_MARKERS
from nasjax.evaluation.figures import BLUE, GREY, SKY, figure_style, open_axis, write_figure
from nasjax.spaces.mlp import ACTIVATION_NAMES

_STYLES = dict(
    zip(
        ACTIVATION_NAMES,
        zip(ACTIVATION_LABELS, ACTIVATION_COLOURS, ACTIVATION_MARKERS, strict=True),
        strict=True,
    )
)


def draw_lambda_min(
    rows: Sequence[Mapping[str, Any]],
    importance: Mapping[str, Any],
    path: str | Path,
    *,
    title: str,
) -> tuple[Path, ...]:
    """Draws eigenvalues by depth without and with skips, and shares of variance by layer.

    Lines are means over draws of points, bands reach from the smallest to the largest draw. Dashed
    lines are the lower bounds, with 1 for their constant, the dotted one the largest upper one.

    Args:
      rows: a chain and draw each, with ``activation``, ``skips``, ``depth``, ``lambda_min``,
        ``lower`` and ``upper``.
      importance: ``lambda_min`` and ``relative`` (to the mean diagonal), each with
        ``activations`` and ``skips``, a share of variance a layer.
      path: where to, without ending.
      title: above the panels.

    Returns:
      The files, ``.svg`` and ``.png``.

    Raises:
      InputError: if they cannot be written.
    """
    with figure_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11.4, 3.9), facecolor="white", layout="constrained")
        plain, skipped, shares = figure.subplots(1, 3)
        for axis, skips, words in ((plain, 0, "(a) no skips"), (skipped, 1, "(b) all skips")):
            _draw_chains(axis, [row for row in rows if row["skips"] == skips])
            axis.set_title(f"{words}; dashed: lower bound, up to a constant", fontsize=8.5)
        plain.set_ylabel("smallest eigenvalue")
        handles, labels = plain.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=6, fontsize=8, frameon=False
        )
        _draw_shares(shares, importance)
        figure.suptitle(title, fontsize=9.5)
        return write_figure("draw_lambda_min", figure, Path(path), ("svg", "png"))


def _draw_chains(axis, rows) -> None:
    depths = sorted({row["depth"] for row in rows})
    largest = np.full(len(depths), -np.inf)
    for activation, (label, colour, marker) in _STYLES.items():
        own = [row for row in rows if row["activation"] == activation]
        values, lower, upper = (
            np.array(
                [[row[name] for row in own if row["depth"] == depth] for depth in depths], float
            )
            for name in ("lambda_min", "lower", "upper")
        )
        axis.fill_between(depths, values.min(1), values.max(1), color=colour, alpha=0.2, lw=0)
        # LeakyReLU's line lies on ReLU's, which is drawn first.
        size, width = (7, 2.6) if activation == "relu" else (4, 1.3)
        means = values.mean(1)
        axis.plot(depths, means, marker, color=colour, ls="-", ms=size, lw=width, label=label)
        axis.plot(depths, lower[:, 0], color=colour, ls=(0, (4, 2)), lw=0.9, alpha=0.9, zorder=1)
        largest = np.maximum(largest, upper[:, 0])
    axis.set_yscale("log")
    axis.plot(depths, largest, color=GREY, lw=1.0, ls=(0, (1, 1.5)), label="largest upper bound")
    axis.set_xlabel("depth L")
    axis.set_xticks(depths if len(depths) < 12 else depths[:: len(depths) // 8])
    open_axis(axis)


def _draw_shares(axis, importance) -> None:
    found = [importance["lambda_min"], importance["relative"]]
    layers = np.arange(1, len(found[0]["activations"]) + 1)
    series = [
        (found[0]["activations"], BLUE, "activation"),
        (found[1]["activations"], SKY, "activation, relative to the diagonal"),
        ([0.0, *found[0]["skips"]], GREY, "skip"),
    ]
    for number, (shares, colour, label) in enumerate(series):
        axis.bar(layers + 0.27 * (number - 1), shares, 0.27, color=colour, label=label)
    axis.set_xlabel("layer")
    axis.set_xticks(layers)
    axis.set_ylabel("share of variance explained")
    count = found[0]["num_architectures"]
    axis.set_title(f"(c) logarithm, {count} random architectures", fontsize=8.5)
    axis.set_ylim(top=1.3 * axis.get_ylim()[1])  # room for the legend
    axis.legend(fontsize=7.5, frameon=False, loc="upper right")
    open_axis(axis)
    axis.grid(visible=False, axis="x")
