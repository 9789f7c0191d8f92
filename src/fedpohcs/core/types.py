"""Types that several packages exchange. Host-side arrays are NumPy; parameters are JAX pytrees."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpohcs.core.errors import UserError
from fedpohcs.core.trees import merged_rows

Params = Any  # a pytree of arrays: policy, critic and KL coefficient
AnyArray = Any  # JAX inside a compiled program, NumPy outside
Extra = Mapping[str, Any]
"""Arrays by name that the server sends with the policy to the clients that train."""
NO_EXTRA: Extra = MappingProxyType({})
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
    """A reply that was left out because it broke a rule of `core.array_rules` or `server.replies`."""

    client: int
    phase: str  # measure, train, simulate or evaluate
    rule: str  # its name: finite, shape, stamp, ...
    array: str = ""  # the array that breaks the rule; empty: the whole reply
    text: str = ""  # what is wrong with it


class CandidateMetrics(NamedTuple):
    """Measurements of the clients that were asked: a column per metric, a row per client."""

    client: ClientIds  # [C]
    columns: Mapping[str, Any] = {}  # by metric: numbers [C], arrays [C, ...], or a tuple of C objects such as tables
    costs: Mapping[str, Vector] = {}  # each [C]: costs of asking beyond the bytes of the columns
    bad: tuple[BadReply, ...] = ()  # replies that were left out
    private: bool = False  # columns are scores of private selection, [C] each; NaN: the client sent none
    chosen: ClientIds | None = None  # the clients that the candidates chose themselves; then there are no columns
    chosen_weight: Vector | None = None  # of the update of each of them, where the candidates drew them

    def column(self, name: str) -> Any:
        """One metric of every client; refused if it was not measured."""
        if name not in self.columns:
            remedy = "Name it in `requires` of the selector" + (", or choose privacy none." if self.private else ".")
            measured = ", ".join(sorted(self.columns)) or "nothing"
            raise UserError(f"metric (={name!r}) was not measured, only {measured}. {remedy}")
        return self.columns[name]

    def take(self, rows: Any) -> "CandidateMetrics":
        """The measurements of the clients in these rows."""
        index = np.arange(len(self.client))[rows]
        columns = {
            name: column[index] if isinstance(column, np.ndarray) else tuple(column[row] for row in index.tolist())
            for name, column in self.columns.items()
        }
        costs = {name: cost[index] for name, cost in self.costs.items()}
        return self._replace(client=self.client[index], columns=columns, costs=costs)


class Selection(NamedTuple):
    """The clients that train, and the score of every candidate by name (logged, and drawn by the report).

    A selector that draws clients at random may say with which probability it drew each: then an update counts in
    inverse proportion to it. Or it may say itself how much each update counts.

    Weights are divided by their sum, so that the new policy is a mean of the updates. With `total`, the sum of the
    weights of all candidates, the *changes* are divided by that instead: an estimate without bias, whose step is longer
    or shorter as the draw goes (Horvitz and Thompson, 1952).
    """

    client: ClientIds  # [K]
    scores: Mapping[str, Vector] = {}  # each [C], in the order of the candidates
    probability: Vector | None = None  # [K] inclusion probability of each, given the candidates
    weight: Vector | None = None  # [K] of each update, not normalised; None: by probability, or as the config says
    total: float | None = None  # by which the weights are divided; None: by their sum


class ClientUpdates(NamedTuple):
    """What the selected clients send back; every leaf of `params` has a leading axis K."""

    client: ClientIds  # [K]
    params: Params
    steps: NDArray[np.int64]  # [K] environment steps trained on
    info: Mapping[str, Vector] = {}  # each [K]: losses, KL, entropy
    bad: tuple[BadReply, ...] = ()  # replies that were left out


class Evaluation(NamedTuple):
    """Undiscounted return of the global policy, by client."""

    client: ClientIds  # [n]
    mean_return: Vector  # [n]
    steps: NDArray[np.int64]  # [n]
    info: Mapping[str, Vector] = {}  # each [n]
    bad: tuple[BadReply, ...] = ()  # replies that were left out


NOT_EVALUATED = Evaluation(np.arange(0), np.zeros(0), np.zeros(0, np.int64))
"""The evaluation of no clients."""


class ServerState(NamedTuple):
    """Everything that the server keeps from round to round."""

    round: int
    params: Params
    selector_state: Any
    recent: tuple[ClientIds, ...] = ()  # selections of the latest rounds, newest last, where selections are capped
    optimiser: Any = ()  # state of the server optimiser
    returns: Vector | None = (
        None  # [N] of the clients in their latest evaluation, NaN: none; None: nobody was evaluated
    )
    clock: float = 0.0  # simulated seconds
    under_way: tuple[Any, ...] = ()  # updates of asynchronous rounds that have not arrived; `server.clock.UnderWay`


class KnownReturns(NamedTuple):
    """Returns of clients in their latest evaluation, as checkpoints store those of a population that is sampled."""

    client: ClientIds
    mean_return: Vector
    whole: bool  # False: only those that have changed since an earlier checkpoint

    @classmethod
    def of(cls, returns: Vector, earlier: Vector | None = None) -> "KnownReturns":
        """Those of all clients, [N], that are known, or that differ from earlier ones."""
        new = ~np.isnan(returns) if earlier is None else ~np.isnan(returns) & (returns != earlier)
        client = np.flatnonzero(new)
        return cls(client, returns[client], earlier is None)

    def followed_by(self, later: "KnownReturns") -> "KnownReturns":
        """These returns with later ones in their place."""
        return KnownReturns(*merged_rows(self.client, self.mean_return, later.client, later.mean_return), whole=True)

    def of_all(self, num_clients: int) -> Vector:
        """The return of every client, [N]; NaN: unknown."""
        returns = np.full(num_clients, np.nan)
        returns[self.client] = self.mean_return
        return returns


class RoundTiming(NamedTuple):
    """The simulated time of a round."""

    clock: float  # seconds since the start of the run, at the end of the round
    seconds: Vector  # [K] from the selection of a client to the arrival of its update
    late: ClientIds = np.arange(0)  # selected clients whose updates came too late
    unavailable: ClientIds = np.arange(0)  # sampled clients that could not be asked
    arrived: ClientIds = np.arange(0)  # of asynchronous rounds: the clients whose updates were applied
    delay: NDArray[np.int64] = np.arange(0)  # rounds since these began


class RoundRecord(NamedTuple):
    """What is logged about one round. The next round does not read it."""

    round: int
    candidates: ClientIds
    selection: Selection
    updates_info: Mapping[str, Vector]
    train_steps: NDArray[np.int64]
    rejected: ClientIds
    evaluation: Evaluation
    seconds: Mapping[str, float]
    upload_bytes: Mapping[int, int] = {}  # bytes that each client that was asked sent in phase one
    asked_costs: Mapping[str, Vector] = {}  # each [number of clients asked]: other costs of asking
    capped: ClientIds = np.arange(0)  # sampled clients that are no candidates because they have reached the cap
    bad_replies: tuple[BadReply, ...] = ()  # replies that were left out
    held_out: Evaluation = NOT_EVALUATED  # of clients that never train
    timing: RoundTiming | None = None  # simulated; None: no time is simulated
    finetuned: Evaluation = NOT_EVALUATED  # of all clients after further local iterations; last round only


class Reference(NamedTuple):
    """Mean return of each client under a fixed way to act, to compare learned policies with."""

    label: str
    clients: tuple[str, ...]  # names
    mean_return: Vector
