"""Training from settings to files: checkpoints, history, curves."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax

from nasjax.errors import InputError
from nasjax.evaluation import draw_curves
from nasjax.networks.counts import network_size
from nasjax.runs.folder import RunFolder, open_run_folder
from nasjax.runs.nasi import versions
from nasjax.runs.train_settings import Prepared, TrainSettings, plain_recipe, prepare
from nasjax.runs.trained import CHECKPOINTS
from nasjax.training import Checkpoints, Parallel, Task, TrainState, init_state, train

_RESULT = "result.json"
_NOT_DRAWN = ("kind", "step", "epoch")


class OnReportFn(Protocol):
    """Told of progress."""

    def __call__(self, step: int, num_steps: int, record: Mapping[str, Any]) -> None:
        """Shows it.

        Args:
          step: steps done.
          num_steps: of the whole run.
          record: the line of the history; empty where the run begins or goes on.
        """
        ...


class TrainResult(NamedTuple):
    """A finished training.

    Attributes:
      record: the content of ``result.json``.
      num_run: steps that this call made; 0 where the run was finished before.
    """

    record: dict[str, Any]
    num_run: int


def run_training(
    settings: TrainSettings,
    out: str | Path,
    *,
    num_devices: int | None = None,
    save_every_s: float = 60.0,
    use_tensorboard: bool = False,
    on_report: OnReportFn | None = None,
    on_message: Callable[[str], None] = print,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainResult:
    """Trains or goes on training, and leaves its files in a folder.

    The folder gets ``settings.json``, ``history.jsonl`` and ``checkpoints`` while it trains, and
    ``result.json``, ``curves.svg`` and ``curves.png`` at its end. A run that was stopped at any
    moment goes on from its last checkpoint, to the same result bit for bit on the same devices and
    versions but for the seconds. Of processes that train together the first writes the files; the
    others see its folder.

    Args:
      settings: of the run.
      out: the folder, new, empty, or of a run with the same settings.
      num_devices: of this process; None takes all.
      save_every_s: least seconds between checkpoints.
      use_tensorboard: whether losses and accuracies go to the folder ``tensorboard``, too; needs
        ``nasjax[tensorboard]``.
      on_report: shows progress.
      on_message: told, in a line, of what the user should know.
      should_stop: asked after every report; if so, the state is saved and the run ends there.

    Returns:
      What came out.

    Raises:
      InputError: if the data, the batch or the folder cannot be used, or the loss diverged.
      KeyboardInterrupt: if it is to stop.
    """
    make_writer = _tensorboard() if use_tensorboard else None
    devices = Parallel(num_devices)
    batch_size = settings.final_recipe().batch_size
    devices.local_rows(batch_size)
    if batch_size // devices.num_devices % settings.num_parts:
        raise InputError(
            f"--num-parts: must divide the {batch_size // devices.num_devices} images that each of "
            f"{devices.num_devices} devices has of a batch, got {settings.num_parts}."
        )
    prepared, on_report = prepare(settings), on_report or (lambda *_: None)
    task, splits, trained_on = prepared
    with _own_folder(Path(out)) as folder:
        if folder is not None:
            folder.check_settings(
                {
                    **dataclasses.asdict(settings),
                    "recipe_content": plain_recipe(task.recipe),
                    "data_provenance": splits.provenance,
                    "trained_on": trained_on._asdict(),
                    "versions": versions(),
                }
            )
        with _checkpoints(Path(out), is_owner=bool(folder)) as checkpoints:
            state, info = _start(settings, task, checkpoints, on_message, is_owner=bool(folder))
            first, num_steps = int(state.step), task.recipe.epochs * task.steps_per_epoch
            hooks = _Hooks(folder, checkpoints, info, num_steps, on_report, should_stop)
            on_report(first, num_steps, {})
            if first < num_steps:
                with contextlib.ExitStack() as stack:
                    if make_writer is not None and folder is not None:
                        # What a crash left of later steps is hidden.
                        place = str(folder.path / "tensorboard")
                        hooks.writer = stack.enter_context(make_writer(place, purge_step=first + 1))
                    examples = splits.train, splits.test
                    train(task, devices, state, *examples, hooks, save_every_s=save_every_s)
        if folder is None and not hooks.history:  # finished before
            hooks.history = RunFolder(Path(out)).read_history()
        record = _finish(settings, prepared, folder, hooks)
    return TrainResult(record, num_steps - first)


def _tensorboard():
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise InputError(
            "--tensorboard: tensorboardX must be importable. Run `pip install tensorboardX`."
        ) from error
    return SummaryWriter


@contextlib.contextmanager
def _own_folder(path: Path) -> Iterator[RunFolder | None]:
    """The folder, for the process that writes into it; None for the others."""
    if jax.process_index() > 0:
        yield None
        return
    with open_run_folder(path) as folder:
        yield folder


def _checkpoints(out: Path, *, is_owner: bool):
    """The run's checkpoints; None for a process that would have to make their folder."""
    path = out / CHECKPOINTS
    return Checkpoints(path) if is_owner or path.exists() else contextlib.nullcontext()


