"""What walks compute at single steps: each a small program, compiled once for each shape."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from nasjax.metrics import conv_kernels as native
from nasjax.metrics import conv_rule as rule
from nasjax.metrics.plan import same
from nasjax.metrics.statistics import mean_loss
from nasjax.networks.pooling import avg_pool_3x3, avg_pool_3x3_transposed


class Wants(NamedTuple):
    """What is read off a layer on the way back; hashable.

    Attributes:
      is_gradient: the gradient of the loss, whose cotangent is the first.
      is_fisher: the Fisher sums, of that cotangent.
      num_kernels: how many of the cotangents after it have a kernel.
    """

    is_gradient: bool
    is_fisher: bool
    num_kernels: int

    @property
    def has_loss(self) -> bool:
        """Whether the loss has a cotangent, the first."""
        return self.is_gradient or self.is_fisher

    def with_kernels(self, cotangents: Sequence[Array]) -> Sequence[Array]:
        """Those of the cotangents that have a kernel."""
        first = int(self.has_loss)
        return cotangents[first : first + self.num_kernels]


class Seen(NamedTuple):
    """What a layer gives on the way back; None where it was not asked for.

    Attributes:
      gradient: of its weights, in their shape.
      sums: of squares, products and magnitudes of that gradient.
      fisher: sums over channels, plain and times weights.
    """

    gradient: Array | None = None
    sums: tuple[Array, Array, Array] | None = None
    fisher: tuple[Array, Array] | None = None


def _sum(total, more):
    """Of arrays, or of one cotangent after the other."""
    return more if total is None else jax.tree.map(jnp.add, total, more)


def _new_sum(total: Array | None, more: Array) -> Array | None:
    """None for ``more`` itself, which the program gives already: it is not to be copied."""
    return None if total is None else total + more


@partial(jax.jit, static_argnums=0)
def conv(block, params, x, total):
    """A convolution block: the sum with ``total``, None for the output itself, and what is kept."""
    if native.serves(block, params["kernel"]):
        return native.forward(block, params, x, total)
    saved = rule.forward(block, params, x)
    return _new_sum(total, saved.z), saved


@jax.jit
def normalize(x, total):
    """Batch normalisation by itself, as ``conv``."""
    saved = rule.normalize(x)
    return _new_sum(total, saved.z), saved


@jax.jit
def affine(params, x, total):
    """A scale and an offset a channel, added to ``total``."""
    return _sum(total, x * params["scale"][None, None, None] + params["bias"][None, None, None])


@partial(jax.jit, static_argnums=0)
def _plain_added(operation, x, total):
    if operation is native.avg_pool_3x3:
        return _pooled(x, total, is_transposed=False)
    return _sum(total, operation(x))


def plain(operation, x, total):
    """An operation without parameters, added to ``total``."""
    return x if _is_same(operation, total) else _plain_added(operation, x, total)


def _pooled(x, total, *, is_transposed):
    """Native pools of one array or several, added to ``total``."""
    leaves, structure = jax.tree.flatten(x)
    totals = None if total is None else jax.tree.leaves(total)
    return structure.unflatten(native.pooled(leaves, totals, is_transposed=is_transposed))


def _is_same(operation: Callable, total: Array | None) -> bool:
    """Whether a step passes its input on and no more, so that nothing is to be computed."""
    return operation is same and total is None


concat = jax.jit(lambda values: jnp.concatenate(values, -1))


def _logits(params, x):
    return x.mean((1, 2)) @ params["kernel"] + params["bias"][None]


classify = jax.jit(_logits)


@partial(jax.jit, static_argnums=(2, 3))
def agreement(x, total, count, is_native):
    """ReLUs that are both on or both off in two examples, added to ``total``."""
    if is_native:
        return native.agreement(x, total, count)
    signs = jnp.where(x > 0, 1.0, -1.0).reshape(len(x), -1)
    return total + count * (signs.shape[1] + signs @ signs.T) / 2


def _layer_sums(kernel, gradient):
    product = kernel * gradient
    return jnp.sum(gradient * gradient), jnp.sum(product), jnp.sum(jnp.abs(product))


def _fisher_sums(pixels: Array, fan: int):
    """From ``[batch, channels]``, sums over pixels of output times cotangent."""
    channels = (pixels**2).mean(0).sum() / 2
    return channels, channels * fan


def _add_kernels(kernels: Array, gradients: Sequence[Array]) -> Array:
    """Adds products of ``[batch, parameters]`` to ``[kernels, batch, batch]``."""
    return kernels + jnp.stack([jnp.matmul(a, a.T, precision="highest") for a in gradients])


@partial(jax.jit, static_argnums=(0, 1, 2))
def conv_back(block, wants, is_input_asked, params, x, saved, g, total, kernels):
    """Cotangents of the input added to ``total``, kernels with its own, and what was asked for."""
    if native.serves(block, params["kernel"]):
        return _native_back(block, wants, is_input_asked, params, x, saved, g, total, kernels)
    gy, size = [rule.unnormalized(saved, one) for one in g], params["kernel"].shape[0]
    if size > 1:  # or every reader computes them anew
        gy = lax.optimization_barrier(gy)
    gradient = sums = fisher = None
    of_examples = wants.with_kernels(gy)
    if wants.is_gradient or of_examples:
        of_batch = gy[0] if wants.is_gradient else None
        gradient, each = rule.kernel_gradients(block, size, x, of_batch, of_examples)
    if wants.is_gradient:
        sums = _layer_sums(params["kernel"], gradient)
    if of_examples:
        kernels = _add_kernels(kernels, each.swapaxes(0, 1))
        if "bias" in params:
            kernels = _add_kernels(kernels, [one.sum((1, 2)) for one in of_examples])
    if wants.is_fisher:
        pixels = (gy[0] * saved.z).sum((1, 2))
        if saved.rate is not None:
            moved = gy[0].sum((1, 2)) * saved.mean[None]
            pixels = pixels / saved.rate[None] + moved
        fisher = _fisher_sums(pixels, params["kernel"].size // params["kernel"].shape[-1])
    seen = Seen(gradient, sums, fisher)
    if not is_input_asked:
        return total, kernels, seen
    through = tuple(rule.input_cotangent(block, params, x, one) for one in gy)
    return _sum(total, through), kernels, seen


def _native_back(block, wants, is_input_asked, params, x, saved, g, total, kernels):
    sums = fisher = None
    gradient, kernels, pixels, through = native.back(
        *(block, params, x, saved, g, total, kernels),
        has_gradient=wants.is_gradient,
        has_fisher=wants.is_fisher,
        first_example=int(wants.has_loss),
        has_input=is_input_asked,
    )
    if wants.is_gradient:
        sums = _layer_sums(params["kernel"], gradient)
    if wants.is_fisher:
        fisher = _fisher_sums(pixels, params["kernel"].size // params["kernel"].shape[-1])
    return through if is_input_asked else total, kernels, Seen(gradient, sums, fisher)


@jax.jit
def normalize_back(saved, g, total):
    """Cotangents of the input of ``normalize``, added to ``total``."""
    return _sum(total, tuple(rule.unnormalized(saved, one) for one in g))


@partial(jax.jit, static_argnums=0)
def affine_back(wants, params, x, g, kernels):
    """Cotangents of the input of ``affine``, and kernels with its own."""
    chosen = wants.with_kernels(g)
    if chosen:
        kernels = _add_kernels(kernels, [(one * x).sum((1, 2)) for one in chosen])
        kernels = _add_kernels(kernels, [one.sum((1, 2)) for one in chosen])
    return tuple(one * params["scale"][None, None, None] for one in g), kernels


_TRANSPOSES = {avg_pool_3x3: avg_pool_3x3_transposed}
"""Of linear operations, where that is faster than automatic differentiation."""


@partial(jax.jit, static_argnums=0)
def _plain_back_added(operation, x, g, total):
    if operation is native.avg_pool_3x3:
        return _pooled(g, total, is_transposed=True)
    back = _TRANSPOSES.get(operation) or (lambda one: jax.vjp(operation, x)[1](one)[0])
    return _sum(total, jax.tree.map(back, g))


def plain_back(operation, x, g, total):
    """Cotangents of the input of ``plain``, one or several, added to ``total``."""
    return g if _is_same(operation, total) else _plain_back_added(operation, x, g, total)


@partial(jax.jit, static_argnums=0)
def concat_back(widths, g, totals):
    """Each source's part of the cotangents, added to its total."""
    ends = np.cumsum(widths)

    def part(width, end):
        return jax.tree.map(lambda one: one[..., end - width : end], g)

    return [_sum(total, part(*at)) for total, *at in zip(totals, widths, ends, strict=True)]


