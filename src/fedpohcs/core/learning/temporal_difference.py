"""Settings of temporal-difference learners without a replay buffer."""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedpohcs.core.checks import require_fraction, require_not_negative, require_positive
from fedpohcs.core.errors import require
from fedpohcs.core.learning.base import AT, LearningConfig
from fedpohcs.core.spaces import ContinuousActions, DiscreteActions


@dataclass(frozen=True)
class TDConfig(LearningConfig):
    """Settings of temporal-difference learners that step through episodes, without a replay buffer."""

    hidden_sizes: tuple[int, ...] = ()
    """Tanh layers of the network. Empty: linear, without bias, a table where observations are one-hot."""
    local_iterations: int = 4
    """I, local iterations per round."""
    steps_per_iteration: int = 256
    """Whole episodes are collected until there are more steps than this."""
    filter_observations: bool = False
    filter_rewards: bool = False
    filter_warmup_steps: int = 0
    learning_rate: float = 0.1
    """Rate of every step: Q(s,a) <- Q(s,a) + rate (target - Q(s,a)) in a table."""
    learning_rate_decay: float = 1.0
    """Decay factor per round."""

    def _check(self) -> None:
        require_positive(AT, self, "learning_rate")
        require_fraction(AT, self, "learning_rate_decay")

    def check_actions(self, actions: ContinuousActions | DiscreteActions) -> None:
        """Action values need discrete actions."""
        discrete = isinstance(actions, DiscreteActions)
        require(discrete, "learner.kind", self.kind, "needs a world with discrete actions", "Use ppo.")


@dataclass(frozen=True)
class QAvgConfig(TDConfig):
    """QAvg (Jin et al., 2022) on samples: Q-learning step by step; discrete actions."""

    algorithm: ClassVar[str] = "fedpohcs.learners.temporal_difference:QAvg"
    exportable: ClassVar[bool] = True
    double: ClassVar[bool] = False

    kind: str = "qavg"
    epsilon: float = 1.0
    """Probability of a random action in training, at the start."""
    epsilon_decay: float = 0.9
    """Decay factor per round."""
    epsilon_floor: float = 0.05

    def _check(self) -> None:
        super()._check()
        require_fraction(AT, self, "epsilon", "epsilon_decay", "epsilon_floor")

    def acting(self) -> dict[str, Any]:
        """Outputs are action values: draws are epsilon-greedy, not from a softmax."""
        return {"epsilon": self.epsilon_floor}


@dataclass(frozen=True)
class SarsaConfig(TDConfig):
    """FedSARSA (Zhang et al., 2024): SARSA step by step with the policy softmax(L Q); discrete actions."""

    algorithm: ClassVar[str] = "fedpohcs.learners.temporal_difference:Sarsa"

    kind: str = "sarsa"
    inverse_temperature: float = 1.0
    """L: the policy is softmax(L Q). 0: always uniform, which makes it FedTD."""
    action_classes: int | None = None
    """Actions with the same remainder by this number share their values. None: every action has its own."""

    def _check(self) -> None:
        super()._check()
        require_not_negative(AT, self, "inverse_temperature")
        if self.action_classes is not None:
            require_positive(AT, self, "action_classes")
