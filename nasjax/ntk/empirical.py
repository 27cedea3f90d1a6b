"""Empirical neural tangent kernels of any network, within a stated amount of memory."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from nasjax.errors import InputError, unknown_name
from nasjax.ntk.blocks import BlockedNtk, NtkPlan, as_rows
from nasjax.ntk.gradients import (
    BATCH_AXIS,
    ApplyFn,
    batch_outputs,
    check_coupling,
    output_cotangents,
    output_gradients,
)
from nasjax.ntk.other_routes import ROUTES, other_ntk
from nasjax.ntk.programs import read_program
from nasjax.types import PyTree

METHODS = ("auto", "blocks", *ROUTES)
"""Ways to the same kernel: ours, in blocks of Jacobian rows, and those of ``ROUTES``. ``"auto"``
takes neural-tangents' structured derivatives for networks of dense layers, else ``"blocks"``."""


class EmpiricalNtk(NamedTuple):
    """A kernel and what it was computed from.

    Attributes:
      matrix: ``[rows, rows]`` in (output / parameter)^2, float64 for ``"blocks"``, else in the type
        that was computed in. Rows are examples, or for ``outputs="all"`` example x output with the
        output running fastest.
      outputs: a key of ``OUTPUTS``.
      coupling: a key of ``COUPLINGS``.
      method: one of ``METHODS``, never ``"auto"``.
      num_duplicates: examples that equal an earlier one; each makes the kernel singular.
      plan: how it was computed; None for other methods than ``"blocks"``.
    """

    matrix: Float[np.ndarray, "rows rows"]
    outputs: str
    coupling: str
    method: str
    num_duplicates: int
    plan: NtkPlan | None


def ntk_matrix(
    apply_fn: ApplyFn,
    params: PyTree,
    x: Array,
    *,
    outputs: str = "trace",
    labels: Int[Array, " batch"] | None = None,
    coupling: str = "none",
) -> Float[Array, "rows rows"]:
    """The empirical kernel as a traced function, to be jitted, mapped and differentiated.

    The whole Jacobian is held; ``empirical_ntk`` is the same within bounded memory, in float64, and
    with its arguments checked.

    Args:
      apply_fn: ``(params, x) -> [batch, outputs]``.
      params: its parameters.
      x: ``[batch, ...]``.
      outputs: a key of ``OUTPUTS``.
      labels: ``[batch]`` integers, for ``outputs="label"``.
      coupling: a key of ``COUPLINGS``.

    Returns:
      ``[rows, rows]`` in the type of the parameters, products at highest precision.

    Raises:
      InputError: for unknown names, labels that do not fit, and outputs of another form.

    References:
      NASI, eq. (1).
    """
    where = "ntk_matrix"
    check_coupling(where, coupling)
    num_outputs = _num_outputs(where, _outputs_fn(apply_fn, coupling), params, x)
    cotangents = output_cotangents(where, outputs, len(x), num_outputs, labels)
    gradients = output_gradients(apply_fn, params, x, cotangents, coupling=coupling)
    leaves = [as_rows(leaf, is_traced=outputs == "trace") for leaf in jax.tree.leaves(gradients)]
    return sum(jnp.matmul(leaf, leaf.T, precision=lax.Precision.HIGHEST) for leaf in leaves)


