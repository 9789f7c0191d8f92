"""Federated reinforcement learning with heterogeneity-aware client selection.

The names below are the public ones. They are imported when first used, so that `import fedpohcs` and the command line
start at once.
"""

from typing import TYPE_CHECKING

from fedpohcs.core.lazy import importer
from fedpohcs.core.moved import redirect_old_names
from fedpohcs.core.version import __version__

if TYPE_CHECKING:
    from fedpohcs.core.config import (
        AttackConfig,
        DefenceConfig,
        ExperimentConfig,
        FederationConfig,
        LearnerConfig,
        ModellingConfig,
        ProtectionConfig,
        ServerOptimiserConfig,
        TrafficConfig,
    )
    from fedpohcs.core.presets import preset
    from fedpohcs.core.registries import AGGREGATORS, ATTACKS, OPTIMISERS, PRESETS, SELECTORS, WORLDS
    from fedpohcs.runs.experiment import resume_experiment, run_experiment

__all__ = [
    "AGGREGATORS",
    "ATTACKS",
    "OPTIMISERS",
    "PRESETS",
    "SELECTORS",
    "WORLDS",
    "AttackConfig",
    "DefenceConfig",
    "ExperimentConfig",
    "FederationConfig",
    "LearnerConfig",
    "ModellingConfig",
    "ProtectionConfig",
    "ServerOptimiserConfig",
    "TrafficConfig",
    "__version__",
    "preset",
    "resume_experiment",
    "run_experiment",
]

__getattr__ = importer(
    __name__,
    {
        "core.config": "AttackConfig DefenceConfig ExperimentConfig FederationConfig LearnerConfig ModellingConfig "
        "ProtectionConfig ServerOptimiserConfig TrafficConfig",
        "core.presets": "preset",
        "core.registries": "AGGREGATORS ATTACKS OPTIMISERS PRESETS SELECTORS WORLDS",
        "runs.experiment": "resume_experiment run_experiment",
    },
)
redirect_old_names(__name__)


def __dir__() -> list[str]:
    return __all__
