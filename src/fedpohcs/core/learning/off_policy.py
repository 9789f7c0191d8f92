"""Settings of learners with a replay buffer: DQN and its relatives."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedpohcs.core.checks import require_fraction, require_not_negative, require_positive
from fedpohcs.core.errors import require
from fedpohcs.core.learning.base import AT, LearningConfig
from fedpohcs.core.spaces import ContinuousActions, DiscreteActions


@dataclass(frozen=True)
class OffPolicyConfig(LearningConfig):
    """Settings of all learners with a replay buffer."""

    exportable: ClassVar[bool] = True

    local_iterations: int = 4
    """I, local iterations per round."""
    steps_per_iteration: int = 256
    """Whole episodes are collected until there are more steps than this."""
    episodes_per_iteration: int | None = None
    """Collect this many episodes per local iteration instead, whatever their length. None: `steps_per_iteration`."""
    learning_rate: float = 1e-3
    """Learning rate of Adam, for action values."""
    batch_size: int = 64
    """Transitions per gradient step."""
    updates_per_iteration: int = 128
    """Gradient steps per local iteration."""
    replay_size: int = 20_000
    """Transitions that a client keeps, between rounds as well."""
    replay_start: int = 1
    """A client with fewer transitions collects more and does not learn yet."""
    memory_at_merge: Literal["keep", "reset"] = "keep"
    """What becomes of the replay buffer and of Adam's moments when a client starts a round from merged weights."""
    target_rate: float = 0.01
    """Share of the networks that their target networks take at an update (Lillicrap et al., 2016). 1: a copy."""
    target_period: int = 1
    """Gradient steps from one update of the target networks to the next, counted within a local iteration."""
    max_gradient_norm: float = 10.0

    def _check(self) -> None:
        require_positive(AT, self, "learning_rate", "batch_size", "updates_per_iteration", "replay_size")
        require_positive(AT, self, "replay_start", "target_period", "max_gradient_norm")
        if self.episodes_per_iteration is not None:
            require_positive(AT, self, "episodes_per_iteration")
        require_fraction(AT, self, "target_rate")
        rule = f"must be at most learner.replay_size (={self.replay_size})"
        require(self.replay_start <= self.replay_size, "learner.replay_start", self.replay_start, rule)

    @property
    def whole_episodes(self) -> int | None:
        """Episodes of a local iteration, if their number is fixed."""
        return self.episodes_per_iteration


@dataclass(frozen=True)
class EpsilonGreedyConfig(OffPolicyConfig):
    """Settings of learners that explore by random actions; discrete actions."""

    epsilon: float = 1.0
    """Probability of a random action in training, at the start."""
    epsilon_decay: float = 0.9
    """Decay factor per round."""
    epsilon_floor: float = 0.05

    def _check(self) -> None:
        super()._check()
        require_fraction(AT, self, "epsilon", "epsilon_decay", "epsilon_floor")

    def check_actions(self, actions: ContinuousActions | DiscreteActions) -> None:
        """Action values need discrete actions."""
        discrete = isinstance(actions, DiscreteActions)
        require(discrete, "learner.kind", self.kind, "needs a world with discrete actions", "Use sac or ppo.")

    def acting(self) -> dict[str, Any]:
        """The best output is taken: draws are epsilon-greedy, not from a softmax."""
        return {"epsilon": self.epsilon_floor}


@dataclass(frozen=True)
class DQNConfig(EpsilonGreedyConfig):
    """DQN (Mnih et al., 2015), double by default (van Hasselt et al., 2016)."""

    algorithm: ClassVar[str] = "fedpohcs.learners.dqn:DQN"

    kind: str = "dqn"
    double: bool = True
    """Let the online network choose the action that the target network values."""


@dataclass(frozen=True)
class DCPIConfig(EpsilonGreedyConfig):
    """Deep conservative policy iteration (Vieillard et al., 2020)."""

    algorithm: ClassVar[str] = "fedpohcs.learners.dcpi:DCPI"

    kind: str = "dcpi"
    target_rate: float = 1.0
    """Share of the networks that their target networks take at an update. 1: a copy."""
    target_period: int = 32
    """Gradient steps from one update of the target networks to the next, counted within a local iteration."""
    policy_learning_rate: float = 1e-3
    """Learning rate of Adam, for the policy."""
    mixture: float = 0.1
    """alpha: share of the greedy policy in the mixture that the policy is fitted to."""
    mixture_rule: Literal["constant", "adaptive"] = "constant"
    """Adaptive: alpha is `mixture` times the mean advantage of the greedy policy over the range of action values."""

    def _check(self) -> None:
        super()._check()
        require_positive(AT, self, "policy_learning_rate")
        require_fraction(AT, self, "mixture")


