"""Benchmark tables and pictures: what is known and shown about an architecture."""

from nasjax.evaluation.plots import draw_cells
from nasjax.evaluation.tables import Nasbench201Entry, Nasbench201Table, load_nasbench201_table

__all__ = ["Nasbench201Entry", "Nasbench201Table", "draw_cells", "load_nasbench201_table"]
