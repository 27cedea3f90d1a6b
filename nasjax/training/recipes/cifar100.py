"""A DARTS network of full size on CIFAR-100, as HNAS evaluates what it finds.

Command: ``nasjax train GENOTYPE --space darts --recipe cifar100``
Cost: as ``cifar10``.
Expected: 16 to 17 % test error (HNAS 16.29, what it found on CIFAR-100 itself).

HNAS, App. B.3: as ``cifar10`` with a rate from 0.035 to 0.001, auxiliary weight 0.6, drop path 0.3.
"""

import dataclasses

from nasjax.training.recipes.cifar10 import RECIPE as CIFAR10

RECIPE = dataclasses.replace(
    CIFAR10,
    data="tfds:cifar100",
    learning_rate=0.035,
    final_learning_rate=0.001,
    auxiliary_weight=0.6,
    drop_path_rate=0.3,
)
