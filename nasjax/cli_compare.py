"""The commands ``nasjax compare`` and ``nasjax correlate``."""

import math
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nasjax.cli_common import SeedOption, console, step_progress
from nasjax.cli_pool import (
    PHASES,
    TESTED,
    AccuracyOption,
    AlsoOption,
    KappaOption,
    RangesOption,
    ScoresOption,
    SecondsOption,
    TableOption,
    load_pool,
    load_table,
    pairs,
)


def compare(
    scores: ScoresOption,
    searches: Annotated[
        str,
        typer.Option(
            help="Joined by commas: hnas, hnas:METRIC, hnas:METRIC+KAPPA, "
            "weighted:METRIC+METRIC..., predicted:METRIC+METRIC..., ranking:METRIC, "
            "sample:METRIC+N, pruning[:KAPPA+REGIONS], random, evolution, reinforce, parzen, bohb."
        ),
    ] = "hnas,random,evolution,reinforce",
    found: Annotated[
        list[str] | None,
        typer.Option(
            help="LABEL=PATTERN: folders of finished searches, such as those of `nasjax search "
            "nasi`, to stand beside. May be given several times."
        ),
    ] = None,
    also: AlsoOption = None,
    pool_size: Annotated[
        int | None,
        typer.Option(help="Architectures that each seed draws of the scores, for all. [all]"),
    ] = None,
    num_seeds: Annotated[int, typer.Option(help="Searches of each kind.")] = 10,
    steps: Annotated[int, typer.Option(help="Architectures that each evaluates.")] = 20,
    table: TableOption = None,
    accuracy: AccuracyOption = "cifar10_validation_12",
    evaluation_seconds: SecondsOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. [runs/compare-SCORES-seedSEED]")
    ] = None,
) -> None:
    """Compare searches over scored NAS-Bench-201 cells, by one count of evaluations."""
    from nasjax.runs import CompareSettings, run_comparison

    settings = CompareSettings(
        searches=tuple(searches.split(",")),
        found=pairs("--found", found),
        pool_size=pool_size,
        num_seeds=num_seeds,
        steps=steps,
        accuracy=accuracy,
        evaluation_seconds=evaluation_seconds,
        seed=seed,
    )
    pool = load_pool(scores, also)
    loaded = load_table(table, pool)
    out = out or Path("runs") / f"compare-{scores.stem}-seed{seed}"
    with step_progress(PHASES) as on_step:
        compared = run_comparison(settings, pool, loaded, out, on_step=on_step)
    console.print("mean (standard deviation), %; seconds of evaluations and of scores")
    rows = _wide_table("search", "valid.", "C10 test", "C100", "IN16", "eval.", "scores")
    for name, result in compared.items():
        validation = _percent({**result["validation"], "std": math.nan})
        numbers = (validation, *(_percent(result[column]) for column in TESTED))
        costs = (result[column] for column in ("seconds", "metric_seconds"))
        seconds = ("" if math.isnan(cost) else f"{cost:.0f}" for cost in costs)
        rows.add_row(name, *numbers, *seconds)
    console.print(rows)
    print(f"written to {out}: comparison.json, history.jsonl, comparison.svg, comparison.png")


def correlate(
    scores: ScoresOption,
    metrics: Annotated[
        str, typer.Option(help="M of the bounds, joined by commas; an empty string for none.")
    ] = "trace:hnas",
    kappa: KappaOption = "condition_number:hnas",
    bounds: Annotated[
        str, typer.Option(help="As for `nasjax search hnas`, joined by commas.")
    ] = "realizable,realizable_trade_off,realizable_kappa,non_realizable",
    sets: Annotated[
        str | None,
        typer.Option(help="Metrics put together, joined by +, the sets joined by commas."),
    ] = None,
    accuracy: Annotated[str, typer.Option(help="What correlations are with.")] = "cifar10_test",
    validation: Annotated[
        str, typer.Option(help="What the searches see that tune constants.")
    ] = "cifar10_validation_12",
    ranges: RangesOption = "scaled",
    steps: Annotated[int, typer.Option(help="Architectures that a search evaluates.")] = 20,
    num_seeds: Annotated[int, typer.Option(help="Searches of each kind.")] = 10,
    also: AlsoOption = None,
    table: TableOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. [runs/correlate-SCORES-seedSEED]")
    ] = None,
) -> None:
    """Correlate the bounds of HNAS, and sets of metrics, with known accuracies."""
    from nasjax.runs import CorrelateSettings, run_correlation

    settings = CorrelateSettings(
        metrics=tuple(metrics.split(",")) if metrics else (),
        kappa=kappa,
        bounds=tuple(bounds.split(",")),
        sets=tuple(tuple(one.split("+")) for one in sets.split(",")) if sets else (),
        accuracy=accuracy,
        validation=validation,
        ranges=ranges,
        steps=steps,
        num_seeds=num_seeds,
        seed=seed,
    )
    pool = load_pool(scores, also)
    loaded = load_table(table, pool)
    out = out or Path("runs") / f"correlate-{scores.stem}-seed{seed}"
    with step_progress(PHASES) as on_step:
        rows = run_correlation(settings, pool, loaded, out, on_step=on_step)
    print(
        f"Spearman correlation with {accuracy} (95 % interval, or ± standard deviation over "
        f"{num_seeds} searches); all: architectures without a score last; Kendall's tau; top: "
        "Spearman within the best 10 %. After the comma: what constants are tuned by."
    )
    for score, forms in groupby(rows, lambda row: row["score"]):
        print(f"{score}:")
        shown = Table(box=None, padding=(0, 1, 0, 0))
        for name, width in _FORM_COLUMNS.items():
            shown.add_column(name, no_wrap=True, min_width=width)
        for row in forms:
            names = ("spearman_all", "kendall", "spearman_top")
            numbers = (_decimals(row[name]) for name in names)
            told = ", ".join(filter(None, (row["form"], row["tuned_by"])))
            shown.add_row(told, _spearman_of(row), *numbers, str(row["num"]))
        console.print(shown)
    print(
        f"written to {out}: correlations.csv, correlations.json, history.jsonl, correlations.svg, "
        "correlations.png"
    )


def _wide_table(first: str, *others: str) -> Table:
    """A table whose first column gives way where the terminal is narrow."""
    table = Table(box=None)
    table.add_column(first, overflow="fold", min_width=16)
    for name in others:
        table.add_column(name, no_wrap=True)
    return table


_FORM_COLUMNS = {
    "": 33,
    "Spearman": 19,
    "all": 6,
    "tau": 6,
    "top": 6,
    "num": 4,
}
"""Columns and least widths, so that the tables of all scores have one layout of 80 columns."""


def _percent(spread) -> str:
    std = "" if math.isnan(spread["std"]) else f" ({100 * spread['std']:.2f})"
    return "" if math.isnan(spread["mean"]) else f"{100 * spread['mean']:.2f}{std}"


def _decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _spearman_of(row) -> str:
    if row["std"] is not None:
        return f"{_decimals(row['spearman'])} ± {row['std']:.3f}"
    if row["low"] is not None:
        return f"{row['spearman']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
    return _decimals(row["spearman"])
