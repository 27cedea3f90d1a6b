"""NASI in NAS-Bench-201 over several seeds, with the accuracies of the selected cells.

    python benchmarks/nasi_nasbench201.py --table nb201_accuracies.csv.gz --images npz:cifar10.npz

For random data, random labels with the images and true labels it runs ``nasjax search nasi`` with
its defaults and seeds 0, 1, ..., and prints each cell, then mean and standard deviation (n - 1).
It can be stopped and started again.
"""

import argparse
import statistics
from pathlib import Path

from nasjax.evaluation import load_nasbench201_table
from nasjax.runs import NasiSettings, run_nasi, versions

COLUMNS = ("cifar10_test", "cifar100_test", "imagenet16_test")


def main():
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--table", required=True)
    parser.add_argument("--images", help="a data set; without it only random data are used")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path, default=Path("runs/nasi-nasbench201-seeds"))
    options = parser.parse_args()
    print(", ".join(f"{name} {version}" for name, version in versions().items()), flush=True)
    table = load_nasbench201_table(options.table)
    kinds = {"random data": ("random", "true")}
    if options.images:
        kinds["random labels"] = (options.images, "random")
        kinds["true labels"] = (options.images, "true")
    for kind, (data, labels) in kinds.items():
        rows = []
        for seed in range(options.seeds):
            settings = NasiSettings(data=data, labels=labels, seed=seed, steps=options.steps)
            name = f"{kind.replace(' ', '-')}-steps{settings.steps}-seed{seed}"
            record = run_nasi(settings, options.out / name, table=table).record
            rows.append([100 * record["accuracies"][column] for column in COLUMNS])
            print(
                f"{kind}, seed {seed}: {record['architecture']} "
                + " / ".join(f"{accuracy:.2f}" for accuracy in rows[-1])
                + f", {record['search']['seconds']:.0f} s",
                flush=True,
            )
        print(
            f"{kind}: "
            + " / ".join(
                f"{statistics.mean(column):.2f} +- {statistics.stdev(column):.2f}"
                for column in zip(*rows, strict=True)
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
