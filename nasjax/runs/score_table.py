"""From the record of a scoring run to a table, its files, and correlations with accuracies."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nasjax.evaluation import Nasbench201Table, correlation
from nasjax.metrics import METRICS
from nasjax.runs.score_record import Recorded, Unit
from nasjax.runs.score_request import index_of
from nasjax.spaces import Space

Row = dict[str, Any]
"""A row of the table by columns; None where there is no value."""

MAIN_ACCURACIES = ("cifar10_test", "cifar100_test", "imagenet16_test", "cifar10_validation_12")
"""Those whose correlations are printed, with intervals."""

_NUM_RESAMPLES, _FEWEST_RESAMPLES, _RESAMPLED_PAIRS = 1000, 100, 2_000_000


def table_rows(
    space: Space,
    genotypes: Sequence[np.ndarray],
    canonicals: Sequence[str],
    metrics: Sequence[str],
    seeds: Sequence[int],
    record: Mapping[Unit, Recorded],
) -> list[Row]:
    """The table, a row an architecture in the order that they were asked for.

    Args:
      space: of the architectures.
      genotypes: the architectures.
      canonicals: the strings of their canonical forms.
      metrics: keys of ``METRICS``.
      seeds: of the weights.
      record: every class with every seed.

    Returns:
      ``index``, ``architecture``, ``canonical``; for every metric its value, and for several seeds
      the mean of those that did not fail, its standard error ``METRIC_se`` (None for fewer than
      two) and the number of failures ``METRIC_failed``; ``flags`` and ``warnings``, ``metric:
      reason`` joined by semicolons.
    """
    made: dict[str, Row] = {}
    rows = []
    for number, (genotype, canonical) in enumerate(zip(genotypes, canonicals, strict=True)):
        if canonical not in made:
            scored = [record[Unit(canonical, seed)].scores for seed in seeds]
            made[canonical] = _columns(metrics, scored)
        rows.append(
            {
                "index": index_of(space, genotype, number),
                "architecture": space.to_string(genotype),
                "canonical": canonical,
                **made[canonical],
            }
        )
    return rows


def _columns(metrics, scored) -> Row:
    row: Row = {}
    for name in metrics:
        values = [s.values[name] for s in scored if math.isfinite(s.values[name])]
        row[name] = math.fsum(values) / len(values) if values else None
        if len(scored) > 1:
            row[f"{name}_se"] = _standard_error(values)
            row[f"{name}_failed"] = len(scored) - len(values)
    for column in ("flags", "warnings"):
        row[column] = "; ".join(
            f"{name}: {reason}"
            for name in metrics
            if (reason := _reason([getattr(s, column).get(name) for s in scored]))
        )
    return row


def _standard_error(values: list[float]) -> float | None:
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def _reason(reasons: list[str | None]) -> str:
    """What is to be told of all seeds, with how many it befell where it did not befall them all."""
    told = [reason for reason in reasons if reason is not None]
    if not told:
        return ""
    text = ", ".join(dict.fromkeys(told))
    return text if len(told) == len(reasons) else f"{len(told)} of {len(reasons)} seeds: {text}"


def failed(row: Row, metric: str) -> bool:
    """Whether a metric failed for an architecture, with any seed."""
    return row[metric] is None or bool(row.get(f"{metric}_failed"))


def as_csv(rows: Sequence[Row]) -> str:
    """The table as text; no value is an empty cell, numbers keep all their digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_parquet(rows: Sequence[Row]) -> bytes:
    """The table as a Parquet file; no value is a null."""
    # Imported here: pyarrow takes a second, and only a finished run needs it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    def kind(name):
        if name == "index" or name.endswith("_failed"):
            return pa.int64()
        texts = ("architecture", "canonical", "flags", "warnings")
        return pa.string() if name in texts else pa.float64()

    names = list(rows[0])
    columns = {name: pa.array([row[name] for row in rows], kind(name)) for name in names}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def best_rows(rows: Sequence[Row], metric: str, count: int) -> list[Row]:
    """The best architectures by a metric, one of a class, none that failed."""
    first = {row["canonical"]: row for row in reversed(rows) if not failed(row, metric)}
    sign = _sign(metric)
    return sorted(first.values(), key=lambda row: (-sign * row[metric], row["index"]))[:count]


def _sign(metric: str) -> int:
    return 1 if METRICS[metric].direction == "higher" else -1


def correlations(
    rows: Sequence[Row],
    genotypes: Sequence[np.ndarray],
    metrics: Sequence[str],
    table: Nasbench201Table,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Rank correlations of scores with accuracies.

    Scores that are better when they are lower are negated, so that a positive coefficient always
    means that the metric tells better cells. Rows whose metric failed, or that the accuracy table
    lacks, are left out. Disconnected cells fail and have the accuracy of chance; papers that count
    them, with a gradient of zero, have higher coefficients, which ``spearman_failed_last`` shows.
    A row that is there twice counts once; equivalent cells, which were trained apart, all count.

    Args:
      rows: the table.
      genotypes: of its rows.
      metrics: keys of ``METRICS``.
      table: accuracies.

    Returns:
      By metric and accuracy: ``spearman``, ``kendall``, and ``spearman_failed_last``, in which
      failed rows share the last rank. Each has ``value``, the ends ``low`` and ``high`` of the 95 %
      bootstrap interval (NaN but for ``MAIN_ACCURACIES``), and ``num_pairs``. Cost: two seconds a
      metric for a few hundred cells, fifteen for all.
    """
    stacked = np.stack(genotypes)
    places = np.sort(np.unique(stacked, axis=0, return_index=True)[1])
    rows, genotypes = [rows[place] for place in places], stacked[places]
    accuracies = {name: table.accuracy_of(name, genotypes) for name in table.accuracies()}
    # Enough for an interval, and bearable for all cells of the space.
    num_resamples = min(
        _NUM_RESAMPLES, max(_FEWEST_RESAMPLES, _RESAMPLED_PAIRS // max(len(rows), 1))
    )
    found = {}
    for metric in metrics:
        values = _sign(metric) * np.array(
            [math.nan if failed(row, metric) else row[metric] for row in rows], float
        )
        is_finite = np.isfinite(values)
        last = np.where(is_finite, values, np.min(values, where=is_finite, initial=np.inf) - 1)
        ways = {
            "spearman": ("spearman", values),
            "kendall": ("kendall", values),
            "spearman_failed_last": ("spearman", last),
        }
        found[metric] = {
            name: {
                way: correlation(
                    of,
                    accuracy,
                    kind=kind,
                    num_resamples=num_resamples if name in MAIN_ACCURACIES else 0,
                )._asdict()
                for way, (kind, of) in ways.items()
            }
            for name, accuracy in accuracies.items()
        }
    return found
