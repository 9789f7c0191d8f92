"""Federated reinforcement learning with heterogeneity-aware client selection.

Names are imported when first used, so that `import fedpohcs` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOME = {
    "AttackConfig": "config",
    "DefenceConfig": "config",
    "ExperimentConfig": "config",
    "FederationConfig": "config",
    "LearnerConfig": "config",
    "ModellingConfig": "config",
    "ProtectionConfig": "config",
    "TrafficConfig": "config",
    "preset": "presets",
    "resume_experiment": "experiment",
    "run_experiment": "experiment",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
