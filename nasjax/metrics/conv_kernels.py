"""Convolution blocks by kernels of our own on CPUs: ``conv_kernels.cc``, compiled where it runs.

XLA's convolutions reach a third of what a CPU can do, and every step around them goes through
memory once more. These kernels keep an image in a core's cache from ReLU to normalisation. They
need a C++ compiler, once; without one ``conv_rule`` does the same.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
from jax import Array

from nasjax.metrics.conv_rule import ConvBlock, Saved, Tangent
from nasjax.networks import pooling
from nasjax.networks.layers import EPSILON

_SOURCE = Path(__file__).with_suffix(".cc")
_HEADERS = (
    "block_tangents.h",
    "blocks.h",
    "conv_images.h",
    "convolutions.h",
    "cpu_vectors.h",
    "example_products.h",
    "pooling.h",
    "winograd.h",
)
_HANDLERS = ("Forward", "Back", "Tangent", "TangentBack", "Agreement", "Pool")
_PLANE = 16
"""Features come in multiples of this; channels are padded to one."""
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-w")


_LOCK = threading.Lock()


class _CompilerError(Exception):
    """Why there are no kernels."""


def why_not() -> str | None:
    """Why the kernels cannot be used in this process, None if they can; compiles them if need be.

    That takes about twenty seconds, once: the result is kept in ``$XDG_CACHE_HOME/nasjax``
    (``~/.cache/nasjax``). The compiler is ``$CXX``, or ``c++``, ``g++`` or ``clang++``.
    """
    with _LOCK:
        return _why_not()


def is_to_be_compiled() -> bool:
    """Whether ``why_not`` is going to compile the kernels now, which takes its time."""
    try:
        return jax.default_backend() == "cpu" and not _path(_compiler()).exists()
    except _CompilerError:
        return False


@functools.cache
def _why_not() -> str | None:
    if jax.default_backend() != "cpu":
        return f"arrays are on {jax.default_backend()}, and the kernels are for CPUs"
    try:
        library = ctypes.CDLL(str(_library()))
        for name in _HANDLERS:
            handler = jax.ffi.pycapsule(getattr(library, f"Nasjax{name}"))
            jax.ffi.register_ffi_target(f"nasjax_{name}", handler, platform="cpu")
    except (_CompilerError, OSError) as error:
        return str(error)
    return None


def _library() -> Path:
    """The compiled kernels, from the cache or made now."""
    compiler = _compiler()
    path = _path(compiler)
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=path.parent))
    except OSError:  # no place to keep it: made anew by every process
        path = Path(tempfile.mkdtemp()) / path.name
        _compile(compiler, path)
        return path
    try:
        _compile(compiler, made / path.name)
        os.replace(made / path.name, path)  # whole, whoever else makes it at the same time
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return path


def _path(compiler: Sequence[str]) -> Path:
    """Where the cache has the kernels by this compiler for this processor."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nasjax"
    sources = [_SOURCE.with_name(name).read_text() for name in (_SOURCE.name, *_HEADERS)]
    identity = (sources, jaxlib.__version__, compiler, _FLAGS, _processor())
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
    return folder / f"conv_kernels-{digest}.so"


def _compiler() -> tuple[str, ...]:
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    for name in filter(None, names):
        words = tuple(shlex.split(name))
        if shutil.which(words[0]):
            return words
    raise _CompilerError("there is no C++ compiler (c++, g++, clang++ or $CXX)")


