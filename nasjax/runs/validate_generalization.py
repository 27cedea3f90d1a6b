"""Theorem 3 of Eigen-NAS: its bound beside the error that one pass of SGD leaves."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nasjax.data import load_data
from nasjax.errors import InputError
from nasjax.evaluation import correlation, draw_generalization
from nasjax.networks import init_params, one_shot_network
from nasjax.ntk import generalization_terms, mlp_ntk, spectrum
from nasjax.runs.batch import network_inputs
from nasjax.runs.drawing import draw_architectures
from nasjax.runs.folder import RunFolder, changed_settings, open_run_folder
from nasjax.runs.nasi import OnStepFn, versions
from nasjax.runs.options import check_number, check_seed
from nasjax.runs.validation_summary import as_csv
from nasjax.spaces import mlp_space
from nasjax.spaces.mlp import ACTIVATION_NAMES, split_genotype
from nasjax.training import single_epoch_sgd

STEPS = {
    "theory": "the step size of theorem 3, with kappa",
    "practical": "that of --step-size",
}


@dataclasses.dataclass(frozen=True)
class GeneralizationSettings:
    """Everything that the result depends on.

    Attributes:
      data: what ``data.load_data`` takes.
      classes: two labels; the first counts as 1, the second as -1.
      image_size: pixels a side.
      depth: ``L``, layers of weights.
      width: ``m``.
      num_examples: ``N``, steps of the pass.
      num_test: most examples that the error is measured on.
      num_architectures: random ones.
      num_runs: passes of an architecture, each with its own weights and drawn iterate; orders of
        the examples are shared by all.
      step_size: of the practical passes.
      kappa: of the theorem's step size.
      delta: of the bound.
      seed: of everything random.

    Raises:
      InputError: if a value is out of its range.
    """

    data: str = "digits"
    classes: tuple[int, int] = (3, 8)
    image_size: int = 8
    depth: int = 5
    width: int = 256
    num_examples: int = 128
    num_test: int = 1000
    num_architectures: int = 60
    num_runs: int = 5
    step_size: float = 0.3
    kappa: float = 1.0
    delta: float = 0.1
    seed: int = 0

    def __post_init__(self):
        """Checks every value."""
        object.__setattr__(self, "classes", tuple(self.classes))
        if len(set(self.classes)) != 2 or len(self.classes) != 2 or min(self.classes) < 0:
            raise InputError(
                f"--classes: must be two different labels, got {','.join(map(str, self.classes))}."
            )
        check_number("--image-size", self.image_size, 1, 1024)
        check_number("--depth", self.depth, 3, 50)
        check_number("--width", self.width, 1, 2**14)
        check_number("--num-examples", self.num_examples, 2, 2048)
        check_number("--num-test", self.num_test, 1, 10**6)
        check_number("--num-architectures", self.num_architectures, 3, 10**5)
        check_number("--num-runs", self.num_runs, 1, 1000)
        for option, value in (("--step-size", self.step_size), ("--kappa", self.kappa)):
            if not 0 < value < np.inf:
                raise InputError(f"{option}: must be above 0, got {value:g}.")
        if not 0 < self.delta <= 1 / np.e:
            raise InputError(f"--delta: must be in (0, 1/e], got {self.delta:g}.")
        check_seed(self.seed)

    def run_name(self) -> str:
        """A name for the run's folder: data, seed, and what is not a default."""
        changed = changed_settings(self, GeneralizationSettings(), left_out=("data", "seed"))
        data = re.sub(r"[:/#\\]", "-", self.data)
        return "-".join(["validate-generalization", data, *changed, f"seed{self.seed}"])


class Generalization(NamedTuple):
    """A finished validation.

    Attributes:
      rows: a dictionary an architecture, the content of ``generalization.csv``.
      summary: the content of ``summary.json``.
      num_run: architectures that this call computed; 0 where the run was finished before.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    num_run: int


class _Task(NamedTuple):
    """Two classes of a data set, of norm 1."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    provenance: dict[str, Any]


