"""Clients of a world stepped outside JAX: a collector plays, a compiled program learns, in turns."""

import logging
import math
from collections.abc import Iterator

import jax
import numpy as np

from fedpohcs.core.errors import UserError
from fedpohcs.core.randomness import Purpose
from fedpohcs.core.trajectory import Status, Trajectory, position_in_episode
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import ClientIds, Params
from fedpohcs.execution.clients import Asked, LocalExecutor
from fedpohcs.execution.mapping import Chunk, joined
from fedpohcs.learners.client import Evaluated, Learned, Learning, Trained
from fedpohcs.learners.filters import Filters
from fedpohcs.worlds.host import HostWorld, Play, Played, Quota, empty_trajectory

STEPS_AT_ONCE = 1_000_000  # that one call to the collector may give: bounds memory
PADDED_TO = 4096  # recorded episodes are padded to multiples of this, so that few programs serve them all

log = logging.getLogger("fedpohcs")


class HostExecutor(LocalExecutor):
    """Runs a host world's clients: collecting on the host and updating in JAX take turns."""

    world: HostWorld

    def close(self) -> None:
        """End the collector's threads and processes."""
        self.collector.close()

    def _start(self) -> None:
        self.collector = self.world.make_collector()

    def _warm_up(self, params: Params, clients: ClientIds, filters: Filters) -> Filters:
        """Whole episodes until there are more steps than the config asks for, each counted as often as it says."""
        steps = math.ceil(self.config.learner.filter_warmup_steps / self.config.filter_weight)
        if not steps:
            return filters
        asked = Asked(params, Purpose.WARM_UP, 0, clients, filters, 0)
        parts = [
            Chunk(some.clients, self._absorbed(some.filters, self._collect(some, Quota(min_steps=steps))))
            for some in self._blocks(asked, steps)
        ]
        return joined(parts)

    def _play(self, asked: Asked, *, remember: bool) -> Evaluated:
        horizon = min(self.world.horizon, asked.steps_per_episode or self.world.horizon)
        quota = Quota(episodes=asked.episodes, steps_per_episode=horizon)
        parts, failures = [], []
        for some in self._blocks(asked, asked.episodes * horizon):
            played = self._collect(some, quota)
            failures += [one.failure for one in played if one.failure]
            if remember:
                for client, one in zip(some.clients.tolist(), played, strict=True):
                    self._remember(client, first_of_episodes(one.trajectory, self.config.modelling.steps_per_episode))
            parts.append(Chunk(some.clients, self._evaluated(some, played)))
        if len(failures) == len(asked.clients) > 0:
            raise UserError(f"no client can play its environment. The first says: {failures[0]}")
        return joined(parts)

    def _evaluated(self, asked: Asked, played: list[Played]) -> Evaluated:
        """Undiscounted raw return an episode."""
        totals = np.array([one.trajectory.reward.sum(dtype=float) for one in played])
        return Evaluated(
            mean_return=totals / asked.episodes,
            steps=np.array([len(one.trajectory.reward) for one in played]),
            filters=self._absorbed(asked.filters, played),
            trajectory=None,
            num_lost=np.array([one.num_lost for one in played]),
        )

    def _train(self, params: Params, round_number: int, clients: ClientIds, shuffles: np.ndarray) -> Trained:
        """Every local iteration collects for all clients that can play, then updates all."""
        start = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], len(clients), axis=0), params)
        now = Learning(start, *take_clients((self.state.filters, self.state.optimisers), clients))
        quota = Quota(min_steps=self.config.learner.steps_per_iteration)
        steps, num_lost = np.zeros(len(clients), np.int64), np.zeros(len(clients), np.int64)
        able, info = np.ones(len(clients), bool), None
        for iteration in range(self.config.learner.local_iterations):
            trajectories = [empty_trajectory(self.world)] * len(clients)
            some, own_params = clients[able], take_clients(now.params, able)
            asked = Asked(own_params, Purpose.TRAINING, round_number, some, take_clients(now.filters, able), 0)
            for index, one in zip(np.flatnonzero(able), self._collect(asked, quota, iteration), strict=True):
                trajectories[index] = one.trajectory
                able[index] = one.failure is None
                num_lost[index] += one.num_lost
            learned = self._learn(round_number, clients, now, trajectories, shuffles[:, iteration])
            now, info = learned.now, learned.info
            steps += learned.steps
        assert info is not None  # there is at least one local iteration
        return Trained(*now, np.where(able, steps, 0), info, num_lost)  # pyright: ignore[reportArgumentType]

    def _learn(
        self, round_number: int, clients: ClientIds, now: Learning, played: list[Trajectory], shuffle: np.ndarray
    ) -> Learned:
        batch = self._stacked(played, self.learner.batch_length)
        schedule = self.learner.schedule(round_number)
        return joined(self.clients.run_chunks(self.learner, "learn", schedule, (now, batch, shuffle), clients))

    def _collect(self, asked: Asked, quota: Quota, iteration: int | None = None) -> list[Played]:
        """What the clients asked have played. In a local iteration every client has parameters of its own."""
        policy = jax.tree.map(np.asarray, asked.params.policy)
        limit = self.config.learner.observation_limit
        seed, purpose, number = self.config.seed, int(asked.purpose), asked.round_number
        plays = [
            Play(
                client,
                policy if iteration is None else take_clients(policy, index),
                take_clients(asked.filters, index),
                limit,
                (seed, purpose, number, client, iteration or 0),
            )
            for index, client in enumerate(asked.clients.tolist())
        ]
        played = self.collector.collect(plays, quota)
        return [self._reported(asked, play.client, one) for play, one in zip(plays, played, strict=True)]

    def _reported(self, asked: Asked, client: int, played: Played) -> Played:
        """The same, with a warning that names client and round if something went wrong; clients count from 1 there."""
        number = asked.round_number + (asked.purpose in (Purpose.TRAINING, Purpose.MODELLING))
        where = f"client {client + 1}, round {number}"
        if played.failure is not None:
            log.warning("%s is left out: %s", where, played.failure)
            return played._replace(failure=f"{where}: {played.failure}")
        if played.num_lost:
            log.warning("%s: %d episodes were lost, because their simulation went wrong.", where, played.num_lost)
        return played

    def _absorbed(self, filters: Filters, played: list[Played]) -> Filters:
        """The filters after what each client has seen outside training."""
        new = []
        for index, one in enumerate(played):
            # In float64, because NumPy adds rows one after the other.
            seen = one.trajectory._replace(
                observation=one.trajectory.observation.astype(np.float64), reward=one.trajectory.reward.astype(float)
            )
            new.append(self.learner.updated_filters(take_clients(filters, index), seen, self.config.filter_weight))
        return jax.tree.map(lambda old, *rows: np.stack(rows).astype(old.dtype), filters, *new)

    def _blocks(self, asked: Asked, steps_a_client: int) -> Iterator[Asked]:
        """The clients asked, so many at a time that what they play fits into memory."""
        width = max(1, STEPS_AT_ONCE // max(1, steps_a_client))
        for begin in range(0, len(asked.clients), width):
            some = slice(begin, begin + width)
            yield asked._replace(clients=asked.clients[some], filters=take_clients(asked.filters, some))

    def _stacked(self, trajectories: list[Trajectory], length: int | None = None) -> Trajectory:
        """Padded to one length, which by default is the next multiple of `PADDED_TO`."""
        if length is None:
            length = -(-max(len(one.reward) for one in trajectories) // PADDED_TO) * PADDED_TO
        bootstrap = self.config.learner.bootstrap_at_time_limit

        def fill(*rows: np.ndarray) -> np.ndarray:
            whole = np.zeros((len(rows), length, *rows[0].shape[1:]), rows[0].dtype)
            for own, row in zip(whole, rows, strict=True):
                own[: len(row)] = row
            return whole

        return jax.tree.map(fill, *[x if bootstrap else x._replace(next_observation=None) for x in trajectories])


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
