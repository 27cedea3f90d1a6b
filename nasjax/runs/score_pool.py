"""A pool of scored architectures out of the files of ``nasjax score``, or of one's own."""

import csv
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Int32

from nasjax.errors import InputError, unknown_name
from nasjax.metrics import METRICS
from nasjax.objectives import normal_scores
from nasjax.runs.folder import read_json_object
from nasjax.spaces import Space, get_space, space_of

_ARCHITECTURE, _TEXTS = "architecture", ("index", "canonical", "flags", "warnings")
_SCORES, _METADATA = "scores.csv", "metadata.json"
_OF_SEEDS = ("_se", "_failed")
_ROUNDING = 1e-2
"""Scores of equivalent architectures may differ by so much: GraSP in float32 does."""
_EMPTY = ("", "nan", "none", "null")


class ScoredPool(NamedTuple):
    """Distinct architectures and their scores.

    Attributes:
      space: of the architectures.
      genotypes: ``[pool, ...]``, one of a class of equivalent ones, in the order of the file.
      scores: ``[pool]`` by metric; NaN where it failed.
      seconds: that scoring took; NaN where the file does not say.
      source: the file.
      sha256: of its content.
      row_genotypes: ``[rows, ...]``, of all rows of the file, equivalent ones apart.
      row_places: ``[rows]``, where in the pool a row's equivalent is.
      num_unlike: rows whose scores are not those of the equivalent row before them, which count.
    """

    space: Space
    genotypes: Int32[np.ndarray, "pool ..."]
    scores: Mapping[str, Float[np.ndarray, " pool"]]
    seconds: float
    source: str
    sha256: str
    row_genotypes: Int32[np.ndarray, "rows ..."]
    row_places: Int[np.ndarray, " rows"]
    num_unlike: int = 0

    def score_of(self, metric: str) -> Float[np.ndarray, " pool"]:
        """The scores of a metric.

        Raises:
          InputError: if the pool has not got it.
        """
        if metric not in self.scores:
            raise unknown_name(self.source, "metric", metric, self.scores)
        return self.scores[metric]

    def is_higher_better(self, metric: str) -> bool:
        """The direction of a metric; of one that nasjax does not know, higher."""
        name = metric.rpartition("/")[2]
        return name not in METRICS or METRICS[name].direction == "higher"

    def features(self, metrics: Sequence[str]) -> Float[np.ndarray, "pool metrics"]:
        """The normal scores of metrics, higher is better; see ``objectives.normal_scores``.

        Raises:
          InputError: if the pool lacks one, or no architecture has all of them.
        """
        scores = {name: self.score_of(name) for name in metrics}
        found = normal_scores(scores, {name: self.is_higher_better(name) for name in metrics})
        if not np.isfinite(found).any():
            raise InputError(
                f"{self.source}: an architecture must have all of {', '.join(metrics)}, got none."
            )
        return found

    def part(self, places: Int[np.ndarray, " part"]) -> "ScoredPool":
        """The architectures at some places, with their part of the cost of scores."""
        place_of = np.full(len(self.genotypes), -1)
        place_of[places] = np.arange(len(places))
        row_places = place_of[self.row_places]
        return self._replace(
            row_genotypes=self.row_genotypes[row_places >= 0],
            row_places=row_places[row_places >= 0],
            genotypes=self.genotypes[places],
            scores={name: values[places] for name, values in self.scores.items()},
            seconds=self.seconds * len(places) / len(self.genotypes),
        )

    def with_scores(self, name: str, other: "ScoredPool") -> "ScoredPool":
        """The pool with other scores of its architectures, such as a narrower network's.

        Args:
          name: a metric ``m`` of the other pool becomes ``name/m``.
          other: may have other architectures besides; those it lacks have no score (NaN).

        Returns:
          The same architectures with more scores; the cost of both.

        Raises:
          InputError: if the name is none, or has been given, or the spaces differ.
        """
        is_taken = any(metric.startswith(f"{name}/") for metric in self.scores)
        if not name or set(name) & set("/,+=") or is_taken:
            raise InputError(
                f"--also: must have a name of its own for each file, without any of / , + =, got "
                f"{name!r}."
            )
        if other.space.name != self.space.name:
            raise InputError(
                f"--also {name}={other.source}: must be of {self.space.name}, got scores of "
                f"{other.space.name}."
            )
        place_of = {_class(other.space, one): place for place, one in enumerate(other.genotypes)}
        places = np.array([place_of.get(_class(self.space, one), -1) for one in self.genotypes])
        added = {
            f"{name}/{metric}": np.where(places < 0, math.nan, values[places])
            for metric, values in other.scores.items()
        }
        return self._replace(
            scores={**self.scores, **added},
            seconds=self.seconds + other.seconds,
            source=f"{self.source}, {name}={other.source}",
            sha256=hashlib.sha256(f"{self.sha256}{name}={other.sha256}".encode()).hexdigest(),
        )


