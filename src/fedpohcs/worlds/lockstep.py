"""A collector for simulators that step many environments at once: one policy call per control step for all clients."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numba import njit

from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.worlds.base import World
from fedpohcs.worlds.host import (
    NOISE_STEPS,
    ClientEpisodes,
    Play,
    Quota,
    empty_trajectory,
)
from fedpohcs.worlds.seeding import seeded_generator

LOOK_EVERY = 20  # steps between two checks for episodes that are no longer needed
RUNNING, TERMINATED, TRUNCATED = map(int, (Status.RUNNING, Status.TERMINATED, Status.TRUNCATED))  # for compiled code
Lanes = np.ndarray  # [n] of integers


class StepResult(NamedTuple):
    """One step of some lanes; [n, ...] each."""

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    broken: np.ndarray  # the simulation has failed, diverged or is not finite: its output is meaningless
    truncated: np.ndarray | None = None  # the environment itself has cut the episode. None: it never does
    reasons: dict[int, str] | None = None  # by row, why it is broken. None: unknown


class Simulator(Protocol):
    """Steps any set of its lanes at once; lanes are given in ascending order.

    Lane `client * lanes_per_client + slot` is an environment of that client.
    """

    lanes_per_client: int

    def reset(self, lanes: Lanes, generators: Sequence[np.random.Generator]) -> np.ndarray:
        """Start new episodes, each drawn from its own generator, and return the observations."""
        ...

    def step(self, lanes: Lanes, action: np.ndarray) -> StepResult:
        """One control step of these lanes."""
        ...

    def close(self) -> None:
        """End threads."""
        ...


class Patience(NamedTuple):
    """What a collector bears of simulations that go wrong."""

    tries: int = 1  # of an episode before it is lost
    lost_in_a_row: int = 20  # episodes, in the order of their numbers, before the client counts as unable to play


PATIENCE = Patience()


class _Client:
    """Decides which episodes of one client are still to be played, from the lengths of those already played.

    Episodes run at the same time, before it is known whether all of them are needed. They are numbered, and surplus
    ones are dropped, so that the outcome is that of playing them one after the other.
    """

    def __init__(self, quota: Quota, patience: Patience, expected_length: float) -> None:
        self.quota, self.patience = quota, patience
        self.expected_length = expected_length
        self.running: dict[int, int] = {}  # by number: the time on the collector's clock when it was started
        self.length: dict[int, int] = {}  # of finished episodes
        self.run: dict[int, int] = {}  # where each finished episode was recorded
        self.failed: dict[int, int] = {}  # by number: how often it was tried in vain
        self.lost: dict[int, str | None] = {}  # by number: the reason
        self.num_lost = self.lost_in_a_row = 0  # of those before `decided`
        self.waiting: list[int] = []  # dropped and failed ones, which may be wanted after all
        self.next = 0  # the lowest number that was never started
        self.decided = 0  # the lowest number of which it is not known whether it is chosen or lost
        self.chosen: list[int] = []  # finished ones before which none is missing, until the quota is met
        self.chosen_steps = 0
        self.total_steps = 0
        self.is_met = False

    def wants_another(self, clock: int) -> bool:
        """Whether to start one more beside the running ones."""
        if self.quota.episodes is not None:
            return len(self.length) + len(self.running) < self.quota.episodes
        expected = sum(max(clock - start, self.expected_length) for start in self.running.values())
        return self.total_steps + expected <= (self.quota.min_steps or 0)

    def start(self, clock: int) -> int:
        """Start the episode with the lowest number that was not played, and return the number."""
        if self.waiting:
            number = self.waiting.pop(self.waiting.index(min(self.waiting)))
        else:
            number, self.next = self.next, self.next + 1
        self.running[number] = clock
        return number

    def finish(self, number: int, length: int, run: int) -> None:
        """Record the end of an episode."""
        del self.running[number]
        self.length[number], self.run[number] = length, run
        self.total_steps += length
        self._choose()

    def fail(self, number: int, reason: str | None) -> None:
        """Record the failure of an episode. It is played again, or lost if it was tried often enough."""
        del self.running[number]
        self.failed[number] = self.failed.get(number, 0) + 1
        if self.failed[number] < self.patience.tries:
            self.waiting.append(number)
        else:
            self.lost[number] = reason
            self._choose()

    @property
    def failure(self) -> str | None:
        """Why the client counts as unable to play; None while it does not."""
        if self.lost_in_a_row < self.patience.lost_in_a_row:
            return None
        last = self.decided - 1
        reason = self.lost[last]
        return f"episode {last}: {reason}" if reason else f"the simulation went wrong in {self.num_lost} episodes"

    def drop_surplus(self, clock: int) -> list[int]:
        """Stop running episodes that no outcome of the earlier ones makes necessary, unless one of those is lost."""
        drop = list(self.running) if self.is_met else self._surplus(clock)
        for number in drop:
            del self.running[number]
        self.waiting += drop
        return drop

    def _surplus(self, clock: int) -> list[int]:
        enough = self.quota.min_steps
        if enough is None:
            return []
        so_far = {number: clock - start for number, start in self.running.items()}
        if self.total_steps + sum(so_far.values()) <= enough:
            return []
        steps, drop = self.chosen_steps, []
        for number in sorted(number for number in {**self.length, **so_far} if number >= self.decided):
            if steps > enough and number in so_far:
                drop.append(number)
            steps += self.length.get(number, so_far.get(number, 0))
        return drop

    def _choose(self) -> None:
        """Choose further episodes, as far as it is known how those before them ended."""
        while not self.is_met and self.failure is None and (self.decided in self.length or self.decided in self.lost):
            self._decide(self.decided)
            self.decided += 1

    def _decide(self, number: int) -> None:
        if number in self.lost:
            self.num_lost, self.lost_in_a_row = self.num_lost + 1, self.lost_in_a_row + 1
            return
        self.lost_in_a_row = 0
        self.chosen.append(number)
        self.chosen_steps += self.length[number]
        if self.quota.min_steps is not None:
            self.is_met = self.chosen_steps > self.quota.min_steps
        else:
            self.is_met = len(self.chosen) == self.quota.episodes


class LockstepCollector:
    """Plays all clients' episodes side by side in one simulator."""

    def __init__(self, world: World, simulator: Simulator, patience: Patience = PATIENCE) -> None:
        self.world = world
        self.simulator = simulator
        self.patience = patience
        self._expected_length: dict[int, float] = {}  # of a client's episodes; affects speed, never results

    def close(self) -> None:
        """End the simulator's threads."""
        self.simulator.close()

    def collect(self, plays: Sequence[Play], quota: Quota) -> list[ClientEpisodes]:
        """See `worlds.host.Collector`."""
        if not plays:
            return []
        order = sorted(range(len(plays)), key=lambda index: plays[index].client)  # lanes ascend
        clients = [self._client(plays[index].client, quota) for index in order]
        run = _Run(self.world, self.simulator, [plays[index] for index in order], quota, clients)
        while run.active.any():
            run.advance()
        for play, client in zip(run.plays, run.clients, strict=True):
            if client.length:
                self._expected_length[play.client] = float(np.mean(list(client.length.values())))
        played = dict(zip(order, run.results(), strict=True))
        return [played[index] for index in range(len(plays))]

    def _client(self, client: int, quota: Quota) -> _Client:
        longest = min(self.world.horizon, quota.steps_per_episode or self.world.horizon)
        return _Client(quota, self.patience, min(self._expected_length.get(client, longest), longest))


