"""Exact kernels of infinitely wide NAS-Bench-201 networks, parallel skips and pools included.

Every node of a cell is a sum of independent Gaussian feature maps, its *sources*: the cell's input,
and the output of each convolution, whose weights are its own. Skip connections and average pools
are linear maps of pixels, so a node is ``sum_s L_s g_s`` over the sources, with covariance
``sum_s L_s K_s L_s'`` and tangent kernel ``sum_s L_s Theta_s L_s'``. Branches of a node that come
from the same source are therefore added before the product: two parallel skips give ``4 K``, where
kernels added branch by branch give ``2 K``.
"""

import functools
import graphlib
import math
from collections import Counter
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from nasjax.errors import InputError, unknown_name
from nasjax.networks.layers import check_images
from nasjax.ntk.infinite_kernel import InfiniteKernel
from nasjax.ntk.pixel_kernel import (
    Pairs,
    PixelKernel,
    add_kernels,
    conv_kernel,
    halve_kernel,
    image_kernel,
    image_pairs,
    pool_kernel,
    relu_kernel,
)
from nasjax.types import Images

Edges = Sequence[tuple[str, str, str]]
"""A cell: ``(source, target, operation)``, as in ``CellGraph.edges``."""

CONVOLUTIONS = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}
"""ReLU and a convolution: side of the filter."""

POOLS = {"skip_connect": 0, "avg_pool_3x3": 1}
"""Linear maps of pixels: how many average pools."""

METHODS = {
    "exact": "branches of a node that come from the same source are added first",
    "independent": "kernels of a node's branches are added, as if no two had a source in common",
}

_Terms = Counter[tuple[int | None, int]]
"""A node: how many paths lead to it from a source (an edge, or None for the cell's input) through a
number of pools."""


def cell_network_ntk(
    edges: Edges,
    x: Images,
    x2: Images | None = None,
    *,
    num_cells: int = 1,
    input_node: str = "0",
    output_node: str = "3",
    method: str = "exact",
    memory_budget_bytes: int = 2**32,
) -> InfiniteKernel:
    """Kernels of the network of one cell as its channels go to infinity, without normalisation.

    The network is ``NasBench201Network`` with ``LayerConfig("ntk", "none")``: a stem, three stages
    of ``num_cells`` cells, reduction blocks between them, ReLU, the mean over pixels, a classifier
    with a trained bias that starts at zero. The function may be jitted, with all but the images
    fixed, and differentiated with respect to the images.

    Args:
      edges: ``(source, target, operation)``, for example
        ``get_space("nasbench201").describe(genotype)[0].edges``; several between the same two nodes
        are added. Operations are those of the space.
      x: ``[batch, height, width, image_channels]``, float32 or float64, sides divisible by 4.
      x2: ``[batch2, height, width, image_channels]``, or None for the kernel of ``x`` with itself.
      num_cells: cells a stage.
      input_node: the node that is fed from outside.
      output_node: the node that leaves the cell; zero if no edge enters it.
      method: ``"exact"`` adds branches of a node that come from one source first;
        ``"independent"``, which adds the kernels of all branches, is there to be compared.
      memory_budget_bytes: most memory that the kernels may take, by a forecast from above.

    Returns:
      Both kernels. A cell whose output depends on no input leaves the bias alone: ``nngp`` 0 and
      ``ntk`` 1. Time and memory grow as pairs of images times ``(height * width)^2``.

    Raises:
      InputError: for images or a cell of another form, unknown names, and kernels that do not fit
        the budget.

    Example:
      >>> skip, x = ("0", "3", "skip_connect"), jnp.ones((1, 4, 4, 3))
      >>> one = cell_network_ntk([skip], x)
      >>> for method in METHODS:  # three cells: (2 + 2)^3 and (1 + 1)^3
      ...     two = cell_network_ntk([skip, skip], x, method=method)
      ...     print(method, round((two.nngp / one.nngp).item(), 3))
      exact 64.0
      independent 8.0

    References:
      Arora et al., `On Exact Computation with an Infinitely Wide Neural Net
      <https://arxiv.org/abs/1904.11955>`_, 2019, for chains of convolutions. The rule for branches
      follows from the independence of weights in Yang, `Tensor Programs II
      <https://arxiv.org/abs/2006.14548>`_, 2020.
    """
    where = "cell_network_ntk"
    if method not in METHODS:
        raise unknown_name(where, "method", method, METHODS)
    if num_cells < 0:
        raise InputError(f"{where}: `num_cells` must be >= 0, got {num_cells}.")
    edges = _checked_edges(where, edges)
    terms = _node_terms(where, edges, input_node, method)
    batches = _batches(where, x, x2)
    x, sizes = jnp.concatenate(batches), [len(batch) for batch in batches]
    pairs = image_pairs(*sizes)
    needed = cell_network_memory_bytes(edges, x.shape[1:3], *sizes, itemsize=x.dtype.itemsize)
    if needed > memory_budget_bytes:
        raise InputError(
            f"{where}: `memory_budget_bytes` must be at least {needed} ({needed / 2**30:.1f} GiB) "
            f"for {len(pairs.first)} pairs of {x.shape[1]} x {x.shape[2]} images, got "
            f"{memory_budget_bytes}. Give fewer examples at a time, or smaller images."
        )

    def cell(kernel, _):
        return _cell_kernel(kernel, pairs, edges, terms, output_node), None

    kernel = conv_kernel(image_kernel(x, pairs), size=3)
    for stage in range(3):
        if stage > 0:
            kernel = _reduction_kernel(kernel, pairs)
        kernel, _ = lax.scan(cell, kernel, length=num_cells)
    kernel = relu_kernel(kernel, pairs)
    gradient = kernel.ntk.mean((1, 2, 3, 4))
    nngp = kernel.nngp.mean((1, 2, 3, 4))[-len(gradient) :]
    bias = 1.0
    return InfiniteKernel(nngp[pairs.index], (nngp + gradient + bias)[pairs.index])


