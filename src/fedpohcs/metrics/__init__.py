"""Metrics of clients: returns, gradients, and the table D_n A_n, by which their worlds are compared.

A metric is one `Metric` (see `metrics.base`) and one line in `METRICS`. The names exported here concern the table.
"""

from typing import TYPE_CHECKING

from fedpohcs.core.lazy import importer

if TYPE_CHECKING:
    from fedpohcs.metrics.comparison import heterogeneity, learning_potential, selection_metric, stack_tables
    from fedpohcs.metrics.prediction import AdvantagePredictor
    from fedpohcs.metrics.weighted_advantage import compile_ahead, weighted_advantage_table

__all__ = [
    "AdvantagePredictor",
    "compile_ahead",
    "heterogeneity",
    "learning_potential",
    "selection_metric",
    "stack_tables",
    "weighted_advantage_table",
]

__getattr__ = importer(  # lazy, because Numba and SciPy are slow to load and most metrics need neither
    __name__,
    {
        "comparison": "heterogeneity learning_potential selection_metric stack_tables",
        "prediction": "AdvantagePredictor",
        "weighted_advantage": "compile_ahead weighted_advantage_table",
    },
)
