"""Statistics of a network by walking its plan: small programs, compiled once for each shape.

One pass forward and one back serve all that is asked for; gradients of every example are multiplied
with each other at once, layer by layer, and never kept.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from nasjax.metrics import conv_rule as rule
from nasjax.metrics import walk_steps as steps
from nasjax.metrics.plan import IMAGES, Plan, Step, native_plan, relu, same
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
      input_cotangents: of the images, one for each cotangent; None if that was not asked for.
      product: the sum of ``theta H g``, or None.
    """

    kernels: tuple[Array, Array]
    seen: dict[int, steps.Seen]
    input_cotangents: tuple[Array, ...] | None
    product: Array | None


def _walk_forward(plan: Plan, params, x: Array, *, is_moved: bool = False) -> _Forward:
    run = _Forward({IMAGES: x}, {}, {}, {})
    for place, step in enumerate(plan.steps):
        sources = [run.values[source] for source in step.sources]
        source, total = sources[0], run.values.get(step.target)
        weights = _at(params, step.path)
        if step.kind == "conv":
            value, saved = steps.conv(step.block, weights, source, total)
            run.saved[place], value = saved, saved.z if value is None else value
        elif step.kind == "normalize":
            value, saved = steps.normalize(source, total)
            run.saved[place], value = saved, saved.z if value is None else value
        elif step.kind == "affine":
            value = steps.affine(weights, source, total)
        elif step.kind == "concat":
            value = steps.concat(sources)
        elif step.kind == "classify":
            value = steps.classify(weights, source)
        else:
            value = steps.plain(step.operation, source, total)
        run.values[step.target] = value
        if is_moved and step.kind != "classify":
            _move(run, place, step, weights)
    return run


def _move(run: _Forward, place: int, step: Step, weights) -> None:
    """How a step's target moves along the weights."""
    source, saved = run.values[step.sources[0]], run.saved.get(place)
    owns, total = [run.moved.get(source) for source in step.sources], run.moved.get(step.target)
    own = owns[0]
    if step.kind == "conv":
        moved, tangent = steps.conv_tangent(step.block, weights, source, own, saved, total)
        run.tangents[place], moved = tangent, tangent.z if moved is None else moved
    elif step.kind == "normalize":
        moved, tangent = steps.normalize_tangent(saved, own, total)
        run.tangents[place], moved = tangent, tangent.z if moved is None else moved
    elif step.kind == "affine":
        moved = steps.scaled(weights, own, total)
    elif step.kind == "concat":
        moved = steps.concat(owns)
    else:
        moved = steps.plain_tangent(step.operation, source, own, total)
    run.moved[step.target] = moved


def _walk_back(
    plan: Plan,
    params,
    run: _Forward,
    y,
    cotangents: tuple[Array, ...],
    wants: steps.Wants,
    *,
    is_input_asked=False,
) -> _Back:
    """Goes back through a pass, which is used up: memory that is given back is used again."""
    g, seen = {plan.steps[-1].target: cotangents}, {}
    g_moved: dict[int, Array] = {}
    product = None
    batch = len(run.values[IMAGES])
    of_layers = jnp.zeros((wants.num_kernels, batch, batch), cotangents[0].dtype)
    of_others = of_layers
    first = {}
    for place, step in enumerate(plan.steps):
        first.setdefault(step.target, place)
    for place, step in reversed(list(enumerate(plan.steps))):
        if step.target in g:
            read, weights = step.sources[0], _at(params, step.path)
            source, arriving, total = run.values[read], g[step.target], g.get(read)
            if step.kind == "conv":
                is_asked = read != IMAGES or is_input_asked
                arguments = (weights, source, run.saved[place], arriving, total, of_layers)
                total, of_layers, seen[place] = steps.conv_back(
                    step.block, wants, is_asked, *arguments
                )
            elif step.kind == "normalize":
                total = steps.normalize_back(run.saved[place], arriving, total)
            elif step.kind == "affine":
                total, of_others = steps.affine_back(wants, weights, source, arriving, of_others)
            elif step.kind == "classify":
                arguments = (weights, source, run.values[step.target], arriving, of_layers)
                total, of_layers, seen[place] = steps.classify_back(wants, *arguments)
            elif step.kind == "plain":
                total = steps.plain_back(step.operation, source, arriving, total)
            if step.kind == "concat":
                _split_back(run, step, g)
            else:
                g[read] = total
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
    read = step.sources[0]
    source, own = run.values[read], run.moved.get(read)
    arriving, total = g_moved.get(step.target), g_moved.get(read)
    saved, tangent, product = run.saved.get(place), run.tangents.get(place), 0.0
    if step.kind == "classify":
        total, product = steps.classify_tangent(weights, source, own, y, seen[place].gradient)
    elif step.kind == "conv":
        at_layer = (weights, source, own, saved, tangent, g[step.target], arriving)
        is_asked = read != IMAGES
        arguments = (*at_layer, seen[place].gradient, total)
        total, product = steps.conv_tangent_back(step.block, is_asked, *arguments)
    elif step.kind == "normalize":
        total = steps.normalize_tangent_back(saved, tangent, g[step.target], arriving)
    elif step.kind == "affine":
        total = steps.scaled(weights, arriving, total)
    elif step.kind == "concat":
        _split_back(run, step, g_moved)
        return product
    else:
        total = steps.plain_back(step.operation, source, arriving, total)
    g_moved[read] = total
    return product


