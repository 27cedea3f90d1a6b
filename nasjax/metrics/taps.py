"""Reads ReLU inputs and layer outputs out of any network's program."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from nasjax.ntk.gradients import ApplyFn
from nasjax.types import PyTree

_LAYERS = frozenset(
    ("conv_general_dilated", "dot_general", "nasjax_conv2d", "nasjax_depthwise_conv2d")
)
_INLINED = frozenset(("checkpoint", "jit", "pjit", "remat2"))


class Tapped(NamedTuple):
    """What a run of a network shows.

    Attributes:
      outputs: ``[batch, outputs]``.
      relus: inputs of every ReLU in order, ``[batch, ...]`` each.
      layers: outputs of every layer in order, ``[batch, ..., channels]`` each.
      fans: weights that belong to a channel of each layer.
    """

    outputs: Array
    relus: list[Array]
    layers: list[Array]
    fans: list[int]


class TappedFn:
    """A network whose ReLU inputs and layer outputs are read, and its layer outputs changed.

    A ReLU is a maximum of zero and of something with a value for every example. A layer is a
    product or a convolution of what depends on ``x`` with what depends on the parameters alone,
    together with the bias and the constant factor that follow it. Its channels are the last axis of
    its output.
    """

    def __init__(self, apply_fn: ApplyFn):
        """Takes the network; its program is read when it is called, so under ``jit`` once."""
        self._apply_fn = apply_fn

    def __call__(self, params: PyTree, x: Array, offsets: Sequence[Array] | None = None) -> Tapped:
        """Runs the network.

        Args:
          params: its parameters.
          x: ``[batch, ...]``.
          offsets: added to the outputs of the layers, one each; derivatives with respect to them
            are those with respect to the layers' outputs.

        Returns:
          What is seen.
        """
        closed = jax.make_jaxpr(self._apply_fn)(params, x)
        leaves = jax.tree.leaves(params)
        run = _Run(len(x), offsets)
        kinds = [_PARAMS] * len(leaves) + [_X]
        (outputs,) = run.program(closed.jaxpr, closed.consts, [*leaves, x], kinds)
        return Tapped(outputs, run.relus, run.layers, run.fans)


_CONSTANT, _PARAMS, _X = range(3)
"""Whether an array depends on nothing, on parameters alone, or on ``x``."""


class _Run:
    """One run of a program, equation by equation, with what it shows."""

    def __init__(self, num_examples, offsets):
        self.relus: list[Array] = []
        self.layers: list[Array] = []
        self.fans: list[int] = []
        self._num_examples = num_examples
        self._offsets = offsets

    def program(self, jaxpr, consts, arrays, kinds) -> list[Array]:
        kind_of = _all_kinds(jaxpr, kinds)
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arrays], strict=True))

        def read(atom):
            return atom.val if isinstance(atom, Literal) else known[atom]

        unfinished = set()
        for equation in jaxpr.eqns:
            values = [read(atom) for atom in equation.invars]
            kinds = [kind_of(atom) for atom in equation.invars]
            if _is_relu(equation):
                inputs = [a for a, kind in zip(values, kinds, strict=True) if kind == _X]
                self.relus += [a for a in inputs if a.ndim > 1 and len(a) == self._num_examples]
            outputs = self._run(equation, values, kinds, jaxpr.debug_info)
            is_layer = _is_layer(equation, kinds)
            if is_layer:
                num_weights = values[kinds.index(_PARAMS)].size
                self.fans.append(num_weights // equation.outvars[0].aval.shape[-1])
            if is_layer or unfinished.intersection(_variables(equation)):
                (out,) = equation.outvars
                if _is_continued(jaxpr, out, kind_of):
                    unfinished.add(out)
                else:
                    outputs = [self._tap(outputs[0])]
            known |= dict(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _run(self, equation, values, kinds, debug_info) -> list[Array]:
        if equation.primitive.name in _INLINED:
            inner = equation.params["jaxpr"]
            if isinstance(inner, ClosedJaxpr):
                return self.program(inner.jaxpr, inner.consts, values, kinds)
            return self.program(inner, [], values, kinds)
        # A program of one equation, which JAX runs and differentiates by its own rules.
        arguments = {
            atom: value
            for atom, value in zip(equation.invars, values, strict=True)
            if not isinstance(atom, Literal)
        }
        alone = Jaxpr(
            *([], list(arguments), equation.outvars, [equation]),
            effects=equation.effects,
            debug_info=debug_info,
        )
        return jaxpr_as_fun(ClosedJaxpr(alone, []))(*arguments.values())

    def _tap(self, output: Array) -> Array:
        if self._offsets is not None:
            output = output + self._offsets[len(self.layers)]
        self.layers.append(output)
        return output


def _all_kinds(jaxpr, kinds):
    known = dict(zip(jaxpr.invars, kinds, strict=True))

    def kind_of(atom):
        return _CONSTANT if isinstance(atom, Literal) else known.get(atom, _CONSTANT)

    for equation in jaxpr.eqns:
        highest = max((kind_of(atom) for atom in equation.invars), default=_CONSTANT)
        known |= dict.fromkeys(equation.outvars, highest)
    return kind_of


def _variables(equation) -> list:
    return [atom for atom in equation.invars if not isinstance(atom, Literal)]


def _is_layer(equation, kinds) -> bool:
    return equation.primitive.name in _LAYERS and sorted(kinds) == [_PARAMS, _X]


def _is_continued(jaxpr, out, kind_of) -> bool:
    """Whether all that reads a layer's output is the sum with its bias, or a constant factor."""
    readers = [equation for equation in jaxpr.eqns if out in _variables(equation)]
    if len(readers) != 1 or out in jaxpr.outvars:
        return False
    others = [kind_of(atom) for atom in readers[0].invars if atom is not out]
    name = readers[0].primitive.name
    return (name == "add" and others == [_PARAMS]) or (name == "mul" and others == [_CONSTANT])


def _is_relu(equation) -> bool:
    """Whether it is a maximum with zero, or a function of its own derivative that is just that."""
    if equation.primitive.name == "custom_jvp_call":
        inner = equation.params["call_jaxpr"].jaxpr
        while len(inner.eqns) == 1 and inner.eqns[0].primitive.name in _INLINED:
            if inner.eqns[0].params.get("name") == "relu6":  # cut off at 6, too
                return True
            inner = inner.eqns[0].params["jaxpr"].jaxpr
        return len(inner.eqns) == 1 and _is_relu(inner.eqns[0])
    if equation.primitive.name != "max":
        return False
    literals = [atom.val for atom in equation.invars if isinstance(atom, Literal)]
    return any(np.ndim(value) == 0 and value == 0 for value in literals)
