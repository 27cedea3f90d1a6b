"""A small TensorFlow data set of JPEGs of many sizes, prepared in a folder as ImageNet would be."""

import numpy as np

NAME = "nasjax_test_pictures"
NUM_TRAIN, NUM_HELD, NUM_CLASSES, NUM_FILES = 250, 30, 3, 5


def prepare(folder) -> None:
    """Writes the data set, in which a class is a colour."""
    import tensorflow_datasets as tfds

    class Pictures(tfds.core.GeneratorBasedBuilder):
        name = NAME
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            label = tfds.features.ClassLabel(num_classes=NUM_CLASSES)
            image = tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg")
            features = tfds.features.FeaturesDict({"image": image, "label": label})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {
                "train": self._generate_examples(0, NUM_TRAIN),
                "validation": self._generate_examples(1, NUM_HELD),
            }

        def _generate_examples(self, seed, count):
            rng = np.random.default_rng(seed)
            for number in range(count):
                height, width = rng.integers(20, 50, 2)
                label = number % NUM_CLASSES
                picture = rng.integers(0, 80, (height, width, 3))
                picture[..., label] += 120
                yield number, {"image": picture.astype(np.uint8), "label": label}

    builder = Pictures(data_dir=folder)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=NUM_FILES))
