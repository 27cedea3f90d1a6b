"""The picture of selections by metrics: the accuracy found against the number of candidates."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from nasjax.errors import InputError
from nasjax.evaluation.figures import (
    CURVES,
    figure_style,
    open_axis,
    write_figure,
)


def draw_selection(
    accuracies: Mapping[str, Float[np.ndarray, " candidates"]],
    path: str | Path,
    *,
    label: str = "validation",
    title: str | None = None,
    formats: Sequence[str] = ("svg", "png"),
) -> tuple[Path, ...]:
    """Draws the accuracy of the best of the first k candidates, by k.

    Args:
      accuracies: by metric, ``[candidates]``, fractions; NaN where all failed so far.
      path: where to; each format adds its ending.
      label: what accuracy it is.
      title: above the picture.
      formats: some of ``figures.FORMATS``.

    Returns:
      The files.

    Raises:
      InputError: if there is nothing to draw, or the place cannot be written.
    """
    if not any(np.isfinite(values).any() for values in accuracies.values()):
        raise InputError("draw_selection: `accuracies` must hold a number, got none.")
    with figure_style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(4.2, 3.0), layout="constrained")
        axis = figure.subplots()
        for number, (name, values) in enumerate(accuracies.items()):
            axis.step(
                *(np.arange(1, len(values) + 1), 100 * np.asarray(values)),
                where="post",
                marker="o",
                markersize=2.5,
                linewidth=1.4 if number == 0 else 1.0,
                color=CURVES[number % len(CURVES)],
                label=name,
            )
        axis.set(xlabel="candidates k", ylabel=f"{label} accuracy (%)")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        open_axis(axis)
        axis.legend(frameon=False, fontsize=8)
        if title:
            axis.set_title(title, fontsize=9)
        return write_figure("draw_selection", figure, Path(path), formats)
