"""NAS-Bench-201's own training of a cell: 200 epochs.

Command: ``nasjax train CELL --recipe nasbench201``
Cost: 200 epochs of 195 steps; an hour or two on a GPU of 2020.
Expected: the benchmark's test accuracy on CIFAR-10, 94.37 % of the best cell (mean of three seeds).

Dong and Yang (2020), table 1, set H-dagger: SGD with Nesterov momentum 0.9, rate from 0.1 to 0 by a
cosine (in their code, AutoDL-Projects, constant within an epoch), weight decay 5e-4, batch 256,
mirror images, crops out of 4 padded pixels; 16 channels, 5 cells a stage. The benchmark keeps the
last, smaller batch of an epoch; here it is left out.
"""

from nasjax.training.augment import Augmentation
from nasjax.training.recipe import Recipe

RECIPE = Recipe(
    data="tfds:cifar10",
    networks={"nasbench201": {"channels": 16, "num_cells": 5}},
    epochs=200,
    batch_size=256,
    learning_rate=0.1,
    is_nesterov=True,
    weight_decay=5e-4,
    augmentation=Augmentation(pad=4, is_flipped=True),
    image_size=32,
)