def _processor() -> str:
    """What kernels are compiled for: a cache may be shared by machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kinds = ("flags", "Features", "model name", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(kinds)))


def _compile(compiler: Sequence[str], to: Path) -> None:
    command = [*compiler, *_FLAGS, "-I", jax.ffi.include_dir(), str(_SOURCE), "-o", str(to)]
    for native in (["-march=native"], ["-mcpu=native"], []):  # not every compiler knows either
        done = subprocess.run([*command, *native], capture_output=True, text=True)
        if done.returncode == 0:
            return
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    first = next((line for line in lines if "error" in line), lines[-1])
    raise _CompilerError(f"{compiler[0]} does not compile {_SOURCE.name}: {first}")


def serves(block: ConvBlock, kernel: Array) -> bool:
    """Whether the kernels are made for such a block; ``why_not`` says whether there are any."""
    return (
        block.is_native
        and not block.is_depthwise
        and kernel.dtype in (jnp.float32, jnp.float64)
        and kernel.shape[0] in (1, 3)
        and kernel.shape[3] % _PLANE == 0
    )


def _call(name: str, block: ConvBlock, results, *args: Array, **attributes):
    """Calls a handler; the first arguments are the images and the kernel."""
    return jax.ffi.ffi_call(f"nasjax_{name}", results)(
        *args,
        has_relu=block.has_relu,
        is_normalized=block.is_normalized,
        stride=block.stride,
        **attributes,
    )


def _whole(array: Array, axis: int = -1) -> Array:
    """An array whose channels are padded by zeros to whole planes."""
    pads = [(0, 0)] * array.ndim
    pads[axis] = (0, -array.shape[axis] % _PLANE)
    return jnp.pad(array, pads) if any(pads[axis]) else array


def _like(array: Array, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape or array.shape, array.dtype)


def _bias(params) -> Array:
    return params["bias"] if "bias" in params else jnp.zeros_like(params["kernel"][0, 0, 0])


def _statistics(saved: Saved, kernel: Array) -> tuple[Array, Array]:
    """Mean and rate, zeros for None."""
    if saved.rate is not None:
        return saved.mean, saved.rate
    zeros = jnp.zeros_like(kernel[0, 0, 0])
    return zeros, zeros


def forward(block: ConvBlock, params, x: Array, total: Array | None) -> tuple[Array | None, Saved]:
    """``conv_rule.forward``, and the output added to ``total`` unless that is None.

    Args:
      block: what it is; of those that ``serves`` has.
      params: ``kernel`` and, if it has one, ``bias``.
      x: ``[batch, height, width, channels]``.
      total: ``[batch, height, width, features]``, or None.

    Returns:
      The sum, or None, and what ``conv_rule.forward`` gives.
    """
    x, kernel = _whole(x), _whole(params["kernel"], 2)
    features = kernel.shape[-1]
    height, width = (-(-length // block.stride) for length in x.shape[1:3])
    output, row = _like(x, len(x), height, width, features), _like(x, features)
    totals = [] if total is None else [total]
    z, mean, rate, *sums = _call(
        "Forward",
        block,
        [output, row, row, *([output] if totals else [])],
        *(x, kernel, _bias(params), *totals),
        epsilon=EPSILON,
        has_total=bool(totals),
    )
    saved = Saved(z, mean, rate) if block.is_normalized else Saved(z, None, None)
    return (sums[0] if sums else None), saved


def back(
    block: ConvBlock,
    params,
    x: Array,
    saved: Saved,
    g: Sequence[Array],
    total: Sequence[Array] | None,
    kernels: Array,
    *,
    has_gradient: bool,
    has_fisher: bool,
    first_example: int,
    has_input: bool,
) -> tuple[Array | None, Array, Array | None, tuple[Array, ...] | None]:
    """The way back through a block.

    Args:
      block: as for ``forward``.
      params: as for ``forward``.
      x: as for ``forward``.
      saved: of ``forward``.
      g: cotangents of the output, ``[batch, height, width, features]`` each.
      total: what the input's cotangents are added to, or None.
      kernels: ``[kernels, batch, batch]``, to each of which are added the products of gradients of
        every example, of weights and bias, of one cotangent.
      has_gradient: whether the kernel's gradient of the first cotangent is asked for.
      has_fisher: whether the sums for Fisher are, of the first cotangent.
      first_example: the first cotangent that has a kernel.
      has_input: whether the cotangents of the input are.

    Returns:
      The gradient, in the kernel's shape; the kernels with what was added; sums over pixels of the
      convolution's output times its cotangent, ``[batch, features]``; and the cotangents of the
      input plus ``total``. None for each that was not asked for.
    """
    channels = x.shape[-1]
    x, kernel = _whole(x), _whole(params["kernel"], 2)
    wanted = {
        "gradient": [_like(kernel)] if has_gradient else [],
        "kernels": [_like(kernels)] if len(kernels) else [],
        "fisher": [_like(x, len(x), kernel.shape[-1])] if has_fisher else [],
        "inputs": [_like(x)] * len(g) if has_input else [],
    }
    totals = [_whole(one) for one in total] if has_input and total is not None else []
    before = [kernels] if len(kernels) else []
    found = _call(
        "Back",
        block,
        sum(wanted.values(), []),
        *(x, kernel, saved.z, *_statistics(saved, kernel), *g, *totals, *before),
        has_gradient=has_gradient,
        has_fisher=has_fisher,
        num_cotangents=len(g),
        first_example=first_example,
        num_kernels=len(kernels),
        has_bias="bias" in params,
        has_input=has_input,
        has_totals=bool(totals),
    )
    rest = iter(found)
    parts = {name: [next(rest) for _ in results] for name, results in wanted.items()}
    gradient = parts["gradient"][0][:, :, :channels] if has_gradient else None
    kernels = parts["kernels"][0] if before else kernels
    fisher = parts["fisher"][0] if has_fisher else None
    inputs = tuple(one[..., :channels] for one in parts["inputs"]) if has_input else None
    return gradient, kernels, fisher, inputs


def tangent(
    block: ConvBlock, params, x: Array, x_tangent: Array, saved: Saved, total: Array | None
) -> tuple[Array | None, Tangent]:
    """``conv_rule.forward_tangent``, and its ``z`` added to ``total`` unless that is None."""
    x, x_tangent, kernel = _whole(x), _whole(x_tangent), _whole(params["kernel"], 2)
    totals = [] if total is None else [total]
    z, rate, *sums = _call(
        "Tangent",
        block,
        [_like(saved.z), _like(kernel, kernel.shape[-1]), *([_like(saved.z)] if totals else [])],
        *(x, kernel, _bias(params), x_tangent, saved.z, _statistics(saved, kernel)[1], *totals),
        epsilon=EPSILON,
        has_total=bool(totals),
    )
    moved = Tangent(z, rate if block.is_normalized else None)
    return (sums[0] if sums else None), moved


def tangent_back(
    block: ConvBlock,
    params,
    x: Array,
    x_tangent: Array | None,
    saved: Saved,
    tangent: Tangent,
    g: Array,
    g_tangent: Array,
    gradient: Array,
    total: Array | None,
    *,
    has_input: bool,
) -> tuple[Array | None, Array]:
    """``conv_rule.backward_tangent``, and the input's movement added to ``total`` if there is."""
    channels = x.shape[-1]
    x, kernel, gradient = _whole(x), _whole(params["kernel"], 2), _whole(gradient, 2)
    rate = _statistics(saved, kernel)[1]
    optional = [_whole(a) for a in (x_tangent, total if has_input else None) if a is not None]
    product, *inputs = _call(
        "TangentBack",
        block,
        [jax.ShapeDtypeStruct((), x.dtype), *([_like(x)] if has_input else [])],
        *(x, kernel, gradient, saved.z, rate, tangent.z),
        *(rate if tangent.rate is None else tangent.rate, g, g_tangent, *optional),
        has_tangent=x_tangent is not None,
        has_input=has_input,
        has_total=has_input and total is not None,
    )
    return (inputs[0][..., :channels] if inputs else None), product


