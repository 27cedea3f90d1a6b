"""Searches to stand beside others, over the same pool and by the same count of evaluations.

All start from nothing but evaluations, except `ranked`, which goes down an order that is given.
None evaluates an architecture twice: where its rule asks for one that is known, it is asked again.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from nasjax.errors import InputError
from nasjax.search.base import SearchAlgorithm
from nasjax.search.pool import Evaluation, any_left, or_least, pool_search

NeighbourFn = Callable[[np.random.Generator, int], int | None]
"""``(generator, place) -> place`` of a random neighbour; None where the pool has it not."""

_MOST_REPEATS = 100


def random_search(places: Sequence[int]) -> SearchAlgorithm:
    """Evaluates architectures drawn uniformly.

    Args:
      places: of the architectures that may be drawn.

    Returns:
      The search: ``step(key, state, evaluate) -> (PoolState, PoolStepInfo)``.
    """

    def choose(generator: np.random.Generator, known: dict[int, Evaluation]) -> int:
        return any_left(generator, places, known)

    return pool_search("random_search", len(places), choose)


def ranked(scores: Float[np.ndarray, " pool"]) -> SearchAlgorithm:
    """Goes down the order of training-free scores: zero-cost ranking, KNAS's top k.

    Args:
      scores: ``[pool]``, lower is better; what is not finite is left out.

    Returns:
      The search: as ``random_search``.
    """
    scores = np.asarray(scores, np.float64)
    order = [
        int(place) for place in np.argsort(scores, kind="stable") if np.isfinite(scores[place])
    ]

    def choose(generator: np.random.Generator, known: dict[int, Evaluation]) -> int:
        del generator
        return next(place for place in order if place not in known)

    return pool_search("ranked", len(order), choose)


def regularised_evolution(
    places: Sequence[int],
    neighbour_fn: NeighbourFn,
    *,
    population_size: int = 10,
    sample_size: int = 3,
) -> SearchAlgorithm:
    """Mutates the best of a sample of the youngest architectures (Real et al., 2019).

    Args:
      places: of the architectures of the pool.
      neighbour_fn: a random neighbour of an architecture.
      population_size: of the youngest that are kept; the first are drawn uniformly. NAS-Bench-201's
        authors take 10.
      sample_size: drawn of these, whose best is mutated; theirs is 3.

    Returns:
      The search: as ``random_search``.

    Raises:
      InputError: if a size is not at least 1.
    """
    if not 1 <= sample_size <= population_size:
        raise InputError(
            "regularised_evolution: `sample_size` must be 1 to `population_size`, got "
            f"{sample_size} and {population_size}."
        )

    def choose(generator: np.random.Generator, known: dict[int, Evaluation]) -> int:
        if len(known) < population_size:
            return any_left(generator, places, known)
        youngest = list(known)[-population_size:]
        for _ in range(_MOST_REPEATS):
            drawn = generator.choice(youngest, sample_size, replace=False)
            parent = max(drawn, key=lambda place: or_least(known[place].value))
            child = neighbour_fn(generator, int(parent))
            if child is not None and child not in known:
                return child
        return any_left(generator, places, known)

    return pool_search("regularised_evolution", len(places), choose)


def reinforce(
    genotypes: Int[np.ndarray, "pool decisions"],
    num_choices: int,
    *,
    learning_rate: float = 0.1,
    decay: float = 0.9,
) -> SearchAlgorithm:
    """Independent categorical decisions, their logits by the policy gradient (Williams, 1992).

    A step goes through all that was evaluated again, so that the state need hold nothing else.

    Args:
      genotypes: ``[pool, decisions]``, integers below ``num_choices``.
      num_choices: of every decision.
      learning_rate: of plain gradient ascent on the expected value, in units of the standard
        deviation of the values so far.
      decay: of the moving mean that is taken off a value.

    Returns:
      The search: as ``random_search``.
    """
    genotypes = np.asarray(genotypes)
    place_of = {tuple(row): place for place, row in reversed(list(enumerate(genotypes.tolist())))}

    def choose(generator: np.random.Generator, known: dict[int, Evaluation]) -> int:
        probabilities = _policy(genotypes, num_choices, known, learning_rate, decay)
        for _ in range(_MOST_REPEATS):
            row = tuple(int(generator.choice(num_choices, p=p)) for p in probabilities)
            if row in place_of and place_of[row] not in known:
                return place_of[row]
        return any_left(generator, range(len(genotypes)), known)

    return pool_search("reinforce", len(genotypes), choose)


def _policy(genotypes, num_choices: int, known, learning_rate: float, decay: float):
    """``[decisions, choices]``: probabilities after the gradients of all evaluations in turn."""
    logits = np.zeros((genotypes.shape[1], num_choices))
    fine = [evaluation.value for evaluation in known.values() if not math.isnan(evaluation.value)]
    scale = max(float(np.std(fine)), 1e-12) if fine else 1.0
    mean = None
    for place, evaluation in known.items():
        value = evaluation.value if not math.isnan(evaluation.value) else min(fine, default=0.0)
        mean = value if mean is None else decay * mean + (1 - decay) * value
        chosen = np.eye(num_choices)[genotypes[place]]
        logits += learning_rate * (value - mean) / scale * (chosen - _softmax(logits))
    return _softmax(logits)


def _softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
