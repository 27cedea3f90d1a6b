"""The picture of a training: losses, accuracies and learning rate by epoch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nasjax.errors import InputError
from nasjax.evaluation.figures import BLUE, VERMILION, figure_style, open_axis, write_figure


def draw_curves(
    history: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    title: str | None = None,
    formats: Sequence[str] = ("svg", "png"),
) -> tuple[Path, ...]:
    """Draws loss and accuracy of a training.

    Args:
      history: records with ``kind``: of some steps (``"steps"``: ``epoch``, ``loss``, ``accuracy``)
        and of whole epochs (``"epoch"``: ``epoch``, ``test_loss``, ``test_accuracy``); accuracies
        are fractions, losses in nats.
      path: where to; each format adds its ending.
      title: above the picture.
      formats: some of ``figures.FORMATS``.

    Returns:
      The files.

    Raises:
      InputError: if there is nothing to draw, or the place cannot be written.
    """
    steps = [record for record in history if record["kind"] == "steps"]
    epochs = [record for record in history if record["kind"] == "epoch"]
    if not steps:
        raise InputError("draw_curves: `history` must hold records of steps, got none.")
    with figure_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        axes = figure.subplots(1, 2)
        panels = zip(axes, ("loss", "accuracy"), ("loss (nats)", "error (%)"), strict=True)
        for axis, name, label in panels:
            _draw(axis, steps, epochs, name)
            axis.set_xlabel("epoch")
            axis.set_ylabel(label)
            open_axis(axis)
        axes[0].legend(frameon=False, fontsize=8)
        if title:
            figure.suptitle(title, fontsize=9.5)
        return write_figure("draw_curves", figure, Path(path), formats)


def _draw(axis, steps, epochs, name) -> None:
    def values(records, key):
        return [100 * (1 - r[key]) if name == "accuracy" else r[key] for r in records]

    where = [record["epoch"] for record in steps]
    axis.plot(where, values(steps, name), color=BLUE, linewidth=0.8, label="train, as it goes")
    where = [record["epoch"] for record in epochs]
    axis.plot(
        *(where, values(epochs, f"test_{name}")),
        **{"color": VERMILION, "linewidth": 1.4, "marker": "o", "markersize": 3, "label": "test"},
    )
    axis.set_xlim(left=0)
    if name == "accuracy":
        axis.set_ylim(bottom=0)
