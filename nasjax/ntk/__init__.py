"""Neural tangent kernels: empirical and of infinite width, their spectra and approximations."""

from nasjax.ntk.blocks import NtkPlan
from nasjax.ntk.bounds import (
    ActivationConstants,
    Bounds,
    activation_constants,
    data_bound,
    finite_lambda_min_bounds,
    lambda_min_bounds,
    linear_cell_ntk_scales,
    loss_bound,
)
from nasjax.ntk.cell_kernel import cell_network_ntk
from nasjax.ntk.empirical import (
    METHODS,
    EmpiricalNtk,
    empirical_ntk,
    ntk_matrix,
    plan_empirical_ntk,
)
from nasjax.ntk.generalization import (
    GeneralizationTerms,
    generalization_terms,
    lipschitz_constant,
)
from nasjax.ntk.gradients import (
    BATCH_AXIS,
    COUPLINGS,
    OUTPUTS,
    flax_apply_fn,
    output_gradients,
)
from nasjax.ntk.infinite_kernel import InfiniteKernel
from nasjax.ntk.mlp_kernel import MLP_METHODS, mlp_ntk
from nasjax.ntk.mlp_spectra import (
    TRACE_DIVISORS,
    MlpSpectra,
    mlp_lambda_min,
    mlp_spectra,
    mlp_trace_bound,
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
    "MLP_METHODS",
    "OUTPUTS",
    "TRACE_DIVISORS",
    "ActivationConstants",
    "Bounds",
    "EmpiricalNtk",
    "GeneralizationTerms",
    "InfiniteKernel",
    "MlpSpectra",
    "NtkPlan",
    "Spectrum",
    "TraceEstimate",
    "activation_constants",
    "batch_loss_trace_norm",
    "cell_network_ntk",
    "data_bound",
    "empirical_ntk",
    "finite_lambda_min_bounds",
    "flax_apply_fn",
    "generalization_terms",
    "lambda_min_bounds",
    "linear_cell_ntk_scales",
    "lipschitz_constant",
    "loss_bound",
    "mlp_lambda_min",
    "mlp_ntk",
    "mlp_spectra",
    "mlp_trace_bound",
    "ntk_matrix",
    "output_gradients",
    "per_example_traces",
    "plan_empirical_ntk",
    "random_trace_norm",
    "spectrum",
    "summed_loss_trace_norm",
]
