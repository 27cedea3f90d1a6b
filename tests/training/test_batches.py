"""Which examples a batch holds."""

import numpy as np
import pytest

from nasjax.data import Examples
from nasjax.errors import InputError
from nasjax.training.batches import evaluation_batches, steps_per_epoch, train_batches

PLACES = np.arange(10)
EXAMPLES = Examples(PLACES.astype(np.uint8).reshape(10, 1, 1, 1), PLACES.astype(np.int32))


class _WithDraws(Examples):
    """Examples whose images are the draws that they were given."""

    num_draws = 3

    def reader(self, chosen):
        return lambda step, draws: (draws, self.labels[chosen[step]])


def _train(first_step, num_steps, rows=slice(0, 3), seed=4):
    batches = train_batches(
        EXAMPLES,
        batch_size=3,
        rows=rows,
        seed=seed,
        first_step=first_step,
        num_steps=num_steps,
    )
    found = list(batches)
    for batch in found:
        np.testing.assert_array_equal(batch.images.ravel(), batch.labels)
    return [batch.labels.tolist() for batch in found]


def test_an_epoch_has_every_example_at_most_once():
    for epoch in range(3):
        seen = sum(_train(3 * epoch, 3 * epoch + 3), [])
        assert len(set(seen)) == 9
        assert seen == np.random.default_rng((4, epoch)).permutation(10)[:9].tolist()


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [_train(0, 3), _train(3, 6), _train(0, 3, seed=5)]
    assert len({str(order) for order in orders}) == 3


def test_a_restart_sees_what_an_unbroken_run_would_have():
    whole = _train(0, 7)
    for first in range(1, 7):
        assert _train(first, 7) == whole[first:]


def test_processes_share_a_batch():
    whole = _train(0, 5)
    parts = [_train(0, 5, rows=rows) for rows in (slice(0, 1), slice(1, 3))]
    assert [one + other for one, other in zip(*parts, strict=True)] == whole


def test_evaluation_sees_every_example_once_and_counts_no_filling():
    batches = list(evaluation_batches(EXAMPLES, batch_size=4, rows=slice(0, 4)))
    assert [batch.labels.tolist() for batch in batches] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 0, 1],
    ]
    assert [batch.is_counted.tolist() for batch in batches][2] == [True, True, False, False]
    second = list(evaluation_batches(EXAMPLES, batch_size=4, rows=slice(2, 4)))
    assert [batch.labels.tolist() for batch in second] == [[2, 3], [6, 7], [0, 1]]
    assert second[2].is_counted.tolist() == [False, False]


def test_draws_are_of_the_step_and_the_place_in_the_joint_batch():
    def draws(first_step, rows):
        batches = train_batches(
            _WithDraws(*EXAMPLES),
            batch_size=5,
            rows=rows,
            seed=1,
            first_step=first_step,
            num_steps=4,
        )
        return [batch.images for batch in batches]

    whole = draws(0, slice(0, 5))
    assert len(np.unique(whole)) == 4 * 5 * 3
    np.testing.assert_array_equal(draws(2, slice(0, 5)), whole[2:])
    np.testing.assert_array_equal(draws(0, slice(3, 5)), [batch[3:] for batch in whole])


def test_whole_batches_are_counted():
    assert steps_per_epoch(10, 3) == 3
    with pytest.raises(InputError, match="--batch-size: must be at most the 10 examples .* got 11"):
        steps_per_epoch(10, 11)
