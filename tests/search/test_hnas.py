"""HNAS over made-up pools whose best constants are known."""

import math

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.search import Evaluation, grid_probes, hnas

KEY = jax.random.key(5)
PLACES = np.linspace(0, 1, 101)


def _objective(point):
    """Selects the architecture at the place of the first constant."""
    return np.abs(PLACES - point[0])


def _run(search, evaluate, num_steps, state=None, first=0):
    state = search.init(KEY) if state is None else state
    infos = []
    for number in range(first, num_steps):
        state, info = search.step(jax.random.fold_in(KEY, number), state, evaluate)
        infos.append(info)
    return state, infos


def _smooth(place):
    """Best at 0.73."""
    return Evaluation(0.9 - (PLACES[place] - 0.73) ** 2, 10.0)


def test_it_finds_the_constants_that_select_the_best():
    search = hnas(_objective, 1, probes=grid_probes(1))
    _, infos = _run(search, _smooth, 9)
    assert infos[0].place == 50  # the middle is tried first
    assert abs(infos[-1].best_place - 73) <= 1
    assert infos[-1].best_value == _smooth(infos[-1].best_place).value
    assert [info.seconds for info in infos] == [10.0 * number for number in range(1, 10)]
    # Nine of 101 places at random come so near in a quarter of all runs; fewer than six in 1 of 6.
    assert next(n for n, info in enumerate(infos) if abs(info.best_place - 73) <= 3) < 6


def test_no_architecture_is_evaluated_twice():
    """Of five architectures constants select the same again and again; all five are found."""
    places = np.linspace(0, 1, 5)
    asked = []

    def evaluate(place):
        asked.append(place)
        return Evaluation(float(place == 2), 1.0)

    search = hnas(lambda point: np.abs(places - point[0]), 1)
    state, infos = _run(search, evaluate, 5)
    assert sorted(asked) == list(range(5))
    assert infos[-1].best_place == 2
    assert len(state.probes) > 5
    with pytest.raises(InputError, match="got 5 evaluations of 5 usable ones"):
        search.step(KEY, state, evaluate)


def test_what_the_objective_leaves_out_is_never_evaluated():
    def objective(point):
        return np.where(np.arange(101) % 2, _objective(point), [math.inf, math.nan] * 50 + [0.0])

    def even_is_bad(place):
        assert place % 2 or place == 100
        return _smooth(place)

    _run(hnas(objective, 1), even_is_bad, 6)


def test_failures_are_recorded_and_the_search_goes_on():
    def evaluate(place):
        return Evaluation(math.nan, 3.0, "diverged") if place > 60 else _smooth(place)

    search = hnas(_objective, 1, probes=((0.9,), (0.5,)))
    state, infos = _run(search, evaluate, 12)
    assert math.isnan(infos[0].best_value) and infos[0].best_place is None
    assert state.evaluated[0].evaluation.failure == "diverged"
    assert infos[1].best_place == 50 and infos[1].seconds == 13.0
    assert infos[-1].best_place in range(55, 61)


def test_a_state_and_a_key_determine_the_rest():
    search = hnas(_objective, 1, probes=grid_probes(1))
    whole, infos = _run(search, _smooth, 6)
    half, _ = _run(search, _smooth, 3)
    again, rest = _run(search, _smooth, 6, state=half, first=3)
    assert again == whole and rest == infos[3:]


def test_probes_must_be_points():
    assert len(set(grid_probes(2))) == 5 and grid_probes(3) == ((0.5, 0.5, 0.5),)
    with pytest.raises(InputError, match="points of 1 numbers in \\[0, 1\\], got \\(0.5, 2.0\\)"):
        hnas(_objective, 1, probes=((0.5, 2.0),))
