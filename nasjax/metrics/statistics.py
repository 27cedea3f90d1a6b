"""What metrics are computed from, by automatic differentiation of any network."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int

from nasjax.errors import InputError
from nasjax.metrics.taps import TappedFn
from nasjax.ntk import ntk_matrix, per_example_traces, summed_loss_trace_norm
from nasjax.ntk.empirical import check_network, to_float64
from nasjax.ntk.gradients import ApplyFn
from nasjax.types import PyTree


class ScoredNetwork(NamedTuple):
    """A network in the forms that metrics ask for, all with the same parameters.

    Attributes:
      apply_fn: ``(params, x) -> [batch, classes]``.
      params: its parameters. Arrays of two and more axes are weights; others, such as biases and
        the scales of normalisations, count in kernels alone.
      mapped_apply_fn: the same, with batch statistics read over ``ntk.BATCH_AXIS``; None for a
        network without batch statistics.
      linear_apply_fn: the same without any normalisation, for ``synflow``; None takes ``apply_fn``
        where it has no batch statistics.
      partly_linear_apply_fn: without normalisation but in reduction blocks, for ``synflow:code``.
    """

    apply_fn: ApplyFn
    params: PyTree
    mapped_apply_fn: ApplyFn | None = None
    linear_apply_fn: ApplyFn | None = None
    partly_linear_apply_fn: ApplyFn | None = None


class LayerSums(NamedTuple):
    """Sums over the weights of every layer, with ``g`` the gradient of the mean loss.

    Attributes:
      squares: ``[layers]``, of ``g^2``, in (loss / weight)^2.
      products: ``[layers]``, of ``theta g``, in the unit of the loss.
      magnitudes: ``[layers]``, of ``|theta g|``.
    """

    squares: Float[Array, " layers"]
    products: Float[Array, " layers"]
    magnitudes: Float[Array, " layers"]


class Activations(NamedTuple):
    """Which ReLUs are on.

    Attributes:
      agreement: ``[batch, batch]``, ReLUs that are both on or both off in two examples.
      num_units: ``[]``, ReLUs of an example.
    """

    agreement: Float[Array, "batch batch"]
    num_units: Float[Array, ""]


class Fisher(NamedTuple):
    """Fisher sums over all channels of all layers.

    Attributes:
      channels: ``[]``, ``(sum_pixels a dL/da)^2 / 2`` averaged over the batch and summed.
      weights: ``[]``, the same, each channel times its number of weights.
    """

    channels: Float[Array, ""]
    weights: Float[Array, ""]


class SplitGradients(NamedTuple):
    """Mean over standard deviation of gradients over parts of a batch, summed in every layer.

    Attributes:
      magnitudes: ``[layers]``, with the deviation of ``|g|``.
      signed: ``[layers]``, with the deviation of ``g``.
    """

    magnitudes: Float[Array, " layers"]
    signed: Float[Array, " layers"]


def mean_loss(logits: Float[Array, "batch classes"], y: Int[Array, " batch"]) -> Float[Array, ""]:
    """The mean cross-entropy of a batch, of which all gradients are."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def _loss(apply_fn, params, x, y):
    return mean_loss(apply_fn(params, x), y)


def _weights(tree) -> list[Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim > 1]


def _layer_sums(of, weights, gradients) -> Float[Array, " layers"]:
    pairs = zip(weights, gradients, strict=True)
    return jnp.stack([jnp.sum(of(weight, gradient)) for weight, gradient in pairs])


def _outputs(network, x, y):
    return network.apply_fn(network.params, x)


def _gradient(network, x, y) -> LayerSums:
    gradients = jax.grad(lambda params: _loss(network.apply_fn, params, x, y))(network.params)
    weights, gradients = _weights(network.params), _weights(gradients)
    return LayerSums(
        squares=_layer_sums(lambda w, g: g * g, weights, gradients),
        products=_layer_sums(lambda w, g: w * g, weights, gradients),
        magnitudes=_layer_sums(lambda w, g: jnp.abs(w * g), weights, gradients),
    )


def _hessian(network, x, y):
    """The sum of ``theta H g`` over weights, as ``g . (H theta)``: one pass gives both."""
    gradient_fn = jax.grad(lambda params: _loss(network.apply_fn, params, x, y))
    along = jax.tree.map(lambda a: a if a.ndim > 1 else jnp.zeros_like(a), network.params)
    gradients, products = jax.jvp(gradient_fn, (network.params,), (along,))
    terms = zip(_weights(gradients), _weights(products), strict=True)
    return sum(jnp.vdot(g, p) for g, p in terms)


