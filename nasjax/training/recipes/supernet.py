"""A one-shot network on 70 % of CIFAR-10, one uniformly drawn architecture a step.

Command: ``nasjax train --space darts --recipe supernet``
Cost: 50 epochs of 273 steps.
Expected: parameters that rank architectures without training them; the accuracy told is the mean
of uniformly drawn architectures, another in every batch of the examples held out.

Thesis 5.3.2: partial channels, K = 2; 70 % of the training images, the others choose the ensemble;
SGD with cosine rate from 0.1 to 0, momentum 0.9, weight decay 3e-4, batch 128, 50 epochs; eight
cells and 16 channels (5.3.1). Augmentation and clipping are DARTS's. Two choices: cells of the
DARTS space are reduced as in NASI's search, by a pool before the cell, where PC-DARTS reduces on
its input edges; and operations that a step does not draw decay and go on by their momentum, as in
PyTorch until gradients were None by default.
"""

from nasjax.training.augment import Augmentation
from nasjax.training.recipe import Recipe

RECIPE = Recipe(
    data="tfds:cifar10",
    networks={
        "darts": {"channels": 16, "num_cells": 8, "partial_channels": 2},
        "nasbench201": {"channels": 16, "num_cells": 5, "partial_channels": 2},
    },
    epochs=50,
    batch_size=128,
    learning_rate=0.1,
    weight_decay=3e-4,
    clip_norm=5.0,
    augmentation=Augmentation(pad=4, is_flipped=True),
    image_size=32,
    held_out=0.3,
    is_path_drawn=True,
)
