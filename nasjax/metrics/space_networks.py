"""Networks of the search spaces in the forms that metrics ask for."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax import Array

from nasjax.metrics.statistics import ScoredNetwork
from nasjax.networks import LayerConfig, init_params, static_network, whole_one_shot_network
from nasjax.ntk import BATCH_AXIS
from nasjax.spaces import Space
from nasjax.types import Key, PyTree, Weights

_CONFIGS = ("config", "cell_config", "reduction_config")
SHARED = frozenset(("darts", "mlp", "nasbench201"))
"""Spaces whose static networks have parameters of the one-shot network, under the same names."""


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

    return _forms(space, params, apply_fn, network)


def scored_one_shot(space: str, weights: Weights, params: PyTree, **network: Any) -> ScoredNetwork:
    """The same of the one-shot network at one-hot weights, which may be traced.

    Args:
      space: a key of ``networks.NETWORKS``.
      weights: ``Space.one_hot`` of a genotype.
      params: of the one-shot network.
      **network: as for ``scored_network``.

    Returns:
      All forms. Operations that are not drawn have no gradient.
    """

    def apply_fn(**changes):
        module = whole_one_shot_network(space, **{**network, **changes})
        return lambda params, x: module.apply({"params": params}, weights, x)

    return _forms(space, params, apply_fn, network)


def shared_params(space: Space, key: Key, x: Array, **network: Any) -> PyTree:
    """Parameters of all operations of a space, for every network of it.

    Args:
      space: the space.
      key: drawn from once.
      x: ``[batch, ...]``, of which the shape matters.
      **network: as for ``scored_network``.

    Returns:
      The tree of the one-shot network, of which static networks have a part.
    """
    one_shot = whole_one_shot_network(space.name, **network)
    weights = space.one_hot(space.sample(jax.random.key(0)))
    return init_params(key, one_shot, weights, x)


def _forms(space: str, params, apply_fn, network) -> ScoredNetwork:
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
