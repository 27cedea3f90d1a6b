"""How well approximations of the NTK trace norm follow the exact one over a search space."""

import dataclasses
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax

from nasjax.errors import InputError, unknown_name
from nasjax.evaluation import draw_validation
from nasjax.runs.batch import Batch
from nasjax.runs.drawing import draw_architectures
from nasjax.runs.folder import RunFolder, open_run_folder, run_name
from nasjax.runs.nasi import OnStepFn, versions
from nasjax.runs.options import check_layers, check_number, check_seed
from nasjax.runs.validation_measures import (
    approximations,
    load_batch,
    space_of,
    widths,
)
from nasjax.runs.validation_summary import as_csv, summarise
from nasjax.spaces.nasbench1shot1 import NUM_PARENTS


class ValidationDefaults(NamedTuple):
    """Settings of a space where the user gives none.

    Attributes:
      channels: of the first stage; in ``mlp`` the width of the hidden layers.
      cells: a stage, but in DARTS in all; in ``mlp`` the layers of weights.
      initialization: of all layers.
      widths: compared with infinite width.
    """

    channels: int
    cells: int
    initialization: str
    widths: tuple[int, ...]


VALIDATION_DEFAULTS = {
    "darts": ValidationDefaults(8, 1, "lecun", ()),
    "mlp": ValidationDefaults(256, 10, "ntk", (64, 256, 1024)),
    "nasbench201": ValidationDefaults(8, 1, "lecun", (8, 16, 32)),
    **dict.fromkeys(NUM_PARENTS, ValidationDefaults(8, 1, "lecun", ())),
}
"""The spaces that are compared in. There are no kernels of infinite width for cells of DARTS and of
NAS-Bench-1Shot1."""

_NUM_INFINITE = 20


