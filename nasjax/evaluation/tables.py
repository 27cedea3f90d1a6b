"""Published accuracies of NAS-Bench-201, read from a table on disk."""

import csv
import dataclasses
import functools
import gzip
import io
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int32

from nasjax.errors import InputError, unknown_name
from nasjax.spaces import nasbench201
from nasjax.spaces.base import Genotype, excerpt

_WHERE = "load_nasbench201_table"
_ACCURACY_COLUMNS = {
    "cifar10_test": "c10_test200_mean",
    "cifar100_test": "c100_test200_mean",
    "imagenet16_test": "in16_test200_mean",
    "cifar10_validation_12": "c10_val12",
}
_OTHER_COLUMNS = {
    "cifar10_validation_200": "c10_val200",
    "cifar10_test_12": "c10_test12",
    "cifar100_test_12": "c100_test12",
    "imagenet16_test_12": "in16_test12",
    "cifar100_validation_12": "c100_val12",
    "imagenet16_validation_12": "in16_val12",
}
_PARAMS_COLUMN = "c10_params_M"
_SECONDS_COLUMN = "c10_seconds12"
_BEST = (
    ("cifar10_test", 6111, 0.943733),
    ("cifar100_test", 9930, 0.735133),
    ("imagenet16_test", 857, 0.473111),
)
_TOLERANCE = 5e-4
_COLUMNS = ("arch", *_ACCURACY_COLUMNS.values(), _PARAMS_COLUMN)


class Nasbench201Entry(NamedTuple):
    """What the benchmark says about one cell.

    Attributes:
      cifar10_test: test accuracy after 200 epochs, mean over seeds, a fraction.
      cifar100_test: the same on CIFAR-100.
      imagenet16_test: the same on ImageNet16-120.
      cifar10_validation_12: CIFAR-10 validation accuracy after 12 epochs, a fraction.
      params_millions: parameters of the CIFAR-10 network, in millions.
      cifar10_rank: 1 for the best CIFAR-10 test accuracy of the table; equal cells share a rank.
    """

    cifar10_test: float
    cifar100_test: float
    imagenet16_test: float
    cifar10_validation_12: float
    params_millions: float
    cifar10_rank: int


