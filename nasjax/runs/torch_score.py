"""Scores of one NAS-Bench-201 network with weights and a batch that PyTorch code has saved."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nasjax.errors import InputError
from nasjax.metrics import Scores, score_network, scored_network
from nasjax.networks import LayerConfig
from nasjax.networks.torch_weights import nasbench201_torch_params
from nasjax.spaces import nasbench201

_STEM, _CLASSIFIER = "stem.net.0.weight", "top.classifier.weight"
_DEFAULT_CELLS = 5


def score_torch_weights(
    weights: str | Path,
    batch: str | Path,
    metrics: Sequence[str],
    *,
    arch: str | None = None,
    batch_size: int | None = None,
    cells: int | None = None,
    coupling: str = "mapped",
    num_parts: int = 2,
    dtype: str | None = None,
) -> Scores:
    """Scores a network that was initialised elsewhere.

    The network is that of the code of Abdelfattah et al. (2021): batch normalisation with scales
    and offsets, and biases in the convolutions of cells. Channels and classes are read off the
    weights.

    Args:
      weights: an ``.npz`` file with PyTorch's names and layout (``nasbench201_torch_params``), and
        the architecture as ``arch`` where it is not given.
      batch: an ``.npz`` file with images ``x``, ``[batch, channels, height, width]``, and labels
        ``y``, ``[batch]``.
      metrics: keys of ``METRICS``.
      arch: the cell; must be that of the weights, if these name one.
      batch_size: how many examples to take, the first ones; None takes all.
      cells: a stage; None tells it from the weights, or takes 5 where no cell has weights.
      coupling: as for ``score_network``.
      num_parts: as for ``score_network``.
      dtype: as for ``score_network``.

    Returns:
      Values, flags and warnings.

    Raises:
      InputError: if a file cannot be read, or its content does not fit.
    """
    arrays = _load("--torch-weights", Path(weights))
    genotype = _genotype(arrays, arch)
    for name in (_STEM, _CLASSIFIER):
        if name not in arrays:
            raise InputError(f"--torch-weights {weights}: must hold {name}, got none.")
    if cells is None:
        cells = _num_cells(arrays)
    params = nasbench201_torch_params(arrays, genotype, num_cells=cells)
    num_classes, (channels, num_inputs) = len(arrays[_CLASSIFIER]), arrays[_STEM].shape[:2]
    x, y = _batch(Path(batch), batch_size, num_inputs, num_classes)
    network = scored_network(
        "nasbench201",
        genotype,
        params,
        num_classes=num_classes,
        channels=channels,
        num_cells=cells,
        config=LayerConfig("lecun", "batch", use_affine=True),
        cell_config=LayerConfig("lecun", "batch", use_bias=True),
    )
    return score_network(
        network, x, y, metrics, coupling=coupling, num_parts=num_parts, dtype=dtype
    )


def _load(option: str, path: Path) -> dict[str, np.ndarray]:
    wanted = f"{option} {path}: must be an .npz file of arrays"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise InputError(f"{wanted}, got {error.strerror or error}. Give another.") from error
    except (AttributeError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{wanted}, got another or a damaged one. Give another.") from error


def _genotype(arrays: dict[str, np.ndarray], arch: str | None) -> np.ndarray:
    named = str(arrays["arch"]) if "arch" in arrays else None
    if arch is None and named is None:
        raise InputError("--arch: must name the cell, as the weights do not. Give its string.")
    genotype = nasbench201.from_string(named if arch is None else arch)
    if named is not None and not np.array_equal(nasbench201.from_string(named), genotype):
        raise InputError(
            f"--arch: must be the cell of the weights, {named}, got {arch}. Leave it out."
        )
    return genotype


def _num_cells(arrays: dict[str, np.ndarray]) -> int:
    places = [
        int(found[1])
        for name in arrays
        if (found := re.match(r"stack_cell\d\.(\d+)\.options", name))
    ]
    return 1 + max(places) if places else _DEFAULT_CELLS


def _batch(
    path: Path, batch_size: int | None, num_inputs: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    arrays = _load("--batch", path)
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        raise InputError(
            f"--batch {path}: must hold images x and labels y, got no {' and no '.join(missing)}."
        )
    x, y = arrays["x"], arrays["y"]
    if x.ndim != 4 or x.shape[1] != num_inputs or not np.issubdtype(x.dtype, np.floating):
        raise InputError(
            f"--batch {path}: x must be floats [batch, {num_inputs}, height, width], as PyTorch "
            f"has them, got {x.dtype}{list(x.shape)}."
        )
    if x.shape[2] % 4 or x.shape[3] % 4:
        raise InputError(
            f"--batch {path}: height and width of x must be multiples of 4, got {list(x.shape)}."
        )
    if y.shape != x.shape[:1] or not np.issubdtype(y.dtype, np.integer):
        raise InputError(
            f"--batch {path}: y must be {len(x)} integers, one an image, got "
            f"{y.dtype}{list(y.shape)}."
        )
    if len(y) and not 0 <= y.min() <= y.max() < num_classes:
        raise InputError(
            f"--batch {path}: y must be 0 to {num_classes - 1}, the classes of the weights, got "
            f"{y.min()} to {y.max()}."
        )
    if batch_size is not None:
        if batch_size > len(x):
            raise InputError(
                f"--batch-size: must be at most the {len(x)} images of {path}, got {batch_size}."
            )
        x, y = x[:batch_size], y[:batch_size]
    return x.transpose(0, 2, 3, 1), y.astype(np.int32)
