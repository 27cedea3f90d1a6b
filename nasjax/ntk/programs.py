"""What a network's program, its jaxpr, tells without running it."""

import functools
from typing import NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
from jax import Array

from nasjax.ntk.gradients import BATCH_AXIS, ApplyFn
from nasjax.types import PyTree

_ELEMENTWISE = frozenset(
    "abs add add_any convert_element_type copy cos div eq erf exp exp2 expm1 ge gt integer_pow "  # noqa: SIM905
    "is_finite le log log1p logistic lt max min mul ne neg not or and pow rsqrt select_n sign sin "
    "sqrt square stop_gradient sub tanh".split()  # noqa: SIM905
)
_CALLS = frozenset("custom_jvp_call custom_vjp_call jit pjit remat2 checkpoint".split())  # noqa: SIM905
_REDUCTIONS = frozenset(
    "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum".split()  # noqa: SIM905
)
_WINDOWS = frozenset("reduce_window_max reduce_window_min reduce_window_sum".split())  # noqa: SIM905
_DENSE = (_ELEMENTWISE | _REDUCTIONS | {"custom_jvp_call", "jit", "pjit"}) | frozenset(
    "broadcast_in_dim concatenate dot_general reshape slice squeeze transpose".split()  # noqa: SIM905
)
"""What a network of dense layers, elementwise functions and sums is made of."""

_Axis = int | frozenset[int]
"""The batch's axis in an array that depends on ``x``; in one that does not, the axes along which
all of it is equal."""


class _NotFollowedError(Exception):
    """The examples of a program are mixed, or may be."""


class Program(NamedTuple):
    """What a network's program tells.

    Attributes:
      is_dense: it has no other layers with parameters than dense ones. For these neural-tangents'
        structured derivatives need no gradients of single outputs at all.
      is_apart: it treats every example by itself, whatever the numbers are. False says only that
        this was not found: the program mixes examples, has an operation that is not known here, or
        uses a number for every example, such as a mask.
      is_mapped: it averages over ``BATCH_AXIS``, so it runs under that mapped axis alone.
    """

    is_dense: bool = False
    is_apart: bool = False
    is_mapped: bool = False


