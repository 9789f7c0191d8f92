"""The few types that travel between the parts. Host-side arrays are NumPy; parameters are JAX pytrees."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Params = Any  # a pytree of arrays: policy, critic and KL coefficient
AnyArray = Any  # JAX inside a compiled program, NumPy outside
ClientIds = NDArray[np.int64]
Vector = NDArray[np.float64]


class Distribution(Protocol):
    """A batch of action distributions whose arrays may be NumPy or JAX."""

    def log_prob(self, action: Any) -> Any: ...


class Steps(NamedTuple):
    """Recorded environment steps of one client: whole episodes, one after the other."""

    observation: NDArray[np.floating]  # [n, obs]
    action: NDArray[np.generic]  # [n, act] for continuous actions, [n] of integers for discrete ones
    reward: NDArray[np.floating]  # [n]
    last: NDArray[np.bool_]  # [n] the episode ends with this step
    advantage: NDArray[np.floating] | None = None  # [n] GAE samples, only where the metric asks for them
    cell: NDArray[np.integer] | None = None  # [n, ...] state cells of a user's own; None: those of the observation


class WeightedAdvantage(NamedTuple):
    """The sparse table D_n A_n of one client, keyed by hashed (state cell, action cell); keys ascend."""

    pair: NDArray[np.uint64]  # [P] key of each visited state-action pair
    value: NDArray[np.float64]  # [P] visitation times advantage
    fill: Any = None  # predicts entries never visited; None means they count as zero


class BadReply(NamedTuple):
    """A client's answer that was left out, because it broke a rule of `execution.replies`."""

    client: int
    phase: str  # measure, train or evaluate
    rule: str  # in a word: finite, shape, stamp, ...
    array: str = ""  # which one breaks it; empty: the answer as a whole
    text: str = ""  # what is wrong with it


class CandidateMetrics(NamedTuple):
    """What the server learned from the clients it asked; None = not asked for."""

    client: ClientIds  # [C]
    mean_return: Vector | None = None  # [C]
    gradient_norm: Vector | None = None  # [C]
    weighted_advantage: tuple[WeightedAdvantage, ...] | None = None  # one table a client
    selection_metric: Vector | None = None  # [C] in place of tables where they are private; NaN = no answer
    costs: Mapping[str, Vector] = {}  # each [C]: what asking took where it is more than sending the above
    bad: tuple[BadReply, ...] = ()  # answers that are not in it


class Selection(NamedTuple):
    """The clients that train, and the score of every candidate by name (logged, and drawn by the report).

    A selector that draws clients at random may say with which probability it drew each: then an update counts in
    inverse proportion to it. Or it may say itself how much each update counts.
    """

    client: ClientIds  # [K]
    scores: Mapping[str, Vector] = {}  # each [C], in the order of the candidates
    probability: Vector | None = None  # [K] inclusion probability of each, given the candidates
    weight: Vector | None = None  # [K] of each update, not normalised; None: by probability, or as the config says


class ClientUpdates(NamedTuple):
    """What the selected clients send back; every leaf of `params` has a leading axis K."""

    client: ClientIds  # [K]
    params: Params
    steps: NDArray[np.int64]  # [K] environment steps trained on
    info: Mapping[str, Vector] = {}  # each [K]: losses, KL, entropy
    bad: tuple[BadReply, ...] = ()  # answers that are not in it


class Evaluation(NamedTuple):
    """Undiscounted return of the global policy, by client."""

    client: ClientIds  # [n]
    mean_return: Vector  # [n]
    steps: NDArray[np.int64]  # [n]
    info: Mapping[str, Vector] = {}  # each [n]
    bad: tuple[BadReply, ...] = ()  # answers that are not in it


class ServerState(NamedTuple):
    """All the server carries from round to round."""

    round: int
    params: Params
    selector_state: Any
    recent: tuple[ClientIds, ...] = ()  # selections of the latest rounds, newest last, where selections are capped
    optimiser: Any = ()  # state of the server optimiser


class RoundRecord(NamedTuple):
    """Everything worth logging about one round; nothing the next round needs."""

    round: int
    candidates: ClientIds
    selection: Selection
    updates_info: Mapping[str, Vector]
    train_steps: NDArray[np.int64]
    rejected: ClientIds
    evaluation: Evaluation
    seconds: Mapping[str, float]
    upload_bytes: Mapping[int, int] = {}  # what each client that was asked sent in phase one
    asked_costs: Mapping[str, Vector] = {}  # each [asked]: what else asking took
    capped: ClientIds = np.arange(0)  # sampled, but selected too often already to be candidates
    bad_replies: tuple[BadReply, ...] = ()  # answers that were left out
