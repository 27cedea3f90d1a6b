"""The trace norm of the empirical kernel, exact and by NASI's and an unbiased approximation.

All functions are traced: jit them, map them over architectures, differentiate them. With
``coupling="none"`` and ``"mapped"`` no kernel and no Jacobian of more than ``outputs_at_once``
outputs is held.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float, Int

from nasjax.errors import InputError
from nasjax.ntk.gradients import (
    ApplyFn,
    batch_outputs,
    check_coupling,
    check_labels,
    output_gradients,
)
from nasjax.types import Key, PyTree


class TraceEstimate(NamedTuple):
    """A random estimate.

    Attributes:
      value: ``[]``, in the unit of the kernel, (output / parameter)^2.
      standard_error: ``[]``, of ``value``.
    """

    value: Float[Array, ""]
    standard_error: Float[Array, ""]


def per_example_traces(
    apply_fn: ApplyFn,
    params: PyTree,
    x: Array,
    *,
    coupling: str = "none",
    outputs_at_once: int | None = None,
) -> Float[Array, " batch"]:
    r"""What each example adds to the trace norm of the kernel.

    .. math:: t_i = \textstyle\sum_k \lVert \nabla_\theta f_k(x_i) \rVert_2^2

    Args:
      apply_fn: ``(params, x) -> [batch, outputs]``.
      params: its parameters.
      x: ``[batch, ...]``.
      coupling: a key of ``COUPLINGS``.
      outputs_at_once: gradients of so many outputs of every example are held; None holds all.

    Returns:
      ``[batch]``, which sum to the exact trace norm. Cost: a gradient of the loss an output
      (``"none"``, ``"mapped"``) or an output and an example (``"exact"``).

    Raises:
      InputError: if the coupling is unknown, or no output is to be held.

    References:
      NASI, eq. (9).
    """
    check_coupling("per_example_traces", coupling)
    num_outputs = _num_outputs(apply_fn, params, x, coupling)

    def of_output(row):
        cotangents = jnp.broadcast_to(row, (len(x), 1, num_outputs))
        gradients = output_gradients(apply_fn, params, x, cotangents, coupling=coupling)
        return _square_norms(gradients)[:, 0]

    size = num_outputs if outputs_at_once is None else outputs_at_once
    if size < 1:
        raise InputError(
            f"per_example_traces: `outputs_at_once` must be at least 1, got {outputs_at_once}."
        )
    return jnp.sum(lax.map(of_output, jnp.eye(num_outputs), batch_size=size), 0)


def random_trace_norm(
    key: Key,
    apply_fn: ApplyFn,
    params: PyTree,
    x: Array,
    *,
    coupling: str = "none",
    num_draws: int = 1,
) -> TraceEstimate:
    r"""An unbiased estimate of the trace norm from random combinations of the outputs.

    .. math:: \textstyle\sum_i \lVert \sum_k v_{ik} \nabla_\theta f_k(x_i) \rVert_2^2,
       \quad v_{ik} = \pm 1

    Its expectation over the signs is the trace norm, as ``E[v_k v_l]`` is 0 for ``k != l``. For a
    wide network gradients of different outputs are nearly orthogonal and it is nearly exact.

    Args:
      key: random key.
      apply_fn: ``(params, x) -> [batch, outputs]``.
      params: its parameters.
      x: ``[batch, ...]``, two examples at least; but two draws for ``"exact"`` and
        ``"mapped"``.
      coupling: a key of ``COUPLINGS``. With ``"exact"`` the signs of all examples enter one
        gradient of the batch, which is unbiased but far noisier. With ``"mapped"`` all examples of
        a draw share their signs, as an example's share is that of all examples' outputs.
      num_draws: of the signs.

    Returns:
      The mean over draws. The standard error is that of a batch drawn from a population, from the
      spread between examples, for a fixed batch an upper bound; or of a fixed batch, from the
      spread between draws, for ``"exact"`` and ``"mapped"``. Cost a draw: a gradient of the loss,
      per example.

    Raises:
      InputError: if the coupling is unknown, or fewer than two examples or draws give no error.

    References:
      Hutchinson, `A stochastic estimator of the trace of the influence matrix
      <https://doi.org/10.1080/03610918908812806>`_, 1989.
    """
    check_coupling("random_trace_norm", coupling)
    is_alone = coupling == "none"
    for name, size, least in (
        ("num_draws", num_draws, 1 if is_alone else 2),
        ("x", len(x), 2 if is_alone else 1),
    ):
        if size < least:
            reason = "One value has no standard error." if size == 1 else "Draw at least one."
            raise InputError(
                f"random_trace_norm: `{name}` must count at least {least} for "
                f"coupling={coupling!r}, got {size}. {reason}"
            )
    num_outputs = _num_outputs(apply_fn, params, x, coupling)
    num_signs = 1 if coupling == "mapped" else len(x)
    signs = jax.random.rademacher(key, (num_draws, num_signs, num_outputs), jnp.float32)
    signs = jnp.broadcast_to(signs, (num_draws, len(x), num_outputs))

    def of_draw(signs):
        if coupling == "exact":
            gradient = jax.grad(lambda params: jnp.sum(signs * apply_fn(params, x)))(params)
            return _square_norms(gradient, num_axes=0)
        gradients = output_gradients(apply_fn, params, x, signs[:, None], coupling=coupling)
        return _square_norms(gradients)[:, 0]

    values = _over_draws(of_draw, signs)
    if not is_alone:
        values = values if coupling == "exact" else jnp.sum(values, 1)
        return TraceEstimate(jnp.mean(values), jnp.std(values, ddof=1) / num_draws**0.5)
    values = jnp.mean(values, 0)
    return TraceEstimate(jnp.sum(values), jnp.std(values, ddof=1) * len(x) ** 0.5)


def summed_loss_trace_norm(
    apply_fn: ApplyFn,
    params: PyTree,
    x: Array,
    labels: Int[Array, " batch"],
    *,
    coupling: str = "none",
) -> Float[Array, ""]:
    r"""NASI's first approximation: the squared gradient norms of the examples' losses, summed.

    .. math:: \textstyle\sum_i \lVert \nabla_\theta L(f(x_i), y_i) \rVert_2^2

    Up to ``gamma^-2`` a lower bound of the trace norm for a ``gamma``-Lipschitz loss.

    Args:
      apply_fn: ``(params, x) -> [batch, outputs]``.
      params: its parameters.
      x: ``[batch, ...]``.
      labels: ``[batch]``; the loss is the cross-entropy of the softmax.
      coupling: a key of ``COUPLINGS``.

    Returns:
      ``[]``, in (loss / parameter)^2. Cost: a gradient of the loss, per example.

    Raises:
      InputError: if the coupling is unknown, or labels do not fit.

    References:
      NASI, eqs. (10), (11), without the constant.
    """
    check_coupling("summed_loss_trace_norm", coupling)
    outputs = batch_outputs(apply_fn, params, x, coupling)
    check_labels("summed_loss_trace_norm", labels, *outputs.shape)
    slopes = jax.grad(lambda outputs: jnp.sum(_losses(outputs, labels)))(outputs)
    gradients = output_gradients(apply_fn, params, x, slopes[:, None], coupling=coupling)
    return jnp.sum(_square_norms(gradients))


def batch_loss_trace_norm(
    apply_fn: ApplyFn, params: PyTree, x: Array, labels: Int[Array, " batch"]
) -> Float[Array, ""]:
    r"""NASI's final approximation: the squared gradient norm of the batch's mean loss.

    .. math:: b\, \lVert b^{-1} \textstyle\sum_i \nabla_\theta L(f(x_i), y_i) \rVert_2^2

    Args:
      apply_fn: ``(params, x) -> [batch, outputs]``, batch statistics included.
      params: its parameters.
      x: ``[batch, ...]``.
      labels: ``[batch]``; the loss is the cross-entropy of the softmax.

    Returns:
      ``[]``, in (loss / parameter)^2. Cost: a gradient of the loss.

    Raises:
      InputError: if labels do not fit.

    References:
      NASI, eq. (12) for ``m = b``, without the constant.
    """
    num_outputs = _num_outputs(apply_fn, params, x, "none")
    check_labels("batch_loss_trace_norm", labels, len(x), num_outputs)
    gradient = jax.grad(lambda params: jnp.mean(_losses(apply_fn(params, x), labels)))(params)
    return len(x) * _square_norms(gradient, num_axes=0)


def _over_draws(of_draw, signs):
    """``lax.map``, but for one draw the function itself: a loop hinders the compiler."""
    return of_draw(signs[0])[None] if len(signs) == 1 else lax.map(of_draw, signs)


def _losses(outputs, labels) -> Float[Array, " batch"]:
    outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels)


def _num_outputs(apply_fn, params, x, coupling) -> int:
    return jax.eval_shape(lambda p, x: batch_outputs(apply_fn, p, x, coupling), params, x).shape[1]


def _square_norms(gradients: PyTree, *, num_axes: int = 2) -> Array:
    """Squared norms over all but the first ``num_axes`` axes and all leaves."""
    total = 0.0
    for leaf in jax.tree.leaves(gradients):
        leaf = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        total += jnp.sum(leaf * leaf, tuple(range(num_axes, leaf.ndim)))
    return total
