"""Settings that all local learners share."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedpohcs.core.checks import check_kinds, require_not_negative, require_positive
from fedpohcs.core.errors import require
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
