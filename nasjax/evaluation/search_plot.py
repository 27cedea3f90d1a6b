"""The picture of a search by evaluations: what was found at which cost, and by which constants."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from nasjax.errors import InputError
from nasjax.evaluation.figures import (
    BLUE,
    CURVES,
    GREY,
    VERMILION,
    figure_style,
    open_axis,
    write_figure,
)

_LINES, _MARKERS = ("-", "--", ":"), ("o", "s", "^", "D", "v")
_MOST_INSIDE = 5
"""With more curves the legend stands beside them."""


def draw_search(
    history: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    title: str | None = None,
    surface: Float[np.ndarray, "nu mu"] | None = None,
    constants_at: Callable[[tuple[float, float]], tuple[float, float]] | None = None,
    formats: Sequence[str] = ("svg", "png"),
) -> tuple[Path, ...]:
    """Draws evaluations against their cost, and which constants select what.

    Args:
      history: records with ``value`` and ``best_value`` (fractions; None where it failed),
        ``total_seconds`` and, for the surface, ``constants``: places of mu and nu in their ranges,
        None for an architecture that no constants had selected.
      path: where to; each format adds its ending.
      title: above the picture.
      surface: ``[nu, mu]`` over the unit square, the value of what these constants select; NaN
        where it was not evaluated. None draws no surface.
      constants_at: the values of mu and nu at a place, to write at the axes. None writes places.
      formats: some of ``figures.FORMATS``.

    Returns:
      The files.

    Raises:
      InputError: if there is nothing to draw, or the place cannot be written.
    """
    fine = [record for record in history if record["value"] is not None]
    if not fine:
        raise InputError("draw_search: `history` must hold an evaluation, got none.")
    with figure_style():
        from matplotlib.figure import Figure

        num_panels = 1 if surface is None else 2
        figure = Figure(figsize=(3.6 * num_panels, 3.0), layout="constrained")
        axes = figure.subplots(1, num_panels, squeeze=False)[0]
        _draw_found(axes[0], history, fine)
        if surface is not None:
            _draw_surface(figure, axes[1], fine, surface)
            if constants_at is not None:
                _write_constants(axes[1], constants_at)
        if title:
            figure.suptitle(title, fontsize=9.5)
        return write_figure("draw_search", figure, Path(path), formats)


def _draw_found(axis, history, fine) -> None:
    seconds = [record["total_seconds"] for record in fine]
    values = [100 * record["value"] for record in fine]
    axis.scatter(seconds, values, s=12, color=GREY, label="evaluated", zorder=2)
    best = [record for record in history if record["best_value"] is not None]
    axis.step(
        [record["total_seconds"] for record in best],
        [100 * record["best_value"] for record in best],
        where="post",
        color=BLUE,
        linewidth=1.4,
        label="best so far",
    )
    axis.set(xlabel="cost of evaluations (s)", ylabel="validation accuracy (%)")
    axis.set_xlim(left=0)
    open_axis(axis)
    axis.legend(frameon=False, fontsize=8)


def _draw_surface(figure, axis, fine, surface) -> None:
    image = axis.imshow(
        100 * surface, origin="lower", extent=(0, 1, 0, 1), cmap="viridis", aspect="auto"
    )
    figure.colorbar(image, ax=axis, label="validation accuracy (%)")
    best = max(fine, key=lambda record: record["value"])
    fine = [record for record in fine if record["constants"] is not None]
    points = np.array([record["constants"] for record in fine])
    axis.scatter(points[:, 0], points[:, 1], s=14, color="white", edgecolor="black", linewidth=0.6)
    if best["constants"] is not None:
        star = {"marker": "*", "color": VERMILION, "edgecolor": "black", "clip_on": False}
        axis.scatter(*best["constants"], s=60, linewidth=0.6, zorder=3, **star)
    axis.set_title("star: the best; white: selects what was not evaluated", fontsize=7)
    axis.set(xlabel="place of mu in its range (log)", ylabel="place of nu in its range")


def _write_constants(axis, constants_at) -> None:
    places = (0.0, 0.25, 0.5, 0.75, 1.0)
    points = [constants_at((place, place)) for place in places]
    axis.set_xticks(places, [f"{mu:.1g}" for mu, _ in points], fontsize=7)
    axis.set_yticks(places, [f"{nu:.2g}" for _, nu in points], fontsize=7)
    axis.set(xlabel="mu", ylabel="nu")


def draw_comparison(
    curves: Mapping[str, Mapping[str, Float[np.ndarray, " evaluations"]]],
    path: str | Path,
    *,
    title: str | None = None,
    optimum: float | None = None,
    formats: Sequence[str] = ("svg", "png"),
) -> tuple[Path, ...]:
    """Draws what several searches found, by their cost.

    Args:
      curves: by the name of a search: ``seconds``, ``mean`` and standard ``error`` of the accuracy
        (fractions) of the best so far, ``[evaluations]`` each. One evaluation is drawn as a point.
      path: where to; each format adds its ending.
      title: above the picture.
      optimum: the best accuracy that could be found.
      formats: some of ``figures.FORMATS``.

    Returns:
      The files.

    Raises:
      InputError: if there is nothing to draw, or the place cannot be written.
    """
    if not any(len(curve["seconds"]) for curve in curves.values()):
        raise InputError("draw_comparison: `curves` must hold an evaluation, got none.")
    with figure_style():
        from matplotlib.figure import Figure

        is_beside = len(curves) > _MOST_INSIDE
        height = max(3.6, 0.5 + 0.19 * len(curves))
        figure = Figure(figsize=(8.6 if is_beside else 5.4, height), layout="constrained")
        axis = figure.subplots()
        for number, (name, curve) in enumerate(curves.items()):
            style = {
                "color": CURVES[number % len(CURVES)],
                "linestyle": _LINES[number // len(CURVES) % len(_LINES)],
            }
            mean, error = 100 * curve["mean"], 100 * curve["error"]
            if len(mean) == 1:
                axis.errorbar(
                    *(curve["seconds"], mean, error),
                    **{"fmt": _MARKERS[number % len(_MARKERS)], "markersize": 4, "label": name},
                    color=style["color"],
                )
                continue
            axis.plot(curve["seconds"], mean, linewidth=1.4, label=name, **style)
            axis.fill_between(
                *(curve["seconds"], mean - error, mean + error),
                **{"color": style["color"], "alpha": 0.15, "linewidth": 0},
            )
        if optimum is not None:
            axis.axhline(100 * optimum, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
        axis.set(xlabel="cost (s): scores and evaluations", ylabel="CIFAR-10 test accuracy (%)")
        ends = [100 * curve["mean"][-1] for curve in curves.values() if len(curve["mean"])]
        axis.set_ylim(bottom=max(axis.get_ylim()[0], min(ends) - 2.0))
        open_axis(axis)
        place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if is_beside else {}
        axis.legend(frameon=False, fontsize=7, **place)
        if title:
            axis.set_title(title, fontsize=9)
        return write_figure("draw_comparison", figure, Path(path), formats)