@partial(jax.jit, static_argnums=0)
def classify_back(wants, params, x, logits, g, kernels):
    """As ``conv_back``, of the mean over pixels and the dense layer."""
    features, back = jax.vjp(lambda x: x.mean((1, 2)), x)
    gradient = sums = fisher = None
    if wants.is_gradient:
        gradient = features.T @ g[0]
        sums = _layer_sums(params["kernel"], gradient)
    # Of an outer product and, for the bias, of the cotangent itself.
    own = jnp.matmul(features, features.T, precision="highest") + 1
    for place, one in enumerate(wants.with_kernels(g)):
        kernels = kernels.at[place].add(own * jnp.matmul(one, one.T, precision="highest"))
    if wants.is_fisher:
        fisher = _fisher_sums(logits * g[0], len(params["kernel"]))
    through = tuple(back(one @ params["kernel"].T)[0] for one in g)
    return through, kernels, Seen(gradient, sums, fisher)


# --- along the parameters -----------------------------------------------------------------------


@partial(jax.jit, static_argnums=0)
def conv_tangent(block, params, x, x_tangent, saved, total):
    """How the output of ``conv`` moves, added to ``total``, and what it keeps."""
    if x_tangent is not None and native.serves(block, params["kernel"]):
        return native.tangent(block, params, x, x_tangent, saved, total)
    tangent = rule.forward_tangent(block, params, x, x_tangent, saved)
    return _new_sum(total, tangent.z), tangent


