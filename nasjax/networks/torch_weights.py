"""Weights of NAS-Bench-201 networks as PyTorch code saves them."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from nasjax.errors import InputError
from nasjax.spaces.base import host_genotype
from nasjax.spaces.nasbench201 import BOUNDS, EDGES, OPERATIONS
from nasjax.types import PyTree

_TORCH_OPERATIONS = {"nor_conv_3x3": 2, "nor_conv_1x1": 3}
"""Places of the operations with weights among the five of an edge."""


def nasbench201_torch_params(
    weights: Mapping[str, np.ndarray], genotype: np.ndarray, *, num_cells: int = 5
) -> PyTree:
    """Parameters of ``NasBench201Network`` from PyTorch's names and layout.

    The names are those of the networks that zero-cost metrics are published for: ``stem.net``,
    ``stack_cell1.0.options.7.op.1`` (edge 1, operation 2), ``reduction1.conv_a.op.1``,
    ``top.lastact.0``, ``top.classifier``. Running statistics are not read.

    Args:
      weights: arrays by name; kernels are ``[out, in, height, width]`` or ``[out, in]``.
      genotype: ``[6]``; only the operations that it uses are read.
      num_cells: cells a stage.

    Returns:
      A tree as ``init_params`` gives it, float32 or float64 as the weights are. Biases of
      convolutions are taken where they are there; the network needs ``LayerConfig(use_bias=True)``
      to use them.

    Raises:
      InputError: if a name is missing.

    References:
      Abdelfattah et al., `Zero-Cost Proxies for Lightweight NAS
      <https://arxiv.org/abs/2101.08134>`_, 2021.
    """
    genotype = host_genotype("nasbench201_torch_params", genotype, BOUNDS)

    def read(name):
        if name not in weights:
            raise InputError(
                f"nasbench201_torch_params: `weights` must hold {name!r}, and do not. Are they of "
                f"this architecture, with {num_cells} cells a stage?"
            )
        return jnp.asarray(weights[name])

    def layer(name):
        kernel = read(f"{name}.weight")
        kernel = kernel.transpose(2, 3, 1, 0) if kernel.ndim == 4 else kernel.T
        bias = f"{name}.bias"
        return {"kernel": kernel, "bias": read(bias)} if bias in weights else {"kernel": kernel}

    def norm(name):
        return {"scale": read(f"{name}.weight"), "bias": read(f"{name}.bias")}

    params = {
        "stem_conv": layer("stem.net.0"),
        "stem_norm": norm("stem.net.1"),
        "last_norm": norm("top.lastact.0"),
        "classifier": layer("top.classifier"),
    }
    for stage in range(1, 3):
        block = f"reduction{stage}"
        params[f"reduction_{stage}"] = {
            "shortcut": layer(f"{block}.residual.1"),
            **{
                name: {"conv": layer(f"{block}.{name}.op.1"), "norm": norm(f"{block}.{name}.op.2")}
                for name in ("conv_a", "conv_b")
            },
        }
    for stage in range(3):
        for cell in range(num_cells):
            edges = {}
            for edge in range(len(EDGES)):
                operation = OPERATIONS[genotype[edge]]
                if operation in _TORCH_OPERATIONS:
                    place = 5 * edge + _TORCH_OPERATIONS[operation]
                    conv = layer(f"stack_cell{stage + 1}.{cell}.options.{place}.op.1")
                    edges[f"edge_{edge}"] = {operation: {"conv": conv}}
            if edges:
                params[f"stage_{stage}_cell_{cell}"] = edges
    return params
