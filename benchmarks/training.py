"""Times steps of training under ``pmap``, and what the input takes of them.

    python benchmarks/training.py                  # NAS-Bench-201 and DARTS; 1, 2 and 4 devices
    python benchmarks/training.py --space darts --channels 16 --cells 8 --devices 1
    python benchmarks/training.py --compute-dtype bfloat16 --devices 1,8         # accelerators

Each number of devices runs in a process of its own; of CPUs the devices are made of one pool of
threads. Printed are tracing and compilation, the median step and its spread, images a second, the
rate of multiplications and additions (three forward passes a step) as a share of what one device
reaches in a matrix product of 2048 x 2048, and the part of the time that the loop waits for input.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time

import jax
import numpy as np

KINDS = {
    "nasbench201": ("nasbench201", "6111"),
    "darts": (
        "cifar10",
        "Genotype(normal=[('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), "
        "('sep_conv_3x3', 1), ('sep_conv_3x3', 1), ('skip_connect', 0), ('skip_connect', 0), "
        "('dil_conv_3x3', 2)], normal_concat=range(2, 6), reduce=[('max_pool_3x3', 0), "
        "('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 1), ('max_pool_3x3', 0), "
        "('skip_connect', 2), ('skip_connect', 2), ('max_pool_3x3', 1)], "
        "reduce_concat=range(2, 6))",
    ),
}
"""Recipe and architecture: the best cell of the benchmark, and DARTS_V2."""


def measure(options, space: str, num_devices: int) -> dict:
    """Runs steps on so many devices."""
    from matmul import matmul_rate

    from nasjax.networks.counts import network_size
    from nasjax.runs import TrainSettings
    from nasjax.runs.train_settings import prepare
    from nasjax.training import Parallel, init_state, train_step
    from nasjax.training.batches import train_batches

    recipe, architecture = KINDS[space]
    task, splits = prepare(
        TrainSettings(
            space=space,
            architecture=architecture,
            recipe=recipe,
            data="random",
            batch_size=options.batch_size,
            channels=options.channels,
            cells=options.cells,
            compute_dtype=options.compute_dtype,
            seed=options.seed,
        )
    )
    devices = Parallel(num_devices)
    step_fn = devices.map(train_step(task), is_state_returned=True)
    state = devices.replicate(init_state(task, jax.random.key(options.seed)))
    batches = train_batches(
        splits.train,
        batch_size=options.batch_size,
        rows=devices.local_rows(options.batch_size),
        seed=options.seed,
        first_step=0,
        num_steps=options.steps + 1,
    )
    seconds, waited = [], []
    for batch in batches:
        start = time.perf_counter()
        images, labels = devices.spread(batch.images), devices.spread(batch.labels)
        waited.append(time.perf_counter() - start)
        state = step_fn(state, images, labels)
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - start)
    first, seconds = seconds[0], np.array(seconds[1:])
    size = network_size(task.network, task.image_shape)
    rate = 6 * size.multiply_adds * options.batch_size / np.median(seconds)
    return {
        "first_s": first,
        "step_s": float(np.median(seconds)),
        "low_s": float(seconds.min()),
        "high_s": float(seconds.max()),
        "images_per_s": options.batch_size / float(np.median(seconds)),
        "share": rate / matmul_rate(options.compute_dtype),
        "input": float(np.median(waited[1:]) / np.median(seconds)),
        "device": jax.devices()[0].device_kind,
    }


def main(options) -> None:
    """Measures each kind in processes of its own and prints lines."""
    print(f"batch {options.batch_size}, {options.channels} channels, {options.compute_dtype}")
    spaces = KINDS if options.space is None else [options.space]
    for space, count in itertools.product(spaces, map(int, options.devices.split(","))):
        command = [sys.executable, __file__, *sys.argv[1:], "--one", space, str(count)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{space:12s} {count} x {found['device']}: first {found['first_s']:.1f} s, step "
            f"{found['step_s']:.3f} s ({found['low_s']:.3f} to {found['high_s']:.3f}), "
            f"{found['images_per_s']:.0f} images/s, {100 * found['share']:.0f} % of the matrix "
            f"product's rate, input {100 * found['input']:.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Times steps of training under pmap.")
    parser.add_argument("--space", choices=KINDS)
    parser.add_argument("--devices", default="1,2,4", help="numbers joined by commas")
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--cells", type=int, help="a stage, or in DARTS in all; the recipe's")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--compute-dtype", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.one:
        jax.config.update("jax_num_cpu_devices", int(parsed.one[1]))
        print(json.dumps(measure(parsed, parsed.one[0], int(parsed.one[1]))))
    else:
        main(parsed)
