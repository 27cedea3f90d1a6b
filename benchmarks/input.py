"""Times how fast batches of a data set are made, apart from any network.

    python benchmarks/input.py --data tfds:imagenet2012        # random crops of 224 pixels
    python benchmarks/input.py --data npz:cifar10.npz --image-size 32 --min-area 0

Printed are the time until the first batch and images a second after it.
"""

import argparse
import time

from nasjax.data import load_splits
from nasjax.training.batches import train_batches


def main(options) -> None:
    """Makes batches and prints the rates."""
    opened = time.perf_counter()
    splits = load_splits(
        options.data, image_size=options.image_size, min_area=options.min_area or None
    )
    print(f"{splits.train.num_examples} images, opened in {time.perf_counter() - opened:.1f} s")
    start = time.perf_counter()
    ends = []
    for _ in train_batches(
        splits.train,
        batch_size=options.batch_size,
        rows=slice(0, options.batch_size),
        seed=options.seed,
        first_step=0,
        num_steps=options.steps,
    ):
        ends.append(time.perf_counter())
    rate = options.batch_size * (len(ends) - 1) / (ends[-1] - ends[0])
    print(f"first batch {ends[0] - start:.2f} s, then {rate:.0f} images/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Times how fast batches are made.")
    parser.add_argument("--data", required=True, help="what load_splits takes")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--min-area", type=float, default=0.08, help="of a crop; 0 cuts none")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
