"""Clients on this machine: what they keep between rounds, what they are measured by, and how they are asked."""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Set
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.imports import import_function
from fedpohcs.core.randomness import Purpose, device_key, host_generator
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.trees import finite_clients, take_clients
from fedpohcs.core.types import (
    CandidateMetrics,
    ClientIds,
    ClientUpdates,
    Distribution,
    Evaluation,
    Params,
    Steps,
    Vector,
    WeightedAdvantage,
)
from fedpohcs.execution.mapping import CLIENT_MAPS, ClientMap, compiled, joined
from fedpohcs.learners.client import Evaluated, Learner, Own, Shared, Trained
from fedpohcs.learners.filters import Filters, filter_observation, filter_reward
from fedpohcs.learners.ppo import OptimiserState
from fedpohcs.metrics import weighted_advantage_table
from fedpohcs.server.protocols import MostSteps, RemoteClients
from fedpohcs.worlds import make_world
from fedpohcs.worlds.base import ContinuousActions

DISTRIBUTION_ROWS = 2048  # states a compiled call takes: one shape for tables of any size
FROM_EPISODES = frozenset({"gradient_norm", "weighted_advantage"})
"""Metrics that read recorded episodes."""


class ClientState(NamedTuple):
    """What the clients keep between rounds, with a leading client axis."""

    filters: Filters
    optimisers: OptimiserState
    mean_return: np.ndarray  # of the latest evaluation


class Asked(NamedTuple):
    """What some clients are asked to play, and how its draws are named.

    Enough to play it again, step by step, in a fraction of the bytes of what was played.
    """

    params: Params
    purpose: Purpose
    round_number: int
    clients: ClientIds
    filters: Filters  # of these clients
    episodes: int
    steps_per_episode: int | None = None  # nobody reads more of an episode than this; None: all


class Snapshot(NamedTuple):
    """All that the clients carry from round to round. Recorded episodes are kept as what was asked for."""

    state: ClientState
    plays: list[Asked]


def make_learner(config: ExperimentConfig, world: Any) -> Learner:
    """The learner that every client of an experiment has."""
    return Learner(world, config.learner, config.federation.evaluation_episodes, config.filter_weight)


def most_steps(config: ExperimentConfig, learner: Learner) -> MostSteps:
    """Of one client in a round's training, and in an evaluation."""
    training = config.learner.local_iterations * learner.batch_length
    return MostSteps(training, config.federation.evaluation_episodes * learner.world.horizon)


def fresh_params(learner: Learner, seed: int) -> Params:
    """The weights that a run starts with."""
    return jax.tree.map(np.asarray, learner.init_params(device_key(seed, Purpose.INITIAL_WEIGHTS)))


