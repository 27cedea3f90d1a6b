"""Searches that use scores besides HNAS: a model of accuracy, samples, pruning."""

import itertools
import math

import jax
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct

from nasjax.errors import InputError
from nasjax.search import Evaluation, best_of_sample, parzen, predict, predicted, pruning

GENOTYPES = np.array(list(itertools.product(range(3), repeat=4)))  # 81


def _run(search, evaluate, num_steps, seed=0):
    key = jax.random.key(seed)
    state = search.init(key)
    for number in range(num_steps):
        state, info = search.step(jax.random.fold_in(key, number), state, evaluate)
    return [one.place for one in state.evaluated], info


def _features(num=200, num_metrics=3):
    return np.random.default_rng(0).normal(size=(num, num_metrics))


def test_without_evaluations_the_mean_of_the_metrics_is_predicted():
    features = _features()
    features[7, 1] = np.nan
    found = predict(features, {})
    usable = np.delete(np.arange(200), 7)
    assert found.mean[7] == -math.inf
    order = np.argsort(-found.mean[usable])
    assert (order == np.argsort(-features[usable].mean(1))).all()
    assert found.mean[usable].std() == pytest.approx(1)
    equal = {3: Evaluation(0.5, 1.0), 4: Evaluation(0.5, 1.0)}
    np.testing.assert_array_equal(predict(features, equal).mean, found.mean)


def test_the_posterior_is_that_of_a_gaussian_process_with_a_linear_kernel():
    features = _features()
    rng = np.random.default_rng(1)
    known = {place: Evaluation(float(rng.normal()), 1.0) for place in range(0, 40, 5)}
    found = predict(features, known, weight_std=0.7, noise_std=0.4)
    prior = np.full(3, 1 / features.sum(1).std())
    values = np.array([one.value for one in known.values()])
    values = (values - values.mean()) / values.std()
    places = list(known)
    process = GaussianProcessRegressor(DotProduct(1.0, "fixed"), alpha=0.4**2, optimizer=None)
    scaled = features * 0.7 * prior
    process.fit(scaled[places], values - features[places] @ prior)
    mean, std = process.predict(scaled, return_std=True)
    np.testing.assert_allclose(found.mean, mean + features @ prior, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.std, std, rtol=1e-6)


def test_weights_go_where_evaluations_say():
    """Accuracy is the first metric alone; twenty evaluations tell."""
    features = _features()
    truth = features[:, 0]
    known = {place: Evaluation(float(truth[place]), 1.0) for place in range(20)}
    weights = predict(features, known, weight_std=2.0, noise_std=0.1).weights
    np.testing.assert_allclose(weights / weights[0], [1, 0, 0], atol=0.05)


def test_the_search_finds_what_equal_weights_do_not():
    features = _features()
    truth = features @ [1.0, -0.6, 0.2]
    search = predicted(features, weight_std=1.0, noise_std=0.1)
    places, info = _run(search, lambda place: Evaluation(float(truth[place]), 1.0), 12)
    assert len(set(places)) == 12
    assert places[0] == np.argmax(features.sum(1))
    assert info.best_place == np.argmax(truth)
    ranking = np.argsort(-features.sum(1))[:12]
    assert np.argmax(truth) not in ranking


def test_failures_count_as_the_least_value_and_unusable_ones_are_left_out():
    features = _features(12)
    features[5] = np.nan

    def evaluate(place):
        is_bad = place % 2 == 0
        return Evaluation(math.nan if is_bad else place / 10, 1.0, "it broke" if is_bad else "")

    search = predicted(features)
    places, info = _run(search, evaluate, 11)
    assert sorted(places) == [place for place in range(12) if place != 5]
    assert info.best_place == 11
    with pytest.raises(InputError, match="got 11 evaluations of 11 usable ones"):
        _run(search, evaluate, 12)
    _, info = _run(search, lambda place: Evaluation(math.nan, 0.0, "all"), 3)
    assert info.best_place is None


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_values_that_are_not_finite_have_failed(bad):
    search = predicted(_features(6))
    _, info = _run(search, lambda place: Evaluation(bad if place == 3 else float(place), 1.0), 6)
    assert info.best_place == 5 and info.best_value == 5.0
    with pytest.raises(InputError, match="must return an Evaluation.*got float"):
        _run(search, lambda place: 0.5, 1)


