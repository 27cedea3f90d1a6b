"""Times a NASI step, and the naive form of the same gradient beside it.

    python benchmarks/nasi.py                  # the paper's DARTS setting, b = 64
    python benchmarks/nasi.py --space nasbench201

The naive form differentiates the squared gradient norm backward through the whole mixture of all
operations (reverse over reverse), on XLA's own convolutions and then on nasjax's. It would take
hours to search, so it is run at a smaller size (``--naive-cells``, ``--naive-batch-size``), where
NASI's own form is timed again: the ratios are to this one. All compute the same gradient; the
largest difference is printed. XLA's convolutions come from the tests (extra ``test``).
"""

import argparse
import resource
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from nasjax.networks import init_params, one_shot_network
from nasjax.objectives import (
    cross_entropy,
    nasi_objective,
    one_shot_trace_norm,
    straight_through_gumbel_softmax,
)
from nasjax.runs import DEFAULTS, versions
from nasjax.search import zero_logits
from nasjax.spaces import get_space

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from lax_convolutions import on_lax_convolutions  # noqa: E402


def compiled(fn, *args):
    """The compiled function, and the seconds that tracing and compiling took."""
    start = time.perf_counter()
    lowered = jax.jit(fn).lower(*args)
    traced = time.perf_counter()
    program = lowered.compile()
    return program, traced - start, time.perf_counter() - traced


def steady(program, arguments_of, num_steps):
    """Seconds of each call after a warm-up, and the last result."""
    jax.block_until_ready(program(*arguments_of(0)))
    seconds = []
    for step in range(1, num_steps + 1):
        arguments = arguments_of(step)
        start = time.perf_counter()
        result = jax.block_until_ready(program(*arguments))
        seconds.append(time.perf_counter() - start)
    return seconds, result


def setting(space, batch_size, channels, num_cells, mixture):
    """Objective gradient of a one-shot network, and its parameters and data."""
    key = jax.random.key(0)
    params_key, x_key, y_key = jax.random.split(key, 3)
    network = one_shot_network(space.name, channels=channels, num_cells=num_cells, mixture=mixture)
    x = jax.random.normal(x_key, (batch_size, 32, 32, 3))
    y = jax.random.randint(y_key, (batch_size,), 0, 10)
    logits = zero_logits(space.decisions)
    params = init_params(params_key, network, logits, x)

    def apply_fn(params, weights, x):
        return network.apply({"params": params}, weights, x)

    return apply_fn, (params, x, y)


def naive_gradient(apply_fn, decisions):
    """The gradient of T with respect to the logits, by reverse over reverse."""

    def trace_norm(logits, key, params, x, y):
        weights = straight_through_gumbel_softmax(key, logits, decisions)
        gradient = jax.grad(lambda p: cross_entropy(apply_fn(p, weights, x), y))(params)
        return sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradient))

    return jax.grad(trace_norm)


def naive_gradient_on_xla(apply_fn, decisions):
    """The naive form on XLA's convolutions and their derivatives."""
    return on_lax_convolutions(naive_gradient(apply_fn, decisions))


def nasi_gradient(apply_fn, decisions):
    """The same by ``nasi_objective``: forward over reverse, drawn operations alone."""
    objective_fn = nasi_objective(one_shot_trace_norm(apply_fn), decisions, mu=0.0)

    def gradient(logits, key, params, x, y):
        return jax.grad(objective_fn, has_aux=True)(logits, key, jnp.inf, params, x, y)[0]

    return gradient


def measure(name, make_gradient, space, sizes, mixture, num_steps):
    """Prints and returns the median step of one form."""
    apply_fn, data = setting(space, *sizes, mixture)
    logits = zero_logits(space.decisions)
    program, trace_s, compile_s = compiled(
        make_gradient(apply_fn, space.decisions), logits, jax.random.key(1), *data
    )
    seconds, gradient = steady(
        program, lambda step: (logits, jax.random.key(step), *data), num_steps
    )
    median = statistics.median(seconds)
    print(
        f"{name}: batch {sizes[0]}, {sizes[1]} channels, {sizes[2]} cells, float32: "
        f"trace {trace_s:.1f} s, compile {compile_s:.1f} s, "
        f"step {median:.2f} s (mean {statistics.mean(seconds):.2f}, min {min(seconds):.2f}, "
        f"max {max(seconds):.2f}, n {num_steps}), "
        f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB",
        flush=True,
    )
    return trace_s + compile_s, seconds, gradient


def main():
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--space", default="darts", choices=sorted(DEFAULTS))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--cells", type=int)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--naive-batch-size", type=int, default=16)
    parser.add_argument("--naive-cells", type=int, default=3, help="0 leaves the naive form out")
    options = parser.parse_args()
    space = get_space(options.space)
    defaults = DEFAULTS[options.space]
    print(", ".join(f"{name} {version}" for name, version in versions().items()), flush=True)

    sizes = (options.batch_size, options.channels, options.cells or defaults.cells)
    once, seconds, _ = measure("nasi", nasi_gradient, space, sizes, "drawn", options.steps)
    total = once + statistics.mean(seconds) * defaults.steps
    print(f"nasi: {defaults.steps} steps with compilation {total:.0f} s ({total / 60:.1f} min)")
    if not options.naive_cells:
        return
    sizes = (options.naive_batch_size, options.channels, options.naive_cells)
    _, seconds, ours = measure("nasi", nasi_gradient, space, sizes, "drawn", 6)
    fast = statistics.mean(seconds)
    for name, gradient in (
        ("naive, XLA's convolutions", naive_gradient_on_xla),
        ("naive, nasjax's convolutions", naive_gradient),
    ):
        _, slow, naive = measure(name, gradient, space, sizes, "full", 6)
        worst = max(
            float(np.max(np.abs(ours[key] - naive[key])) / np.max(np.abs(naive[key])))
            for key in naive
        )
        print(
            f"{name} / nasi: {statistics.mean(slow) / fast:.1f} times the time a step, "
            f"gradients {worst:.0e} apart"
        )


if __name__ == "__main__":
    main()
