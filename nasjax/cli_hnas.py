"""The commands ``nasjax search hnas`` and ``nasjax compare``."""

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nasjax.cli_common import (
    DATA_VARIABLE,
    TABLE_NAME,
    SeedOption,
    console,
    default_table,
    print_files,
    step_progress,
)
from nasjax.errors import InputError

_TESTED = {
    "cifar10_test": "CIFAR-10",
    "cifar100_test": "CIFAR-100",
    "imagenet16_test": "ImageNet16-120",
}

ScoresOption = Annotated[
    Path,
    typer.Option(
        help="Scored architectures: a folder of `nasjax score`, or a CSV file with a column "
        "`architecture` and a column for each metric."
    ),
]
TableOption = Annotated[
    Path | None,
    typer.Option(help=f"NAS-Bench-201 accuracies (CSV). [{TABLE_NAME} in ${DATA_VARIABLE}]"),
]
AccuracyOption = Annotated[str, typer.Option(help="Which of them an evaluation gives.")]
SecondsOption = Annotated[
    float, typer.Option(help="What an evaluation is counted with: 12 epochs on a GPU of 2017.")
]


AlsoOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=PATH: other scores of these architectures, such as a narrower network's, whose "
        "metrics are then called NAME/METRIC. May be given several times."
    ),
]


def search_hnas(
    scores: Annotated[
        Path | None,
        typer.Option(
            help="Scored architectures: a folder of `nasjax score`, or a CSV file with a column "
            "`architecture` and a column for each metric. [--pool-size are drawn and scored]"
        ),
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="Search space. [that of the scores, or nasbench201]")
    ] = None,
    also: AlsoOption = None,
    pool_size: Annotated[
        int, typer.Option(help="Without --scores: so many are drawn, and scored first.")
    ] = 500,
    table: TableOption = None,
    accuracy: AccuracyOption = "cifar10_validation_12",
    evaluation_seconds: SecondsOption = 150.0,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Evaluate by training, as `nasjax train` does it, not by the table. "
            "[hnas_candidate in spaces without a table]"
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Images to score and to train with, as for `nasjax train`. [the recipe's; random "
            "where scores alone need them]"
        ),
    ] = None,
    test_data: Annotated[
        str | None, typer.Option(help="With npz:PATH: npz:PATH of the examples to test with.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Of each training. [the recipe's]")] = None,
    metric: Annotated[str, typer.Option(help="M, a metric of the scores.")] = "trace:hnas",
    kappa: Annotated[
        str, typer.Option(help="The condition number, a metric of the scores.")
    ] = "condition_number:hnas",
    bound: Annotated[
        str,
        typer.Option(
            help="non_realizable (eq. 7), realizable_kappa, realizable_trade_off, realizable, or "
            "non_realizable:code, without a square."
        ),
    ] = "non_realizable",
    ranges: Annotated[
        str, typer.Option(help="Of mu and nu: scaled, or hnas: the numbers of the paper's code.")
    ] = "scaled",
    weighted: Annotated[
        str | None,
        typer.Option(
            help="Metrics joined by commas, whose ranks are weighted by constants that are tuned "
            "instead of mu and nu."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Architectures to evaluate, K.")] = 20,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. [runs/hnas-SCORES-METRIC-seedSEED]")
    ] = None,
) -> None:
    """Select an architecture by a training-free bound, tuned by a few evaluations (HNAS)."""
    from nasjax.runs import HnasSettings, run_hnas, table_evaluation, training_evaluation

    settings = HnasSettings(
        metric=metric,
        kappa=kappa,
        bound=bound,
        ranges=ranges,
        weighted=tuple(weighted.split(",")) if weighted else (),
        steps=steps,
        seed=seed,
    )
    name = "weighted" if settings.weighted else metric.replace(":", "-")
    stem = scores.stem if scores else f"{space or 'nasbench201'}-{pool_size}"
    out = out or Path("runs") / f"hnas-{stem}-{name}-seed{seed}"
    is_trained = recipe is not None or (space or _space_of(scores)) != "nasbench201"
    if is_trained and table is not None:
        raise InputError(
            "--table: evaluations are looked up or trained, got a table together with "
            f"{f'--recipe {recipe}' if recipe else 'a space that has none'}. Leave one out."
        )
    if not is_trained and (epochs is not None or test_data is not None):
        raise InputError("--epochs, --test-data: need a training, got none. Give --recipe.")
    recipe = recipe or "hnas_candidate"
    if scores is None:
        scores = _scored(
            settings, space or "nasbench201", pool_size, _data(data, recipe, is_trained), out
        )
    pool = _load_pool(scores, also, space)
    loaded = None if is_trained else _load_table(table, pool)
    with step_progress(_PHASES) as on_step:
        if is_trained:
            evaluate, told = training_evaluation(
                *(pool, out / "evaluations"),
                recipe=recipe,
                data=data,
                test_data=test_data,
                epochs=epochs,
                seed=seed,
                on_report=lambda *report: on_step("training", *report),
            )
        else:
            evaluate = table_evaluation(pool, loaded, accuracy, evaluation_seconds)
            told = {"table": accuracy, "seconds": evaluation_seconds}
        result = run_hnas(
            settings, pool, evaluate, out, evaluated_by=told, table=loaded, on_step=on_step
        )
    _print(result, out)


