"""Networks of the search spaces in the forms that metrics ask for."""

import dataclasses
from typing import Any

import numpy as np

from nasjax.metrics.statistics import ScoredNetwork
from nasjax.networks import LayerConfig, static_network
from nasjax.ntk import BATCH_AXIS
from nasjax.types import PyTree

_CONFIGS = ("config", "cell_config", "reduction_config")


def scored_network(
    space: str, genotype: np.ndarray, params: PyTree, **network: Any
) -> ScoredNetwork:
    """The network of one genotype, for ``score_network``.

    Args:
      space: a key of ``networks.NETWORKS``.
      genotype: of the space.
      params: of ``static_network(space, genotype, **network)``, or more than that.
      **network: attributes of the network: ``num_classes``, ``channels``, ``num_cells``,
        ``config``, in ``nasbench201`` also ``cell_config`` and ``reduction_config``.

    Returns:
      All forms that the space has. Without normalisation means without its scales and offsets too.

    Raises:
      InputError: as ``static_network``.
    """

    def apply_fn(**changes):
        module = static_network(space, genotype, **{**network, **changes})
        return lambda params, x: module.apply({"params": params}, x)

    if space == "mlp":
        return ScoredNetwork(apply_fn(), params)
    configs = {"config": LayerConfig()} | {
        name: network[name] for name in _CONFIGS if network.get(name) is not None
    }

    def changed(**changes):
        return {name: dataclasses.replace(config, **changes) for name, config in configs.items()}

    linear = changed(normalization="none")
    forms = ScoredNetwork(apply_fn(), params, linear_apply_fn=apply_fn(**linear))
    if any(config.normalization != "none" for config in configs.values()):
        forms = forms._replace(mapped_apply_fn=apply_fn(**changed(batch_axis=BATCH_AXIS)))
    if space == "nasbench201":
        partly = {**linear, "reduction_config": configs.get("reduction_config", configs["config"])}
        forms = forms._replace(partly_linear_apply_fn=apply_fn(**partly))
    return forms