def agreement(x: Array, total: Array, count: float) -> Array:
    """Adds to ``total`` how often ReLUs are both on or both off in two examples, times ``count``.

    Args:
      x: ``[batch, ...]``, what the ReLUs read.
      total: ``[batch, batch]``.
      count: how many ReLUs read it.

    Returns:
      The sum, ``[batch, batch]``.
    """
    return jax.ffi.ffi_call("nasjax_Agreement", _like(total))(x, total, weight=float(count))


def avg_pool_3x3(x: Array) -> Array:
    """``networks.pooling.avg_pool_3x3``; steps of plans that have it are computed by ``pooled``."""
    return pooled((x,), None, is_transposed=False)[0]


def pooled(
    images: Sequence[Array], totals: Sequence[Array] | None, *, is_transposed: bool
) -> tuple[Array, ...]:
    """The pool of several arrays, or its transpose.

    Args:
      images: ``[batch, height, width, channels]`` each.
      totals: what the results are added to, or None.
      is_transposed: whether cotangents go back.

    Returns:
      An array for each.
    """
    if images[0].shape[-1] % _PLANE:
        apply = pooling.avg_pool_3x3_transposed if is_transposed else pooling.avg_pool_3x3
        found = tuple(map(apply, images))
        return found if totals is None else tuple(map(jnp.add, totals, found))
    call = jax.ffi.ffi_call("nasjax_Pool", [_like(x) for x in images])
    arguments = (*images, *(totals or ()))
    return tuple(call(*arguments, is_transposed=is_transposed, has_totals=totals is not None))
