"""Fully connected networks: an activation in every hidden layer, and skip connections.

A genotype of depth ``L`` is ``[2 L - 3]`` int32: the activations of the layers ``1 ... L - 1`` as
positions in ``ACTIVATION_NAMES``, then ``alpha_1 ... alpha_{L-2}``, where ``alpha_{l-1}`` is 1 if
layer ``l`` adds its input to its output.

References:
  Zhu et al., `Generalization properties of NAS under activation and skip connection search
  <https://arxiv.org/abs/2209.07238>`_, 2022, eq. (1) and (2).
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int32

from nasjax.errors import InputError
from nasjax.spaces.base import (
    CellGraph,
    Space,
    change_one_number,
    check_text,
    excerpt,
    host_genotype,
    host_logits,
    operation_index,
)
from nasjax.types import Key, Logits

ACTIVATION_NAMES = ("relu", "leaky_relu", "sigmoid", "tanh", "swish")
"""In the paper's order; ``sigmoid`` is centred, ``1 / (1 + exp(-x)) - 1/2``."""

SKIP = "skip"
"""Label of a skip connection, and its mark in the notation."""

DEFAULT_DEPTH = 10
"""The largest depth that the paper's theorems are stated for."""

_LISTED_SIZE = 100_000
"""Spaces that are larger have no list of all genotypes."""


def split_genotype(genotype: Int32[Array, " decisions"]) -> tuple[Array, Array]:
    """The activations ``[depth - 1]`` and the skips ``[depth - 2]`` of a genotype.

    Works on traced genotypes and on numpy arrays alike.
    """
    num_hidden = (len(genotype) + 1) // 2
    return genotype[:num_hidden], genotype[num_hidden:]


def genotype_bounds(depth: int) -> np.ndarray:
    """How many values each number of a genotype may take, ``[2 depth - 3]``."""
    return np.array([len(ACTIVATION_NAMES)] * (depth - 1) + [2] * (depth - 2))


