"""DARTS: network weights and a relaxed architecture descend in turn, each on its own examples."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Bool, Float, Int

from nasjax.errors import InputError
from nasjax.search.base import SearchAlgorithm
from nasjax.types import Key, Labels, PyTree, Weights

DARTS_ORDERS = {
    1: "the architecture's gradient at the weights as they are (xi = 0)",
    2: "at the weights after a step of theirs, differentiated through that step",
}


class LossFn(Protocol):
    """What weights and architecture descend."""

    def __call__(
        self, params: PyTree, weights: Weights, x: Array, y: Labels
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The loss and the accuracy (a fraction) of a batch.

        Args:
          params: of the one-shot network.
          weights: relaxed or one-hot architecture weights.
          x: ``[batch, ...]``.
          y: ``[batch]``.
        """
        ...


@dataclasses.dataclass(frozen=True)
class DartsRates:
    """How weights and architecture descend; the values of Liu et al.

    Attributes:
      learning_rate: the weights' first; it falls along half a cosine over all steps.
      final_learning_rate: the weights' last.
      momentum: of the weights.
      weight_decay: of the weights, added to their gradient.
      clip_norm: greatest norm of the weights' gradient.
      architecture_learning_rate: of the architecture variables, by Adam.
      architecture_weight_decay: of the architecture variables, added to their gradient.

    Raises:
      InputError: if a value is out of its range.
    """

    learning_rate: float = 0.025
    final_learning_rate: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 3e-4
    clip_norm: float = 5.0
    architecture_learning_rate: float = 3e-4
    architecture_weight_decay: float = 1e-3

    def __post_init__(self):
        """Checks the values."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_positive = field.name in ("learning_rate", "clip_norm")
            if not (math.isfinite(value) and (value > 0 if is_positive else value >= 0)):
                least = "> 0" if is_positive else ">= 0"
                raise InputError(
                    f"DartsRates: `{field.name}` must be a number {least}, got {value}."
                )
        if self.momentum >= 1:
            raise InputError(f"DartsRates: `momentum` must be below 1, got {self.momentum}.")

    def weight_optimizer(
        self, num_steps: int, *, use_clipping: bool = True
    ) -> optax.GradientTransformation:
        """Stochastic gradient descent of the weights; with or without clipping on equal states."""
        clip = optax.clip_by_global_norm(self.clip_norm) if use_clipping else optax.identity()
        schedule = optax.cosine_decay_schedule(
            self.learning_rate, num_steps, self.final_learning_rate / self.learning_rate
        )
        return optax.chain(
            clip,
            optax.add_decayed_weights(self.weight_decay),
            optax.sgd(schedule, momentum=self.momentum),
        )

    def architecture_optimizer(self) -> optax.GradientTransformation:
        """Adam with the decay in the gradient, as PyTorch has it."""
        return optax.chain(
            optax.add_decayed_weights(self.architecture_weight_decay),
            optax.adam(self.architecture_learning_rate, b1=0.5, b2=0.999),
        )


class DartsState(NamedTuple):
    """What DARTS carries from step to step.

    Attributes:
      num_steps: steps taken, those that failed included.
      num_failed: how many changed nothing.
      params: of the one-shot network.
      weight_state: of the weights' optimiser.
      variables: of the architecture.
      architecture_state: of the architecture's optimiser.
    """

    num_steps: Int[Array, ""]
    num_failed: Int[Array, ""]
    params: PyTree
    weight_state: PyTree
    variables: PyTree
    architecture_state: PyTree


class DartsStepInfo(NamedTuple):
    """Record of a step; arrays of shape ``[]``, accuracies as fractions.

    Attributes:
      train_loss: before the weights' step, with the architecture after its own.
      train_accuracy: likewise.
      validation_loss: before the architecture's step; of order 2, at the weights looked ahead to.
      validation_accuracy: likewise.
      is_finite: whether both losses and both gradients are; where not, the step changes nothing.
    """

    train_loss: Float[Array, ""]
    train_accuracy: Float[Array, ""]
    validation_loss: Float[Array, ""]
    validation_accuracy: Float[Array, ""]
    is_finite: Bool[Array, ""]


def darts(
    loss_fn: LossFn,
    *,
    init_params: Callable[[Key], PyTree],
    variables: PyTree,
    relax: Callable[[PyTree], Weights],
    project: Callable[[PyTree], PyTree],
    num_steps: int,
    order: int = 1,
    rates: DartsRates | None = None,
) -> SearchAlgorithm:
    r"""Differentiable architecture search on two levels.

    A step moves the architecture variables down the loss of a validation batch by Adam and projects
    them, then moves the weights down the loss of a training batch by gradient descent with momentum
    ``mu``. Of order 2 the first gradient is that of

    .. math:: L_{val}(w'(a), a), \quad
      w'(a) = w - \xi (\mu v + \nabla_w L_{train}(w, a) + \lambda w)

    with ``xi`` the weights' learning rate of that step. Liu et al. approximate the derivative of
    ``w'`` by finite differences of the gradient; here it is exact, by differentiating through
    the step. Like theirs, the step that is looked ahead to does not clip the gradient.

    Args:
      loss_fn: ``(params, weights, x, y) -> (loss, accuracy)``.
      init_params: ``key -> params``.
      variables: what the architecture starts with, float arrays.
      relax: ``variables -> weights`` of the one-shot network, differentiable.
      project: brings variables back to where they may be, after each update.
      num_steps: of the whole search, over which the weights' learning rate falls.
      order: a key of ``DARTS_ORDERS``.
      rates: how they descend; None takes ``DartsRates()``.

    Returns:
      The search, ``step(key, state, train, validation)`` with ``(x, y)`` each; ``key`` is not used.
      A step costs two gradients of order 1, about five of order 2.

    Raises:
      InputError: when built, if ``order`` is unknown or ``num_steps`` below 1.

    References:
      Liu et al., `DARTS: Differentiable architecture search <https://arxiv.org/abs/1806.09055>`_,
      2019, Algorithm 1, eq. (5) to (8).
    """
    if order not in DARTS_ORDERS:
        raise InputError(f"darts: `order` must be 1 or 2, got {order}.")
    if num_steps < 1:
        raise InputError(f"darts: `num_steps` must be at least 1, got {num_steps}.")
    rates = rates or DartsRates()
    weight_optimizer = rates.weight_optimizer(num_steps)
    look_ahead = rates.weight_optimizer(num_steps, use_clipping=False)
    architecture_optimizer = rates.architecture_optimizer()

    def init(key):
        params = init_params(key)
        return DartsState(
            num_steps=jnp.int32(0),
            num_failed=jnp.int32(0),
            params=params,
            weight_state=weight_optimizer.init(params),
            variables=variables,
            architecture_state=architecture_optimizer.init(variables),
        )

    def validation_loss(variables, state, train, validation):
        params, weights = state.params, relax(variables)
        if order == 2:
            gradient = jax.grad(loss_fn, has_aux=True)(params, weights, *train)[0]
            updates, _ = look_ahead.update(gradient, state.weight_state, params)
            params = optax.apply_updates(params, updates)
        return loss_fn(params, weights, *validation)

    def step(key, state, train, validation):
        del key  # the batches are drawn by the caller
        (held_loss, held_accuracy), slope = jax.value_and_grad(validation_loss, has_aux=True)(
            state.variables, state, train, validation
        )
        updates, architecture_state = architecture_optimizer.update(
            slope, state.architecture_state, state.variables
        )
        moved = project(optax.apply_updates(state.variables, updates))
        (train_loss, train_accuracy), gradient = jax.value_and_grad(loss_fn, has_aux=True)(
            state.params, relax(moved), *train
        )
        updates, weight_state = weight_optimizer.update(gradient, state.weight_state, state.params)
        measured = (held_loss, train_loss, optax.tree.norm(slope), optax.tree.norm(gradient))
        is_finite = jnp.all(jnp.isfinite(jnp.stack(measured)))
        after = state._replace(
            params=optax.apply_updates(state.params, updates),
            weight_state=weight_state,
            variables=moved,
            architecture_state=architecture_state,
        )
        state = keep_where(is_finite, after, state)
        return state, DartsStepInfo(train_loss, train_accuracy, held_loss, held_accuracy, is_finite)

    return SearchAlgorithm(init, step)


def keep_where(is_finite: Bool[Array, ""], after, before):
    """The state after a step, or where that failed the one before, with the step counted."""
    kept = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), after, before)
    return kept._replace(num_steps=before.num_steps + 1, num_failed=before.num_failed + ~is_finite)
