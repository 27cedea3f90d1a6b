"""What theorem 1 of Eigen-NAS says of smallest eigenvalues, against the kernels themselves."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from nasjax.evaluation import draw_lambda_min
from nasjax.ntk import MLP_METHODS, lambda_min_bounds, mlp_spectra
from nasjax.runs.drawing import draw_architectures
from nasjax.runs.eigen_claims import claims, layer_importance
from nasjax.runs.folder import RunFolder, changed_settings, open_run_folder
from nasjax.runs.nasi import OnStepFn, versions
from nasjax.runs.options import check_number, check_seed
from nasjax.runs.validation_summary import as_csv
from nasjax.spaces import mlp_space
from nasjax.spaces.mlp import ACTIVATION_NAMES, split_genotype

_LEAST_DEPTH = 3
_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class EigenValidationSettings:
    """Everything that the result depends on.

    Attributes:
      num_points: ``N``, drawn uniformly from the unit sphere.
      input_dim: ``d``. The upper bound is for ``N >= d``. The theorem is for ``N`` of the order of
        ``d^4``, where smallest eigenvalues soon get lost in rounding: see ``resolution``.
      max_depth: ``L`` goes from 3 to this.
      num_seeds: draws of points.
      num_architectures: random ones of the largest depth, at the first draw of points.
      seed: of everything random.

    Raises:
      InputError: if a value is out of its range.
    """

    num_points: int = 64
    input_dim: int = 16
    max_depth: int = 10
    num_seeds: int = 5
    num_architectures: int = 1000
    seed: int = 0

    def __post_init__(self):
        """Checks every value."""
        check_number("--num-points", self.num_points, 2, 4096)
        check_number("--input-dim", self.input_dim, 2, 10**6)
        check_number("--max-depth", self.max_depth, _LEAST_DEPTH + 1, 50)
        check_number("--num-seeds", self.num_seeds, 1, 1000)
        check_number("--num-architectures", self.num_architectures, 100, 10**6)
        check_seed(self.seed)

    def run_name(self) -> str:
        """A name for the run's folder: what is not a default, and the seed."""
        changed = changed_settings(self, EigenValidationSettings(), left_out=("seed",))
        return "-".join(["validate-eigen", *changed, f"seed{self.seed}"])