@dataclasses.dataclass(frozen=True, eq=False)
class Nasbench201Table:
    """The table by columns, one entry a cell in the order of the file; accuracies are fractions.

    Attributes:
      genotypes: ``[cells, 6]`` int32.
      cifar10_test: ``[cells]``; see ``Nasbench201Entry`` for this and the next four.
      cifar100_test: ``[cells]``.
      imagenet16_test: ``[cells]``.
      cifar10_validation_12: ``[cells]``.
      params_millions: ``[cells]``.
      others: accuracies of other data and epochs, where the file has them: ``[cells]`` by
        ``DATASET_SET_EPOCHS``, for example ``cifar100_validation_12``.
      seconds_12: ``[cells]``, what 12 epochs on CIFAR-10 and their validation took; None where the
        file does not say.
    """

    genotypes: Int32[np.ndarray, "cells edges"]
    cifar10_test: Float[np.ndarray, " cells"]
    cifar100_test: Float[np.ndarray, " cells"]
    imagenet16_test: Float[np.ndarray, " cells"]
    cifar10_validation_12: Float[np.ndarray, " cells"]
    params_millions: Float[np.ndarray, " cells"]
    others: Mapping[str, Float[np.ndarray, " cells"]] = dataclasses.field(default_factory=dict)
    seconds_12: Float[np.ndarray, " cells"] | None = None

    @functools.cached_property
    def _rows(self) -> dict[tuple[int, ...], int]:
        return {tuple(cell): row for row, cell in enumerate(self.genotypes.tolist())}

    def lookup(self, genotype: Genotype) -> Nasbench201Entry:
        """The entry of one cell.

        Args:
          genotype: ``[6]``. Isomorphic cells have entries of their own, as they were trained
            apart.

        Returns:
          The entry.

        Raises:
          InputError: if the table has no such cell.
        """
        text = nasbench201.to_string(genotype)
        row = self._rows.get(tuple(np.asarray(genotype).tolist()))
        if row is None:
            raise InputError(
                f"Nasbench201Table.lookup: `genotype` must be in the table of {len(self._rows)} "
                f"cells, got {text}. Load the table of all {nasbench201.SIZE:,} cells."
            )
        return Nasbench201Entry(
            *(float(getattr(self, name)[row]) for name in _ACCURACY_COLUMNS),
            params_millions=float(self.params_millions[row]),
            cifar10_rank=1 + int((self.cifar10_test > self.cifar10_test[row]).sum()),
        )

    def accuracies(self) -> dict[str, Float[np.ndarray, " cells"]]:
        """Every accuracy by name, those of ``Nasbench201Entry`` first."""
        return {name: getattr(self, name) for name in _ACCURACY_COLUMNS} | dict(self.others)

    def accuracy_of(
        self, name: str, genotypes: Int32[np.ndarray, "rows edges"]
    ) -> Float[np.ndarray, " rows"]:
        """An accuracy of some cells.

        Args:
          name: a key of ``accuracies()``.
          genotypes: ``[rows, 6]``.

        Returns:
          Fractions; NaN for cells that the table lacks.

        Raises:
          InputError: if the table has no such accuracy.
        """
        accuracies = self.accuracies()
        if name not in accuracies:
            raise unknown_name("the table", "accuracy", name, accuracies)
        return self._at(accuracies[name], genotypes)

    def seconds_of(
        self, genotypes: Int32[np.ndarray, "rows edges"]
    ) -> Float[np.ndarray, " rows"] | None:
        """``seconds_12`` of some cells, ``[rows, 6]``; NaN for those that the table lacks."""
        return None if self.seconds_12 is None else self._at(self.seconds_12, genotypes)

    def _at(self, column: np.ndarray, genotypes) -> np.ndarray:
        rows = [self._rows.get(tuple(cell), -1) for cell in np.asarray(genotypes).tolist()]
        return np.append(column, np.nan)[rows]

    def check(self, where: str) -> None:
        """Checks a table of all cells against what is published about the benchmark.

        Args:
          where: the file, for the message.

        Raises:
          InputError: if all 15,625 cells are there, and another than the known one is the best, or
            its accuracy is another: rows and strings do not belong together.
        """
        if len(self.genotypes) != nasbench201.SIZE:
            return
        for name, index, accuracy in _BEST:
            column = getattr(self, name)
            best = nasbench201.official_index(self.genotypes[column.argmax()])
            if best != index or abs(column.max() - accuracy) > _TOLERANCE:
                raise InputError(
                    f"{where}: the best cell by {name} must be {index} with {100 * accuracy:.2f} "
                    f"%, got {best} with {100 * column.max():.2f} %. Are rows in the order of "
                    "their strings?"
                )


