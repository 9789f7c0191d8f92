"""Settings of the local learners, one class per kind. None of them loads JAX.

A learner of another package brings a class like these, registered as `LEARNERS["kind"]`.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from fedpohcs.core.checks import check_kinds, require_fraction, require_not_negative, require_positive
from fedpohcs.core.errors import require
from fedpohcs.core.registries import LEARNERS, register_plugins
from fedpohcs.core.spaces import ContinuousActions, DiscreteActions

AT = "learner."


@dataclass(frozen=True)
class LearningConfig:
    """Settings that all local learners share."""

    algorithm: ClassVar[str]
    """The learner class, `module:Class`; imported when clients are built."""
    standardises_advantages: ClassVar[bool] = False
    """Whether the learner follows the gradient of standardised advantages. The metric `gradient_scale` turns that
    into the gradient of the mean return."""
    exportable: ClassVar[bool] = False
    """Whether the policy acts by tanh layers as `fedpohcs.runs.policy` does: draws from a normal distribution or by its
    logits, or epsilon-greedily with `epsilon` in `acting`. Other policies are not exported."""

    kind: str = ""
    """The local learning algorithm; see `fedpohcs list`. Each kind has settings of its own."""
    network: str | None = None
    """Networks of your own, `module:function`; docs/how-to/add-a-network.md explains. None: tanh layers."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Tanh layers of each network. Empty: linear, a table where observations are one-hot."""
    embedding_size: int = 0
    """Numbers of a vector that each network has before its observation, learnt like a weight; for
    federation.personal embedding, which sets it to log2 of the number of clients, rounded up. 0: none."""
    observation_window: int = 1
    """Observations that the networks see at once: the latest and those before it, oldest first. A recurrent network
    reads them as its sequence."""
    local_iterations: int = 5
    """I, local iterations per round."""
    steps_per_iteration: int = 2048
    """Whole episodes are collected until there are more steps than this."""
    discount: float = 0.99
    """gamma."""
    filter_observations: bool = True
    """Each client z-scores its observations with its own running statistics. False where units are shared already."""
    filter_rewards: bool = True
    """Each client divides its rewards by a running standard deviation; for learning only, never in reports."""
    reward_statistic: Literal["reward", "return"] = "reward"
    """Whose standard deviation that is: of rewards (the paper's), or of discounted returns, so that the values which a
    critic learns have about the same size in every world. Rewards that hardly vary need the latter."""
    filter_warmup_steps: int = 100_000
    """Approximate number of steps of the initial policy with which a client's filters are initialised."""
    filter_evaluation_episodes: int | None = None
    """Weighs evaluation episodes in the filter statistics as if this many were played per round. None: the number that
    is played."""
    observation_clip: float = 5.0
    """Filtered observations stay within plus and minus this."""
    reward_clip: float = 10.0
    """Filtered rewards stay within plus and minus this."""

    def __post_init__(self) -> None:
        check_kinds(AT, self)
        expected = type(self).kind
        require(self.kind == expected, "learner.kind", self.kind, f"must be {expected!r} for {type(self).__name__}")
        require_positive(
            AT, self, "observation_window", "local_iterations", "steps_per_iteration", "observation_clip", "reward_clip"
        )
        require_not_negative(AT, self, "filter_warmup_steps", "embedding_size")
        if self.filter_evaluation_episodes is not None:
            require_positive(AT, self, "filter_evaluation_episodes")
        require(0 < self.discount < 1, "learner.discount", self.discount, "must lie between 0 and 1")
        sizes = self.hidden_sizes
        require(all(size > 0 for size in sizes), "learner.hidden_sizes", sizes, "must all be above 0")
        self._check()

    def _check(self) -> None:
        """Refuse bad values of the settings that one kind adds."""

    def check_actions(self, actions: ContinuousActions | DiscreteActions) -> None:
        """Refuse a world in which this learner cannot act."""

    def acting(self) -> dict[str, Any]:
        """Settings that an exported policy needs besides its arrays to act as in training."""
        return {}

    @property
    def whole_episodes(self) -> int | None:
        """Episodes of a local iteration. None: the fewest that have more than `steps_per_iteration` steps."""
        return None

    @property
    def observation_limit(self) -> float:
        """Bound to which filtered observations are clipped; infinite without a filter."""
        return self.observation_clip if self.filter_observations else math.inf

    @property
    def reward_limit(self) -> float:
        """Bound to which filtered rewards are clipped; infinite without a filter."""
        return self.reward_clip if self.filter_rewards else math.inf