def _start(
    settings, task: Task, checkpoints: Checkpoints | None, on_message, *, is_owner: bool
) -> tuple[TrainState, dict[str, Any]]:
    """The state to go on from, and what was kept beside it."""
    state = init_state(task, jax.random.key(settings.seed))
    restored = None if checkpoints is None else checkpoints.restore(state)
    if restored is None:
        return state, {"num_lines": 0, "seconds": 0.0}
    step, num_steps = int(restored.state.step), task.recipe.epochs * task.steps_per_epoch
    if not restored.damaged and step < num_steps:
        on_message(f"going on from the checkpoint of step {step} of {num_steps}")
    for step in restored.damaged:
        on_message(
            f"the checkpoint of step {step} is damaged; going on from that of step "
            f"{int(restored.state.step)}"
        )
        if is_owner:
            checkpoints.remove(step)
    return restored.state, restored.info


class _Hooks:
    """Writes what the loop reports; knows how many lines a checkpoint goes with."""

    def __init__(self, folder: RunFolder | None, checkpoints, info, num_steps, *told):
        self._on_report, self.should_stop = told
        self._folder, self._checkpoints = folder, checkpoints
        self._num_lines, self._num_steps = info["num_lines"], num_steps
        self._before_s, self._start_s = info["seconds"], time.monotonic()
        self.history: list[dict[str, Any]] = []
        self.writer = None
        if folder is not None:
            folder.cut_history(self._num_lines)

    @property
    def seconds(self) -> float:
        return self._before_s + time.monotonic() - self._start_s

    def report(self, record: dict[str, Any]) -> None:
        self.history.append(record)
        self._num_lines += 1
        if self._folder is not None:
            self._folder.append_history(record)
        if self.writer is not None:
            told = {name: value for name, value in record.items() if name not in _NOT_DRAWN}
            for name, value in told.items():
                self.writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])
        self._on_report(record["step"], self._num_steps, record)

    def save(self, step: int, state: TrainState) -> None:
        if self._folder is not None:
            info = {"num_lines": self._num_lines, "seconds": self.seconds}
            self._checkpoints.save(step, state, info)


def _finish(settings: TrainSettings, prepared: Prepared, folder, hooks: _Hooks) -> dict[str, Any]:
    task, splits, _ = prepared
    history = hooks.history if folder is None else folder.read_history()
    has_ended_before = folder is not None and not hooks.history
    held = folder.read_json(_RESULT) if has_ended_before else {}
    last = [record for record in history if record["kind"] == "epoch"][-1]
    record = {
        "space": settings.space,
        "architecture": settings.architecture,
        "settings": dataclasses.asdict(settings),
        "recipe": plain_recipe(task.recipe),
        "data": splits.provenance,
        "versions": versions(),
        "steps": last["step"],
        "seconds": held.get("seconds") or hooks.seconds,
        **{name: value for name, value in last.items() if name.startswith(("train_", "test_"))},
    }
    if settings.architecture is not None:
        size = network_size(task.network, task.image_shape)
        record |= {"parameters": size.parameters, "multiply_adds": size.multiply_adds}
    if folder is not None:
        recipe = Path(settings.recipe).stem
        title = f"{recipe}, {settings.space}, {settings.data}, seed {settings.seed}"
        draw_curves(history, folder.path / "curves", title=title)
        folder.write_json(_RESULT, record)
    return record