def _kernel(network, x, y, *, outputs, coupling, chosen=None):
    """The kernel of all parameters, or of those that ``chosen`` names."""
    apply_fn = network.mapped_apply_fn if coupling == "mapped" else network.apply_fn
    leaves, structure = jax.tree.flatten_with_path(network.params)
    is_chosen = [chosen is None or chosen(path, leaf, leaves) for path, leaf in leaves]
    arrays = [leaf for _, leaf in leaves]

    def of_chosen(params, x):
        params = iter(params)
        whole = [next(params) if is_in else a for a, is_in in zip(arrays, is_chosen, strict=True)]
        return apply_fn(jax.tree.unflatten(structure, whole), x)

    return ntk_matrix(
        *(of_chosen, [a for a, is_in in zip(arrays, is_chosen, strict=True) if is_in], x),
        outputs=outputs,
        labels=y if outputs == "label" else None,
        coupling=coupling,
    )


def _is_of_layer(path, leaf, leaves) -> bool:
    """Weights, and the biases beside them: not what belongs to a normalisation."""
    return any(other.ndim > 1 and where[:-1] == path[:-1] for where, other in leaves)


def _is_weight(path, leaf, leaves) -> bool:
    """All but biases: weights, and the scales of normalisations."""
    return leaf.ndim > 1 or getattr(path[-1], "key", None) == "scale"


def _traces(network, x, y, *, coupling):
    apply_fn = network.mapped_apply_fn if coupling == "mapped" else network.apply_fn
    return per_example_traces(apply_fn, network.params, x, coupling=coupling, outputs_at_once=1)


def _example_gradients(network, x, y, *, coupling):
    """``[batch]``: squared norms of the gradients of each example's own loss."""
    apply_fn = network.mapped_apply_fn if coupling == "mapped" else network.apply_fn
    return summed_loss_trace_norm(apply_fn, network.params, x, y, coupling=coupling)


def _activations(network, x, y) -> Activations:
    relus = TappedFn(network.apply_fn)(network.params, x).relus
    agreement, num_units = jnp.zeros((len(x), len(x))), 0
    for relu in relus:
        signs = jnp.where(relu > 0, 1, -1).astype(jnp.int8).reshape(len(x), -1)
        same = jnp.matmul(signs, signs.T, preferred_element_type=jnp.int32)
        agreement += (signs.shape[1] + same) / 2
        num_units += signs.shape[1]
    return Activations(agreement, jnp.asarray(num_units, agreement.dtype))


def _fisher(network, x, y) -> Fisher:
    tapped = TappedFn(network.apply_fn)
    shapes = jax.eval_shape(lambda: tapped(network.params, x).layers)

    def loss(offsets):
        seen = tapped(network.params, x, offsets)
        return mean_loss(seen.outputs, y), seen

    gradients, seen = jax.grad(loss, has_aux=True)([jnp.zeros(s.shape, s.dtype) for s in shapes])
    channels = []
    for layer, gradient in zip(seen.layers, gradients, strict=True):
        pixels = (layer * gradient).reshape(len(x), -1, layer.shape[-1]).sum(1)
        channels.append((pixels**2).mean(0).sum() / 2)
    return Fisher(sum(channels), sum(c * fan for c, fan in zip(channels, seen.fans, strict=True)))


def _input_gradient(network, x, y) -> Float[Array, "batch inputs"]:
    gradient = jax.grad(lambda x: network.apply_fn(network.params, x).sum())(x)
    return gradient.reshape(len(x), -1)


def _split_gradients(network, x, y, *, num_parts: int) -> SplitGradients:
    """Gradients of equal parts of the batch, one after the other, with what is needed of each."""
    gradient_fn = jax.grad(lambda params, x, y: _loss(network.apply_fn, params, x, y))
    parts = [
        _weights(gradient_fn(network.params, part_x, part_y))
        for part_x, part_y in zip(jnp.split(x, num_parts), jnp.split(y, num_parts), strict=True)
    ]
    return split_sums(parts)


def split_sums(parts: Sequence[Sequence[Array]]) -> SplitGradients:
    """Sums of mean over deviation, from the gradients of every layer in every part."""
    magnitudes, signed = [], []
    for layer in zip(*parts, strict=True):
        gradients = jnp.stack(layer)
        mean = jnp.abs(gradients).mean(0)
        for sums, values in ((magnitudes, jnp.abs(gradients)), (signed, gradients)):
            deviation = values.std(0)
            sums.append(jnp.sum(jnp.where(deviation > 0, mean / deviation, 0.0)))
    return SplitGradients(jnp.stack(magnitudes), jnp.stack(signed))


def _synflow(network, x, y, *, form: str):
    """Logarithm of the sum of ``|theta dR / dtheta|``, at parameters that are magnitudes."""
    apply_fn = getattr(network, form) or network.apply_fn
    params = jax.tree.map(jnp.abs, network.params)
    gradients = jax.grad(lambda params: apply_fn(params, jnp.ones_like(x[:1])).sum())(params)
    pairs = zip(_weights(params), _weights(gradients), strict=True)
    return jnp.log(sum(jnp.abs(weight * gradient).sum() for weight, gradient in pairs))