def empirical_ntk(
    apply_fn: ApplyFn,
    params: PyTree,
    x: Array,
    *,
    outputs: str = "trace",
    labels: Int[Array, " batch"] | None = None,
    coupling: str = "none",
    method: str = "auto",
    dtype: str | None = None,
    memory_budget_bytes: int = 2**30,
    devices: Sequence[jax.Device] | None = None,
) -> EmpiricalNtk:
    r"""The empirical neural tangent kernel of a network.

    .. math:: \Theta_{(i, k), (j, l)} = \nabla_\theta f_k(x_i) \cdot \nabla_\theta f_l(x_j)

    ``"blocks"`` computes gradients in blocks of rows that fit the budget and sums their products in
    float64, also where the gradients are float32: the kernel is then positive semi-definite to
    1e-16, and its smallest eigenvalue as good as the gradients. Other ways have float32 products
    where the network is float32. For eigenvalues below 1e-5 of the largest, use
    ``dtype="float64"``, which computes everything in it.

    Args:
      apply_fn: ``(params, x) -> [batch, outputs]``, deterministic.
      params: its parameters.
      x: ``[batch, ...]``.
      outputs: a key of ``OUTPUTS``.
      labels: ``[batch]`` integers, for ``outputs="label"``.
      coupling: a key of ``COUPLINGS``: how batch statistics are treated.
      method: one of ``METHODS``.
      dtype: float64 computes everything in it; None in the types at hand.
      memory_budget_bytes: most memory for gradients, all devices together; for ``"blocks"``.
      devices: spreads examples over them, by ``"blocks"`` and for ``coupling="none"``; None takes
        the default device.

    Returns:
      The kernel. Cost: ``num_gradients`` of the plan, and ``rows^2 params`` multiplications. It is
      computed in full, on the host's side of ``jit``; ``ntk_matrix`` is the form to be traced.

    Raises:
      InputError: if there is no example; if an input or parameter is not finite; if outputs are not
        ``[batch, outputs]``; if examples act on each other with ``coupling="none"`` (batch
        statistics, dropout); if a row does not fit the budget; for unknown names and labels that
        do not fit.

    Example:
      >>> ntk = empirical_ntk(lambda w, x: x @ w, jnp.eye(2), jnp.eye(2))  # NTK: 2 x x'
      >>> ntk.matrix.tolist()
      [[2.0, 0.0], [0.0, 2.0]]
    """
    where = "empirical_ntk"
    if _is_float64(where, dtype):
        with jax.enable_x64(True):
            params, x = jax.tree.map(to_float64, (params, x))
            return empirical_ntk(
                *(apply_fn, params, x),
                outputs=outputs,
                labels=labels,
                coupling=coupling,
                method=method,
                memory_budget_bytes=memory_budget_bytes,
                devices=devices,
            )
    if method not in METHODS:
        raise unknown_name(where, "method", method, METHODS)
    params = jax.tree.map(jnp.asarray, params)
    x, num_outputs = check_network(where, apply_fn, params, x, coupling=coupling)
    cotangents = output_cotangents(where, outputs, len(x), num_outputs, labels)
    if method == "auto":
        is_alone = coupling == "none" and devices is None
        is_structured = is_alone and read_program(apply_fn, params, x).is_dense
        method = "structured_derivatives" if is_structured else "blocks"
    plan = None
    if method == "blocks":
        blocked = _blocked(where, apply_fn, params, x, cotangents, outputs, coupling, devices)
        plan = blocked.plan(where, memory_budget_bytes)
        matrix = blocked.kernel(plan)
    else:
        if devices is not None:
            raise InputError(
                f"{where}: `devices` must be None for method={method!r}. Use 'blocks'."
            )
        matrix = other_ntk(where, method, apply_fn, params, x, cotangents, outputs, coupling)
    # On the host, while a device computes the kernel.
    duplicates = count_duplicates(x)
    return EmpiricalNtk(np.asarray(matrix), outputs, coupling, method, duplicates, plan)


def plan_empirical_ntk(
    apply_fn: ApplyFn,
    params: PyTree,
    x: Array,
    *,
    outputs: str = "trace",
    coupling: str = "none",
    dtype: str | None = None,
    memory_budget_bytes: int = 2**30,
    devices: Sequence[jax.Device] | None = None,
) -> NtkPlan:
    """What ``empirical_ntk(method="blocks")`` would do; only the program is compiled.

    Other methods have no plan: a network of dense layers, for which ``"auto"`` takes structured
    derivatives, needs no block at all.

    Args:
      apply_fn: as there, like all others.
      params: its parameters.
      x: ``[batch, ...]``.
      outputs: a key of ``OUTPUTS``.
      coupling: a key of ``COUPLINGS``.
      dtype: float64 plans for everything in it.
      memory_budget_bytes: most memory for gradients.
      devices: spreads examples over them.

    Returns:
      The plan.

    Raises:
      InputError: as there.
    """
    where = "plan_empirical_ntk"
    params = jax.tree.map(jnp.asarray, params)
    if _is_float64(where, dtype):
        with jax.enable_x64(True):
            params, x = jax.tree.map(to_float64, (params, x))
            return plan_empirical_ntk(
                *(apply_fn, params, x),
                outputs=outputs,
                coupling=coupling,
                memory_budget_bytes=memory_budget_bytes,
                devices=devices,
            )
    x, num_outputs = check_network(where, apply_fn, params, x, coupling=coupling)
    labels = jnp.zeros(len(x), jnp.int32) if outputs == "label" else None
    cotangents = output_cotangents(where, outputs, len(x), num_outputs, labels)
    blocked = _blocked(where, apply_fn, params, x, cotangents, outputs, coupling, devices)
    return blocked.plan(where, memory_budget_bytes)


