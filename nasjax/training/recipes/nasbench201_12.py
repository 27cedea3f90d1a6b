"""NAS-Bench-201's short training of a cell: 12 epochs, after which the rate is zero.

Command: ``nasjax train CELL --recipe nasbench201_12``
Cost: 12 epochs of 195 steps; five minutes on a GPU of 2020.
Expected: some 85 to 90 % test accuracy on CIFAR-10 for good cells.

Dong and Yang (2020), table 1, set H-double-dagger: as ``nasbench201`` but for the epochs.
"""

import dataclasses

from nasjax.training.recipes.nasbench201 import RECIPE as NASBENCH201

RECIPE = dataclasses.replace(NASBENCH201, epochs=12)
