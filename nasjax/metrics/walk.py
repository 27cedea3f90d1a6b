"""Statistics of a network by walking its plan: small programs, compiled once for each shape.

One pass forward and one back serve all that is asked for; weight gradients of the batch and of
every example fall out of one product with the patches of an image, and are summed up at once.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from nasjax.metrics import conv_rule as rule
from nasjax.metrics.plan import IMAGES, PLAIN, Plan
from nasjax.metrics.statistics import Activations, Fisher, LayerSums, split_sums
from nasjax.types import PyTree

WALKED = frozenset(
    (
        *("outputs", "gradient", "hessian", "example_gradients", "traces", "kernel:sum"),
        *("kernel:label", "kernel:label:hook", "activations", "fisher", "input_gradient"),
        *("split_gradients", "synflow"),
    )
)
"""Statistics that a walk gives, with kernels of mapped coupling."""


class _Wants(NamedTuple):
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
        return self.is_gradient or self.is_fisher


class _Seen(NamedTuple):
    """What a layer gives on the way back; None where it was not asked for.

    Attributes:
      gradient: of its weights, in their shape.
      sums: of squares, products and magnitudes of that gradient.
      fisher: sums over channels, plain and times weights.
    """

    gradient: Array | None = None
    sums: tuple[Array, Array, Array] | None = None
    fisher: tuple[Array, Array] | None = None


# --- what single steps compute, each a compiled program ----------------------------------------


def _sum(total: Array | None, more: Array) -> Array:
    return more if total is None else total + more


@partial(jax.jit, static_argnums=0)
def _conv(block, params, x, total):
    saved = rule.forward(block, params, x)
    return _sum(total, saved.z), saved


@jax.jit
def _normalize(x):
    saved = rule.normalize(x)
    return saved.z, saved


@jax.jit
def _affine(params, x, total):
    return _sum(total, x * params["scale"][None, None, None] + params["bias"][None, None, None])


@partial(jax.jit, static_argnums=0)
def _plain(kind, x, total):
    return _sum(total, PLAIN[kind](x))


def _logits(params, x):
    features = jnp.maximum(x, 0).mean((1, 2))
    return features @ params["kernel"] + params["bias"][None]


_classify = jax.jit(_logits)


@jax.jit
def _agreement(x, total, count):
    """ReLUs that are both on or both off in two examples."""
    signs = jnp.where(x > 0, 1.0, -1.0).reshape(len(x), -1)
    return _sum(total, count * (signs.shape[1] + signs @ signs.T) / 2)


def _layer_sums(kernel, gradient):
    product = kernel * gradient
    return jnp.sum(gradient * gradient), jnp.sum(product), jnp.sum(jnp.abs(product))


def _fisher_sums(pixels: Array, fan: int):
    """From ``[batch, channels]``, sums over pixels of output times cotangent."""
    channels = (pixels**2).mean(0).sum() / 2
    return channels, channels * fan


def _add_kernels(kernels: Array, gradients: Array) -> Array:
    """Adds products of ``[batch, kernels, parameters]`` to ``[kernels, batch, batch]``."""
    products = [jnp.matmul(rows, rows.T, precision="highest") for rows in gradients.swapaxes(0, 1)]
    return kernels + jnp.stack(products)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _conv_back(block, wants, is_input_asked, params, x, saved, g, total, kernels):
    # Computed once: every reader would compute it anew.
    gy = lax.optimization_barrier(rule.unnormalized(saved, g))
    size, first = params["kernel"].shape[0], int(wants.has_loss)
    gradient = sums = fisher = None
    of_examples = gy[first : first + wants.num_kernels] if wants.num_kernels else None
    if wants.is_gradient or wants.num_kernels:
        of_batch = gy[0] if wants.is_gradient else None
        gradient, each = rule.kernel_gradients(block, size, x, of_batch, of_examples)
    if wants.is_gradient:
        gradient = rule.as_kernel(gradient, size)
        sums = _layer_sums(params["kernel"], gradient)
    if wants.num_kernels:
        kernels = _add_kernels(kernels, each)
        if "bias" in params:
            kernels = _add_kernels(kernels, of_examples.sum((2, 3)).swapaxes(0, 1))
    if wants.is_fisher:
        pixels = (gy[0] * saved.z).sum((1, 2))
        if saved.rate is not None:
            moved = gy[0].sum((1, 2)) * saved.mean[None]
            pixels = pixels / saved.rate[None] + moved
        fisher = _fisher_sums(pixels, params["kernel"].size // params["kernel"].shape[-1])
    seen = _Seen(gradient, sums, fisher)
    if not is_input_asked:
        return total, kernels, seen
    return _sum(total, rule.input_cotangents(block, params, x, gy)), kernels, seen


@jax.jit
def _normalize_back(saved, g, total):
    return _sum(total, rule.unnormalized(saved, g))


@partial(jax.jit, static_argnums=0)
def _affine_back(wants, params, x, g, kernels):
    if wants.num_kernels:
        chosen = g[int(wants.has_loss) :][: wants.num_kernels]
        for gradients in (chosen * x[None], chosen):
            kernels = _add_kernels(kernels, gradients.sum((2, 3)).swapaxes(0, 1))
    return g * params["scale"][None, None, None, None], kernels


@partial(jax.jit, static_argnums=0)
def _plain_back(kind, x, g, total):
    back = jax.vjp(PLAIN[kind], x)[1]
    return _sum(total, jax.vmap(lambda one: back(one)[0])(g))


@partial(jax.jit, static_argnums=0)
def _classify_back(wants, params, x, logits, g, kernels):
    features, back = jax.vjp(lambda x: jnp.maximum(x, 0).mean((1, 2)), x)
    gradient = sums = fisher = None
    if wants.is_gradient:
        gradient = features.T @ g[0]
        sums = _layer_sums(params["kernel"], gradient)
    if wants.num_kernels:
        # Of an outer product and, for the bias, of the cotangent itself.
        chosen = g[int(wants.has_loss) :][: wants.num_kernels]
        products = jnp.einsum("kic,kjc->kij", chosen, chosen, precision="highest")
        own = jnp.matmul(features, features.T, precision="highest")
        kernels = kernels + products * (own + 1)[None]
    if wants.is_fisher:
        fisher = _fisher_sums(logits * g[0], len(params["kernel"]))
    through = jax.vmap(lambda one: back(one @ params["kernel"].T)[0])(g)
    return through, kernels, _Seen(gradient, sums, fisher)


# --- along the parameters -----------------------------------------------------------------------


@partial(jax.jit, static_argnums=0)
def _conv_tangent(block, params, x, x_tangent, saved, total):
    tangent = rule.forward_tangent(block, params, x, x_tangent, saved)
    return _sum(total, tangent.z), tangent


@jax.jit
def _normalize_tangent(saved, moved):
    tangent = rule.normalize_tangent(saved, moved)
    return tangent.z, tangent


@jax.jit
def _scaled(params, moved, total):
    return _sum(total, moved * params["scale"][None, None, None])


@partial(jax.jit, static_argnums=0)
def _plain_tangent(kind, x, moved, total):
    return _sum(total, jax.jvp(PLAIN[kind], (x,), (moved,))[1])


@jax.jit
def _classify_tangent(params, x, moved, y, gradient):
    """How the cotangent of the classifier's input moves, and its gradient along the gradient."""

    def back(kernel, x):
        loss = lambda kernel, x: _loss(_logits({**params, "kernel": kernel}, x), y)  # noqa: E731
        return jax.grad(loss, (0, 1))(kernel, x)

    kernel = params["kernel"]
    moved_kernel, moved_input = jax.jvp(back, (kernel, x), (kernel, moved))[1]
    return moved_input, jnp.vdot(moved_kernel, gradient)


