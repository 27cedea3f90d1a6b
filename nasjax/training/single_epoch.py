"""One pass of stochastic gradient descent over binary examples (Eigen-NAS, algorithm 1)."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from nasjax.errors import InputError
from nasjax.types import Key, PyTree


class ScalarApplyFn(Protocol):
    """A network with one output."""

    def __call__(self, params: PyTree, x: Float[Array, "batch ..."]) -> Float[Array, " batch"]:
        """Outputs ``[batch]`` of ``[batch, ...]``."""
        ...


class SingleEpoch(NamedTuple):
    """What a pass leaves.

    Attributes:
      params: the drawn iterate, ``W^(index + 1)`` of the paper: after ``index`` steps.
      index: ``[]``, uniform over ``0 ... N - 1``, so that the last step is never in it.
      last_params: after all ``N`` steps.
      mean_loss: ``[]``, of each example before its own step: by it each is new to the network.
    """

    params: PyTree
    index: Int[Array, ""]
    last_params: PyTree
    mean_loss: Float[Array, ""]


def single_epoch_sgd(
    apply_fn: ScalarApplyFn,
    params: PyTree,
    x: Float[Array, "batch ..."],
    y: Float[Array, " batch"],
    step_size: float | Float[Array, ""],
    key: Key,
) -> SingleEpoch:
    """One pass in the given order, one example a step, with a constant step and logistic loss.

    Every step follows the gradient of ``log(1 + exp(-y f(x)))`` at one example. The returned
    iterate is drawn before the pass, which stores no other: the pass stops there and goes on. To be
    jitted by the caller, with ``apply_fn`` closed over.

    Args:
      apply_fn: the network, ``f``.
      params: ``W^(1)``.
      x: ``[batch, ...]``.
      y: ``[batch]``, -1 or 1; checked where it is not traced.
      step_size: ``gamma``; may be traced.
      key: draws the iterate.

    Returns:
      The drawn iterate, and the last one. Cost: a forward and a backward pass an example; memory:
      three times the parameters.

    Raises:
      InputError: if shapes do not fit, there is no example, or a label is neither -1 nor 1.

    Example:
      >>> x, y = jnp.eye(2), jnp.array([1.0, -1.0])
      >>> found = single_epoch_sgd(lambda w, x: x @ w, jnp.zeros(2), x, y, 1.0, jax.random.key(0))
      >>> found.last_params
      Array([ 0.5, -0.5], dtype=float32)

    References:
      Zhu et al., `Generalization properties of NAS under activation and skip connection search
      <https://arxiv.org/abs/2209.07238>`_, 2022, algorithm 1, after its search.
    """
    _check(x, y)
    num_examples = len(x)
    y = jnp.asarray(y)

    def loss(params, i):
        output = apply_fn(params, lax.dynamic_slice_in_dim(x, i, 1))[0]
        return jax.nn.softplus(-y[i].astype(output.dtype) * output)

    def step(i, carry):
        params, total = carry
        value, gradient = jax.value_and_grad(loss)(params, i)
        moved = jax.tree.map(lambda w, g: w - jnp.asarray(step_size, w.dtype) * g, params, gradient)
        return moved, total + value

    index = jax.random.randint(key, (), 0, num_examples)
    total = jnp.zeros((), jax.eval_shape(loss, params, 0).dtype)
    chosen, total = lax.fori_loop(0, index, step, (params, total))
    last, total = lax.fori_loop(index, num_examples, step, (chosen, total))
    return SingleEpoch(chosen, index, last, total / num_examples)


def _check(x, y) -> None:
    if jnp.ndim(y) != 1 or jnp.shape(x)[:1] != jnp.shape(y) or not len(y):
        raise InputError(
            "single_epoch_sgd: `x` and `y` must be [batch, ...] and [batch] with an example, got "
            f"{list(jnp.shape(x))} and {list(jnp.shape(y))}."
        )
    if isinstance(y, jax.core.Tracer):
        return
    values = np.asarray(y)
    if not (np.abs(values) == 1).all():
        raise InputError(
            f"single_epoch_sgd: `y` must be -1 or 1, got {values[np.abs(values) != 1][0]:g}. For "
            "classes 0 and 1 pass 2 y - 1."
        )
