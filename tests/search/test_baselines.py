"""Searches to compare with, over made-up pools."""

import itertools
import math

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.search import Evaluation, random_search, ranked, regularised_evolution, reinforce

GENOTYPES = np.array(list(itertools.product(range(3), repeat=4)))  # 81


def _value(place):
    """The share of decisions that are 2, and a little for each that is 1."""
    row = GENOTYPES[place]
    return float((row == 2).mean() + 0.1 * (row == 1).mean())


def _evaluate(place):
    return Evaluation(_value(place), 2.0)


def _neighbour(generator, place):
    row = GENOTYPES[place].copy()
    row[generator.integers(4)] = generator.integers(3)
    return int(row @ [27, 9, 3, 1])


def _run(search, num_steps, seed=0, evaluate=_evaluate):
    key = jax.random.key(seed)
    state = search.init(key)
    for number in range(num_steps):
        state, info = search.step(jax.random.fold_in(key, number), state, evaluate)
    return [one.place for one in state.evaluated], info


SEARCHES = {
    "random": random_search(range(81)),
    "evolution": regularised_evolution(range(81), _neighbour),
    "reinforce": reinforce(GENOTYPES, 3),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_all_are_evaluated_once_and_then_there_is_an_end(name):
    places, info = _run(SEARCHES[name], 81)
    assert sorted(places) == list(range(81))
    assert (info.best_value, info.best_place, info.seconds) == (1.0, 80, 162.0)
    with pytest.raises(InputError, match="got 81 evaluations of 81 usable ones"):
        _run(SEARCHES[name], 82)
    assert _run(SEARCHES[name], 20) == _run(SEARCHES[name], 20)
    assert _run(SEARCHES[name], 20)[0] != _run(SEARCHES[name], 20, seed=1)[0]


def test_random_search_is_uniform():
    firsts = [_run(random_search(range(9)), 1, seed=seed)[0][0] for seed in range(450)]
    counts = np.bincount(firsts, minlength=9)  # 50 are expected, with a standard deviation of 6.7
    assert np.abs(counts - 50).max() < 4.5 * 6.7


@pytest.mark.parametrize("name", ["evolution", "reinforce"])
def test_learning_beats_chance(name):
    """The mean value of the last ten of thirty; of random search it is .37 in expectation."""
    means = []
    for seed in range(10):
        places, _ = _run(SEARCHES[name], 30, seed=seed)
        means.append(np.mean([_value(place) for place in places[-10:]]))
    assert np.mean(means) > 0.45


def test_a_ranking_is_gone_down():
    scores = np.array([3.0, np.nan, 1.0, np.inf, 2.0, 1.0])
    places, _ = _run(ranked(scores), 4)
    assert places == [2, 5, 4, 0]
    with pytest.raises(InputError, match="got 4 evaluations of 4 usable ones"):
        _run(ranked(scores), 5)


@pytest.mark.parametrize("name", SEARCHES)
def test_failures_are_gone_around(name):
    def evaluate(place):
        return Evaluation(math.nan, 1.0, "diverged") if place % 3 else _evaluate(place)

    places, info = _run(SEARCHES[name], 40, evaluate=evaluate)
    assert len(set(places)) == 40
    fine = [place for place in places if place % 3 == 0]
    assert info.best_value == max(map(_value, fine))


def test_what_is_not_in_the_pool_is_not_chosen():
    odd = [place for place in range(81) if place % 2]
    search = regularised_evolution(
        odd, lambda generator, place: child if (child := _neighbour(generator, place)) % 2 else None
    )
    assert set(_run(search, 40)[0]) == set(odd)
    part = reinforce(GENOTYPES[odd], 3)
    assert sorted(_run(part, 40, evaluate=lambda place: Evaluation(0.5, 1.0))[0]) == list(range(40))


def test_sizes_must_fit():
    with pytest.raises(InputError, match="must be 1 to `population_size`, got 5 and 3"):
        regularised_evolution(range(9), _neighbour, population_size=3, sample_size=5)
