"""What the commands share: options, the console, bars, Ctrl-C, the table that is not asked for."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

console = Console()

DATA_VARIABLE = "NASJAX_DATA"
"""Environment variable that names a folder with benchmark tables."""
TABLE_NAME = "nb201_accuracies.csv.gz"
_NATS_SUFFIX = ".pbz2"

DataOption = Annotated[
    str, typer.Option(help="random, digits, fashion_mnist, npz:PATH (arrays x, y) or tfds:NAME.")
]
TestDataOption = Annotated[
    str | None, typer.Option(help="With npz:PATH: npz:PATH of the examples to test with.")
]
InitializationOption = Annotated[str, typer.Option(help="lecun, he, xavier or ntk.")]
SeedOption = Annotated[int, typer.Option(help="Of everything random.")]


def default_table() -> Path | None:
    """The accuracies of NAS-Bench-201 in the folder that ``NASJAX_DATA`` names, if any."""
    folder = os.environ.get(DATA_VARIABLE)
    path = Path(folder) / TABLE_NAME if folder else None
    return path if path and path.exists() else None


def load_accuracies(path: Path, space: str, genotypes):
    """The accuracies of NAS-Bench-201 in a CSV file, or those of some cells in NATS-Bench's own."""
    from nasjax.evaluation import load_nasbench201_table, load_nats_bench

    is_nats = path.is_dir() or path.suffix == _NATS_SUFFIX
    if is_nats and space == "nasbench201":
        return load_nats_bench(path, genotypes)
    return load_nasbench201_table(path)


@contextmanager
def stoppable(on_step: Callable[..., None]) -> Iterator[Callable[..., None]]:
    """The ``on_step`` of a run that Ctrl-C ends at the next step at the latest.

    The exception of Ctrl-C is lost where it falls into a callback of the interpreter, such as JAX's
    at garbage collections.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or another's
        yield on_step
        return
    is_asked = False

    def interrupt(signum, frame):
        nonlocal is_asked
        is_asked = True
        signal.default_int_handler(signum, frame)

    def checked(*step):
        if is_asked:
            raise KeyboardInterrupt
        on_step(*step)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield checked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def step_progress(
    phases: Mapping[str, tuple[str, Callable[[Any], str]]], waiting: str = ""
) -> Iterator[Callable[..., None]]:
    """Yields the ``on_step`` that shows bars, from the first step on: errors may come before.

    Args:
      phases: by name: what its bar is called, and what of a record stands beside it.
      waiting: stands there until the first record.
    """
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
        console=console,
    )
    tasks = {}

    def on_step(phase, step, num_steps, record):
        title, numbers = phases[phase]
        progress.start()
        if phase not in tasks:
            tasks[phase] = progress.add_task(
                title, total=num_steps, completed=step, numbers=waiting
            )
            return
        progress.update(tasks[phase], completed=step, numbers=numbers(record))

    try:
        with stoppable(on_step) as checked:
            yield checked
    finally:
        progress.stop()


def print_files(result, out: Path, files: str) -> None:
    """Prints where a run's files are, and whether this call ran anything."""
    if result.num_run:
        print(f"written to {out}: {files}")
    else:
        print(f"finished before, nothing was run again; in {out}: {files}")