def load_scored_pool(
    path: str | Path, *, space: str | None = None, option: str = "--scores"
) -> ScoredPool:
    """Reads scores.

    Args:
      path: a folder of ``nasjax score``, its ``scores.csv``, or a CSV file of one's own, with a
        column ``architecture`` of strings or indices and a column of numbers for each metric; an
        empty cell or ``nan`` is a failure, and so is what failed with any seed of several.
      space: the search space; None takes that of the folder, or ``nasbench201``.
      option: what named the path, for messages.

    Returns:
      The pool. Of equivalent architectures the first is kept. 15,625 rows take a few seconds.

    Raises:
      InputError: if there is no such file, it holds no scores, or a row is damaged, with the line.
    """
    path = Path(path)
    file = path / _SCORES if path.is_dir() else path
    metadata = read_json_object(file.parent / _METADATA) if file.name == _SCORES else {}
    held = metadata.get("settings", {}).get("space")
    if space is not None and held is not None and held != space:
        raise InputError(f"{option} {path}: must be of {space}, got scores of {held}.")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"{option} {path}: must be a folder of `nasjax score` that has ended, or a CSV file, "
            f"got {error.strerror or error}."
        ) from error
    name = space or held or "nasbench201"
    chosen = get_space(name)
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{option} {file}: must be a CSV file, got {error}.") from error
    header = rows[0] if rows else []
    others = {_ARCHITECTURE, *_TEXTS, *(f"{name}{end}" for name in header for end in _OF_SEEDS)}
    names = [name for name in header if name not in others]
    if _ARCHITECTURE not in header or not names or len(rows) < 2:
        raise InputError(
            f"{option} {file}: must have a column {_ARCHITECTURE!r}, columns of metrics, and rows, "
            f"got the columns {', '.join(header) or 'none'} and {max(len(rows) - 1, 0)} rows."
        )
    chosen = space_of(name, rows[1][header.index(_ARCHITECTURE)] if rows[1] else "")
    place_of: dict[tuple, int] = {}
    genotypes, values, row_genotypes, row_places, num_unlike = [], [], [], [], 0
    for line, row in enumerate(rows[1:], 2):
        where = f"{option} {file}, line {line}"
        if len(row) != len(header):
            raise InputError(f"{where}: must have {len(header)} cells, got {len(row)}.")
        record = dict(zip(header, row, strict=True))
        try:
            genotype = np.asarray(chosen.from_string(record[_ARCHITECTURE]), np.int32)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        canonical = _class(chosen, genotype)
        row_genotypes.append(genotype)
        row_places.append(place_of.setdefault(canonical, len(genotypes)))
        found = [_score(where, name, record) for name in names]
        if len(genotypes) == row_places[-1]:
            genotypes.append(genotype)
            values.append(found)
        first = values[row_places[-1]]
        num_unlike += not np.allclose(found, first, rtol=_ROUNDING, atol=0, equal_nan=True)
    return ScoredPool(
        chosen,
        np.stack(genotypes),
        dict(zip(names, np.array(values, np.float64).T, strict=True)),
        float(metadata.get("seconds", {}).get("scoring", math.nan)),
        str(file),
        hashlib.sha256(content).hexdigest(),
        np.stack(row_genotypes),
        np.array(row_places),
        num_unlike,
    )


def _class(space: Space, genotype) -> tuple[int, ...]:
    """What equivalent architectures have in common."""
    return tuple(np.asarray(space.canonical(genotype)).ravel().tolist())


def _score(where: str, name: str, record: Mapping[str, str]) -> float:
    has_failed = _number(where, name, record.get(f"{name}_failed", "0")) > 0
    return math.nan if has_failed else _number(where, name, record[name])


def _number(where: str, name: str, text: str) -> float:
    if text.strip().lower() in _EMPTY:
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"{where}: {name} must be a number, or empty where it failed, got {text[:40]!r}."
        ) from None
