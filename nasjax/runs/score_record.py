"""The record of a scoring run: a line for every network, added when it has been scored.

Every process has a file of its own, so that none waits for another.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from nasjax.errors import InputError
from nasjax.metrics import Scores
from nasjax.runs.folder import SharedFolder


class Unit(NamedTuple):
    """What is scored once: a class of architectures with one draw of weights.

    Attributes:
      architecture: the string of the canonical form.
      seed: of the weights.
    """

    architecture: str
    seed: int


class Recorded(NamedTuple):
    """What a record says of a unit.

    Attributes:
      scores: values, flags and warnings.
      seconds: that it took, compilation included.
    """

    scores: Scores
    seconds: float


class ScoreRecord:
    """The records of all processes in a folder, of which this process extends its own.

    A run stopped at any moment loses the network under way and no other: a line is on disk before
    the next network begins, and an unfinished last line is dropped. Metrics that are asked for
    later have lines of their own.
    """

    def __init__(self, folder: SharedFolder, process_id: int):
        """Takes an open folder.

        Args:
          folder: of the run.
          process_id: of this process.
        """
        self._folder = folder
        self._own = f"record-{process_id}.jsonl"

    def read(self) -> dict[Unit, Recorded]:
        """What all processes have scored up to now; of a metric scored twice, the first value.

        Raises:
          InputError: if a line is damaged.
        """
        found = {}
        for path in sorted(self._folder.path.glob("record-*.jsonl")):
            lines = self._folder.read_lines(path.name, is_own=path.name == self._own)
            for number, line in enumerate(lines, 1):
                unit, recorded = self._parse(f"line {number} of {path.name}", line)
                found[unit] = _merged(found[unit], recorded) if unit in found else recorded
        return found

    def append(self, unit: Unit, recorded: Recorded) -> None:
        """Adds a unit, on disk before this returns."""
        values, flags, warnings = recorded.scores
        self._folder.append_line(
            self._own,
            {
                **unit._asdict(),
                "values": values,
                "flags": flags,
                "warnings": warnings,
                "seconds": round(recorded.seconds, 3),
            },
        )

    def _parse(self, where: str, line) -> tuple[Unit, Recorded]:
        try:
            unit = Unit(str(line["architecture"]), int(line["seed"]))
            values = {
                str(name): math.nan if value is None else float(value)
                for name, value in line["values"].items()
            }
            scores = Scores(values, dict(line["flags"]), dict(line["warnings"]))
            recorded = Recorded(scores, float(line["seconds"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"--out {self._folder.path}: {where} must be a score, got none "
                f"({type(error).__name__}: {error}). Remove that line, or give another folder."
            ) from error
        return unit, recorded


def lacking(recorded: Recorded | None, metrics: Sequence[str]) -> tuple[str, ...]:
    """Those of the metrics that a unit has not been scored by."""
    values = {} if recorded is None else recorded.scores.values
    return tuple(name for name in metrics if name not in values)


def _merged(first: Recorded, other: Recorded) -> Recorded:
    """Scores of one unit by other metrics; what the first has stands."""
    added = lacking(first, tuple(other.scores.values))
    if not added:
        return first
    parts = []
    for ours, theirs in zip(first.scores, other.scores, strict=True):
        parts.append(ours | {name: theirs[name] for name in added if name in theirs})
    return Recorded(Scores(*parts), first.seconds + other.seconds)
