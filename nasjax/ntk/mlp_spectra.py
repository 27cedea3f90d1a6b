"""Spectra of infinite-width kernels of many fully connected networks, by one program.

The smallest eigenvalue needs the whole kernel matrix. Where that does not fit, the mean of its
diagonal bounds the smallest eigenvalue from above, from one number an example.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from nasjax.errors import InputError, unknown_name
from nasjax.networks.mlp import genotype_bounds, split_genotype
from nasjax.ntk.mlp_kernel import MLP_METHODS, mlp_ntk
from nasjax.ntk.spectrum import spectrum
from nasjax.ntk.sphere_kernel import (
    angle_program,
    common_norm,
    interpolated,
    is_resolved,
    pair_angles,
)

TRACE_DIVISORS = {
    "features": "the trace over the input dimension, as Eigen-NAS has it",
    "examples": "the mean of the diagonal, which no smallest eigenvalue exceeds",
}

_NUM_ANGLES = (129, 513)
"""For all architectures, and for those whose polynomials these do not resolve."""

_LARGEST_CHUNK = 64
"""More architectures at once are not faster: one alone fills the processor."""


class MlpSpectra(NamedTuple):
    """What is read off the kernels of many architectures, with the failures of ``spectrum``.

    Attributes:
      lambda_min: ``[architectures]`` float64, the smallest eigenvalue; 0 of a kernel that is
        singular within rounding, minus infinity of one that is not finite, or zero.
      lambda_max: ``[architectures]``, the largest; infinity of a failed kernel.
      trace: ``[architectures]``; minus infinity of a failed kernel.
      failures: a key of ``FAILURES`` each, or None.
    """

    lambda_min: Float[np.ndarray, " architectures"]
    lambda_max: Float[np.ndarray, " architectures"]
    trace: Float[np.ndarray, " architectures"]
    failures: tuple[str | None, ...]


def mlp_lambda_min(
    genotypes: Int[np.ndarray, "architectures decisions"],
    x: Float[np.ndarray, "batch features"],
    *,
    method: str = "exact",
    chunk: int | None = None,
    memory_budget_bytes: int = 2**32,
) -> Float[np.ndarray, " architectures"]:
    """Smallest eigenvalues of the kernels of many architectures; see ``mlp_spectra``.

    Example:
      >>> mlp_lambda_min(np.array([[0, 0, 0], [1, 1, 1]]), np.eye(3)).round(3)
      array([2.314, 4.012])
    """
    spectra = mlp_spectra(
        genotypes, x, method=method, chunk=chunk, memory_budget_bytes=memory_budget_bytes
    )
    return spectra.lambda_min


def mlp_spectra(
    genotypes: Int[np.ndarray, "architectures decisions"],
    x: Float[np.ndarray, "batch features"],
    *,
    method: str = "exact",
    chunk: int | None = None,
    memory_budget_bytes: int = 2**32,
) -> MlpSpectra:
    """Extreme eigenvalues of the infinite-width kernels of many architectures of one depth.

    Kernels come from one program, compiled once for a depth and a chunk; the last chunk is filled
    up. Where all points have one norm, within the rounding of the type that they come in, it
    computes them at a few angles, which is enough (``sphere_kernel``); else for all pairs of
    points, whose number it is then compiled for, too. Eigenvalues come from the host, where those
    of 64 kernels of 64 points take a sixth of the time that they take on JAX's CPU device. All is
    in float64.

    Args:
      genotypes: ``[architectures, 2 depth - 3]``, of the space ``mlp`` at that depth.
      x: ``[batch, features]``, not scaled: the paper takes rows of norm 1.
      method: a key of ``MLP_METHODS``.
      chunk: architectures at once; None takes up to 64, as many as the memory holds.
      memory_budget_bytes: most memory that a chunk may take, by a forecast from above.

    Returns:
      The spectra, in the order of the genotypes. Cost an architecture: that of ``mlp_ntk`` and
      ``batch^3``, or on a sphere that of ``mlp_ntk`` for 257 pairs instead of all: a thousand of
      depth 10 at 64 points take 1.2 s on two CPU cores, after 0.8 s of compilation. Memory: 128
      ``batch^2`` bytes an architecture of a chunk, or 8 on a sphere, and 200 or 80 in all.

    Raises:
      InputError: if the method is unknown, an array has another shape or other values, or a chunk
        needs more memory than there is, with the bytes that it needs.
    """
    where = "mlp_spectra"
    genotypes, x = _checked(where, genotypes, x)
    if method not in MLP_METHODS:
        raise unknown_name(where, "method", method, MLP_METHODS)
    norm = common_norm(x)
    x, num_pairs = x.astype(np.float64), len(x) * (len(x) + 1) // 2
    if norm is None or num_pairs <= 2 * _NUM_ANGLES[0]:
        program = _kernel_program(method)
        kernels = _in_chunks(where, program, genotypes, x, num_pairs, chunk, memory_budget_bytes)
    else:
        kernels = _on_sphere(where, method, genotypes, x, norm, chunk, memory_budget_bytes)
    found = [spectrum(kernel) for kernel in kernels]
    lambda_min, lambda_max, trace = (
        np.array([getattr(one, name) for one in found], float)
        for name in ("lambda_min", "lambda_max", "trace")
    )
    return MlpSpectra(lambda_min, lambda_max, trace, tuple(one.failure for one in found))


def mlp_trace_bound(
    genotypes: Int[np.ndarray, "architectures decisions"],
    x: Float[np.ndarray, "batch features"],
    *,
    over: str = "features",
    method: str = "exact",
    chunk: int | None = None,
    memory_budget_bytes: int = 2**32,
) -> Float[np.ndarray, " architectures"]:
    r"""Bounds on the smallest eigenvalues from the kernels' diagonals alone.

    .. math:: \lambda_{\min}(K) \le \tfrac 1 N \sum_i K_{ii}, \qquad
       \lambda_{\min}(K) \le \tfrac 1 d \sum_i K_{ii} \text{ if } N \ge d

    The first holds for every symmetric matrix. The second is the paper's. With fewer points than
    features it is below the mean of the diagonal and may be below the smallest eigenvalue, as it
    is for orthogonal points, whose kernels have nearly equal eigenvalues. The paper's next step,
    ``1 / d sum_i K_ii <= |K|_F``, holds if ``N <= d^2``. Over architectures at the same points
    both rank alike, and on a sphere they depend on the points by ``N / d`` only.

    Args:
      genotypes: ``[architectures, 2 depth - 3]``, of the space ``mlp`` at that depth.
      x: ``[batch, features]``.
      over: a key of ``TRACE_DIVISORS``.
      method: a key of ``MLP_METHODS``.
      chunk: architectures at once; None takes up to 64, as many as the memory holds.
      memory_budget_bytes: most memory that a chunk may take, by a forecast from above.

    Returns:
      ``[architectures]`` float64; NaN where a diagonal is. Cost: ``batch`` entries of the kernel an
      architecture, where all are ``batch (batch + 1) / 2``.

    Raises:
      InputError: as from ``mlp_spectra``.

    References:
      Zhu et al., `Generalization properties of NAS under activation and skip connection search
      <https://arxiv.org/abs/2209.07238>`_, 2022, section 5.2.
    """
    where = "mlp_trace_bound"
    genotypes, x = _checked(where, genotypes, x)
    if method not in MLP_METHODS:
        raise unknown_name(where, "method", method, MLP_METHODS)
    if over not in TRACE_DIVISORS:
        raise unknown_name(where, "divisor", over, TRACE_DIVISORS)
    x = x.astype(np.float64)
    diagonals = _in_chunks(
        where, _diagonal_program(method), genotypes, x, len(x), chunk, memory_budget_bytes
    )
    divisor = x.shape[1] if over == "features" else len(x)
    return np.array([diagonal.sum() / divisor for diagonal in diagonals])


@functools.cache
def _kernel_program(method: str) -> Callable:
    """``(genotypes, x) -> [architectures, batch, batch]``, compiled."""

    def kernel(genotype, x):
        return mlp_ntk(*split_genotype(genotype), x, method=method).ntk

    return jax.jit(jax.vmap(kernel, in_axes=(0, None)))


@functools.cache
def _diagonal_program(method: str) -> Callable:
    """``(genotypes, x) -> [architectures, batch]``, compiled: every example by itself."""

    def entry(genotype, example):
        return mlp_ntk(*split_genotype(genotype), example[None], method=method).ntk[0, 0]

    entries = jax.vmap(entry, in_axes=(None, 0))
    return jax.jit(jax.vmap(entries, in_axes=(0, None)))


def _in_chunks(
    where: str, program: Callable, genotypes, x, num_pairs: int, chunk: int | None, budget: int
) -> Iterator[np.ndarray]:
    """The results of a program, one architecture after another."""
    # As measured on CPU, from above: 18 to 28 numbers a pair and architecture, and the results,
    # which are up to two; more whatever the chunk, for a single architecture and pairs' places.
    size = _chunk_size(where, genotypes, x, chunk, budget, 32 * 8 * num_pairs, 48 * 8 * num_pairs)
    return itertools.chain.from_iterable(
        _results(program, part, size, x) for part in _parts(genotypes, size)
    )


def _on_sphere(
    where: str, method: str, genotypes, x, norm: float, chunk: int | None, budget: int
) -> Iterator[np.ndarray]:
    """The kernels of points of one norm, one architecture after another."""
    # A row of entries an architecture, of which there are two at a time; distances, angles,
    # places of entries and the matrix whose eigenvalues are computed, which is copied.
    num_pairs = len(x) * (len(x) + 1) // 2
    size = _chunk_size(where, genotypes, x, chunk, budget, 2 * 8 * num_pairs, 20 * 8 * num_pairs)
    angles, upper = pair_angles(x), np.triu_indices(len(x))

    def kernels() -> Iterator[np.ndarray]:
        for part in _parts(genotypes, size):
            entries = np.empty((len(part), num_pairs))
            left = np.arange(len(part))
            for num_angles in _NUM_ANGLES:
                values = _results(angle_program(method, num_angles), part[left], size, norm)
                held = is_resolved(values)
                entries[left[held]] = interpolated(values[held], angles)
                left = left[~held]
                if not len(left):
                    break
            else:
                program = _kernel_program(method)
                rest = _in_chunks(where, program, part[left], x, num_pairs, chunk, budget)
                entries[left] = [kernel[upper] for kernel in rest]
            for row in entries:
                kernel = np.empty((len(x), len(x)))
                kernel[upper] = row
                kernel[upper[::-1]] = row
                yield kernel

    return kernels()


def _chunk_size(
    where: str, genotypes, x, chunk: int | None, budget: int, each: int, shared: int
) -> int:
    """Architectures at once, of which each needs so many bytes and all together more."""
    if chunk is not None and not chunk >= 1:
        raise InputError(f"{where}: `chunk` must be at least 1, got {chunk}.")
    # Sizes are few, so that calls with other numbers of architectures compile nothing.
    needed = 1 << (len(genotypes) - 1).bit_length()
    fitting = max(1, min(_LARGEST_CHUNK, (budget - shared) // each))
    size = min(needed, fitting if chunk is None else chunk)
    forecast = shared + size * each
    if forecast > budget:
        remedy = "Give a smaller `chunk`" if size > 1 else "Give fewer points"
        bound = "" if where == "mlp_trace_bound" else ", or take mlp_trace_bound: its cost is O(N)"
        raise InputError(
            f"{where}: `memory_budget_bytes` must be at least {forecast} "
            f"({forecast / 2**30:.1f} GiB) for {len(x)} points and a chunk of {size}, got "
            f"{budget}. {remedy}{bound}."
        )
    return size


def _parts(genotypes, size: int) -> Iterator[np.ndarray]:
    return (genotypes[start : start + size] for start in range(0, len(genotypes), size))


def _results(program: Callable, part, size: int, points) -> np.ndarray:
    """Of a part, filled up to the size that the program is compiled for."""
    padded = np.pad(part, ((0, size - len(part)), (0, 0)), mode="edge")
    with jax.enable_x64(True):
        return np.asarray(program(padded, points))[: len(part)]


def _checked(where: str, genotypes, x) -> tuple[np.ndarray, np.ndarray]:
    genotypes, x = np.asarray(genotypes), np.asarray(x)
    depth = (genotypes.shape[-1] + 3) // 2 if genotypes.ndim == 2 else 0
    if depth < 3 or genotypes.shape != (len(genotypes), 2 * depth - 3) or not len(genotypes):
        raise InputError(
            f"{where}: `genotypes` must be [architectures, 2 depth - 3] with depth >= 3, got "
            f"{list(genotypes.shape)}."
        )
    if not np.issubdtype(genotypes.dtype, np.integer):
        raise InputError(
            f"{where}: `genotypes` must be integers, got {genotypes.dtype}. Those of architectures "
            "in words are mlp_space(depth).from_string(text)."
        )
    is_inside = ((genotypes >= 0) & (genotypes < genotype_bounds(depth))).all(axis=1)
    if not is_inside.all():
        raise InputError(
            f"{where}: `genotypes` must be activations from 0 to 4 and then skips, 0 or 1, got "
            f"{genotypes[np.argmin(is_inside)].tolist()} at {np.argmin(is_inside)}."
        )
    is_real = jnp.issubdtype(x.dtype, jnp.number) and not np.iscomplexobj(x)
    if x.ndim != 2 or not x.size or not is_real:
        raise InputError(
            f"{where}: `x` must be [batch, features] of real numbers, got {x.dtype}"
            f"{list(x.shape)}. Flatten images first."
        )
    return genotypes.astype(np.int32), x
