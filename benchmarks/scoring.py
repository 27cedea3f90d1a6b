"""Times training-free metrics of NAS-Bench-201 networks, alone and as a set.

    python benchmarks/scoring.py                         # every metric alone, then the set
    python benchmarks/scoring.py --metrics set           # the set alone
    python benchmarks/scoring.py --metrics set --processes 1,2 --devices 1,2   # how the rate grows
    python benchmarks/scoring.py --engine walk           # without nasjax's kernels for CPUs
    python benchmarks/scoring.py --peer                  # beside plain PyTorch (pip install torch)

Each metric runs in a process of its own: seconds of the first architectures, in which all
operations are compiled, then the least of ``--repeats`` runs for three fixed cells and the mean of
a random sample. With ``--peer`` the same metric of ``scoring_torch.py`` follows. The rate is that
of multiplications and additions in convolutions, as a share of what the same machine reaches in one
matrix product of 2048 x 2048 in the same process. With ``--processes`` so many processes of one
thread, each pinned to a core of its own, score the sample; with ``--devices`` one process does, on
so many devices (of CPUs: parts of one pool of threads).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from matmul import matmul_rate

from nasjax.data import load_data, sample_batch
from nasjax.metrics import space_scorer
from nasjax.metrics.plans import nasbench201_plan
from nasjax.runs import versions
from nasjax.spaces import get_space

SPACE = get_space("nasbench201")
FIXED = {"skips": (1,) * 6, "1x1": (2,) * 6, "3x3": (3,) * 6}
SETS = {
    # Metrics, and passes over all convolutions: forward, cotangents, weights, tangents.
    "grad_norm": (("grad_norm",), 3),
    "snip": (("snip",), 3),
    "grasp": (("grasp",), 7),
    "trace and condition number": (("trace:hnas", "condition_number:hnas"), 3),
    "fisher": (("fisher",), 2),
    "synflow": (("synflow",), 0),
    "naswot": (("naswot",), 1),
    "jacob_cov": (("jacob_cov",), 2),
}
SETS["set"] = (tuple(name for names, _ in SETS.values() for name in names), 9)


def operations(genotype, options):
    """Multiplications and additions of all convolutions of a network, forward."""
    total = 0
    for step in nasbench201_plan(genotype, num_cells=options.cells).steps:
        if step.kind == "conv" and step.path[-1] == "conv" and step.path[0].startswith("stage"):
            stage = int(step.path[0].split("_")[1])
            channels, pixels = options.channels * 2**stage, (32 // 2**stage) ** 2
            size = 9 if "3x3" in step.path[2] else 1
            total += 2 * options.batch_size * pixels * size * channels**2
    return total


def sample(options):
    """Distinct connected cells."""
    keys = jax.random.split(jax.random.key(options.seed), 10 * options.num_random)
    cells = dict.fromkeys(tuple(np.asarray(SPACE.sample(key)).tolist()) for key in keys)
    cells = [np.array(cell) for cell in cells if SPACE.is_connected(np.array(cell))]
    return cells[: options.num_random]


def scorer(options):
    """The function that is timed, of one entry of ``SETS``."""
    dataset = load_data(options.data, key=jax.random.key(options.seed))
    x, y = sample_batch(
        jax.random.key(options.seed), dataset.images, dataset.labels, options.batch_size
    )
    sizes = {"channels": options.channels, "num_cells": options.cells, "num_classes": 10}
    if options.engine == "torch":
        from scoring_torch import torch_scorer

        return torch_scorer(options.one, x, y, **sizes)
    metrics, _ = SETS[options.one]
    return space_scorer(SPACE, x, y, metrics, network=sizes, engine=options.engine)


def measure(options):
    """Times one entry of ``SETS`` and prints what it took, as JSON."""
    score = scorer(options)
    cells = sample(options)
    start = time.perf_counter()
    for cell in (*map(np.array, FIXED.values()), *cells):
        score(cell)
    first = time.perf_counter() - start

    def least(cell):
        seconds = []
        for _ in range(options.repeats):
            start = time.perf_counter()
            score(cell)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    fixed = {name: least(np.array(cell)) for name, cell in FIXED.items()}
    drawn = [least(cell) for cell in cells]
    _, num_passes = SETS[options.one]
    rate = num_passes * operations(np.array(FIXED["3x3"]), options) / fixed["3x3"]
    found = {
        "first": first,
        **fixed,
        "mean": float(np.mean(drawn)),
        "deviation": float(np.std(drawn)),
        "share": rate / matmul_rate(),
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(json.dumps(found))


def measure_devices(options):
    """Prints networks a second on all devices, each with a thread and a scorer of its own."""
    cells, devices = sample(options), jax.devices()
    scorers = []
    for device in devices:
        with jax.default_device(device):
            scorers.append(scorer(options))

    def work(place):
        with jax.default_device(devices[place]):
            for cell in cells[place :: len(devices)]:
                scorers[place](cell)

    with ThreadPoolExecutor(len(devices)) as pool:
        for _ in range(2):  # the first compiles
            start = time.perf_counter()
            list(pool.map(work, range(len(devices))))
            seconds = time.perf_counter() - start
    print(json.dumps({"rate": len(cells) / seconds}))


def start(options, name, *, engine=None, core=None, num_devices=None):
    """A process that measures one entry, on one core or several devices if they are given."""
    command = [sys.executable, __file__, "--one", name]
    for option in ("batch_size", "channels", "cells", "num_random", "repeats", "seed", "data"):
        command += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
    command += ["--engine", engine or options.engine]
    if core is not None:
        # By the number of cores that a process may use, XLA chooses its number of threads.
        command = ["taskset", "-c", str(core), *command]
    environment = dict(os.environ)
    if num_devices is not None:
        command += ["--on-devices"]
        flag = f"--xla_force_host_platform_device_count={num_devices}"  # of CPUs alone
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flag}"
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def main(options):
    """Runs every entry in a process of its own and prints what it took."""
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    print(
        f"batch {options.batch_size}, {options.channels} channels, {options.cells} cells a stage, "
        f"{options.num_random} random cells, least of {options.repeats}, engine {options.engine}"
    )
    names = list(SETS) if options.metrics == "all" else options.metrics.split(",")
    for name in names:
        for engine in (options.engine, "torch") if options.peer else (options.engine,):
            output = start(options, name, engine=engine).communicate()[0]
            found = json.loads(output.splitlines()[-1])
            print(
                f"{name:27s} {engine:5s} first {found['first']:5.1f} s  random {found['mean']:.3f} "
                f"s (deviation {found['deviation']:.3f})  skips {found['skips']:.3f}  1x1 "
                f"{found['1x1']:.3f}  3x3 {found['3x3']:.3f}  {found['gib']:.1f} GiB"
                + (
                    f"  {100 * found['share']:.0f} % of the matrix product's rate"
                    if SETS[name][1]
                    else ""
                ),
                flush=True,
            )
    for count in map(int, filter(None, options.processes.split(","))):
        running = [start(options, names[-1], core=core) for core in range(count)]
        means = [json.loads(p.communicate()[0].splitlines()[-1])["mean"] for p in running]
        rate = sum(1 / mean for mean in means)
        print(f"{count} processes of one thread: {rate:.2f} networks a second ({names[-1]})")
    for count in map(int, filter(None, options.devices.split(","))):
        output = start(options, names[-1], num_devices=count).communicate()[0]
        rate = json.loads(output.splitlines()[-1])["rate"]
        print(f"{count} devices in one process: {rate:.2f} networks a second ({names[-1]})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--metrics", default="all", help=f"all, or some of: {', '.join(SETS)}")
    parser.add_argument("--processes", default="", help="numbers joined by commas")
    parser.add_argument("--devices", default="", help="numbers joined by commas")
    parser.add_argument("--engine", default="auto", help="native and walk are to be compared")
    parser.add_argument("--peer", action="store_true", help="plain PyTorch too")
    parser.add_argument("--data", default="random")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--cells", type=int, default=5)
    parser.add_argument("--num-random", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--on-devices", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.one is None:
        main(parsed)
    elif parsed.on_devices:
        measure_devices(parsed)
    else:
        measure(parsed)
