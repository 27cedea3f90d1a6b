"""Random search with weight sharing: one network's weights serve every architecture."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Bool, Float, Int

from nasjax.search.base import SearchAlgorithm
from nasjax.search.darts import DartsRates, LossFn, keep_where
from nasjax.types import Key, PyTree, Weights

SampleFn = Callable[[Key], Int[Array, " decisions"]]
OneHotFn = Callable[[Int[Array, " decisions"]], Weights]


class SharedState(NamedTuple):
    """What the training of shared weights carries from step to step.

    Attributes:
      num_steps: steps taken, those that failed included.
      num_failed: how many changed nothing.
      params: of the one-shot network.
      weight_state: of the optimiser.
    """

    num_steps: Int[Array, ""]
    num_failed: Int[Array, ""]
    params: PyTree
    weight_state: PyTree


class SharedStepInfo(NamedTuple):
    """Record of a step; arrays of shape ``[]`` but for the genotype.

    Attributes:
      train_loss: of the drawn architecture, before the step.
      train_accuracy: likewise, a fraction.
      is_finite: whether loss and gradient are; where not, the step changes nothing.
      genotype: the drawn architecture, ``[decisions]``.
    """

    train_loss: Float[Array, ""]
    train_accuracy: Float[Array, ""]
    is_finite: Bool[Array, ""]
    genotype: Int[Array, " decisions"]


def weight_sharing(
    loss_fn: LossFn,
    *,
    init_params: Callable[[Key], PyTree],
    sample: SampleFn,
    one_hot: OneHotFn,
    num_steps: int,
    rates: DartsRates | None = None,
) -> SearchAlgorithm:
    """Trains shared weights: every step descends with one uniformly drawn architecture.

    ``candidate_search`` then finds an architecture with these weights.

    Args:
      loss_fn: ``(params, weights, x, y) -> (loss, accuracy)``.
      init_params: ``key -> params``.
      sample: ``key -> genotype``, uniform.
      one_hot: ``genotype -> weights``; as the genotype is traced, one compilation serves all.
      num_steps: of the whole training, over which the learning rate falls.
      rates: of the weights; None takes ``DartsRates()``, which Li and Talwalkar have, too.

    Returns:
      The search, ``step(key, state, train)`` with ``(x, y)``. A step costs one gradient.

    References:
      Li and Talwalkar, `Random search and reproducibility for neural architecture search
      <https://arxiv.org/abs/1902.07638>`_, 2020, sec. 3.
    """
    optimizer = (rates or DartsRates()).weight_optimizer(num_steps)

    def init(key):
        params = init_params(key)
        return SharedState(jnp.int32(0), jnp.int32(0), params, optimizer.init(params))

    def step(key, state, train):
        genotype = sample(key)
        (loss, accuracy), gradient = jax.value_and_grad(loss_fn, has_aux=True)(
            state.params, one_hot(genotype), *train
        )
        updates, weight_state = optimizer.update(gradient, state.weight_state, state.params)
        is_finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(gradient))
        params = optax.apply_updates(state.params, updates)
        after = state._replace(params=params, weight_state=weight_state)
        info = SharedStepInfo(loss, accuracy, is_finite, genotype)
        return keep_where(is_finite, after, state), info

    return SearchAlgorithm(init, step)


class CandidateState(NamedTuple):
    """The best candidate so far.

    Attributes:
      num_steps: candidates evaluated.
      num_failed: how many of them had a loss that is not finite.
      genotype: the best, ``[decisions]``; of no meaning while ``loss`` is infinite.
      loss: its validation loss.
      accuracy: its validation accuracy, a fraction.
    """

    num_steps: Int[Array, ""]
    num_failed: Int[Array, ""]
    genotype: Int[Array, " decisions"]
    loss: Float[Array, ""]
    accuracy: Float[Array, ""]


class CandidateInfo(NamedTuple):
    """Record of a candidate: its validation loss, accuracy and genotype."""

    validation_loss: Float[Array, ""]
    validation_accuracy: Float[Array, ""]
    is_finite: Bool[Array, ""]
    genotype: Int[Array, " decisions"]


def candidate_search(loss_fn: LossFn, *, sample: SampleFn, one_hot: OneHotFn) -> SearchAlgorithm:
    """Draws architectures and keeps the one with the least validation loss under shared weights.

    The loss decides, not the accuracy: of few examples many candidates have the same accuracy. A
    loss that is not finite never wins; of equals the first does.

    Args:
      loss_fn: ``(params, weights, x, y) -> (loss, accuracy)``.
      sample: ``key -> genotype``, uniform.
      one_hot: ``genotype -> weights``.

    Returns:
      The search, ``step(key, state, params, validation)``, with the same ``(x, y)`` in every step.
      A step costs one evaluation of the loss.

    References:
      As ``weight_sharing``.
    """

    def init(key):
        genotype = jnp.zeros_like(sample(key))
        zero, infinity = jnp.float32(0), jnp.float32(jnp.inf)
        return CandidateState(jnp.int32(0), jnp.int32(0), genotype, infinity, zero)

    def step(key, state, params, validation):
        genotype = sample(key)
        loss, accuracy = loss_fn(params, one_hot(genotype), *validation)
        is_finite = jnp.isfinite(loss)
        is_better = is_finite & (loss < state.loss)
        found = CandidateState(
            state.num_steps + 1,
            state.num_failed + ~is_finite,
            *(
                jnp.where(is_better, new, old)
                for new, old in zip((genotype, loss, accuracy), state[2:], strict=True)
            ),
        )
        return found, CandidateInfo(loss, accuracy, is_finite, genotype)

    return SearchAlgorithm(init, step)
