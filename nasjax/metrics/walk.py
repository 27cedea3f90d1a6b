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
from jax import Array, lax

from nasjax.metrics import conv_rule as rule
from nasjax.metrics.plan import IMAGES, PLAIN, Plan, Step
from nasjax.metrics.statistics import Activations, Fisher, LayerSums, mean_loss, split_sums
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


def _new_sum(total: Array | None, more: Array) -> Array | None:
    """None for ``more`` itself, which the program gives already: it is not to be copied."""
    return None if total is None else total + more


@partial(jax.jit, static_argnums=0)
def _conv(block, params, x, total):
    saved = rule.forward(block, params, x)
    return _new_sum(total, saved.z), saved


_normalize = jax.jit(rule.normalize)


@jax.jit
def _affine(params, x, total):
    return _sum(total, x * params["scale"][None, None, None] + params["bias"][None, None, None])


@partial(jax.jit, static_argnums=0)
def _plain_added(kind, x, total):
    return _sum(total, PLAIN[kind](x))


def _plain(kind, x, total):
    return x if _is_same(kind, total) else _plain_added(kind, x, total)


def _is_same(kind: str, total: Array | None) -> bool:
    """Whether a step passes its input on and no more, so that nothing is to be computed."""
    return kind == "skip" and total is None


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
    gy, size, first = rule.unnormalized(saved, g), params["kernel"].shape[0], int(wants.has_loss)
    if size > 1:  # or every reader computes it anew
        gy = lax.optimization_barrier(gy)
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
def _plain_back_added(kind, x, g, total):
    back = jax.vjp(PLAIN[kind], x)[1]
    return _sum(total, jax.vmap(lambda one: back(one)[0])(g))


def _plain_back(kind, x, g, total):
    return g if _is_same(kind, total) else _plain_back_added(kind, x, g, total)


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
    return _new_sum(total, tangent.z), tangent


_normalize_tangent = jax.jit(rule.normalize_tangent)


@jax.jit
def _scaled(params, moved, total):
    return _sum(total, moved * params["scale"][None, None, None])


@partial(jax.jit, static_argnums=0)
def _plain_tangent_added(kind, x, moved, total):
    return _sum(total, jax.jvp(PLAIN[kind], (x,), (moved,))[1])


def _plain_tangent(kind, x, moved, total):
    return moved if _is_same(kind, total) else _plain_tangent_added(kind, x, moved, total)


@jax.jit
def _classify_tangent(params, x, moved, y, gradient):
    """How the cotangent of the classifier's input moves, and its gradient along the gradient."""

    def back(kernel, x):
        loss = lambda kernel, x: mean_loss(_logits({**params, "kernel": kernel}, x), y)  # noqa: E731
        return jax.grad(loss, (0, 1))(kernel, x)

    kernel = params["kernel"]
    moved_kernel, moved_input = jax.jvp(back, (kernel, x), (kernel, moved))[1]
    return moved_input, jnp.vdot(moved_kernel, gradient)


@partial(jax.jit, static_argnums=(0, 1))
def _conv_tangent_back(
    block, is_input_asked, params, x, x_tangent, saved, tangent, g, g_tangent, gradient, total
):
    moved, product = rule.backward_tangent(
        *(block, params, x, x_tangent, saved, tangent, g[0], g_tangent, gradient),
        is_input_asked=is_input_asked,
    )
    return _sum(total, moved) if is_input_asked else total, product


@jax.jit
def _normalize_tangent_back(saved, tangent, g, g_tangent):
    return rule.unnormalized_tangent(saved, tangent, g[0], g_tangent)[1]


@partial(jax.jit, static_argnums=0)
def _plain_tangent_back_added(kind, x, g_tangent, total):
    return _sum(total, jax.vjp(PLAIN[kind], x)[1](g_tangent)[0])


def _plain_tangent_back(kind, x, g_tangent, total):
    return (
        g_tangent if _is_same(kind, total) else _plain_tangent_back_added(kind, x, g_tangent, total)
    )


# --- walks --------------------------------------------------------------------------------------


