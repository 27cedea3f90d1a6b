"""The command ``nasjax search darts``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nasjax.cli_common import DataOption, SeedOption, console, print_files, step_progress


def search_darts(
    space: Annotated[str, typer.Option(help="Search space: mlp.")] = "mlp",
    algorithm: Annotated[
        str, typer.Option(help="darts, or random: random search with weight sharing.")
    ] = "darts",
    order: Annotated[
        int,
        typer.Option(
            help="Of the architecture's gradient in darts: 1, or 2, which looks a step of the "
            "weights ahead and costs 2.5 times as much."
        ),
    ] = 1,
    data: DataOption = "fashion_mnist",
    labels: Annotated[str, typer.Option(help="true, or random: drawn uniformly once.")] = "true",
    num_examples: Annotated[
        int | None, typer.Option(help="The first so many of the data. [all]")
    ] = None,
    image_size: Annotated[int, typer.Option(help="Height and width in pixels.")] = 28,
    channels: Annotated[int, typer.Option(help="Of the images; 1 makes colours grey.")] = 1,
    held_out: Annotated[
        float,
        typer.Option(help="The part of the examples that the architecture is found on."),
    ] = 0.5,
    depth: Annotated[int, typer.Option(help="Layers of weights, L.")] = 10,
    width: Annotated[int, typer.Option(help="Of the hidden layers, m.")] = 1024,
    epochs: Annotated[int, typer.Option(help="Passes over the weights' examples.")] = 50,
    batch_size: Annotated[int, typer.Option(help="Images a step, of either part.")] = 64,
    seed: SeedOption = 0,
    num_seeds: Annotated[
        int, typer.Option(help="Runs with the seeds from --seed on, each in OUT/seed-N.")
    ] = 1,
    initialization: Annotated[
        str, typer.Option(help="theory, he, lecun, xavier or ntk.")
    ] = "theory",
    learning_rate: Annotated[float, typer.Option(help="Of the weights, the first.")] = 0.025,
    architecture_learning_rate: Annotated[float, typer.Option(help="Of the architecture.")] = 3e-4,
    architecture_weight_decay: Annotated[
        float, typer.Option(help="Of the architecture; it draws skips towards 0.")
    ] = 1e-3,
    num_candidates: Annotated[
        int, typer.Option(help="With random: architectures compared at the end.")
    ] = 100,
    candidate_examples: Annotated[
        int, typer.Option(help="With random: held-out images to compare them on.")
    ] = 1024,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. [runs/darts-SPACE-DATA-seedSEED, the options that differ from "
            "the defaults between]"
        ),
    ] = None,
) -> None:
    """Train a network of all activations and skips, and read off the best (Eigen-NAS sec. 5.1)."""
    from nasjax.runs import DartsSettings, run_darts, run_darts_seeds

    settings = DartsSettings(
        space=space,
        algorithm=algorithm,
        order=order,
        data=data,
        labels=labels,
        num_examples=num_examples,
        image_size=image_size,
        channels=channels,
        held_out=held_out,
        depth=depth,
        width=width,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        initialization=initialization,
        learning_rate=learning_rate,
        architecture_learning_rate=architecture_learning_rate,
        architecture_weight_decay=architecture_weight_decay,
        num_candidates=num_candidates,
        candidate_examples=candidate_examples,
    )
    name = settings.run_name() + ("" if num_seeds == 1 else "-seeds")
    out = out or Path("runs") / name
    with step_progress(_PHASES, "compiling ...") as on_step:
        if num_seeds == 1:
            result = run_darts(settings, out, on_step=on_step)
        else:
            result = run_darts_seeds(settings, out, num_seeds=num_seeds, on_step=on_step)
    if num_seeds == 1:
        _print(result, out)
    else:
        _print_seeds(result, out)


def _losses(record) -> str:
    parts = [f"train {float(record['train_loss']):.3f}"] if "train_loss" in record else []
    if "validation_loss" in record:
        accuracy = 100 * float(record["validation_accuracy"])
        parts.append(f"held out {float(record['validation_loss']):.3f}, {accuracy:.0f} %")
    return "  ".join(parts)


_PHASES = {
    "search": ("searching", _losses),
    "weights": ("training weights", _losses),
    "candidates": ("comparing", _losses),
}
"""What the bar of a phase is called, and what stands beside it."""


def _print(result, out: Path) -> None:
    record = result.record
    search, chosen = record["search"], record["probabilities"]
    print(record["architecture"])
    if record["algorithm"] == "darts":
        rows = Table("layer", *record["activation_names"], "alpha", box=None)
        for layer, values in enumerate(chosen["activations"], 1):
            alpha = f"{chosen['skips'][layer - 2]:.3f}" if layer > 1 else ""
            rows.add_row(str(layer), *(f"{value:.3f}" for value in values), alpha)
        console.print(rows)
    last = search["last_epoch"]
    rows = Table("quantity", "value", show_header=False, box=None)
    rows.add_row("steps (failed)", f"{search['num_steps']} ({search['num_failed']})")
    if "num_candidates" in search:
        failed = search["num_candidates_failed"]
        rows.add_row("candidates (failed)", f"{search['num_candidates']} ({failed})")
        rows.add_row("its held-out accuracy", f"{100 * search['best_validation_accuracy']:.1f} %")
    if "validation_accuracy" in last:
        accuracy = f"{100 * last['validation_accuracy']:.1f} %"
        rows.add_row("held-out accuracy of the mixture", accuracy)
    rows.add_row("time, with compilation", f"{search['seconds']:.1f} s")
    console.print(rows)
    files = "architecture.json, history.jsonl, cells.svg, cells.png, choices.svg, choices.png"
    logits = ", logits.npz" if record["algorithm"] == "darts" else ""
    print_files(result, out, files + logits)


def _print_seeds(result, out: Path) -> None:
    summary = result.summary
    for run in summary["runs"]:
        print(f"seed {run['seed']}: {run['architecture']}")
    console.print(f"how many of {summary['num_seeds']} runs chose it")
    rows = Table("layer", *summary["num_won"], "skip", box=None)
    for record in summary["layers"]:
        counts = (str(one["num_won"]) for one in record["activations"].values())
        skip = str(record["skip"]["num_kept"]) if "skip" in record else ""
        rows.add_row(str(record["layer"]), *counts, skip)
    console.print(rows)
    print_files(result, out, "summary.json, choices.svg, choices.png, seed-N/architecture.json ...")
