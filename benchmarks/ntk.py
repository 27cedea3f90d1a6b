"""Times every way to an empirical NTK, and the memory that each takes, on one network.

    python benchmarks/ntk.py                       # NAS-Bench-201's best cell, batch 64
    python benchmarks/ntk.py --network mlp         # ReLU network, depth 5, width 512
    python benchmarks/ntk.py --outputs all         # instead of the kernel traced over outputs

Each way runs in a process of its own: the default of ``empirical_ntk``, its blocks without a limit
and within ``--budget`` MiB, the whole batch's Jacobian by ``jax.jacrev``, and neural-tangents'
implementations, called directly. Compilation is told apart from the median of the runs; memory is
the most that the process held beyond what it held before. Ratios are to the default. A way that
fails or runs out of ``--limit`` seconds says so. Then the default and the best of neural-tangents
run in turns in one process, which tells small differences, and so do the approximations of the
trace norm, with ratios to NASI's eq. (12).
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from nasjax.networks import LayerConfig, init_params, static_network
from nasjax.ntk import (
    batch_loss_trace_norm,
    empirical_ntk,
    plan_empirical_ntk,
    random_trace_norm,
    summed_loss_trace_norm,
)
from nasjax.ntk._neural_tangents import neural_tangents
from nasjax.runs import versions
from nasjax.spaces import get_space

NEURAL_TANGENTS = ("JACOBIAN_CONTRACTION", "NTK_VECTOR_PRODUCTS", "STRUCTURED_DERIVATIVES")
WAYS = ("default", "blocks", "blocks within budget", "jacrev", *NEURAL_TANGENTS)


def network_and_data(options):
    """``(apply_fn, params, x)`` of the network that is measured."""
    x_key, params_key = jax.random.split(jax.random.key(0))
    if options.network == "mlp":
        widths = [32, *[options.width] * 4, 10]
        keys = jax.random.split(params_key, len(widths))
        params = [
            jax.random.normal(key, shape) / shape[0] ** 0.5
            for key, shape in zip(keys, zip(widths[:-1], widths[1:], strict=True), strict=False)
        ]

        def apply_fn(params, x):
            for kernel in params[:-1]:
                x = jax.nn.relu(x @ kernel)
            return x @ params[-1]

        return apply_fn, params, jax.random.normal(x_key, (options.batch_size, 32))
    genotype = get_space("nasbench201").from_string("6111")
    network = static_network(
        "nasbench201",
        genotype,
        channels=options.channels,
        num_cells=options.cells,
        config=LayerConfig("lecun", "none"),
    )
    x = jax.random.normal(x_key, (options.batch_size, 32, 32, 3))
    params = init_params(params_key, network, x)
    return lambda params, x: network.apply({"params": params}, x), params, x


def kernel_fn(way, options):
    """``apply_fn -> ((params, x) -> kernel)``."""
    is_traced = options.outputs == "trace"
    if way in ("default", "blocks", "blocks within budget"):
        budget = options.budget * 2**20 if way == "blocks within budget" else 2**40
        return lambda apply_fn: (
            lambda params, x: (
                empirical_ntk(
                    *(apply_fn, params, x),
                    outputs=options.outputs,
                    method="auto" if way == "default" else "blocks",
                    memory_budget_bytes=budget,
                ).matrix
            )
        )
    if way == "jacrev":

        def by_jacrev(apply_fn):
            def kernel(params, x):
                total = 0.0
                for leaf in jax.tree.leaves(jax.jacrev(apply_fn)(params, x)):
                    rows = leaf.reshape(
                        len(x) if is_traced else -1, leaf[0].size if is_traced else leaf[0, 0].size
                    )
                    total += jnp.matmul(rows, rows.T, precision="highest")
                return total

            return jax.jit(kernel)

        return by_jacrev
    nt = neural_tangents()

    def by_neural_tangents(apply_fn):
        kernel = nt.empirical_ntk_fn(
            apply_fn,
            trace_axes=(-1,) if is_traced else (),
            vmap_axes=0,
            implementation=nt.NtkImplementation[way],
        )
        return jax.jit(lambda params, x: kernel(x, None, params))

    return by_neural_tangents


def measure(options):
    """Runs one way and prints what it took, as JSON."""
    apply_fn, params, x = network_and_data(options)
    run = kernel_fn(options.way, options)(apply_fn)
    jax.block_until_ready(jax.jit(apply_fn)(params, x))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    kernel = jax.block_until_ready(run(params, x))
    first = time.perf_counter() - start
    seconds = []
    while len(seconds) < options.repeats or sum(seconds) < options.seconds:
        start = time.perf_counter()
        jax.block_until_ready(run(params, x))
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    kernel = np.asarray(kernel, np.float64)
    if options.way in NEURAL_TANGENTS:
        num_outputs = 10
        if options.outputs == "trace":
            kernel = kernel * num_outputs  # neural-tangents takes the mean
        else:
            kernel = kernel.transpose(0, 2, 1, 3).reshape([len(x) * num_outputs] * 2)
    print(
        json.dumps(
            {
                "first": first,
                "median": statistics.median(seconds),
                "low": min(seconds),
                "high": max(seconds),
                "mib": peak / 1024,
                "trace": float(np.trace(kernel)),
            }
        )
    )


def time_in_turns(programs, options):
    """Prints the medians of programs that run one after the other in one process, as JSON."""
    for program in programs.values():
        jax.block_until_ready(program())  # compiles
    seconds = {name: [] for name in programs}
    enough = time.perf_counter() + options.seconds
    while min(map(len, seconds.values())) < options.repeats or time.perf_counter() < enough:
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program())
            seconds[name].append(time.perf_counter() - start)
    print(json.dumps({name: statistics.median(times) for name, times in seconds.items()}))


def time_approximations(options):
    """The approximations of the trace norm in turns."""
    apply_fn, params, x = network_and_data(options)
    y = jax.random.randint(jax.random.key(1), (len(x),), 0, 10)
    key = jax.random.key(2)
    programs = {
        "eq. 12": lambda params, x: batch_loss_trace_norm(apply_fn, params, x, y),
        "eq. 11": lambda params, x: summed_loss_trace_norm(apply_fn, params, x, y),
        "random outputs": lambda params, x: random_trace_norm(key, apply_fn, params, x).value,
    }
    programs = {name: jax.jit(program) for name, program in programs.items()}
    time_in_turns({name: lambda run=run: run(params, x) for name, run in programs.items()}, options)


def time_against(options):
    """The default and ``options.against`` in turns."""
    apply_fn, params, x = network_and_data(options)
    programs = {way: kernel_fn(way, options)(apply_fn) for way in ("default", options.against)}
    time_in_turns({way: lambda run=run: run(params, x) for way, run in programs.items()}, options)


def main():
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--network", choices=("nasbench201", "mlp"), default="nasbench201")
    parser.add_argument("--outputs", choices=("trace", "all"), default="trace")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--cells", type=int, default=1)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--budget", type=int, default=128, help="MiB")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="least time of all repeats")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a way")
    parser.add_argument(
        "--way", choices=(*WAYS, "approximations", "against"), help=argparse.SUPPRESS
    )
    parser.add_argument("--against", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way == "approximations":
        time_approximations(options)
        return
    if options.way == "against":
        time_against(options)
        return
    if options.way:
        measure(options)
        return
    apply_fn, params, x = network_and_data(options)
    plan = plan_empirical_ntk(
        apply_fn,
        params,
        x,
        outputs=options.outputs,
        memory_budget_bytes=options.budget * 2**20,
    )
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    print(
        f"{options.network}: {plan.num_params:,} parameters, {len(x)} examples, 10 outputs, "
        f"outputs={options.outputs}, float32; Jacobian {plan.jacobian_bytes / 2**20:.0f} MiB; "
        f"within {options.budget} MiB: {plan.num_blocks} blocks, {plan.num_gradients} gradients"
    )
    found = {}
    for way in WAYS:
        command = [sys.executable, *sys.argv, "--way", way]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit)
        except subprocess.TimeoutExpired:
            print(f"{way:24} more than {options.limit:.0f} s")
            continue
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            print(f"{way:24} failed: {reason[:90]}")
            continue
        one = found[way] = json.loads(done.stdout.splitlines()[-1])
        ours = found.get("default", one)
        ratio, error = one["median"] / ours["median"], abs(one["trace"] / ours["trace"] - 1)
        print(
            f"{way:24} first {one['first']:6.1f} s  run {one['median']:7.3f} s "
            f"({one['low']:.3f} to {one['high']:.3f})  ratio {ratio:6.2f}  "
            f"memory {one['mib']:7.0f} MiB  trace off by {error:.0e}",
            flush=True,
        )
    comparisons = [("eq. 12", ["approximations"])]
    if others := set(found) & {"jacrev", *NEURAL_TANGENTS}:
        best = min(others, key=lambda way: found[way]["median"])
        comparisons.insert(0, ("default", ["against", "--against", best]))
    for base, arguments in comparisons:
        print("in turns in one process:")
        command = [sys.executable, *sys.argv, "--way", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        medians = json.loads(done.stdout.splitlines()[-1])
        for name, seconds in medians.items():
            print(f"{name:24} run {seconds:8.4f} s  ratio {seconds / medians[base]:6.2f}")


if __name__ == "__main__":
    main()
