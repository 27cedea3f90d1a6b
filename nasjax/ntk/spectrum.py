"""Spectra of kernel matrices, in float64 whatever JAX runs in, with their failures flagged."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from nasjax.errors import InputError

FAILURES = {
    "non_finite": "an entry is NaN or infinite",
    "zero": "all entries are zero: no output depends on a parameter",
    "asymmetric": "the matrix is not symmetric, or has eigenvalues below zero beyond rounding",
    "singular": "the smallest eigenvalue is zero within rounding",
}
"""What may be wrong with a kernel."""


class Spectrum(NamedTuple):
    """Eigenvalues of a kernel and what is read off them, in the kernel's unit.

    A failed kernel has values that lose against every other: minus infinity where more is better
    (``trace``, ``lambda_min``), infinity where less is (``condition_number``). A singular one keeps
    its trace and largest eigenvalue, with ``lambda_min`` 0 and an infinite condition number.

    Attributes:
      eigenvalues: ``[rows]`` float64, ascending; empty for a kernel that is not finite.
      trace: sum of the eigenvalues, the trace norm of a kernel.
      lambda_max: the largest.
      lambda_min: the smallest.
      condition_number: ``lambda_max / lambda_min``.
      effective_rank: exponential of the entropy of the normalised eigenvalues, 1 to rows.
      rank: eigenvalues above rounding.
      residual: how far the matrix is from symmetric and positive semi-definite: the larger of
        ``max |K - K'|`` and ``-lambda_min``, relative to ``lambda_max``.
      failure: a key of ``FAILURES``, or None.
    """

    eigenvalues: Float[np.ndarray, " rows"]
    trace: float
    lambda_max: float
    lambda_min: float
    condition_number: float
    effective_rank: float
    rank: int
    residual: float
    failure: str | None


def spectrum(kernel: Float[np.ndarray, "rows rows"], *, rounding: float | None = None) -> Spectrum:
    """Eigenvalues of a symmetric kernel.

    Args:
      kernel: ``[rows, rows]``, of any floating type; converted to float64.
      rounding: relative size below which an eigenvalue counts as zero. None takes 8 times the
        rounding of the kernel's own type, and no less than ``rows`` times float64's: rounded
        entries move the smallest eigenvalue of a kernel by a few parts of its largest, as their
        errors do not add up, where ``rows`` of them would be the worst case. Asymmetry and negative
        eigenvalues count as failures above ten times this, and above ten times that worst case.

    Returns:
      The spectrum. Cost: ``rows^3``, on the host.

    Raises:
      InputError: if the kernel is not a square matrix of real numbers with a row, or the rounding
        is below 0.

    References:
      The effective rank is that of Roy and Vetterli, `The effective rank: a measure of effective
      dimensionality <https://ieeexplore.ieee.org/document/7098875>`_, 2007.
    """
    if hasattr(kernel, "matrix"):
        raise InputError("spectrum: `kernel` must be an array; pass the `.matrix` of the result.")
    kernel = np.asarray(kernel)
    if not jnp.issubdtype(kernel.dtype, jnp.number) or np.iscomplexobj(kernel):
        raise InputError(f"spectrum: `kernel` must hold real numbers, got {kernel.dtype}.")
    if rounding is not None and not rounding >= 0:
        raise InputError(f"spectrum: `rounding` must be at least 0, got {rounding}.")
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or not len(kernel):
        raise InputError(
            f"spectrum: `kernel` must be a square matrix, got shape {list(kernel.shape)}. "
            "Reshape [batch, batch, outputs, outputs] to examples x outputs first."
        )
    is_floating = jnp.issubdtype(kernel.dtype, jnp.floating)
    own = float(jnp.finfo(kernel.dtype if is_floating else float).eps)
    if rounding is None:
        rounding = max(8 * own, len(kernel) * float(np.finfo(float).eps))
    kernel = kernel.astype(np.float64)
    if not np.isfinite(kernel).all():
        return _failed("non_finite", np.empty(0))
    if not kernel.any():
        return _failed("zero", np.zeros(len(kernel)))
    # By a power of two, which changes no digit: entries may be as large as numbers get.
    scale = 2.0 ** np.floor(np.log2(np.abs(kernel).max()))
    kernel = kernel / scale
    values = np.linalg.eigvalsh((kernel + kernel.T) / 2)
    largest = float(np.abs(values).max())
    asymmetry = float(np.abs(kernel - kernel.T).max())
    residual = max(asymmetry, -float(values[0]), 0.0) / largest if largest else np.inf
    if residual > 10 * max(rounding, len(kernel) * own):
        with np.errstate(over="ignore"):
            values = values * scale
        return _failed("asymmetric", values, residual)
    is_nonzero = values > rounding * largest
    shares = values[is_nonzero] / values[is_nonzero].sum()
    is_singular = not is_nonzero.all()
    with np.errstate(over="ignore"):
        eigenvalues, trace = values * scale, float(np.trace(kernel) * scale)
    return Spectrum(
        eigenvalues=eigenvalues,
        trace=trace,
        lambda_max=float(eigenvalues[-1]),
        lambda_min=0.0 if is_singular else float(eigenvalues[0]),
        condition_number=np.inf if is_singular else float(values[-1] / values[0]),
        effective_rank=float(np.exp(-np.sum(shares * np.log(shares)))),
        rank=int(is_nonzero.sum()),
        residual=residual,
        failure="singular" if is_singular else None,
    )


def _failed(failure: str, values: np.ndarray, residual: float = np.inf) -> Spectrum:
    residual = 0.0 if failure == "zero" else residual
    return Spectrum(values, -np.inf, np.inf, -np.inf, np.inf, 0.0, 0, residual, failure)