class EigenValidation(NamedTuple):
    """A finished validation.

    Attributes:
      rows: a dictionary a chain and draw of points, the content of ``lambda_min.csv``.
      summary: the content of ``summary.json``.
      num_run: steps that this call computed; 0 where the run was finished before.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    num_run: int


def run_eigen_validation(
    settings: EigenValidationSettings, out: str | Path, *, on_step: OnStepFn | None = None
) -> EigenValidation:
    """Runs or resumes the validation and leaves its files in a folder.

    Chains of one activation, without skips and with a skip in every layer that may have one, are
    measured at every depth; random architectures tell how much each layer's choice matters.
    ``history.jsonl`` gets a line a step while it runs; ``lambda_min.csv``, ``summary.json`` and
    ``lambda_min.png`` and ``.svg`` follow at the end. A run that was stopped goes on where it was.

    Columns of ``lambda_min.csv``: ``method`` (of the kernel), ``draw`` (of the points),
    ``activation``, ``skips`` (0 or 1), ``depth``, ``lambda_min``, ``lambda_max`` and
    ``mean_diagonal`` of the kernel, and theorem 1's ``lower`` and ``upper``, the lower with 1 for
    its unnamed constant.

    Args:
      settings: of the run.
      out: the folder, new, empty, or of a run with the same settings.
      on_step: shows progress; phases ``"chains"`` and ``"architectures"``.

    Returns:
      The numbers.

    Raises:
      InputError: if the folder cannot be used.

    References:
      Zhu et al., `Generalization properties of NAS under activation and skip connection search
      <https://arxiv.org/abs/2209.07238>`_, 2022, theorem 1 and its remarks, appendix F.4.
    """
    on_step = on_step or (lambda *_: None)
    points_key, arch_key = jax.random.split(jax.random.key(settings.seed))
    with open_run_folder(Path(out)) as folder:
        folder.check_settings({**dataclasses.asdict(settings), "versions": versions()})
        records, num_run = folder.read_history(), 0
        space = mlp_space(settings.max_depth)
        genotypes = np.stack(draw_architectures(space, settings.num_architectures, arch_key))
        phases = {
            "chains": _chain_steps(settings, points_key),
            "architectures": _architecture_steps(settings, points_key, genotypes),
        }
        for phase, steps in phases.items():
            steps = list(steps)
            done = sum(record["phase"] == phase for record in records)
            if done < len(steps):
                on_step(phase, done, len(steps), {})
            for number, step in enumerate(steps[done:], done + 1):
                record = {"phase": phase, **step()}
                folder.append_history(record)
                num_run += 1
                on_step(phase, number, len(steps), record)
        return _finish(settings, folder, genotypes, num_run)


def _points(settings, key, draw: int) -> np.ndarray:
    """``[num_points, input_dim]``, uniform on the unit sphere, in float64."""
    x = jax.random.normal(jax.random.fold_in(key, draw), (settings.num_points, settings.input_dim))
    x = np.asarray(x, np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _chains(depth: int) -> np.ndarray:
    """``[10, 2 depth - 3]``: every activation alone, without skips and then with all of them."""
    num_hidden, num_skips = depth - 1, depth - 2
    return np.array(
        [
            [index] * num_hidden + [skip] * num_skips
            for skip in (0, 1)
            for index in range(len(ACTIVATION_NAMES))
        ]
    )


def _chain_steps(settings, key) -> Iterator[Any]:
    for depth in range(_LEAST_DEPTH, settings.max_depth + 1):
        for method in MLP_METHODS:
            for draw in range(settings.num_seeds):
                yield functools.partial(_measure_chains, settings, key, depth, method, draw)


def _measure_chains(settings, key, depth: int, method: str, draw: int) -> dict[str, Any]:
    found = mlp_spectra(_chains(depth), _points(settings, key, draw), method=method)
    return {
        "depth": depth,
        "method": method,
        "draw": draw,
        "lambda_min": found.lambda_min,
        "lambda_max": found.lambda_max,
        "mean_diagonal": found.trace / settings.num_points,
    }


def _architecture_steps(settings, points_key, genotypes) -> Iterator[Any]:
    for start in range(0, len(genotypes), _CHUNK):
        part = genotypes[start : start + _CHUNK]
        yield functools.partial(_measure_architectures, settings, points_key, part)


def _measure_architectures(settings, key, genotypes) -> dict[str, Any]:
    x = _points(settings, key, 0)
    found = {method: mlp_spectra(genotypes, x, method=method) for method in MLP_METHODS}
    return {
        method: {
            "lambda_min": one.lambda_min,
            "relative": one.lambda_min / (one.trace / settings.num_points),
        }
        for method, one in found.items()
    }


def _finish(settings, folder: RunFolder, genotypes, num_run: int) -> EigenValidation:
    records = folder.read_history()
    rows = _rows(settings, [record for record in records if record["phase"] == "chains"])
    measured = [record for record in records if record["phase"] == "architectures"]
    activations, skips = zip(*map(split_genotype, genotypes), strict=True)
    importance = {
        method: {
            name: layer_importance(
                np.array(activations),
                np.array(skips),
                np.array([value for record in measured for value in record[method][name]], float),
            )
            for name in ("lambda_min", "relative")
        }
        for method in MLP_METHODS
    }
    summary = {
        "claims": claims(rows, importance),
        "importance": importance,
        "settings": dataclasses.asdict(settings),
        "versions": versions(),
    }
    folder.write_text("lambda_min.csv", as_csv(rows))
    draw_lambda_min(
        [row for row in rows if row["method"] == "exact"],
        importance["exact"],
        folder.path / "lambda_min",
        title=(
            f"smallest eigenvalue, exact kernels, {settings.num_points} points on the sphere in "
            f"{settings.input_dim} dimensions, {settings.num_seeds} draws"
        ),
    )
    folder.write_json("summary.json", summary)
    return EigenValidation(rows, summary, num_run)


def _rows(settings, records: Sequence[dict]) -> list[dict[str, Any]]:
    rows = []
    for record in records:
        depth = record["depth"]
        names = ("lambda_min", "lambda_max", "mean_diagonal")
        for place, genotype in enumerate(_chains(depth)):
            activations, skips = split_genotype(genotype.tolist())
            name = ACTIVATION_NAMES[activations[0]]
            bounds = lambda_min_bounds(
                [name] * len(activations),
                skips,
                num_examples=settings.num_points,
                input_dim=settings.input_dim,
            )
            rows.append(
                {
                    "method": record["method"],
                    "draw": record["draw"],
                    "activation": name,
                    "skips": skips[0],
                    "depth": depth,
                    **{column: record[column][place] for column in names},
                    **bounds._asdict(),
                }
            )
    return rows