@dataclasses.dataclass(frozen=True)
class ValidationSettings:
    """Everything that the result of a validation depends on.

    Attributes:
      space: a key of ``VALIDATION_DEFAULTS``.
      data: what ``data.load_data`` takes.
      num_architectures: drawn uniformly, distinct and connected.
      batch_sizes: examples of the approximations; the largest is also that of the exact trace norm.
      channels: of the first stage; in ``mlp`` the width of the hidden layers. None takes the
        space's default, like every None.
      cells: a stage, but in DARTS in all; in ``mlp`` the layers of weights.
      seed: of everything random.
      initialization: a key of ``networks.INITIALIZATIONS``, in ``mlp`` of ``MLP_INITIALIZATIONS``.
      normalization: a key of ``networks.NORMALIZATIONS``, in ``mlp`` ``"none"``. With ``"batch"``
        gradients go through the statistics of the whole batch, at the cost of a gradient of the
        batch an output and an example.
      widths: channels at which finite networks are compared with infinite width; empty for none.
        These networks have the NTK parameterisation and four examples; those of ``nasbench201``
        have one cell a stage, no normalisation, and images of 8x8 pixels.
      num_infinite: architectures of that comparison; at most 20 where it is not given.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    space: str = "nasbench201"
    data: str = "random"
    num_architectures: int = 100
    batch_sizes: tuple[int, ...] = (4, 8, 16)
    channels: int | None = None
    cells: int | None = None
    seed: int = 0
    initialization: str | None = None
    normalization: str = "none"
    widths: tuple[int, ...] | None = None
    num_infinite: int | None = None

    def __post_init__(self):
        """Fills in the space's defaults and checks every value."""
        if self.space not in VALIDATION_DEFAULTS:
            raise unknown_name("--space", "space", self.space, VALIDATION_DEFAULTS)
        defaults = VALIDATION_DEFAULTS[self.space]._asdict()
        defaults["num_infinite"] = min(_NUM_INFINITE, self.num_architectures)
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        is_mlp = self.space == "mlp"
        check_layers(self.space, self.initialization, self.normalization)
        self._check_number("channels", 1, 2**16 if is_mlp else 1024)
        self._check_number("cells", 3 if is_mlp else 1, 100)
        self._check_number("num_architectures", 3, space_of(self).size // 2)
        self._check_number("num_infinite", 3, self.num_architectures)
        if self.widths and not defaults["widths"]:
            raise InputError(
                f"--widths: must be empty in {self.space}, whose infinite width is not known, got "
                f"{','.join(map(str, self.widths))}. Leave it out."
            )
        for option, values, least in (
            ("--batch-sizes", self.batch_sizes, 2),
            ("--widths", self.widths, 1),
        ):
            is_ascending = list(values) == sorted(set(values))
            if not is_ascending or (values and values[0] < least):
                raise InputError(
                    f"{option}: must be ascending numbers of at least {least}, got "
                    f"{','.join(map(str, values))}."
                )
        if not self.batch_sizes:
            raise InputError("--batch-sizes: must be numbers, got none.")
        check_seed(self.seed)

    def _check_number(self, name: str, least: int, most: int) -> None:
        check_number("--" + name.replace("_", "-"), getattr(self, name), least, most)

    def run_name(self) -> str:
        """A name for the run's folder: space, data, seed, and what is not a default."""
        return run_name("validate-ntk", self, ValidationSettings(space=self.space))

    @property
    def num_widths(self) -> int:
        """Architectures that are compared with infinite width."""
        return self.num_infinite if self.widths else 0


class Validation(NamedTuple):
    """A finished validation.

    Attributes:
      rows: a dictionary an architecture, the content of ``validation.csv``.
      summary: the correlations, as in ``validation.json``.
      num_run: architectures that this call computed; 0 where the run was finished before.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    num_run: int


def run_validation(
    settings: ValidationSettings, out: str | Path, *, on_step: OnStepFn | None = None
) -> Validation:
    """Runs or resumes a validation and leaves its files in a folder.

    ``history.jsonl`` gets a line an architecture while it runs; ``validation.csv``,
    ``validation.json``, ``validation.png`` and ``validation.svg`` follow at the end. A run that was
    stopped at any moment goes on where it was, to the same numbers; a finished one is not repeated.

    Columns of ``validation.csv``: ``index`` and ``architecture``; ``exact``, the trace norm of the
    largest batch in (output / parameter)^2; for each batch size ``summed_loss_B`` (eq. 11) and
    ``batch_loss_B`` (eq. 12) in (loss / parameter)^2, ``random_outputs_B`` and its standard error
    ``random_outputs_error_B`` in the unit of ``exact``; ``random_labels`` and ``random_data``, eq.
    12 of the largest batch with labels, and with data and labels, drawn anew; and for the first
    architectures ``width_W`` and ``infinite``, trace norms of four examples.

    Args:
      settings: of the run.
      out: the folder, new, empty, or of a run with the same settings.
      on_step: shows progress; phases ``"approximations"`` and ``"widths"``.

    Returns:
      The numbers.

    Raises:
      InputError: if the data or the folder cannot be used, or fewer than three networks are alive.

    References:
      NASI, figure 1 and table 7.
    """
    on_step = on_step or (lambda *_: None)
    keys = dict(
        zip(
            ("data", "batch", "params", "archs", "labels", "images", "signs", "widths"),
            jax.random.split(jax.random.key(settings.seed), 8),
            strict=True,
        )
    )
    data = load_batch(settings, keys["data"], keys["batch"])
    with open_run_folder(Path(out)) as folder:
        folder.check_settings(
            {
                **dataclasses.asdict(settings),
                "data_provenance": data.provenance,
                "versions": versions(),
            }
        )
        space = space_of(settings)
        genotypes = draw_architectures(
            space, settings.num_architectures, keys["archs"], is_connected=True
        )
        records = folder.read_history()
        first = len(records)
        phases = (
            ("approximations", settings.num_architectures, approximations),
            ("widths", settings.num_widths, widths),
        )
        done = 0
        for phase, count, make in phases:
            start = min(max(len(records) - done, 0), count)
            if start < count:
                on_step(phase, start, count, {})
                measure = make(settings, space, data, keys)
            for index in range(start, count):
                measured = measure(genotypes[index])
                record = {
                    "phase": phase,
                    "index": index,
                    "architecture": space.to_string(genotypes[index]),
                    **measured,
                }
                folder.append_history(record)
                records.append(record)
                on_step(phase, index + 1, count, record)
            done += count
        return _finish(settings, data, folder, records, len(records) - first)


def _finish(settings, data: Batch, folder: RunFolder, records, num_run: int) -> Validation:
    rows = [record for record in records if record["phase"] == "approximations"]
    wide = [record for record in records if record["phase"] == "widths"]
    summary = summarise(rows, wide, settings.batch_sizes, settings.widths)
    merged = [row | (wide[i] if i < len(wide) else {}) for i, row in enumerate(rows)]
    for row in merged:
        row.pop("phase")
    folder.write_text("validation.csv", as_csv(merged))
    source = re.sub(r"npz:.*[/\\]", "npz:", settings.data).partition("#")[0]
    title = f"NTK trace norm, {settings.space}, {source}, seed {settings.seed}"
    draw_validation(rows, wide, summary, folder.path / "validation", title=title)
    folder.write_json(
        "validation.json",
        {
            "summary": summary,
            "settings": dataclasses.asdict(settings),
            "data": data.provenance,
            "versions": versions(),
        },
    )
    return Validation(merged, summary, num_run)
