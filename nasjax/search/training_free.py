"""Training-free selection over a pool: the best of a sample, and pruning by two metrics."""

import numpy as np
import scipy.stats
from jaxtyping import Float, Int

from nasjax.errors import InputError
from nasjax.search.base import SearchAlgorithm
from nasjax.search.pool import Evaluation, pool_search


def best_of_sample(scores: Float[np.ndarray, " pool"], num_drawn: int) -> SearchAlgorithm:
    """Draws architectures uniformly and takes the best by a score: NASWOT-N (Mellor et al., 2021).

    Args:
      scores: ``[pool]``, lower is better; what is not finite is left out.
      num_drawn: N, anew in every step, of those that are left.

    Returns:
      The search: ``step(key, state, evaluate) -> (PoolState, PoolStepInfo)``. Its first step is the
      paper's search.

    Raises:
      InputError: if ``num_drawn`` is not at least 1.
    """
    if num_drawn < 1:
        raise InputError(f"best_of_sample: `num_drawn` must be at least 1, got {num_drawn}.")
    scores = np.asarray(scores, np.float64)
    usable = np.flatnonzero(np.isfinite(scores))

    def choose(generator: np.random.Generator, known: dict[int, Evaluation]) -> int:
        left = np.setdiff1d(usable, list(known))
        drawn = generator.choice(left, min(num_drawn, len(left)), replace=False)
        return int(drawn[np.argmin(scores[drawn])])

    return pool_search("best_of_sample", len(usable), choose)


def pruning(
    genotypes: Int[np.ndarray, "pool decisions"],
    kappa: Float[np.ndarray, " pool"],
    regions: Float[np.ndarray, " pool"],
) -> SearchAlgorithm:
    """Prunes choices by condition number and linear regions, as TE-NAS (Chen et al., 2021).

    TE-NAS scores a supernet without one of its operations. Here a supernet is the part of the pool
    that its remaining choices allow, and its metrics are means over them (of the logarithm). In a
    round every decision with more than one choice left loses the choice without which the condition
    number falls most and the regions grow most, by the sum of both ranks, until one architecture is
    left; a choice whose loss would empty the pool stays.

    Args:
      genotypes: ``[pool, decisions]``, small integers.
      kappa: ``[pool]``, lower is better.
      regions: ``[pool]``, higher is better. What lacks one of both is left out.

    Returns:
      The search: ``step(key, state, evaluate) -> (PoolState, PoolStepInfo)``. Its first step is the
      paper's search; later ones prune what is left of the pool. Chance plays no part.
    """
    genotypes = np.asarray(genotypes)
    metrics = np.stack([np.asarray(kappa, np.float64), np.asarray(regions, np.float64)], 1)
    is_usable = np.isfinite(metrics).all(1) & (metrics > 0).all(1)
    costs = np.log(np.where(is_usable[:, None], metrics, 1.0)) * (1.0, -1.0)

    def choose(generator: np.random.Generator, known: dict[int, Evaluation]) -> int:
        del generator
        is_left = is_usable.copy()
        is_left[list(known)] = False
        while is_left.sum() > 1:
            removals = _removals(genotypes, costs, is_left)
            if not removals:  # equal genotypes
                break
            is_left = _round(genotypes, is_left, removals)
        return int(np.flatnonzero(is_left)[0])

    return pool_search("pruning", int(is_usable.sum()), choose)


def _removals(genotypes, costs, is_left) -> list[tuple[float, int, int]]:
    """``(sum of ranks, decision, choice)`` of all that may go, the best to lose first."""
    places = []
    for decision in range(genotypes.shape[1]):
        choices = np.unique(genotypes[is_left, decision])
        places += [(decision, int(choice)) for choice in choices if len(choices) > 1]
    without = [
        costs[is_left & (genotypes[:, decision] != choice)].mean(0) for decision, choice in places
    ]
    if not places:
        return []
    ranks = scipy.stats.rankdata(np.array(without), axis=0).sum(1)
    return sorted((float(rank), *place) for rank, place in zip(ranks, places, strict=True))


def _round(genotypes, is_left, removals):
    pruned = set()
    for _, decision, choice in removals:
        rest = is_left & (genotypes[:, decision] != choice)
        if decision not in pruned and rest.any() and rest.sum() < is_left.sum():
            is_left = rest
            pruned.add(decision)
    return is_left
