"""What the commands share: options, the console, the table of accuracies that is not asked for."""

import os
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
