"""What a training is asked to do, and what it starts from."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nasjax.data import Splits, hold_out, load_splits
from nasjax.data.images import channel_moments
from nasjax.errors import InputError, unknown_name
from nasjax.networks import LayerConfig, static_network, whole_one_shot_network
from nasjax.runs.folder import run_name
from nasjax.runs.options import check_seed
from nasjax.spaces import get_space, space_of
from nasjax.training import Augmentation, Jitter, Recipe, Task, get_recipe, steps_per_epoch

COMPUTE_DTYPES = ("float32", "bfloat16")
RUNNING_RATE = 0.1
"""PyTorch's momentum of running batch statistics."""

_OF_RECIPE = ("epochs", "batch_size", "learning_rate", "image_size", "held_out")


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Everything that the result of a training depends on, but for rounding.

    Attributes:
      space: the search space.
      architecture: the string or index of an architecture; None for recipes that draw one a step.
      recipe: what ``training.get_recipe`` takes.
      data: what ``data.load_splits`` takes; None takes the recipe's.
      test_data: with ``npz:PATH``, where the examples to test with are.
      image_size: height and width in pixels; None takes the recipe's, or keeps those stored.
      epochs: None takes the recipe's; so do those below.
      batch_size: over all devices.
      channels: of the first stage.
      cells: of the network.
      learning_rate: the first.
      held_out: the part of the examples to train with that is kept apart and tested with instead.
      num_parts: micro-batches of a device's part of a batch.
      compute_dtype: ``"float32"`` or ``"bfloat16"``.
      seed: of everything random.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    space: str = "nasbench201"
    architecture: str | None = None
    recipe: str = "quick"
    data: str | None = None
    test_data: str | None = None
    image_size: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    channels: int | None = None
    cells: int | None = None
    learning_rate: float | None = None
    held_out: float | None = None
    num_parts: int = 1
    compute_dtype: str = "float32"
    seed: int = 0

    def __post_init__(self):
        """Checks every value; fills in the data and the architecture's own notation."""
        recipe = get_recipe(self.recipe)
        if self.space not in recipe.networks:
            get_space(self.space)
            raise InputError(
                f"train: --recipe {self.recipe} has networks of {', '.join(recipe.networks)}, got "
                f"an architecture of {self.space}. Choose another recipe, or write one whose "
                f"`networks` has {self.space!r}."
            )
        if recipe.is_path_drawn and self.architecture is not None:
            raise InputError(
                f"train: --recipe {self.recipe} draws an architecture a step, so none must be "
                f"given, got {self.architecture!r}. Leave it out, or choose another recipe."
            )
        if not recipe.is_path_drawn and self.architecture is None:
            raise InputError(
                f"train: --recipe {self.recipe} trains one architecture, got none. Give its string "
                "or index, a file, or the folder of a run."
            )
        if self.data is None:
            object.__setattr__(self, "data", recipe.data)
        if self.architecture is not None:
            space = space_of(self.space, self.architecture)
            text = space.to_string(space.from_string(self.architecture))
            object.__setattr__(self, "architecture", text)
        for name in ("channels", "cells", "num_parts", "image_size"):
            value, option = getattr(self, name), "--" + name.replace("_", "-")
            if value is not None and value < 1:
                raise InputError(f"{option}: must be at least 1, got {value}.")
        if self.space == "mlp" and self.cells is not None:
            raise InputError(
                f"--cells: is of cells, and the layers of mlp are those of its string, got "
                f"{self.cells}. Leave it out."
            )
        if self.compute_dtype not in COMPUTE_DTYPES:
            raise unknown_name("--compute-dtype", "type", self.compute_dtype, COMPUTE_DTYPES)
        check_seed(self.seed)
        self.final_recipe()

    def final_recipe(self) -> Recipe:
        """The recipe, with what was given in the place of its own."""
        recipe = get_recipe(self.recipe)
        kind = dict(recipe.networks[self.space])
        width = "width" if self.space == "mlp" else "channels"
        kind |= {} if self.channels is None else {width: self.channels}
        kind |= {} if self.cells is None else {"num_cells": self.cells}
        given = {name: getattr(self, name) for name in _OF_RECIPE}
        given = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(recipe, networks={self.space: kind}, data=self.data, **given)

    def run_name(self) -> str:
        """A name for the run's folder: recipe, architecture in eight letters, what was given."""
        told = [Path(self.recipe).stem]
        if self.architecture is not None:
            told.append(hashlib.sha256(self.architecture.encode()).hexdigest()[:8])
        own = {name: getattr(self, name) for name in ("space", "architecture", "recipe")}
        prefix = "-".join(["train", *told])
        return run_name(prefix, self, TrainSettings(**own), left_out=("architecture", "recipe"))


