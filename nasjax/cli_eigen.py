"""The command ``nasjax search eigen``."""

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
    PoolDataOption,
    PoolScoresOption,
    PoolSizeOption,
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
from nasjax.errors import InputError, unknown_name


def search_eigen(
    scores: PoolScoresOption = None,
    space: Annotated[
        str | None,
        typer.Option(help="nasbench201, mlp or another. [that of the scores, or nasbench201]"),
    ] = None,
    also: AlsoOption = None,
    pool_size: PoolSizeOption = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Ranked by: min_eigenvalue (the paper's bound), min_eigenvalue:exact (both of the "
            "empirical kernel), min_eigenvalue:infinite (mlp, nasbench201), "
            "min_eigenvalue:infinite_bound, or another metric of the scores. [mlp: "
            "min_eigenvalue:infinite, others: min_eigenvalue]"
        ),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(help="Other metrics, joined by commas, to select as many by: knas ..."),
    ] = None,
    top_k: Annotated[int, typer.Option(help="Candidates that are evaluated, k.")] = 20,
    table: TableOption = None,
    accuracy: AccuracyOption = "cifar10_validation_12",
    evaluation_seconds: SecondsOption = None,
    recipe: RecipeOption = None,
    data: PoolDataOption = None,
    test_data: TestDataOption = None,
    epochs: EpochsOption = None,
    depth: Annotated[
        int | None, typer.Option(help="Of mlp, layers of weights, where a pool is drawn. [10]")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(help="Channels, in mlp units a layer, of finite networks. [the space's]"),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="N, where a pool is drawn. [64; infinite cells: 16]")
    ] = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run. [runs/eigen-SCORES-METRIC-kK-seedSEED]"),
    ] = None,
) -> None:
    """Select by the smallest NTK eigenvalue: the best k, of them the best by validation."""
    from nasjax.metrics import METRICS
    from nasjax.runs import INFINITE_SCORES, EigenSettings, run_eigen

    pool_size = check_pool_size(scores, pool_size)
    if scores is None and top_k > pool_size:
        raise InputError(f"--top-k: must be at most the {pool_size} that are drawn, got {top_k}.")
    drawn = {"--depth": depth, "--width": width, "--batch-size": batch_size}
    given = [option for option, value in drawn.items() if value is not None]
    if scores is not None and given:
        raise InputError(
            f"{given[0]}: is of a pool that is drawn, got {drawn[given[0]]} together with --scores "
            f"{scores}. Leave one out."
        )
    pool = None if scores is None else load_pool(scores, also, space)
    space = pool.space.name if pool else space or "nasbench201"
    metric = metric or ("min_eigenvalue:infinite" if space == "mlp" else "min_eigenvalue")
    settings = EigenSettings(metric, tuple(beside.split(",")) if beside else (), top_k)
    if pool is None:
        known = [*METRICS, *INFINITE_SCORES]
        for option, names in (("--metric", (metric,)), ("--beside", settings.beside)):
            for name in names:
                if name not in known:
                    raise unknown_name(option, "metric", name, known)
    asked = EvaluationOptions(
        table, accuracy, evaluation_seconds, recipe, data, test_data, epochs, seed
    )
    is_trained = check_evaluation(asked, space)
    stem = scores.stem if scores else f"{space}-{pool_size}"
    name = f"eigen-{stem}-{metric}-k{top_k}-seed{seed}".replace(":", "-").replace("/", "-")
    out = out or Path("runs") / name
    if pool is None:
        images = scored_data(asked, space, is_trained=is_trained)
        scored = _scored(settings, space, pool_size, images, depth, width, batch_size, seed, out)
        pool = load_pool(scored, also)
    loaded = None if is_trained else load_table(table, pool)
    with step_progress(PHASES) as on_step:
        evaluate, told = pool_evaluation(asked, pool, loaded, out, on_step)
        result = run_eigen(
            settings, pool, evaluate, out, evaluated_by=told, table=loaded, on_step=on_step
        )
    files = "architecture.json, history.jsonl, cells.svg, cells.png, selection.svg, selection.png"
    print_selected(result, out, files)


def _scored(settings, space, pool_size, data, depth, width, batch_size, seed, out: Path) -> Path:
    """Scores a pool beside the folder of a search, or goes on with it."""
    from nasjax.runs import (
        INFINITE_SCORES,
        InfiniteScoreSettings,
        ScoreSettings,
        run_infinite_scores,
    )

    infinite = [name for name in settings.metrics if name in INFINITE_SCORES]
    if infinite and len(infinite) < len(settings.metrics):
        others = [name for name in settings.metrics if name not in infinite]
        raise InputError(
            f"--beside: infinite-width metrics and those of finite networks need scores of their "
            f"own, got {infinite[0]} with {others[0]}. Score both and give --scores and --also."
        )
    folder = out.parent / f"{out.name}-scores"
    with step_progress(PHASES, waiting="compiling ...") as on_step:
        if infinite:
            asked = {"depth": depth, "batch_size": batch_size}
            asked = {name: value for name, value in asked.items() if value is not None}
            scoring = InfiniteScoreSettings(space, pool_size, data=data, seed=seed, **asked)
            run_infinite_scores(scoring, folder, on_step=on_step)
            return folder
        asked = {"batch_size": batch_size, "channels": width, "cells": depth}
        asked = {name: value for name, value in asked.items() if value is not None}
        scoring = ScoreSettings(
            space=space, metrics=settings.metrics, data=data, seed=seed, **asked
        )
        score_drawn(scoring, pool_size, folder, on_step)
    return folder
