"""NASI's objective: the approximate NTK trace norm of a sampled architecture, with its penalty."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from nasjax.objectives.gumbel import straight_through_gumbel_softmax
from nasjax.types import Images, Key, Labels, Logits, OneShotApplyFn, PyTree, Weights


class TraceNormFn(Protocol):
    """The approximate NTK trace norm of the architecture that one-hot weights describe."""

    def __call__(
        self, weights: Weights, params: PyTree, x: Images, y: Labels
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """The trace norm, and whether the network is dead."""
        ...


class NasiInfo(NamedTuple):
    """What one evaluation of NASI's objective saw; arrays of shape ``[]`` but for ``weights``.

    Attributes:
      trace_norm: ``T``, squared gradient norm of the batch loss (loss^2 / parameter^2).
      excess: ``max(0, T - nu)``, by which the constraint is violated.
      is_finite: whether ``T`` is a finite number.
      is_dead: whether the network's output is the same for every input of the batch.
      weights: the sampled architecture, one-hot.
    """

    trace_norm: Float[Array, ""]
    excess: Float[Array, ""]
    is_finite: Bool[Array, ""]
    is_dead: Bool[Array, ""]
    weights: Weights


class NasiObjectiveFn(Protocol):
    """NASI's objective for one draw of architecture and batch."""

    def __call__(
        self, logits: Logits, key: Key, nu: Float[Array, ""], params: PyTree, x: Images, y: Labels
    ) -> tuple[Float[Array, ""], NasiInfo]:
        """The score (higher is better) and what led to it."""
        ...


def cross_entropy(outputs: Float[Array, "batch classes"], labels: Labels) -> Float[Array, ""]:
    """Mean cross-entropy (nats) of softmax ``outputs`` at integer ``labels``, at least float32."""
    outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
    log_probabilities = jax.nn.log_softmax(outputs)
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], 1))


def one_shot_trace_norm(apply_fn: OneShotApplyFn) -> TraceNormFn:
    r"""NASI's approximation of the NTK trace norm, differentiable with respect to the weights.

    .. math:: T = \lVert b^{-1} \textstyle\sum_{x} \nabla_\theta L_x \rVert_2^2

    With ``v = 2 grad_theta L``, the gradient of ``T`` with respect to the architecture weights is
    that of the derivative of the loss along ``v``. It is computed forward over reverse: a tangent
    along ``v`` is carried through the gradient of the loss with respect to the weights. Nothing is
    differentiated backward twice, and in a network with ``mixture="drawn"`` an operation that was
    not drawn contributes its output and its tangent alone.

    Args:
      apply_fn: ``(params, weights, x) -> [batch, classes]``.

    Returns:
      ``trace_norm_fn(weights, params, x, y) -> (T, is_dead)``. Its derivative is defined with
      respect to ``weights`` only; ``params`` and data count as constants. One gradient of the loss
      for the value, about three times that with the derivative.

    References:
      Shu et al., `NASI: Label- and data-agnostic neural architecture search at initialization
      <https://arxiv.org/abs/2109.00817>`_, 2022, eq. (12), without the constant factors
      ``m / gamma``.
    """

    def loss_fn(params, weights, x, y):
        outputs = apply_fn(params, weights, x)
        is_dead = jnp.all(outputs == outputs[:1])
        return cross_entropy(outputs, y), is_dead

    def value_and_direction(weights, params, x, y):
        gradient, is_dead = jax.grad(loss_fn, has_aux=True)(params, weights, x, y)
        squares = jax.tree.map(_square_norm, gradient)
        return (jax.tree.reduce(jnp.add, squares), is_dead), gradient

    @jax.custom_vjp
    def trace_norm_fn(weights, params, x, y):
        return value_and_direction(weights, params, x, y)[0]

    def forward(weights, params, x, y):
        value, gradient = value_and_direction(weights, params, x, y)

        def weights_gradient(params):
            return jax.grad(lambda w: loss_fn(params, w, x, y)[0])(weights)

        direction = jax.tree.map(lambda g: 2 * g, gradient)
        return value, jax.jvp(weights_gradient, (params,), (direction,))[1]

    def backward(value_gradient, ct):
        # A failed network is given the cotangent 0, and 0 times its gradient need not be 0.
        scaled = jax.tree.map(lambda g: jnp.where(ct[0] == 0, 0, ct[0] * g), value_gradient)
        return scaled, None, None, None

    trace_norm_fn.defvjp(forward, backward)
    return trace_norm_fn


def _square_norm(g: Array) -> Float[Array, ""]:
    """``|g|^2``, accumulated in float32 at least."""
    return jnp.vdot(g, g, preferred_element_type=jnp.promote_types(g.dtype, jnp.float32))


def nasi_objective(
    trace_norm_fn: TraceNormFn,
    decisions: Mapping[str, np.ndarray],
    *,
    mu: float,
    temperature: float = 1.0,
) -> NasiObjectiveFn:
    r"""The penalised trace norm of a sampled architecture.

    .. math:: R(A) = T(A) - \mu \max(0, T(A) - \nu)

    Args:
      trace_norm_fn: see ``one_shot_trace_norm``.
      decisions: masks of the relaxed decisions, ``Space.decisions``.
      mu: the penalty coefficient, at least 0.
      temperature: of the Gumbel-softmax, positive.

    Returns:
      ``objective_fn(logits, key, nu, params, x, y) -> (R, info)``, to be jitted and differentiated
      with respect to ``logits``. Where the network is dead or ``T`` is not finite, ``R`` is
      ``-inf``, so that it never wins, and the gradient is zero.

    Raises:
      ValueError: when built, if ``mu`` or ``temperature`` is out of its range.

    References:
      NASI, eqs. (13), (14) and (42).
    """
    if not (np.isfinite(mu) and mu >= 0):
        raise ValueError(f"nasi_objective: `mu` must be a number >= 0, got {mu}.")
    if not (np.isfinite(temperature) and temperature > 0):
        raise ValueError(f"nasi_objective: `temperature` must be a number > 0, got {temperature}.")

    def objective_fn(logits, key, nu, params, x, y):
        weights = straight_through_gumbel_softmax(key, logits, decisions, temperature=temperature)
        trace_norm, is_dead = trace_norm_fn(weights, params, x, y)
        excess = jnp.maximum(trace_norm - nu, 0.0)
        is_finite = jnp.isfinite(trace_norm)
        reward = jnp.where(is_finite & ~is_dead, trace_norm - mu * excess, -jnp.inf)
        return reward, NasiInfo(trace_norm, excess, is_finite, is_dead, weights)

    return objective_fn