class TrainedOn(NamedTuple):
    """What a network is made for by its data.

    Attributes:
      image_shape: ``(height, width, channels)``.
      num_classes: how many there are.
      mean: of each channel, in the unit of the images.
      std: standard deviation likewise.
      num_examples: to train with.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_examples: int


class Prepared(NamedTuple):
    """What a training starts from.

    Attributes:
      task: the network and how it is trained.
      splits: the data.
      trained_on: what the network has of them.
    """

    task: Task
    splits: Splits
    trained_on: TrainedOn


def prepare(settings: TrainSettings) -> Prepared:
    """Loads the data and makes the network's module.

    Raises:
      InputError: if the data cannot be had, or hold less than a batch.
    """
    recipe = settings.final_recipe()
    splits = load_examples(recipe, settings.data, settings.test_data, settings.seed)
    mean, std = recipe.moments or (splits.mean, splits.std)
    if len(mean) != splits.train.image_shape[-1]:
        raise InputError(
            f"train: --recipe {settings.recipe} has means of {len(mean)} channels, so images must "
            f"have them, got {splits.train.image_shape[-1]}. Choose other data or another recipe."
        )
    trained_on = TrainedOn(
        tuple(splits.train.image_shape),
        splits.num_classes,
        tuple(map(float, mean)),
        tuple(map(float, std)),
        splits.train.num_examples,
    )
    return Prepared(make_task(recipe, settings, trained_on), splits, trained_on)


def load_examples(recipe: Recipe, data: str, test_data: str | None, seed: int) -> Splits:
    """The data of a training, as its recipe takes them.

    Raises:
      InputError: if they cannot be had.
    """
    splits = load_splits(
        data,
        test=test_data,
        image_size=recipe.image_size,
        min_area=recipe.augmentation.min_area,
        seed=seed,
    )
    return _held_out(splits, recipe.held_out, seed) if recipe.held_out else splits


def make_task(recipe: Recipe, settings: TrainSettings, trained_on: TrainedOn) -> Task:
    """The network's module and how it is trained.

    Raises:
      InputError: for a dead network, or fewer examples than a batch.
    """
    space = space_of(settings.space, settings.architecture or "")
    kind = {**recipe.networks[settings.space], "num_classes": trained_on.num_classes}
    if settings.space == "mlp":
        kind["num_outputs"] = kind.pop("num_classes")
        network = static_network("mlp", space.from_string(settings.architecture), **kind)
    elif recipe.is_path_drawn:
        # Batch statistics of one architecture tell nothing about another's: none are kept.
        config = LayerConfig(recipe.initialization)
        network = whole_one_shot_network(settings.space, config=config, **kind)
    else:
        config = LayerConfig(recipe.initialization, use_affine=True, running_rate=RUNNING_RATE)
        genotype = space.from_string(settings.architecture)
        if not space.is_connected(genotype):
            raise InputError(
                f"train: the input must reach the output, got {settings.architecture}, a dead "
                "network. Choose another."
            )
        network = static_network(settings.space, genotype, config=config, **kind)
    return Task(
        network=network,
        recipe=recipe,
        image_shape=trained_on.image_shape,
        mean=trained_on.mean,
        std=trained_on.std,
        steps_per_epoch=steps_per_epoch(trained_on.num_examples, recipe.batch_size),
        seed=settings.seed,
        draw_weights=(
            (lambda key: space.one_hot(space.sample(key))) if recipe.is_path_drawn else None
        ),
        compute_dtype=settings.compute_dtype,
        num_parts=settings.num_parts,
    )


def plain_recipe(recipe: Recipe) -> dict[str, Any]:
    """A recipe as JSON holds it."""
    plain = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    plain["networks"] = {name: dict(kind) for name, kind in recipe.networks.items()}
    return plain | {"augmentation": dataclasses.asdict(recipe.augmentation)}


def recipe_of_plain(plain: Mapping[str, Any]) -> Recipe:
    """The recipe that ``plain_recipe`` wrote, whatever has become of its file.

    Raises:
      KeyError, TypeError: if it is no such recipe.
    """
    augmentation = dict(plain["augmentation"])
    augmentation["jitter"] = Jitter(**augmentation["jitter"])
    moments = plain["moments"] and tuple(tuple(values) for values in plain["moments"])
    changed = {"augmentation": Augmentation(**augmentation), "moments": moments}
    return Recipe(**{**plain, **changed})


def _held_out(splits: Splits, fraction: float, seed: int) -> Splits:
    kept, held = hold_out(splits.train, fraction, seed=seed)
    mean, std = channel_moments(kept.images)
    told = {"test": f"{fraction:g} of the examples to train with, drawn"}
    told |= {"num_train": kept.num_examples, "num_test": held.num_examples}
    return splits._replace(
        train=kept, test=held, mean=mean, std=std, provenance=splits.provenance | told
    )