def load_nasbench201_table(path: str | Path) -> Nasbench201Table:
    """Reads accuracies of NAS-Bench-201 from a CSV file, plain or gzipped.

    Args:
      path: a file with a header and the columns ``arch`` (the benchmark's string),
        ``c10_test200_mean``, ``c100_test200_mean``, ``in16_test200_mean``, ``c10_val12`` (percent)
        and ``c10_params_M`` (millions). Read where they are there: ``c10_val200``, ``c10_test12``,
        ``c100_test12``, ``in16_test12``, ``c100_val12``, ``in16_val12`` (percent),
        ``c10_seconds12`` (of 12 epochs and their validation), and ``index``, which must be the
        official one. Other columns are ignored, and rows may be missing.

    Returns:
      The table. 15,625 rows take about half a second.

    Raises:
      InputError: if the file is missing, is no such table, or is damaged, with the line, and for a
        table of all cells whose best ones are not those of the benchmark.
    """
    path = Path(path)
    reader = csv.reader(io.StringIO(_read_text(path), newline=""))
    try:
        header = next(reader, [])
        missing = [column for column in _COLUMNS if column not in header]
        if missing:
            raise InputError(
                f"{_WHERE}: {path} must have the columns {', '.join(_COLUMNS)}, got no "
                f"{', '.join(missing)}. Is it the NAS-Bench-201 table?"
            )
        others = {name: col for name, col in _OTHER_COLUMNS.items() if col in header}
        has_seconds = _SECONDS_COLUMN in header
        read = (*_COLUMNS, *others.values(), *((_SECONDS_COLUMN,) if has_seconds else ()))
        places = [header.index(column) for column in read]
        index_place = header.index("index") if "index" in header else None
        first_line: dict[tuple, int] = {}
        values = []
        for record in reader:
            line = f"{_WHERE}: {path}, line {reader.line_num}"
            if len(record) != len(header):
                raise InputError(
                    f"{line}: a row must have {len(header)} columns, got {len(record)}. "
                    "The file is damaged or truncated."
                )
            arch, *numbers = (record[place] for place in places)
            cell = _read_cell(line, arch)
            if cell in first_line:
                raise InputError(
                    f"{line}: every cell must have one row, got {arch} again (first on line "
                    f"{first_line[cell]})."
                )
            first_line[cell] = reader.line_num
            if index_place is not None:
                _check_index(line, cell, record[index_place])
            values.append(
                [_read_number(line, *pair) for pair in zip(read[1:], numbers, strict=True)]
            )
    except csv.Error as error:
        raise InputError(f"{_WHERE}: {path}, line {reader.line_num}: not CSV ({error}).") from error
    if not values:
        raise InputError(f"{_WHERE}: {path} must have rows, got only a header.")
    columns = np.array(values).T
    if columns[0].max() <= 1.0:
        raise InputError(
            f"{_WHERE}: {path}: {_COLUMNS[1]} must be in percent, got at most {columns[0].max()}. "
            "Multiply fractions by 100."
        )
    num_required = len(_COLUMNS) - 1
    other_columns = columns[num_required : num_required + len(others)] / 100.0
    table = Nasbench201Table(
        np.array(list(first_line), np.int32),
        *(columns[: num_required - 1] / 100.0),
        params_millions=columns[num_required - 1],
        others=dict(zip(others, other_columns, strict=True)),
        seconds_12=columns[-1] if has_seconds else None,
    )
    table.check(f"{_WHERE}: {path}")
    return table


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{_WHERE}: `path` must be a readable file, got {path} ({error.strerror}). Give the "
            "NAS-Bench-201 table (csv or csv.gz) by --table, or its folder by NASJAX_DATA."
        ) from error
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(
            f"{_WHERE}: {path} must be a CSV file, plain or gzipped, got a damaged one ({error}). "
            "Fetch it again."
        ) from error


def _read_cell(line: str, arch: str) -> tuple[int, ...]:
    try:
        return tuple(nasbench201.from_string(arch).tolist())
    except InputError as error:
        raise InputError(f"{line}: `arch`: {error}") from error


def _check_index(line: str, cell: tuple[int, ...], text: str) -> None:
    index = nasbench201.official_index(np.array(cell, np.int32))
    if text.strip() != str(index):
        raise InputError(
            f"{line}: index must be {index}, the cell's official one, got {excerpt(text)}."
        )


def _read_number(line: str, column: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    is_free = column in (_PARAMS_COLUMN, _SECONDS_COLUMN)
    largest = math.inf if is_free else 100.0
    if not (0.0 <= number <= largest) or math.isinf(number):
        wanted = "a number >= 0" if is_free else "a percentage, 0 to 100"
        raise InputError(f"{line}: {column} must be {wanted}, got {excerpt(text)}.")
    return number