def _space_of(scores: Path | None) -> str:
    from nasjax.runs import load_scored_pool

    return "nasbench201" if scores is None else load_scored_pool(scores).space.name


def _data(data: str | None, recipe: str, is_trained: bool) -> str:
    """What a pool is scored with: the images that candidates are trained with, if they are."""
    from nasjax.training import get_recipe

    return data or (get_recipe(recipe).data if is_trained else "random")


def _scored(settings, space: str, pool_size: int, data: str, out: Path) -> Path:
    """Scores a pool beside the folder of a search, or goes on with it."""
    from nasjax.runs import ScoreSettings, request_sample, run_score

    asked = settings.weighted or (settings.metric, settings.kappa)
    scoring = ScoreSettings(
        space=space,
        metrics=tuple(dict.fromkeys(asked)),
        data=data,
        cells=_CELLS.get(space),
        seed=settings.seed,
    )
    folder = out.parent / f"{out.name}-scores"
    with step_progress(_PHASES, waiting="compiling ...") as on_step:
        request = request_sample(scoring.space_of(), pool_size, settings.seed)
        run_score(scoring, request, folder, on_step=on_step)
    return folder


_CELLS = {"darts": 5}
"""Of the networks that pools are scored with, HNAS's; other spaces have those of `nasjax score`."""


