"""A one-shot cell for one-hot weights: only drawn operations are differentiated.

The cell is a loop over its edges, so that one edge is compiled, whatever their number, and its
backward pass is written by hand as a loop in the other direction.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from nasjax.types import Images, PyTree

Branch = Callable[[PyTree, Images], Images]
"""One operation: ``(params, x) -> y``, which keeps the shape of ``x``."""


class Wiring(NamedTuple):
    """Which operations a cell mixes, and between which of its nodes.

    Attributes:
      branches: the candidate operations, the same on every edge.
      num_nodes: nodes, the cell's inputs first.
      targets: the node that each edge adds to; a node's edges come after those of its sources.
      sources: the node that each edge reads; None where the sources are drawn, too.
    """

    branches: tuple[Branch, ...]
    num_nodes: int
    targets: tuple[int, ...]
    sources: tuple[int, ...] | None = None


def as_branches(operations: Sequence[nn.Module]) -> tuple[Branch, ...]:
    """The forward passes of unbound modules, as functions of parameters and input."""
    return tuple(
        lambda params, x, operation=operation: operation.apply({"params": params}, x)
        for operation in operations
    )


def drawn_cell(
    wiring: Wiring,
    operations: Float[Array, "edges choices"],
    inputs: Float[Array, "edges nodes"] | None,
    states: Float[Array, "inputs batch height width channels"],
    params: Sequence[PyTree],
) -> Float[Array, "nodes batch height width channels"]:
    """All nodes of a cell whose edges each apply one drawn operation to one drawn node.

    Value and first derivatives are exactly those of the mixture of all operations at one-hot
    weights. The derivative with respect to the weights needs the outputs of the operations that
    were not drawn, ``d/dw_j = <ct, branch_j(x)>``, which the backward pass evaluates without
    differentiating them. These derivatives may be differentiated forward once more with respect to
    ``states`` and ``params``, along a direction that leaves the parameters of the undrawn
    operations alone, as every gradient does.

    Args:
      wiring: operations and nodes.
      operations: ``[edges, choices]``, each row one 1 and zeros otherwise; this is not checked.
      inputs: ``[edges, nodes]`` or wider, in the same way; None where ``wiring`` has sources.
      states: ``[inputs, batch, height, width, channels]``, the cell's inputs.
      params: a tree a branch, each leaf with a leading axis of ``edges``.

    Returns:
      ``[nodes, batch, height, width, channels]``, the inputs included.

    Raises:
      NotImplementedError: when traced, by a second derivative with respect to the weights, for
        which the undrawn operations would have to be differentiated.
    """
    return _drawn_cell(wiring, operations, inputs, states, tuple(params))


@jax.custom_jvp
def _drawn(weights):
    """Positions of the ones, as integers that refuse to be differentiated silently."""
    return jnp.argmax(weights, -1)


@partial(_drawn.defjvp, symbolic_zeros=True)
def _drawn_jvp(primals, tangents):
    if not isinstance(tangents[0], jax.custom_derivatives.SymbolicZero):
        raise NotImplementedError(
            "drawn_cell: the weights were differentiated a second time, or in forward mode. "
            "Use `mixture='full'`, or differentiate with respect to the parameters last."
        )
    index = _drawn(*primals)
    return index, jnp.zeros(index.shape, jax.dtypes.float0)


def _edges(wiring: Wiring, operations, inputs) -> tuple[Int[Array, " edges"], ...]:
    """Operation, source and target of each edge."""
    sources = jnp.asarray(wiring.sources) if inputs is None else _drawn(inputs)
    return _drawn(operations), sources, jnp.asarray(wiring.targets)


def _run(wiring, edges, states, params):
    cases = [
        lambda x, params, j=j, branch=branch: branch(params[j], x)
        for j, branch in enumerate(wiring.branches)
    ]

    def run_edge(nodes, edge):
        (operation, source, target), params = edge
        y = lax.switch(operation, cases, nodes[source], params)
        return nodes.at[target].add(y), None

    empty = jnp.zeros((wiring.num_nodes - len(states), *states.shape[1:]), states.dtype)
    nodes = jnp.concatenate([states, empty])
    return lax.scan(run_edge, nodes, (edges, params))[0]


def _forward(wiring, operations, inputs, states, params):
    edges = _edges(wiring, operations, inputs)
    nodes = _run(wiring, edges, states, params)
    return nodes, (operations, inputs, edges, nodes, params, len(states))


def _backward(wiring, residuals, ct):
    operations, inputs, edges, nodes, params, num_inputs = residuals
    cases = [partial(_pull_back, branch, j) for j, branch in enumerate(wiring.branches)]

    def run_edge(cts, edge):
        (operation, source, target), params = edge
        x, ct = nodes[source], cts[target]
        product, x_ct, params_ct = lax.switch(operation, cases, x, params, ct)
        # Parameters of undrawn operations carry no tangent: they count as constants.
        constants = lax.stop_gradient(params)
        operation_ct = jnp.stack(
            [
                lax.cond(
                    operation == j,
                    lambda product, x, ct, params: product,
                    lambda product, x, ct, params, branch=branch: _vdot(branch(params, x), ct),
                    *(product, x, ct, constants[j]),
                )
                for j, branch in enumerate(wiring.branches)
            ]
        )
        input_ct = None
        if inputs is not None:
            width = inputs.shape[1]
            input_ct = jnp.stack([_vdot(node, x_ct) for node in nodes[:width]])
            input_ct = jnp.where(jnp.arange(width) < target, input_ct, 0.0)
        return cts.at[source].add(x_ct), (operation_ct, input_ct, params_ct)

    cts, (operation_cts, input_cts, params_cts) = lax.scan(
        run_edge, ct, (edges, params), reverse=True
    )
    operation_cts = operation_cts.astype(operations.dtype)
    if inputs is not None:
        input_cts = input_cts.astype(inputs.dtype)
    return operation_cts, input_cts, cts[:num_inputs], params_cts


def _vdot(a, b):
    """Sum of products, accumulated in float32 at least."""
    return jnp.vdot(a, b, preferred_element_type=jnp.promote_types(a.dtype, jnp.float32))


def _pull_back(branch, j, x, params, ct):
    """``<ct, y>`` and the cotangents of input and parameters of the drawn operation ``j``."""
    y, vjp = jax.vjp(lambda x, params: branch(params[j], x), x, params)
    return _vdot(y, ct), *vjp(ct)


_drawn_cell = jax.custom_vjp(
    lambda wiring, operations, inputs, states, params: _run(
        wiring, _edges(wiring, operations, inputs), states, params
    ),
    nondiff_argnums=(0,),
)
_drawn_cell.defvjp(_forward, _backward)
