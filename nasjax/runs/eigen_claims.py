"""Whether what Eigen-NAS concludes from theorem 1 is so, by numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nasjax.errors import InputError
from nasjax.spaces.mlp import ACTIVATION_NAMES

EXPECTED = {
    "relu": "unchanged",
    "leaky_relu": "growing",
    "sigmoid": "falling",
    "tanh": "falling",
    "swish": "falling",
}
"""With depth and without skips, after the second remark on theorem 1, of the lower bound."""

_UNCHANGED = 0.05
"""Largest relative change over all depths that counts as none."""
_UNCHANGED_BOUND = 1e-6

_RESOLUTION = 1e-8
"""Smallest eigenvalues below this share of the largest may be those of the moments' error, which
is 5e-10 for smooth activations."""


def tendency(values: Sequence[float], unchanged: float = _UNCHANGED) -> str:
    """``"growing"``, ``"falling"`` or ``"mixed"``, or ``"unchanged"`` within a relative change."""
    values = np.asarray(values, float)
    if not np.isfinite(values).all():
        return "unknown"
    if np.ptp(values) <= unchanged * values.max():
        return "unchanged"
    steps = np.diff(values)
    return "growing" if (steps > 0).all() else "falling" if (steps < 0).all() else "mixed"


def claims(rows: Sequence[Mapping[str, Any]], importance: Mapping[str, Any]) -> dict[str, Any]:
    """The paper's claims, each with ``holds`` and the numbers behind it.

    Args:
      rows: a chain and draw of points each, as in ``lambda_min.csv``.
      importance: by method, ``layer_importance`` of the eigenvalue, ``lambda_min``, and of its
        share of the mean diagonal, ``relative``.

    Returns:
      By method: ``depth`` (an activation each: how the mean over draws changes, and how the bound
      does), ``skips``, ``first_layer``, ``first_layer_relative``, ``bounds``
      and ``resolution``.
    """
    return {
        method: {
            "depth": {name: _depth_claim(rows, method, name) for name in ACTIVATION_NAMES},
            "skips": _skip_claim(rows, method),
            "first_layer": _first_layer_claim(found["lambda_min"]),
            "first_layer_relative": _first_layer_claim(found["relative"]),
            "bounds": _bounds_claim(rows, method),
            "resolution": _resolution_claim(rows, method),
        }
        for method, found in importance.items()
    }


def means_by_depth(
    rows: Sequence[Mapping[str, Any]], method: str, activation: str, skips: int, name: str
) -> dict[int, float]:
    """A column's mean over draws of points, by depth."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if (row["method"], row["activation"], row["skips"]) == (method, activation, skips):
            value = row[name]
            values.setdefault(row["depth"], []).append(np.nan if value is None else value)
    return {depth: float(np.mean(values[depth])) for depth in sorted(values)}


def _depth_claim(rows, method: str, activation: str) -> dict[str, Any]:
    measured = list(means_by_depth(rows, method, activation, 0, "lambda_min").values())
    skipped = list(means_by_depth(rows, method, activation, 1, "lambda_min").values())
    diagonal = list(means_by_depth(rows, method, activation, 0, "mean_diagonal").values())
    relative = list(np.divide(measured, diagonal))
    lower = list(means_by_depth(rows, method, activation, 0, "lower").values())
    found = tendency(measured)
    return {
        "claimed": EXPECTED[activation],
        "found": found,
        "holds": found == EXPECTED[activation],
        "deepest_over_shallowest": measured[-1] / measured[0],
        "found_with_skips": tendency(skipped),
        "deepest_over_shallowest_with_skips": skipped[-1] / skipped[0],
        "found_relative_to_diagonal": tendency(relative),
        "deepest_over_shallowest_relative_to_diagonal": relative[-1] / relative[0],
        "found_of_lower_bound": tendency(lower, _UNCHANGED_BOUND),
        "bound_holds_claim": tendency(lower, _UNCHANGED_BOUND) == EXPECTED[activation],
    }


