"""A small NAS-Bench-201 network and its batch as PyTorch code saves them."""

import numpy as np

CELL = "|nor_conv_1x1~0|+|none~0|none~1|+|skip_connect~0|skip_connect~1|none~2|"
_CHANNELS, _CLASSES = 2, 3


def write_files(folder, *, weights=None, batch=None):
    """Writes ``weights.npz`` and ``batch.npz``; ``weights`` and ``batch`` change or drop arrays.

    Returns:
      Their paths.
    """
    rng = np.random.default_rng(0)
    arrays = {"arch": np.array(CELL)}

    def conv(name, features, channels, size, bias=False):
        shape = (features, channels, size, size)
        arrays[f"{name}.weight"] = rng.normal(size=shape).astype(np.float32) / size
        if bias:
            arrays[f"{name}.bias"] = rng.normal(size=features).astype(np.float32)

    def norm(name, features):
        arrays[f"{name}.weight"] = 1 + 0.1 * rng.normal(size=features).astype(np.float32)
        arrays[f"{name}.bias"] = 0.1 * rng.normal(size=features).astype(np.float32)
        arrays[f"{name}.running_mean"] = np.zeros(features, np.float32)

    widths = [_CHANNELS, 2 * _CHANNELS, 4 * _CHANNELS]
    conv("stem.net.0", widths[0], 3, 3)
    norm("stem.net.1", widths[0])
    for stage, width in enumerate(widths):
        conv(f"stack_cell{stage + 1}.0.options.3.op.1", width, width, 1, bias=True)
        if stage:
            block = f"reduction{stage}"
            conv(f"{block}.residual.1", width, width // 2, 1)
            for name, channels in (("conv_a", width // 2), ("conv_b", width)):
                conv(f"{block}.{name}.op.1", width, channels, 3)
                norm(f"{block}.{name}.op.2", width)
    norm("top.lastact.0", widths[-1])
    arrays["top.classifier.weight"] = rng.normal(size=(_CLASSES, widths[-1])).astype(np.float32)
    arrays["top.classifier.bias"] = np.zeros(_CLASSES, np.float32)
    examples = {
        "x": rng.normal(size=(4, 3, 8, 8)).astype(np.float32),
        "y": np.array([0, 1, 2, 0]),
    }
    paths = folder / "weights.npz", folder / "batch.npz"
    for path, content, change in zip(paths, (arrays, examples), (weights, batch), strict=True):
        content = content | (change or {})
        np.savez(path, **{name: array for name, array in content.items() if array is not None})
    return paths
