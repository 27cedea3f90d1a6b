"""A DARTS network of full size on CIFAR-10, as NASI and NESBS evaluate what they find.

Command: ``nasjax train GENOTYPE --space darts --recipe cifar10``
Cost: 600 epochs of 520 steps; 1.5 days on a GPU of 2018.
Expected: 2.5 to 3.0 % test error (DARTS_V2 2.76 +- 0.09, Liu et al., 2019; NASI-ADA 2.90 +- 0.13).

NASI, App. B.4: 20 cells, 36 channels, auxiliary head of weight 0.4 behind cell 13, SGD with cosine
rate from 0.025 to 0, momentum 0.9, weight decay 3e-4, batch 96, cutout, drop path growing to 0.2.
(Thesis 5.3.5 and HNAS, App. B.3, let it decay; in DARTS's code, which all follow, it grows.)
From that code, too: gradients clipped at 5, crops out of 4 padded pixels, mirror images.
"""

from nasjax.training.augment import Augmentation
from nasjax.training.recipe import Recipe

RECIPE = Recipe(
    data="tfds:cifar10",
    networks={
        "darts": {"channels": 36, "num_cells": 20, "reduction": "stride", "has_auxiliary": True}
    },
    epochs=600,
    batch_size=96,
    learning_rate=0.025,
    weight_decay=3e-4,
    clip_norm=5.0,
    auxiliary_weight=0.4,
    drop_path_rate=0.2,
    augmentation=Augmentation(pad=4, is_flipped=True, cutout=16),
    image_size=32,
)