def _skip_claim(rows, method: str) -> dict[str, Any]:
    values = {
        (row["activation"], row["skips"], row["depth"], row["draw"]): row["lambda_min"]
        for row in rows
        if row["method"] == method and row["lambda_min"] is not None
    }
    ratios = np.array(
        [
            values[name, 1, depth, draw] / without
            for (name, skips, depth, draw), without in values.items()
            if not skips and without > 0 and (name, 1, depth, draw) in values
        ]
    )
    share = float((ratios > 1).mean()) if len(ratios) else None
    return {
        "claimed": "a skip in every layer raises the smallest eigenvalue",
        "holds": share == 1.0,
        "share_of_chains": share,
        "smallest_ratio": float(ratios.min()) if len(ratios) else None,
        "median_ratio": float(np.median(ratios)) if len(ratios) else None,
        "largest_ratio": float(ratios.max()) if len(ratios) else None,
    }


def _first_layer_claim(found) -> dict[str, Any]:
    shares = found["activations"]
    return {
        "claimed": "of all activations the first layer's matters most",
        "holds": int(np.argmax(shares)) == 0,
        "largest_at_layer": int(np.argmax(shares)) + 1,
        "share_of_first_layer": shares[0],
        "share_of_largest": max(shares),
    }


def _bounds_claim(rows, method: str) -> dict[str, Any]:
    chosen = [row for row in rows if row["method"] == method and row["lambda_min"] is not None]
    value, lower, upper = (
        np.array([row[name] for row in chosen], float) for name in ("lambda_min", "lower", "upper")
    )
    return {
        "claimed": "the upper bound is not exceeded",
        "holds": bool((value <= upper).all()),
        "largest_share_of_upper": float((value / upper).max()),
        "share_above_lower_with_constant_1": float((value >= lower).mean()),
        "smallest_multiple_of_lower": float((value / lower).min()),
    }


def _resolution_claim(rows, method: str) -> dict[str, Any]:
    shares = np.array(
        [
            row["lambda_min"] / row["lambda_max"]
            for row in rows
            if row["method"] == method and None not in (row["lambda_min"], row["lambda_max"])
        ]
    )
    return {
        "claimed": "smallest eigenvalues are above the error of the kernels",
        "holds": bool((shares >= _RESOLUTION).all()),
        "least_share_of_lambda_max": float(shares.min()),
        "share_of_chains": float((shares >= _RESOLUTION).mean()),
    }


def layer_importance(
    activations: np.ndarray, skips: np.ndarray, lambda_min: np.ndarray
) -> dict[str, Any]:
    r"""How much of the smallest eigenvalue's variance each choice explains alone.

    .. math:: \eta^2 = \sum_g n_g (\bar y_g - \bar y)^2 / \sum_i (y_i - \bar y)^2, \quad
       y = \log \lambda_{\min}

    By chance alone it is about ``(groups - 1) / (architectures - 1)``.

    Args:
      activations: ``[architectures, depth - 1]``.
      skips: ``[architectures, depth - 2]``.
      lambda_min: ``[architectures]``; what is not above 0 is left out.

    Returns:
      ``activations`` and ``skips``, a share each, in the order of the layers; the mean logarithm by
      activation of the first layer; and how many architectures were used.

    Raises:
      InputError: if fewer than 3 architectures have an eigenvalue above 0.
    """
    is_used = np.isfinite(lambda_min) & (lambda_min > 0)
    if is_used.sum() < 3:
        raise InputError(
            f"validate eigen: 3 of {len(lambda_min)} smallest eigenvalues must be above 0, got "
            f"{is_used.sum()}. Give fewer points or more dimensions."
        )
    y = np.log(lambda_min[is_used])
    activations, skips = activations[is_used], skips[is_used]
    return {
        "activations": [_eta_squared(column, y) for column in activations.T],
        "skips": [_eta_squared(column, y) for column in skips.T],
        "by_chance": (len(ACTIVATION_NAMES) - 1) / (len(y) - 1),
        "mean_log_by_first_activation": {
            name: float(y[activations[:, 0] == index].mean())
            for index, name in enumerate(ACTIVATION_NAMES)
            if (activations[:, 0] == index).any()
        },
        "num_architectures": len(y),
        "num_failed": int((~is_used).sum()),
    }


def _eta_squared(groups: np.ndarray, y: np.ndarray) -> float:
    centred = y - y.mean()
    between = sum(
        (groups == group).sum() * centred[groups == group].mean() ** 2
        for group in np.unique(groups)
    )
    total = float(centred @ centred)
    return float(between / total) if total > 0 else 0.0
