"""What a search space is: a tuple of pure functions over fixed-shape integer arrays."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int32

from nasjax.errors import InputError, unknown_name
from nasjax.types import Key, Logits

Genotype = Int32[Array, "..."]
"""An architecture of ``Space.genotype_shape``; host functions take and return numpy arrays."""

MAX_TEXT_LENGTH = 10_000
"""Characters that ``from_string`` reads; every architecture needs fewer than 1,000."""


class CellGraph(NamedTuple):
    """One cell as a directed acyclic graph, for drawing.

    Attributes:
      name: of the cell.
      inputs: the nodes that are fed from outside.
      nodes: every node, inputs and output included, in topological order.
      output: the node that leaves the cell.
      edges: ``(source, target, label)``, several between the same two nodes where the cell has
        several; the label is the operation, or empty where an edge only passes its input on.
      node_operations: ``(node, operation)`` where operations stand at nodes: what the node does to
        the sum of its inputs. Edges have no labels then.
    """

    name: str
    inputs: tuple[str, ...]
    nodes: tuple[str, ...]
    output: str
    edges: tuple[tuple[str, str, str], ...]
    node_operations: tuple[tuple[str, str], ...] = ()


class SampleFn(Protocol):
    """Draws an architecture."""

    def __call__(self, key: Key) -> Genotype:
        """One architecture; may be jitted and mapped over keys."""
        ...


class MutateFn(Protocol):
    """Draws a neighbour of an architecture."""

    def __call__(self, key: Key, genotype: Genotype) -> Genotype:
        """Uniform over all genotypes that differ in one decision; may be jitted and mapped."""
        ...


class OneHotFn(Protocol):
    """Writes an architecture as weights of a one-shot network."""

    def __call__(self, genotype: Genotype) -> dict[str, Float[Array, "... choices"]]:
        """One-hot float32 weights by decision; may be jitted and mapped."""
        ...


class SelectFn(Protocol):
    """Chooses the final architecture of a search."""

    def __call__(self, logits: Logits) -> np.ndarray:
        """The most probable connected architecture under logits of the shapes of ``decisions``."""
        ...


class CanonicalFn(Protocol):
    """Chooses one member of a class of equivalent architectures."""

    def __call__(self, genotype: Genotype) -> np.ndarray:
        """The representative; applying the function again changes nothing."""
        ...


class IsConnectedFn(Protocol):
    """Tells whether an input reaches the output."""

    def __call__(self, genotype: Genotype) -> bool:
        """True if the output depends on an input."""
        ...


class ToStringFn(Protocol):
    """Writes an architecture in the notation of its field."""

    def __call__(self, genotype: Genotype) -> str:
        """One line."""
        ...


class FromStringFn(Protocol):
    """Reads an architecture."""

    def __call__(self, text: str) -> np.ndarray:
        """The genotype; an ``InputError`` says which part of the text cannot be read."""
        ...


class AllGenotypesFn(Protocol):
    """Lists a small space."""

    def __call__(self) -> np.ndarray | None:
        """Every genotype, ``[size, *genotype_shape]`` int32, or None for a large space."""
        ...


class DescribeFn(Protocol):
    """Writes an architecture as graphs."""

    def __call__(self, genotype: Genotype) -> list[CellGraph]:
        """One graph a cell."""
        ...


class Space(NamedTuple):
    """A search space.

    Functions of ``key`` and ``one_hot`` are traced by JAX; the others run on the host and raise
    ``InputError`` for a genotype of another shape or with values out of range.

    Attributes:
      name: as in the registry.
      genotype_shape: of the int32 array that is an architecture.
      operations: names of the operations, in the order of the integers that stand for them.
      size: number of genotypes that ``sample`` can draw, isomorphic ones counted apart.
      decisions: the categorical decisions of the one-shot network by name: boolean arrays
        ``[..., choices]``, True where the choice exists. Logits have these shapes.
      sample: ``(key) -> genotype``.
      mutate: ``(key, genotype) -> genotype``.
      one_hot: ``(genotype) -> weights``.
      select: ``(logits) -> genotype``.
      canonical: ``(genotype) -> genotype``.
      is_connected: ``(genotype) -> bool``.
      to_string: ``(genotype) -> str``.
      from_string: ``(text) -> genotype``.
      all_genotypes: ``() -> genotypes`` or None.
      describe: ``(genotype) -> cell graphs``.
    """

    name: str
    genotype_shape: tuple[int, ...]
    operations: tuple[str, ...]
    size: int
    decisions: Mapping[str, Bool[np.ndarray, "... choices"]]
    sample: SampleFn
    mutate: MutateFn
    one_hot: OneHotFn
    select: SelectFn
    canonical: CanonicalFn
    is_connected: IsConnectedFn
    to_string: ToStringFn
    from_string: FromStringFn
    all_genotypes: AllGenotypesFn
    describe: DescribeFn


def change_one_number(key: Key, genotype: Genotype, bounds: np.ndarray) -> Genotype:
    """Another value at one position, uniform over all such genotypes.

    Args:
      key: random key.
      genotype: ``[length]``.
      bounds: how many values each position may take.

    Returns:
      ``[length]`` int32, different in exactly one number.
    """
    # A neighbour is a position and a step from 1 below its bound.
    places = np.repeat(np.arange(len(bounds)), bounds - 1)
    steps = np.concatenate([np.arange(1, bound) for bound in bounds])
    drawn = jax.random.randint(key, (), 0, len(places))
    place, step = jnp.asarray(places)[drawn], jnp.asarray(steps, jnp.int32)[drawn]
    genotype = jnp.asarray(genotype, jnp.int32)
    bound = jnp.asarray(bounds, jnp.int32)[place]
    return genotype.at[place].set((genotype[place] + step) % bound)


def host_genotype(where: str, genotype: Genotype, bounds: np.ndarray) -> np.ndarray:
    """A genotype as a checked int32 numpy array.

    Args:
      where: the function that was called, for the message.
      genotype: integers of the shape of ``bounds``.
      bounds: how many values each position may take.

    Returns:
      A copy, int32.

    Raises:
      InputError: if the shape or the type differs, or a value is outside ``[0, bound)``.
    """
    array = np.asarray(genotype)
    if array.shape != bounds.shape or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"{where}: `genotype` must be integers of shape {list(bounds.shape)}, got "
            f"{array.dtype} of shape {list(array.shape)}."
        )
    outside = np.argwhere((array < 0) | (array >= bounds))
    if len(outside):
        place = tuple(outside[0].tolist())
        raise InputError(
            f"{where}: `genotype{list(place)}` must be between 0 and {bounds[place] - 1}, "
            f"got {array[place]}."
        )
    return array.astype(np.int32)


def host_logits(
    where: str, logits: Logits, decisions: Mapping[str, np.ndarray]
) -> dict[str, Float[np.ndarray, "... choices"]]:
    """Logits as float64 numpy arrays, minus infinity where the choice does not exist.

    Args:
      where: the function that was called, for the message.
      logits: one array a decision, of the shape in ``decisions``.
      decisions: ``Space.decisions``.

    Returns:
      A copy.

    Raises:
      InputError: if a decision is missing, has another shape, is NaN or plus infinity, or leaves
        no choice at all.
    """
    if set(logits) != set(decisions):
        raise InputError(
            f"{where}: `logits` must have the keys {sorted(decisions)}, got {sorted(logits)}."
        )
    checked = {}
    for name, exists in decisions.items():
        array = np.asarray(logits[name], np.float64)
        if array.shape != exists.shape:
            raise InputError(
                f"{where}: `logits[{name!r}]` must have shape {list(exists.shape)}, got "
                f"{list(array.shape)}."
            )
        array = np.where(exists, array, -np.inf)
        if np.isnan(array).any() or not np.isfinite(array.max(axis=-1)).all():
            raise InputError(
                f"{where}: `logits[{name!r}]` must be numbers below infinity, got NaN, infinity or "
                "only minus infinity. The search has diverged: lower its learning rate."
            )
        checked[name] = array
    return checked


def check_text(where: str, text: str) -> str:
    """The text without surrounding space, if it is a text of bearable length.

    Raises:
      InputError: if it is no string, empty, or longer than ``MAX_TEXT_LENGTH``.
    """
    if not isinstance(text, str):
        raise InputError(f"{where}: `text` must be a string, got {type(text).__name__}.")
    if len(text) > MAX_TEXT_LENGTH:
        raise InputError(
            f"{where}: `text` must have at most {MAX_TEXT_LENGTH:,} characters, got {len(text):,}. "
            "Give one architecture, not a file of them."
        )
    if not text.strip():
        raise InputError(f"{where}: `text` must be an architecture, got nothing.")
    return text.strip()


def operation_index(where: str, name: object, operations: tuple[str, ...]) -> int:
    """The integer of an operation.

    Raises:
      InputError: if there is no such operation, with the nearest name.
    """
    if not isinstance(name, str):
        raise InputError(f"{where}: an operation must be a name, got {excerpt(name)}.")
    if name not in operations:
        raise unknown_name(where, "operation", excerpt(name, quote=False), operations)
    return operations.index(name)


def excerpt(value: object, *, quote: bool = True) -> str:
    """The value as it may stand in a message: at most 60 characters, on one line."""
    text = repr(value) if quote else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
