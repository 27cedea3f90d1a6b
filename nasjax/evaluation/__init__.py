"""Benchmark tables, correlations and pictures: what is known and shown about architectures."""

from nasjax.evaluation.choices_plot import draw_choices
from nasjax.evaluation.correlation import KINDS, Correlation, correlation
from nasjax.evaluation.correlation_plot import draw_correlations
from nasjax.evaluation.curves import draw_curves
from nasjax.evaluation.eigen_plot import draw_lambda_min
from nasjax.evaluation.generalization_plot import draw_generalization
from nasjax.evaluation.nats_tables import load_nats_bench
from nasjax.evaluation.plots import draw_cells
from nasjax.evaluation.search_plot import draw_comparison, draw_search
from nasjax.evaluation.selection_plot import draw_selection
from nasjax.evaluation.tables import Nasbench201Entry, Nasbench201Table, load_nasbench201_table
from nasjax.evaluation.validation_plot import draw_validation

__all__ = [
    "KINDS",
    "Correlation",
    "Nasbench201Entry",
    "Nasbench201Table",
    "correlation",
    "draw_cells",
    "draw_choices",
    "draw_comparison",
    "draw_correlations",
    "draw_curves",
    "draw_generalization",
    "draw_lambda_min",
    "draw_search",
    "draw_selection",
    "draw_validation",
    "load_nasbench201_table",
    "load_nats_bench",
]
