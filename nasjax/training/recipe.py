"""What a recipe says: data, network sizes, optimiser, schedule, regularisation."""

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from nasjax.errors import InputError, unknown_name
from nasjax.training.augment import Augmentation

SCHEDULES = {
    "cosine": "half a cosine from the first to the last learning rate",
    "linear": "a straight line between them",
}
UNITS = {
    "epoch": "the rate is constant within an epoch",
    "step": "the rate changes with every step",
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Stochastic gradient descent as PyTorch has it: gradients are clipped, the decayed weights are
    added to them, and momentum is taken of the sum.

    Attributes:
      data: what ``data.load_splits`` takes, where the user names none.
      networks: attributes of the network, by the name of its search space.
      epochs: passes over the examples; the examples beyond whole batches are left out, others in
        every epoch.
      batch_size: of a step, over all devices.
      learning_rate: the first.
      final_learning_rate: what the schedule ends with.
      schedule: a key of ``SCHEDULES``.
      schedule_unit: a key of ``UNITS``.
      warmup_epochs: in epoch ``e`` of these the rate is ``(e + 1) / warmup_epochs`` of the first.
      momentum: of the optimiser.
      is_nesterov: whether it is Nesterov's.
      weight_decay: of all parameters.
      clip_norm: greatest norm of a gradient; None does not clip.
      label_smoothing: the part of a label that is spread over all classes.
      auxiliary_weight: of the auxiliary head's loss, for networks that have one.
      drop_path_rate: what the probability to drop a path grows to, in proportion to the epoch.
      augmentation: of the images.
      moments: mean and standard deviation of each channel, in the unit of stored images; None
        takes those of the examples to train with.
      image_size: height and width in pixels; None keeps those stored.
      initialization: a key of ``networks.INITIALIZATIONS``.
      held_out: the part of the examples to train with that is kept apart and tested with instead.
      is_path_drawn: whether the network is a one-shot network of which every step trains one
        uniformly drawn architecture.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    data: str
    networks: Mapping[str, Mapping[str, Any]]
    epochs: int
    batch_size: int
    learning_rate: float
    final_learning_rate: float = 0.0
    schedule: str = "cosine"
    schedule_unit: str = "epoch"
    warmup_epochs: int = 0
    momentum: float = 0.9
    is_nesterov: bool = False
    weight_decay: float = 3e-4
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    auxiliary_weight: float = 0.0
    drop_path_rate: float = 0.0
    augmentation: Augmentation = Augmentation()
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    image_size: int | None = None
    initialization: str = "pytorch"
    held_out: float = 0.0
    is_path_drawn: bool = False

    def __post_init__(self):
        """Checks every value."""
        if self.schedule not in SCHEDULES:
            raise unknown_name("Recipe", "schedule", self.schedule, SCHEDULES)
        if self.schedule_unit not in UNITS:
            raise unknown_name("Recipe", "unit of the schedule", self.schedule_unit, UNITS)
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option}: must be at least 1, got {getattr(self, name)}.")
        for name in ("learning_rate", "final_learning_rate", "weight_decay", "auxiliary_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"Recipe: `{name}` must be a number >= 0, got {value}.")
        for name in ("momentum", "label_smoothing", "drop_path_rate", "held_out"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"Recipe: `{name}` must be at least 0 and below 1, got {getattr(self, name)}."
                )
        if not 0 <= self.warmup_epochs < max(self.epochs, 1):
            raise InputError(
                f"Recipe: `warmup_epochs` must be fewer than the {self.epochs} epochs, got "
                f"{self.warmup_epochs}. Train for more epochs (--epochs), or change it in a recipe "
                "of your own."
            )
        frozen = {space: MappingProxyType(dict(kind)) for space, kind in self.networks.items()}
        object.__setattr__(self, "networks", MappingProxyType(frozen))

    def learning_rate_at(self, step: Array, steps_per_epoch: int) -> Float[Array, ""]:
        """The learning rate of a step, which counts from 0."""
        epoch = step / steps_per_epoch
        if self.schedule_unit == "epoch":
            epoch = step // steps_per_epoch
        done = (epoch - self.warmup_epochs) / (self.epochs - self.warmup_epochs)
        done = jnp.clip(done, 0.0, 1.0)
        part = 1.0 - done if self.schedule == "linear" else (1.0 + jnp.cos(jnp.pi * done)) / 2
        span = self.learning_rate - self.final_learning_rate
        rate = self.final_learning_rate + span * part
        if self.warmup_epochs:
            growth = (step // steps_per_epoch + 1) / self.warmup_epochs
            rate = jnp.where(growth < 1, growth * self.learning_rate, rate)
        return rate

    def drop_path_rate_at(self, step: Array, steps_per_epoch: int) -> Float[Array, ""]:
        """The probability to drop a path in a step: 0 in the first epoch."""
        return self.drop_path_rate * (step // steps_per_epoch) / self.epochs

    def optimizer(self, steps_per_epoch: int) -> optax.GradientTransformation:
        """Turns gradients into updates."""
        clip = optax.identity()
        if self.clip_norm is not None:
            clip = optax.clip_by_global_norm(self.clip_norm)
        return optax.chain(
            clip,
            optax.add_decayed_weights(self.weight_decay),
            optax.sgd(
                lambda step: self.learning_rate_at(step, steps_per_epoch),
                momentum=self.momentum,
                nesterov=self.is_nesterov,
            ),
        )
