"""Times searches by a few evaluations over a pool of scored cells, apart from the scores' cost.

    python benchmarks/hnas.py                      # all 15,625 cells, made-up scores
    python benchmarks/hnas.py --cells 1000 --steps 40

Printed are seconds to read the scores, and of a search: the median, and for HNAS the ratio to the
same search whose constants the library's own `suggest` chooses, one at a time.
"""

import argparse
import csv
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from bayes_opt import BayesianOptimization, acquisition

from nasjax.runs import HnasSettings, load_scored_pool
from nasjax.runs.compare import SEARCHES
from nasjax.search import Evaluation
from nasjax.spaces.nasbench201 import genotype_from_index, to_string

NAMES = ("ranking:m", "random", "evolution", "reinforce", "parzen", "predicted:m+k+n")


def write_scores(path: Path, cells: int) -> None:
    """Metrics that fall and rise together with noise, as real ones."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=cells)
    values = np.exp(common[:, None] * (1, -1, 1) + rng.normal(size=(cells, 3)))
    texts = [to_string(genotype_from_index(index)) for index in range(cells)]
    with path.open("w", newline="") as file:
        rows = ((text, *row) for text, row in zip(texts, values.tolist(), strict=True))
        csv.writer(file).writerows([("architecture", "m", "k", "n"), *rows])


def run(search, evaluate, steps: int, seed: int) -> float:
    """Seconds of one search."""
    start = time.perf_counter()
    key = jax.random.key(seed)
    state = search.init(key)
    for number in range(steps):
        state, _ = search.step(jax.random.fold_in(key, number), state, evaluate)
    return time.perf_counter() - start


def suggested(objective_fn, evaluate, steps: int, seed: int) -> float:
    """Seconds of the same by the library's loop: constants that select what is known count too."""
    start = time.perf_counter()
    optimizer = BayesianOptimization(
        *(None, {"mu": (0.0, 1.0), "nu": (0.0, 1.0)}),
        acquisition_function=acquisition.ExpectedImprovement(xi=0.001),
        random_state=seed,
        verbose=0,
        allow_duplicate_points=True,
    )
    known = {}
    point = {"mu": 0.5, "nu": 0.5}
    for _ in range(10 * steps):
        place = int(np.argmin(objective_fn((point["mu"], point["nu"]))))
        known[place] = evaluate(place)
        if len(known) == steps:
            break
        optimizer.register(point, known[place].value)
        point = optimizer.suggest()
    return time.perf_counter() - start


def main(options) -> None:
    """Runs the searches and prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.csv"
        write_scores(path, options.cells)
        start = time.perf_counter()
        pool = load_scored_pool(path)
        read = time.perf_counter() - start
    print(f"{options.cells} cells, {len(pool.genotypes)} different: read in {read:.1f} s")
    values = np.log(pool.score_of("m")) - np.log(pool.score_of("k"))
    values = values + np.random.default_rng(1).normal(size=len(values))

    def evaluate(place: int) -> Evaluation:
        return Evaluation(float(values[place]), 150.0)

    def median(fn) -> float:
        fn(options.runs)  # compiles, imports
        return statistics.median(fn(seed) for seed in range(options.runs))

    settings = HnasSettings(metric="m", kappa="k", steps=options.steps)
    search = settings.search(pool)
    ours = median(lambda seed: run(search, evaluate, options.steps, seed))
    print(f"hnas                {ours:8.3f} s")
    objective_fn, _ = settings.objective(pool)
    other = median(lambda seed: suggested(objective_fn, evaluate, options.steps, seed))
    print(f"hnas by `suggest`   {other:8.3f} s, {other / ours:.0f} times as long")
    for name in NAMES:
        kind, _, rest = name.partition(":")
        search = SEARCHES[kind].make(pool, rest)
        seconds = median(lambda seed, search=search: run(search, evaluate, options.steps, seed))
        print(f"{name:19s} {seconds:8.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Times searches over scored cells.")
    parser.add_argument("--cells", type=int, default=15_625)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    main(parser.parse_args())