def _blocked(where, apply_fn, params, x, cotangents, outputs, coupling, devices) -> BlockedNtk:
    if devices is not None and coupling != "none":
        raise InputError(
            f"{where}: `devices` must be None for coupling={coupling!r}. Examples that act on "
            "each other are not spread."
        )
    if devices is not None and not all(isinstance(device, jax.Device) for device in devices):
        raise InputError(f"{where}: `devices` must be a list such as jax.devices(), got {devices}.")
    return BlockedNtk(
        *(apply_fn, params, x, cotangents),
        is_traced=outputs == "trace",
        coupling=coupling,
        devices=devices,
    )


def _is_float64(where: str, dtype) -> bool:
    if dtype is None or dtype in ("float64", np.float64):
        return dtype is not None
    raise unknown_name(where, "dtype", str(dtype), ["float64"])


def check_network(
    where: str, apply_fn: ApplyFn, params: PyTree, x: Array, *, coupling: str
) -> tuple[Array, int]:
    """Checks what a kernel is to be computed of.

    Args:
      where: the function that was called, for messages.
      apply_fn: ``(params, x) -> [batch, outputs]``.
      params: its parameters.
      x: ``[batch, ...]``.
      coupling: a key of ``COUPLINGS``; that examples do not act on each other is checked by the
        network's program, or where that does not tell, by outputs of two of them.

    Returns:
      ``x`` as an array, and the number of outputs.

    Raises:
      InputError: names what is wrong.
    """
    check_coupling(where, coupling)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((params, x))):
        raise InputError(f"{where}: arrays must not be traced. Inside jit use ntk_matrix.")
    x = jnp.asarray(x)
    if x.ndim < 2 or not len(x):
        raise InputError(f"{where}: `x` must be [batch, ...] with an example, got {list(x.shape)}.")
    if len(x) == 1 and coupling != "none":
        raise InputError(
            f"{where}: `x` must have two examples for coupling={coupling!r}, got 1: statistics of "
            "one example normalise it by itself. Give more examples, or frozen statistics."
        )
    if not jax.tree.leaves(params):
        raise InputError(f"{where}: `params` must hold an array, got none.")
    try:
        program = read_program(apply_fn, params, x)
        if program.is_mapped and coupling != "mapped":
            raise InputError(
                f"{where}: `coupling` must be 'mapped' for a network that averages over the axis "
                f"{BATCH_AXIS!r}, got {coupling!r}. Or build the network without the axis."
            )
        num_outputs = _num_outputs(where, _outputs_fn(apply_fn, coupling), params, x)
        is_run = coupling != "exact" and not program.is_mapped and not program.is_apart
        is_x_finite, is_params_finite, is_apart = np.asarray(_probe(apply_fn, is_run)(params, x))
    except flax.errors.InvalidRngError as error:
        raise InputError(
            f"{where}: `apply_fn` must be deterministic, but it asks for random numbers "
            f"({str(error).splitlines()[0]}). Turn dropout off."
        ) from error
    for name, is_finite in (("x", is_x_finite), ("params", is_params_finite)):
        if not is_finite:
            raise InputError(
                f"{where}: `{name}` must be finite, got NaN or infinity. Check where it comes from."
            )
    if not is_apart and coupling == "mapped":
        raise InputError(
            f"{where}: `apply_fn` must average batch statistics over the mapped axis "
            f"{BATCH_AXIS!r} for coupling='mapped'; its examples act on each other otherwise. "
            "Build the network with BatchNorm(axis_name=BATCH_AXIS) or "
            "LayerConfig(batch_axis=BATCH_AXIS)."
        )
    if not is_apart:
        raise InputError(
            f"{where}: `apply_fn` must treat every example by itself for coupling='none', but "
            "an example's outputs depend on the others. Is batch normalisation in training "
            "mode (use coupling='exact', or running statistics) or dropout on (turn it off)?"
        )
    return x, num_outputs


