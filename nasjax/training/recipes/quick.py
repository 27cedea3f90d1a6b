"""Something learned in minutes on two CPU cores: a small network on small grey images.

Command: ``nasjax train 6111``
Cost and result: README, "Train". Other data, such as ``--data digits``, are as quick.
"""

from nasjax.training.augment import Augmentation
from nasjax.training.recipe import Recipe

_STAGED = {"channels": 8, "num_cells": 1}

RECIPE = Recipe(
    data="fashion_mnist",
    networks={
        "nasbench201": _STAGED,
        "nasbench101": _STAGED,
        "nasbench1shot1_1": _STAGED,
        "nasbench1shot1_2": _STAGED,
        "nasbench1shot1_3": _STAGED,
        "mlp": {"width": 256, "initialization": "lecun"},
        "darts": {"channels": 8, "num_cells": 3, "reduction": "stride"},
    },
    epochs=4,
    batch_size=128,
    learning_rate=0.1,
    schedule_unit="step",
    is_nesterov=True,
    weight_decay=5e-4,
    clip_norm=5.0,
    augmentation=Augmentation(pad=2),
)
