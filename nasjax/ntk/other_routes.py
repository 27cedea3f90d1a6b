"""Other ways to an empirical kernel: one whole Jacobian, and neural-tangents' implementations."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from nasjax.errors import InputError
from nasjax.ntk.blocks import as_rows
from nasjax.ntk.gradients import ApplyFn
from nasjax.types import PyTree

_NEURAL_TANGENTS = {
    "jacobian_contraction": "JACOBIAN_CONTRACTION",
    "ntk_vector_products": "NTK_VECTOR_PRODUCTS",
    "structured_derivatives": "STRUCTURED_DERIVATIVES",
}
ROUTES = ("jacrev", *_NEURAL_TANGENTS)
"""``jax.jacrev`` of the whole batch, and neural-tangents' implementations by their names there."""


def other_ntk(
    where: str,
    method: str,
    apply_fn: ApplyFn,
    params: PyTree,
    x: Array,
    cotangents: Float[Array, "batch rows outputs"],
    outputs: str,
    coupling: str,
) -> Float[Array, "rows rows"]:
    """The kernel by one of ``ROUTES``, in the type of the parameters.

    Args:
      where: the function that was called, for messages.
      method: one of ``ROUTES``.
      apply_fn: ``(params, x) -> [batch, outputs]``.
      params: its parameters.
      x: ``[batch, ...]``.
      cotangents: ``[batch, rows, outputs]``, of ``output_cotangents``.
      outputs: a key of ``OUTPUTS``.
      coupling: ``"none"`` or ``"exact"``.

    Returns:
      ``[rows, rows]``. The whole Jacobian is held, or what neural-tangents holds.

    Raises:
      InputError: for ``coupling="mapped"``.
    """
    if coupling == "mapped":
        raise InputError(
            f"{where}: `method` must be 'blocks' for coupling='mapped', got {method!r}."
        )
    kernel = _kernel_fn(method, apply_fn, outputs, coupling)(params, x, cotangents)
    if method == "jacrev":
        return kernel
    if outputs == "trace":
        return kernel * cotangents.shape[1]  # neural-tangents takes the mean
    num_rows = kernel.shape[0] * kernel.shape[2]
    return kernel.transpose(0, 2, 1, 3).reshape(num_rows, num_rows)


@functools.lru_cache(maxsize=32)
def _kernel_fn(method: str, apply_fn: ApplyFn, outputs: str, coupling: str):
    """``(params, x, cotangents) -> kernel``, compiled; kept for the next kernel of the network."""

    def weighted(params, x, cotangents):
        return jnp.einsum("bo,bro->br", apply_fn(params, x), cotangents)

    if method == "jacrev":

        def by_jacrev(params, x, cotangents):
            jacobian = jax.jacrev(weighted)(params, x, cotangents)
            leaves = [as_rows(j, is_traced=outputs == "trace") for j in jax.tree.leaves(jacobian)]
            return sum(jnp.matmul(j, j.T, precision="highest") for j in leaves)

        return jax.jit(by_jacrev)
    from nasjax.ntk._neural_tangents import neural_tangents

    nt = neural_tangents()
    is_whole = outputs in ("all", "trace")
    kernel_fn = nt.empirical_ntk_fn(
        apply_fn if is_whole else lambda params, inputs: weighted(params, *inputs),
        trace_axes=(-1,) if outputs == "trace" else (),
        vmap_axes=None if coupling == "exact" else (0 if is_whole else (0, 0), 0, {}),
        implementation=nt.NtkImplementation[_NEURAL_TANGENTS[method]],
    )
    return jax.jit(
        lambda params, x, cotangents: kernel_fn(x if is_whole else (x, cotangents), None, params)
    )
