"""Federated reinforcement learning with heterogeneity-aware client selection.

Names are imported when first used, so that `import fedpohcs` and the command line start at once.
"""

from typing import TYPE_CHECKING

from fedpohcs.lazy import importer

if TYPE_CHECKING:
    from fedpohcs.config import (
        AttackConfig,
        DefenceConfig,
        ExperimentConfig,
        FederationConfig,
        LearnerConfig,
        ModellingConfig,
        ProtectionConfig,
        TrafficConfig,
    )
    from fedpohcs.experiment import resume_experiment, run_experiment
    from fedpohcs.presets import preset

__version__ = "0.1.0"

__all__ = [
    "AttackConfig",
    "DefenceConfig",
    "ExperimentConfig",
    "FederationConfig",
    "LearnerConfig",
    "ModellingConfig",
    "ProtectionConfig",
    "TrafficConfig",
    "__version__",
    "preset",
    "resume_experiment",
    "run_experiment",
]

__getattr__ = importer(
    __name__,
    {
        "config": "AttackConfig DefenceConfig ExperimentConfig FederationConfig LearnerConfig ModellingConfig "
        "ProtectionConfig TrafficConfig",
        "experiment": "resume_experiment run_experiment",
        "presets": "preset",
    },
)


def __dir__() -> list[str]:
    return __all__
