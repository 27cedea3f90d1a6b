"""NASI: neural architecture search at initialisation, in one gradient step on the logits."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from nasjax.errors import InputError, unknown_name
from nasjax.search.base import SearchAlgorithm
from nasjax.types import Logits, Weights

NU_MODES = {
    "fixed": "nu stays what it was at the start (eq. 40)",
    "adaptive": "nu is the mean of its start and all trace norms seen so far (eq. 41)",
}


class NasiState(NamedTuple):
    """What NASI carries from step to step; arrays of shape ``[]`` but for ``direction``.

    Attributes:
      num_steps: steps taken, those that failed included.
      direction: ``sum_t G_t / max_{s <= t} |G_s|``, of the shapes of the logits.
      max_gradient_norm: ``max_s |G_s|``.
      trace_sum: sum of the trace norms of the sampled networks that did not fail.
      num_traces: how many these are.
      nu_start: ``nu_0``.
    """

    num_steps: Int[Array, ""]
    direction: Logits
    max_gradient_norm: Float[Array, ""]
    trace_sum: Float[Array, ""]
    num_traces: Int[Array, ""]
    nu_start: Float[Array, ""]


class NasiStepInfo(NamedTuple):
    """Record of a step; arrays of shape ``[]`` but for ``drawn``.

    Attributes:
      reward: ``R``, ``-inf`` where the network failed.
      trace_norm: ``T``.
      nu: the constraint in force.
      excess: ``max(0, T - nu)``.
      gradient_norm: ``|G_t|`` over all logits.
      is_finite: whether ``T`` and ``G_t`` are finite; where not, the step counts as zero.
      is_dead: whether the network's output ignored its input; the step then counts as zero.
      drawn: the sampled choices, integers ``[...]`` a group of decisions.
    """

    reward: Float[Array, ""]
    trace_norm: Float[Array, ""]
    nu: Float[Array, ""]
    excess: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    is_finite: Bool[Array, ""]
    is_dead: Bool[Array, ""]
    drawn: Mapping[str, Int[Array, "..."]]


def nasi(
    objective_fn,
    decisions: Mapping[str, np.ndarray],
    *,
    nu: float,
    nu_mode: str = "adaptive",
) -> SearchAlgorithm:
    r"""NASI's search: an average of architecture gradients at the uniform distribution.

    Every step draws an architecture at ``alpha_0 = 0`` and adds its gradient, divided by the
    largest gradient norm so far. ``optimal_logits`` turns the sum into the logits that Algorithm 1
    selects from.

    Args:
      objective_fn: ``(logits, key, nu, *data) -> (R, info)``, differentiable with respect to the
        logits, with the fields of ``objectives.NasiInfo`` in ``info``.
      decisions: boolean masks of the logits' shapes, ``Space.decisions``.
      nu: ``nu_0`` of the constraint ``T < nu``, positive, in units of the trace norm.
      nu_mode: ``"fixed"``: ``nu`` as given. ``"adaptive"``, eq. (41):
        ``nu_t = (nu_0 + sum_{s < t} T_s) / t``, where failed networks count in neither.

    Returns:
      The search. A step costs one gradient of the objective. A network that is dead or whose
      trace norm or gradient is not finite changes nothing but the number of steps.

    Raises:
      InputError: when built, if ``nu`` or ``nu_mode`` is out of its range.

    References:
      Shu et al., `NASI: Label- and data-agnostic neural architecture search at initialization
      <https://arxiv.org/abs/2109.00817>`_, 2022, Algorithm 1.
    """
    if nu_mode not in NU_MODES:
        raise unknown_name("nasi", "nu mode", nu_mode, NU_MODES)
    if not (np.isfinite(nu) and nu > 0):
        raise InputError(f"nasi: `nu` must be a number > 0, got {nu}.")

    def init(key):
        del key  # NASI starts at the uniform distribution
        return NasiState(
            num_steps=jnp.int32(0),
            direction=zero_logits(decisions),
            max_gradient_norm=jnp.float32(0),
            trace_sum=jnp.float32(0),
            num_traces=jnp.int32(0),
            nu_start=jnp.float32(nu),
        )

    def step(key, state, *data):
        nu_now = constraint(state, nu_mode)
        grad_fn = jax.value_and_grad(objective_fn, has_aux=True)
        (reward, info), gradient = grad_fn(zero_logits(decisions), key, nu_now, *data)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradient)))
        is_finite = info.is_finite & jnp.isfinite(norm)
        is_valid = is_finite & ~info.is_dead
        largest = jnp.where(is_valid, jnp.maximum(state.max_gradient_norm, norm), 0)
        scale = jnp.where(largest > 0, 1 / jnp.where(largest > 0, largest, 1), 0)

        def add(total, g):
            return total + jnp.where(is_valid, g * scale, 0)

        state = NasiState(
            num_steps=state.num_steps + 1,
            direction=jax.tree.map(add, state.direction, gradient),
            max_gradient_norm=jnp.maximum(state.max_gradient_norm, largest),
            trace_sum=state.trace_sum + jnp.where(is_valid, info.trace_norm, 0),
            num_traces=state.num_traces + is_valid,
            nu_start=state.nu_start,
        )
        drawn = _drawn(info.weights)
        reward = jnp.where(is_valid, reward, -jnp.inf)
        return state, NasiStepInfo(
            reward, info.trace_norm, nu_now, info.excess, norm, is_finite, info.is_dead, drawn
        )

    return SearchAlgorithm(init, step)


def constraint(state: NasiState, nu_mode: str) -> Float[Array, ""]:
    """``nu`` of the next step (eqs. 40 and 41)."""
    if nu_mode == "fixed":
        return state.nu_start
    return (state.nu_start + state.trace_sum) / (state.num_traces + 1)


def zero_logits(decisions: Mapping[str, np.ndarray]) -> Logits:
    """``alpha_0``: the uniform distribution over all architectures."""
    return {name: jnp.zeros(mask.shape, jnp.float32) for name, mask in decisions.items()}


def optimal_logits(state: NasiState, *, xi: float = 1.0) -> Logits:
    r"""``alpha* = alpha_0 + Delta*`` with ``alpha_0 = 0``.

    .. math:: \Delta^* = \frac{\xi}{T} \sum_{t=1}^T \frac{G_t}{\max_{s \le t} \lVert G_s \rVert}

    Args:
      state: after ``T`` steps.
      xi: radius of the neighbourhood of ``alpha_0``; it does not change the selected architecture.

    Returns:
      Logits; zeros before the first step.

    References:
      NASI, eq. (18).
    """
    scale = xi / jnp.maximum(state.num_steps, 1)
    return jax.tree.map(lambda total: scale * total, state.direction)


class NuEstimate(NamedTuple):
    """Mean trace norm of random architectures so far; arrays of shape ``[]``.

    Attributes:
      num_steps: architectures drawn, those that failed included.
      trace_sum: sum of the trace norms of those that did not fail.
      num_traces: how many these are.
    """

    num_steps: Int[Array, ""]
    trace_sum: Float[Array, ""]
    num_traces: Int[Array, ""]


class NuEstimateInfo(NamedTuple):
    """Record of one random architecture; see ``NasiStepInfo``."""

    trace_norm: Float[Array, ""]
    is_finite: Bool[Array, ""]
    is_dead: Bool[Array, ""]
    drawn: Mapping[str, Int[Array, "..."]]


def nu_estimation(objective_fn, decisions: Mapping[str, np.ndarray]) -> SearchAlgorithm:
    """Eq. (40): the fixed ``nu`` is the mean trace norm of ``N = 50`` random architectures.

    Args:
      objective_fn: as for ``nasi``; its value is used, not its gradient.
      decisions: masks of the logits' shapes.

    Returns:
      A search whose step draws one architecture; ``mean_trace_norm`` reads its state.

    References:
      NASI, App. B.1.
    """

    def init(key):
        del key
        return NuEstimate(jnp.int32(0), jnp.float32(0), jnp.int32(0))

    def step(key, state, *data):
        _, info = objective_fn(zero_logits(decisions), key, jnp.float32(jnp.inf), *data)
        is_valid = info.is_finite & ~info.is_dead
        state = NuEstimate(
            state.num_steps + 1,
            state.trace_sum + jnp.where(is_valid, info.trace_norm, 0),
            state.num_traces + is_valid,
        )
        drawn = _drawn(info.weights)
        return state, NuEstimateInfo(info.trace_norm, info.is_finite, info.is_dead, drawn)

    return SearchAlgorithm(init, step)


def mean_trace_norm(state: NuEstimate) -> float:
    """``nu_0`` of eq. (40).

    Raises:
      InputError: if every network failed, so that there is nothing to average.
    """
    if int(state.num_traces) == 0:
        raise InputError(
            f"nu_estimation: none of the {int(state.num_steps)} random architectures had a finite "
            "trace norm. Give `nu` yourself, or choose another initialisation or normalisation."
        )
    return float(state.trace_sum / state.num_traces)


def _drawn(weights: Weights) -> dict[str, Int[Array, "..."]]:
    return {name: jnp.argmax(array, -1).astype(jnp.int32) for name, array in weights.items()}
