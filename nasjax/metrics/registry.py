"""Every metric by name: what it needs, and what its number means."""

from typing import NamedTuple

import numpy as np

from nasjax.metrics.values import (
    ValueFn,
    classes_min_eigenvalue,
    jacob_cov,
    linear_regions,
    log_sums,
    naswot,
    of_kernel,
    reduced,
)


class Metric(NamedTuple):
    """A training-free metric. A name with a suffix is another form, mostly that of public code.

    Attributes:
      direction: ``"higher"`` or ``"lower"``: what is taken for better.
      unit: of the value; empty for a pure number.
      cost: in passes over the batch, forward (F) and backward (B), for ``b`` examples.
      domain: where the value means something, and what it depends on.
      source: paper and equation, or the code whose form it is.
      needs: keys of ``STATISTICS``.
      value: ``(statistics) -> value``, on the host in float64.
    """

    direction: str
    unit: str
    cost: str
    domain: str
    source: str
    needs: tuple[str, ...]
    value: ValueFn


_ANY = "any network"
_KERNEL = "any network; through batch statistics, by the coupling that is asked for"
_ZERO_COST = "code of Abdelfattah et al. (2021)"
_HNAS_CODE = "code of HNAS: label logits, each example's own product of input and cotangent"

METRICS: dict[str, Metric] = {
    "grad_norm": Metric(
        direction="higher",
        unit="loss / weight",
        cost="F + B",
        domain=f"{_ANY}; the classifier and the shortcuts dominate it",
        source="HNAS, eq. (2)",
        needs=("gradient",),
        value=reduced("gradient", lambda sums: np.sqrt(np.sum(sums.squares))),
    ),
    "grad_norm:code": Metric(
        direction="higher",
        unit="loss / weight",
        cost="F + B",
        domain=_ANY,
        source=f"{_ZERO_COST}: norms of layers, summed",
        needs=("gradient",),
        value=reduced("gradient", lambda sums: np.sum(np.sqrt(sums.squares))),
    ),
    "snip": Metric(
        direction="higher",
        unit="loss",
        cost="F + B",
        domain=_ANY,
        source="HNAS, eq. (3)",
        needs=("gradient",),
        value=reduced("gradient", lambda sums: abs(np.sum(sums.products))),
    ),
    "snip:code": Metric(
        direction="higher",
        unit="loss",
        cost="F + B",
        domain=_ANY,
        source=f"{_ZERO_COST}: magnitudes, summed",
        needs=("gradient",),
        value=reduced("gradient", lambda sums: np.sum(sums.magnitudes)),
    ),
    "grasp": Metric(
        direction="higher",
        unit="(loss / weight)^2",
        cost="2 F + 2 B",
        domain=_ANY,
        source="HNAS, eq. (3), with Hessian and gradient of the whole batch",
        needs=("hessian",),
        value=reduced("hessian", abs),
    ),
    "grasp:code": Metric(
        direction="higher",
        unit="(loss / weight)^2",
        cost="2 F + 2 B",
        domain=f"{_ANY}; the sign changes with the seed on nearly linear ones",
        source=f"{_ZERO_COST}: signed, negated",
        needs=("hessian",),
        value=reduced("hessian", lambda product: -product),
    ),
    "trace": Metric(
        direction="higher",
        unit="output / parameter",
        cost="F + a backward pass an output (an output and example: exact)",
        domain=_KERNEL,
        source="HNAS, eq. (4)",
        needs=("traces",),
        value=reduced("traces", lambda traces: np.sqrt(np.mean(traces))),
    ),
    "trace:hnas": Metric(
        direction="higher",
        unit="output / parameter",
        cost="F + B",
        domain=_ANY,
        source=_HNAS_CODE,
        needs=("kernel:label:hook",),
        value=reduced("kernel:label:hook", lambda kernel: np.sqrt(np.trace(kernel) / len(kernel))),
    ),
    "nasi_trace": Metric(
        direction="higher",
        unit="(loss / weight)^2",
        cost="F + B",
        domain=_ANY,
        source="NASI, eq. (12)",
        needs=("gradient",),
        value=reduced("gradient", lambda sums: np.sum(sums.squares)),
    ),
    "nasi_trace:sum": Metric(
        direction="higher",
        unit="(loss / parameter)^2",
        cost="F + B (exact: F + b B)",
        domain=_KERNEL,
        source="NASI, eq. (11)",
        needs=("example_gradients",),
        value=reduced("example_gradients", float),
    ),
    "condition_number": Metric(
        direction="lower",
        unit="",
        cost="F + B (exact: F + b B)",
        domain=f"{_KERNEL}, not singular",
        source="TE-NAS and HNAS, of summed logits",
        needs=("kernel:sum",),
        value=of_kernel("kernel:sum", lambda found: found.condition_number),
    ),
    "condition_number:tenas": Metric(
        direction="lower",
        unit="",
        cost="F + b B",
        domain="not singular",
        source="code of TE-NAS: summed logits, through batch statistics, without biases",
        needs=("kernel:sum:exact",),
        value=of_kernel("kernel:sum:exact", lambda found: found.condition_number),
    ),
    "condition_number:hnas": Metric(
        direction="lower",
        unit="",
        cost="F + B",
        domain="not singular",
        source=_HNAS_CODE,
        needs=("kernel:label:hook",),
        value=of_kernel("kernel:label:hook", lambda found: found.condition_number),
    ),
    "min_eigenvalue": Metric(
        direction="higher",
        unit="(output / parameter)^2",
        cost="F + B (exact: F + b B)",
        domain=_KERNEL,
        source="Eigen-NAS, sec. 5.2: its bound, the mean of the diagonal",
        needs=("kernel:sum",),
        value=reduced("kernel:sum", lambda kernel: np.trace(kernel) / len(kernel)),
    ),
    "min_eigenvalue:exact": Metric(
        direction="higher",
        unit="(output / parameter)^2",
        cost="F + B (exact: F + b B)",
        domain=f"{_KERNEL}, not singular",
        source="Eigen-NAS, sec. 5.2",
        needs=("kernel:sum",),
        value=of_kernel("kernel:sum", lambda found: found.lambda_min),
    ),
    "min_eigenvalue:code": Metric(
        direction="higher",
        unit="(output / parameter)^2",
        cost="F + B (exact: F + b B)",
        domain=f"{_KERNEL}, not singular in any class",
        source="code of Eigen-NAS: summed over the kernels of classes",
        needs=("kernel:label",),
        value=classes_min_eigenvalue,
    ),
    "fisher": Metric(
        direction="higher",
        unit="loss^2",
        cost="F + B",
        domain="networks of dense and convolution layers",
        source="Abdelfattah et al. (2021), after Turner et al. (2020)",
        needs=("fisher",),
        value=reduced("fisher", lambda sums: sums.channels),
    ),
    "fisher:code": Metric(
        direction="higher",
        unit="loss^2",
        cost="F + B",
        domain="networks of dense and convolution layers",
        source=f"{_ZERO_COST}: each channel times its weights",
        needs=("fisher",),
        value=reduced("fisher", lambda sums: sums.weights),
    ),
    "synflow": Metric(
        direction="higher",
        unit="",
        cost="F + B of one image, float64",
        domain="networks with a form without normalisation",
        source="Tanaka et al. (2020), SynFlow",
        needs=("synflow",),
        value=reduced("synflow", np.exp),
    ),
    "synflow:code": Metric(
        direction="higher",
        unit="",
        cost="F + B of one image, float64",
        domain="NAS-Bench-201",
        source=f"{_ZERO_COST}: reduction blocks stay normalised",
        needs=("synflow:code",),
        value=reduced("synflow:code", np.exp),
    ),
    "jacob_cov": Metric(
        direction="higher",
        unit="",
        cost="F + B",
        domain=f"{_ANY} but those that end in batch normalisation (DARTS), no two equal examples",
        source="Mellor et al. (2020), first version",
        needs=("input_gradient",),
        value=jacob_cov,
    ),
    "naswot": Metric(
        direction="higher",
        unit="nat",
        cost="F",
        domain="networks of ReLUs, no two examples with one pattern",
        source="Mellor et al. (2021)",
        needs=("activations",),
        value=naswot,
    ),
    "knas": Metric(
        direction="higher",
        unit="(output / parameter)^2",
        cost="F + B (exact: F + b B)",
        domain=_KERNEL,
        source="Xu et al. (2021), KNAS, of summed logits",
        needs=("kernel:sum",),
        value=reduced("kernel:sum", np.mean),
    ),
    "linear_regions": Metric(
        direction="higher",
        unit="patterns",
        cost="F",
        domain="networks of ReLUs; saturates at the number of examples",
        source="Chen et al. (2021), TE-NAS",
        needs=("activations",),
        value=linear_regions,
    ),
    "zico": Metric(
        direction="higher",
        unit="nat",
        cost="F + B a part of the batch",
        domain=f"{_ANY}, two parts and more",
        source="Li et al. (2023), ZiCo",
        needs=("split_gradients",),
        value=log_sums("magnitudes"),
    ),
    "zico:code": Metric(
        direction="higher",
        unit="nat",
        cost="F + B a part of the batch",
        domain=f"{_ANY}, two parts and more",
        source="code of Li et al. (2023): deviation of signed gradients",
        needs=("split_gradients",),
        value=log_sums("signed"),
    ),
}
"""Every metric by name."""
