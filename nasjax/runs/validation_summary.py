"""From the numbers of single architectures to correlations."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nasjax.errors import InputError
from nasjax.evaluation import correlation

APPROXIMATIONS = {
    "summed_loss": "squared gradient norms of the examples' losses, summed (NASI, eq. 11)",
    "batch_loss": "squared gradient norm of the batch's loss (NASI, eq. 12)",
    "random_outputs": "random signs of the outputs, per example (unbiased)",
}
AGNOSTIC = {
    "random_labels": "eq. 12, labels drawn anew against those of the data",
    "random_data": "eq. 12, N(0, 1) drawn anew against the data, labels drawn anew",
}


def summarise(
    rows: Sequence[Mapping[str, Any]],
    widths: Sequence[Mapping[str, Any]],
    batch_sizes: Sequence[int],
    width_names: Sequence[int],
) -> dict[str, Any]:
    """Correlations over architectures.

    Args:
      rows: an architecture each: ``exact``, ``NAME_BATCH`` for ``APPROXIMATIONS``, and the names of
        ``AGNOSTIC``.
      widths: an architecture each: ``infinite`` and ``width_WIDTH``; may be empty.
      batch_sizes: of the approximations, ascending.
      width_names: channels of the finite networks.

    Returns:
      ``approximations`` by name and batch, ``agnostic`` by name, ``widths`` by width; each with
      Pearson's and Spearman's coefficient and its interval. Architectures without a finite exact
      trace norm are counted as failed and left out.

    Raises:
      InputError: if fewer than three are left.
    """
    columns = {
        name: np.array([row[name] for row in rows], float)
        for name in rows[0]
        if name not in ("phase", "architecture")
    }
    num_finite = int(np.isfinite(columns["exact"]).sum())
    if num_finite < 3:
        raise InputError(
            f"validate ntk: 3 of {len(rows)} trace norms must be finite, got {num_finite}. "
            "Choose another initialisation, normalisation or data."
        )
    last = columns[f"batch_loss_{batch_sizes[-1]}"]
    return {
        "num_architectures": len(rows),
        "num_failed": len(rows) - num_finite,
        "approximations": {
            name: {
                size: _compare(columns[f"{name}_{size}"], columns["exact"]) for size in batch_sizes
            }
            for name in APPROXIMATIONS
        },
        "agnostic": {
            "random_labels": _compare(columns["random_labels"], last),
            "random_data": _compare(columns["random_data"], columns["random_labels"]),
        },
        "widths": {width: _against_infinite(widths, width) for width in width_names if widths},
    }


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with a header, one line a row; what a row lacks is empty."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _compare(a, b) -> dict[str, Any]:
    return {kind: correlation(a, b, kind=kind)._asdict() for kind in ("pearson", "spearman")}


def _against_infinite(widths, width: int) -> dict[str, Any]:
    finite = np.array([row[f"width_{width}"] for row in widths], float)
    infinite = np.array([row["infinite"] for row in widths], float)
    error = float(np.median(np.abs(finite / infinite - 1)))
    return {"median_relative_error": error, **_compare(finite, infinite)}
