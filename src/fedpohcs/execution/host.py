"""Clients of a world stepped outside JAX: a collector plays and a compiled program learns, alternately."""

import logging
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fedpohcs.core.errors import NobodyError
from fedpohcs.core.randomness import Purpose, host_generator
from fedpohcs.core.steering import BYZANTINE, EPISODES
from fedpohcs.core.trajectory import Status, Trajectory, position_in_episode
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import ClientIds, Params
from fedpohcs.execution.clients import LocalExecutor, PlayOrder, Remember
from fedpohcs.execution.mapping import Chunk, joined
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.client import ClientProgram, PlayResult, TrainingResult
from fedpohcs.worlds.host import ClientEpisodes, HostWorld, Play, Quota, empty_trajectory

STEPS_AT_ONCE = 1_000_000  # that one call to the collector may return; bounds memory
PADDED_TO = 4096  # recorded episodes are padded to multiples of this, so that few programs are compiled

log = logging.getLogger("fedpohcs")


class HostExecutor(LocalExecutor):
    """Runs a host world's clients: collecting on the host and updating in JAX take turns."""

    world: HostWorld

    def close(self) -> None:
        """End the collector's threads and processes."""
        self.collector.close()

    def _start(self) -> None:
        self.collector = self.world.make_collector()

    def _warm_up(self, params: Params, clients: ClientIds, filters: Any) -> Any:
        """Whole episodes until there are more steps than the config asks for, each counted as often as it says."""
        steps = math.ceil(self.config.learner.filter_warmup_steps / self.config.filter_weight)
        if not steps:
            return filters
        order = PlayOrder(params, Purpose.WARM_UP, 0, clients, filters, 0)
        parts = [
            Chunk(some.clients, self._absorbed(some.filters, self._collect(some, Quota(min_steps=steps))))
            for some in self._blocks(order, steps)
        ]
        return joined(parts)

    def _play(self, order: PlayOrder, remember: Remember | None = None) -> PlayResult:
        horizon = min(self.world.horizon, order.steps_per_episode or self.world.horizon)
        quota = Quota(episodes=order.episodes, steps_per_episode=horizon)
        parts, failures = [], []
        for some in self._blocks(order, order.episodes * horizon):
            played = self._collect(some, quota)
            failures += [one.failure for one in played if one.failure]
            if remember is not None:
                for client, one in zip(some.clients.tolist(), played, strict=True):
                    remember(client, one.trajectory)
            parts.append(Chunk(some.clients, self._evaluated(some, played)))
        if len(failures) == len(order.clients) > 0:
            raise NobodyError(f"no client can play its environment. The first says: {failures[0]}")
        return joined(parts)

    def _model(self, client: int, trajectory: Trajectory) -> None:
        super()._model(client, first_of_episodes(trajectory, self.config.modelling.steps_per_episode))

    def _evaluated(self, order: PlayOrder, played: list[ClientEpisodes]) -> PlayResult:
        """Undiscounted raw return per episode."""
        totals = np.array([one.trajectory.reward.sum(dtype=float) for one in played])
        return PlayResult(
            mean_return=totals / order.episodes,
            steps=np.array([len(one.trajectory.reward) for one in played]),
            filters=self._absorbed(order.filters, played),
            trajectory=None,
            num_lost=np.array([one.num_lost for one in played]),
        )

    def _train(
        self, sent: Broadcast, round_number: int, clients: ClientIds, draws: Any, attempt: int
    ) -> TrainingResult:
        """Every local iteration collects for all clients that can play, then updates all."""
        start = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], len(clients), axis=0), sent.params)
        state = self.state_of(clients)
        now = Progress(start, state.filters, state.memory)
        quota, iterations = self._training_quota(sent), self.config.learner.local_iterations
        steps, num_lost = np.zeros(len(clients), np.int64), np.zeros(len(clients), np.int64)
        able, info = np.ones(len(clients), bool), None
        for iteration in range(iterations):
            trajectories = [empty_trajectory(self.world)] * len(clients)
            some, own_params = clients[able], take_clients(now.params, able)
            own_params = self._acting(sent, some, own_params)
            order = PlayOrder(own_params, Purpose.TRAINING, round_number, some, take_clients(now.filters, able), 0)
            played = self._collect(order, quota, attempt * iterations + iteration)
            for index, one in zip(np.flatnonzero(able), played, strict=True):
                key = (round_number, int(clients[index]), attempt * iterations + iteration)
                trajectories[index] = self._poisoned(sent, one.trajectory, *key)
                able[index] = one.failure is None
                num_lost[index] += one.num_lost
            drawn = jax.tree.map(lambda x: x[:, iteration], draws)  # noqa: B023
            learned = self._learn(sent, clients, now, trajectories, drawn)
            now, info = learned.now, learned.info
            steps += learned.steps
        assert info is not None  # there is at least one local iteration
        return TrainingResult(*now, np.where(able, steps, 0), info, num_lost)  # pyright: ignore[reportArgumentType]

    def _acting(self, sent: Broadcast, clients: ClientIds, params: Params) -> Params:
        """The weights with which the clients play to learn; see `ClientProgram`."""
        poison = self.program.poison
        if poison is None or not poison.blind or BYZANTINE not in sent.extra:
            return params
        honest = ~sent.extra[BYZANTINE][clients]
        return jax.tree.map(lambda x: x * honest.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype), params)

    def _poisoned(
        self, sent: Broadcast, trajectory: Trajectory, round_number: int, client: int, iteration: int
    ) -> Trajectory:
        """The episodes that a client learns from; see `ClientProgram`."""
        poison = self.program.poison
        if poison is None or poison.reward is None or not sent.extra.get(BYZANTINE, np.zeros(client + 1))[client]:
            return trajectory
        generator = host_generator(self.config.seed, Purpose.ATTACK, round_number, client + 1, iteration)
        noise = generator.random(trajectory.reward.shape, np.float32)
        return trajectory._replace(reward=poison.reward(trajectory.reward, trajectory.valid, noise))

    def _training_quota(self, sent: Broadcast) -> Quota:
        """The episodes of a local iteration: a number, which the server may lower, or a number of steps."""
        most = self.config.learner.whole_episodes
        if most is None:
            return Quota(min_steps=self.config.learner.steps_per_iteration)
        episodes = min(most, int(sent.extra.get(EPISODES, most)))
        return Quota(episodes=episodes, steps_per_episode=self.world.horizon)

    def collect(
        self, sent: Broadcast, round_number: int, iteration: int, clients: ClientIds, min_steps: int, filters: Any
    ) -> tuple[list[Trajectory], Any]:
        """Episodes of the clients; none of a client that cannot play."""
        params = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], len(clients), axis=0), sent.params)
        order = PlayOrder(params, Purpose.TRAINING, round_number, clients, filters, 0)
        quota = Quota(min_steps=min_steps) if min_steps else Quota(episodes=1)
        played = self._collect(order, quota, iteration)
        return [one.trajectory for one in played], self._absorbed(filters, played, weight=1.0)

    def _learn(
        self, sent: Broadcast, clients: ClientIds, now: Progress, played: list[Trajectory], draws: Any
    ) -> IterationResult:
        batch = self._stacked(played, self.learner.batch_length)
        return joined(self.clients.run_chunks(ClientProgram.learn, self.program, sent, (now, batch, draws), clients))

    def _collect(self, order: PlayOrder, quota: Quota, iteration: int | None = None) -> list[ClientEpisodes]:
        """Episodes of the given clients. In a local iteration every client has its own parameters."""
        common = jax.tree.map(np.asarray, order.params)
        schedule = jax.tree.map(np.asarray, self.learner.schedule(order.round_number))
        seed, purpose, number = self.config.seed, int(order.purpose), order.round_number
        training = order.purpose == Purpose.TRAINING

        def play(index: int, client: int) -> Play:
            params = common if iteration is None else take_clients(common, index)
            filters = take_clients(order.filters, index)
            actor = self.learner.actor(params, filters, schedule, training=training)
            return Play(client, actor, (seed, purpose, number, client, iteration or 0))

        plays = [play(index, client) for index, client in enumerate(order.clients.tolist())]
        played = self.collector.collect(plays, quota)
        return [self._reported(order, play.client, one) for play, one in zip(plays, played, strict=True)]

    def _reported(self, order: PlayOrder, client: int, played: ClientEpisodes) -> ClientEpisodes:
        """Log a warning for a failure, with the round and the client; return what was played."""
        number = order.round_number + (order.purpose in (Purpose.TRAINING, Purpose.MODELLING))
        where = f"client {client}, round {number}"
        if played.failure is not None:
            log.warning("%s is left out: %s", where, played.failure)
            return played._replace(failure=f"{where}: {played.failure}")
        if played.num_lost:
            log.warning("%s: %d episodes were lost, because their simulation went wrong.", where, played.num_lost)
        return played

    def _absorbed(self, filters: Any, played: list[ClientEpisodes], weight: float | None = None) -> Any:
        """The filters, updated with the steps of each client, by default with the weight of those outside training."""
        new, counted = [], self.config.filter_weight if weight is None else weight
        for index, one in enumerate(played):
            # In float64, because NumPy adds rows one after the other.
            seen = one.trajectory._replace(
                observation=one.trajectory.observation.astype(np.float64), reward=one.trajectory.reward.astype(float)
            )
            new.append(self.learner.observe(take_clients(filters, index), seen, counted))
        return jax.tree.map(lambda old, *rows: np.stack(rows).astype(old.dtype), filters, *new)

    def _blocks(self, order: PlayOrder, steps_per_client: int) -> Iterator[PlayOrder]:
        """Blocks of clients whose episodes fit into memory."""
        width = max(1, STEPS_AT_ONCE // max(1, steps_per_client))
        for begin in range(0, len(order.clients), width):
            some = slice(begin, begin + width)
            yield order._replace(clients=order.clients[some], filters=take_clients(order.filters, some))

    def _stacked(self, trajectories: list[Trajectory], length: int | None = None) -> Trajectory:
        """Stack trajectories, padded to one length, by default the next multiple of `PADDED_TO`."""
        if length is None:
            length = -(-max(len(one.reward) for one in trajectories) // PADDED_TO) * PADDED_TO
        records_next = self.learner.records_next

        def fill(*rows: np.ndarray) -> np.ndarray:
            whole = np.zeros((len(rows), length, *rows[0].shape[1:]), rows[0].dtype)
            for own, row in zip(whole, rows, strict=True):
                own[: len(row)] = row
            return whole

        return jax.tree.map(fill, *[x if records_next else x._replace(next_observation=None) for x in trajectories])


def first_of_episodes(trajectory: Trajectory, steps_per_episode: int | None) -> Trajectory:
    """Only so many first steps of each episode (None: all), of one lane without padding.

    An episode cut here goes on to where its next step was made.
    """
    if steps_per_episode is None or not len(trajectory.reward):
        return trajectory
    last = trajectory.last[:, 0]
    position = position_in_episode(last)
    kept = np.flatnonzero(position < steps_per_episode)
    cut = kept[(position[kept] == steps_per_episode - 1) & ~last[kept]]
    status, following = trajectory.status.copy(), trajectory.next_observation.copy()  # pyright: ignore[reportOptionalMemberAccess]
    status[cut] = Status.TRUNCATED
    following[cut] = trajectory.observation[cut + 1]
    whole = trajectory._replace(status=status, next_observation=following)
    return jax.tree.map(lambda x: x[kept], whole)
