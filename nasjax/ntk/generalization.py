"""The bound on the error after one pass of SGD, from a kernel and labels (Eigen-NAS, theorem 3)."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from nasjax.errors import InputError, unknown_name
from nasjax.networks.activations import ACTIVATIONS
from nasjax.ntk.spectrum import spectrum


class GeneralizationTerms(NamedTuple):
    """Theorem 3 with 1 for the constants that it does not name: only differences mean something.

    Attributes:
      lipschitz: largest Lipschitz constant of the activations.
      c_1: ``sqrt(L) / (3 lipschitz + 1)^(L - 1)``.
      c_2: ``sqrt(L) (3 lipschitz + 1)^(L - 1)``.
      label_norm: ``sqrt(y' K^-1 y)``.
      step_size: ``kappa c_1 sqrt(y' K^-1 y) / (m sqrt(N))``.
      eigenvalue_term: ``c_2 sqrt(y'y / (lambda_min N))``, the theorem's first term.
      label_term: ``c_2 sqrt(y' K^-1 y / N)``, which the proof has in its place: at most as large.
      confidence_term: ``sqrt(log(1 / delta) / N)``.
    """

    lipschitz: float
    c_1: float
    c_2: float
    label_norm: float
    step_size: float
    eigenvalue_term: float
    label_term: float
    confidence_term: float


@functools.cache
def lipschitz_constant(activation: str) -> float:
    """The largest slope of an activation, to 1e-9.

    Args:
      activation: a key of ``ACTIVATIONS``.

    Returns:
      1 for ReLU, LeakyReLU and tanh, 1/4 for sigmoid, 1.0998 for swish.

    Raises:
      InputError: if the name is unknown.
    """
    if activation not in ACTIVATIONS:
        raise unknown_name("lipschitz_constant", "activation", activation, ACTIVATIONS)
    with jax.enable_x64(True):
        # All slopes come near their limits within; steps of 2e-4 leave a square of that.
        z = jnp.linspace(-20.0, 20.0, 200_001)
        slopes = jax.jit(jax.vmap(jax.grad(ACTIVATIONS[activation])))(z)
        return float(jnp.abs(slopes).max())


def generalization_terms(
    kernel: Float[np.ndarray, "batch batch"],
    y: Float[np.ndarray, " batch"],
    activations: Sequence[str],
    *,
    width: int,
    kappa: float = 1.0,
    delta: float = 0.1,
) -> GeneralizationTerms:
    r"""What bounds the expected 0-1 error of a network after one pass of SGD.

    .. math:: C_2 \sqrt{\tfrac{y^\top y}{\lambda_{\min}(K) N}} + \sqrt{\tfrac{\log(1/\delta)} N},
       \quad \gamma = \kappa C_1 \sqrt{y^\top K^{-1} y} / (m \sqrt N)

    The theorem holds for networks wider than is practical, and its first term is far above 1:
    ``c_2`` is ``4^(L - 1)`` already with ReLU alone.

    Args:
      kernel: ``K`` of ``[batch, batch]``, of ``mlp_ntk`` at the examples.
      y: ``[batch]``, labels -1 and 1.
      activations: ``sigma_1 ... sigma_{L-1}``, keys of ``ACTIVATIONS``.
      width: ``m``.
      kappa: of the step size; the theorem wants it small enough.
      delta: probability that the bound does not hold, in (0, 1 / e].

    Returns:
      The terms. Of a kernel that is singular within rounding, those with its inverse are infinite.
      Cost: ``batch^3``, on the host.

    Raises:
      InputError: if shapes do not fit, a label is not -1 or 1, or a number is out of its range.

    References:
      Zhu et al., `Generalization properties of NAS under activation and skip connection search
      <https://arxiv.org/abs/2209.07238>`_, 2022, theorem 3.
    """
    where = "generalization_terms"
    kernel, y = np.asarray(kernel, np.float64), np.asarray(y, np.float64)
    if y.ndim != 1 or kernel.shape != (len(y), len(y)) or not len(y):
        raise InputError(
            f"{where}: `kernel` and `y` must be [batch, batch] and [batch], got "
            f"{list(kernel.shape)} and {list(y.shape)}."
        )
    if not (np.abs(y) == 1).all():
        raise InputError(
            f"{where}: `y` must be -1 or 1, got {y[np.abs(y) != 1][0]:g}. For classes 0 and 1 pass "
            "2 y - 1."
        )
    if len(activations) < 2 or width < 1 or not kappa > 0 or not 0 < delta <= 1 / math.e:
        raise InputError(
            f"{where}: `activations` must be at least 2, `width` at least 1, `kappa` above 0 and "
            f"`delta` in (0, 1/e], got {len(activations)}, {width}, {kappa:g} and {delta:g}."
        )
    num, depth = len(y), len(activations) + 1
    lipschitz = max(lipschitz_constant(name) for name in activations)
    power = (3 * lipschitz + 1) ** (depth - 1)
    c_1, c_2 = math.sqrt(depth) / power, math.sqrt(depth) * power
    found = spectrum(kernel)
    label_norm = eigenvalue_term = math.inf
    if found.failure is None:
        label_norm = math.sqrt(float(y @ np.linalg.solve(kernel, y)))
        eigenvalue_term = c_2 * math.sqrt(float(y @ y) / (found.lambda_min * num))
    return GeneralizationTerms(
        lipschitz=lipschitz,
        c_1=c_1,
        c_2=c_2,
        label_norm=label_norm,
        step_size=kappa * c_1 * label_norm / (width * math.sqrt(num)),
        eigenvalue_term=eigenvalue_term,
        label_term=c_2 * label_norm / math.sqrt(num),
        confidence_term=math.sqrt(math.log(1 / delta) / num),
    )
