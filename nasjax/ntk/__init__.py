"""Neural tangent kernels: empirical and of infinite width, their spectra and approximations."""

from nasjax.ntk.blocks import NtkPlan
from nasjax.ntk.empirical import (
    METHODS,
    EmpiricalNtk,
    empirical_ntk,
    ntk_matrix,
    plan_empirical_ntk,
)
from nasjax.ntk.gradients import (
    BATCH_AXIS,
    COUPLINGS,
    OUTPUTS,
    flax_apply_fn,
    output_gradients,
)
from nasjax.ntk.spectrum import FAILURES, Spectrum, spectrum
from nasjax.ntk.trace_norm import (
    TraceEstimate,
    batch_loss_trace_norm,
    per_example_traces,
    random_trace_norm,
    summed_loss_trace_norm,
)

__all__ = [
    "BATCH_AXIS",
    "COUPLINGS",
    "FAILURES",
    "METHODS",
    "OUTPUTS",
    "EmpiricalNtk",
    "NtkPlan",
    "Spectrum",
    "TraceEstimate",
    "batch_loss_trace_norm",
    "empirical_ntk",
    "flax_apply_fn",
    "ntk_matrix",
    "output_gradients",
    "per_example_traces",
    "plan_empirical_ntk",
    "random_trace_norm",
    "spectrum",
    "summed_loss_trace_norm",
]
