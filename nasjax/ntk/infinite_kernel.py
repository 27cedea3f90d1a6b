"""What is known of a network of infinite width at initialisation."""

from typing import NamedTuple

from jax import Array
from jaxtyping import Float


class InfiniteKernel(NamedTuple):
    """Kernels of an infinitely wide network, the same for each of its outputs.

    Attributes:
      nngp: ``[batch, batch2]``, the covariance of an output.
      ntk: ``[batch, batch2]``, its neural tangent kernel in the NTK parameterisation, in output^2.
        Any two outputs have 0 between them: the kernel of ``k`` outputs is this matrix times the
        identity of size ``k``, and its trace is ``k`` times as large.
    """

    nngp: Float[Array, "batch batch2"]
    ntk: Float[Array, "batch batch2"]
