"""Clients on this machine: their state between rounds, and how the server asks them."""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require_checkpoint
from fedpohcs.core.randomness import Purpose, device_key, host_generator
from fedpohcs.core.registries import ATTACKS, OPTIMISERS, SELECTORS
from fedpohcs.core.steering import next_control
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.trees import finite_clients, same_form, same_rows, take_clients
from fedpohcs.core.types import (
    NO_EXTRA,
    CandidateMetrics,
    ClientIds,
    ClientUpdates,
    Evaluation,
    Extra,
    Params,
    Vector,
)
from fedpohcs.execution.finetuning import finetuned_evaluation
from fedpohcs.execution.mapping import CLIENT_MAPS, ClientMap
from fedpohcs.execution.measuring import measure_clients
from fedpohcs.execution.pooled import MixtureBatch, train_on_mixture
from fedpohcs.execution.store import ClientState, ClientStore, StateRows
from fedpohcs.learners.base import Broadcast, Learner
from fedpohcs.learners.client import ClientProgram, PlayResult, Poison, TrainingResult
from fedpohcs.learners.personal import client_learner, with_own_vectors
from fedpohcs.learners.shared_filters import known_filters, pool_filters, with_pooled_moments
from fedpohcs.metrics.base import read_from, reads_evaluation
from fedpohcs.metrics.table import find_discretiser
from fedpohcs.server.optimisers import make_optimiser
from fedpohcs.server.protocols import MostSteps, RemoteClients
from fedpohcs.server.selection import make_selector
from fedpohcs.worlds import make_world

FEW_STEPS = 20_000  # of all clients together, whose draws take less time than to wake a thread for each client
NUM_POOLED = 1024  # clients with whose statistics a new one may begin: those that came last
Remember = Callable[[int, Trajectory], None]
"""Records the episodes of a client, [T, E]."""


class PlayOrder(NamedTuple):
    """What some clients shall play, and the keys of its random draws.

    The episodes can be replayed from it exactly, and it is much smaller than the episodes.
    """

    params: Params
    purpose: Purpose
    round_number: int
    clients: ClientIds
    filters: Any  # of these clients
    episodes: int
    steps_per_episode: int | None = None  # steps of an episode that are read; None: all


class Snapshot(NamedTuple):
    """State that clients keep from round to round. Recorded episodes are stored as `PlayOrder`s."""

    state: ClientState
    plays: list[PlayOrder]
    whose: tuple[ClientIds, ...] | None = None  # by field of `state`, the clients of its rows; None: all
    whole: bool = True  # False: only rows that have changed since an earlier snapshot

    def rows(self, members: ClientIds) -> StateRows:
        """The rows of the state, where a snapshot without ids has those of all members."""
        return StateRows(self.state, (members,) * len(ClientState._fields) if self.whose is None else self.whose)

    def followed_by(self, later: "Snapshot") -> "Snapshot":
        """This snapshot with the changes of a later one."""
        if self.whose is None or later.whose is None:
            raise ValueError("a snapshot of changes needs the clients of its rows")
        rows = StateRows(self.state, self.whose).followed_by(StateRows(later.state, later.whose))
        return Snapshot(rows.state, later.plays, rows.whose)


def most_steps(config: ExperimentConfig, learner: Learner) -> MostSteps:
    """Largest numbers of steps of one client, in the training of a round and in an evaluation."""
    training = config.learner.local_iterations * learner.batch_length
    if config.federation.pooled:
        training = MixtureBatch.of(config, learner).most_steps
    return MostSteps(training, config.federation.evaluation_episodes * learner.world.horizon)


def keeps_controls(config: ExperimentConfig) -> bool:
    """Whether the server optimiser of a config lets clients keep control variates."""
    recommended = make_selector(config.selector).optimiser if config.selector in SELECTORS else ""
    name = config.federation.server_optimiser or recommended
    return name in OPTIMISERS and make_optimiser(name, config.server_optimiser).controls


def poison_of(config: ExperimentConfig) -> Poison | None:
    """How the Byzantine clients of a config spoil their episodes; None if they do not."""
    attack = ATTACKS.get(config.attack.kind or "")
    return attack.forge() if attack is not None and attack.about == "episodes" else None


