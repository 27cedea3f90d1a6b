"""Bounds of HNAS and objectives with constants, against their formulas by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from nasjax.errors import InputError
from nasjax.objectives import (
    BOUNDS,
    RANGES,
    TradeOffRanges,
    non_realizable,
    realizable,
    realizable_with_kappa,
    realizable_with_trade_off,
    trade_off_objective,
    transfer_gap,
    weighted_ranks_objective,
)

METRIC = np.array([1.0, 2.0, 4.0, 0.5])
KAPPA = np.array([10.0, 30.0, 20.0, 40.0])


def test_bounds_are_their_formulas():
    np.testing.assert_allclose(realizable(METRIC), [1, 0.5, 0.25, 2])
    np.testing.assert_allclose(realizable_with_kappa(METRIC, KAPPA), [10, 15, 5, 80])
    # (M^2 - 3)^2 is 4, 1, 169, 7.5625.
    error = 0.1 * np.array([4, 1, 169, 7.5625])
    found = realizable_with_trade_off(METRIC, 0.1, 3.0)
    np.testing.assert_allclose(found, [1, 0.5, 0.25, 2] + error, rtol=1e-6)
    np.testing.assert_allclose(
        non_realizable(METRIC, KAPPA, 0.1, 3.0), [10, 15, 5, 80] + error, rtol=1e-6
    )
    for bound, expected in (
        ("realizable", realizable(METRIC)),
        ("realizable_kappa", realizable_with_kappa(METRIC, KAPPA)),
        ("realizable_trade_off", realizable_with_trade_off(METRIC, 0.1, 3.0)),
        ("non_realizable", non_realizable(METRIC, KAPPA, 0.1, 3.0)),
        # |M^2 - 3| is 2, 1, 13, 2.75.
        ("non_realizable:code", np.float32([10.2, 15.1, 6.3, 80.275])),
    ):
        np.testing.assert_array_equal(BOUNDS[bound].fn(METRIC, KAPPA, 0.1, 3.0), expected)


def test_the_gap_of_theorem_3():
    trace, other = np.array([2.0, 1.0, 4.0, 1.0]), np.array([1.0, 2.0, 8.0, 1.0])
    # 3 * 0.8 / (2 * 4 * min): 0.3, 0.3, 0.075, 0.3.
    found = transfer_gap(
        np.array([1.3, 0.8, 0.575, 0.3]),
        *(KAPPA, trace, other),
        divergence=0.8,
        input_size=4,
        alpha=3.0,
    )
    np.testing.assert_allclose(found, [10 / 1.0, 30 / 0.5, 20 / 0.5, np.inf], rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0, -3.0])
def test_what_has_no_metric_or_condition_number_never_wins(bad):
    values = np.array([bad, 2.0])
    assert jnp.isinf(realizable(values)).tolist() == [True, False]
    assert jnp.isinf(non_realizable(values, KAPPA[:2], 1.0, 1.0)).tolist() == [True, False]
    assert jnp.isinf(non_realizable(KAPPA[:2], values, 1.0, 1.0)).tolist() == [True, False]
    objective_fn = trade_off_objective(np.array([bad, 2.0, 1.0]), KAPPA[:3])
    assert np.isinf(objective_fn((0.5, 0.5))).tolist() == [True, False, False]
    weighted = weighted_ranks_objective({"a": np.array([np.nan, 2.0, 1.0])}, {"a": True})
    assert np.isinf(weighted((1.0,))).tolist() == [True, False, False]


def test_constants_are_places_in_ranges_without_units():
    point = (0.8, 0.25)
    # Medians 1.5 and 25; log10 mu = -8 + 10 * 0.8 = 0; nu is a quarter up the squares.
    metric, kappa = METRIC / 1.5, KAPPA / 25
    nu = np.quantile(metric**2, 0.25)
    expected = kappa / metric + (metric**2 - nu) ** 2
    ranges = TradeOffRanges((-8.0, 2.0))
    found = trade_off_objective(METRIC, KAPPA, ranges=ranges)
    np.testing.assert_allclose(found(point), expected, rtol=1e-12)
    assert found.constants_at(point) == (pytest.approx(1.0), pytest.approx(nu))
    scaled = trade_off_objective(1e3 * METRIC, 1e5 * KAPPA, ranges=ranges)(point)
    np.testing.assert_allclose(scaled, expected, rtol=1e-9)


@pytest.mark.parametrize("bound", ["realizable_trade_off", "non_realizable", "non_realizable:code"])
@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
def test_mu_goes_from_next_to_nothing_to_all(bound, spread):
    """Whatever the tails of the metric: at first the trade-off adds 1 %, at last it decides."""
    rng = np.random.default_rng(0)
    metric, kappa = np.exp(spread * rng.normal(size=99)), np.exp(rng.normal(size=99))
    found = trade_off_objective(metric, kappa, bound=bound)
    without = found.values_at(0.0, 0.0)
    assert np.max(found((0.0, 0.5)) / without) == pytest.approx(1.01)
    assert np.median(found((1.0, 0.5)) / without) == pytest.approx(101, rel=0.1)
    other = trade_off_objective(1e3 * metric, 1e5 * kappa, bound=bound)
    np.testing.assert_allclose(other((0.3, 0.7)), found((0.3, 0.7)), rtol=1e-6)


def test_a_metric_alike_for_all_has_nothing_to_weigh():
    found = trade_off_objective(np.full(4, 2.0), KAPPA)
    np.testing.assert_allclose(found((0.9, 0.3)), KAPPA / 25)


@pytest.mark.parametrize("bound", ["realizable", "realizable_kappa"])
def test_bounds_without_constants_take_none(bound):
    found = trade_off_objective(METRIC, KAPPA, bound=bound)(())
    expected = BOUNDS[bound].fn(METRIC / 1.5, KAPPA / 25, 0.0, 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_papers_ranges_are_in_the_units_of_its_metrics():
    found = trade_off_objective(METRIC, KAPPA, ranges=RANGES["hnas"])((0.5, 0.1))
    np.testing.assert_allclose(found, KAPPA / METRIC + 1e-2 * (METRIC**2 - 500) ** 2, rtol=1e-12)
    flat = TradeOffRanges((-1.0, -1.0), (3.0, 3.0), is_scaled=False)
    found = trade_off_objective(METRIC, KAPPA, bound="realizable_trade_off", ranges=flat)((0, 0))
    np.testing.assert_allclose(found, 1 / METRIC + 0.1 * (METRIC**2 - 3) ** 2, rtol=1e-12)


def test_weighted_ranks_go_by_order_alone():
    a, b = np.array([3.0, 1.0, 2.0]), np.array([1.0, 5.0, 9.0])
    fn = weighted_ranks_objective({"a": a, "b": b}, {"a": True, "b": False})
    top = scipy.stats.norm.ppf(3 / 4)
    np.testing.assert_allclose(fn((1.0, 0.0)), [-top, top, 0], atol=1e-12)
    np.testing.assert_allclose(fn((0.0, 1.0)), [-top, 0, top], atol=1e-12)
    np.testing.assert_allclose(fn((0.5, 1.0)), [-1.5 * top, 0.5 * top, top], atol=1e-12)
    again = weighted_ranks_objective({"a": np.exp(a), "b": b**3}, {"a": True, "b": False})
    np.testing.assert_array_equal(again((0.3, 0.6)), fn((0.3, 0.6)))


def test_what_is_refused():
    with pytest.raises(InputError, match="unknown bound 'realisable'. Did you mean 'realizable'"):
        trade_off_objective(METRIC, KAPPA, bound="realisable")
    with pytest.raises(
        InputError, match="must be lists of one length, got shapes \\[4\\], \\[3\\]"
    ):
        trade_off_objective(METRIC, KAPPA[:3])
    with pytest.raises(InputError, match="must name a metric, got none"):
        weighted_ranks_objective({}, {})
