"""Smallest eigenvalues of infinite-width kernels of a drawn pool, as a folder of scores."""

import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nasjax.errors import InputError
from nasjax.ntk import cell_network_ntk, mlp_spectra, spectrum
from nasjax.runs.batch import load_batch
from nasjax.runs.folder import open_run_folder
from nasjax.runs.nasi import OnStepFn, versions
from nasjax.runs.options import check_number, check_seed
from nasjax.runs.score_request import request_sample
from nasjax.runs.score_table import as_csv
from nasjax.spaces import Space, get_space, mlp_space

INFINITE = "min_eigenvalue:infinite"
INFINITE_SCORES = {
    INFINITE: "smallest eigenvalue of the exact infinite-width kernel",
    "min_eigenvalue:infinite_bound": "the mean of its diagonal, an upper bound",
    "min_eigenvalue:lemma1": "the smallest eigenvalue of Eigen-NAS's lemma 1 (mlp)",
}
"""Columns that ``run_infinite_scores`` writes; higher is better."""

_CHUNK = 256
_DEFAULTS = {"mlp": (64, 32), "nasbench201": (16, 8)}
"""Examples and pixels a side: kernels of cells have an entry for each pair of pixels."""
_INPUTS = {"mlp": "flattened, each divided by its norm", "nasbench201": "images"}


@dataclasses.dataclass(frozen=True)
class InfiniteScoreSettings:
    """Everything that infinite-width scores depend on.

    Attributes:
      space: ``mlp`` or ``nasbench201``.
      pool_size: architectures that are drawn.
      depth: of ``mlp``, layers of weights.
      data: what ``data.load_data`` takes.
      batch_size: N; None takes 64 for ``mlp`` and 16 for ``nasbench201``.
      image_size: pixels a side; None takes 32 and 8.
      seed: of the architectures and the examples.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    space: str = "mlp"
    pool_size: int = 500
    depth: int = 10
    data: str = "random"
    batch_size: int | None = None
    image_size: int | None = None
    seed: int = 0

    def __post_init__(self):
        """Fills in the space's defaults and checks every value."""
        if self.space not in _DEFAULTS:
            raise InputError(
                f"{INFINITE}: --space must be one of {', '.join(_DEFAULTS)}, whose infinite-width "
                f"kernels are known, got {self.space}. Rank by another metric."
            )
        for name, default in zip(("batch_size", "image_size"), _DEFAULTS[self.space], strict=True):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        check_number("--pool-size", self.pool_size, 1, 10**6)
        check_number("--depth", self.depth, 3, 100)
        check_number("--batch-size", self.batch_size, 2, 10**5)
        check_seed(self.seed)

    def space_of(self) -> Space:
        """The space; that of ``mlp`` has the depth that is asked for."""
        return mlp_space(self.depth) if self.space == "mlp" else get_space(self.space)


def run_infinite_scores(
    settings: InfiniteScoreSettings, out: str | Path, *, on_step: OnStepFn | None = None
) -> None:
    """Scores a drawn pool, or goes on with it, and leaves a folder that ``load_scored_pool`` reads.

    A thousand networks of ``mlp`` of depth 10 at 64 examples take 6 s on two CPU cores, both
    kernels and compilation included; a cell of NAS-Bench-201 at 16 images of 8 x 8 pixels some 2 s,
    most of it compilation, and is without normalisation, with one cell a stage.

    Args:
      settings: of the scores.
      out: the folder, new, empty, or of a run with the same settings.
      on_step: shows progress; the phase is ``"scores"``.

    Raises:
      InputError: if data or folder cannot be used.
    """
    on_step, space = on_step or (lambda *_: None), settings.space_of()
    data_key, batch_key = jax.random.split(jax.random.key(settings.seed))
    batch = load_batch(
        settings.space,
        settings.data,
        settings.batch_size,
        image_size=settings.image_size,
        option="--batch-size",
        data_key=data_key,
        batch_key=batch_key,
    )
    genotypes = request_sample(space, settings.pool_size, settings.seed).genotypes
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(
            {
                **dataclasses.asdict(settings),
                "data_provenance": batch.provenance,
                "versions": versions(),
            }
        )
        rows = folder.read_history()
        on_step("scores", len(rows), len(genotypes), {})
        for found in _scores(settings, space, genotypes[len(rows) :], np.asarray(batch.x)):
            for record in found:
                folder.append_history(record)
            rows += found
            on_step("scores", len(rows), len(genotypes), rows[-1])
        # Failed ones are left empty: as zero or minus infinity they would be values.
        table = [{name: row[name] for name in row if name != "seconds"} for row in rows]
        folder.write_text("scores.csv", as_csv(table))
        folder.write_json(
            "metadata.json",
            {
                "settings": dataclasses.asdict(settings),
                "metrics": {name: INFINITE_SCORES[name] for name in table[0] if ":" in name},
                "seconds": {"scoring": sum(row["seconds"] for row in rows)},
                "data": {**batch.provenance, "inputs": _INPUTS[settings.space]},
                "versions": versions(),
            },
        )


def _scores(settings, space: Space, genotypes, x) -> Iterator[list[dict[str, Any]]]:
    """Records of the architectures, in their order."""
    if settings.space == "mlp":
        for start in range(0, len(genotypes), _CHUNK):
            yield _mlp_scores(space, np.stack(genotypes[start : start + _CHUNK]), x)
        return
    for genotype in genotypes:
        start_s, found = time.monotonic(), (None, None, "dead network")
        if space.is_connected(genotype):
            with jax.enable_x64(True):
                edges = space.describe(genotype)[0].edges
                kernel = cell_network_ntk(edges, np.asarray(x, np.float64)).ntk
                one = spectrum(np.asarray(kernel))
            found = (one.lambda_min, one.trace / len(x), one.failure)
        yield [_record(space, genotype, *found, time.monotonic() - start_s)]


def _mlp_scores(space: Space, genotypes, x) -> list[dict[str, Any]]:
    start_s = time.monotonic()
    exact, published = (mlp_spectra(genotypes, x, method=method) for method in ("exact", "lemma1"))
    seconds = (time.monotonic() - start_s) / len(genotypes)
    found = zip(genotypes, exact.lambda_min, exact.trace / len(x), exact.failures, strict=True)
    records = [_record(space, *one, seconds) for one in found]
    for record, value, failure in zip(
        records, published.lambda_min, published.failures, strict=True
    ):
        record["min_eigenvalue:lemma1"] = None if failure else float(value)
    return records


def _record(space: Space, genotype, lambda_min, mean, failure, seconds: float) -> dict[str, Any]:
    is_known = mean is not None and math.isfinite(mean)
    return {
        "architecture": space.to_string(genotype),
        INFINITE: None if failure else float(lambda_min),
        "min_eigenvalue:infinite_bound": float(mean) if is_known else None,
        "flags": failure or "",
        "seconds": seconds,
    }
