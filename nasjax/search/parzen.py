"""Bayesian optimisation of discrete decisions by tree-structured Parzen estimators."""

import contextlib
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from nasjax.errors import InputError
from nasjax.search.base import SearchAlgorithm
from nasjax.search.pool import Evaluation, any_left, pool_search

_MOST_REPEATS = 20


def parzen(
    genotypes: Int[np.ndarray, "pool decisions"], num_choices: int, *, num_random: int = 5
) -> SearchAlgorithm:
    """Decisions by Optuna's tree-structured Parzen estimator, the model of BOHB (Falkner, 2018).

    Args:
      genotypes: ``[pool, decisions]``, integers below ``num_choices``.
      num_choices: of every decision.
      num_random: architectures drawn uniformly at first.

    Returns:
      The search: ``step(key, state, evaluate) -> (PoolState, PoolStepInfo)``. What the estimator
      suggests is asked again where the pool lacks it or it is known, and drawn after twenty times.
      A step costs some milliseconds for each evaluation so far.

    Raises:
      InputError: if Optuna cannot be imported.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            "parzen: Optuna must be importable. Run `pip install 'nasjax[parzen]'`."
        ) from error
    genotypes = np.asarray(genotypes)
    place_of = {tuple(row): place for place, row in reversed(list(enumerate(genotypes.tolist())))}
    names = [f"decision_{number:03d}" for number in range(genotypes.shape[1])]
    kinds = {
        name: optuna.distributions.CategoricalDistribution(range(num_choices)) for name in names
    }

    def choose(generator: np.random.Generator, known: dict[int, Evaluation]) -> int:
        if len(known) < num_random:
            return any_left(generator, range(len(genotypes)), known)
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=0, multivariate=True, seed=int(generator.integers(2**31))
        )
        with _quiet(optuna.logging):
            study = optuna.create_study(direction="maximize", sampler=sampler)
        fine = [one.value for one in known.values() if not math.isnan(one.value)]
        for place, evaluation in known.items():
            value = evaluation.value
            told = (min(fine) if fine else 0.0) if math.isnan(value) else value
            decisions = dict(zip(names, genotypes[place].tolist(), strict=True))
            study.add_trial(optuna.create_trial(params=decisions, distributions=kinds, value=told))
        for _ in range(_MOST_REPEATS):
            asked = study.ask(kinds)
            place = place_of.get(tuple(asked.params[name] for name in names))
            if place is not None and place not in known:
                return place
        return any_left(generator, range(len(genotypes)), known)

    return pool_search("parzen", len(genotypes), choose)


@contextlib.contextmanager
def _quiet(logging) -> Iterator[None]:
    """Keeps Optuna from telling that a study was made."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)
