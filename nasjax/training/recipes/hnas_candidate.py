"""The short training by which HNAS checks a candidate: 10 epochs on CIFAR-10.

Command: ``nasjax train GENOTYPE --space darts --recipe hnas_candidate``
Cost: 10 epochs of 468 steps; half an hour on a GPU of 2020 in the DARTS space.
Expected: an order of candidates rather than an accuracy.

HNAS, App. B.3: a 10-epoch training of each candidate that its search asks for (5 epochs on
ImageNet). The optimiser is that of ``cifar10``, whose 10 epochs are here a schedule of their own;
without drop path, which 10 epochs do not need. A tenth of the examples is kept apart, by which
candidates are compared; the paper does not say which it compares them by. In NAS-Bench-201 the
benchmark's 12 epochs take this recipe's place in the paper.
"""

import dataclasses

from nasjax.training.recipes.cifar10 import RECIPE as CIFAR10

RECIPE = dataclasses.replace(
    CIFAR10,
    networks={**CIFAR10.networks, "nasbench201": {"channels": 16, "num_cells": 5}},
    epochs=10,
    drop_path_rate=0.0,
    held_out=0.1,
)
