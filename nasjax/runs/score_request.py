"""Which architectures are to be scored: all of a space, a sample, strings, or a file of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from nasjax.errors import InputError
from nasjax.runs.drawing import draw_architectures
from nasjax.spaces import Space
from nasjax.spaces.nasbench201 import genotype_from_index, official_index


class Request(NamedTuple):
    """Architectures to be scored.

    Attributes:
      genotypes: in the order of the table; some may be equal, or equivalent.
      chosen: in what way, in words.
      bad_lines: what a file held besides, a message a line.
    """

    genotypes: list[np.ndarray]
    chosen: str
    bad_lines: tuple[str, ...] = ()


def request_all(space: Space) -> Request:
    """Every architecture of a space that has a list; NAS-Bench-201 in its official order.

    Raises:
      InputError: if the space is too large for a list.
    """
    genotypes = space.all_genotypes()
    if genotypes is None:
        raise InputError(
            f"--all: {space.name} must be a space that can be listed, but it has {space.size:.3g} "
            "architectures. Give --num-architectures instead."
        )
    if space.name == "nasbench201":
        genotypes = [genotype_from_index(index) for index in range(len(genotypes))]
    return Request(list(genotypes), "all")


def request_sample(space: Space, count: int, seed: int) -> Request:
    """Distinct architectures, drawn uniformly; the first ones are the same for every count.

    Raises:
      InputError: if there are not that many.
    """
    key = jax.random.fold_in(jax.random.key(seed), _SAMPLE)
    return Request(draw_architectures(space, count, key), "drawn uniformly, distinct")


_SAMPLE = 0x5A3
"""Folded into the seed's key, which weights are drawn from."""


def request_strings(space: Space, texts: Iterable[str]) -> Request:
    """The architectures of some strings.

    Raises:
      InputError: if a string is none of the space.
    """
    return Request([space.from_string(text) for text in texts], "given")


def request_file(space: Space, path: Path) -> Request:
    """The architectures of a file, one a line.

    Empty lines and lines that begin with ``#`` are passed over. Lines that are no architecture of
    the space are told, and the others taken.

    Raises:
      InputError: if the file cannot be read, or no line is an architecture.
    """
    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"--archs {path}: must be a readable file of architectures, one a line, got "
            f"{error.strerror}. Give another."
        ) from error
    genotypes, bad = [], []
    for number, line in enumerate(content.removeprefix("\ufeff").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            genotypes.append(space.from_string(line))
        except InputError as error:
            bad.append(f"--archs {path}, line {number}: {error}")
    if not genotypes:
        found = f"the first of {len(bad)} bad lines: {bad[0]}" if bad else "it is empty"
        raise InputError(f"--archs {path}: must hold an architecture of {space.name}; {found}")
    return Request(genotypes, f"{len(genotypes)} lines of {path.name}", tuple(bad))


def index_of(space: Space, genotype: np.ndarray, row: int) -> int:
    """The official index of a cell of NAS-Bench-201; in other spaces the number of the row."""
    return official_index(genotype) if space.name == "nasbench201" else row
