"""From statistics of a network to the number of a metric, on the host in float64."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nasjax.ntk import spectrum

Statistics = Mapping[str, Any]
"""Arrays on the host by the names of ``STATISTICS``, and those of ``score.batch_facts``."""

_NO_RELU = "the network has no ReLU"
_LEAST_SENSITIVITY = 1e-2
"""Of outputs to inputs, in relative terms. Networks have 50 to 1,000 and rounding has 1e-4; where
outputs scale with inputs, it is at least one."""


class Measured(NamedTuple):
    """The value of a metric.

    Attributes:
      value: the number, or NaN.
      failure: why the number does not count; None if it does.
    """

    value: float
    failure: str | None = None


ValueFn = Callable[[Statistics], Measured]


def reduced(need: str, reduce: Callable[[Any], float]) -> ValueFn:
    """A number that one statistic gives, for every network."""
    return lambda statistics: Measured(float(reduce(_in_float64(statistics[need]))))


def of_kernel(need: str, read: Callable) -> ValueFn:
    """A number read off the spectrum of a kernel; a failed kernel is a failure."""

    def value(statistics):
        found = spectrum(np.asarray(statistics[need]))
        if found.failure is not None:
            return Measured(np.nan, _with_cause(f"the kernel is {found.failure}", statistics))
        return Measured(float(read(found)))

    return value


def classes_min_eigenvalue(statistics: Statistics) -> Measured:
    """The sum over classes of the smallest eigenvalue of the kernel of a class's examples."""
    kernel, labels = np.asarray(statistics["kernel:label"]), statistics["labels"]
    total = 0.0
    for label in np.unique(labels):
        chosen = np.flatnonzero(labels == label)
        found = spectrum(kernel[np.ix_(chosen, chosen)])
        if found.failure is not None:
            message = f"the kernel of class {label} is {found.failure}"
            return Measured(np.nan, _with_cause(message, statistics))
        total += found.lambda_min
    return Measured(total)


def jacob_cov(statistics: Statistics) -> Measured:
    """How far the input gradients of examples are from one another in direction."""
    gradients = _float64(statistics["input_gradient"])
    if not np.ptp(gradients, axis=1).all():
        return Measured(np.nan, "the outputs of an example do not depend on it")
    sensitivity = np.linalg.norm(gradients, axis=1).mean() * statistics["mean_norm"]
    if sensitivity < _LEAST_SENSITIVITY * np.linalg.norm(_float64(statistics["outputs"]).std(0)):
        message = "input gradients are rounding: batch normalisation fixes the sum of the outputs"
        return Measured(np.nan, message)
    values = np.linalg.eigvalsh(np.corrcoef(gradients)) + 1e-5
    if statistics["num_duplicates"] or values.min() <= 0:
        return Measured(np.nan, _with_cause("the correlations are singular", statistics))
    return Measured(-float(np.sum(np.log(values) + 1 / values)))


def naswot(statistics: Statistics) -> Measured:
    """The logarithm of the determinant of the kernel of activation patterns."""
    kernel = _float64(statistics["activations"].agreement)
    if statistics["activations"].num_units == 0:
        return Measured(np.nan, _NO_RELU)
    if _num_patterns(statistics) < len(kernel):
        return Measured(np.nan, _with_cause("two examples have one activation pattern", statistics))
    sign, logarithm = np.linalg.slogdet(kernel)
    if sign <= 0:
        return Measured(np.nan, "the kernel of activation patterns is singular")
    return Measured(float(logarithm))


def linear_regions(statistics: Statistics) -> Measured:
    """How many activation patterns there are."""
    if statistics["activations"].num_units == 0:
        return Measured(np.nan, _NO_RELU)
    return Measured(float(_num_patterns(statistics)))


def log_sums(field: str) -> ValueFn:
    """The sum over layers of the logarithm of a field of ``split_gradients``."""

    def value(statistics):
        sums = _float64(getattr(statistics["split_gradients"], field))
        if not sums.any():
            return Measured(np.nan, "no gradient differs between parts of the batch")
        return Measured(float(np.log(sums[sums > 0]).sum()))

    return value


def _num_patterns(statistics) -> int:
    activations = statistics["activations"]
    is_same = np.asarray(activations.agreement) == float(activations.num_units)
    return len(np.unique(is_same, axis=0))


def _with_cause(message: str, statistics: Statistics) -> str:
    count = statistics["num_duplicates"]
    return f"{message}: {count} examples equal earlier ones" if count else message


def _in_float64(statistic):
    """An array, or a named tuple of arrays, in float64."""
    if isinstance(statistic, tuple):
        return type(statistic)(*map(_float64, statistic))
    return _float64(statistic)


def _float64(array) -> np.ndarray:
    return np.asarray(array, np.float64)
