"""What a search maximises: jitted functions of architecture logits, and how failures are scored."""

from nasjax.objectives.bounds import (
    BOUNDS,
    Bound,
    non_realizable,
    realizable,
    realizable_with_kappa,
    realizable_with_trade_off,
    transfer_gap,
)
from nasjax.objectives.gumbel import straight_through_gumbel_softmax
from nasjax.objectives.trace_norm import (
    NasiInfo,
    cross_entropy,
    nasi_objective,
    one_shot_trace_norm,
)
from nasjax.objectives.tuned import (
    RANGES,
    TradeOffObjective,
    TradeOffRanges,
    normal_scores,
    trade_off_objective,
    weighted_ranks_objective,
)

__all__ = [
    "BOUNDS",
    "RANGES",
    "Bound",
    "TradeOffObjective",
    "TradeOffRanges",
    "non_realizable",
    "normal_scores",
    "realizable",
    "realizable_with_kappa",
    "realizable_with_trade_off",
    "trade_off_objective",
    "transfer_gap",
    "weighted_ranks_objective",
    "NasiInfo",
    "cross_entropy",
    "nasi_objective",
    "one_shot_trace_norm",
    "straight_through_gumbel_softmax",
]