class LocalExecutor(ABC):
    """Keeps and measures the clients. How they play and train is left to the executor of each kind of world."""

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
            record: keep episodes, which measuring tables or gradients reads.
            snapshot: of an earlier executor of the same config and members, to go on where that one stood.
            members: the clients that will be asked here. None: all, held-out clients included.
        """
        self.config = config
        self.num_clients = config.federation.num_clients
        self.num_held_out = config.federation.held_out_clients
        self.members = np.arange(self.num_clients + self.num_held_out) if members is None else members
        self.world = make_world(config)
        self.learner = make_learner(config, self.world)
        self.most_steps = most_steps(config, self.learner)
        self.clients: ClientMap = CLIENT_MAPS[config.executor](config.groups)
        # Per client: a slot a recorded round, newest last.
        self.history: dict[int, deque[Trajectory]] = {}
        self.plays: list[Asked] = []  # that the recorded episodes come from
        self.record = record
        self.discretise = find_discretiser(config.modelling.discretiser)
        self._start()
        self.state = self._fresh_state()
        if snapshot is None:
            self._warm_up_all()
        else:
            self._restore(snapshot)

    def _warm_up_all(self) -> None:
        """Start the filters. Held-out clients play apart: the last digits of a result depend on who plays along."""
        held_out = self.members >= self.num_clients
        for clients in (self.members[~held_out], self.members[held_out]):
            if len(clients):
                filters = take_clients(self.state.filters, clients)
                self._store(clients, filters=self._warm_up(self.initial_params(), clients, filters))

    @abstractmethod
    def _start(self) -> None:
        """Make what plays, before the clients are asked for the first time."""

    @abstractmethod
    def _warm_up(self, params: Params, clients: ClientIds, filters: Filters) -> Filters:
        """The filters of these clients after the steps of the initial policy that the config asks for."""

    @abstractmethod
    def _play(self, asked: Asked, *, remember: bool) -> Evaluated:
        """Play episodes, without their trajectories in the result; those go to `_remember` if asked."""

    @abstractmethod
    def _train(self, params: Params, round_number: int, clients: ClientIds, shuffles: np.ndarray) -> Trained:
        """Local training of the clients, in their order; a client that could not train has made no steps."""

    def close(self) -> None:  # noqa: B027  nothing to end is the common case
        """End whatever runs besides this process."""

    def initial_params(self) -> Params:
        """Fresh weights; a function of the seed alone."""
        return fresh_params(self.learner, self.config.seed)

    def expect(self, clients: ClientIds, names: Set[str]) -> None:  # noqa: B027  as for `close`
        """Nothing to prepare: asking clients of this process again costs nothing."""

    def client_filters(self) -> Filters:
        """The filters of all clients."""
        return self.state.filters

    def evaluate(self, params: Params, round_number: int, clients: ClientIds) -> Evaluation:
        """Play, update the filters, and remember the episodes."""
        episodes, filters = self.config.federation.evaluation_episodes, take_clients(self.state.filters, clients)
        asked = Asked(params, Purpose.EVALUATION, round_number, clients, filters, episodes)
        measured = bool((clients < self.num_clients).all())  # held-out clients never are
        remember = self.record and self.config.modelling.episodes is None and measured
        result = self._play_recorded(asked) if remember else self._play(asked, remember=False)
        could = result.steps > 0
        done = take_clients(result, could)
        self._store(clients[could], filters=done.filters, mean_return=done.mean_return)
        info = {} if done.num_lost is None else {"lost_episodes": done.num_lost.astype(float)}
        return Evaluation(clients[could], done.mean_return.astype(float), done.steps.astype(np.int64), info)

    def train(self, params: Params, round_number: int, clients: ClientIds) -> ClientUpdates:
        """Local training; momentum and filters stay with the client."""
        if not len(clients):
            nothing = jax.tree.map(lambda x: np.asarray(x)[None][:0], params)
            return ClientUpdates(clients, nothing, np.zeros(0, np.int64))
        seed = self.config.seed
        shuffles = self.clients.on_host(
            lambda client: self.learner.shuffles(host_generator(seed, Purpose.SHUFFLING, round_number, client)),
            [int(client) for client in clients],
        )
        result = self._train(params, round_number, clients, np.stack(shuffles))
        # A client that diverged, or could not train, starts its next training from what it had before.
        sound = finite_clients(result) & (result.steps > 0)
        self._store(
            clients[sound],
            filters=take_clients(result.filters, sound),
            optimisers=take_clients(result.optimisers, sound),
        )
        info = {name: value.astype(float) for name, value in result.info._asdict().items()}
        if result.num_lost is not None:
            info["lost_episodes"] = result.num_lost.astype(float)
        return ClientUpdates(clients, result.params, np.asarray(result.steps, np.int64), info)

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """From the episodes of the latest evaluation, where that serves: measuring then costs no environment steps."""
        self._play_for_measuring(params, round_number, clients, names)
        shared = self._shared(params, Purpose.GRADIENT_SAMPLE, round_number)
        return CandidateMetrics(
            clients,
            mean_return=self.state.mean_return[clients].astype(float) if "mean_return" in names else None,
            gradient_norm=self._gradient_norms(shared, clients) if "gradient_norm" in names else None,
            weighted_advantage=self._tables(shared, clients) if "weighted_advantage" in names else None,
        )

    def _play_for_measuring(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> None:
        """Episodes apart, where those of the evaluation do not serve.

        They do not if the config wants the table made of episodes of its own, or if this policy was not evaluated.
        """
        federation, modelling = self.config.federation, self.config.modelling
        filters = take_clients(self.state.filters, clients)

        def asked(episodes: int, steps_per_episode: int | None) -> Asked:
            return Asked(params, Purpose.MODELLING, round_number, clients, filters, episodes, steps_per_episode)

        if modelling.episodes is not None and names & FROM_EPISODES:
            for client in clients.tolist():
                self.history.pop(client, None)  # all of a table is then played with one policy
            self._play(asked(modelling.episodes, modelling.steps_per_episode), remember=True)
        if round_number % federation.evaluation_every:
            remember = bool(names & FROM_EPISODES) and modelling.episodes is None
            if remember or "mean_return" in names:
                wanted = asked(federation.evaluation_episodes, None)
                result = self._play_recorded(wanted) if remember else self._play(wanted, remember=False)
                could = result.steps > 0
                self._store(clients[could], mean_return=result.mean_return[could])

    def snapshot(self) -> Snapshot:
        """The present state, which later rounds do not touch."""
        return Snapshot(take_clients(self.state, self.members), list(self.plays))

    def _restore(self, snapshot: Snapshot | RemoteClients) -> None:
        if isinstance(snapshot, RemoteClients):
            raise UserError(
                "the clients of this run keep their own state. Go on with: fedpohcs flower run --resume RUN"
            )
        self._store(self.members, **snapshot.state._asdict())
        for asked in snapshot.plays:
            self._play_recorded(asked)

    def _play_recorded(self, asked: Asked) -> Evaluated:
        """What measuring will look back on in later rounds."""
        self.plays = plays_in_use([*self.plays, asked], self.config.modelling.history_rounds)
        return self._play(asked, remember=True)

    def _fresh_state(self) -> ClientState:
        optimisers = self.learner.init_optimisers(self.initial_params())
        fresh = (self.learner.init_filters(), optimisers, np.zeros((), np.float32))
        number = self.num_clients + self.num_held_out
        return ClientState(*jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], number, axis=0), fresh))

    def _shared(self, params: Params, purpose: Purpose, round_number: int) -> Shared:
        return Shared(params, device_key(self.config.seed, purpose, round_number), self.learner.schedule(round_number))

    def _own(self, clients: ClientIds) -> Own:
        return Own(clients, None, take_clients(self.state.filters, clients))

    def _store(self, clients: ClientIds, **changes: Any) -> None:
        for name, rows in changes.items():
            jax.tree.map(lambda old, new: old.__setitem__(clients, new), getattr(self.state, name), rows)

    def _remember(self, client: int, trajectory: Trajectory) -> None:
        """Keep what a client has played, [T, E]."""
        self.history.setdefault(client, deque(maxlen=self.config.modelling.history_rounds)).append(trajectory)

    def _stacked(self, trajectories: list[Trajectory]) -> Trajectory:
        """Of several clients, with a leading client axis."""
        return jax.tree.map(lambda *rows: np.stack(rows), *trajectories)

    def _gradient_norms(self, shared: Shared, clients: ClientIds) -> Vector:
        own = (self._own(clients), self._stacked([self.history[int(client)][-1] for client in clients]))
        return joined(self.clients.run_chunks(self.learner, "gradient_norms", shared, own, clients)).astype(float)

    def _tables(self, shared: Shared, clients: ClientIds) -> tuple[WeightedAdvantage, ...]:
        """D_n A_n of every client asked. Paper: Alg. 3, l. 6."""
        discount = self.config.learner.discount

        def distribution(states: np.ndarray) -> Distribution:
            return self._distribution(shared, states)

        def table(client: int) -> WeightedAdvantage:
            return weighted_advantage_table(self._steps(shared, client), distribution, self.config.modelling, discount)

        return tuple(self.clients.on_host(table, [int(client) for client in clients]))

    def _steps(self, shared: Shared, client: int) -> Steps:
        """The client's recorded episodes, one after the other, as its filters see them now."""
        own = self._own(np.array([client]))
        filters, learner = take_clients(own.filters, 0), self.config.learner
        parts = []
        for trajectory in self.history[client]:
            advantage = None
            if self.config.modelling.advantages == "gae":
                program = compiled(self.learner, "step_advantages")
                advantage = np.asarray(program(shared, own, self._stacked([trajectory])))[0, : len(trajectory.reward)]
            parts.append(_in_order(trajectory, advantage))
        steps = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
        if self.discretise is not None:
            steps = steps._replace(cell=own_cells(self.discretise, steps.observation))
        steps = steps._replace(observation=filter_observation(filters, steps.observation, learner.observation_limit))
        if self.config.modelling.rewards == "filtered":
            steps = steps._replace(reward=filter_reward(filters, steps.reward, learner.reward_limit))
        return self._clipped(steps)

    def _clipped(self, steps: Steps) -> Steps:
        actions = self.world.actions
        if self.config.modelling.clip_actions and isinstance(actions, ContinuousActions):
            return steps._replace(action=np.clip(steps.action, actions.low, actions.high))
        return steps

    def _distribution(self, shared: Shared, states: np.ndarray) -> Distribution:
        """The policy on any number of states, in calls of one shape."""
        padded = np.pad(states, ((0, -len(states) % DISTRIBUTION_ROWS), (0, 0)))
        program = compiled(self.learner, "distribution")
        parts = [
            jax.tree.map(np.asarray, program(shared, padded[start : start + DISTRIBUTION_ROWS]))
            for start in range(0, len(padded), DISTRIBUTION_ROWS)
        ]
        return jax.tree.map(lambda *rows: np.concatenate(rows)[: len(states)], *parts)


