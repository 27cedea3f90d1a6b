"""The same search with several seeds, and how often each choice won (Eigen-NAS, figure 1)."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nasjax.errors import InputError
from nasjax.evaluation import draw_choices
from nasjax.runs.darts import DartsResult, run_darts
from nasjax.runs.darts_settings import DartsSettings
from nasjax.runs.folder import open_run_folder
from nasjax.runs.nasi import OnStepFn, versions
from nasjax.runs.options import check_seed
from nasjax.spaces.mlp import ACTIVATION_NAMES, split_genotype


class DartsSeedsResult(NamedTuple):
    """Finished runs.

    Attributes:
      summary: the content of ``summary.json``.
      num_run: steps that this call ran; 0 where all runs were finished before.
    """

    summary: dict[str, Any]
    num_run: int


def run_darts_seeds(
    settings: DartsSettings,
    out: str | Path,
    *,
    num_seeds: int,
    on_step: OnStepFn | None = None,
) -> DartsSeedsResult:
    """Runs or resumes a search with the seeds from ``settings.seed`` on, and joins the results.

    Every run has a folder of its own, ``seed-N``, as ``run_darts`` leaves it. The folder above gets
    ``summary.json``, ``choices.svg`` and ``choices.png`` at the end. More seeds go on in the same
    folder.

    Args:
      settings: of the first run.
      out: the folder, new, empty, or of runs with the same settings.
      num_seeds: how many runs.
      on_step: shows progress; a phase counts the steps of all runs.

    Returns:
      The summary.

    Raises:
      InputError: if ``num_seeds`` is out of its range, or as ``run_darts``.
    """
    if num_seeds < 1:
        raise InputError(f"--num-seeds: must be at least 1, got {num_seeds}.")
    check_seed(settings.seed + num_seeds - 1)
    told = {**dataclasses.asdict(settings), "first_seed": settings.seed, "versions": versions()}
    with open_run_folder(Path(out)) as folder:
        folder.check_settings({name: value for name, value in told.items() if name != "seed"})
        results = []
        for index in range(num_seeds):
            own = dataclasses.replace(settings, seed=settings.seed + index)
            joined = _joined(on_step, index, num_seeds) if on_step else None
            results.append(run_darts(own, folder.path / f"seed-{own.seed}", on_step=joined))
        summary = _summary(settings, results)
        draw_choices(
            *(_probabilities(results, name) for name in ("activations", "skips")),
            folder.path / "choices",
            title=settings.title(),
        )
        folder.write_json("summary.json", summary)
    return DartsSeedsResult(summary, sum(result.num_run for result in results))


def _joined(on_step: OnStepFn, index: int, num_seeds: int) -> OnStepFn:
    """Tells the steps of a run as steps of all runs; a phase begins once."""

    def told(phase, step, num_steps, record):
        if record or index == 0:
            on_step(phase, index * num_steps + step, num_seeds * num_steps, record)

    return told


def _probabilities(results: list[DartsResult], name: str) -> np.ndarray:
    return np.stack([result.record["probabilities"][name] for result in results])


def _summary(settings: DartsSettings, results: list[DartsResult]) -> dict[str, Any]:
    """By layer, from 1: means, standard deviations and how many runs chose what."""
    chosen = [split_genotype(result.genotype) for result in results]
    activations = np.stack([pair[0] for pair in chosen])
    skips = np.stack([pair[1] for pair in chosen])
    spread = 1 if len(results) > 1 else 0
    layers = []
    for layer in range(settings.depth - 1):
        values = _probabilities(results, "activations")[:, layer]
        by_name = {
            name: {
                "num_won": int((activations[:, layer] == place).sum()),
                "mean": float(values[:, place].mean()),
                "stddev": float(values[:, place].std(ddof=spread)),
            }
            for place, name in enumerate(ACTIVATION_NAMES)
        }
        record = {"layer": layer + 1, "activations": by_name}
        if layer:
            alpha = _probabilities(results, "skips")[:, layer - 1]
            record["skip"] = {
                "num_kept": int(skips[:, layer - 1].sum()),
                "mean": float(alpha.mean()),
                "stddev": float(alpha.std(ddof=spread)),
            }
        layers.append(record)
    records = [result.record for result in results]
    return {
        "algorithm": settings.algorithm,
        "num_seeds": len(results),
        "num_won": {
            name: int((activations == place).sum()) for place, name in enumerate(ACTIVATION_NAMES)
        },
        "num_choices": activations.size,
        "num_skips_kept": int(skips.sum()),
        "num_skips": skips.size,
        "layers": layers,
        "runs": [
            {
                "seed": record["settings"]["seed"],
                "architecture": record["architecture"],
                **record["search"],
            }
            for record in records
        ],
    }
