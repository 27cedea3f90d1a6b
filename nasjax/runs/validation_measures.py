"""What a validation measures of one architecture: trace norms and their approximations."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nasjax.networks import LayerConfig, init_params, one_shot_network, whole_one_shot_network
from nasjax.ntk import (
    batch_loss_trace_norm,
    cell_network_ntk,
    mlp_ntk,
    per_example_traces,
    random_trace_norm,
    summed_loss_trace_norm,
)
from nasjax.runs import batch
from nasjax.runs.batch import Batch, network_inputs
from nasjax.runs.nasi import IMAGE_SIZE
from nasjax.spaces import Space, get_space, mlp_space
from nasjax.spaces.mlp import split_genotype
from nasjax.types import Key, Weights

_INFINITE_EXAMPLES, _INFINITE_IMAGE_SIZE = 4, 8
_NUM_DRAWS = 8
"""Gradients of a coupled batch in one random estimate."""

MeasureFn = Callable[[np.ndarray], dict[str, float]]
"""``(genotype) -> numbers`` by name."""


def load_batch(settings, data_key: Key, batch_key: Key) -> Batch:
    """The largest batch of a validation.

    Args:
      settings: a ``ValidationSettings``.
      data_key: for random data.
      batch_key: chooses the examples.

    Returns:
      The batch, as the networks of the space take it.

    Raises:
      InputError: if the data cannot be had or are fewer than the largest batch.
    """
    return batch.load_batch(
        settings.space,
        settings.data,
        settings.batch_sizes[-1],
        image_size=IMAGE_SIZE,
        option="--batch-sizes",
        data_key=data_key,
        batch_key=batch_key,
    )


def space_of(settings) -> Space:
    """The space of a validation; that of ``mlp`` has the depth that is asked for."""
    return mlp_space(settings.cells) if settings.space == "mlp" else get_space(settings.space)


class _Programs(NamedTuple):
    """Compiled functions of ``(weights, params, x, ...)`` for every architecture of a space."""

    network: Any
    traces: Callable
    approximations: Callable
    batch_loss: Callable


@functools.lru_cache(maxsize=16)
def _programs(
    space: str,
    num_classes: int,
    channels: int,
    num_cells: int,
    initialization: str,
    normalization: str,
) -> _Programs:
    """Compiled once a process, whatever the data and the seed."""
    if space == "mlp":
        network = one_shot_network(
            space, num_outputs=num_classes, width=channels, initialization=initialization
        )
    else:
        config = LayerConfig(initialization, normalization)
        network = whole_one_shot_network(
            space,
            num_classes=num_classes,
            channels=channels,
            num_cells=num_cells,
            config=config,
        )
    coupling = "none" if normalization == "none" else "exact"

    def bound(weights):
        return lambda params, x: network.apply({"params": params}, weights, x)

    def traces(weights, params, x):
        return per_example_traces(bound(weights), params, x, coupling=coupling, outputs_at_once=1)

    def approximations(weights, params, x, y, key):
        num_draws = 1 if coupling == "none" else _NUM_DRAWS
        estimate = random_trace_norm(
            key, bound(weights), params, x, coupling=coupling, num_draws=num_draws
        )
        summed = summed_loss_trace_norm(bound(weights), params, x, y, coupling=coupling)
        return summed, batch_loss(weights, params, x, y), *estimate

    def batch_loss(weights, params, x, y):
        return batch_loss_trace_norm(bound(weights), params, x, y)

    return _Programs(network, jax.jit(traces), jax.jit(approximations), jax.jit(batch_loss))


def approximations(settings, space: Space, data: Batch, keys) -> MeasureFn:
    """Exact trace norm and approximations of single architectures.

    Args:
      settings: a ``ValidationSettings``.
      space: of the architectures.
      data: the largest batch.
      keys: ``params``, ``labels``, ``images`` and ``signs``.

    Returns:
      ``exact``, ``NAME_BATCH`` for each of ``APPROXIMATIONS`` and batch size, and ``AGNOSTIC``.
    """
    programs = _programs(
        *(settings.space, data.num_classes, settings.channels, settings.cells),
        *(settings.initialization, settings.normalization),
    )
    params = _params(programs, space, keys["params"], data.x)
    random_y = jax.random.randint(keys["labels"], data.y.shape, 0, data.num_classes)
    random_x = network_inputs(settings.space, jax.random.normal(keys["images"], data.x.shape))

    def measure(genotype):
        weights = _weights(space, genotype)
        numbers = {"exact": programs.traces(weights, params, data.x).sum()}
        for size in settings.batch_sizes:
            x, y = data.x[:size], data.y[:size]
            key = jax.random.fold_in(keys["signs"], size)
            found = programs.approximations(weights, params, x, y, key)
            numbers |= {f"{name}_{size}": value for name, value in zip(_NAMES, found, strict=True)}
        numbers["random_labels"] = programs.batch_loss(weights, params, data.x, random_y)
        numbers["random_data"] = programs.batch_loss(weights, params, random_x, random_y)
        return {name: float(value) for name, value in numbers.items()}

    return measure


_NAMES = ("summed_loss", "batch_loss", "random_outputs", "random_outputs_error")


def _weights(space: Space, genotype) -> Weights:
    return space.one_hot(jnp.asarray(genotype))


def _params(programs: _Programs, space: Space, key, x):
    weights = jax.eval_shape(lambda key: space.one_hot(space.sample(key)), key)
    return init_params(key, programs.network, weights, x[:2])


def widths(settings, space: Space, data: Batch, keys) -> MeasureFn:
    """Trace norms of single architectures at finite and at infinite width.

    Four examples are taken; images are first averaged to 8x8 pixels.

    Args:
      settings: a ``ValidationSettings`` of ``nasbench201`` or ``mlp``.
      space: of the architectures.
      data: its first examples are taken.
      keys: ``widths``.

    Returns:
      ``width_WIDTH`` for each width, and ``infinite``.
    """
    x = data.x[:_INFINITE_EXAMPLES]
    if settings.space == "nasbench201":
        side = IMAGE_SIZE // _INFINITE_IMAGE_SIZE
        shape = (len(x), _INFINITE_IMAGE_SIZE, side, _INFINITE_IMAGE_SIZE, side, x.shape[-1])
        x = x.reshape(shape).mean((2, 4))
    networks = {}
    for width in settings.widths:
        programs = _programs(settings.space, data.num_classes, width, 1, "ntk", "none")
        key = jax.random.fold_in(keys["widths"], width)
        networks[width] = programs.traces, _params(programs, space, key, x)

    def measure(genotype):
        weights = _weights(space, genotype)
        numbers = {
            f"width_{width}": float(traces(weights, params, x).sum())
            for width, (traces, params) in networks.items()
        }
        kernel = _infinite_kernel(settings.space, space, genotype, x)
        return numbers | {"infinite": data.num_classes * float(jnp.trace(kernel))}

    return measure


def _infinite_kernel(name: str, space: Space, genotype, x) -> jax.Array:
    if name == "mlp":
        return _mlp_kernel(*split_genotype(genotype), x)
    (graph,) = space.describe(genotype)
    return _cell_kernel(graph.edges)(x)


_mlp_kernel = jax.jit(lambda activations, skips, x: mlp_ntk(activations, skips, x).ntk)


@functools.lru_cache(maxsize=64)
def _cell_kernel(edges) -> Callable:
    return jax.jit(lambda x: cell_network_ntk(edges, x).ntk)
