"""The command ``nasjax search hnas``."""

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nasjax.cli_common import SeedOption, TestDataOption, console, print_files, step_progress
from nasjax.cli_pool import (
    PHASES,
    SCORES_HELP,
    TESTED,
    AccuracyOption,
    AlsoOption,
    KappaOption,
    RangesOption,
    SecondsOption,
    TableOption,
    load_pool,
    load_table,
)
from nasjax.errors import InputError


def search_hnas(
    scores: Annotated[
        Path | None, typer.Option(help=f"{SCORES_HELP} [--pool-size are drawn and scored]")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="Search space. [that of the scores, or nasbench201]")
    ] = None,
    also: AlsoOption = None,
    pool_size: Annotated[
        int | None,
        typer.Option(help="Without --scores: so many are drawn, and scored first. [500]"),
    ] = None,
    table: TableOption = None,
    accuracy: AccuracyOption = "cifar10_validation_12",
    evaluation_seconds: SecondsOption = None,
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
    test_data: TestDataOption = None,
    epochs: Annotated[int | None, typer.Option(help="Of each training. [the recipe's]")] = None,
    metric: Annotated[str, typer.Option(help="M, a metric of the scores.")] = "trace:hnas",
    kappa: KappaOption = "condition_number:hnas",
    bound: Annotated[
        str,
        typer.Option(
            help="non_realizable (eq. 7), realizable_kappa, realizable_trade_off, realizable, or "
            "non_realizable:code, without a square."
        ),
    ] = "non_realizable",
    ranges: RangesOption = "scaled",
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
        Path | None,
        typer.Option(
            help="Folder of the run. [runs/hnas-SCORES-METRIC-..., the options that differ]"
        ),
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
    if scores is not None and pool_size is not None:
        raise InputError(
            f"--pool-size: is of a pool that is drawn, got {pool_size} together with --scores "
            f"{scores}. Leave one out."
        )
    pool_size = 500 if pool_size is None else pool_size
    stem = scores.stem if scores else f"{space or 'nasbench201'}-{pool_size}"
    out = out or Path("runs") / _name(settings, stem, also, recipe)
    if evaluation_seconds is not None and not evaluation_seconds >= 0:
        raise InputError(f"--evaluation-seconds: must be at least 0, got {evaluation_seconds}.")
    pool = None if scores is None else load_pool(scores, also, space)
    space = pool.space.name if pool else space or "nasbench201"
    is_trained = recipe is not None or space != "nasbench201"
    if is_trained and table is not None:
        raise InputError(
            "--table: evaluations are looked up or trained, got a table together with "
            f"{f'--recipe {recipe}' if recipe else 'a space that has none'}. Leave one out."
        )
    if not is_trained and (epochs is not None or test_data is not None):
        raise InputError("--epochs, --test-data: need a training, got none. Give --recipe.")
    recipe = recipe or "hnas_candidate"
    if pool is None:
        scored = _scored(settings, space, pool_size, _data(data, recipe, is_trained), out)
        pool = load_pool(scored, also)
    loaded = None if is_trained else load_table(table, pool)
    with step_progress(PHASES) as on_step:
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


def _name(settings, stem: str, also: list[str] | None, recipe: str | None) -> str:
    """A folder's name: metrics, what is not a default, and the seed."""
    from nasjax.runs import HnasSettings
    from nasjax.runs.folder import changed_settings

    told = ["hnas", stem, "+".join(settings.weighted) or settings.metric]
    told += changed_settings(settings, HnasSettings(), left_out=("metric", "weighted", "seed"))
    told += [f"also={one.partition('=')[0]}" for one in also or ()]
    told += [Path(recipe).stem] if recipe else []
    return "-".join([*told, f"seed{settings.seed}"]).replace(":", "-").replace("/", "-")


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
    with step_progress(PHASES, waiting="compiling ...") as on_step:
        request = request_sample(scoring.space_of(), pool_size, settings.seed)
        run_score(scoring, request, folder, on_step=on_step)
    return folder


_CELLS = {"darts": 5}
"""Of the networks that pools are scored with, HNAS's; other spaces have those of `nasjax score`."""


def _print(result, out: Path) -> None:
    record, seconds = result.record, result.record["seconds"]
    print(record["architecture"])
    rows = Table("quantity", "value", show_header=False, box=None)
    if "official_index" in record:
        rows.add_row("NAS-Bench-201 index", str(record["official_index"]))
    rows.add_row("validation accuracy", f"{100 * record['value']:.2f} %")
    for name, label in TESTED.items():
        if "accuracies" in record:
            rows.add_row(f"{label} test accuracy", f"{100 * record['accuracies'][name]:.2f} %")
    rows.add_row("cost of evaluations", f"{seconds['evaluations']:.0f} s")
    if math.isfinite(seconds["metrics"]):
        rows.add_row("cost of scores", f"{seconds['metrics']:.0f} s")
    console.print(rows)
    files = "architecture.json, history.jsonl, cells.svg, cells.png, search.svg, search.png"
    print_files(result, out, files)
