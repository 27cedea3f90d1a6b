"""Scores that need no computation, for tests of what is done with them."""

import math

import numpy as np

from nasjax.metrics import Scores


def made_up_scorer(space, x, y, metrics, *, seed, **_):
    """In place of ``space_scorer``: numbers with all their digits; the last one fails at times."""

    def score(genotype):
        values = np.random.default_rng([seed, *genotype.ravel()]).normal(size=len(metrics))
        flags = {metrics[-1]: "dead"} if values[-1] > 1.0 else {}
        values = dict(zip(metrics, values.tolist(), strict=True))
        return Scores(values | dict.fromkeys(flags, math.nan), flags, {})

    return score