@functools.cache
def mlp_space(depth: int) -> Space:
    """The space of networks with that many layers of weights.

    Args:
      depth: ``L``, at least 3. The output layer counts and has no activation.

    Returns:
      The space, called ``mlp`` at any depth. Every architecture is connected and its own
      representative. ``all_genotypes`` lists the spaces up to depth 6.

    Raises:
      InputError: if ``depth`` is below 3.

    Example:
      >>> mlp_space(3).from_string("relu|tanh+skip")
      array([0, 3, 1], dtype=int32)
    """
    if depth < 3:
        raise InputError(f"mlp_space: `depth` must be at least 3, got {depth}.")
    bounds = genotype_bounds(depth)
    size = len(ACTIVATION_NAMES) ** (depth - 1) * 2 ** (depth - 2)
    decisions = {
        "activations": np.broadcast_to(True, (depth - 1, len(ACTIVATION_NAMES))),
        "skips": np.broadcast_to(True, (depth - 2, 2)),
    }

    def checked(where, genotype):
        return host_genotype(f"mlp.{where}", genotype, bounds)

    def sample(key: Key) -> Int32[Array, " decisions"]:
        """Uniform: every activation and skip independent."""
        return jax.random.randint(key, bounds.shape, 0, bounds, jnp.int32)

    def mutate(key: Key, genotype: Int32[Array, " decisions"]) -> Int32[Array, " decisions"]:
        """Another activation, or a skip more or less: uniform over all such neighbours."""
        return change_one_number(key, genotype, bounds)

    def one_hot(genotype: Int32[Array, " decisions"]) -> dict[str, Float[Array, "layers choices"]]:
        """``activations`` ``[depth - 1, 5]`` and ``skips`` ``[depth - 2, 2]``, float32."""
        activations, skips = split_genotype(jnp.asarray(genotype))
        return {
            "activations": jax.nn.one_hot(activations, len(ACTIVATION_NAMES), dtype=jnp.float32),
            "skips": jax.nn.one_hot(skips, 2, dtype=jnp.float32),
        }

    def select(logits: Logits) -> Int32[np.ndarray, " decisions"]:
        """The most probable architecture; among equals the lowest index, so no skip."""
        logits = host_logits("mlp.select", logits, decisions)
        chosen = [logits[name].argmax(axis=-1) for name in ("activations", "skips")]
        return np.concatenate(chosen).astype(np.int32)

    def canonical(genotype: Int32[Array, " decisions"]) -> Int32[np.ndarray, " decisions"]:
        """The genotype itself: no two compute the same function."""
        return checked("canonical", genotype)

    def is_connected(genotype: Int32[Array, " decisions"]) -> bool:
        """Always True: every layer reads the one before."""
        checked("is_connected", genotype)
        return True

    def to_string(genotype: Int32[Array, " decisions"]) -> str:
        """The hidden layers in order, ``relu|tanh+skip|swish``."""
        activations, skips = split_genotype(checked("to_string", genotype).tolist())
        layers = zip(activations, [0, *skips], strict=True)
        return "|".join(ACTIVATION_NAMES[name] + f"+{SKIP}" * skip for name, skip in layers)

    def from_string(text: str) -> Int32[np.ndarray, " decisions"]:
        """Reads what ``to_string`` writes."""
        return _parse("mlp.from_string", text, depth)

    def all_genotypes() -> Int32[np.ndarray, "size decisions"] | None:
        """In lexicographic order, or None for more than 100,000."""
        if size > _LISTED_SIZE:
            return None
        return np.array(list(itertools.product(*map(range, bounds))), np.int32)

    def describe(genotype: Int32[Array, " decisions"]) -> list[CellGraph]:
        """One graph, ``mlp``; the edges of a layer are its activation and its skip."""
        activations, skips = split_genotype(checked("describe", genotype).tolist())
        nodes = ("x", *(str(layer) for layer in range(1, depth)), "out")
        edges = []
        for layer, (name, skip) in enumerate(zip(activations, [0, *skips], strict=True), 1):
            edges.append((nodes[layer - 1], nodes[layer], ACTIVATION_NAMES[name]))
            if skip:
                edges.append((nodes[layer - 1], nodes[layer], SKIP))
        edges.append((nodes[-2], nodes[-1], ""))
        return [CellGraph("mlp", nodes[:1], nodes, nodes[-1], tuple(edges))]

    return Space(
        name="mlp",
        genotype_shape=bounds.shape,
        operations=(*ACTIVATION_NAMES, SKIP),
        size=size,
        decisions=decisions,
        sample=sample,
        mutate=mutate,
        one_hot=one_hot,
        select=select,
        canonical=canonical,
        is_connected=is_connected,
        to_string=to_string,
        from_string=from_string,
        all_genotypes=all_genotypes,
        describe=describe,
    )


def _parse(where: str, text: str, depth: int) -> Int32[np.ndarray, " decisions"]:
    layers = check_text(where, text).split("|")
    if len(layers) != depth - 1:
        raise InputError(
            f"{where}: a network of depth {depth} must have {depth - 1} hidden layers joined by "
            f"'|', got {len(layers)} in {excerpt(text)}. For another depth use mlp_space(depth)."
        )
    activations, skips = [], []
    for layer, layer_text in enumerate(layers, 1):
        name, plus, mark = layer_text.partition("+")
        if plus and mark != SKIP:
            raise InputError(
                f"{where}: layer {layer} must be 'activation' or 'activation+{SKIP}', got "
                f"{excerpt(layer_text)}."
            )
        if plus and layer == 1:
            raise InputError(
                f"{where}: layer 1 must be an activation alone, got {excerpt(layer_text)}. Its "
                "input has another width, so that no skip leads past it."
            )
        activations.append(operation_index(where, name, ACTIVATION_NAMES))
        skips.append(int(bool(plus)))
    return np.array(activations + skips[1:], np.int32)


MLP = mlp_space(DEFAULT_DEPTH)
"""The registry entry."""
