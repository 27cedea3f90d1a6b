"""A DARTS network of full size on Tiny-ImageNet-200, as the study of cell topology trains it.

Command: ``nasjax train GENOTYPE --space darts --recipe tiny_imagenet --data npz:tiny.npz``, with
arrays ``x``, ``y``, ``x_test``, ``y_test`` of 64x64 pixels; the set is not in TensorFlow Datasets.
Cost: 300 epochs of 1,250 steps.
Expected: 30 to 33 % error on the validation images (thesis, table 4.1).

Thesis, App. A.1: 20 cells, a first convolution of stride 2, SGD with cosine rate from 0.025 to 0,
momentum 0.9, weight decay 3e-4, batch 80, crops out of 4 padded pixels, mirror images; cutout 16,
auxiliary weight 0.4 and drop path growing to 0.2 as on CIFAR.
"""

import dataclasses

from nasjax.training.recipes.cifar10 import RECIPE as CIFAR10

RECIPE = dataclasses.replace(
    CIFAR10,
    data="npz:tiny.npz",
    networks={"darts": {**CIFAR10.networks["darts"], "stem": "tiny"}},
    epochs=300,
    batch_size=80,
    image_size=64,
)