def cell_network_memory_bytes(
    edges: Edges,
    image_shape: tuple[int, int],
    num_examples: int,
    num_others: int | None = None,
    *,
    itemsize: int = 4,
) -> int:
    """A forecast from above of the memory that a jitted ``cell_network_ntk`` takes.

    Args:
      edges: as there.
      image_shape: height and width.
      num_examples: ``batch``.
      num_others: ``batch2``, or None for the kernel of ``x`` with itself.
      itemsize: bytes a number, 4 for float32.

    Returns:
      Bytes: the kernels of the first stage that are held at a time, as measured on CPU.
    """
    branches = {(source, operation) for source, _, operation in edges}
    num_convolutions = sum(operation in CONVOLUTIONS for _, operation in branches)
    num_pools = sum(POOLS.get(operation, 0) for _, _, operation in edges)
    if num_others is None:
        num_arrays = num_examples * (num_examples + 1)
    else:
        num_arrays = num_examples + num_others + 2 * num_examples * num_others
    num_kernels = 8 + 6 * num_convolutions + 2 * num_pools
    return num_kernels * num_arrays * math.prod(image_shape) ** 2 * itemsize


def _batches(where: str, x: Images, x2: Images | None) -> list[Images]:
    """``x`` and, if there is one, ``x2``, checked."""
    batches = [jnp.asarray(batch) for batch in (x, x2) if batch is not None]
    x = batches[0]
    for name, images in zip(("x", "x2"), batches, strict=False):
        check_images(f"{where} (`{name}`)", images, divisor=4)
        if not len(images) or images.dtype not in (jnp.float32, jnp.float64):
            raise InputError(
                f"{where}: `{name}` must hold an image of float32 or float64, got "
                f"{images.dtype}{list(images.shape)}. Convert it."
            )
        if images.shape[1:] != x.shape[1:] or images.dtype != x.dtype:
            raise InputError(
                f"{where}: `x2` must have images like those of `x`, got {images.dtype}"
                f"{list(images.shape)} for {x.dtype}{list(x.shape)}."
            )
    return batches


def _reduction_kernel(kernel: PixelKernel, pairs: Pairs) -> PixelKernel:
    """The residual block between stages; both branches end in weights of their own."""
    branch = conv_kernel(relu_kernel(kernel, pairs), size=3, stride=2)
    branch = conv_kernel(relu_kernel(branch, pairs), size=3)
    return add_kernels([branch, conv_kernel(halve_kernel(kernel), size=1)])


def _checked_edges(where: str, edges: Edges) -> Edges:
    if isinstance(edges, str) or not all(
        isinstance(edge, tuple | list) and len(edge) == 3 and all(isinstance(v, str) for v in edge)
        for edge in edges
    ):
        raise InputError(
            f"{where}: `edges` must be (source, target, operation) strings, got {edges!r:.80}. A "
            'cell in words becomes edges by get_space("nasbench201").describe(genotype)[0].edges.'
        )
    return tuple(map(tuple, edges))


def _node_terms(where: str, edges: Edges, input_node: str, method: str) -> dict[str, _Terms]:
    """The terms of every node; none for a node that is always zero."""
    known = {"none", *CONVOLUTIONS, *POOLS}
    parents: dict[str, list[int]] = {input_node: []}
    for number, (source, target, operation) in enumerate(edges):
        if operation not in known:
            raise unknown_name(where, "operation", operation, known)
        if target == input_node:
            raise InputError(
                f"{where}: `edges` must not enter the input node {input_node!r}, got "
                f"{edges[number]}. Name another `input_node`."
            )
        parents.setdefault(source, [])
        parents.setdefault(target, []).append(number)
    graph = {node: [edges[number][0] for number in numbers] for node, numbers in parents.items()}
    try:
        order = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        raise InputError(
            f"{where}: `edges` must have no cycle, got {' -> '.join(error.args[1])}."
        ) from error
    terms: dict[str, _Terms] = {node: Counter() for node in order}
    terms[input_node][None, 0] = 1
    for node in order:
        for number in parents[node]:
            source, _, operation = edges[number]
            if operation == "none" or not terms[source]:
                continue
            if operation in CONVOLUTIONS or method == "independent":
                terms[node][number, 0] += 1
                continue
            for (origin, num_pools), count in terms[source].items():
                terms[node][origin, num_pools + POOLS[operation]] += count
    return terms


def _cell_kernel(
    kernel: PixelKernel, pairs: Pairs, edges: Edges, terms: dict[str, _Terms], output_node: str
) -> PixelKernel:
    """From the kernel of a cell's input to that of its output, through the sources it needs."""

    @functools.cache
    def node_kernel(node):
        branches = []
        for edge in dict.fromkeys(edge for edge, _ in terms[node]):
            counts = {pools: n for (other, pools), n in terms[node].items() if other == edge}
            coefficients = [counts.get(pools, 0) for pools in range(max(counts) + 1)]
            source = kernel if edge is None else source_kernel(edges[edge][0], edges[edge][2])
            branches.append(pool_kernel(source, coefficients))
        return add_kernels(branches)

    @functools.cache
    def activated_kernel(node):
        return relu_kernel(node_kernel(node), pairs)

    @functools.cache
    def source_kernel(node, operation):
        if operation in CONVOLUTIONS:
            return conv_kernel(activated_kernel(node), size=CONVOLUTIONS[operation])
        return pool_kernel(node_kernel(node), [0] * POOLS[operation] + [1])

    if not terms.get(output_node):
        return jax.tree.map(jnp.zeros_like, kernel)
    return node_kernel(output_node)