class _Rows(NamedTuple):
    """The active lanes, one row each: values that are constant until an episode starts or ends."""

    at: tuple[np.ndarray, ...]  # play and slot
    lane: Lanes
    run: np.ndarray
    started: np.ndarray
    act: Callable[[np.ndarray, np.ndarray], np.ndarray]


class _Run:
    """One call to `collect`. Arrays have the axes [play, slot]."""

    def __init__(
        self, world: World, simulator: Simulator, plays: Sequence[Play], quota: Quota, clients: Sequence[_Client]
    ) -> None:
        self.world, self.simulator, self.plays, self.quota = world, simulator, plays, quota
        self.horizon = min(world.horizon, quota.steps_per_episode or world.horizon)
        slots = simulator.lanes_per_client
        shape = (len(plays), slots)
        self.clients = clients
        self.crowd = plays[0].actor.crowd([play.actor for play in plays])
        self.lane = np.array([play.client for play in plays])[:, None] * simulator.lanes_per_client + np.arange(slots)
        self.active = np.zeros(shape, bool)
        self.episode = np.zeros(shape, np.int64)
        self.started = np.zeros(shape, np.int64)  # the clock's time
        self.run = np.zeros(shape, np.int64)  # every started episode is a run of its own
        self.observation = np.zeros((*shape, world.observation_size), np.float32)
        self.generator: dict[tuple[int, int], np.random.Generator] = {}
        self.noise: np.ndarray | None = None
        self.rows: _Rows | None = None  # None: not what `active` says any more
        self.recorded: list[tuple[np.ndarray, ...]] = []
        self.cut: dict[int, np.ndarray] = {}  # by run: the observation after the time limit
        self.num_runs = 0
        self.clock = 0
        self._fill(range(len(plays)))

    def advance(self) -> None:
        """One control step of every active lane."""
        rows = self.rows = self.rows or self._gathered()
        observation, time = self.observation[rows.at], self.clock - rows.started
        action = self._act(rows, observation, time)
        moved = self.simulator.step(rows.lane, action)
        status = _status(self._is_cut(time, moved), moved.terminated)
        self.recorded.append((rows.run, observation, action, moved.reward, status))
        self.observation[rows.at] = moved.observation
        self.clock += 1
        ended = np.flatnonzero((status != Status.RUNNING) | moved.broken)
        if len(ended):
            self._finish(rows.at, ended, status, moved)
        elif self.quota.episodes is None and self.clock % LOOK_EVERY == 0:
            self._drop_surplus(range(len(self.plays)))

    def _is_cut(self, time: np.ndarray, moved: StepResult) -> np.ndarray:
        late = time + 1 >= self.horizon
        return late if moved.truncated is None else late | moved.truncated

    def results(self) -> list[ClientEpisodes]:
        """The episodes of each client in the order of their numbers."""
        chosen = [client.chosen if client.is_met else [] for client in self.clients]
        order = [client.run[number] for client, numbers in zip(self.clients, chosen, strict=True) for number in numbers]
        rank = np.full(self.num_runs, len(order))
        rank[order] = np.arange(len(order))
        run, *columns = (np.concatenate(column) for column in zip(*self.recorded, strict=True))
        self.recorded.clear()
        by_rank = np.argsort(rank[run], kind="stable")[: np.count_nonzero(rank[run] < len(order))]
        observation, action, reward, status = (column[by_rank] for column in columns)
        following = np.zeros_like(observation)
        for row in np.flatnonzero(status == Status.TRUNCATED):
            following[row] = self.cut[int(run[by_rank[row]])]
        whole = Trajectory(observation, action, reward.astype(np.float32), status, following)
        played, begin = [], 0
        for client, numbers in zip(self.clients, chosen, strict=True):
            end = begin + sum(client.length[number] for number in numbers)
            if client.failure is None:
                part = Trajectory(*(x[begin:end, None] for x in whole))  # pyright: ignore[reportOptionalSubscript]
                played.append(ClientEpisodes(part, client.num_lost))
            else:
                played.append(ClientEpisodes(empty_trajectory(self.world), client.num_lost, client.failure))
            begin = end
        return played

    def _gathered(self) -> _Rows:
        at = np.nonzero(self.active)
        return _Rows(at, self.lane[at], self.run[at], self.started[at], self.crowd.rows(at[0]))

    def _act(self, rows: _Rows, observation: np.ndarray, time: np.ndarray) -> np.ndarray:
        """The actions of the actors in these lanes."""
        at, phase = rows.at, time % NOISE_STEPS
        fresh = np.flatnonzero(phase == 0)
        for slot in zip(at[0][fresh].tolist(), at[1][fresh].tolist(), strict=True):
            noise = self.plays[slot[0]].actor.noise.draw(self.generator[slot], NOISE_STEPS)
            self._store_noise(slot, noise)
        assert self.noise is not None  # every episode starts in phase 0
        return rows.act(observation, self.noise[(*at, phase)])

    def _store_noise(self, slot: tuple[int, int], noise: np.ndarray) -> None:
        if self.noise is None:
            self.noise = np.zeros((*self.active.shape, *noise.shape), noise.dtype)
        self.noise[slot] = noise

    def _finish(self, at: tuple[np.ndarray, ...], ended: np.ndarray, status: np.ndarray, moved: StepResult) -> None:
        self.rows = None
        for row in ended.tolist():
            slot = int(at[0][row]), int(at[1][row])
            client, number, run = self.clients[slot[0]], int(self.episode[slot]), int(self.run[slot])
            self.active[slot] = False
            if client.failure is not None:  # it was given up because of another row
                continue
            if moved.broken[row]:
                client.fail(number, (moved.reasons or {}).get(row))
                self._give_up_if_hopeless(slot[0])
                continue
            client.finish(number, self.clock - client.running[number], run)
            if status[row] == Status.TRUNCATED:
                self.cut[run] = self.observation[slot].copy()
        touched = np.unique(at[0][ended]).tolist()
        self._drop_surplus(touched)
        self._fill(touched)

    def _give_up_if_hopeless(self, index: int) -> None:
        if self.clients[index].failure is not None:
            self.clients[index].running.clear()
            self.active[index] = False

    def _drop_surplus(self, indices: Sequence[int]) -> None:
        for index in indices:
            drop = self.clients[index].drop_surplus(self.clock)
            if drop:
                self.rows = None
                self.active[index] &= ~np.isin(self.episode[index], drop)

    def _fill(self, indices: Sequence[int]) -> None:
        """Start episodes in free lanes of these clients, as far as they are wanted."""
        started: list[tuple[int, int]] = []
        for index in indices:
            client = self.clients[index]
            if client.failure is not None or client.is_met:
                continue
            for slot in np.flatnonzero(~self.active[index]).tolist():
                if not client.wants_another(self.clock):
                    break
                self._start((index, slot), client.start(self.clock))
                started.append((index, slot))
        if started:
            at = tuple(np.array(started).T)
            self.observation[at] = self.simulator.reset(self.lane[at], [self.generator[slot] for slot in started])

    def _start(self, slot: tuple[int, int], number: int) -> None:
        self.active[slot] = True
        self.episode[slot], self.started[slot], self.run[slot] = number, self.clock, self.num_runs
        self.generator[slot] = seeded_generator([*self.plays[slot[0]].draws, number])  # as `episode_generator`
        self.num_runs += 1


@njit(nogil=True, cache=True)
def _status(is_cut, terminated):
    status = np.empty(len(is_cut), np.int8)
    for row in range(len(is_cut)):
        status[row] = TERMINATED if terminated[row] else TRUNCATED if is_cut[row] else RUNNING
    return status
