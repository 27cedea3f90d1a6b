"""Flax networks of the search spaces: one-shot networks and the network of one genotype."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import numpy as np

from nasjax.errors import InputError, unknown_name
from nasjax.networks.darts import DartsNetwork, DartsOneShot
from nasjax.networks.initial import init_params
from nasjax.networks.layers import INITIALIZATIONS, NORMALIZATIONS, LayerConfig
from nasjax.networks.mlp import MLP_INITIALIZATIONS, MlpNetwork, MlpOneShot
from nasjax.networks.nasbench1shot1 import NasBench1Shot1OneShot
from nasjax.networks.nasbench101 import NasBench101Network, nasbench1shot1_network
from nasjax.networks.nasbench201 import NasBench201Network, NasBench201OneShot
from nasjax.spaces.nasbench1shot1 import NUM_PARENTS


class NetworkFamily(NamedTuple):
    """The networks of one search space.

    Attributes:
      one_shot: makes the one-shot network from its attributes; None where there is none.
      static: makes the network of one genotype.
    """

    one_shot: Callable[..., nn.Module] | None
    static: Callable[..., nn.Module]


NETWORKS = {
    "darts": NetworkFamily(DartsOneShot, DartsNetwork),
    "mlp": NetworkFamily(MlpOneShot, MlpNetwork),
    "nasbench101": NetworkFamily(None, NasBench101Network),
    **{
        name: NetworkFamily(
            partial(NasBench1Shot1OneShot, name), partial(nasbench1shot1_network, name)
        )
        for name in NUM_PARENTS
    },
    "nasbench201": NetworkFamily(NasBench201OneShot, NasBench201Network),
}


def _family(where: str, space: str) -> NetworkFamily:
    if space not in NETWORKS:
        raise unknown_name(where, "space", space, NETWORKS)
    return NETWORKS[space]


def one_shot_network(space: str, **kwargs) -> nn.Module:
    """The one-shot network of a space.

    Args:
      space: a key of ``NETWORKS``.
      **kwargs: attributes of the module: ``num_classes``, ``channels``, ``num_cells``, ``config``,
        ``mixture``; of ``mlp``: ``num_outputs``, ``width``, ``initialization``.

    Returns:
      A module; ``module.apply({"params": params}, weights, x) -> [batch, classes]``.

    Raises:
      InputError: if the space is unknown or has no one-shot network.
    """
    make = _family("one_shot_network", space).one_shot
    if make is None:
        raise InputError(
            f"one_shot_network: `space` must have a one-shot network, got {space!r}. Its parts "
            f"{', '.join(NUM_PARENTS)} have."
        )
    return make(**kwargs)


def whole_one_shot_network(space: str, **kwargs) -> nn.Module:
    """The one-shot network that takes whole genotypes, as ``Space.one_hot`` writes them.

    A whole genotype of DARTS has two edges a node, where a search draws one; in other spaces it is
    ``one_shot_network``, whose arguments and errors these are.
    """
    edges = {"num_edges": 2} if space == "darts" else {}
    return one_shot_network(space, **kwargs, **edges)


def static_network(space: str, genotype: np.ndarray, **kwargs) -> nn.Module:
    """The network of one genotype.

    Args:
      space: a key of ``NETWORKS``.
      genotype: integers of the space's ``genotype_shape``.
      **kwargs: attributes of the module: ``num_classes``, ``channels``, ``num_cells``, ``config``;
        of ``mlp``: ``num_outputs``, ``width``, ``initialization``.

    Returns:
      A module; ``module.apply({"params": params}, x) -> [batch, classes]``.

    Raises:
      InputError: if the space is unknown or the genotype is not an array of integers.
    """
    genotype = np.asarray(genotype)
    if not np.issubdtype(genotype.dtype, np.integer):
        raise InputError(
            f"static_network: `genotype` must be an integer array, got {genotype.dtype}."
        )
    return _family("static_network", space).static(genotype=_nested_tuple(genotype), **kwargs)


def _nested_tuple(array: np.ndarray):
    return tuple(_nested_tuple(row) for row in array) if array.ndim else int(array)


__all__ = [
    "INITIALIZATIONS",
    "MLP_INITIALIZATIONS",
    "NETWORKS",
    "NORMALIZATIONS",
    "DartsNetwork",
    "DartsOneShot",
    "LayerConfig",
    "MlpNetwork",
    "MlpOneShot",
    "NasBench1Shot1OneShot",
    "NasBench101Network",
    "NasBench201Network",
    "NasBench201OneShot",
    "NetworkFamily",
    "init_params",
    "one_shot_network",
    "static_network",
    "whole_one_shot_network",
]