@pytest.mark.parametrize(
    ("features", "scales", "message"),
    [
        (np.full((3, 2), np.nan), {}, r"got shape \[3, 2\] with 0 such"),
        (np.zeros((0, 2)), {}, "with 0 such"),
        (_features(), {"noise_std": 0.0}, "above 0, got 0.5, 0.0"),
    ],
)
def test_bad_features(features, scales, message):
    with pytest.raises(InputError, match=message):
        predicted(features, **scales)


def test_a_constant_metric_changes_nothing():
    features = np.c_[_features(50, 1), np.zeros(50)]
    values = {place: Evaluation(place / 10, 1.0) for place in range(10)}
    found = predict(features, values)
    np.testing.assert_allclose(found.mean, predict(features[:, :1], values).mean, atol=1e-12)
    assert np.isfinite(
        predict(np.zeros((5, 2)), values and {0: values[0], 1: values[5]}).mean
    ).all()


def test_the_best_of_a_sample_has_the_law_of_a_least_rank():
    """Of 20 of 81 the least rank is beyond r with probability C(81 - r, 20) / C(81, 20)."""
    scores = np.random.default_rng(3).permutation(81).astype(float)
    evaluate = lambda place: Evaluation(0.0, 0.0)  # noqa: E731
    search = best_of_sample(scores, 20)
    ranks = [scores[_run(search, evaluate, 1, seed=seed)[0][0]] for seed in range(300)]
    for rank in (0, 2, 6):
        expected = 1 - math.comb(81 - rank - 1, 20) / math.comb(81, 20)
        share = np.mean(np.array(ranks) <= rank)
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / 300)
    scores[:80] = np.nan
    assert _run(search, evaluate, 5)[0] != _run(search, evaluate, 5, seed=1)[0]
    assert _run(best_of_sample(scores, 20), evaluate, 1)[0] == [80]
    with pytest.raises(InputError, match="`num_drawn` must be at least 1, got 0"):
        best_of_sample(scores, 0)


def test_pruning_finds_separable_optima():
    """Where choices add up, what is left is the best; where both metrics agree, the order is it."""
    rng = np.random.default_rng(2)
    parts = rng.normal(size=(4, 3))
    cost = sum(parts[decision, GENOTYPES[:, decision]] for decision in range(4))
    search = pruning(GENOTYPES, np.exp(cost), np.exp(-cost))
    places, _ = _run(search, lambda place: Evaluation(0.0, 0.0), 1)
    assert places == [int(np.argmin(cost))]
    is_bad = np.zeros(81, bool)
    is_bad[np.argmin(cost)] = True
    kappa = np.where(is_bad, np.nan, np.exp(cost))
    places, _ = _run(pruning(GENOTYPES, kappa, np.exp(-cost)), lambda _: Evaluation(0.0, 0.0), 80)
    assert sorted(places) == [place for place in range(81) if not is_bad[place]]


def test_pruning_weighs_both_metrics():
    """One metric knows the first two decisions, the other the last two."""
    first, last = GENOTYPES[:, :2].sum(1), GENOTYPES[:, 2:].sum(1)
    search = pruning(GENOTYPES, np.exp(-first), np.exp(last))
    places, _ = _run(search, lambda place: Evaluation(0.0, 0.0), 1)
    assert GENOTYPES[places[0]].tolist() == [2, 2, 2, 2]


def test_parzen_learns_good_decisions():
    """The mean of what it asks for after twenty steps is far above that of chance."""
    pytest.importorskip("optuna")
    value = (GENOTYPES == 2).mean(1)
    search = parzen(GENOTYPES, 3)

    def evaluate(place):
        return Evaluation(float(value[place]), 1.0)

    late = [np.mean(value[_run(search, evaluate, 20, seed=seed)[0][10:]]) for seed in range(8)]
    assert np.mean(late) > 0.45  # of all 81 it is 1/3, with a standard error of 0.03
    places, _ = _run(search, evaluate, 81)
    assert sorted(places) == list(range(81))
    assert _run(search, evaluate, 12) == _run(search, evaluate, 12)