@dataclass(frozen=True)
class ActorCriticConfig(LearningConfig):
    """Settings of all learners with a policy and a critic that learn on-policy."""

    standardises_advantages: ClassVar[bool] = True
    exportable: ClassVar[bool] = True

    batch_size: int = 128
    """Steps in a minibatch."""
    gae_discount: float = 0.95
    """lambda of generalised advantage estimation."""
    bootstrap_at_time_limit: bool = True
    """Value the state where the time limit cut an episode. False: as if it had ended there."""
    entropy_coefficient: float = 0.1
    """Weight of the entropy bonus in the first rounds."""
    entropy_decay_rounds: int = 20
    """Number of rounds after which the entropy coefficient is divided by 10, again and again."""
    critic_learning_rate: float = 1e-3
    """Learning rate of the critic's Adam."""
    critic_epochs: int = 3
    """Passes over the collected steps by the critic."""

    def _check(self) -> None:
        require_positive(AT, self, "batch_size", "critic_learning_rate", "entropy_decay_rounds")
        require_not_negative(AT, self, "entropy_coefficient", "critic_epochs")
        require_fraction(AT, self, "gae_discount")


@dataclass(frozen=True)
class PPOConfig(ActorCriticConfig):
    """PPO with an adaptive KL penalty, or clipped. Paper: Sec. 5.2, Tables 1-3."""

    algorithm: ClassVar[str] = "fedpohcs.learners.ppo:PPO"

    kind: str = "ppo"
    loss: Literal["kl-penalty", "clip"] = "kl-penalty"
    """Surrogate objective: adaptive KL penalty (the paper's), or PPO's clipped one."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """How the policy follows its gradient: with `momentum` (the paper's), or by Adam. A client keeps the moments of
    either between its rounds, as it keeps those of the critic."""
    epochs: int = 1
    """E, passes over the collected steps by the policy."""
    learning_rate: float = 1e-3
    learning_rate_decay: float = 0.98
    """Decay factor per round."""
    learning_rate_floor: float = 1e-8
    momentum: float = 0.9
    """Of the optimiser sgd."""
    max_gradient_norm: float = 10.0
    importance_cap: float = 10.0
    """Largest importance weight of the KL-penalty surrogate."""
    clip_range: float = 0.2
    """epsilon of the clipped surrogate."""
    kl_target: float = 0.003
    kl_coefficient: float = 1.0
    """beta at the start; it adapts and is averaged with the weights."""

    def _check(self) -> None:
        super()._check()
        require_positive(AT, self, "epochs", "learning_rate", "max_gradient_norm", "importance_cap")
        require_positive(AT, self, "clip_range", "kl_target", "kl_coefficient")
        require_not_negative(AT, self, "learning_rate_floor")
        require_fraction(AT, self, "learning_rate_decay")
        require(0 <= self.momentum < 1, "learner.momentum", self.momentum, "must be at least 0 and below 1")


@dataclass(frozen=True)
class FedProxConfig(PPOConfig):
    """PPO with a proximal term, which holds weights near those that the server sent (FedProx, Li et al., 2020)."""

    algorithm: ClassVar[str] = "fedpohcs.learners.fedprox:FedProx"

    kind: str = "fedprox"
    proximal_coefficient: float = 1e-3
    """mu: the losses of policy and critic have mu/2 times the squared distance to the weights sent. 0: plain PPO."""

    def _check(self) -> None:
        super()._check()
        require_not_negative(AT, self, "proximal_coefficient")


@dataclass(frozen=True)
class FedKLConfig(PPOConfig):
    """PPO with a penalty on the distance between policy and policy sent (FedKL, Xie and Song, 2023)."""

    algorithm: ClassVar[str] = "fedpohcs.learners.fedkl:FedKL"

    kind: str = "fedkl"
    anchor_distance: Literal["sqrt-kl", "kl", "tv", "mahalanobis", "wasserstein"] = "sqrt-kl"
    """Distance to the policy that the server sent; the last two are for continuous actions."""
    anchor_coefficient: float = 1.0
    """sigma at the start of every round, and the least value to which it adapts. 0: plain PPO."""
    anchor_target: float = 1e-3
    """Mean distance from the policy sent that sigma adapts to."""

    def _check(self) -> None:
        super()._check()
        require_not_negative(AT, self, "anchor_coefficient")
        require_positive(AT, self, "anchor_target")

    def check_actions(self, actions: ContinuousActions | DiscreteActions) -> None:
        """Some distances are between normal distributions."""
        any_actions = self.anchor_distance in ("sqrt-kl", "kl", "tv")
        fits = any_actions or isinstance(actions, ContinuousActions)
        rule = "needs a world with continuous actions"
        require(fits, "learner.anchor_distance", self.anchor_distance, rule, "Use sqrt-kl.")


@dataclass(frozen=True)
class FMARLConfig(PPOConfig):
    """PPO whose learning rate decays with every gradient step of a round (FMARL, Xu et al., 2021)."""

    algorithm: ClassVar[str] = "fedpohcs.learners.fmarl:FMARL"

    kind: str = "fmarl"
    local_decay: float = 0.98
    """lambda: step j of a round, counted from 0, has the learning rate times lambda^(j/2). 1: plain PPO."""

    def _check(self) -> None:
        super()._check()
        require_fraction(AT, self, "local_decay")


@dataclass(frozen=True)
class A2CConfig(ActorCriticConfig):
    """Advantage actor-critic (Mnih et al., 2016): one step along the policy gradient per local iteration."""

    algorithm: ClassVar[str] = "fedpohcs.learners.a2c:A2C"

    kind: str = "a2c"
    learning_rate: float = 7e-4
    """Learning rate of RMSProp."""
    learning_rate_decay: float = 1.0
    """Decay factor per round."""
    square_decay: float = 0.99
    """Decay of RMSProp's running mean of squared gradients."""
    max_gradient_norm: float = 0.5

    def _check(self) -> None:
        super()._check()
        require_positive(AT, self, "learning_rate", "max_gradient_norm")
        require_fraction(AT, self, "learning_rate_decay")
        rule = "must be at least 0 and below 1"
        require(0 <= self.square_decay < 1, "learner.square_decay", self.square_decay, rule)


@dataclass(frozen=True)
class NPGConfig(ActorCriticConfig):
    """Natural policy gradient (Kakade, 2001) with a normalised step: one per local iteration, of a given divergence."""

    algorithm: ClassVar[str] = "fedpohcs.learners.npg:NPG"

    kind: str = "npg"
    kl_target: float = 0.01
    """delta, the KL divergence of a local iteration to second order."""
    conjugate_steps: int = 15
    """Steps of conjugate gradients."""
    damping: float = 0.1
    """Added to the diagonal of the Fisher matrix."""

    def _check(self) -> None:
        super()._check()
        require_positive(AT, self, "kl_target", "conjugate_steps", "damping")


@dataclass(frozen=True)
class TRPOConfig(NPGConfig):
    """TRPO (Schulman et al., 2015): the natural gradient with a line search that bounds the divergence."""

    algorithm: ClassVar[str] = "fedpohcs.learners.trpo:TRPO"

    kind: str = "trpo"
    line_search_steps: int = 10
    """Lengths to try. If none is good enough, the policy stays."""
    line_search_factor: float = 0.8
    """Factor from one length to the next."""

    def _check(self) -> None:
        super()._check()
        require_positive(AT, self, "line_search_steps")
        factor = self.line_search_factor
        require(0 < factor < 1, "learner.line_search_factor", factor, "must lie between 0 and 1")


@dataclass(frozen=True)
class PolicyGradientConfig(LearningConfig):
    """Settings of all learners that follow the gradient of whole episodes and have no critic."""

    exportable: ClassVar[bool] = True
    needs_optimiser: ClassVar[str | None] = None
    """The server optimiser that sends what this learner reads."""

    local_iterations: int = 1
    """I, local iterations per round."""
    episodes: int = 16
    """B, episodes of a local iteration; `steps_per_iteration` is not read. A server optimiser may ask for fewer."""
    learning_rate: float = 1.0
    """Step along the gradient. With 1 and one local iteration, the change that a client sends is its gradient."""
    whitening: Literal["episode", "batch"] = "episode"
    """Where rewards to go get mean 0 and standard deviation 1: within every episode, or over all steps of a batch.
    Within an episode it is lost which episodes were better."""

    @property
    def whole_episodes(self) -> int:
        """Episodes of a local iteration."""
        return self.episodes

    def _check(self) -> None:
        require_positive(AT, self, "episodes", "learning_rate")


@dataclass(frozen=True)
class GPOMDPConfig(PolicyGradientConfig):
    """The policy gradient of one batch of episodes (GPOMDP, Baxter and Bartlett, 2001)."""

    algorithm: ClassVar[str] = "fedpohcs.learners.gpomdp:GPOMDP"

    kind: str = "gpomdp"


@dataclass(frozen=True)
class FedSVRPGMConfig(PolicyGradientConfig):
    """Local steps with momentum and reduced variance against the policy sent (FedSVRPG-M, Wang et al., 2024)."""

    algorithm: ClassVar[str] = "fedpohcs.learners.fedsvrpg_m:FedSVRPGM"
    needs_optimiser: ClassVar[str | None] = "last-change"

    kind: str = "fedsvrpg-m"
    local_iterations: int = 10
    """I, local iterations per round."""
    learning_rate: float = 0.05
    """eta, of every local step."""
    beta: float = 0.5
    """Share of the gradient itself in a step; the rest is the server's direction, corrected. 1: plain local steps."""

    def _check(self) -> None:
        super()._check()
        require_fraction(AT, self, "beta")


@dataclass(frozen=True)
class MFPOConfig(PolicyGradientConfig):
    """Local steps with momentum that is averaged like the weights (MFPO, Yue et al., 2024)."""

    algorithm: ClassVar[str] = "fedpohcs.learners.mfpo:MFPO"

    kind: str = "mfpo"
    local_iterations: int = 10
    """I, local iterations per round."""
    learning_rate: float = 0.05
    """alpha, of every local step."""
    momentum: float = 0.5
    """nu, the share of the last direction, corrected, that the next one keeps. 0: plain local steps."""

    def _check(self) -> None:
        super()._check()
        require(0 <= self.momentum < 1, "learner.momentum", self.momentum, "must be at least 0 and below 1")


@dataclass(frozen=True)
class FedNPGADMMConfig(PolicyGradientConfig):
    """Natural gradients that clients agree on by the alternating direction method (FedNPG-ADMM, Lan et al., 2023)."""

    algorithm: ClassVar[str] = "fedpohcs.learners.fednpg_admm:FedNPGADMM"
    needs_optimiser: ClassVar[str | None] = "last-change"

    kind: str = "fednpg-admm"
    penalty: float = 0.1
    """rho, which holds the direction of a client near the common one, and damps the Fisher matrix."""
    conjugate_steps: int = 15
    """Steps of conjugate gradients."""

    def _check(self) -> None:
        super()._check()
        require_positive(AT, self, "penalty", "conjugate_steps")
        rule = "must be 1: a round is one step of the alternating direction method"
        require(self.local_iterations == 1, "learner.local_iterations", self.local_iterations, rule)
        rule = "must be 1: server_optimiser.learning_rate is the length of the step"
        require(self.learning_rate == 1, "learner.learning_rate", self.learning_rate, rule)


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


def learner_class(kind: str) -> type[LearningConfig]:
    """The config class of a kind of learner; an unknown kind is refused."""
    register_plugins()
    found = LEARNERS.find(kind, "learner.kind")
    rule = "must be registered as a dataclass derived from LearningConfig"
    require(isinstance(found, type) and issubclass(found, LearningConfig), "learner.kind", kind, rule)
    return found


def as_kind(config: LearningConfig, kind: str) -> LearningConfig:
    """The defaults of another kind of learner, with those settings of this config that mean the same there."""
    if kind == config.kind:
        return config
    kept: dict[str, Any] = {name: getattr(config, name) for name in kept_across_kinds(config.kind, kind)}
    return learner_class(kind)(**kept)


def kept_across_kinds(old: str, new: str) -> list[str]:
    """Settings that stay when a config changes to another kind: those of all learners, or of a family of learners."""
    before, after = learner_class(old), learner_class(new)
    kept = {"network", "hidden_sizes", "discount", "observation_clip", "reward_clip", "reward_statistic"}
    kept |= {field.name for field in fields(LearningConfig) if field.name.startswith("filter_")}
    common = next(base for base in before.__mro__ if issubclass(after, base))
    if common is not LearningConfig:
        kept |= {field.name for field in fields(common)} | {"kl_target"}
    both = {field.name for field in fields(before)} & {field.name for field in fields(after)}
    return [field.name for field in fields(after) if field.name in kept & both - {"kind"}]


def default_learner() -> LearningConfig:
    """The learner of the paper, PPO."""
    return PPOConfig()