STATISTICS: dict[str, Callable] = {
    "outputs": _outputs,
    "gradient": _gradient,
    "hessian": _hessian,
    "example_gradients": _example_gradients,
    "traces": _traces,
    "kernel:sum": partial(_kernel, outputs="sum"),
    "kernel:sum:exact": partial(_kernel, outputs="sum", chosen=_is_weight),
    "kernel:label": partial(_kernel, outputs="label"),
    "kernel:label:hook": partial(_kernel, outputs="label", chosen=_is_of_layer),
    "activations": _activations,
    "fisher": _fisher,
    "input_gradient": _input_gradient,
    "split_gradients": _split_gradients,
    "synflow": partial(_synflow, form="linear_apply_fn"),
    "synflow:code": partial(_synflow, form="partly_linear_apply_fn"),
}
"""Every statistic by name: ``(network, x, y) -> arrays``. Kernels and traces are those of the
coupling that is asked for, but ``:exact`` and ``:hook`` (mapped) ones, which are of their name."""

COUPLED = frozenset(("example_gradients", "traces", "kernel:sum", "kernel:label"))
"""Statistics that depend on the coupling that is asked for."""

_FLOAT64 = frozenset(("synflow", "synflow:code"))


def statistics(
    network: ScoredNetwork,
    x: Array,
    y: Int[Array, " batch"],
    names: Sequence[str],
    *,
    coupling: str,
    num_parts: int,
) -> dict[str, PyTree]:
    """Statistics of a network by automatic differentiation, as one compiled program.

    The reference for every faster way. ``synflow`` is computed in float64, by a program of its own.

    Args:
      network: the network.
      x: ``[batch, ...]``.
      y: ``[batch]``, labels.
      names: keys of ``STATISTICS``.
      coupling: of kernels and traces, where examples act on each other: ``"exact"`` or
        ``"mapped"``. A network without ``mapped_apply_fn`` must treat its examples apart for
        ``"mapped"``, which is checked.
      num_parts: of the batch, for ``split_gradients``.

    Returns:
      Arrays on the host, by name.

    Raises:
      InputError: if the network lacks a form that is needed, or the batch has no such parts.
    """
    _check_forms(network, names)
    of_examples = [name for name in names if name in COUPLED or name == "kernel:label:hook"]
    if of_examples and coupling == "mapped" and network.mapped_apply_fn is None:
        try:
            check_network(of_examples[0], network.apply_fn, network.params, x, coupling="none")
        except InputError as error:
            raise InputError(f"{error} Or give the network's `mapped_apply_fn`.") from error

    def found(names, params, x, y):
        bound = network._replace(params=params)
        options = {"coupling": coupling, "num_parts": num_parts}
        return {name: on_network(name, bound, x, y, **options) for name in names}

    return run_programs(jax.jit(found, static_argnums=0), names, network.params, x, y)


def run_programs(compiled: Callable, names: Sequence[str], params, x, y) -> dict[str, PyTree]:
    """Statistics of a batch by one program, and those that need float64 by another.

    Args:
      compiled: ``(names, params, x, y) -> statistics``, jitted, ``names`` static.
      names: keys of ``STATISTICS``.
      params: of the network.
      x: ``[batch, ...]``.
      y: ``[batch]``.

    Returns:
      Arrays on the host, by name.
    """
    narrow = tuple(name for name in names if name not in _FLOAT64)
    wide = tuple(name for name in names if name in _FLOAT64)
    found = jax.device_get(compiled(narrow, params, x, y)) if narrow else {}
    if wide:
        with jax.enable_x64(True):
            # Of one image, as SynFlow is of an image of ones.
            params, x = jax.tree.map(to_float64, (params, x[:1]))
            found |= jax.device_get(compiled(wide, params, x, y[:1]))
    return found


def on_network(
    name: str,
    network: ScoredNetwork,
    x: Array,
    y: Int[Array, " batch"],
    *,
    coupling: str,
    num_parts: int,
) -> PyTree:
    """One statistic as a traced function; ``statistics`` says what the arguments are."""
    statistic = STATISTICS[name]
    if name == "split_gradients":
        if num_parts < 2 or len(x) % num_parts:
            raise InputError(
                f"statistics: `num_parts` must be at least 2 and divide the batch of {len(x)}, got "
                f"{num_parts}."
            )
        return statistic(network, x, y, num_parts=num_parts)
    fixed = {"kernel:sum:exact": "exact", "kernel:label:hook": "mapped"}
    if name not in COUPLED and name not in fixed:
        return statistic(network, x, y)
    coupling = fixed.get(name, coupling)
    if coupling == "mapped" and network.mapped_apply_fn is None:
        coupling = "none"
    return statistic(network, x, y, coupling=coupling)


def _check_forms(network: ScoredNetwork, names: Sequence[str]) -> None:
    if network.mapped_apply_fn is None:
        return
    for name, form in (
        ("synflow", network.linear_apply_fn),
        ("synflow:code", network.partly_linear_apply_fn),
    ):
        if name in names and form is None:
            raise InputError(
                f"{name}: the network must be given without its normalisation, and is not. Set "
                f"`{'linear' if name == 'synflow' else 'partly_linear'}_apply_fn`."
            )
