"""Successive halving over made-up evaluations."""

import math

import jax
import pytest

from nasjax.errors import InputError
from nasjax.search import Evaluation, random_search, ranked, successive_halving


def _run(search, evaluate, num_steps, seed=0):
    key = jax.random.key(seed)
    state, infos = search.init(key), []
    for number in range(num_steps):
        state, info = search.step(jax.random.fold_in(key, number), state, evaluate)
        infos.append(info)
    return state, infos


def test_of_every_four_the_best_is_evaluated_again():
    """The order is 0, 1, 2 ...; cheap values fall with the place, dear ones rise."""
    asked = []

    def evaluate(place, rung):
        asked.append((place, rung))
        return Evaluation((-place / 100, 0.8 + place / 100)[rung], (1.0, 10.0)[rung])

    search = successive_halving(ranked(range(40)), num_rungs=2, eta=4)
    _, infos = _run(search, evaluate, 10)
    lowest = [(place, 0) for place in range(8)]
    assert asked == [*lowest[:4], (0, 1), *lowest[4:], (1, 1)]
    assert infos[3].best_place == 0 and infos[3].best_value == 0.0
    assert infos[8].best_place == 0 and infos[8].best_value == 0.8
    assert infos[9].best_place == 1 and infos[9].best_value == 0.81 and infos[9].seconds == 28.0
    assert infos[9].place == 1 and infos[9].evaluation == Evaluation(0.81, 10.0)


def test_three_rungs_promote_from_the_top():
    asked = []

    def evaluate(place, rung):
        asked.append((place, rung))
        return Evaluation(-float(place), 2.0**rung)

    _run(successive_halving(ranked(range(40)), num_rungs=3, eta=2), evaluate, 10)
    first = [(0, 0), (1, 0), (0, 1), (2, 0), (3, 0), (1, 1), (0, 2)]
    assert asked == [*first, (4, 0), (5, 0), (2, 1)]


def test_failures_are_not_promoted_and_never_the_best():
    def evaluate(place, rung):
        if rung == 1 or place % 2:
            return Evaluation(math.nan, 1.0, "broke")
        return Evaluation(place / 10, 1.0)

    search = successive_halving(random_search(range(10)), eta=2)
    state, infos = _run(search, evaluate, 12)
    assert infos[-1].best_place in range(0, 10, 2) and not math.isnan(infos[-1].best_value)
    again = [one.place for one in state.evaluated]
    assert any(again.count(place) == 2 for place in again)
    assert all(place % 2 == 0 for place in again if again.count(place) == 2)
    assert _run(search, evaluate, 12) == (state, infos)


def test_bad_sizes():
    for sizes in ({"num_rungs": 0}, {"eta": 1}):
        with pytest.raises(InputError, match="`num_rungs` must be at least 1 and `eta` at least 2"):
            successive_halving(random_search(range(3)), **sizes)
