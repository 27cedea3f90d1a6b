"""Correlations against scipy, and their intervals against repetition."""

import numpy as np
import pytest
import scipy.stats

from nasjax.errors import InputError
from nasjax.evaluation import correlation


def pairs(seed, size=60, slope=0.7):
    generator = np.random.default_rng(seed)
    a = generator.standard_normal(size)
    return a, slope * a + np.sqrt(1 - slope**2) * generator.standard_normal(size)


def test_coefficients_are_scipys():
    a, b = pairs(0)
    a = np.round(a, 1)  # with ties
    for kind, expected in (
        ("pearson", scipy.stats.pearsonr(a, b)),
        ("spearman", scipy.stats.spearmanr(a, b)),
        ("kendall", scipy.stats.kendalltau(a, b)),
    ):
        assert correlation(a, b, kind=kind).value == pytest.approx(expected.statistic, abs=1e-12)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        found = correlation(*pairs(seed), kind="pearson", num_resamples=300, level=0.9)
        covered += found.low <= 0.7 <= found.high
    # Binomial, 200 times 0.9: standard deviation 4.2. The bootstrap is a little narrow.
    assert 165 <= covered <= 195


def test_pairs_without_a_number_are_left_out():
    a, b = pairs(1)
    expected = correlation(a, b)
    more = correlation([*a, np.nan, 3.0], [*b, 1.0, -np.inf])
    assert more == expected
    assert more.num_pairs == 60


def test_no_variation_is_no_correlation():
    found = correlation(np.ones(5), np.arange(5))
    assert np.isnan([found.value, found.low, found.high]).all()
    assert np.isnan(correlation([], []).value)


def test_few_pairs_have_no_interval():
    a, b = pairs(2)
    few, enough = correlation(a[:7], b[:7]), correlation(a[:8], b[:8])
    assert np.isnan([few.low, few.high]).all()
    assert enough.low < enough.value < enough.high
    assert few.value == pytest.approx(scipy.stats.spearmanr(a[:7], b[:7]).statistic)


def test_bad_input_is_named():
    with pytest.raises(InputError, match="Did you mean 'pearson'"):
        correlation([1, 2], [1, 2], kind="pearsn")
    with pytest.raises(InputError, match=r"must be two lists of one length, got \[2\] and \[3\]"):
        correlation([1, 2], [1, 2, 3])
