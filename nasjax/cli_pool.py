"""What the commands over scored pools share: options, loading, bars."""

from pathlib import Path
from typing import Annotated

import typer

from nasjax.cli_common import (
    DATA_VARIABLE,
    TABLE_NAME,
    console,
    default_table,
    load_accuracies,
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
