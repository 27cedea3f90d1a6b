"""What the commands share: options, the console, Ctrl-C, the table that is not asked for."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()

DATA_VARIABLE = "NASJAX_DATA"
"""Environment variable that names a folder with benchmark tables."""
TABLE_NAME = "nb201_accuracies.csv.gz"

DataOption = Annotated[
    str, typer.Option(help="random, digits, fashion_mnist, npz:PATH (arrays x, y) or tfds:NAME.")
]
InitializationOption = Annotated[str, typer.Option(help="lecun, he, xavier or ntk.")]
SeedOption = Annotated[int, typer.Option(help="Of everything random.")]


def default_table() -> Path | None:
    """The accuracies of NAS-Bench-201 in the folder that ``NASJAX_DATA`` names, if any."""
    folder = os.environ.get(DATA_VARIABLE)
    path = Path(folder) / TABLE_NAME if folder else None
    return path if path and path.exists() else None


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
