"""Gradients of single outputs of a network with respect to its parameters, example by example."""

from typing import Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from nasjax.errors import InputError, unknown_name
from nasjax.types import PyTree

OUTPUTS = {
    "all": "every output of every example: a kernel of examples x outputs",
    "trace": "every output, and the kernel summed over equal outputs",
    "sum": "the sum of an example's outputs",
    "label": "the output of an example's label",
}
"""Which outputs the rows of a Jacobian belong to."""

COUPLINGS = {
    "none": "an example's outputs depend on that example alone; this is checked",
    "exact": "outputs depend on the whole batch, through its statistics; a row is the gradient of "
    "one output through all of it",
    "mapped": "the network is applied to one example at a time and reads batch statistics over the "
    "mapped axis BATCH_AXIS; a row is the example's own share of the gradient of all examples' "
    "outputs, or with frozen statistics that of its own",
}
"""How the examples of a batch act on each other."""

BATCH_AXIS = "examples"
"""Name of the mapped axis under which a network is applied with ``coupling="mapped"``."""


class ApplyFn(Protocol):
    """The forward pass of any network: a pure function, as for ``jit``.

    Programs are kept by the function itself. What it closes over, or an attribute of the object
    that it belongs to, is read at the first call; give what changes as parameters.
    """

    def __call__(self, params: PyTree, x: Array) -> Float[Array, "batch outputs"]:
        """Outputs of ``x`` ``[batch, ...]``."""
        ...


def flax_apply_fn(module: nn.Module, variables: PyTree, **kwargs) -> tuple[ApplyFn, PyTree]:
    """A Flax model as the pair that every function here takes.

    Args:
      module: the model; it is called as ``module.apply(variables, x, **kwargs)``.
      variables: as ``module.init`` gives them. Collections other than ``params`` are constants.
      **kwargs: passed on, for example ``train=False``. With ``mutable=["batch_stats"]`` what the
        model would write is dropped: statistics are then those of the batch, so pass
        ``coupling="exact"`` on.

    Returns:
      ``(apply_fn, params)``.

    Raises:
      InputError: if there are no parameters.
    """
    if "params" not in variables:
        raise InputError(
            "flax_apply_fn: `variables` must hold the collection 'params', got "
            f"{', '.join(sorted(variables)) or 'nothing'}. Pass what `module.init` returned."
        )
    constants = {name: tree for name, tree in variables.items() if name != "params"}

    def apply_fn(params, x):
        outputs = module.apply({"params": params, **constants}, x, **kwargs)
        return outputs[0] if kwargs.get("mutable") else outputs

    return apply_fn, variables["params"]


def check_coupling(where: str, coupling: str) -> None:
    """Raises ``InputError`` if ``coupling`` is not a key of ``COUPLINGS``."""
    if coupling not in COUPLINGS:
        raise unknown_name(where, "coupling", coupling, COUPLINGS)


def batch_outputs(
    apply_fn: ApplyFn, params: PyTree, x: Array, coupling: str
) -> Float[Array, "batch outputs"]:
    """Outputs of a batch, with the mapped axis that ``coupling="mapped"`` reads statistics over.

    Args:
      apply_fn: ``(params, x) -> [batch, outputs]``.
      params: its parameters.
      x: ``[batch, ...]``.
      coupling: a key of ``COUPLINGS``.

    Returns:
      ``[batch, outputs]``.
    """
    if coupling != "mapped":
        return apply_fn(params, x)
    return jax.vmap(lambda x: apply_fn(params, x[None])[0], axis_name=BATCH_AXIS)(x)