class _Forward(NamedTuple):
    """A pass forward, by number of value and place of step.

    Attributes:
      values: all of them.
      saved: what layers keep for the way back.
      moved: how values move along the weights; empty if that was not asked for.
      tangents: what layers keep of that.
    """

    values: dict[int, Array]
    saved: dict[int, rule.Saved]
    moved: dict[int, Array]
    tangents: dict[int, rule.Tangent]


class _Back(NamedTuple):
    """A pass back.

    Attributes:
      kernels: ``[kernels, batch, batch]``, of layers and of what normalises.
      seen: what layers gave, by place of step.
      input_cotangents: ``[cotangents, batch, ...]``, or None.
      product: the sum of ``theta H g``, or None.
    """

    kernels: tuple[Array, Array]
    seen: dict[int, _Seen]
    input_cotangents: Array | None
    product: Array | None


def _walk_forward(plan: Plan, params, x: Array, *, is_moved: bool = False) -> _Forward:
    run = _Forward({IMAGES: x}, {}, {}, {})
    for place, step in enumerate(plan.steps):
        source, total = run.values[step.source], run.values.get(step.target)
        weights = _at(params, step.path)
        if step.kind == "conv":
            value, saved = _conv(step.block, weights, source, total)
            run.saved[place], value = saved, saved.z if value is None else value
        elif step.kind == "normalize":
            run.saved[place] = _normalize(source)
            value = run.saved[place].z
        elif step.kind == "affine":
            value = _affine(weights, source, total)
        elif step.kind == "classify":
            value = _classify(weights, source)
        else:
            value = _plain(step.kind, source, total)
        run.values[step.target] = value
        if is_moved and step.kind != "classify":
            _move(run, place, step, weights)
    return run


def _move(run: _Forward, place: int, step: Step, weights) -> None:
    """How a step's target moves along the weights."""
    source, saved = run.values[step.source], run.saved.get(place)
    own, total = run.moved.get(step.source), run.moved.get(step.target)
    if step.kind == "conv":
        moved, tangent = _conv_tangent(step.block, weights, source, own, saved, total)
        run.tangents[place], moved = tangent, tangent.z if moved is None else moved
    elif step.kind == "normalize":
        run.tangents[place] = _normalize_tangent(saved, own)
        moved = run.tangents[place].z
    elif step.kind == "affine":
        moved = _scaled(weights, own, total)
    else:
        moved = _plain_tangent(step.kind, source, own, total)
    run.moved[step.target] = moved


def _walk_back(
    plan: Plan, params, run: _Forward, y, cotangents: Array, wants: _Wants, *, is_input_asked=False
) -> _Back:
    """Goes back through a pass, which is used up: memory that is given back is used again."""
    g, seen = {plan.steps[-1].target: cotangents}, {}
    g_moved: dict[int, Array] = {}
    product = None
    batch = len(run.values[IMAGES])
    of_layers = jnp.zeros((wants.num_kernels, batch, batch), cotangents.dtype)
    of_others = of_layers
    first = {}
    for place, step in enumerate(plan.steps):
        first.setdefault(step.target, place)
    for place, step in reversed(list(enumerate(plan.steps))):
        source, arriving = run.values[step.source], g[step.target]
        total, weights = g.get(step.source), _at(params, step.path)
        if step.kind == "conv":
            is_asked = step.source != IMAGES or is_input_asked
            arguments = (weights, source, run.saved[place], arriving, total, of_layers)
            total, of_layers, seen[place] = _conv_back(step.block, wants, is_asked, *arguments)
        elif step.kind == "normalize":
            total = _normalize_back(run.saved[place], arriving, total)
        elif step.kind == "affine":
            total, of_others = _affine_back(wants, weights, source, arriving, of_others)
        elif step.kind == "classify":
            arguments = (weights, source, run.values[step.target], arriving, of_layers)
            total, of_layers, seen[place] = _classify_back(wants, *arguments)
        else:
            total = _plain_back(step.kind, source, arriving, total)
        g[step.source] = total
        if run.moved:
            more = _move_back(run, place, step, weights, y, g, g_moved, seen)
            product = more if product is None else product + more
        run.saved.pop(place, None)
        run.tangents.pop(place, None)
        if first[step.target] == place:
            for values in (run.values, run.moved, g, g_moved):
                values.pop(step.target, None)
    return _Back((of_layers, of_others), seen, g.get(IMAGES), product)


