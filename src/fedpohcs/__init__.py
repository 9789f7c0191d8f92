"""Federated reinforcement learning with heterogeneity-aware client selection.

The names below are public. Each is imported on first use, so that `import fedpohcs` and the command line start fast.
"""

from typing import TYPE_CHECKING

from fedpohcs.core.lazy import importer
from fedpohcs.core.moved import redirect_old_names
from fedpohcs.core.version import __version__

if TYPE_CHECKING:
    from fedpohcs.core.algorithms import Algorithm
    from fedpohcs.core.config import (
        AttackConfig,
        DefenceConfig,
        ExperimentConfig,
        FederationConfig,
        ModellingConfig,
        ProtectionConfig,
        ServerOptimiserConfig,
        TimeConfig,
    )
    from fedpohcs.core.errors import UserError
    from fedpohcs.core.learning import DQNConfig, LearningConfig, PPOConfig
    from fedpohcs.core.presets import preset
    from fedpohcs.core.registries import (
        AGGREGATORS,
        ALGORITHMS,
        ATTACKS,
        LEARNERS,
        METRICS,
        OPTIMISERS,
        PRESETS,
        SELECTORS,
        WORLDS,
    )
    from fedpohcs.core.scenario import WorldConfig
    from fedpohcs.core.spaces import ContinuousActions, DiscreteActions
    from fedpohcs.core.toml import read_toml, to_toml
    from fedpohcs.core.types import CandidateMetrics, Selection
    from fedpohcs.execution.attacked import Attack, AttackContext
    from fedpohcs.learners.base import Learner
    from fedpohcs.learners.networks import Network
    from fedpohcs.metrics.base import Metric, MetricContext
    from fedpohcs.runs.experiment import History, resume_experiment, run_experiment
    from fedpohcs.runs.loading import load_run
    from fedpohcs.runs.policy import load_policy
    from fedpohcs.server.aggregation import Aggregator, Combination, SoundUpdates
    from fedpohcs.server.optimisers import Proposal, ServerOptimiser
    from fedpohcs.server.selection import Question, Selector
    from fedpohcs.worlds.base import TracedWorld, Transition, World
    from fedpohcs.worlds.gym import GymConfig
    from fedpohcs.worlds.hongkong.settings import TrafficConfig
    from fedpohcs.worlds.host import HostWorld

__all__ = [
    "AGGREGATORS",
    "ALGORITHMS",
    "ATTACKS",
    "LEARNERS",
    "METRICS",
    "OPTIMISERS",
    "PRESETS",
    "SELECTORS",
    "WORLDS",
    "Aggregator",
    "Algorithm",
    "Attack",
    "AttackConfig",
    "AttackContext",
    "CandidateMetrics",
    "Combination",
    "ContinuousActions",
    "DQNConfig",
    "DefenceConfig",
    "DiscreteActions",
    "ExperimentConfig",
    "FederationConfig",
    "GymConfig",
    "History",
    "HostWorld",
    "Learner",
    "LearningConfig",
    "Metric",
    "MetricContext",
    "ModellingConfig",
    "Network",
    "PPOConfig",
    "Proposal",
    "ProtectionConfig",
    "Question",
    "Selection",
    "Selector",
    "ServerOptimiser",
    "ServerOptimiserConfig",
    "SoundUpdates",
    "TimeConfig",
    "TracedWorld",
    "TrafficConfig",
    "Transition",
    "UserError",
    "World",
    "WorldConfig",
    "__version__",
    "load_policy",
    "load_run",
    "preset",
    "read_toml",
    "resume_experiment",
    "run_experiment",
    "to_toml",
]

__getattr__ = importer(
    __name__,
    {
        "core.algorithms": "Algorithm",
        "core.config": "AttackConfig DefenceConfig ExperimentConfig FederationConfig ModellingConfig ProtectionConfig "
        "ServerOptimiserConfig TimeConfig",
        "core.errors": "UserError",
        "core.learning": "DQNConfig LearningConfig PPOConfig",
        "core.presets": "preset",
        "core.registries": "AGGREGATORS ALGORITHMS ATTACKS LEARNERS METRICS OPTIMISERS PRESETS SELECTORS WORLDS",
        "core.scenario": "WorldConfig",
        "core.spaces": "ContinuousActions DiscreteActions",
        "core.toml": "read_toml to_toml",
        "core.types": "CandidateMetrics Selection",
        "execution.attacked": "Attack AttackContext",
        "learners.base": "Learner",
        "learners.networks": "Network",
        "metrics.base": "Metric MetricContext",
        "runs.experiment": "History resume_experiment run_experiment",
        "runs.policy": "load_policy",
        "runs.loading": "load_run",
        "server.aggregation": "Aggregator Combination SoundUpdates",
        "server.optimisers": "Proposal ServerOptimiser",
        "server.selection": "Question Selector",
        "worlds.base": "TracedWorld Transition World",
        "worlds.gym": "GymConfig",
        "worlds.hongkong.settings": "TrafficConfig",
        "worlds.host": "HostWorld",
    },
)
redirect_old_names(__name__)


def __dir__() -> list[str]:
    return __all__
