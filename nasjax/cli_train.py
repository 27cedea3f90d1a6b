"""The commands ``nasjax train`` and ``nasjax evaluate``."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from nasjax.cli_architecture import recognise
from nasjax.cli_common import SeedOption, TestDataOption, console, print_files
from nasjax.errors import InputError

DevicesOption = Annotated[
    int | None,
    typer.Option(help="Devices of this machine; on CPU so many are made of its cores. [all]"),
]


def train(
    architecture: Annotated[
        str | None,
        typer.Argument(
            help="As `nasjax show` takes it: a string, an index, a file, the folder of a run. None "
            "for recipes that draw one a step."
        ),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            help="quick, cifar10, cifar100, tiny_imagenet, imagenet, nasbench201, nasbench201_12, "
            "hnas_candidate, supernet, or a Python file that sets RECIPE."
        ),
    ] = "quick",
    space: Annotated[
        str | None, typer.Option(help="Search space. [told from the architecture]")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="fashion_mnist, digits, random, tfds:NAME, or npz:PATH with arrays x, y, x_test, "
            "y_test. [the recipe's]"
        ),
    ] = None,
    test_data: TestDataOption = None,
    image_size: Annotated[
        int | None, typer.Option(help="Pixels of a side. [the recipe's, or as stored]")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="[the recipe's]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Over all devices. [the recipe's]")] = None,
    channels: Annotated[int | None, typer.Option(help="Of the first stage. [the recipe's]")] = None,
    cells: Annotated[
        int | None, typer.Option(help="A stage, but in DARTS in all. [the recipe's]")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The first. [the recipe's]")] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            help="Part of the examples to train with that is kept apart and tested with instead. "
            "[the recipe's]"
        ),
    ] = None,
    num_parts: Annotated[
        int, typer.Option(help="Micro-batches of a device's part of a batch, to save memory.")
    ] = 1,
    compute_dtype: Annotated[
        str, typer.Option(help="float32 or, on accelerators, bfloat16.")
    ] = "float32",
    devices: DevicesOption = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            help="ADDRESS:PORT of process 0, where several processes train one network; auto where "
            "JAX finds out who is who. All see the folder of the run."
        ),
    ] = None,
    num_processes: Annotated[int | None, typer.Option(help="That train together.")] = None,
    process_id: Annotated[int | None, typer.Option(help="Of this process, from 0.")] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write the folder tensorboard of the run, too.")
    ] = False,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run. [runs/train-RECIPE-..., the options that differ]"),
    ] = None,
) -> None:
    """Train the network of one architecture, or a one-shot network, and test it every epoch."""
    _make_devices(devices)
    from nasjax.runs import TrainSettings, run_training
    from nasjax.training import join

    join(coordinator, num_processes, process_id)
    if architecture is not None:
        space, architecture = recognise("train", architecture, space)
    settings = TrainSettings(
        space=space or "nasbench201",
        architecture=architecture,
        recipe=recipe,
        data=data,
        test_data=test_data,
        image_size=image_size,
        epochs=epochs,
        batch_size=batch_size,
        channels=channels,
        cells=cells,
        learning_rate=learning_rate,
        held_out=held_out,
        num_parts=num_parts,
        compute_dtype=compute_dtype,
        seed=seed,
    )
    out = out or Path("runs") / settings.run_name()
    with _progress() as on_report, _stopping() as should_stop:
        result = run_training(
            settings,
            out,
            num_devices=devices,
            use_tensorboard=tensorboard,
            on_report=on_report,
            on_message=lambda text: console.print(f"nasjax: {text}", highlight=False),
            should_stop=should_stop,
        )
    _print_result(result, out)


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a training.")],
    data: Annotated[
        str | None, typer.Option(help="Other data, whose test examples are used. [the run's]")
    ] = None,
    devices: DevicesOption = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test the last checkpoint of a training again."""
    _make_devices(devices)
    from nasjax.runs import evaluate_run

    found = evaluate_run(run, data=data, num_devices=devices)
    if is_json:
        print(json.dumps(found._asdict()))
        return
    print(f"test accuracy {100 * found.accuracy:.2f} %, loss {found.loss:.4f}")
    resized = "" if found.resize == "none" else f", images resized ({found.resize})"
    print(f"step {found.step} of {found.num_steps}, {found.num_examples} examples{resized}")


def _make_devices(count: int | None) -> None:
    """On CPU as many devices as are asked; must come before JAX looks for devices."""
    if count is not None:
        if count < 1:
            raise InputError(f"--devices: must be at least 1, got {count}.")
        jax.config.update("jax_num_cpu_devices", count)


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C or SIGTERM asked to stop; a second one stops at once."""
    asked = []

    def ask(signum, frame):
        if asked:
            raise KeyboardInterrupt
        asked.append(signum)
        told = "nasjax: stopping at the next report (within 20 steps); once more stops at once"
        print(told, file=sys.stderr, flush=True)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in ours:
        signal.signal(number, ask)
    try:
        yield lambda: bool(asked)
    finally:
        for number in ours:
            signal.signal(number, before[number])


@contextmanager
def _progress() -> Iterator:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("compiling", total=None, rate="")

        def on_report(step, num_steps, record):
            progress.update(task, completed=step, total=num_steps)
            if not record:
                return
            if record["kind"] == "epoch":
                progress.console.print(
                    f"epoch {record['epoch']}: train loss {record['train_loss']:.4f}, accuracy "
                    f"{100 * record['train_accuracy']:.2f} %; test loss {record['test_loss']:.4f}, "
                    f"accuracy {100 * record['test_accuracy']:.2f} %",
                    highlight=False,
                    soft_wrap=True,
                )
                return
            rate = record.get("images_per_s")
            text = f"loss {record['loss']:.4f}, accuracy {100 * record['accuracy']:.1f} %"
            told = "" if rate is None else f"{rate:.0f} images/s"
            progress.update(task, description=text, rate=told)

        yield on_report


def _print_result(result, out: Path) -> None:
    record = result.record
    if record["architecture"] is not None:
        print(record["architecture"])
    rows = Table("quantity", "value", show_header=False, box=None)
    if "parameters" in record:
        rows.add_row("parameters", f"{record['parameters'] / 1e6:.6g} million")
        rows.add_row("multiply-adds of an image", f"{record['multiply_adds'] / 1e6:.6g} million")
    for part in ("train", "test"):
        rows.add_row(f"examples to {part} with", str(record["data"][f"num_{part}"]))
    rows.add_row("train accuracy (loss)", _accuracy(record, "train"))
    rows.add_row("test accuracy (loss)", _accuracy(record, "test"))
    rows.add_row("time, with compilation", f"{record['seconds']:.0f} s")
    console.print(rows)
    files = "result.json, history.jsonl, curves.svg, curves.png, checkpoints"
    print_files(result, out, files)


def _accuracy(record, part: str) -> str:
    return f"{100 * record[f'{part}_accuracy']:.2f} % ({record[f'{part}_loss']:.4f})"