@jax.jit
def normalize_tangent(saved, moved, total):
    """How the output of ``normalize`` moves, as ``conv_tangent``."""
    tangent = rule.normalize_tangent(saved, moved)
    return _new_sum(total, tangent.z), tangent


@jax.jit
def scaled(params, moved, total):
    """How values and cotangents move through ``affine``, added to ``total``."""
    return _sum(total, moved * params["scale"][None, None, None])


@partial(jax.jit, static_argnums=0)
def _plain_tangent_added(operation, x, moved, total):
    if operation is native.avg_pool_3x3:  # linear
        return _pooled(moved, total, is_transposed=False)
    return _sum(total, jax.jvp(operation, (x,), (moved,))[1])


def plain_tangent(operation, x, moved, total):
    """How the output of ``plain`` moves, added to ``total``."""
    if _is_same(operation, total):
        return moved
    return _plain_tangent_added(operation, x, moved, total)


@jax.jit
def classify_tangent(params, x, moved, y, gradient):
    """How the cotangent of the classifier's input moves, and its gradient along the gradient."""

    def back(kernel, x):
        loss = lambda kernel, x: mean_loss(_logits({**params, "kernel": kernel}, x), y)  # noqa: E731
        return jax.grad(loss, (0, 1))(kernel, x)

    kernel = params["kernel"]
    moved_kernel, moved_input = jax.jvp(back, (kernel, x), (kernel, moved))[1]
    return moved_input, jnp.vdot(moved_kernel, gradient)


@partial(jax.jit, static_argnums=(0, 1))
def conv_tangent_back(
    block, is_input_asked, params, x, x_tangent, saved, tangent, g, g_tangent, gradient, total
):
    """How the input's cotangent moves, added to ``total``, and the layer's ``theta H g``."""
    at_layer = (block, params, x, x_tangent, saved, tangent, g[0], g_tangent, gradient)
    if native.serves(block, params["kernel"]):
        moved, product = native.tangent_back(*at_layer, total, has_input=is_input_asked)
        return moved if is_input_asked else total, product
    moved, product = rule.backward_tangent(*at_layer, is_input_asked=is_input_asked)
    return _sum(total, moved) if is_input_asked else total, product


@jax.jit
def normalize_tangent_back(saved, tangent, g, g_tangent):
    """How the cotangent of the input of ``normalize`` moves."""
    return rule.unnormalized_tangent(saved, tangent, g[0], g_tangent)[1]


# --- SynFlow ---


@partial(jax.jit, static_argnums=0)
def conv_flow(block, params, flow, logarithm, total):
    """Value and derivative behind a convolution of magnitudes, added to ``total``."""
    value, moved = rule.convolve(block, flow, jnp.abs(params["kernel"]))
    moved = moved + value
    if "bias" in params:  # of the scale that values have by now
        value = value + jnp.exp(-logarithm) * jnp.abs(params["bias"])[None, None]
    return _sum(total, jnp.stack([value, moved]))


@partial(jax.jit, static_argnums=0)
def plain_flow(operation, flow, total):
    """The same behind an operation without parameters."""
    if operation is native.avg_pool_3x3:
        return _pooled(flow, total, is_transposed=False)
    return _sum(total, jnp.concatenate(jax.jvp(operation, (flow[:1],), (flow[1:],))))


@jax.jit
def rescaled(flows, logarithm):
    """Flows of which the largest is one, and the logarithm of all scales taken out."""
    scale = jnp.stack([flow[0].max() for flow in flows]).max()
    return [flow / scale for flow in flows], logarithm + jnp.log(scale)


@jax.jit
def classify_flow(params, flow):
    """The sum of outputs and of their derivatives."""
    value, moved = flow.mean((1, 2)) @ jnp.abs(params["kernel"])
    return (value + moved).sum()
