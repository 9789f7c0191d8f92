"""Settings of learners that follow the gradient of whole episodes and have no critic."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedpohcs.core.checks import require_fraction, require_positive
from fedpohcs.core.errors import require
from fedpohcs.core.learning.base import AT, LearningConfig


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
