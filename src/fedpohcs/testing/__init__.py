"""Checks that plug-ins keep the contracts of the package. They raise AssertionError and need no test framework."""

from typing import TYPE_CHECKING

from fedpohcs.core.lazy import importer

if TYPE_CHECKING:
    from fedpohcs.testing.learners import check_learner, quick_config
    from fedpohcs.testing.metrics import check_metric
    from fedpohcs.testing.probes import PROBES, check_probe, run_probe
    from fedpohcs.testing.server import check_aggregator, check_optimiser, check_selector
    from fedpohcs.testing.worlds import check_world

__all__ = [
    "PROBES",
    "check_aggregator",
    "check_learner",
    "check_metric",
    "check_optimiser",
    "check_probe",
    "check_selector",
    "check_world",
    "quick_config",
    "run_probe",
]

__getattr__ = importer(
    __name__,
    {
        "learners": "check_learner quick_config",
        "metrics": "check_metric",
        "probes": "PROBES check_probe run_probe",
        "server": "check_aggregator check_optimiser check_selector",
        "worlds": "check_world",
    },
)


def __dir__() -> list[str]:
    return __all__
