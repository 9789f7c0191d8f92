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
        ModellingConfig,
        ProtectionConfig,
        ServerOptimiserConfig,
    )
    from fedpohcs.core.learning import DQNConfig, LearningConfig, PPOConfig
    from fedpohcs.core.presets import preset
    from fedpohcs.core.registries import AGGREGATORS, ATTACKS, LEARNERS, METRICS, OPTIMISERS, PRESETS, SELECTORS, WORLDS
    from fedpohcs.core.scenario import WorldConfig
    from fedpohcs.learners.base import Learner
    from fedpohcs.learners.networks import Network
    from fedpohcs.runs.experiment import resume_experiment, run_experiment
    from fedpohcs.worlds.gym import GymConfig
    from fedpohcs.worlds.hongkong.settings import TrafficConfig

__all__ = [
    "AGGREGATORS",
    "ATTACKS",
    "LEARNERS",
    "METRICS",
    "OPTIMISERS",
    "PRESETS",
    "SELECTORS",
    "WORLDS",
    "AttackConfig",
    "DQNConfig",
    "DefenceConfig",
    "ExperimentConfig",
    "FederationConfig",
    "GymConfig",
    "Learner",
    "LearningConfig",
    "ModellingConfig",
    "Network",
    "PPOConfig",
    "ProtectionConfig",
    "ServerOptimiserConfig",
    "TrafficConfig",
    "WorldConfig",
    "__version__",
    "preset",
    "resume_experiment",
    "run_experiment",
]

__getattr__ = importer(
    __name__,
    {
        "core.config": "AttackConfig DefenceConfig ExperimentConfig FederationConfig ModellingConfig ProtectionConfig "
        "ServerOptimiserConfig",
        "core.learning": "DQNConfig LearningConfig PPOConfig",
        "core.presets": "preset",
        "core.registries": "AGGREGATORS ATTACKS LEARNERS METRICS OPTIMISERS PRESETS SELECTORS WORLDS",
        "core.scenario": "WorldConfig",
        "learners.base": "Learner",
        "learners.networks": "Network",
        "runs.experiment": "resume_experiment run_experiment",
        "worlds.gym": "GymConfig",
        "worlds.hongkong.settings": "TrafficConfig",
    },
)
redirect_old_names(__name__)


def __dir__() -> list[str]:
    return __all__
