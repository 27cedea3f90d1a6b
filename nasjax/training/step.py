"""One step of training and of testing: pure functions that run on every device at once."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jaxtyping import Float, Int

from nasjax.networks import init_params
from nasjax.networks.drop_path import DropPath
from nasjax.training import parallel
from nasjax.training.augment import augmented, standardised
from nasjax.training.recipe import Recipe
from nasjax.types import Images, Key, Labels, PyTree, Weights


class Totals(NamedTuple):
    """Sums over examples.

    Attributes:
      loss: of the cross-entropies, in nats.
      num_correct: of the examples whose largest logit is the label's.
      num_examples: how many there were.
    """

    loss: Float[Array, ""]
    num_correct: Int[Array, ""]
    num_examples: Int[Array, ""]


class TrainState(NamedTuple):
    """Everything that a step depends on but the data and the settings.

    Attributes:
      step: how many were made.
      params: of the network.
      batch_stats: running batch statistics.
      opt_state: of the optimiser.
      totals: over the epoch under way, of the network as it was at each step.
    """

    step: Int[Array, ""]
    params: PyTree
    batch_stats: PyTree
    opt_state: PyTree
    totals: Totals


class Task(NamedTuple):
    """What is trained, on which kind of data.

    Attributes:
      network: without a mapped axis. ``network.apply(variables, x)`` gives logits; a one-shot
        network takes weights before ``x``.
      recipe: how it is trained.
      image_shape: ``(height, width, channels)``.
      mean: of each channel, in the unit of the images.
      std: standard deviation likewise.
      steps_per_epoch: whole batches.
      seed: of augmentation, dropped paths and drawn architectures.
      draw_weights: of a one-shot network: ``key -> weights`` of a uniformly drawn architecture.
      compute_dtype: ``"float32"`` or ``"bfloat16"``, of activations; parameters are float32.
      num_parts: micro-batches a device's part of a batch is cut into, one after the other.
    """

    network: nn.Module
    recipe: Recipe
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    steps_per_epoch: int
    seed: int
    draw_weights: Callable[[Key], Weights] | None = None
    compute_dtype: str = "float32"
    num_parts: int = 1


def zero_totals() -> Totals:
    """Of no examples."""
    return Totals(np.zeros((), np.float32), np.zeros((), np.int32), np.zeros((), np.int32))


def init_state(task: Task, key: Key) -> TrainState:
    """The state before the first step, on the host.

    Args:
      task: what is trained.
      key: of the initial parameters.

    Returns:
      The state.
    """
    x = jax.ShapeDtypeStruct((1, *task.image_shape), jnp.float32)
    args = (x,) if task.draw_weights is None else (jax.eval_shape(task.draw_weights, key), x)
    params = init_params(key, task.network, *args)
    shapes = jax.eval_shape(task.network.init, key, *args).get("batch_stats", {})
    start = {"mean": np.zeros, "var": np.ones}
    batch_stats = jax.tree.map_with_path(
        lambda path, leaf: start[path[-1].key](leaf.shape, np.float32), shapes
    )
    opt_state = task.recipe.optimizer(task.steps_per_epoch).init(params)
    return jax.device_get(
        TrainState(np.zeros((), np.int32), params, batch_stats, opt_state, zero_totals())
    )


def train_step(task: Task) -> Callable[[TrainState, Images, Labels], TrainState]:
    """A step of training, for ``Parallel.map``.

    Random choices depend on seed, step and an example's place in the joint batch alone, so that any
    number of devices makes the same step but for rounding.

    Args:
      task: what is trained.

    Returns:
      ``(state, images, labels) -> state``, of a device's part of the batch: ``[part, height, width,
      channels]`` as stored, and ``[part]``.
    """
    recipe = task.recipe
    network = _over_devices(task.network)
    optimizer = recipe.optimizer(task.steps_per_epoch)

    def step(state: TrainState, images: Images, labels: Labels) -> TrainState:
        key = jax.random.fold_in(jax.random.key(task.seed), state.step)
        image_key, path_key, weights_key = jax.random.split(key, 3)
        place = parallel.positions(len(labels))
        batch = (_fold_in(image_key, place), _fold_in(path_key, place), images, labels)
        weights = None if task.draw_weights is None else task.draw_weights(weights_key)
        rate = recipe.drop_path_rate_at(state.step, task.steps_per_epoch)

        def part(batch_stats, batch):
            image_keys, path_keys, images, labels = batch
            x = augmented(recipe.augmentation, image_keys, images, task.mean, task.std)
            drop = None
            if recipe.drop_path_rate and task.draw_weights is None:
                drop = _draw_paths(network, rate, path_keys)
            loss_fn = jax.value_and_grad(_loss, argnums=1, has_aux=True)
            (_, (batch_stats, totals)), gradient = loss_fn(
                task, state.params, batch_stats, weights, x, labels, network, drop
            )
            return batch_stats, (gradient, totals)

        batch_stats, (gradient, totals) = _in_parts(task.num_parts, part, state.batch_stats, batch)
        gradient = parallel.mean_over_devices(gradient)
        totals = parallel.sum_over_devices(totals)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        is_new = state.step % task.steps_per_epoch == 0
        before = jax.tree.map(lambda total: jnp.where(is_new, 0, total), state.totals)
        return TrainState(
            state.step + 1,
            optax.apply_updates(state.params, updates),
            batch_stats,
            opt_state,
            jax.tree.map(jnp.add, before, totals),
        )

    return step


def _fold_in(key: Key, places: Array) -> Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, places)


def _draw_paths(network: nn.Module, rate: Array, keys: Array) -> DropPath:
    draws = jax.vmap(lambda key: jax.random.uniform(key, (network.num_paths,)))(keys)
    return DropPath(rate, draws)


def _in_parts(num_parts: int, part: Callable, batch_stats, batch):
    """``part`` over micro-batches: last statistics, mean of gradients, sums of totals."""
    if num_parts == 1:
        return part(batch_stats, batch)
    batch = jax.tree.map(lambda leaf: leaf.reshape(num_parts, -1, *leaf.shape[1:]), batch)
    batch_stats, (gradients, totals) = lax.scan(part, batch_stats, batch)
    gradient = jax.tree.map(lambda leaf: leaf.mean(0), gradients)
    return batch_stats, (gradient, jax.tree.map(lambda leaf: leaf.sum(0), totals))


def _loss(task: Task, params, batch_stats, weights, x, labels, network, drop):
    """The mean loss that is differentiated, and running statistics and totals beside it."""
    x, cast = _cast(task, params, x)
    args = (x,) if weights is None else (weights, x)
    kwargs = {} if drop is None else {"drop_path": drop}
    variables = {"params": cast, "batch_stats": batch_stats}
    mutable = ["batch_stats", "auxiliary"]
    logits, changed = network.apply(variables, *args, mutable=mutable, **kwargs)
    smooth = task.recipe.label_smoothing
    loss = _cross_entropy(logits, labels, smooth).mean()
    for auxiliary in jax.tree.leaves(changed.get("auxiliary", {})):
        weight = task.recipe.auxiliary_weight
        loss += weight * _cross_entropy(auxiliary, labels, smooth).mean()
    totals = _totals(logits, labels, jnp.ones(labels.shape, bool))
    return loss, (changed.get("batch_stats", {}), totals)


def _cast(task: Task, params, x):
    """Images and parameters in the type that is computed in."""
    if task.compute_dtype == "float32":
        return x, params
    dtype = jnp.dtype(task.compute_dtype)
    return x.astype(dtype), jax.tree.map(lambda leaf: leaf.astype(dtype), params)


def _cross_entropy(logits, labels, smoothing):
    """``[batch]``, in nats."""
    targets = jax.nn.one_hot(labels, logits.shape[-1])
    targets = (1.0 - smoothing) * targets + smoothing / logits.shape[-1]
    return optax.softmax_cross_entropy(logits.astype(jnp.float32), targets)


def _totals(logits, labels, is_counted) -> Totals:
    losses = _cross_entropy(logits, labels, 0.0)
    is_correct = (jnp.argmax(logits, -1) == labels) & is_counted
    return Totals(
        jnp.sum(jnp.where(is_counted, losses, 0.0)),
        jnp.sum(is_correct, dtype=jnp.int32),
        jnp.sum(is_counted, dtype=jnp.int32),
    )


def evaluation_step(task: Task) -> Callable[..., Totals]:
    """A step of testing, for ``Parallel.map``.

    Args:
      task: what is tested. Networks without running statistics normalise by the batch at hand.

    Returns:
      ``(state, images, labels, is_counted[, weights]) -> Totals`` over all devices, of a device's
      part; ``is_counted`` ``[part]`` is false where the batch is filled up.
    """
    network = _over_devices(task.network)

    def step(state: TrainState, images, labels, is_counted, *weights) -> Totals:
        x = standardised(images, task.mean, task.std)
        x, params = _cast(task, state.params, x)
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits = network.apply(variables, *weights, x)
        return parallel.sum_over_devices(_totals(logits, labels, is_counted))

    return step


def _over_devices(network: nn.Module) -> nn.Module:
    """The network with batch statistics, if it has any, that are averaged over the devices."""
    if not hasattr(network.config, "batch_axis"):
        return network
    config = dataclasses.replace(network.config, batch_axis=parallel.AXIS)
    return network.clone(config=config)
