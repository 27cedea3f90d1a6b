"""What a training left, to be used: outputs of the network, and tests of it."""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import jax
from jaxtyping import Float, Shaped

from nasjax.data import Splits, load_splits
from nasjax.errors import InputError
from nasjax.runs.train_settings import TrainSettings, prepare
from nasjax.training import Checkpoints, Measured, Parallel, Task, TrainState, evaluate, init_state
from nasjax.training.augment import standardised
from nasjax.types import Weights

CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints, in its own."""


class Trained(NamedTuple):
    """A network as its training left it.

    Attributes:
      task: the network and how it was trained.
      splits: the data that it was trained with.
      state: of its last checkpoint, on the host.
    """

    task: Task
    splits: Splits
    state: TrainState

    def apply(
        self,
        images: Shaped[jax.Array, "batch height width channels"],
        weights: Weights | None = None,
    ) -> Float[jax.Array, "batch classes"]:
        """Logits of images as stored, in the running statistics of the training.

        A pure function, to be jitted or differentiated with respect to the images; parameters are
        ``state.params``.

        Args:
          images: ``[batch, height, width, channels]``, in the unit of the data.
          weights: of an architecture, for a one-shot network, which normalises by the batch.

        Returns:
          ``[batch, classes]``.
        """
        variables = {"params": self.state.params, "batch_stats": self.state.batch_stats}
        args = () if weights is None else (weights,)
        x = standardised(images, self.task.mean, self.task.std)
        return self.task.network.apply(variables, *args, x)


def load_trained(out: str | Path) -> Trained:
    """The network of the last checkpoint of a run.

    Args:
      out: the run's folder.

    Returns:
      The network.

    Raises:
      InputError: if the folder holds no training or no checkpoint, or its data cannot be had.
    """
    path = Path(out)
    settings = _read_settings(path)
    task, splits = prepare(settings)
    restored = None
    if (path / CHECKPOINTS).exists():
        with Checkpoints(path / CHECKPOINTS) as checkpoints:
            restored = checkpoints.restore(init_state(task, jax.random.key(settings.seed)))
    if restored is None:
        raise InputError(f"load_trained: {path} must hold a checkpoint, got none yet.")
    return Trained(task, splits, restored.state)


def evaluate_run(
    out: str | Path, *, data: str | None = None, num_devices: int | None = None
) -> Measured:
    """Tests the last checkpoint of a run again, on its own or on other examples.

    Args:
      out: the run's folder.
      data: what ``data.load_splits`` takes, whose examples to test with are used; None takes the
        run's. They are standardised as those of the training were.
      num_devices: of this process; None takes all.

    Returns:
      Loss and accuracy.

    Raises:
      InputError: if the folder holds no training, or the data do not fit the network.
    """
    task, splits, state = load_trained(out)
    examples = splits.test
    if data is not None:
        min_area = task.recipe.augmentation.min_area
        other = load_splits(data, image_size=task.image_shape[0], min_area=min_area)
        examples = other.test
        if examples.image_shape != task.image_shape or other.num_classes > splits.num_classes:
            raise InputError(
                f"evaluate: --data must hold images of shape {task.image_shape} in at most "
                f"{splits.num_classes} classes, got {examples.image_shape} and "
                f"{other.num_classes}."
            )
    return evaluate(task, Parallel(num_devices), state, examples)


def _read_settings(path: Path) -> TrainSettings:
    try:
        held = json.loads((path / "settings.json").read_text())
        names = [field.name for field in dataclasses.fields(TrainSettings)]
        return TrainSettings(**{name: held[name] for name in names})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"evaluate: {path} must be the folder of a training, got {type(error).__name__}: "
            f"{error}."
        ) from error