def _move_back(run: _Forward, place: int, step: Step, weights, y, g, g_moved, seen):
    """How the cotangent of a step's source moves, and what its layer adds to ``theta H g``."""
    source, own = run.values[step.source], run.moved.get(step.source)
    arriving, total = g_moved.get(step.target), g_moved.get(step.source)
    saved, tangent, product = run.saved.get(place), run.tangents.get(place), 0.0
    if step.kind == "classify":
        total, product = _classify_tangent(weights, source, own, y, seen[place].gradient)
    elif step.kind == "conv":
        at_layer = (weights, source, own, saved, tangent, g[step.target], arriving)
        is_asked = step.source != IMAGES
        arguments = (*at_layer, seen[place].gradient, total)
        total, product = _conv_tangent_back(step.block, is_asked, *arguments)
    elif step.kind == "normalize":
        total = _normalize_tangent_back(saved, tangent, g[step.target], arriving)
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
    run = _walk_forward(plan, params, x, is_moved="hessian" in names)
    logits = run.values[plan.steps[-1].target]
    found: dict[str, PyTree] = {"outputs": logits}
    if "activations" in names:
        found["activations"] = _activations(plan, run)
    if "example_gradients" in names:
        slopes = jax.grad(lambda logits: len(y) * mean_loss(logits, y))(logits)
        found["example_gradients"] = _traces(plan, params, run, y, slopes).sum()
    if "traces" in names:
        rows = jnp.eye(logits.shape[1], dtype=logits.dtype)
        found["traces"] = sum(
            _traces(plan, params, run, y, jnp.broadcast_to(row, logits.shape)) for row in rows
        )
    cotangents = _cotangents(names, logits, y)
    if cotangents:
        _read_back(plan, params, run, y, names, cotangents, found)
    if "split_gradients" in names:
        found["split_gradients"] = _split_gradients(plan, params, x, y, num_parts)
    if "synflow" in names:
        found["synflow"] = _synflow(plan, params, x)
    return jax.device_get(found)


def _cotangents(names, logits, y) -> dict[str, Array]:
    """Cotangents of the outputs, in their order: the loss's, those with kernels, others."""
    chosen = {}
    if not {"gradient", "fisher", "hessian"}.isdisjoint(names):
        chosen["loss"] = jax.grad(mean_loss)(logits, y)
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
    back = _walk_back(plan, params, run, y, stacked, wants, is_input_asked=is_input_asked)
    seen = back.seen
    # Hundreds of numbers: put together on the host, where that costs no program each.
    layers = jax.device_get([(seen[place].sums, seen[place].fisher) for place in sorted(seen)])
    if "gradient" in names:
        found["gradient"] = LayerSums(
            *map(np.array, zip(*(sums for sums, _ in layers), strict=True))
        )
    if "fisher" in names:
        found["fisher"] = Fisher(*map(sum, zip(*(fisher for _, fisher in layers), strict=True)))
    for place, name in enumerate(kernels):
        of_layers, of_others = (matrix[place] for matrix in back.kernels)
        found[f"kernel:{name}"] = of_layers + of_others
        if name == "label":
            found["kernel:label:hook"] = of_layers
    if is_input_asked:
        gradient = back.input_cotangents[list(cotangents).index("sum")]
        found["input_gradient"] = gradient.reshape(len(gradient), -1)
    if "hessian" in names:
        found["hessian"] = back.product


def _traces(plan, params, run, y, cotangents) -> Array:
    """``[batch]``: squared gradient norms of every example's own share."""
    wants = _Wants(is_gradient=False, is_fisher=False, num_kernels=1)
    copy = _Forward(dict(run.values), dict(run.saved), {}, {})
    of_layers, of_others = _walk_back(plan, params, copy, y, cotangents[None], wants).kernels
    return jnp.diag(of_layers[0] + of_others[0])


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
        slope = jax.grad(mean_loss)(run.values[plan.steps[-1].target], part_y)
        seen = _walk_back(plan, params, run, part_y, slope[None], wants).seen
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
