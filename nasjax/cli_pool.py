"""What the commands over scored pools share: options, loading, bars."""

import math
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from nasjax.cli_common import (
    DATA_VARIABLE,
    TABLE_NAME,
    console,
    default_table,
    load_accuracies,
    print_files,
)
from nasjax.errors import InputError

TESTED = {
    "cifar10_test": "CIFAR-10",
    "cifar100_test": "CIFAR-100",
    "imagenet16_test": "ImageNet16-120",
}

SCORES_HELP = (
    "Scored architectures: a folder of `nasjax score`, or a CSV file with a column `architecture` "
    "and a column for each metric."
)
ScoresOption = Annotated[Path, typer.Option(help=SCORES_HELP)]
TableOption = Annotated[
    Path | None,
    typer.Option(
        help="NAS-Bench-201 accuracies: a CSV file, or NATS-Bench's folder or file. "
        f"[{TABLE_NAME} in ${DATA_VARIABLE}]"
    ),
]
AccuracyOption = Annotated[str, typer.Option(help="Which of them an evaluation gives.")]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        help="What an evaluation by the table is counted with. [what the table says that 12 epochs "
        "took, or 150]"
    ),
]
KappaOption = Annotated[str, typer.Option(help="The condition number, a metric of the scores.")]
RangesOption = Annotated[
    str, typer.Option(help="Of mu and nu: scaled, or hnas: the numbers of the paper's code.")
]
AlsoOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=PATH: other scores of these architectures, such as a narrower network's, whose "
        "metrics are then called NAME/METRIC. May be given several times."
    ),
]


RecipeOption = Annotated[
    str | None,
    typer.Option(
        help="Evaluate by training, as `nasjax train` does it, not by the table. [in spaces "
        "without a table hnas_candidate, in mlp quick]"
    ),
]
PoolDataOption = Annotated[
    str | None,
    typer.Option(
        help="Images to score and to train with, as for `nasjax train`. [the recipe's; random "
        "where scores alone need them]"
    ),
]
EpochsOption = Annotated[int | None, typer.Option(help="Of each training. [the recipe's]")]

PoolSizeOption = Annotated[
    int | None, typer.Option(help="Without --scores: so many are drawn, and scored first. [500]")
]
PoolScoresOption = Annotated[
    Path | None, typer.Option(help=f"{SCORES_HELP} [--pool-size are drawn and scored]")
]

_POOL_SIZE = 500


class EvaluationOptions(NamedTuple):
    """What the command line says of evaluations; see the options."""

    table: Path | None
    accuracy: str
    seconds: float | None
    recipe: str | None
    data: str | None
    test_data: str | None
    epochs: int | None
    seed: int

    def recipe_of(self, space: str) -> str:
        """The recipe that candidates are trained by."""
        return self.recipe or ("quick" if space == "mlp" else "hnas_candidate")


def check_pool_size(scores: Path | None, pool_size: int | None) -> int:
    """The size of the pool that is drawn where there are no scores."""
    if scores is not None and pool_size is not None:
        raise InputError(
            f"--pool-size: is of a pool that is drawn, got {pool_size} together with --scores "
            f"{scores}. Leave one out."
        )
    return _POOL_SIZE if pool_size is None else pool_size


def check_evaluation(asked: EvaluationOptions, space: str) -> bool:
    """Whether candidates are trained, not looked up."""
    if asked.seconds is not None and not asked.seconds >= 0:
        raise InputError(f"--evaluation-seconds: must be at least 0, got {asked.seconds}.")
    is_trained = asked.recipe is not None or space != "nasbench201"
    if is_trained and asked.table is not None:
        raise InputError(
            "--table: evaluations are looked up or trained, got a table together with "
            f"{f'--recipe {asked.recipe}' if asked.recipe else 'a space that has none'}. Leave one "
            "out."
        )
    if not is_trained and (asked.epochs is not None or asked.test_data is not None):
        raise InputError("--epochs, --test-data: need a training, got none. Give --recipe.")
    return is_trained


def scored_data(asked: EvaluationOptions, space: str, *, is_trained: bool) -> str:
    """What a pool is scored with: the images that candidates are trained with, if they are."""
    from nasjax.training import get_recipe

    return asked.data or (get_recipe(asked.recipe_of(space)).data if is_trained else "random")


def score_drawn(scoring, pool_size: int, folder: Path, on_step) -> None:
    """Draws a pool and scores it, or goes on with it."""
    from nasjax.runs import request_sample, run_score

    request = request_sample(scoring.space_of(), pool_size, scoring.seed)
    run_score(scoring, request, folder, on_step=on_step)


def pool_evaluation(asked: EvaluationOptions, pool, loaded, out: Path, on_step):
    """``(evaluate, what it does)``: by training, or by the table that is loaded."""
    from nasjax.runs import table_evaluation, training_evaluation

    if loaded is None:
        return training_evaluation(
            *(pool, out / "evaluations"),
            recipe=asked.recipe_of(pool.space.name),
            data=asked.data,
            test_data=asked.test_data,
            epochs=asked.epochs,
            seed=asked.seed,
            on_report=lambda *report: on_step("training", *report),
        )
    evaluate = table_evaluation(pool, loaded, asked.accuracy, asked.seconds)
    return evaluate, {"table": asked.accuracy, "seconds": asked.seconds}


def print_selected(result, out: Path, files: str) -> None:
    """What a search in a pool selected, its accuracies, and what it cost."""
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
    print_files(result, out, files)


def load_pool(scores: Path, also: list[str] | None, space: str | None = None):
    """Scored architectures, with the other scores of ``--also``."""
    from nasjax.runs import load_scored_pool

    pool = load_scored_pool(scores, space=space)
    _tell_unlike("--scores", pool)
    for name, path in pairs("--also", also).items():
        option = f"--also {name}="
        other = load_scored_pool(path, space=pool.space.name, option=option)
        _tell_unlike(option, other)
        pool = pool.with_scores(name, other)
    return pool


def _tell_unlike(option: str, pool) -> None:
    if pool.num_unlike:
        console.print(
            f"{option}: {pool.num_unlike} rows have other scores than an equivalent architecture "
            "before them; the first row of each counts",
            soft_wrap=True,
        )


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` of an option that may be given several times."""
    found = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name or not value or name in found:
            raise InputError(f"{option}: must be NAME=PATH, each name once, got {text!r}.")
        found[name] = value
    return found


def load_table(table: Path | None, pool):
    """The accuracies that are given, or found; scores must be of their space."""
    table = table or default_table()
    if table is None or pool.space.name != "nasbench201":
        raise InputError(
            "--table: NAS-Bench-201 accuracies must be given, with scores of nasbench201, got "
            f"{table or 'none'} and {pool.space.name}."
        )
    return load_accuracies(table, pool.space.name, pool.row_genotypes)


def _loss(record) -> str:
    loss = record.get("loss", record.get("train_loss"))
    return "" if loss is None else f"loss {loss:.3f}"


def _best(record) -> str:
    best = record["best_value"]
    return "" if best is None else f"best {100 * best:.2f} %"


PHASES = {
    "scores": ("scoring", lambda record: ""),
    "training": ("training", _loss),
    "evaluations": ("evaluating", _best),
    "searches": ("searching", lambda record: ""),
    "rows": ("correlating", lambda record: f"{record['score']}, {record['form']}"),
}
"""What the bar of a phase is called, and what stands beside it."""
