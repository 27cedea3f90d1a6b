"""The picture of searched activations and skip connections, by layer (Eigen-NAS, figure 1)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from nasjax.errors import InputError
from nasjax.evaluation.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    figure_style,
    open_axis,
    write_figure,
)
from nasjax.spaces.mlp import ACTIVATION_NAMES

ACTIVATION_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE)
ACTIVATION_MARKERS = ("o", "s", "^", "D", "v")
ACTIVATION_LABELS = ("ReLU", "LeakyReLU", "Sigmoid - 1/2", "Tanh", "Swish")
_SPREAD = 0.09
"""Between two activations' points of one layer."""


def draw_choices(
    activations: Float[np.ndarray, "runs layers choices"],
    skips: Float[np.ndarray, "runs skips"],
    path: str | Path,
    *,
    title: str | None = None,
    formats: Sequence[str] = ("svg", "png"),
) -> tuple[Path, ...]:
    """Draws the probability of every activation and ``alpha`` of every skip, by layer.

    Points are means over the runs, bars their standard deviations (of a sample); one run has none.

    Args:
      activations: ``[runs, depth - 1, 5]``, probabilities in the order of the space ``mlp``.
      skips: ``[runs, depth - 2]``, in [0, 1]; the first belongs to layer 2.
      path: where to; each format adds its ending.
      title: above the picture.
      formats: some of ``figures.FORMATS``.

    Returns:
      The files.

    Raises:
      InputError: if shapes do not fit, a value is not in [0, 1], or the place cannot be written.
    """
    activations, skips = (np.asarray(values, np.float64) for values in (activations, skips))
    _check(activations, skips)
    with figure_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.6, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(4, 3))
        _draw_activations(left, activations)
        _draw_skips(right, skips)
        for axis, layers in ((left, activations.shape[1]), (right, skips.shape[1] + 1)):
            axis.set_xlabel("layer")
            axis.set_xticks(range(1 if axis is left else 2, layers + 1))
            open_axis(axis)
            axis.grid(visible=False, axis="x")
        count = f"{len(activations)} runs, mean and standard deviation"
        lines = [title or "", count if len(activations) > 1 else ""]
        if any(lines):
            figure.suptitle("; ".join(filter(None, lines)), fontsize=9.5)
        return write_figure("draw_choices", figure, Path(path), formats)


def _check(activations, skips) -> None:
    runs, layers = activations.shape[:2] if activations.ndim == 3 else (0, 0)
    shapes = (activations.shape, skips.shape)
    if runs < 1 or layers < 2 or shapes != ((runs, layers, 5), (runs, layers - 1)):
        raise InputError(
            "draw_choices: `activations` must be [runs, depth - 1, 5] and `skips` "
            f"[runs, depth - 2] with depth >= 3, got {list(shapes[0])} and {list(shapes[1])}."
        )
    for name, values in (("activations", activations), ("skips", skips)):
        if not ((values >= 0) & (values <= 1)).all():
            raise InputError(
                f"draw_choices: `{name}` must be in [0, 1], got {values.min()} to {values.max()}."
            )


def _draw_activations(axis, values) -> None:
    for number, label in enumerate(ACTIVATION_LABELS):
        of_one = values[:, :, number]
        shift = _SPREAD * (number - (len(ACTIVATION_LABELS) - 1) / 2)
        _draw_points(
            axis,
            1 + shift,
            of_one,
            color=ACTIVATION_COLOURS[number],
            fmt=ACTIVATION_MARKERS[number],
            label=label,
        )
    chance = 1 / len(ACTIVATION_NAMES)
    axis.axhline(chance, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    axis.set_ylabel("probability")
    axis.set_title("(a) activations; dotted: all alike", fontsize=8.5)
    axis.legend(frameon=False, fontsize=7.5, ncols=3, loc="upper right")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.22 * (high - low))  # room for the legend


def _draw_skips(axis, values) -> None:
    _draw_points(axis, 2, values, color=BLUE, fmt="o")
    axis.axhline(0.5, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    # Around 1/2, so that what is kept lies in the upper half.
    reach = max(0.05, 1.08 * max(abs(end - 0.5) for end in axis.get_ylim()))
    axis.set_ylim(0.5 - reach, 0.5 + reach)
    axis.set_ylabel("alpha")
    axis.set_title("(b) skips; kept above the dotted line", fontsize=8.5)


def _draw_points(axis, first: float, values, **style) -> None:
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else None
    layers = first + np.arange(values.shape[1])
    axis.errorbar(
        layers,
        values.mean(axis=0),
        spread,
        **{"markersize": 4, "elinewidth": 1.0, "capsize": 1.5, "zorder": 2, **style},
    )
