"""Small tasks of training that several tests share."""

import dataclasses

import numpy as np

from nasjax.networks import DartsNetwork, LayerConfig, NasBench201Network, NasBench201OneShot
from nasjax.spaces import get_space
from nasjax.training import Augmentation, Recipe, Task

CONFIG = LayerConfig("pytorch", use_affine=True, running_rate=0.1)
CELL = (3, 1, 2, 4, 0, 3)
EDGES = ((3, 0), (2, 1)), ((2, 0), (1, 2)), ((2, 1), (2, 0)), ((0, 1), (2, 2))
AUGMENTATION = Augmentation(pad=2, is_flipped=True, cutout=3)
RECIPE = Recipe(
    data="random",
    networks={},
    epochs=4,
    batch_size=8,
    learning_rate=0.1,
    weight_decay=1e-2,
    clip_norm=1.0,
    augmentation=AUGMENTATION,
)


def nasbench201_task(**changes) -> Task:
    """A cell of NAS-Bench-201, on images of 8x8."""
    network = NasBench201Network(
        num_classes=3, channels=4, num_cells=1, config=CONFIG, genotype=CELL
    )
    return _task(network, changes)


def darts_task(**changes) -> Task:
    """A DARTS network with auxiliary head and drop path, on images of 32x32."""
    network = DartsNetwork(
        *((EDGES, EDGES), 3, 4, 3, CONFIG), reduction="stride", has_auxiliary=True
    )
    own = {"drop_path_rate": 0.5, "auxiliary_weight": 0.4, "label_smoothing": 0.1}
    return _task(network, own | changes, image_shape=(32, 32, 2))


def supernet_task(**changes) -> Task:
    """A one-shot network of NAS-Bench-201 with partial channels."""
    space = get_space("nasbench201")
    network = NasBench201OneShot(3, 4, 1, LayerConfig("pytorch"), partial_channels=2)
    own = {"draw_weights": lambda key: space.one_hot(space.sample(key))}
    return _task(network, own | changes)


def _task(network, changes, image_shape=(8, 8, 2)) -> Task:
    of_recipe = {field.name for field in dataclasses.fields(Recipe)}
    recipe = {name: value for name, value in changes.items() if name in of_recipe}
    others = {name: value for name, value in changes.items() if name not in of_recipe}
    task = Task(
        network=network,
        recipe=dataclasses.replace(RECIPE, **recipe),
        image_shape=image_shape,
        mean=(100.0, 120.0),
        std=(60.0, 50.0),
        steps_per_epoch=3,
        seed=7,
    )
    return task._replace(**others)


def examples(task: Task, count: int, seed: int = 0):
    """Images as bytes, and labels."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, *task.image_shape), np.uint8)
    return images, rng.integers(0, task.network.num_classes, count).astype(np.int32)