def read_program(apply_fn: ApplyFn, params: PyTree, x: Array) -> Program:
    """Reads a network's program, once for each function and shapes.

    The batch's axis is followed from ``x`` to the outputs through operations that keep its examples
    apart: elementwise ones, products and convolutions with what does not depend on ``x``, sums and
    windows over other axes, and moves of axes.

    Args:
      apply_fn: ``(params, x) -> [batch, outputs]``.
      params: its parameters.
      x: ``[batch, ...]``.

    Returns:
      What it tells.

    Raises:
      flax.errors.InvalidRngError: if it asks for random numbers; and whatever ``apply_fn`` raises.
    """
    leaves, structure = jax.tree.flatten((params, x))
    kinds = tuple(jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return _read(apply_fn, structure, kinds)


@functools.lru_cache(maxsize=32)
def _read(apply_fn, structure, kinds) -> Program:
    try:
        program = jax.make_jaxpr(apply_fn)(*jax.tree.unflatten(structure, kinds)).jaxpr
    except NameError as error:
        if BATCH_AXIS in str(error):
            return Program(is_mapped=True)
        raise
    try:
        is_apart = _follow(program, [*[frozenset()] * (len(kinds) - 1), 0]) == [0]
    except _NotFollowedError:
        is_apart = False
    return Program(_primitives(program) <= _DENSE, is_apart)


def _follow(program, axes: list[_Axis]) -> list[_Axis]:
    """The axes of a program's outputs from those of its arguments."""
    known = dict(zip(program.invars, axes, strict=True))
    known |= dict.fromkeys(program.constvars, frozenset())

    def axis_of(atom):
        is_literal = isinstance(atom, jax.extend.core.Literal)
        return frozenset(range(atom.aval.ndim)) if is_literal else known[atom]

    for equation in program.eqns:
        inputs = [axis_of(atom) for atom in equation.invars]
        known |= dict(zip(equation.outvars, _outputs(equation, inputs), strict=True))
    return [axis_of(atom) for atom in program.outvars]


def _outputs(equation, inputs: list[_Axis]) -> list[_Axis]:
    name = equation.primitive.name
    if name in _CALLS:
        return _follow(_programs(equation)[0], inputs)
    if name in _ELEMENTWISE:
        return [_elementwise(equation, inputs)]
    if name != "broadcast_in_dim" and not any(isinstance(axis, int) for axis in inputs):
        return [frozenset()] * len(equation.outvars)
    _follow_if(name in _RULES)
    return [_RULES[name](equation, inputs)]


def _elementwise(equation, inputs):
    depends = {axis for axis in inputs if isinstance(axis, int)}
    free = [
        axes | {axis for axis, size in enumerate(atom.aval.shape) if size == 1}
        for atom, axes in zip(equation.invars, inputs, strict=True)
        if isinstance(axes, frozenset) and atom.aval.ndim
    ]
    if not depends:
        return frozenset.intersection(*free) if free else frozenset()
    # A number for every example, such as a mask, tells them apart.
    _follow_if(len(depends) == 1 and all(depends <= axes for axes in free))
    return depends.pop()


def _broadcast(equation, inputs):
    axes, placed = inputs[0], equation.params["broadcast_dimensions"]
    if isinstance(axes, int):
        return placed[axes]
    sizes = dict(zip(placed, equation.invars[0].aval.shape, strict=True))
    shape = equation.outvars[0].aval.shape
    grown = {axis for axis, size in enumerate(shape) if sizes.get(axis, 1) == 1}
    return frozenset(grown | {placed[axis] for axis in axes})


def _dot(equation, inputs):
    contracted, paired = equation.params["dimension_numbers"]
    if all(isinstance(axis, int) for axis in inputs):
        pairs = list(zip(*paired, strict=True))
        _follow_if(tuple(inputs) in pairs)
        return pairs.index(tuple(inputs))
    side = int(isinstance(inputs[1], int))
    taken = {*contracted[side], *paired[side]}
    _follow_if(inputs[side] not in taken)
    # Outputs have the axes of pairs, then what is left of the first and of the second factor.
    num_before = len(paired[0])
    if side == 1:
        num_before += equation.invars[0].aval.ndim - len(contracted[0]) - len(paired[0])
    return num_before + inputs[side] - sum(axis < inputs[side] for axis in taken)


def _convolution(equation, inputs):
    lhs, _, out = equation.params["dimension_numbers"]
    _follow_if(equation.params["batch_group_count"] == 1)
    _follow_if(inputs[0] == lhs[0] and isinstance(inputs[1], frozenset))
    return out[0]


def _our_convolution(equation, inputs):
    _follow_if(inputs[0] == 0 and isinstance(inputs[1], frozenset))
    return 0


def _reduction(equation, inputs):
    removed = equation.params["dimensions" if "dimensions" in equation.params else "axes"]
    _follow_if(inputs[0] not in removed)
    return inputs[0] - sum(axis < inputs[0] for axis in removed)


def _window(equation, inputs):
    params, axis = equation.params, inputs[0]
    _follow_if(params["window_dimensions"][axis] == params["window_strides"][axis] == 1)
    _follow_if(params["base_dilation"][axis] == 1 and params["padding"][axis] == (0, 0))
    return axis


def _reshape(equation, inputs):
    end = inputs[0] + 1
    _follow_if(equation.invars[0].aval.shape[:end] == equation.outvars[0].aval.shape[:end])
    return inputs[0]


def _transpose(equation, inputs):
    return equation.params["permutation"].index(inputs[0])


def _slice(equation, inputs):
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    _follow_if(before[inputs[0]] == after[inputs[0]])
    return inputs[0]


def _pad(equation, inputs):
    axis, value = inputs
    _follow_if(isinstance(axis, int) and isinstance(value, frozenset))
    _follow_if(tuple(equation.params["padding_config"][axis]) == (0, 0, 0))
    return axis


def _concatenate(equation, inputs):
    axis = _elementwise(equation, inputs)
    _follow_if(equation.params["dimension"] != axis)
    return axis


def _follow_if(is_apart: bool) -> None:
    if not is_apart:
        raise _NotFollowedError


_RULES = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "nasjax_conv2d": _our_convolution,
    "nasjax_depthwise_conv2d": _our_convolution,
    "pad": _pad,
    "reshape": _reshape,
    "slice": _slice,
    "squeeze": _reduction,
    "transpose": _transpose,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_WINDOWS, _window),
}
"""By the name of an operation, which axis of its output is the batch's; its inputs depend on it."""


def _primitives(program) -> set[str]:
    names = {equation.primitive.name for equation in program.eqns}
    return names.union(*(_primitives(inner) for e in program.eqns for inner in _programs(e)))


def _programs(equation) -> list:
    """The programs that an equation calls."""
    values = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr)
    return [getattr(value, "jaxpr", value) for value in values if _is_jaxpr(value)]


def _is_jaxpr(value) -> bool:
    return isinstance(value, jax.extend.core.Jaxpr | jax.extend.core.ClosedJaxpr)
