"""Training of networks on every device of one machine or many: recipes, steps, checkpoints."""

from nasjax.training.augment import Augmentation
from nasjax.training.batches import steps_per_epoch
from nasjax.training.checkpoints import Checkpoints, Restored
from nasjax.training.jitter import Jitter
from nasjax.training.loop import DivergedError, Measured, evaluate, train
from nasjax.training.parallel import Parallel, join
from nasjax.training.recipe import SCHEDULES, Recipe
from nasjax.training.recipes import RECIPES, get_recipe
from nasjax.training.single_epoch import SingleEpoch, single_epoch_sgd
from nasjax.training.step import Task, TrainState, evaluation_step, init_state, train_step

__all__ = [
    "RECIPES",
    "SCHEDULES",
    "Augmentation",
    "Checkpoints",
    "DivergedError",
    "Jitter",
    "Measured",
    "Parallel",
    "Recipe",
    "Restored",
    "SingleEpoch",
    "Task",
    "TrainState",
    "evaluate",
    "get_recipe",
    "init_state",
    "join",
    "single_epoch_sgd",
    "steps_per_epoch",
    "evaluation_step",
    "train",
    "train_step",
]