def _without_zeros(leaf):
    """Zeros replaced by numbers in [-1/4, 1/4) that differ from place to place."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    # Sums of a number for the row and one for the column, as those are few.
    scattered = jnp.zeros((), leaf.dtype)
    for axis, size in enumerate(leaf.shape[-2:], max(leaf.ndim - 2, 0)):
        numbers = np.modf((1 + np.arange(size)) * 0.618034)[0] / 4 - 0.125
        shape = [-1 if other == axis else 1 for other in range(leaf.ndim)]
        scattered = scattered + jnp.asarray(numbers.reshape(shape), leaf.dtype)
    return jnp.where(leaf == 0, scattered, leaf)


def _num_outputs(where: str, outputs_fn, params, x) -> int:
    found = outputs_fn.eval_shape(params, x)
    if not isinstance(found, jax.ShapeDtypeStruct):
        raise InputError(
            f"{where}: `apply_fn` must return one array [batch, outputs], got "
            f"{type(found).__name__}. Select one of its outputs."
        )
    is_floating = jnp.issubdtype(found.dtype, jnp.floating)
    if found.ndim != 2 or found.shape[0] != len(x) or not len(x) or not is_floating:
        raise InputError(
            f"{where}: `apply_fn` must return [batch, outputs] of a floating type, got "
            f"{found.dtype}{list(found.shape)} for {len(x)} examples. Flatten or select its "
            "outputs."
        )
    return found.shape[1]


@functools.lru_cache(maxsize=32)
def _outputs_fn(apply_fn: ApplyFn, coupling: str):
    return jax.jit(lambda params, x: batch_outputs(apply_fn, params, x, coupling))


@functools.lru_cache(maxsize=32)
def _probe(apply_fn: ApplyFn, is_run: bool):
    """What is checked by numbers: whether ``x`` and ``params`` are finite, and examples apart."""

    def is_apart(params, x):
        # Coupling is a matter of structure, so it is looked for where it shows: with parameters
        # that are not zero and examples that are not equal.
        params = jax.tree.map(_without_zeros, params)
        x = x[np.linspace(0, len(x) - 1, min(len(x), 64)).astype(int)]
        if jnp.issubdtype(x.dtype, jnp.floating):
            scale = jnp.where(jnp.std(x) > 0, jnp.std(x), 1.0).astype(x.dtype)
            x = x + scale * jax.random.normal(jax.random.key(0), x.shape, x.dtype)
        together = apply_fn(params, x)
        alone = jnp.concatenate([apply_fn(params, x[:1]), apply_fn(params, x[-1:])])
        allowed = jnp.finfo(together.dtype).eps ** 0.5 * jnp.abs(together).max()
        return ~(jnp.abs(alone - together[np.array([0, -1])]).max() > allowed)

    def probe(params, x):
        # Zero times what is not finite is NaN; four times as fast as to look at every number.
        finite = [jnp.isfinite(sum((0 * a).sum() for a in jax.tree.leaves(t))) for t in (x, params)]
        return jnp.stack([*finite, is_apart(params, x) if is_run else finite[0]])

    return jax.jit(probe)


def count_duplicates(x: Array) -> int:
    """How many examples of ``[batch, ...]`` equal an earlier one; on the host."""
    # Zero is added as -0 equals 0.
    return len(x) - len({(example + 0).tobytes() for example in np.asarray(x)})


def to_float64(leaf: Array) -> Array:
    """A floating array in float64, under ``enable_x64``; another as it is."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
