"""Clients of a traced world inside this process."""

from collections import deque
from collections.abc import Set
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpohcs.aggregation import finite_clients
from fedpohcs.config import ExperimentConfig
from fedpohcs.envs import make_world
from fedpohcs.envs.base import ContinuousActions
from fedpohcs.execution.mapping import CLIENT_MAPS, Chunk, ClientMap, compiled, joined, take_clients
from fedpohcs.heterogeneity import weighted_advantage_table
from fedpohcs.learners.client import Evaluated, Learner, Own, Shared
from fedpohcs.learners.filters import Filters, filter_observation, filter_reward
from fedpohcs.learners.ppo import OptimiserState
from fedpohcs.learners.trajectory import Trajectory
from fedpohcs.randomness import Purpose, device_key, host_generator
from fedpohcs.types import (
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

DISTRIBUTION_ROWS = 2048  # states a compiled call takes: one shape for tables of any size


class ClientState(NamedTuple):
    """What the clients keep between rounds, with a leading client axis."""

    filters: Filters
    optimisers: OptimiserState
    mean_return: np.ndarray  # of the latest evaluation


class InProcessExecutor:
    """Runs a traced world's clients through a `ClientMap`."""

    def __init__(self, config: ExperimentConfig, *, record: bool = True) -> None:
        """Build the population and warm up its filters.

        Args:
            config: of the experiment.
            record: keep evaluation episodes, which measuring tables or gradients reads.
        """
        self.config = config
        self.num_clients = config.federation.num_clients
        self.world = make_world(config.world, config.level, self.num_clients)
        self.learner = Learner(self.world, config.learner, config.federation.evaluation_episodes)
        self.clients: ClientMap = CLIENT_MAPS[config.executor](config.groups)
        self.population = jax.tree.map(np.asarray, self.world.population)
        # Per client: a slot a recorded round, newest last.
        self.history: dict[int, deque[Trajectory]] = {}
        self.record = record
        self.state = self._initial_state()

    def initial_params(self) -> Params:
        """Fresh weights; a function of the seed alone."""
        return jax.tree.map(np.asarray, self.learner.init_params(device_key(self.config.seed, Purpose.INITIAL_WEIGHTS)))

    def evaluate(self, params: Params, round_number: int, clients: ClientIds) -> Evaluation:
        """Play, update the filters, and remember the episodes."""
        shared = self._shared(params, Purpose.EVALUATION, round_number)
        result = self._play(shared, self._own(clients), remember=self.record)
        self._store(clients, filters=result.filters, mean_return=result.mean_return)
        return Evaluation(clients, result.mean_return.astype(float), result.steps.astype(np.int64))

    def train(self, params: Params, round_number: int, clients: ClientIds) -> ClientUpdates:
        """Local training; momentum and filters stay with the client."""
        shared = self._shared(params, Purpose.TRAINING, round_number)
        seed = self.config.seed
        shuffles = self.clients.on_host(
            lambda client: self.learner.shuffles(host_generator(seed, Purpose.SHUFFLING, round_number, client)),
            [int(client) for client in clients],
        )
        own = (self._own(clients), take_clients(self.state.optimisers, clients), np.stack(shuffles))
        result = joined(self.clients.run_chunks(self.learner, "train", shared, own, clients))
        sound = finite_clients(result)  # a client that diverged starts its next training from what it had before
        self._store(
            clients[sound],
            filters=take_clients(result.filters, sound),
            optimisers=take_clients(result.optimisers, sound),
        )
        info = {name: value.astype(float) for name, value in result.info._asdict().items()}
        return ClientUpdates(clients, result.params, result.steps.astype(np.int64), info)

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """All from recorded evaluation episodes: measuring costs no environment steps."""
        shared = self._shared(params, Purpose.GRADIENT_SAMPLE, round_number)
        return CandidateMetrics(
            clients,
            mean_return=self.state.mean_return[clients].astype(float) if "mean_return" in names else None,
            gradient_norm=self._gradient_norms(shared, clients) if "gradient_norm" in names else None,
            weighted_advantage=self._tables(shared, clients) if "weighted_advantage" in names else None,
        )

    def _initial_state(self) -> ClientState:
        params = self.initial_params()
        everyone = np.arange(self.num_clients)
        fresh = (self.learner.init_filters(), self.learner.init_optimisers(params), np.zeros((), np.float32))
        state = ClientState(*jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], self.num_clients, axis=0), fresh))
        steps_a_call = self.learner.evaluation_episodes * self.world.horizon
        for number in range(-(-self.config.learner.filter_warmup_steps // steps_a_call)):
            shared = self._shared(params, Purpose.WARM_UP, number)
            state = state._replace(filters=self._play(shared, Own(everyone, self.population, state.filters)).filters)
        return state

    def _shared(self, params: Params, purpose: Purpose, round_number: int) -> Shared:
        return Shared(params, device_key(self.config.seed, purpose, round_number), self.learner.schedule(round_number))

    def _own(self, clients: ClientIds) -> Own:
        return Own(clients, *take_clients((self.population, self.state.filters), clients))

    def _store(self, clients: ClientIds, **changes: Any) -> None:
        for name, rows in changes.items():
            jax.tree.map(lambda old, new: old.__setitem__(clients, new), getattr(self.state, name), rows)

    def _play(self, shared: Shared, own: Own, *, remember: bool = False) -> Evaluated:
        """One evaluation, without its trajectories: those are large, so they are kept in chunks and never joined."""
        chunks = self.clients.run_chunks(self.learner, "evaluate", shared, (own,), own.client)
        if remember:
            for part in chunks:
                self._remember(part.clients, part.result.trajectory)
        return joined([Chunk(part.clients, part.result._replace(trajectory=None)) for part in chunks])

    def _remember(self, clients: ClientIds, trajectory: Trajectory) -> None:
        """Keep the episodes of each client, [T, E], as views of what they played together."""
        for position, client in enumerate(clients.tolist()):
            episodes = self.history.setdefault(client, deque(maxlen=self.config.modelling.history_rounds))
            episodes.append(jax.tree.map(lambda x: x[:, position], trajectory))  # noqa: B023

    def _latest(self, clients: ClientIds) -> Trajectory:
        return jax.tree.map(lambda *rows: np.stack(rows), *[self.history[int(client)][-1] for client in clients])

    def _gradient_norms(self, shared: Shared, clients: ClientIds) -> Vector:
        own = (self._own(clients), self._latest(clients))
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
                batch = jax.tree.map(lambda x: x[None], trajectory)
                program = compiled(self.learner, "step_advantages")
                advantage = np.asarray(program(shared, own, batch))[0]
            parts.append(_in_order(trajectory, advantage))
        steps = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
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
