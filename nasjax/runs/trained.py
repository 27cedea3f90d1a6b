"""What a training left, to be used: outputs of the network, and tests of it."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
from jaxtyping import Float, Shaped

from nasjax.data import Splits, load_splits
from nasjax.errors import InputError, first_line
from nasjax.runs.train_settings import (
    TrainedOn,
    TrainSettings,
    load_examples,
    make_task,
    recipe_of_plain,
)
from nasjax.training import Checkpoints, Parallel, Task, TrainState, evaluate, init_state
from nasjax.training.augment import standardised
from nasjax.types import Weights

CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints, in its own."""


class Trained(NamedTuple):
    """A network as its training left it.

    Attributes:
      task: the network and how it was trained.
      state: of its last checkpoint, on the host.
      settings: the content of the run's ``settings.json``.
    """

    task: Task
    state: TrainState
    settings: dict[str, Any]

    @property
    def num_classes(self) -> int:
        """How many the network tells apart."""
        return self.settings["trained_on"]["num_classes"]

    def load_splits(self) -> Splits:
        """The data that the network was trained and tested with.

        Raises:
          InputError: if they cannot be had any more, or are others than those of the training.
        """
        held = self.settings
        splits = load_examples(self.task.recipe, held["data"], held["test_data"], held["seed"])
        then = held["data_provenance"]
        names = [name for name in then if then[name] != splits.provenance.get(name)]
        if names:
            raise InputError(
                f"evaluate: the data must be those of the training, got {held['data']} with "
                f"another {', '.join(names)}. Give them back, or name data by --data."
            )
        return splits

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


class Tested(NamedTuple):
    """What a test of a trained network gave.

    Attributes:
      loss: cross-entropy in nats.
      accuracy: a fraction.
      step: of the checkpoint that was tested.
      num_steps: of the whole training.
      num_examples: that it was tested with.
      resize: what was done to their images, in words.
    """

    loss: float
    accuracy: float
    step: int
    num_steps: int
    num_examples: int
    resize: str


def load_trained(out: str | Path) -> Trained:
    """The network of the last checkpoint of a run.

    Args:
      out: the run's folder.

    Returns:
      The network.

    Raises:
      InputError: if the folder holds no training or no checkpoint. Neither its data nor a recipe
        file of one's own need be there.
    """
    path = Path(out)
    settings, task = _read_run(path)
    restored = None
    if (path / CHECKPOINTS).exists():
        with Checkpoints(path / CHECKPOINTS) as checkpoints:
            restored = checkpoints.restore(init_state(task, jax.random.key(settings["seed"])))
    if restored is None:
        raise InputError(f"load_trained: {path} must hold a checkpoint, got none yet.")
    return Trained(task, restored.state, settings)


def evaluate_run(
    out: str | Path, *, data: str | None = None, num_devices: int | None = None
) -> Tested:
    """Tests the last checkpoint of a run again, on its own or on other examples.

    Args:
      out: the run's folder.
      data: what ``data.load_splits`` takes, whose examples to test with are used; None takes the
        run's. They are standardised as those of the training were.
      num_devices: of this process; None takes all.

    Returns:
      Loss and accuracy, and what they are of.

    Raises:
      InputError: if the folder holds no training, or the data do not fit the network.
    """
    trained = load_trained(out)
    task = trained.task
    if data is None:
        splits = trained.load_splits()
    else:
        min_area = task.recipe.augmentation.min_area
        splits = load_splits(data, image_size=task.image_shape[0], min_area=min_area)
        shape = splits.test.image_shape
        if shape != task.image_shape or splits.num_classes > trained.num_classes:
            raise InputError(
                f"evaluate: --data must hold images of shape {task.image_shape} in at most "
                f"{trained.num_classes} classes, got {shape} and {splits.num_classes}."
            )
    measured = evaluate(task, Parallel(num_devices), trained.state, splits.test)
    return Tested(
        *measured,
        step=int(trained.state.step),
        num_steps=task.recipe.epochs * task.steps_per_epoch,
        num_examples=splits.test.num_examples,
        resize=splits.provenance["resize"],
    )


def _read_run(path: Path) -> tuple[dict[str, Any], Task]:
    """The settings of a run and its task, without its data and whatever became of its recipe."""
    try:
        held = json.loads((path / "settings.json").read_text())
        recipe = recipe_of_plain(held["recipe_content"])
        trained_on = TrainedOn(
            **{
                name: tuple(value) if isinstance(value, list) else value
                for name, value in held["trained_on"].items()
            }
        )
        names = [field.name for field in dataclasses.fields(TrainSettings)]
        settings = SimpleNamespace(**{name: held[name] for name in names})
        return held, make_task(recipe, settings, trained_on)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"load_trained: {path} must be the folder of a training, got {type(error).__name__}: "
            f"{first_line(error)}."
        ) from error