def run_generalization(
    settings: GeneralizationSettings, out: str | Path, *, on_step: OnStepFn | None = None
) -> Generalization:
    """Runs or resumes the validation and leaves its files in a folder.

    ``history.jsonl`` gets a line an architecture while it runs; ``generalization.csv``,
    ``summary.json`` and ``generalization.png`` and ``.svg`` follow at the end. A run that was
    stopped goes on where it was, to the same numbers.

    Columns of ``generalization.csv``: ``index`` and ``architecture``; ``lambda_min`` of the exact
    kernel at the examples; ``eigenvalue_term``, ``label_term``, ``confidence_term`` and
    ``step_size``, as ``ntk.GeneralizationTerms`` has them; and for ``theory`` and ``practical``
    steps the means over passes of ``error_*``, the 0-1 error of the drawn iterate on held-out
    examples, of ``last_error_*``, that of the last one, and of ``loss_*``, each example's before
    its step, beside ``initial_error``, that of untrained networks.

    Args:
      settings: of the run.
      out: the folder, new, empty, or of a run with the same settings.
      on_step: shows progress; the phase is ``"architectures"``.

    Returns:
      The numbers.

    Raises:
      InputError: if the data have too few examples of the classes, or the folder cannot be used.

    References:
      Zhu et al., `Generalization properties of NAS under activation and skip connection search
      <https://arxiv.org/abs/2209.07238>`_, 2022, theorem 3 and algorithm 1.
    """
    on_step = on_step or (lambda *_: None)
    names = ("data", "examples", "archs", "params", "passes")
    split = jax.random.split(jax.random.key(settings.seed), len(names))
    keys = dict(zip(names, split, strict=True))
    task = _load(settings, keys["data"], keys["examples"])
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(
            {
                **dataclasses.asdict(settings),
                "data_provenance": task.provenance,
                "versions": versions(),
            }
        )
        space, count = mlp_space(settings.depth), settings.num_architectures
        genotypes = draw_architectures(space, count, keys["archs"])
        first = len(folder.read_history())
        if first < count:
            on_step("architectures", first, count, {})
            measure = _measure(settings, task, keys["params"], keys["passes"])
        for index in range(first, count):
            record = {
                "index": index,
                "architecture": space.to_string(genotypes[index]),
                **measure(genotypes[index]),
            }
            folder.append_history(record)
            on_step("architectures", index + 1, count, record)
        return _finish(settings, task, folder, count - first)


def _load(settings, data_key, examples_key) -> _Task:
    data = load_data(settings.data, image_size=settings.image_size, channels=1, key=data_key)
    chosen = np.flatnonzero(np.isin(data.labels, settings.classes))
    if len(chosen) <= settings.num_examples:
        raise InputError(
            f"--num-examples: must be below {len(chosen)}, the images of {settings.data} of "
            f"classes {' and '.join(map(str, settings.classes))}, got {settings.num_examples}."
        )
    chosen = chosen[np.asarray(jax.random.permutation(examples_key, len(chosen)))]
    x = np.asarray(network_inputs("mlp", jnp.asarray(data.images[chosen])))
    y = np.where(data.labels[chosen] == settings.classes[0], 1.0, -1.0).astype(np.float32)
    end = settings.num_examples + settings.num_test
    parts = slice(0, settings.num_examples), slice(settings.num_examples, end)
    for name, part in zip(("to train with", "to test with"), parts, strict=True):
        if np.ptp(y[part]) == 0:
            raise InputError(
                f"--classes: both must be among the examples {name}, got one alone. Take more "
                "examples or other classes."
            )
    return _Task(x[parts[0]], y[parts[0]], x[parts[1]], y[parts[1]], data.provenance)


