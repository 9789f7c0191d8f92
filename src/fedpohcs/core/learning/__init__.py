"""Settings of the local learners, one class per kind and one file per family. None of them loads JAX.

A learner of another package brings a class like these, registered as `LEARNERS["kind"]`.
"""

from fedpohcs.core.learning.base import (
    LearningConfig,
)
from fedpohcs.core.learning.kinds import (
    as_kind,
    default_learner,
    kept_across_kinds,
    learner_class,
)
from fedpohcs.core.learning.off_policy import (
    DCPIConfig,
    DDPGConfig,
    DQNConfig,
    EpsilonGreedyConfig,
    OffPolicyConfig,
    SACConfig,
    SquashedConfig,
    TD3Config,
)
from fedpohcs.core.learning.on_policy import (
    A2CConfig,
    ActorCriticConfig,
    FedKLConfig,
    FedProxConfig,
    FMARLConfig,
    NPGConfig,
    PPOConfig,
    TRPOConfig,
)
from fedpohcs.core.learning.policy_gradient import (
    FedNPGADMMConfig,
    FedSVRPGMConfig,
    GPOMDPConfig,
    MFPOConfig,
    PolicyGradientConfig,
)
from fedpohcs.core.learning.temporal_difference import (
    QAvgConfig,
    SarsaConfig,
    TDConfig,
)

__all__ = [
    "A2CConfig",
    "ActorCriticConfig",
    "DCPIConfig",
    "DDPGConfig",
    "DQNConfig",
    "EpsilonGreedyConfig",
    "FMARLConfig",
    "FedKLConfig",
    "FedNPGADMMConfig",
    "FedProxConfig",
    "FedSVRPGMConfig",
    "GPOMDPConfig",
    "LearningConfig",
    "MFPOConfig",
    "NPGConfig",
    "OffPolicyConfig",
    "PPOConfig",
    "PolicyGradientConfig",
    "QAvgConfig",
    "SACConfig",
    "SarsaConfig",
    "SquashedConfig",
    "TD3Config",
    "TDConfig",
    "TRPOConfig",
    "as_kind",
    "default_learner",
    "kept_across_kinds",
    "learner_class",
]
