"""Kernels from blocks of Jacobian rows, so that the whole Jacobian is never held."""

import itertools
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from nasjax.errors import InputError
from nasjax.ntk.gradients import ApplyFn, output_gradients
from nasjax.types import PyTree

_PIECE = 2**17
"""Numbers of one block that are converted to float64 at a time: what stays in a cache."""


_PREFERRED_BYTES = 2**26
"""Size of a block of a traced kernel, where smaller blocks need no more gradients: writing to
memory that was not used before is what a larger one waits for."""


class NtkPlan(NamedTuple):
    """How a kernel is computed, and what that takes.

    Attributes:
      num_examples: ``batch``.
      num_rows: rows of the Jacobian.
      num_params: parameters of the network.
      block_examples: examples whose gradients are held together.
      block_outputs: outputs of each of these.
      num_blocks: blocks that the Jacobian is cut into.
      num_gradients: gradients of single outputs that are computed; more than the Jacobian has rows
        where blocks are computed again.
      jacobian_bytes: size of the whole Jacobian.
      forecast_bytes: most memory that gradients, what computes them and their products take at a
        time, by the compiler's analysis. On a CPU the process grows by some more, as the allocator
        keeps what was freed.
    """

    num_examples: int
    num_rows: int
    num_params: int
    block_examples: int
    block_outputs: int
    num_blocks: int
    num_gradients: int
    jacobian_bytes: int
    forecast_bytes: int


class _Block(NamedTuple):
    """Some outputs of some examples."""

    examples: range
    outputs: range