def initial_params(learner: Learner, seed: int) -> Params:
    """The weights that a run starts with."""
    return jax.tree.map(np.asarray, learner.init_params(device_key(seed, Purpose.INITIAL_WEIGHTS)))


class LocalExecutor(ABC):
    """Holds the state of the clients and measures them. Subclasses implement playing and training."""

    def __init__(
        self,
        config: ExperimentConfig,
        *,
        record: bool = True,
        snapshot: Snapshot | RemoteClients | None = None,
        members: ClientIds | None = None,
    ) -> None:
        """Build the population, and warm up its filters or take them from a snapshot.

        Args:
            config: of the experiment.
            record: keep the episodes of evaluations, which some metrics read.
            snapshot: of an earlier executor of the same config and members, to go on where that one stood.
            members: the clients that will be asked here. None: all, held-out clients included.
        """
        self.config = config
        self.num_clients = config.federation.num_clients
        self.num_held_out = config.federation.held_out_clients
        self.members = np.arange(self.num_clients + self.num_held_out) if members is None else members
        self.world = make_world(config)
        self.learner = client_learner(config, self.world)
        self.program = ClientProgram(
            self.learner,
            config.federation.evaluation_episodes,
            config.filter_weight,
            keeps_controls(config),
            poison_of(config),
        )
        self.most_steps = most_steps(config, self.learner)
        self.clients: ClientMap = CLIENT_MAPS[config.executor](config.groups)
        self.latest: dict[int, Trajectory] = {}  # by client: whole episodes of the latest evaluation
        self.history: dict[int, deque[Trajectory]] = {}  # by client: modelled episodes, a slot per round, newest last
        self.plays: list[PlayOrder] = []  # from which the recorded episodes come
        self.record = record
        find_discretiser(config.modelling.discretiser)  # a function that cannot be imported is refused at once
        self._start()
        memory = self.program.init_memory(self.initial_params())
        one = ClientState(self.learner.init_filters(), memory, np.zeros((), np.float32))
        self._one: ClientState = jax.tree.map(np.asarray, one)  # that has not acted
        self.store = ClientStore(self._one, self.num_clients + self.num_held_out)
        if snapshot is not None:
            self._restore(snapshot)
        elif config.federation.evaluated_clients is None:  # everyone acts in round 0
            self._introduce(self.members)

    @property
    def state(self) -> ClientState:
        """A copy of the state of all members, in the order of their ids."""
        return self.state_of(self.members)

    def state_of(self, clients: ClientIds) -> ClientState:
        """A copy of the state of some clients, with a leading client axis."""
        self._introduce(clients)
        return self.store.take(clients)

    def _introduce(self, clients: ClientIds) -> None:
        """Make the state of those of the clients that act for the first time.

        Held-out clients play separately, because last digits depend on the batch.
        """
        held_out = clients >= self.num_clients
        for some in (clients[~held_out], clients[held_out]):
            new = self.store.unknown(some)
            if len(new):
                self.store.put(new, filters=self._first_filters(new))
                self._share_filters()

    def _first_filters(self, clients: ClientIds) -> Any:
        """The filters with which clients begin: of steps of their own, or of what others have seen lately."""
        filters = self.store.take(clients).filters
        if self.config.federation.personal == "embedding":
            filters = with_own_vectors(filters, self.config.seed, clients, self.num_clients)
        others = self.store.clients[self.store.clients < self.num_clients][-NUM_POOLED:]
        if self.config.federation.newcomers == "pooled" and len(others):
            return with_pooled_moments(filters, self.store.take(others).filters)
        return self._warm_up(self.initial_params(), clients, filters)

    @abstractmethod
    def _start(self) -> None:
        """Make the objects that play, before the first request."""

    @abstractmethod
    def _warm_up(self, params: Params, clients: ClientIds, filters: Any) -> Any:
        """The filters of these clients after the steps of the initial policy that the config asks for."""

    @abstractmethod
    def _play(self, order: PlayOrder, remember: Remember | None = None) -> PlayResult:
        """Play episodes. The result has no trajectories; `remember` gets those of each client."""

    @abstractmethod
    def _train(
        self, sent: Broadcast, round_number: int, clients: ClientIds, draws: Any, attempt: int
    ) -> TrainingResult:
        """Local training of the clients, in their order; a client that could not train has made no steps."""

    @abstractmethod
    def collect(
        self, sent: Broadcast, round_number: int, iteration: int, clients: ClientIds, min_steps: int, filters: Any
    ) -> tuple[list[Trajectory], Any]:
        """Episodes of the clients for a learner that they share, [T, 1] each, and their filters after them.

        Every client plays whole episodes until it has more than `min_steps` steps; with 0, one episode.
        """

    def close(self) -> None:  # noqa: B027  nothing to end is the common case
        """End threads and processes of this executor."""

    def initial_params(self) -> Params:
        """Initial weights; a function of the seed alone."""
        return initial_params(self.learner, self.config.seed)

    def expect(self, clients: ClientIds, names: Set[str]) -> None:  # noqa: B027  as for `close`
        """Do nothing: a further request to clients of this process costs nothing."""

    def stored_policy(self, params: Params) -> dict[str, np.ndarray]:
        """The arrays of the parameters and the filters of all clients, or the default one if some never acted."""
        return {**self.learner.arrays(params), **self._stored_filters()}

    def _stored_filters(self) -> dict[str, np.ndarray]:
        stored = self.learner.stored_filters(self.store.filters)
        return known_filters(stored, self.store.clients, self.num_clients, self.num_held_out)

    def evaluate(self, params: Params, round_number: int, clients: ClientIds) -> Evaluation:
        """Play, update the filters, and remember the episodes."""
        episodes, filters = self.config.federation.evaluation_episodes, self.filters_of(clients)
        order = PlayOrder(params, Purpose.EVALUATION, round_number, clients, filters, episodes)
        # Held-out clients are never measured; where a sample is evaluated, candidates play for themselves.
        measured = bool((clients < self.num_clients).all()) and self.config.federation.evaluated_clients is None
        result = self._play_recorded(order) if self.record and measured else self._play(order)
        could = result.steps > 0
        done = take_clients(result, could)
        self.store.put(clients[could], filters=done.filters, mean_return=done.mean_return)
        self._share_filters()
        info = {} if done.num_lost is None else {"lost_episodes": done.num_lost.astype(float)}
        return Evaluation(clients[could], done.mean_return.astype(float), done.steps.astype(np.int64), info)

    def train(self, params: Params, round_number: int, clients: ClientIds, extra: Extra = NO_EXTRA) -> ClientUpdates:
        """Local training; filters and memory stay with the client."""
        if not len(clients):
            nothing = jax.tree.map(lambda x: np.asarray(x)[None][:0], params)
            return ClientUpdates(clients, nothing, np.zeros(0, np.int64))
        if self.config.federation.pooled:
            return self._train_pooled(params, round_number, clients)
        result = self.rehearse(params, round_number, clients, extra)
        if self.program.controlled:
            control = next_control(extra, params, result.params, result.memory.control)
            result = result._replace(memory=result.memory._replace(control=control))
        # A client that diverged or could not train keeps its previous state.
        sound = finite_clients(result) & (result.steps > 0)
        self.store.put(
            clients[sound],
            filters=take_clients(result.filters, sound),
            memory=take_clients(result.memory, sound),
        )
        self._share_filters()
        return _updates(clients, result)

    def simulate(
        self, params: Params, round_number: int, clients: ClientIds, extra: Extra, attempt: int
    ) -> ClientUpdates:
        """Local training with draws of its own, of which the clients know nothing: the server simulates it."""
        return _updates(clients, self.rehearse(params, round_number, clients, extra, attempt))

    def _train_pooled(self, params: Params, round_number: int, clients: ClientIds) -> ClientUpdates:
        """The training of one learner for all clients: all of them send, and remember, what it has learned."""
        sent = self._broadcast(params, Purpose.TRAINING, round_number)
        result = train_on_mixture(self, sent, round_number, clients)
        if finite_clients(result).all():
            self.store.put(clients, filters=result.filters, memory=result.memory)
        self._share_filters()
        info = {name: value.astype(float) for name, value in result.info._asdict().items()}
        return ClientUpdates(clients, result.params, result.steps, info)

    def finetune(self, params: Params, round_number: int, iterations: int) -> Evaluation:
        """The returns of all clients after so many local iterations from the policy, which nobody remembers."""
        return finetuned_evaluation(self, params, round_number, iterations)

    def _share_filters(self) -> None:
        """Pool filters that are shared. Held-out clients read the pooled ones and add nothing."""
        if self.config.federation.filters == "shared":
            members = np.flatnonzero(self.store.clients < self.num_clients)
            self.store.put(self.store.clients, filters=pool_filters(self.store.filters, members))

    def rehearse(
        self, params: Params, round_number: int, clients: ClientIds, extra: Extra = NO_EXTRA, attempt: int = 0
    ) -> TrainingResult:
        """The local training of a round, which the clients do not remember: `train` gives the same result.

        Every other attempt than 0 has draws of its own.
        """
        seed, purpose = self.config.seed, Purpose.SIMULATION if attempt else Purpose.SHUFFLING
        more = (attempt,) if attempt else ()
        few = len(clients) * self.config.learner.local_iterations * self.learner.batch_length < FEW_STEPS
        draws = (map if few else self.clients.on_host)(
            lambda client: self.learner.draws(host_generator(seed, purpose, round_number, client, *more)),
            [int(client) for client in clients],
        )
        sent = self._broadcast(params, Purpose.TRAINING, round_number)._replace(extra=dict(extra))
        if attempt:
            key = jax.random.fold_in(device_key(seed, Purpose.SIMULATION, round_number), attempt)
            sent = sent._replace(key=key)
        stacked = jax.tree.map(lambda *rows: np.stack(rows), *draws)
        return self._train(sent, round_number, clients, stacked, attempt)

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """Measure on the episodes of the latest evaluation if possible, which costs no environment steps."""
        self._play_for_measuring(params, round_number, clients, names)
        return measure_clients(self, params, round_number, clients, names)

    def latest_returns(self, clients: ClientIds) -> Vector:
        """Mean return of each client in its latest evaluation."""
        return self.state_of(clients).mean_return.astype(float)

    def filters_of(self, clients: ClientIds) -> Any:
        """The filters of some clients, with a leading client axis."""
        self._introduce(clients)
        return self.store.take_filters(clients)

    def episodes_of(self, client: int, *, modelled: bool) -> Sequence[Trajectory]:
        """Recorded episodes of a client, [T, E] per recorded round, newest last; none if it did not record any.

        Those that tables are made of, or whole ones of the latest evaluation.
        """
        if modelled:
            return self.history.get(client, ())
        return (self.latest[client],) if client in self.latest else ()

    def stacked_episodes(self, trajectories: Sequence[Trajectory]) -> Trajectory:
        """Recorded episodes of several clients, with a leading client axis."""
        return self._stacked(list(trajectories))

    def _play_for_measuring(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> None:
        """Play for metrics that read episodes or returns, if those of the latest evaluation cannot be used.

        They cannot if tables have episodes of their own, or if this policy was not evaluated, or only on a sample.
        """
        federation, modelling = self.config.federation, self.config.modelling
        filters = self.filters_of(clients)

        def ordered(count: int, steps_per_episode: int | None) -> PlayOrder:
            return PlayOrder(params, Purpose.MODELLING, round_number, clients, filters, count, steps_per_episode)

        if modelling.episodes is not None and read_from(names, "modelled"):
            for client in clients.tolist():
                self.history.pop(client, None)  # so that all episodes of a table have the same policy
            self._play(ordered(modelling.episodes, modelling.steps_per_episode), self._model)
        record = reads_evaluation(names, self.config)
        unknown = round_number % federation.evaluation_every or federation.evaluated_clients is not None
        if unknown and (record or read_from(names, "returns")):
            wanted = ordered(federation.evaluation_episodes, None)
            result = self._play_recorded(wanted) if record else self._play(wanted)
            could = result.steps > 0
            self.store.put(clients[could], mean_return=result.mean_return[could])

    def snapshot(self, *, changes: bool = False) -> Snapshot:
        """A copy of the present state, which later rounds do not change.

        With `changes`, it may have the rows alone that changed since the last snapshot of this kind, where few clients
        act in a round.
        """
        few = self.config.federation.evaluated_clients is not None
        rows, whole = self.store.changes() if changes and few else (self.store.all_rows(), True)
        return Snapshot(rows.state, list(self.plays), rows.whose, whole)

    def _restore(self, snapshot: Snapshot | RemoteClients) -> None:
        if isinstance(snapshot, RemoteClients):
            raise UserError(
                "the clients of this run keep their own state. Go on with: fedpohcs flower run --resume RUN"
            )
        require_checkpoint(self._fits(snapshot), "a state of the clients of the config")
        self.store.put_rows(snapshot.rows(self.members))
        for order in snapshot.plays:
            self._play_recorded(order)

    def _fits(self, snapshot: Any) -> bool:
        """Whether a snapshot, which may come from a file, is one of these clients."""
        if not (isinstance(snapshot, Snapshot) and isinstance(snapshot.state, ClientState)):
            return False
        playable = isinstance(snapshot.plays, list) and all(map(self._is_playable, snapshot.plays))
        state, whose = snapshot.rows(self.members)
        named = isinstance(whose, tuple) and len(whose) == len(state) and all(map(self._are_members, whose))
        return playable and snapshot.whole and named and all(map(same_rows, state, self._one, map(len, whose)))

    def _are_members(self, clients: Any) -> bool:
        """Whether these are ids of members, each named once."""
        if not (isinstance(clients, np.ndarray) and clients.ndim == 1 and clients.dtype.kind in "iu"):
            return False
        return len(np.unique(clients)) == len(clients) and bool(np.isin(clients, self.members).all())

    def _is_playable(self, order: Any) -> bool:
        if not (isinstance(order, PlayOrder) and self._are_members(order.clients)):
            return False
        numbers = (order.purpose, order.round_number, order.episodes, order.steps_per_episode or 1)
        counts = all(isinstance(number, int) and 0 <= number < 2**31 for number in numbers) and order.episodes > 0
        fits = same_form(order.params, self.initial_params())
        return counts and fits and same_rows(order.filters, self._one.filters, len(order.clients))

    def _play_recorded(self, order: PlayOrder) -> PlayResult:
        """Play episodes and record them for later measurements."""
        self.plays = plays_in_use([*self.plays, order], self.config.modelling.history_rounds)
        return self._play(order, self._remember)

    def _broadcast(self, params: Params, purpose: Purpose, round_number: int) -> Broadcast:
        key = device_key(self.config.seed, purpose, round_number)
        return Broadcast(params, key, self.learner.schedule(round_number))

    def _remember(self, client: int, trajectory: Trajectory) -> None:
        """Record the evaluation of a client, [T, E]; tables are made of it unless they have episodes of their own."""
        self.latest[client] = trajectory
        if self.config.modelling.episodes is None:
            self._model(client, trajectory)

    def _model(self, client: int, trajectory: Trajectory) -> None:
        """Record episodes that tables are made of."""
        self.history.setdefault(client, deque(maxlen=self.config.modelling.history_rounds)).append(trajectory)

    def _stacked(self, trajectories: list[Trajectory]) -> Trajectory:
        """Stack the episodes of several clients along a leading client axis."""
        return jax.tree.map(lambda *rows: np.stack(rows), *trajectories)


def _updates(clients: ClientIds, result: TrainingResult) -> ClientUpdates:
    """What the server sees of local training."""
    info = {name: value.astype(float) for name, value in result.info._asdict().items()}
    if result.num_lost is not None:
        info["lost_episodes"] = result.num_lost.astype(float)
    return ClientUpdates(clients, result.params, np.asarray(result.steps, np.int64), info)


def plays_in_use(plays: list[PlayOrder], history_rounds: int) -> list[PlayOrder]:
    """The plays of which some client still holds an episode."""
    newer: Counter[int] = Counter()
    kept = []
    for order in reversed(plays):
        clients = order.clients.tolist()
        if any(newer[client] < history_rounds for client in clients):
            kept.append(order)
        newer.update(clients)
    return kept[::-1]
