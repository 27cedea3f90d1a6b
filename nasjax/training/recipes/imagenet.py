"""A DARTS network of mobile size on ImageNet, as NASI, HNAS and NESBS evaluate what they find.

Command: ``nasjax train GENOTYPE --space darts --recipe imagenet --compute-dtype bfloat16``
Cost: 250 epochs of 1,251 steps; some days on eight GPUs of 2018.
Expected: 24 to 27 % top-1 error (NASI-FIX 24.3, NASI-ADA 25.0, HNAS 24.5, DARTS_V2 26.7).

NASI, App. B.4: 14 cells, 46 channels (44 in NESBS, 48 in DARTS; under 600 million multiply-adds),
auxiliary head of weight 0.4, label smoothing (0.1), batch 1024, rate warmed up to 0.5 in 5 epochs,
then linearly to zero, momentum 0.9, weight decay 3e-5. As in the code of DARTS and P-DARTS,
gradients are clipped at 5; random crops of 8 to 100 % of the area, mirrored, with colours jittered;
tested with the middle 224 of 256 pixels; and standardised by the means that are usual for ImageNet.
"""

from nasjax.training.augment import Augmentation
from nasjax.training.jitter import Jitter
from nasjax.training.recipe import Recipe

RECIPE = Recipe(
    data="tfds:imagenet2012",
    networks={
        "darts": {
            "channels": 46,
            "num_cells": 14,
            "reduction": "stride",
            "stem": "imagenet",
            "has_auxiliary": True,
        }
    },
    epochs=250,
    batch_size=1024,
    learning_rate=0.5,
    schedule="linear",
    warmup_epochs=5,
    weight_decay=3e-5,
    clip_norm=5.0,
    label_smoothing=0.1,
    auxiliary_weight=0.4,
    augmentation=Augmentation(
        min_area=0.08, is_flipped=True, jitter=Jitter(0.4, 0.4, 0.4, hue=0.2)
    ),
    moments=((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    image_size=224,
)