def _split_back(run: _Forward, step: Step, g) -> None:
    """Adds the parts of a concatenation's cotangent to those of its sources."""
    widths = tuple(run.values[source].shape[-1] for source in step.sources)
    totals = [g.get(source) for source in step.sources]
    parts = steps.concat_back(widths, g[step.target], totals)
    g.update(zip(step.sources, parts, strict=True))


def _at(params, path):
    for name in path:
        params = params[name]
    return params


def walk_statistics(
    plan: Plan,
    params: PyTree,
    x: Array,
    y: Array,
    names: Sequence[str],
    *,
    num_parts: int,
    is_native: bool = False,
) -> dict[str, PyTree]:
    """Statistics of a network that has a plan.

    Args:
      plan: of the network.
      params: its parameters, or those of a larger network that it is a part of.
      x: ``[batch, height, width, channels]``.
      y: ``[batch]``, labels.
      names: of ``WALKED``. Kernels and traces are of mapped coupling.
      num_parts: of the batch, for ``split_gradients``.
      is_native: whether ``conv_kernels`` computes the convolutions that it serves.

    Returns:
      Arrays on the host, by name; of a dead network only ``outputs``, which are zero.
    """
    if plan.is_dead:
        return {"outputs": jnp.zeros((len(x), 1))}
    plan = native_plan(plan) if is_native else plan
    run = _walk_forward(plan, params, x, is_moved="hessian" in names)
    logits = run.values[plan.steps[-1].target]
    found: dict[str, PyTree] = {"outputs": logits}
    if "activations" in names:
        found["activations"] = _activations(plan, run, is_native=is_native)
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
    wants = steps.Wants(is_gradient, "fisher" in names, len(kernels))
    given, is_input_asked = tuple(cotangents.values()), "input_gradient" in names
    back = _walk_back(plan, params, run, y, given, wants, is_input_asked=is_input_asked)
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
    wants = steps.Wants(is_gradient=False, is_fisher=False, num_kernels=1)
    copy = _Forward(dict(run.values), dict(run.saved), {}, {})
    of_layers, of_others = _walk_back(plan, params, copy, y, (cotangents,), wants).kernels
    return jnp.diag(of_layers[0] + of_others[0])


def _activations(plan, run, *, is_native) -> Activations:
    readers = Counter(
        step.sources[0]
        for step in plan.steps
        if step.operation is relu or (step.kind == "conv" and step.block.has_relu)
    )
    images = run.values[IMAGES]
    agreement, num_units = jnp.zeros((len(images), len(images)), images.dtype), 0
    for source, count in readers.items():
        value = run.values[source]
        agreement = steps.agreement(value, agreement, count, is_native)
        num_units += count * value[0].size
    return Activations(agreement, jnp.asarray(num_units, agreement.dtype))


def _split_gradients(plan, params, x, y, num_parts):
    wants = steps.Wants(is_gradient=True, is_fisher=False, num_kernels=0)
    parts = []
    for part_x, part_y in zip(jnp.split(x, num_parts), jnp.split(y, num_parts), strict=True):
        run = _walk_forward(plan, params, part_x)
        slope = jax.grad(mean_loss)(run.values[plan.steps[-1].target], part_y)
        seen = _walk_back(plan, params, run, part_y, (slope,), wants).seen
        parts.append([seen[place].gradient for place in sorted(seen)])
    return jax.jit(split_sums)(parts)


def _synflow(plan: Plan, params, x) -> Array:
    """In the logarithm, as values pass what float32 holds."""
    ones = jnp.ones_like(x[:1])
    flows, logarithm = {IMAGES: jnp.concatenate([ones, 0 * ones])}, jnp.zeros(())
    goes_on = _goes_on(plan)
    for place, step in enumerate(plan.steps):
        read = [flows[source] for source in step.sources]
        flow, total, weights = read[0], flows.get(step.target), _at(params, step.path)
        if step.kind == "conv":
            flows[step.target] = steps.conv_flow(step.block, weights, flow, logarithm, total)
        elif step.kind == "classify":
            product = jnp.log(steps.classify_flow(weights, flow)) + logarithm
        elif step.kind == "concat":
            flows[step.target] = steps.concat(read)
        elif step.kind == "plain" and step.operation not in (same, relu):  # nothing is negative
            flows[step.target] = steps.plain_flow(step.operation, flow, total)
        else:
            flows[step.target] = steps.plain(same, flow, total)
        values = goes_on.get(place, ())
        if values:  # the network is linear: all that goes on is scaled alike
            scaled, logarithm = steps.rescaled([flows[value] for value in values], logarithm)
            flows.update(zip(values, scaled, strict=True))
    return product


def _goes_on(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Values from which the network goes on, by places of steps after which these are few.

    Those are where cells end: with the value of one cell or, in DARTS, of the last two.
    """
    last = {}
    for place, step in enumerate(plan.steps):
        for value in (step.target, *step.sources):
            last[value] = place
    found, values = {}, (IMAGES,)
    for place, step in enumerate(plan.steps[:-1]):
        values = dict.fromkeys((*values, step.target))
        values = tuple(value for value in values if last[value] > place)
        if values == (step.target,) or (step.kind == "concat" and len(values) == 2):
            found[place] = values
    return found
