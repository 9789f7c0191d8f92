"""Clients in shards that stay apart: an executor of which every shard may live in another process.

Client n belongs to shard n modulo `groups`. A shard runs the part of every request that is about its clients, in
batches of its own, so its results depend on nothing outside it: not on where it lives, and not on how many shards a
process holds. With the executor `sharded` all shards are in this process; see `execution.ray` for a cluster.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import NobodyError, UserError, require_checkpoint
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import NO_EXTRA, CandidateMetrics, ClientIds, ClientUpdates, Evaluation, Extra, Params
from fedpohcs.execution.clients import LocalExecutor, PlayOrder, Snapshot, initial_params, most_steps
from fedpohcs.execution.host import HostExecutor
from fedpohcs.execution.store import ClientState, StateRows
from fedpohcs.learners.personal import client_learner
from fedpohcs.learners.shared_filters import known_filters
from fedpohcs.metrics.base import find_metric
from fedpohcs.server.protocols import RemoteClients
from fedpohcs.worlds import make_world

T = TypeVar("T")
Snapshots = Mapping[int, Snapshot | None]
"""By shard; None: it starts anew."""


class Order(NamedTuple):
    """What shards shall do: a task of `TASKS`, and its arguments that do not differ from shard to shard."""

    task: str
    arguments: tuple[Any, ...] = ()


class Nobody(NamedTuple):
    """The result of a shard none of whose clients could do what was asked."""

    reason: str


Parts = dict[int, Any]
"""Results, or `Nobody`, by shard."""


class Shards(Protocol):
    """Runs the shards of a federation."""

    def ask(self, order: Order, clients: Mapping[int, ClientIds]) -> Parts:
        """The results of some shards, each for its own of the clients."""
        ...

    def close(self) -> None:
        """End threads and processes."""
        ...


def _evaluate(shard: LocalExecutor, clients: ClientIds, params: Params, round_number: int) -> Evaluation:
    return shard.evaluate(params, round_number, clients)


def _measure(
    shard: LocalExecutor, clients: ClientIds, params: Params, round_number: int, names: Set[str]
) -> CandidateMetrics:
    return shard.measure(params, round_number, clients, names)


def _train(shard: LocalExecutor, clients: ClientIds, params: Params, round_number: int, extra: Extra) -> ClientUpdates:
    return shard.train(params, round_number, clients, extra)


def _simulate(
    shard: LocalExecutor, clients: ClientIds, params: Params, round_number: int, extra: Extra, attempt: int
) -> ClientUpdates:
    return shard.simulate(params, round_number, clients, extra, attempt)


def _filters(shard: LocalExecutor, clients: ClientIds) -> tuple[ClientIds, Any]:
    del clients  # those of the shard that have acted
    return shard.store.clients, shard.store.filters


def _snapshot(shard: LocalExecutor, clients: ClientIds) -> Snapshot:
    del clients  # it is of all clients of the shard
    return shard.snapshot()


TASKS: Mapping[str, Callable[..., Any]] = {
    "evaluate": _evaluate,
    "measure": _measure,
    "train": _train,
    "simulate": _simulate,
    "filters": _filters,
    "snapshot": _snapshot,
}
CHANGING = frozenset({"evaluate", "measure", "train"})  # tasks after which a shard may not be what it was
SNAPSHOT = Order("snapshot")


def shards_of(config: ExperimentConfig) -> dict[int, ClientIds]:
    """The clients of every shard that has some, held-out clients included."""
    everyone = np.arange(config.federation.num_clients + config.federation.held_out_clients)
    return divided(everyone, config.groups)


def divided(clients: ClientIds, groups: int) -> dict[int, ClientIds]:
    """Clients by shard, in their order; shards without any are left out."""
    shard = clients % groups
    return {number: clients[shard == number] for number in np.unique(shard).tolist()}


class LocalShards:
    """The shards that live in one process."""

    def __init__(self, config: ExperimentConfig, snapshots: Snapshots, *, record: bool = True) -> None:
        """Build the clients of some shards, or restore them.

        Args:
            config: of the experiment.
            snapshots: of the shards that shall live here.
            record: keep the episodes of evaluations, which some metrics read.
        """
        members, self.executors = shards_of(config), dict[int, LocalExecutor]()
        for shard, snapshot in snapshots.items():
            self.executors[shard] = self._make(config, members[shard], snapshot, record)

    def _make(
        self, config: ExperimentConfig, members: ClientIds, snapshot: Snapshot | None, record: bool
    ) -> LocalExecutor:
        """The executor of a shard. Shards of one process play with the same simulators."""
        from fedpohcs.execution import make_executor

        first = next(iter(self.executors.values()), None)
        if isinstance(first, HostExecutor):
            return _Lodger(first, config, record=record, snapshot=snapshot, members=members)
        return make_executor(config, record=record, snapshot=snapshot, members=members)

    def ask(self, order: Order, clients: Mapping[int, ClientIds]) -> Parts:
        """Let the shards work one after the other."""
        return {shard: self._result(self.executors[shard], order, own) for shard, own in clients.items()}

    @staticmethod
    def _result(executor: LocalExecutor, order: Order, clients: ClientIds) -> Any:
        try:
            return TASKS[order.task](executor, clients, *order.arguments)
        except NobodyError as error:
            return Nobody(str(error))

    def close(self) -> None:
        """End the simulators."""
        for executor in self.executors.values():
            executor.close()


class _Lodger(HostExecutor):
    """A shard that plays with the collector of another one."""

    def __init__(self, landlord: HostExecutor, config: ExperimentConfig, **more: Any) -> None:
        self._landlord = landlord
        super().__init__(config, **more)

    def _start(self) -> None:
        self.collector = self._landlord.collector

    def close(self) -> None:
        """Leave the collector to its owner."""


class ShardedExecutor:
    """Divides every request among the shards, and joins their results in the order of the request."""

    def __init__(self, config: ExperimentConfig, shards: Shards) -> None:
        self.config, self.shards = config, shards
        self.num_clients = config.federation.num_clients
        self.learner = client_learner(config, make_world(config))
        self.most_steps = most_steps(config, self.learner)
        self.members = shards_of(config)

    def close(self) -> None:
        """End threads and processes of the shards."""
        self.shards.close()

    def initial_params(self) -> Params:
        """Initial weights; a function of the seed alone."""
        return initial_params(self.learner, self.config.seed)

    def expect(self, clients: ClientIds, names: Set[str]) -> None:
        """Do nothing: a further request to a shard costs little."""

    def evaluate(self, params: Params, round_number: int, clients: ClientIds) -> Evaluation:
        """Evaluation episodes in all shards."""
        parts = self._ask(Order("evaluate", (params, round_number)), clients)
        return _joined(parts, _by_id(clients, [part.client for part in parts]))

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """The metrics of the clients of all shards that could measure."""
        parts = self._ask(Order("measure", (params, round_number, names)), clients)
        order = _by_id(clients, [part.client for part in parts])
        rows = {name: [row for part in parts for row in part.columns[name]] for name in sorted(names)}
        columns = {name: find_metric(name).join([column[row] for row in order]) for name, column in rows.items()}
        return CandidateMetrics(np.concatenate([part.client for part in parts])[order], columns)

    def train(self, params: Params, round_number: int, clients: ClientIds, extra: Extra = NO_EXTRA) -> ClientUpdates:
        """Local training in all shards."""
        return self._updates(Order("train", (params, round_number, dict(extra))), clients)

    def simulate(
        self, params: Params, round_number: int, clients: ClientIds, extra: Extra, attempt: int
    ) -> ClientUpdates:
        """What the server simulates in the shards of the clients; no client knows of it."""
        return self._updates(Order("simulate", (params, round_number, dict(extra), attempt)), clients)

    def stored_policy(self, params: Params) -> dict[str, np.ndarray]:
        """The arrays of the parameters and the filters of all clients, or the default one if some never acted."""
        parts = self.shards.ask(Order("filters"), self.members).values()
        whose = np.concatenate([clients for clients, _ in parts])
        filters = _joined([filters for _, filters in parts], np.arange(len(whose)))
        held_out = self.config.federation.held_out_clients
        known = known_filters(self.learner.stored_filters(filters), whose, self.num_clients, held_out)
        return {**self.learner.arrays(params), **known}

    def snapshot(self, *, changes: bool = False) -> Snapshot:
        """A copy of the state of all clients, which does not tell how they were divided among processes."""
        del changes  # a snapshot of shards is always whole
        return joined_snapshot(self.shards.ask(SNAPSHOT, self.members))

    def _updates(self, order: Order, clients: ClientIds) -> ClientUpdates:
        if not len(clients):
            nothing = jax.tree.map(lambda x: np.asarray(x)[None][:0], order.arguments[0])
            return ClientUpdates(clients, nothing, np.zeros(0, np.int64))
        return _joined(self._ask(order, clients), self._by_place(clients))

    def _ask(self, order: Order, clients: ClientIds) -> list[Any]:
        """The results of the shards of some clients, in the order of their numbers, without those of nobody."""
        parts = self.shards.ask(order, divided(clients, self.config.groups))
        found = [part for _, part in sorted(parts.items())]
        able = [part for part in found if not isinstance(part, Nobody)]
        if found and not able:
            raise NobodyError(found[0].reason)
        return able

    def _by_place(self, clients: ClientIds) -> np.ndarray:
        """Where the rows of shards, one after the other, have each of the clients."""
        return np.argsort(np.argsort(clients % self.config.groups, kind="stable"), kind="stable")


def _by_id(clients: ClientIds, found: Sequence[ClientIds]) -> np.ndarray:
    """The order of rows of different clients that brings them into the order of `clients`."""
    place = {client: position for position, client in enumerate(clients.tolist())}
    return np.argsort([place[client] for part in found for client in part.tolist()], kind="stable")


def _joined(parts: Sequence[T], order: np.ndarray) -> T:
    """The rows of all parts, in this order."""
    return jax.tree.map(lambda *rows: np.concatenate(rows)[order], *parts)


def joined_snapshot(parts: Mapping[int, Snapshot]) -> Snapshot:
    """The snapshots of all shards as one of all clients, as an executor without shards has it."""
    fields = zip(*(part.state for part in parts.values()), strict=True)
    owners = zip(*(part.whose or () for part in parts.values()), strict=True)
    whose = [np.concatenate(some) for some in owners]
    state = [_joined(rows, np.argsort(clients)) for rows, clients in zip(fields, whose, strict=True)]
    plays = _joined_plays(part.plays for part in parts.values())
    return Snapshot(ClientState(*state), plays, tuple(map(np.sort, whose)))


def _joined_plays(plays: Iterable[Sequence[PlayOrder]]) -> list[PlayOrder]:
    """The orders that shards remember, each once. A round plays an evaluation, and then for measurements."""
    same: dict[tuple[int, int, int, int], list[PlayOrder]] = {}
    for order in [order for some in plays for order in some]:
        key = (order.round_number, int(order.purpose), order.episodes, order.steps_per_episode or 0)
        same.setdefault(key, []).append(order)
    return [_joined_order(same[key]) for key in sorted(same)]


def _joined_order(parts: Sequence[PlayOrder]) -> PlayOrder:
    clients = np.concatenate([part.clients for part in parts])
    ascending = np.argsort(clients)
    filters = _joined([part.filters for part in parts], ascending)
    return parts[0]._replace(clients=clients[ascending], filters=filters)


def divided_snapshot(snapshot: Any, config: ExperimentConfig) -> dict[int, Snapshot | None]:
    """The snapshots of all shards, from one of all clients; it may come from a file."""
    members = shards_of(config)
    if snapshot is None:
        return dict.fromkeys(members)
    if isinstance(snapshot, RemoteClients):
        raise UserError("the clients of this run keep their own state. Go on with: fedpohcs flower run --resume RUN")
    rows = _rows(snapshot, np.sort(np.concatenate(list(members.values()))))
    require_checkpoint(rows is not None, "a state of the clients of the config")
    assert rows is not None
    return {
        shard: Snapshot(part.state, [part for one in snapshot.plays for part in _part(one, own)], part.whose)
        for shard, own in members.items()
        for part in [rows.of(own)]
    }


def _rows(snapshot: Any, everyone: ClientIds) -> StateRows | None:
    """The rows of a snapshot that can be divided among shards, or None. Each shard then checks its own part."""
    if not (isinstance(snapshot, Snapshot) and isinstance(snapshot.state, ClientState) and snapshot.whole):
        return None
    rows = snapshot.rows(everyone)
    if not (isinstance(rows.whose, tuple) and len(rows.whose) == len(rows.state)):
        return None
    fields = all(map(_are_rows, rows.state, rows.whose))
    plays = isinstance(snapshot.plays, list) and all(
        isinstance(order, PlayOrder) and _are_rows(order.filters, order.clients) for order in snapshot.plays
    )
    return rows if fields and plays else None


def _are_rows(tree: Any, clients: Any) -> bool:
    """Whether a tree of arrays has a row for each of the clients."""
    named = isinstance(clients, np.ndarray) and clients.ndim == 1 and clients.dtype.kind in "iu"
    return named and all(
        isinstance(leaf, np.ndarray) and leaf.ndim > 0 and len(leaf) == len(clients) for leaf in jax.tree.leaves(tree)
    )


def _part(order: PlayOrder, members: ClientIds) -> list[PlayOrder]:
    """What some of the clients have to play of an order; nothing, if none is in it."""
    own = np.isin(order.clients, members)
    return [order._replace(clients=order.clients[own], filters=take_clients(order.filters, own))] if own.any() else []
