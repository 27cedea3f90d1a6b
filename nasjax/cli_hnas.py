"""The command ``nasjax search hnas``."""

from pathlib import Path
from typing import Annotated

import typer

from nasjax.cli_common import SeedOption, TestDataOption, step_progress
from nasjax.cli_pool import (
    PHASES,
    AccuracyOption,
    AlsoOption,
    EpochsOption,
    EvaluationOptions,
    KappaOption,
    PoolDataOption,
    PoolScoresOption,
    PoolSizeOption,
    RangesOption,
    RecipeOption,
    SecondsOption,
    TableOption,
    check_evaluation,
    check_pool_size,
    load_pool,
    load_table,
    pool_evaluation,
    print_selected,
    score_drawn,
    scored_data,
)


def search_hnas(
    scores: PoolScoresOption = None,
    space: Annotated[
        str | None, typer.Option(help="Search space. [that of the scores, or nasbench201]")
    ] = None,
    also: AlsoOption = None,
    pool_size: PoolSizeOption = None,
    table: TableOption = None,
    accuracy: AccuracyOption = "cifar10_validation_12",
    evaluation_seconds: SecondsOption = None,
    recipe: RecipeOption = None,
    data: PoolDataOption = None,
    test_data: TestDataOption = None,
    epochs: EpochsOption = None,
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
    from nasjax.runs import HnasSettings, run_hnas

    settings = HnasSettings(
        metric=metric,
        kappa=kappa,
        bound=bound,
        ranges=ranges,
        weighted=tuple(weighted.split(",")) if weighted else (),
        steps=steps,
        seed=seed,
    )
    pool_size = check_pool_size(scores, pool_size)
    stem = scores.stem if scores else f"{space or 'nasbench201'}-{pool_size}"
    out = out or Path("runs") / _name(settings, stem, also, recipe)
    pool = None if scores is None else load_pool(scores, also, space)
    space = pool.space.name if pool else space or "nasbench201"
    asked = EvaluationOptions(
        table, accuracy, evaluation_seconds, recipe, data, test_data, epochs, seed
    )
    is_trained = check_evaluation(asked, space)
    if pool is None:
        scored = _scored(
            settings, space, pool_size, scored_data(asked, space, is_trained=is_trained), out
        )
        pool = load_pool(scored, also)
    loaded = None if is_trained else load_table(table, pool)
    with step_progress(PHASES) as on_step:
        evaluate, told = pool_evaluation(asked, pool, loaded, out, on_step)
        result = run_hnas(
            settings, pool, evaluate, out, evaluated_by=told, table=loaded, on_step=on_step
        )
    files = "architecture.json, history.jsonl, cells.svg, cells.png, search.svg, search.png"
    print_selected(result, out, files)


def _name(settings, stem: str, also: list[str] | None, recipe: str | None) -> str:
    """A folder's name: metrics, what is not a default, and the seed."""
    from nasjax.runs import HnasSettings
    from nasjax.runs.folder import changed_settings

    told = ["hnas", stem, "+".join(settings.weighted) or settings.metric]
    told += changed_settings(settings, HnasSettings(), left_out=("metric", "weighted", "seed"))
    told += [f"also={one.partition('=')[0]}" for one in also or ()]
    told += [Path(recipe).stem] if recipe else []
    return "-".join([*told, f"seed{settings.seed}"]).replace(":", "-").replace("/", "-")


def _scored(settings, space: str, pool_size: int, data: str, out: Path) -> Path:
    """Scores a pool beside the folder of a search, or goes on with it."""
    from nasjax.runs import ScoreSettings

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
        score_drawn(scoring, pool_size, folder, on_step)
    return folder


_CELLS = {"darts": 5}
"""Of the networks that pools are scored with, HNAS's; other spaces have those of `nasjax score`."""
