"""An architecture as users name it on the command line: which space, which string."""

import json
import os
import re
from pathlib import Path

from nasjax.errors import InputError, unknown_name
from nasjax.spaces import SPACES
from nasjax.spaces.mlp import ACTIVATION_NAMES
from nasjax.spaces.nasbench1shot1 import NUM_PARENTS
from nasjax.spaces.nasbench101 import OPERATIONS


def recognise(where: str, architecture: str, space: str | None) -> tuple[str, str]:
    """The space and the string of what the user named.

    Args:
      where: the command, for messages.
      architecture: a string, an index, or the path of a file or run that holds one.
      space: its name, or None where it is to be told.

    Returns:
      The name of the space and the text of the architecture, which is not parsed.

    Raises:
      InputError: if the space is unknown or there is no such file.
    """
    if space is not None and space not in SPACES:
        raise unknown_name("--space", "space", space, SPACES)
    text = architecture.strip()
    if os.path.exists(text) or re.fullmatch(r"[\w./~-]+\.\w+", text):
        text = _read_architecture(where, Path(text))
    if text.startswith("{"):
        try:
            record = json.loads(text)
        except ValueError:
            record = {}  # the space says what is wrong with the text
        if "architecture" in record:
            return space or record.get("space", "nasbench201"), str(record["architecture"])
    told = "darts" if text.startswith("{") or "Genotype" in text else "nasbench201"
    first = text.split("|")[0]
    if first.split("+")[0].strip() in ACTIVATION_NAMES:
        told = "mlp"
    if re.match(r"[01.]+[\s,]+input\b", text):
        told = "nasbench101"
    if first.split("~")[0] in OPERATIONS:
        told = _told_by_parents(text)
    if space == "darts" and text.isdigit():
        raise InputError(f"{where}: only NAS-Bench-201 has indices, got {text} for --space darts.")
    return space or told, text


def _told_by_parents(text: str) -> str:
    """The NAS-Bench-1Shot1 space of a cell: numbers of nodes and of parents differ."""
    nodes = text.split("|")
    counts = tuple(node.count(",") + 1 for node in nodes)
    likely = [name for name, parents in NUM_PARENTS.items() if len(parents) == len(nodes)]
    fitting = [name for name in likely if NUM_PARENTS[name] == counts]
    return (fitting or likely or list(NUM_PARENTS))[0]


def _read_architecture(where: str, path: Path) -> str:
    """The text of a file, or of the ``architecture.json`` in a run's folder."""
    file = path / "architecture.json" if path.is_dir() else path
    wanted = f"{where}: {path} must be a run's folder or a text file with an architecture"
    if path.is_dir() and not file.exists():
        raise InputError(f"{wanted}, but there is no architecture.json in it. Has the run ended?")
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InputError(f"{wanted}, got {error.strerror}. Give another, or a string.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{wanted}, but it holds no text. Give another, or a string.") from error