def output_cotangents(
    where: str,
    outputs: str,
    num_examples: int,
    num_outputs: int,
    labels: Int[Array, " batch"] | None,
) -> Float[Array, "batch rows outputs"]:
    """The weights with which outputs enter the rows of a Jacobian.

    Args:
      where: the function that was called, for messages.
      outputs: a key of ``OUTPUTS``.
      num_examples: ``batch``.
      num_outputs: of the network.
      labels: ``[batch]``, for ``outputs="label"``.

    Returns:
      ``[batch, rows, outputs]`` float32, ``rows`` being ``outputs`` for ``"all"`` and ``"trace"``,
      else 1.

    Raises:
      InputError: if the name is unknown, or labels are missing or of another length.
    """
    if outputs not in OUTPUTS:
        raise unknown_name(where, "kind of outputs", outputs, OUTPUTS)
    if outputs == "label":
        check_labels(where, labels, num_examples, num_outputs)
        return jax.nn.one_hot(labels, num_outputs)[:, None]
    # By numpy, as they do not depend on arguments: nothing is dispatched for them.
    rows = np.ones((1, num_outputs)) if outputs == "sum" else np.eye(num_outputs)
    return np.broadcast_to(rows.astype(np.float32), (num_examples, *rows.shape))


def check_labels(
    where: str, labels: Int[Array, " batch"] | None, num_examples: int, num_outputs: int
) -> None:
    """Checks labels, their values only where they are not traced.

    Args:
      where: the function that was called, for messages.
      labels: ``[batch]``.
      num_examples: ``batch``.
      num_outputs: of the network.

    Raises:
      InputError: if they are not ``[batch]`` integers from 0 to ``num_outputs - 1``.
    """
    is_traced = isinstance(labels, jax.core.Tracer)
    got = labels if is_traced or labels is None else np.asarray(labels)
    if got is None or got.shape != (num_examples,) or not jnp.issubdtype(got.dtype, jnp.integer):
        found = "none" if got is None else f"{got.dtype}{list(got.shape)}"
        raise InputError(
            f"{where}: `labels` must be [{num_examples}] integers, one an example, got {found}."
        )
    outside = [] if is_traced else got[(got < 0) | (got >= num_outputs)]
    if len(outside):
        raise InputError(
            f"{where}: `labels` must be from 0 to {num_outputs - 1}, the last output, got "
            f"{outside[0]}."
        )


def output_gradients(
    apply_fn: ApplyFn,
    params: PyTree,
    x: Array,
    cotangents: Float[Array, "batch rows outputs"],
    *,
    coupling: str = "none",
    examples: Int[Array, " chosen"] | None = None,
) -> PyTree:
    """Gradients of weighted outputs with respect to the parameters.

    Args:
      apply_fn: ``(params, x) -> [batch, outputs]``.
      params: its parameters.
      x: ``[batch, ...]``.
      cotangents: ``[batch, rows, outputs]``, the weights of an example's outputs in its rows; or
        ``[chosen, rows, outputs]``.
      coupling: a key of ``COUPLINGS``.
      examples: ``[chosen]`` positions in the batch, None for all.

    Returns:
      The tree of ``params``, each leaf ``[chosen, rows, *shape]``. Cost: about one gradient of the
      loss a row (``"none"``, ``"mapped"``), or a gradient through the whole batch for every row of
      every example (``"exact"``), all held at once.
    """

    def rows(params, x, cotangents):
        found, vjp = jax.vjp(lambda params: apply_fn(params, x[None])[0], params)
        return jax.vmap(lambda row: vjp(row)[0])(cotangents.astype(found.dtype))

    if coupling == "exact":
        found, vjp = jax.vjp(lambda params: apply_fn(params, x), params)
        chosen = jnp.arange(len(x)) if examples is None else examples
        place = jax.nn.one_hot(chosen, len(x))
        # [chosen, rows, batch, outputs]: a row's weights stand at its own example.
        spread = place[:, None, :, None] * cotangents[:, :, None, :]
        return jax.vmap(jax.vmap(lambda row: vjp(row)[0]))(spread.astype(found.dtype))
    if coupling == "mapped":
        gradients = jax.vmap(rows, in_axes=(None, 0, 0), axis_name=BATCH_AXIS)(
            params, x, cotangents
        )
        if examples is None:
            return gradients
        return jax.tree.map(lambda leaf: leaf[examples], gradients)
    chosen = x if examples is None else x[examples]
    return jax.vmap(rows, in_axes=(None, 0, 0))(params, chosen, cotangents)
