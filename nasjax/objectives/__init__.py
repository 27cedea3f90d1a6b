"""What a search maximises: jitted functions of architecture logits, and how failures are scored."""

from nasjax.objectives.gumbel import straight_through_gumbel_softmax
from nasjax.objectives.trace_norm import (
    NasiInfo,
    cross_entropy,
    nasi_objective,
    one_shot_trace_norm,
)

__all__ = [
    "NasiInfo",
    "cross_entropy",
    "nasi_objective",
    "one_shot_trace_norm",
    "straight_through_gumbel_softmax",
]