@dataclass(frozen=True)
class SquashedConfig(OffPolicyConfig):
    """Settings of off-policy learners with a policy for continuous actions within bounds, and critics."""

    updates_per_iteration: int = 256
    """Gradient steps per local iteration."""
    replay_size: int = 50_000
    """Transitions that a client keeps, between rounds as well."""
    policy_learning_rate: float = 1e-3
    """Learning rate of Adam, for the policy."""

    def _check(self) -> None:
        super()._check()
        require_positive(AT, self, "policy_learning_rate")

    def check_actions(self, actions: ContinuousActions | DiscreteActions) -> None:
        """Policies end in a tanh, which is scaled to the bounds of actions."""
        continuous = isinstance(actions, ContinuousActions)
        require(continuous, "learner.kind", self.kind, "needs a world with continuous actions", "Use dqn or ppo.")
        assert isinstance(actions, ContinuousActions)
        bounded = math.isfinite(actions.low) and math.isfinite(actions.high)
        require(bounded, "learner.kind", self.kind, "needs a world whose actions have finite bounds", "Use ppo.")


@dataclass(frozen=True)
class DDPGConfig(SquashedConfig):
    """DDPG (Lillicrap et al., 2016): a deterministic policy that follows the gradient of a critic."""

    algorithm: ClassVar[str] = "fedpohcs.learners.ddpg:DDPG"

    kind: str = "ddpg"
    noise_kind: Literal["normal", "ou"] = "normal"
    """Noise that training adds to actions: independent, or of an Ornstein-Uhlenbeck process."""
    noise_pull: float = 0.15
    """theta of the Ornstein-Uhlenbeck process: share of the noise that is lost per step."""
    noise: float = 1.0
    """Standard deviation of the noise in training, at the start; 1 is half the range of actions."""
    noise_decay: float = 0.8
    """Decay factor per round."""
    noise_floor: float = 0.1

    def _check(self) -> None:
        super()._check()
        require_positive(AT, self, "noise_floor")
        require_not_negative(AT, self, "noise")
        require_fraction(AT, self, "noise_decay", "noise_pull")

    def acting(self) -> dict[str, Any]:
        """The tanh of the outputs, scaled to the bounds of actions."""
        return {"squash": "deterministic"}


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """TD3 (Fujimoto et al., 2018): DDPG with twin critics, smoothed targets and delayed steps of the policy."""

    algorithm: ClassVar[str] = "fedpohcs.learners.td3:TD3"

    kind: str = "td3"
    policy_delay: int = 2
    """Gradient steps of the critics per step of the policy and of the target networks."""
    smoothing: float = 0.2
    """Standard deviation of the noise on target actions; 1 is half the range of actions."""
    smoothing_clip: float = 0.5
    """That noise stays within plus and minus this."""

    def _check(self) -> None:
        super()._check()
        require_positive(AT, self, "policy_delay", "smoothing_clip")
        require_not_negative(AT, self, "smoothing")


@dataclass(frozen=True)
class SACConfig(SquashedConfig):
    """SAC (Haarnoja et al., 2018): a stochastic policy, twin critics, and a temperature that adapts by default."""

    algorithm: ClassVar[str] = "fedpohcs.learners.sac:SAC"

    kind: str = "sac"
    temperature: float = 0.2
    """alpha, the weight of the entropy, at the start; it is averaged with the weights."""
    temperature_learning_rate: float = 1e-3
    """Learning rate of Adam, for the logarithm of the temperature. 0: the temperature stays."""
    target_entropy: float | None = None
    """Entropy that the temperature adapts to, for actions scaled to -1 and 1. None: minus the number of actions."""

    def _check(self) -> None:
        super()._check()
        require_positive(AT, self, "temperature")
        require_not_negative(AT, self, "temperature_learning_rate")

    def acting(self) -> dict[str, Any]:
        """Outputs are means and logarithms of standard deviations of a normal distribution before the tanh."""
        return {"squash": "normal"}
