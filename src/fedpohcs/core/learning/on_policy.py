"""Settings of learners with a policy and a critic that learn on-policy: PPO and its relatives."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedpohcs.core.checks import require_fraction, require_not_negative, require_positive
from fedpohcs.core.errors import require
from fedpohcs.core.learning.base import AT, LearningConfig
from fedpohcs.core.spaces import ContinuousActions, DiscreteActions


@dataclass(frozen=True)
class ActorCriticConfig(LearningConfig):
    """Settings of all learners with a policy and a critic that learn on-policy."""

    standardises_advantages: ClassVar[bool] = True
    exportable: ClassVar[bool] = True

    episodes_per_iteration: int | None = None
    """Collect this many episodes per local iteration instead, side by side. None: `steps_per_iteration`."""
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
        if self.episodes_per_iteration is not None:
            require_positive(AT, self, "episodes_per_iteration")
        require_not_negative(AT, self, "entropy_coefficient", "critic_epochs")
        require_fraction(AT, self, "gae_discount")

    @property
    def whole_episodes(self) -> int | None:
        """Episodes of a local iteration, if their number is fixed."""
        return self.episodes_per_iteration


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
    anchor_coefficient: float = 1e-3
    """sigma at the start of every round, and the least value to which it adapts. 0: plain PPO."""
    anchor_target: float = 0.07
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