@partial(jax.jit, static_argnums=(0, 1))
def _conv_tangent_back(block, is_input_asked, *arguments):
    *arguments, total = arguments
    moved, product = rule.backward_tangent(block, *arguments, is_input_asked=is_input_asked)
    return _sum(total, moved) if is_input_asked else total, product


@jax.jit
def _normalize_tangent_back(saved, tangent, g, g_tangent):
    return rule.unnormalized_tangent(saved, tangent, g, g_tangent)[1]


@partial(jax.jit, static_argnums=0)
def _plain_tangent_back(kind, x, g_tangent, total):
    return _sum(total, jax.vjp(PLAIN[kind], x)[1](g_tangent)[0])


def _loss(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


# --- walks --------------------------------------------------------------------------------------


class _Forward(NamedTuple):
    """A pass forward: values and what layers saved, by number of value and place of step."""

    values: dict[int, Array]
    saved: dict[int, rule.Saved]


def _walk_forward(plan: Plan, params, x: Array) -> _Forward:
    values, saved = {IMAGES: x}, {}
    for place, step in enumerate(plan.steps):
        source, total = values[step.source], values.get(step.target)
        weights = _at(params, step.path)
        if step.kind == "conv":
            value, saved[place] = _conv(step.block, weights, source, total)
        elif step.kind == "normalize":
            value, saved[place] = _normalize(source)
        elif step.kind == "affine":
            value = _affine(weights, source, total)
        elif step.kind == "classify":
            value = _classify(weights, source)
        else:
            value = _plain(step.kind, source, total)
        values[step.target] = value
    return _Forward(values, saved)


def _walk_back(plan: Plan, params, run: _Forward, cotangents: Array, wants: _Wants, x_asked: bool):
    """Cotangents of all values, kernels, and what layers gave, by place of step."""
    g, seen = {plan.steps[-1].target: cotangents}, {}
    batch = len(run.values[IMAGES])
    of_layers = jnp.zeros((wants.num_kernels, batch, batch), cotangents.dtype)
    of_others = of_layers + 0
    for place, step in reversed(list(enumerate(plan.steps))):
        source, arriving = run.values[step.source], g[step.target]
        total, weights = g.get(step.source), _at(params, step.path)
        if step.kind == "conv":
            is_asked = step.source != IMAGES or x_asked
            arguments = (weights, source, run.saved[place], arriving, total, of_layers)
            total, of_layers, seen[place] = _conv_back(step.block, wants, is_asked, *arguments)
        elif step.kind == "normalize":
            total = _normalize_back(run.saved[place], arriving, total)
        elif step.kind == "affine":
            total, of_others = _affine_back(wants, weights, source, arriving, of_others)
        elif step.kind == "classify":
            logits = run.values[step.target]
            arguments = (weights, source, logits, arriving, of_layers)
            total, of_layers, seen[place] = _classify_back(wants, *arguments)
        else:
            total = _plain_back(step.kind, source, arriving, total)
        g[step.source] = total
    return g, (of_layers, of_others), seen


def _hessian_product(plan: Plan, params, run: _Forward, y, g, seen) -> Array:
    """The sum of ``theta H g``, by the tangents of both passes along the weights."""
    moved: dict[int, Array] = {}
    tangents = {}
    for place, step in enumerate(plan.steps[:-1]):
        source, weights = run.values[step.source], _at(params, step.path)
        own, total = moved.get(step.source), moved.get(step.target)
        if step.kind == "conv":
            arguments = (weights, source, own, run.saved[place], total)
            moved[step.target], tangents[place] = _conv_tangent(step.block, *arguments)
        elif own is None:
            continue
        elif step.kind == "normalize":
            moved[step.target], tangents[place] = _normalize_tangent(run.saved[place], own)
        elif step.kind == "affine":
            moved[step.target] = _scaled(weights, own, total)
        else:
            moved[step.target] = _plain_tangent(step.kind, source, own, total)
    last = plan.steps[-1]
    arguments = (run.values[last.source], moved[last.source], y, seen[len(plan.steps) - 1].gradient)
    g_moved = {}
    g_moved[last.source], product = _classify_tangent(_at(params, last.path), *arguments)
    for place, step in reversed(list(enumerate(plan.steps[:-1]))):
        source, weights = run.values[step.source], _at(params, step.path)
        arriving, total = g_moved[step.target], g_moved.get(step.source)
        if step.kind == "conv":
            at_layer = (run.saved[place], tangents[place], g[step.target][0], arriving)
            arguments = (weights, source, moved.get(step.source), *at_layer, seen[place].gradient)
            is_asked = step.source != IMAGES
            total, more = _conv_tangent_back(step.block, is_asked, *arguments, total)
            product = product + more
        elif step.kind == "normalize":
            at_layer = (run.saved[place], tangents[place], g[step.target][0])
            total = _normalize_tangent_back(*at_layer, arriving)
        elif step.kind == "affine":
            total = _scaled(weights, arriving, total)
        else:
            total = _plain_tangent_back(step.kind, source, arriving, total)
        g_moved[step.source] = total
    return product


def _at(params, path):
    for name in path:
        params = params[name]
    return params


def walk_statistics(
    plan: Plan, params: PyTree, x: Array, y: Array, names: Sequence[str], *, num_parts: int
) -> dict[str, PyTree]:
    """Statistics of a network that has a plan.

    Args:
      plan: of the network.
      params: its parameters, or those of a larger network that it is a part of.
      x: ``[batch, height, width, channels]``.
      y: ``[batch]``, labels.
      names: of ``WALKED``. Kernels and traces are of mapped coupling.
      num_parts: of the batch, for ``split_gradients``.

    Returns:
      Arrays on the host, by name; of a dead network only ``outputs``, which are zero.
    """
    if plan.is_dead:
        return {"outputs": jnp.zeros((len(x), 1))}
    run = _walk_forward(plan, params, x)
    logits = run.values[plan.steps[-1].target]
    found: dict[str, PyTree] = {"outputs": logits}
    if "activations" in names:
        found["activations"] = _activations(plan, run)
    cotangents = _cotangents(names, logits, y)
    if cotangents:
        _read_back(plan, params, run, y, names, cotangents, found)
    if "example_gradients" in names:
        slopes = jax.grad(lambda logits: len(y) * _loss(logits, y))(logits)
        found["example_gradients"] = _traces(plan, params, run, slopes).sum()
    if "traces" in names:
        rows = jnp.eye(logits.shape[1], dtype=logits.dtype)
        found["traces"] = sum(
            _traces(plan, params, run, jnp.broadcast_to(row, logits.shape)) for row in rows
        )
    if "split_gradients" in names:
        found["split_gradients"] = _split_gradients(plan, params, x, y, num_parts)
    if "synflow" in names:
        found["synflow"] = _synflow(plan, params, x)
    return jax.device_get(found)


def _cotangents(names, logits, y) -> dict[str, Array]:
    """Cotangents of the outputs, in their order: the loss's, those with kernels, others."""
    chosen = {}
    if not {"gradient", "fisher", "hessian"}.isdisjoint(names):
        chosen["loss"] = jax.grad(_loss)(logits, y)
    if "kernel:sum" in names:
        chosen["sum"] = jnp.ones_like(logits)
    if not {"kernel:label", "kernel:label:hook"}.isdisjoint(names):
        chosen["label"] = jax.nn.one_hot(y, logits.shape[1], dtype=logits.dtype)
    if "input_gradient" in names:
        chosen.setdefault("sum", jnp.ones_like(logits))
    return chosen


def _read_back(plan, params, run, y, names, cotangents, found) -> None:
    """One pass back with all cotangents, and what it gives."""
    kernels = [name for name in ("sum", "label") if any(f"kernel:{name}" in n for n in names)]
    is_gradient = not {"gradient", "hessian"}.isdisjoint(names)
    wants = _Wants(is_gradient, "fisher" in names, len(kernels))
    stacked = jnp.stack(list(cotangents.values()))
    is_input_asked = "input_gradient" in names
    g, matrices, seen = _walk_back(plan, params, run, stacked, wants, is_input_asked)
    # Hundreds of numbers: put together on the host, where that costs no program each.
    layers = jax.device_get([(seen[place].sums, seen[place].fisher) for place in sorted(seen)])
    if "gradient" in names:
        found["gradient"] = LayerSums(
            *map(np.array, zip(*(sums for sums, _ in layers), strict=True))
        )
    if "fisher" in names:
        found["fisher"] = Fisher(*map(sum, zip(*(fisher for _, fisher in layers), strict=True)))
    for place, name in enumerate(kernels):
        of_layers, of_others = (matrix[place] for matrix in matrices)
        found[f"kernel:{name}"] = of_layers + of_others
        if name == "label":
            found["kernel:label:hook"] = of_layers
    if is_input_asked:
        gradient = g[IMAGES][list(cotangents).index("sum")]
        found["input_gradient"] = gradient.reshape(len(gradient), -1)
    if "hessian" in names:
        found["hessian"] = _hessian_product(plan, params, run, y, g, seen)


def _traces(plan, params, run, cotangents) -> Array:
    """``[batch]``: squared gradient norms of every example's own share."""
    wants = _Wants(is_gradient=False, is_fisher=False, num_kernels=1)
    _, matrices, _ = _walk_back(plan, params, run, cotangents[None], wants, False)
    return jnp.diag(matrices[0][0] + matrices[1][0])


def _activations(plan, run) -> Activations:
    readers = Counter(
        step.source
        for step in plan.steps
        if step.kind == "classify" or (step.kind == "conv" and step.block.has_relu)
    )
    agreement, num_units = None, 0
    for source, count in readers.items():
        value = run.values[source]
        agreement = _agreement(value, agreement, float(count))
        num_units += count * value[0].size
    return Activations(agreement, jnp.asarray(num_units, agreement.dtype))


def _split_gradients(plan, params, x, y, num_parts):
    wants = _Wants(is_gradient=True, is_fisher=False, num_kernels=0)
    parts = []
    for part_x, part_y in zip(jnp.split(x, num_parts), jnp.split(y, num_parts), strict=True):
        run = _walk_forward(plan, params, part_x)
        slope = jax.grad(_loss)(run.values[plan.steps[-1].target], part_y)
        seen = _walk_back(plan, params, run, slope[None], wants, False)[2]
        parts.append([seen[place].gradient for place in sorted(seen)])
    return jax.jit(split_sums)(parts)


# --- SynFlow: without normalisation and with magnitudes for weights a network is linear and
# positive, so that a value and its derivative along the weights go forward together. ------------


@partial(jax.jit, static_argnums=0)
def _conv_flow(stride, params, flow, logarithm, total):
    value, moved = rule.convolve(flow, jnp.abs(params["kernel"]), stride)
    moved = moved + value
    if "bias" in params:  # of the scale that values have by now
        value = value + jnp.exp(-logarithm) * jnp.abs(params["bias"])[None, None]
    return _sum(total, jnp.stack([value, moved]))


@jax.jit
def _rescaled(flow, logarithm):
    scale = flow[0].max()
    return flow / scale, logarithm + jnp.log(scale)


@jax.jit
def _classify_flow(params, flow):
    value, moved = flow.mean((1, 2)) @ jnp.abs(params["kernel"])
    return (value + moved).sum()


def _synflow(plan: Plan, params, x) -> Array:
    """In the logarithm, as values pass what float32 holds."""
    ones = jnp.ones_like(x[:1])
    flows, logarithm = {IMAGES: jnp.concatenate([ones, 0 * ones])}, jnp.zeros(())
    bottlenecks = _bottlenecks(plan)
    for place, step in enumerate(plan.steps):
        flow, total, weights = flows[step.source], flows.get(step.target), _at(params, step.path)
        if step.kind == "conv":
            flows[step.target] = _conv_flow(step.block.stride, weights, flow, logarithm, total)
        elif step.kind == "classify":
            product = jnp.log(_classify_flow(weights, flow)) + logarithm
        else:
            kind = step.kind if step.kind in PLAIN else "skip"
            flows[step.target] = _plain(kind, flow, total)
        if place in bottlenecks:
            flows[step.target], logarithm = _rescaled(flows[step.target], logarithm)
    return product


def _bottlenecks(plan: Plan) -> set[int]:
    """Places of steps after which the network goes on from their target alone."""
    found, lowest_source, lowest_target = set(), np.inf, np.inf
    for place, step in reversed(list(enumerate(plan.steps))):
        if step.target <= lowest_source and step.target < lowest_target < np.inf:
            found.add(place)
        lowest_source = min(lowest_source, step.source)
        lowest_target = min(lowest_target, step.target)
    return found
