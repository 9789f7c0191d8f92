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
    """The entropy coefficient is divided by 10 every so many rounds."""
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
class DQNConfig(LearningConfig):
    """DQN (Mnih et al., 2015), double by default (van Hasselt et al., 2016); discrete actions."""

    algorithm: ClassVar[str] = "fedpohcs.learners.dqn:DQN"
    exportable: ClassVar[bool] = True

    kind: str = "dqn"
    local_iterations: int = 4
    """I, local iterations per round."""
    steps_per_iteration: int = 256
    """Whole episodes are collected until there are more steps than this."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    batch_size: int = 64
    """Transitions per gradient step."""
    updates_per_iteration: int = 128
    """Gradient steps per local iteration."""
    replay_size: int = 20_000
    """Transitions that a client keeps, between rounds as well."""
    target_rate: float = 0.01
    """Share of the online network that the target network takes per gradient step (Lillicrap et al., 2016)."""
    double: bool = True
    """Let the online network choose the action that the target network values."""
    epsilon: float = 1.0
    """Probability of a random action in training, at the start."""
    epsilon_decay: float = 0.9
    """Decay factor per round."""
    epsilon_floor: float = 0.05
    max_gradient_norm: float = 10.0

    def _check(self) -> None:
        require_positive(AT, self, "learning_rate", "batch_size", "updates_per_iteration", "replay_size")
        require_positive(AT, self, "max_gradient_norm")
        require_fraction(AT, self, "target_rate", "epsilon", "epsilon_decay", "epsilon_floor")

    def check_actions(self, actions: ContinuousActions | DiscreteActions) -> None:
        """Action values need discrete actions."""
        discrete = isinstance(actions, DiscreteActions)
        require(discrete, "learner.kind", self.kind, "needs a world with discrete actions", "Use ppo.")

    def acting(self) -> dict[str, Any]:
        """Outputs are action values: draws are epsilon-greedy, not from a softmax."""
        return {"epsilon": self.epsilon_floor}


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
    kept = {"network", "hidden_sizes", "discount", "observation_clip", "reward_clip"}
    kept |= {field.name for field in fields(LearningConfig) if field.name.startswith("filter_")}
    common = next(base for base in before.__mro__ if issubclass(after, base))
    if common is not LearningConfig:
        kept |= {field.name for field in fields(common)} | {"kl_target"}
    both = {field.name for field in fields(before)} & {field.name for field in fields(after)}
    return [field.name for field in fields(after) if field.name in kept & both - {"kind"}]


def default_learner() -> LearningConfig:
    """The learner of the paper, PPO."""
    return PPOConfig()