def plays_in_use(plays: list[Asked], history_rounds: int) -> list[Asked]:
    """Without the plays of which no client holds an episode any more."""
    newer: Counter[int] = Counter()
    kept = []
    for asked in reversed(plays):
        clients = asked.clients.tolist()
        if any(newer[client] < history_rounds for client in clients):
            kept.append(asked)
        newer.update(clients)
    return kept[::-1]


def find_discretiser(name: str | None) -> Callable[[np.ndarray], Any] | None:
    """The function that `modelling.discretiser` names."""
    if name is None:
        return None
    found = import_function("modelling.discretiser", name)
    require(found is not None, "modelling.discretiser", name, "must name a function: module:function")
    return found


def own_cells(discretise: Callable[[np.ndarray], Any], observation: np.ndarray) -> np.ndarray:
    """The cells that a user's function gives, checked."""
    cells = np.asarray(discretise(observation))
    rule = f"must give one row of integers for each of {len(observation)} observations"
    fits = cells.ndim in (1, 2) and len(cells) == len(observation) and np.issubdtype(cells.dtype, np.integer)
    require(fits, "modelling.discretiser", f"{cells.dtype}{list(cells.shape)}", rule)
    return cells.astype(np.int64)


def _in_order(trajectory: Trajectory, advantage: np.ndarray | None) -> Steps:
    """A recorded trajectory episode by episode, without padding."""
    real = trajectory.valid.T

    def flatten(x: np.ndarray) -> np.ndarray:
        return x.swapaxes(0, 1)[real]

    return Steps(
        flatten(trajectory.observation),
        flatten(trajectory.action),
        flatten(trajectory.reward),
        flatten(trajectory.last),
        None if advantage is None else flatten(advantage),
    )
