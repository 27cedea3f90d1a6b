"""Search spaces: what an architecture is, how to draw, change, compare, read and write one."""

from nasjax.errors import unknown_name
from nasjax.spaces.base import CellGraph, Space
from nasjax.spaces.darts import DARTS
from nasjax.spaces.mlp import MLP, mlp_space, split_genotype
from nasjax.spaces.nasbench1shot1 import NASBENCH1SHOT1
from nasjax.spaces.nasbench101 import NASBENCH101
from nasjax.spaces.nasbench201 import NASBENCH201

SPACES: dict[str, Space] = {
    space.name: space for space in (DARTS, MLP, NASBENCH101, *NASBENCH1SHOT1, NASBENCH201)
}
"""Every space by name."""

__all__ = ["SPACES", "CellGraph", "Space", "get_space", "mlp_space", "space_of", "split_genotype"]


def get_space(name: str) -> Space:
    """The space of that name.

    Args:
      name: a key of ``SPACES``.

    Returns:
      The space.

    Raises:
      InputError: if there is none, with the nearest name.

    Example:
      >>> get_space("nasbench201").size
      15625
    """
    if name not in SPACES:
        raise unknown_name("get_space", "space", name, SPACES)
    return SPACES[name]


def space_of(name: str, architecture: str) -> Space:
    """The space of that name that an architecture belongs to: ``mlp`` has one for each depth.

    Args:
      name: a key of ``SPACES``.
      architecture: in the space's notation; of ``mlp``, its hidden layers tell the depth.

    Returns:
      The space.

    Raises:
      InputError: if there is none of that name.

    Example:
      >>> space_of("mlp", "relu|tanh+skip|swish").genotype_shape
      (5,)
    """
    if name != "mlp":
        return get_space(name)
    return mlp_space(max(3, architecture.count("|") + 2))
