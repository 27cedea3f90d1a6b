"""What a validation measures of one architecture: trace norms and their approximations."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nasjax.data import load_data, sample_batch
from nasjax.errors import InputError
from nasjax.networks import LayerConfig, init_params, one_shot_network
from nasjax.ntk import (
    batch_loss_trace_norm,
    cell_network_ntk,
    mlp_ntk,
    per_example_traces,
    random_trace_norm,
    summed_loss_trace_norm,
)
from nasjax.runs.nasi import IMAGE_SIZE
from nasjax.spaces import Space, get_space, mlp_space
from nasjax.spaces.mlp import split_genotype
from nasjax.types import Key, Weights

_INFINITE_EXAMPLES, _INFINITE_IMAGE_SIZE = 4, 8
_NUM_DRAWS = 8
"""Gradients of a coupled batch in one random estimate."""

MeasureFn = Callable[[np.ndarray], dict[str, float]]
"""``(genotype) -> numbers`` by name."""


class ValidationData(NamedTuple):
    """The batch that a validation is made of.

    Attributes:
      x: ``[batch, 32, 32, 3]``; in ``mlp`` ``[batch, 3072]`` of norm 1, as Eigen-NAS has it.
      y: ``[batch]`` labels.
      num_classes: of the data set.
      provenance: where it comes from.
    """

    x: jax.Array
    y: jax.Array
    num_classes: int
    provenance: dict[str, Any]


def load_batch(settings, data_key: Key, batch_key: Key) -> ValidationData:
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
    largest = settings.batch_sizes[-1]
    is_random = settings.data == "random"
    dataset = load_data(
        settings.data,
        image_size=IMAGE_SIZE,
        num_examples=largest if is_random else None,
        key=data_key,
    )
    if largest > len(dataset.images):
        raise InputError(
            f"--batch-sizes: must be at most the {len(dataset.images)} images of {settings.data}, "
            f"got {largest}. Give smaller batches or more data."
        )
    x, y = sample_batch(batch_key, dataset.images, dataset.labels, largest)
    return ValidationData(_inputs(settings.space, x), y, dataset.num_classes, dataset.provenance)


def _inputs(space: str, x: jax.Array) -> jax.Array:
    if space != "mlp":
        return x
    x = x.reshape(len(x), -1)
    norms = jnp.linalg.norm(x, axis=1, keepdims=True)
    return x / jnp.where(norms > 0, norms, 1.0)


def space_of(settings) -> Space:
    """The space of a validation; that of ``mlp`` has the depth that is asked for."""
    return mlp_space(settings.cells) if settings.space == "mlp" else get_space(settings.space)


def draw_architectures(space: Space, count: int, key: Key) -> list[np.ndarray]:
    """Distinct connected architectures, the same ones first for every count."""
    found: dict[bytes, np.ndarray] = {}
    for draw in _draws(space, key):
        if space.is_connected(draw):
            found.setdefault(draw.tobytes(), draw)
        if len(found) == count:
            return list(found.values())
    raise AssertionError("unreachable")


def _draws(space: Space, key) -> Iterator[np.ndarray]:
    sample = jax.jit(jax.vmap(space.sample))
    block = 0
    while True:
        keys = jax.random.split(jax.random.fold_in(key, block), 256)
        yield from np.asarray(sample(keys))
        block += 1


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
        # A whole genotype of DARTS sums two edges a node, where a search draws one.
        edges = {"num_edges": 2} if space == "darts" else {}
        network = one_shot_network(
            space,
            num_classes=num_classes,
            channels=channels,
            num_cells=num_cells,
            config=config,
            **edges,
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


def approximations(settings, space: Space, data: ValidationData, keys) -> MeasureFn:
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
    random_x = _inputs(settings.space, jax.random.normal(keys["images"], data.x.shape))

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


def widths(settings, space: Space, data: ValidationData, keys) -> MeasureFn:
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