class BlockedNtk:
    """A kernel that is planned, then computed."""

    def __init__(
        self,
        apply_fn: ApplyFn,
        params: PyTree,
        x: Array,
        cotangents: Float[Array, "batch rows outputs"],
        *,
        is_traced: bool,
        coupling: str,
        devices: Sequence[jax.Device] | None,
    ):
        """Takes what ``output_gradients`` does.

        Args:
          apply_fn: ``(params, x) -> [batch, outputs]``.
          params: its parameters.
          x: ``[batch, ...]``.
          cotangents: ``[batch, rows, outputs]``.
          is_traced: whether the kernel is summed over the rows of an example.
          coupling: a key of ``COUPLINGS``.
          devices: that examples are spread over, or None.
        """
        self._apply_fn, self._is_traced, self._coupling = apply_fn, is_traced, coupling
        self._mesh = Mesh(np.array(devices), ("devices",)) if devices else None
        spread = (lambda tree: tree) if self._mesh is None else self._replicated
        self._params, self._x = spread(params), spread(x)
        self._cotangents = np.asarray(cotangents)

    def _replicated(self, tree):
        return jax.device_put(tree, NamedSharding(self._mesh, PartitionSpec()))

    @property
    def _row_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._params))

    @property
    def _num_devices(self) -> int:
        return 1 if self._mesh is None else self._mesh.size

    def plan(self, where: str, memory_budget_bytes: int) -> NtkPlan:
        """Chooses blocks that fit the budget; compiles the program.

        Raises:
          InputError: if one row does not fit.
        """
        if not isinstance(memory_budget_bytes, int | float | np.number):
            raise InputError(
                f"{where}: `memory_budget_bytes` must be a number, got {memory_budget_bytes!r}."
            )
        row_bytes, needed = self._row_bytes, 0
        num_examples, num_rows = self._cotangents.shape[:2]
        capacity = min(int(memory_budget_bytes // row_bytes), 2 * num_examples * num_rows)
        while (shape := self._block_shape(capacity)) is not None:
            blocks = self._blocks(*shape)
            held = (1 + (len(blocks[0]) > 1)) * shape[0] * shape[1] * row_bytes
            need = held + max(self._temporary_bytes(shape), self._piece_bytes(shape))
            needed = min(needed or need, need)
            if need <= memory_budget_bytes:
                count = sum(len(group) for group in blocks)
                return NtkPlan(
                    num_examples=num_examples,
                    num_rows=num_examples * num_rows,
                    num_params=sum(leaf.size for leaf in jax.tree.leaves(self._params)),
                    block_examples=shape[0],
                    block_outputs=shape[1],
                    num_blocks=count,
                    num_gradients=sum(map(_count_gradients, blocks)),
                    jacobian_bytes=num_examples * num_rows * row_bytes,
                    forecast_bytes=need,
                )
            # Part of the need does not shrink with the block: no step is longer than to a half.
            wanted = int(0.95 * capacity * memory_budget_bytes / need)
            capacity = min(capacity - 1, max(wanted, capacity // 2))
        at_once = 2 * (num_examples if self._coupling == "mapped" else self._num_devices)
        raise InputError(
            f"{where}: `memory_budget_bytes` must hold {at_once} gradients of "
            f"{_in_words(row_bytes)} each and what computes them"
            f"{f', {needed} bytes in all' if needed else ''}, got {memory_budget_bytes}. Raise it, "
            "or take a smaller network or batch."
        )

    def _block_shape(self, capacity: int) -> tuple[int, int] | None:
        """``(examples, outputs)`` of a block where so many rows may be held, None for none."""
        num_examples, num_rows = self._cotangents.shape[:2]
        multiple = self._num_devices
        padded = -(-num_examples // multiple) * multiple
        if self._is_traced and padded <= capacity:
            preferred = _PREFERRED_BYTES // (padded * self._row_bytes)
            return padded, _even_part(num_rows, min(capacity // padded, max(preferred, 2)))
        if padded * num_rows <= capacity:
            return padded, num_rows
        half = capacity // 2  # two blocks at a time
        if self._coupling == "mapped":  # all examples at once, or none
            return (padded, half // padded) if half >= padded and not self._is_traced else None
        if half < multiple:
            return None
        if self._is_traced:
            return half // multiple * multiple, 1
        if half >= multiple * num_rows:
            return half // num_rows // multiple * multiple, num_rows
        return multiple, half // multiple

    def _blocks(self, num_examples: int, num_outputs: int) -> list[list[_Block]]:
        """Groups of blocks; only blocks of a group have products."""
        size, num_rows = self._cotangents.shape[:2]
        examples = [range(s, min(s + num_examples, size)) for s in range(0, size, num_examples)]
        outputs = [
            range(s, min(s + num_outputs, num_rows)) for s in range(0, num_rows, num_outputs)
        ]
        if self._is_traced:
            return [[_Block(e, o) for e in examples] for o in outputs]
        return [[_Block(e, o) for e in examples for o in outputs]]

    def _program(self, shape: tuple[int, int]):
        block = self._arguments(_Block(range(shape[0]), range(shape[1])), shape)
        arguments = self._row_kinds(shape), self._params, self._x, *block
        leaves, structure = jax.tree.flatten(arguments)
        kinds = tuple(
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
            for leaf in leaves
        )
        is_x64 = jax.config.jax_enable_x64
        return _compiled(self._apply_fn, self._coupling, self._mesh, structure, kinds, is_x64)

    def _row_kinds(self, shape: tuple[int, int]) -> PyTree:
        sharding = None if self._mesh is None else _over_devices(self._mesh)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*shape, *leaf.shape), leaf.dtype, sharding=sharding),
            self._params,
        )

    def _empty_rows(self, shape: tuple[int, int]) -> PyTree:
        """Memory for the gradients of a block, which later blocks reuse."""
        return jax.tree.map(
            lambda kind: jnp.zeros(kind.shape, kind.dtype, device=kind.sharding),
            self._row_kinds(shape),
        )

    def _arguments(self, block: _Block, shape: tuple[int, int]):
        """Positions and cotangents of a block, filled up to ``shape`` with rows of zeros."""
        size = len(self._cotangents)
        examples = np.zeros(shape[0], np.int32)
        chosen = [e for e in block.examples if e < size]
        examples[: len(chosen)] = chosen
        cotangents = np.zeros((*shape, self._cotangents.shape[2]), self._cotangents.dtype)
        rows = self._cotangents[chosen][:, block.outputs.start : block.outputs.stop]
        cotangents[: len(chosen), : rows.shape[1]] = rows
        if self._mesh is not None:
            return self._replicated(examples), self._replicated(cotangents)
        return examples, cotangents

    def _temporary_bytes(self, shape: tuple[int, int]) -> int:
        analysis = self._program(shape).memory_analysis()
        return 0 if analysis is None else analysis.temp_size_in_bytes * self._num_devices

    def _piece_bytes(self, shape: tuple[int, int]) -> int:
        """Memory of ``_products``: a piece of each of two blocks in float64, and the products."""
        num_rows = shape[0] * (1 if self._is_traced else shape[1])
        columns = max(leaf.size for leaf in jax.tree.leaves(self._params))
        columns *= shape[1] if self._is_traced else 1
        step = self._num_devices * _piece_columns(num_rows)
        return 8 * num_rows * (2 * min(columns, step) + num_rows)

    def kernel(self, plan: NtkPlan) -> Float[np.ndarray, "rows rows"]:
        """Computes the kernel by a plan of this object; float64."""
        shape = plan.block_examples, plan.block_outputs
        num_outputs = self._cotangents.shape[1]
        size = plan.num_examples * (1 if self._is_traced else num_outputs)
        kernel = np.zeros((size, size))
        program = self._program(shape)

        def rows_of(block: _Block, before) -> PyTree:
            return program(before, self._params, self._x, *self._arguments(block, shape))

        groups = self._blocks(*shape)
        left = self._empty_rows(shape)
        spare = self._empty_rows(shape) if len(groups[0]) > 1 else None
        for group in groups:
            for first, block in enumerate(group):
                left = rows_of(block, left)
                for other in group[first:]:
                    if other is not block:
                        spare = rows_of(other, spare)
                    entries = self._products(left, left if other is block else spare)
                    rows, columns = self._places(block, shape), self._places(other, shape)
                    entries = entries[np.ix_(rows >= 0, columns >= 0)]
                    rows, columns = rows[rows >= 0], columns[columns >= 0]
                    kernel[np.ix_(rows, columns)] += entries
                    if other is not block:
                        kernel[np.ix_(columns, rows)] += entries.T
        return kernel

    def _places(self, block: _Block, shape: tuple[int, int]) -> np.ndarray:
        """Rows of the kernel that the rows of a filled-up block stand for, -1 for none."""
        examples = np.full(shape[0], -1)
        examples[: len(block.examples)] = block.examples
        if self._is_traced:
            return examples
        outputs = np.full(shape[1], -1)
        outputs[: len(block.outputs)] = block.outputs
        places = examples[:, None] * self._cotangents.shape[1] + outputs
        return np.where((examples[:, None] < 0) | (outputs < 0), -1, places).reshape(-1)

    def _products(self, left: PyTree, right: PyTree) -> np.ndarray:
        with jax.enable_x64(True):
            total = 0.0
            for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
                total = _add_products(
                    total, a, b, is_traced=self._is_traced, num_shards=self._num_devices
                )
            return np.asarray(total)


def _over_devices(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec("devices"))


@lru_cache(maxsize=32)
def _compiled(apply_fn, coupling: str, mesh: Mesh | None, structure, kinds, is_x64: bool):
    """The program for the gradients of a block; kept for the next kernel of the same network."""
    sharding = None if mesh is None else _over_devices(mesh)

    def gradients(before, params, x, examples, cotangents):
        del before  # donated: the gradients take its memory
        if mesh is None:
            return output_gradients(
                apply_fn, params, x, cotangents, coupling=coupling, examples=examples
            )
        # The examples of a block decide where its gradients are computed.
        chosen = lax.with_sharding_constraint(x[examples], sharding)
        cotangents = lax.with_sharding_constraint(cotangents, sharding)
        return output_gradients(apply_fn, params, chosen, cotangents)

    program = jax.jit(gradients, donate_argnums=0, keep_unused=True, out_shardings=sharding)
    return program.lower(*jax.tree.unflatten(structure, kinds)).compile()


@partial(jax.jit, static_argnames=("is_traced", "num_shards"))
def _add_products(total, a, b, *, is_traced: bool, num_shards: int):
    """Adds the products of rows of one parameter in float64, a piece of the columns at a time.

    A program a parameter: in one for all, the pieces of all parameters are held side by side.
    """
    a, b = (as_rows(leaf, is_traced=is_traced) for leaf in (a, b))
    return total + _products_of_rows(a, b, num_shards)


def as_rows(leaf: Array, *, is_traced: bool) -> Float[Array, "rows columns"]:
    """``[batch, rows, *shape]`` as the matrix whose products are the entries of a kernel."""
    return leaf.reshape(len(leaf) if is_traced else leaf.shape[0] * leaf.shape[1], -1)


def _piece_columns(num_rows: int) -> int:
    return max(_PIECE // num_rows, 256)


def _products_of_rows(a, b, num_shards: int):
    piece = _piece_columns(len(a))
    step = num_shards * piece
    num_steps = a.shape[1] // step
    rest = (a[:, num_steps * step :], b[:, num_steps * step :])
    total = jnp.matmul(*_in_float64(rest[0], rest[1].T))
    if not num_steps:
        return total
    if num_shards == 1:

        def add_slice(i, total):
            left, right = _in_float64(
                *(lax.dynamic_slice_in_dim(array, i * step, step, 1) for array in (a, b))
            )
            return total + left @ right.T

        return lax.fori_loop(0, num_steps, add_slice, total)
    # Each device keeps a part of the columns, so that what is exchanged is rows x rows.
    a, b = (
        array[:, : num_steps * step].reshape(len(array), num_shards, num_steps, piece)
        for array in (a, b)
    )

    def add(i, total):
        left, right = _in_float64(a[:, :, i], b[:, :, i])
        return total + jnp.einsum("adc,bdc->dab", left, right)

    parts = jnp.zeros((num_shards, len(a), len(b)), jnp.float64)
    return total + lax.fori_loop(0, num_steps, add, parts).sum(0)


def _in_float64(*arrays):
    return [array.astype(jnp.float64) for array in arrays]


def _even_part(total: int, most: int) -> int:
    """A part of at most ``most``: one that divides the total if it is not too small."""
    most = min(most, total)
    divisor = next(part for part in range(most, 0, -1) if total % part == 0)
    return divisor if 2 * divisor >= most else -(-total // -(-total // most))


def _count_gradients(group: Sequence[_Block]) -> int:
    sizes = [len(block.examples) * len(block.outputs) for block in group]
    return sum(size * (place + 1) for place, size in enumerate(sizes))


def _in_words(num_bytes: float) -> str:
    units = itertools.takewhile(lambda unit: num_bytes >= unit[0], _UNITS)
    scale, name = list(units)[-1] if num_bytes >= 1 else _UNITS[0]
    return f"{num_bytes / scale:.3g} {name}"


_UNITS = ((1, "bytes"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))
