"""Compilation for programs that run once: XLA's optimisations cost more than they save."""

import jax


def quick_jit(fn):
    """``jax.jit`` without XLA's optimisations."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0})
