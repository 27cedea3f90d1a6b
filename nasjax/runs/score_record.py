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
    the next network begins, and an unfinished last line is dropped.
    """

    def __init__(self, folder: SharedFolder, metrics: Sequence[str], process_id: int):
        """Takes an open folder.

        Args:
          folder: of the run.
          metrics: that every line holds.
          process_id: of this process.
        """
        self._folder = folder
        self._metrics = tuple(metrics)
        self._own = f"record-{process_id}.jsonl"

    def read(self) -> dict[Unit, Recorded]:
        """What all processes have scored up to now.

        Raises:
          InputError: if a line is damaged, or of a run with other metrics.
        """
        found = {}
        for path in sorted(self._folder.path.glob("record-*.jsonl")):
            lines = self._folder.read_lines(path.name, is_own=path.name == self._own)
            for number, line in enumerate(lines, 1):
                unit, recorded = self._parse(f"line {number} of {path.name}", line)
                found.setdefault(unit, recorded)
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
        if set(values) != set(self._metrics):
            raise InputError(
                f"--out {self._folder.path}: {where} must hold the metrics "
                f"{', '.join(self._metrics)}, got {', '.join(values)}. It is of another run: "
                "remove the line, or give another folder."
            )
        return unit, recorded
