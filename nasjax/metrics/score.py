"""Scores one network by a set of metrics."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from nasjax.errors import InputError, unknown_name
from nasjax.metrics.registry import METRICS
from nasjax.metrics.statistics import ScoredNetwork, statistics
from nasjax.metrics.values import Statistics
from nasjax.ntk.empirical import count_duplicates, to_float64


class Scores(NamedTuple):
    """What metrics give for one network.

    Attributes:
      values: by metric; NaN where the metric failed, so that it never wins a comparison.
      flags: why a metric failed, by its name.
      warnings: what to know of a value that counts, by the name of the metric.
    """

    values: dict[str, float]
    flags: dict[str, str]
    warnings: dict[str, str]


def score_network(
    network: ScoredNetwork,
    x: Array,
    y: Int[Array, " batch"],
    metrics: Sequence[str],
    *,
    coupling: str = "mapped",
    num_parts: int = 2,
    dtype: str | None = None,
) -> Scores:
    """Training-free metrics of one network, by automatic differentiation.

    What several metrics need is computed once. The program is compiled for this network.

    Args:
      network: the network, in the forms that the metrics need.
      x: ``[batch, ...]``, at least two examples.
      y: ``[batch]``, labels from 0.
      metrics: keys of ``METRICS``.
      coupling: ``"mapped"`` or ``"exact"``: how kernels and traces treat batch statistics, where
        the network has them and the metric's name does not say.
      dtype: float64 computes everything in it; None in the types at hand.
      num_parts: of the batch, for ``zico``.

    Returns:
      Values and flags.

    Raises:
      InputError: for unknown metrics, inputs that are not finite or too few, labels that do not
        fit, and forms of the network that are missing.

    Example:
      >>> import jax
      >>> network = ScoredNetwork(lambda w, x: jax.nn.relu(x) @ w, jnp.eye(2))
      >>> x, y = jnp.array([[1.0, -2.0], [3.0, 1.0]]), jnp.array([0, 1])
      >>> scores = score_network(network, x, y, ["grad_norm", "linear_regions"])
      >>> scores.values["linear_regions"]
      2.0
    """
    if dtype is not None:
        if dtype != "float64":
            raise unknown_name("score_network", "dtype", dtype, ["float64"])
        with jax.enable_x64(True):
            params, x = jax.tree.map(to_float64, (network.params, x))
            network = network._replace(params=params)
            return score_network(network, x, y, metrics, coupling=coupling, num_parts=num_parts)
    metrics = check_metrics("score_network", metrics)
    x, y = check_batch("score_network", x, y)
    if coupling not in ("exact", "mapped"):
        raise unknown_name("score_network", "coupling", coupling, ("exact", "mapped"))
    outputs = jax.eval_shape(network.apply_fn, network.params, x)
    check_labels("score_network", y, outputs.shape[-1])
    names = needed_statistics(metrics)
    found = statistics(network, x, y, names, coupling=coupling, num_parts=num_parts)
    return evaluate(metrics, found | batch_facts(x, y))


def check_metrics(where: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """The names, without repetitions; ``InputError`` for none, and for one that is unknown."""
    if isinstance(metrics, str) or not len(metrics):
        raise InputError(f"{where}: `metrics` must be a list of names, got {metrics!r}.")
    for name in metrics:
        if name not in METRICS:
            raise unknown_name(where, "metric", name, METRICS)
    return tuple(dict.fromkeys(metrics))


def check_batch(where: str, x: Array, y: Array) -> tuple[Array, Array]:
    """The batch as arrays.

    Args:
      where: the function that was called, for messages.
      x: ``[batch, ...]``.
      y: ``[batch]``.

    Returns:
      ``x`` and ``y``, the labels int32.

    Raises:
      InputError: if there are fewer than two examples, a value is not finite, or labels do not fit.
    """
    x, y = jnp.asarray(x), jnp.asarray(y)
    if x.ndim < 2 or len(x) < 2:
        raise InputError(
            f"{where}: `x` must be [batch, ...] with two examples or more, got {list(x.shape)}: "
            "most metrics compare examples."
        )
    if y.shape != (len(x),) or not jnp.issubdtype(y.dtype, jnp.integer):
        raise InputError(
            f"{where}: `y` must be [{len(x)}] integers, one an example, got "
            f"{y.dtype}{list(y.shape)}."
        )
    bad = np.flatnonzero(~np.isfinite(np.asarray(x).reshape(len(x), -1)).all(1))
    if len(bad):
        raise InputError(
            f"{where}: `x` must be finite, got NaN or infinity in {len(bad)} of {len(x)} examples, "
            f"the first at {bad[0]}."
        )
    return x, y.astype(jnp.int32)


def check_labels(where: str, y: Array, num_outputs: int) -> None:
    """``InputError`` for labels of which a network has no output: indices would be clamped."""
    least, most = int(jnp.min(y)), int(jnp.max(y))
    if least < 0 or most >= num_outputs:
        raise InputError(
            f"{where}: `y` must be labels from 0 to {num_outputs - 1}, as the network has "
            f"{num_outputs} outputs, got {least} to {most}. Number them from 0, or give the "
            "network more outputs (`num_classes`)."
        )


def needed_statistics(metrics: Sequence[str]) -> tuple[str, ...]:
    """What metrics need, each once; the outputs always, as they show a dead network."""
    needs = [need for name in metrics for need in METRICS[name].needs]
    return tuple(dict.fromkeys(("outputs", *needs)))


def batch_facts(x: Array, y: Array) -> dict[str, np.ndarray | int | float]:
    """What metrics need to know of the batch itself, beside statistics of networks."""
    norms = np.linalg.norm(np.asarray(x, np.float64).reshape(len(x), -1), axis=1)
    return {
        "labels": np.asarray(y),
        "num_duplicates": count_duplicates(x),
        "mean_norm": float(norms.mean()),
    }


def evaluate(metrics: Sequence[str], statistics: Statistics) -> Scores:
    """Metrics from statistics.

    Args:
      metrics: keys of ``METRICS``.
      statistics: of ``needed_statistics(metrics)``, with ``batch_facts``.

    Returns:
      Values and flags. A network whose outputs are the same for every example fails in all metrics.
    """
    values, flags, warnings = {}, {}, {}
    failure = _network_failure(statistics)
    for name in metrics:
        value, flag = METRICS[name].value(statistics) if failure is None else (np.nan, failure)
        if flag is None and not np.isfinite(value):
            flag = f"the value is {value}"
        values[name] = value if flag is None else np.nan
        if flag is not None:
            flags[name] = flag
        elif name == "linear_regions" and value == len(statistics["outputs"]):
            warnings[name] = "saturated: every example has a pattern of its own"
    return Scores(values, flags, warnings)


def _network_failure(statistics: Statistics) -> str | None:
    outputs = np.asarray(statistics["outputs"])
    if not np.isfinite(outputs).all():
        return "the network's outputs are not finite"
    if not np.ptp(outputs, axis=0).any() and statistics["num_duplicates"] < len(outputs) - 1:
        return "dead network: its outputs are the same for every example"
    return None
