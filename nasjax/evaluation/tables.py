"""Published accuracies of NAS-Bench-201, read from a table on disk."""

import csv
import dataclasses
import functools
import gzip
import io
import math
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int32

from nasjax.errors import InputError
from nasjax.spaces import nasbench201
from nasjax.spaces.base import Genotype, excerpt

_WHERE = "load_nasbench201_table"
_ACCURACY_COLUMNS = {
    "cifar10_test": "c10_test200_mean",
    "cifar100_test": "c100_test200_mean",
    "imagenet16_test": "in16_test200_mean",
    "cifar10_validation_12": "c10_val12",
}
_PARAMS_COLUMN = "c10_params_M"
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
    """

    genotypes: Int32[np.ndarray, "cells edges"]
    cifar10_test: Float[np.ndarray, " cells"]
    cifar100_test: Float[np.ndarray, " cells"]
    imagenet16_test: Float[np.ndarray, " cells"]
    cifar10_validation_12: Float[np.ndarray, " cells"]
    params_millions: Float[np.ndarray, " cells"]

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


def load_nasbench201_table(path: str | Path) -> Nasbench201Table:
    """Reads accuracies of NAS-Bench-201 from a CSV file, plain or gzipped.

    Args:
      path: a file with a header and the columns ``arch`` (the benchmark's string),
        ``c10_test200_mean``, ``c100_test200_mean``, ``in16_test200_mean``, ``c10_val12`` (percent)
        and ``c10_params_M`` (millions). Other columns are ignored, and rows may be missing.

    Returns:
      The table. 15,625 rows take about half a second.

    Raises:
      InputError: if the file is missing, is no such table, or is damaged, with the line.
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
        places = [header.index(column) for column in _COLUMNS]
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
            values.append(
                [_read_number(line, *pair) for pair in zip(_COLUMNS[1:], numbers, strict=True)]
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
    return Nasbench201Table(
        np.array(list(first_line), np.int32), *(columns[:-1] / 100.0), params_millions=columns[-1]
    )


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


def _read_number(line: str, column: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    largest = math.inf if column == _PARAMS_COLUMN else 100.0
    if not (0.0 <= number <= largest) or math.isinf(number):
        wanted = "a number >= 0" if column == _PARAMS_COLUMN else "a percentage, 0 to 100"
        raise InputError(f"{line}: {column} must be {wanted}, got {excerpt(text)}.")
    return number