def _measure(settings, task: _Task, params_key, passes_key) -> Callable[..., dict[str, Any]]:
    """``(genotype) -> numbers`` of one architecture; programs serve all."""
    space = mlp_space(settings.depth)
    network = one_shot_network("mlp", width=settings.width, num_outputs=1, initialization="theory")
    kernel_program = jax.jit(lambda activations, skips, x: mlp_ntk(activations, skips, x).ntk)

    def errors(apply_fn, params):
        return jnp.mean(task.test_y * apply_fn(params, task.test_x) < 0)

    @jax.jit
    def train(params, weights, step_size, order, key):
        def apply_fn(params, x):
            return network.apply({"params": params}, weights, x)[:, 0]

        x, y = jnp.asarray(task.x)[order], jnp.asarray(task.y)[order]
        found = single_epoch_sgd(apply_fn, params, x, y, step_size, key)
        # Before the pass, at the drawn iterate, after the last step.
        after = (errors(apply_fn, one) for one in (params, found.params, found.last_params))
        return jnp.stack([*after, found.mean_loss])

    example = space.one_hot(np.zeros(space.genotype_shape, np.int32))
    starts = [
        init_params(jax.random.fold_in(params_key, run), network, example, task.x[:1])
        for run in range(settings.num_runs)
    ]

    def measure(genotype) -> dict[str, Any]:
        activations, skips = split_genotype(genotype)
        with jax.enable_x64(True):
            points = task.x.astype(np.float64)
            kernel = np.asarray(kernel_program(activations, skips, points))
        terms = generalization_terms(
            kernel,
            task.y,
            [ACTIVATION_NAMES[index] for index in activations],
            width=settings.width,
            kappa=settings.kappa,
            delta=settings.delta,
        )
        record = {
            "lambda_min": spectrum(kernel).lambda_min,
            "eigenvalue_term": terms.eigenvalue_term,
            "label_term": terms.label_term,
            "confidence_term": terms.confidence_term,
            "step_size": terms.step_size,
        }
        weights = space.one_hot(genotype)
        for name, step_size in (("theory", terms.step_size), ("practical", settings.step_size)):
            runs = []
            for run, params in enumerate(starts):
                # The same orders and iterates for all architectures and both steps.
                order_key, draw_key = jax.random.split(jax.random.fold_in(passes_key, run))
                order = jax.random.permutation(order_key, settings.num_examples)
                runs.append(train(params, weights, np.float32(step_size), order, draw_key))
            initial, error, last, loss = np.mean(np.asarray(runs, np.float64), axis=0)
            record["initial_error"] = initial
            record |= {f"error_{name}": error, f"last_error_{name}": last, f"loss_{name}": loss}
        return record

    return measure


def _finish(settings, task: _Task, folder: RunFolder, num_run: int) -> Generalization:
    rows = folder.read_history()
    summary = {
        **summarise_generalization(rows),
        "num_test": len(task.test_y),
        "settings": dataclasses.asdict(settings),
        "data": task.provenance,
        "versions": versions(),
    }
    folder.write_text("generalization.csv", as_csv(rows))
    source = re.sub(r"npz:.*[/\\]", "npz:", settings.data).partition("#")[0]
    draw_generalization(
        rows,
        summary,
        folder.path / "generalization",
        title=(
            f"one pass over {settings.num_examples} examples of {source}, classes "
            f"{settings.classes[0]} and {settings.classes[1]}, depth {settings.depth}, width "
            f"{settings.width}"
        ),
    )
    folder.write_json("summary.json", summary)
    return Generalization(rows, summary, num_run)


def summarise_generalization(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Errors by kind of step, and their rank correlations with what the theorem has.

    Args:
      rows: an architecture each, as in ``generalization.csv``; None for what is not finite.

    Returns:
      ``steps``, by kind: the median step size and error, and Spearman's coefficient of the error
      with ``eigenvalue_term``, ``label_term`` and ``lambda_min``, interval included. The theorem
      wants positive ones of the terms and a negative one of the eigenvalue;
      ``spearman_untrained`` has those of the errors before the pass.
      ``share_of_vacuous_bounds``: how many terms are above 1, so that they bound nothing.
    """
    columns = {
        name: np.array([np.nan if row[name] is None else row[name] for row in rows], float)
        for name in rows[0]
        if name not in ("index", "architecture")
    }
    predictors = ("eigenvalue_term", "label_term", "lambda_min")
    bound = columns["label_term"] + columns["confidence_term"]
    return {
        "num_architectures": len(rows),
        "share_of_vacuous_bounds": float(np.mean(~(bound < 1))),
        "smallest_bound": float(np.nanmin(bound)),
        "median_theory_step_size": float(np.nanmedian(columns["step_size"])),
        # What correlates with the errors before any step is no merit of the training.
        "spearman_untrained": {
            name: correlation(columns[name], columns["initial_error"])._asdict()
            for name in predictors
        },
        "steps": {
            name: {
                "median_initial_error": float(np.nanmedian(columns["initial_error"])),
                "median_error": float(np.nanmedian(columns[f"error_{name}"])),
                "median_last_error": float(np.nanmedian(columns[f"last_error_{name}"])),
                "median_loss": float(np.nanmedian(columns[f"loss_{name}"])),
                "share_of_networks_learning": float(
                    np.mean(columns[f"last_error_{name}"] < columns["initial_error"])
                ),
                "spearman": {
                    predictor: correlation(columns[predictor], columns[f"error_{name}"])._asdict()
                    for predictor in predictors
                },
            }
            for name in STEPS
        },
    }