def compare(
    scores: ScoresOption,
    searches: Annotated[
        str,
        typer.Option(
            help="Joined by commas: hnas, hnas:METRIC, hnas:METRIC+KAPPA, "
            "weighted:METRIC+METRIC..., predicted:METRIC+METRIC..., ranking:METRIC, "
            "sample:METRIC+N, pruning[:KAPPA+REGIONS], random, evolution, reinforce, parzen."
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
    evaluation_seconds: SecondsOption = 150.0,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. [runs/compare-SCORES-seedSEED]")
    ] = None,
) -> None:
    """Compare searches over scored NAS-Bench-201 cells, by one count of evaluations."""
    from nasjax.runs import CompareSettings, run_comparison

    settings = CompareSettings(
        searches=tuple(searches.split(",")),
        found=_pairs("--found", found),
        pool_size=pool_size,
        num_seeds=num_seeds,
        steps=steps,
        accuracy=accuracy,
        evaluation_seconds=evaluation_seconds,
        seed=seed,
    )
    pool = _load_pool(scores, also)
    loaded = _load_table(table, pool)
    out = out or Path("runs") / f"compare-{scores.stem}-seed{seed}"
    with step_progress(_PHASES) as on_step:
        compared = run_comparison(settings, pool, loaded, out, on_step=on_step)
    console.print("mean (standard deviation), %, and seconds of evaluations and scores")
    rows = Table("search", "valid.", "C10 test", "C100", "IN16", "eval.", "scores", box=None)
    for name, result in compared.items():
        spreads = (result[column] for column in ("validation", *_TESTED))
        numbers = (f"{100 * s['mean']:.2f} ({100 * s['std']:.2f})" for s in spreads)
        seconds = (f"{result[column]:.0f}" for column in ("seconds", "metric_seconds"))
        rows.add_row(name, *numbers, *seconds)
    console.print(rows)
    print(f"written to {out}: comparison.json, history.jsonl, comparison.svg, comparison.png")


def correlate(
    scores: ScoresOption,
    metrics: Annotated[
        str, typer.Option(help="M of the bounds, joined by commas; an empty string for none.")
    ] = "trace:hnas",
    kappa: Annotated[
        str, typer.Option(help="The condition number, a metric of the scores.")
    ] = "condition_number:hnas",
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
    ranges: Annotated[
        str, typer.Option(help="Of mu and nu: scaled, or hnas: the numbers of the paper's code.")
    ] = "scaled",
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
    pool = _load_pool(scores, also)
    loaded = _load_table(table, pool)
    out = out or Path("runs") / f"correlate-{scores.stem}-seed{seed}"
    with step_progress(_PHASES) as on_step:
        rows = run_correlation(settings, pool, loaded, out, on_step=on_step)
    print(
        f"Spearman correlation with {accuracy} (95 % interval, or standard deviation over "
        f"{num_seeds} searches); with architectures without a score last; Kendall's tau; Spearman "
        "within the best 10 %"
    )
    shown = Table("score", "form", "tuned by", "Spearman", "all", "tau", "top", "num", box=None)
    for row in rows:
        numbers = (_decimals(row[name]) for name in ("spearman_all", "kendall", "spearman_top"))
        told = (row["score"], row["form"], row["tuned_by"], _spearman_of(row))
        shown.add_row(*told, *numbers, str(row["num"]))
    console.print(shown)
    print(
        f"written to {out}: correlations.csv, correlations.json, history.jsonl, correlations.svg, "
        "correlations.png"
    )


def _decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _spearman_of(row) -> str:
    if row["std"] is not None:
        return f"{_decimals(row['spearman'])} ± {row['std']:.3f}"
    if row["low"] is not None:
        return f"{_decimals(row['spearman'])} ({row['low']:.2f} to {row['high']:.2f})"
    return _decimals(row["spearman"])


def _load_pool(scores: Path, also: list[str] | None, space: str | None = None):
    from nasjax.runs import load_scored_pool

    pool = load_scored_pool(scores, space=space)
    for name, path in _pairs("--also", also).items():
        pool = pool.with_scores(name, load_scored_pool(path, space=pool.space.name))
    return pool


def _pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    found = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name or not value or name in found:
            raise InputError(f"{option}: must be NAME=PATH, each name once, got {text!r}.")
        found[name] = value
    return found


def _load_table(table: Path | None, pool):
    from nasjax.evaluation import load_nasbench201_table

    table = table or default_table()
    if table is None or pool.space.name != "nasbench201":
        raise InputError(
            "--table: NAS-Bench-201 accuracies must be given, with scores of nasbench201, got "
            f"{table or 'none'} and {pool.space.name}."
        )
    return load_nasbench201_table(table)


def _loss(record) -> str:
    loss = record.get("loss", record.get("train_loss"))
    return "" if loss is None else f"loss {loss:.3f}"


def _best(record) -> str:
    best = record["best_value"]
    return "" if best is None else f"best {100 * best:.2f} %"


_PHASES = {
    "scores": ("scoring", lambda record: ""),
    "training": ("training", _loss),
    "evaluations": ("evaluating", _best),
    "searches": ("searching", lambda record: ""),
    "rows": ("correlating", lambda record: f"{record['score']}, {record['form']}"),
}
"""What the bar of a phase is called, and what stands beside it."""


def _print(result, out: Path) -> None:
    record, seconds = result.record, result.record["seconds"]
    print(record["architecture"])
    rows = Table("quantity", "value", show_header=False, box=None)
    if "official_index" in record:
        rows.add_row("NAS-Bench-201 index", str(record["official_index"]))
    rows.add_row("validation accuracy", f"{100 * record['value']:.2f} %")
    for name, label in _TESTED.items():
        if "accuracies" in record:
            rows.add_row(f"{label} test accuracy", f"{100 * record['accuracies'][name]:.2f} %")
    rows.add_row("cost of evaluations", f"{seconds['evaluations']:.0f} s")
    if math.isfinite(seconds["metrics"]):
        rows.add_row("cost of scores", f"{seconds['metrics']:.0f} s")
    console.print(rows)
    files = "architecture.json, history.jsonl, cells.svg, cells.png, search.svg, search.png"
    print_files(result, out, files)
