"""A collector for simulators that step many environments at once: one policy call a control step for everybody."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numba import njit

from fedpohcs.envs.base import World
from fedpohcs.envs.host import (
    NOISE_STEPS,
    Play,
    Played,
    Quota,
    action_noise,
    empty_trajectory,
    episode_generator,
)
from fedpohcs.learners.filters import Filters, filter_observation
from fedpohcs.learners.networks import Dense, PolicyParams, action_distribution
from fedpohcs.learners.trajectory import Status, Trajectory

LARGEST_LOSS = 20  # episodes in a row that a client may lose before it counts as unable to play
LOOK_EVERY = 20  # steps between two looks at which episodes are no longer needed
Lanes = np.ndarray  # [n] of integers


class Moved(NamedTuple):
    """One step of some lanes; [n, ...] each."""

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    broken: np.ndarray  # the simulation has diverged or failed: what it says means nothing


class Simulator(Protocol):
    """Steps any of its lanes at once, given in ascending order.

    Lane `client * lanes_per_client + slot` is an environment of that client.
    """

    lanes_per_client: int

    def reset(self, lanes: Lanes, generators: Sequence[np.random.Generator]) -> np.ndarray:
        """Start new episodes, each drawn from its own generator; the observations."""
        ...

    def step(self, lanes: Lanes, action: np.ndarray) -> Moved:
        """One control step of these lanes."""
        ...

    def close(self) -> None:
        """End threads."""
        ...


class _Client:
    """Which episodes of one client are still to be played; a function of what its episodes turned out to be.

    Episodes run side by side before it is known whether all of them are needed. Numbering them makes the outcome that
    of playing them one after the other: surplus ones are dropped.
    """

    def __init__(self, quota: Quota, expected_length: float) -> None:
        self.quota = quota
        self.expected_length = expected_length
        self.length: dict[int, int] = {}  # of finished episodes
        self.run: dict[int, int] = {}  # where each finished episode was recorded
        self.lost: set[int] = set()
        self.waiting: list[int] = []  # dropped ones, which may be wanted after all
        self.next = 0  # the lowest number that was never started
        self.chosen: list[int] = []  # finished ones before which none is missing, until the quota is met
        self.chosen_steps = 0
        self.total_steps = 0
        self.is_met = False

    def finish(self, number: int, length: int, run: int) -> None:
        """An episode has come to its end."""
        self.length[number], self.run[number] = length, run
        self.total_steps += length
        self._choose()

    def lose(self, number: int) -> None:
        """An episode has gone wrong."""
        self.lost.add(number)
        self._choose()

    def wants_another(self, running: dict[int, int]) -> bool:
        """Whether to start one more beside the running ones, given how far these are."""
        if self.quota.episodes is not None:
            return len(self.length) + len(running) < self.quota.episodes
        expected = sum(max(steps, self.expected_length) for steps in running.values())
        return self.total_steps + expected <= (self.quota.min_steps or 0)

    def take_number(self) -> int:
        """The lowest number not played yet."""
        if self.waiting:
            return self.waiting.pop(self.waiting.index(min(self.waiting)))
        self.next += 1
        return self.next - 1

    def surplus(self, running: dict[int, int]) -> list[int]:
        """Running episodes that no outcome of the earlier ones makes necessary, unless one of those is lost."""
        if self.is_met:
            return list(running)
        if self.quota.min_steps is None:
            return []
        steps, drop, last = self.chosen_steps, [], self._last_chosen()
        later = (number for number in {**self.length, **running} if number > last)
        for number in sorted(later):
            if steps > self.quota.min_steps and number in running:
                drop.append(number)
            steps += self.length.get(number, running.get(number, 0))
        return drop

    def _last_chosen(self) -> int:
        return self.chosen[-1] if self.chosen else -1

    def _choose(self) -> None:
        """Go on with what follows the last chosen one, as far as it is known."""
        number = self._last_chosen() + 1
        while not self.is_met and (number in self.length or number in self.lost):
            if number in self.length:
                self.chosen.append(number)
                self.chosen_steps += self.length[number]
            if self.quota.min_steps is not None:
                self.is_met = self.chosen_steps > self.quota.min_steps
            else:
                self.is_met = len(self.chosen) == self.quota.episodes
            number += 1


class LockstepCollector:
    """Plays all clients' episodes side by side in one simulator."""

    def __init__(self, world: World, simulator: Simulator) -> None:
        self.world = world
        self.simulator = simulator
        self._expected_length: dict[int, float] = {}  # of a client's episodes; guides the work, never the outcome

    def close(self) -> None:
        """End the simulator's threads."""
        self.simulator.close()

    def collect(self, plays: Sequence[Play], quota: Quota) -> list[Played]:
        """See `envs.host.Collector`."""
        if not plays:
            return []
        order = sorted(range(len(plays)), key=lambda index: plays[index].client)  # lanes ascend
        run = _Run(self.world, self.simulator, [plays[index] for index in order], quota, self._expected_length)
        while run.active.any():
            run.advance()
        for play, client in zip(run.plays, run.clients, strict=True):
            if client.length:
                self._expected_length[play.client] = float(np.mean(list(client.length.values())))
        played = dict(zip(order, run.results(), strict=True))
        return [played[index] for index in range(len(plays))]


class _Run:
    """One call to `collect`. Arrays have the axes [play, slot]."""

    def __init__(
        self, world: World, simulator: Simulator, plays: Sequence[Play], quota: Quota, expected: dict[int, float]
    ) -> None:
        self.world, self.simulator, self.plays, self.quota = world, simulator, plays, quota
        self.horizon = min(world.horizon, quota.steps_per_episode or world.horizon)
        slots = simulator.lanes_per_client
        shape = (len(plays), slots)
        self.clients = [_Client(quota, min(expected.get(play.client, self.horizon), self.horizon)) for play in plays]
        self.failures: list[str | None] = [None] * len(plays)
        self.policy = _stacked_policy([play.policy for play in plays])
        self.filters = _stacked_filters([play.filters for play in plays])
        self.lane = np.array([play.client for play in plays])[:, None] * simulator.lanes_per_client + np.arange(slots)
        self.active = np.zeros(shape, bool)
        self.episode = np.zeros(shape, np.int64)
        self.time = np.zeros(shape, np.int64)
        self.run = np.zeros(shape, np.int64)  # every started episode is a run of its own
        self.observation = np.zeros((*shape, world.observation_size), np.float32)
        self.generator: dict[tuple[int, int], np.random.Generator] = {}
        self.noise: np.ndarray | None = None
        self.rows: list[tuple[np.ndarray, ...]] = []
        self.cut: dict[int, np.ndarray] = {}  # by run: the observation after the time limit
        self.num_runs = 0
        self.clock = 0
        self._fill(range(len(plays)))

    def advance(self) -> None:
        """One control step of every active lane."""
        at = np.nonzero(self.active)
        observation, time = self.observation[at], self.time[at]
        action = self._act(at, time)
        moved = self.simulator.step(self.lane[at], action)
        broken = moved.broken | ~np.isfinite(moved.reward) | ~np.isfinite(moved.observation).all(axis=1)
        cut = np.where(time + 1 >= self.horizon, Status.TRUNCATED, Status.RUNNING)
        status = np.where(moved.terminated, Status.TERMINATED, cut).astype(np.int8)
        self.rows.append((self.run[at], observation, action, moved.reward, status))
        self.observation[at] = moved.observation
        self.time[at] = time + 1
        self.clock += 1
        ended = np.flatnonzero((status != Status.RUNNING) | broken)
        if len(ended):
            self._finish(at, ended, status, broken)
        elif self.quota.episodes is None and self.clock % LOOK_EVERY == 0:
            self._drop_surplus(range(len(self.plays)))

    def results(self) -> list[Played]:
        """What each client has played, its runs put in the order of their episodes."""
        chosen = [client.chosen if client.is_met else [] for client in self.clients]
        order = [client.run[number] for client, numbers in zip(self.clients, chosen, strict=True) for number in numbers]
        rank = np.full(self.num_runs, len(order))
        rank[order] = np.arange(len(order))
        run, *columns = (np.concatenate(column) for column in zip(*self.rows, strict=True))
        self.rows.clear()
        by_rank = np.argsort(rank[run], kind="stable")[: np.count_nonzero(rank[run] < len(order))]
        observation, action, reward, status = (column[by_rank] for column in columns)
        following = np.zeros_like(observation)
        for row in np.flatnonzero(status == Status.TRUNCATED):
            following[row] = self.cut[int(run[by_rank[row]])]
        whole = Trajectory(observation, action, reward.astype(np.float32), status, following)
        played, begin = [], 0
        for index, (client, numbers) in enumerate(zip(self.clients, chosen, strict=True)):
            end = begin + sum(client.length[number] for number in numbers)
            num_lost = sum(number < max(numbers, default=client.next) for number in client.lost)
            if self.failures[index] is None:
                part = Trajectory(*(x[begin:end, None] for x in whole))  # pyright: ignore[reportOptionalSubscript]
                played.append(Played(part, num_lost))
            else:
                played.append(Played(empty_trajectory(self.world), num_lost, self.failures[index]))
            begin = end
        return played

    def _act(self, at: tuple[np.ndarray, ...], time: np.ndarray) -> np.ndarray:
        """What the policies do in these lanes."""
        owner = at[0]
        filtered = filter_observation(self.filters, self.observation, self.plays[0].observation_limit)[at]
        distribution = action_distribution(_of_owners(self.policy, owner), filtered, partial(row_products, owner=owner))
        phase = time % NOISE_STEPS
        for index in np.flatnonzero(phase == 0):
            slot = int(at[0][index]), int(at[1][index])
            self._store_noise(slot, action_noise(self.generator[slot], self.world.actions))
        assert self.noise is not None  # every episode starts in phase 0
        action = distribution.sample(self.noise[(*at, phase)])
        return action.astype(np.int32) if action.dtype == np.int64 else action

    def _store_noise(self, slot: tuple[int, int], noise: np.ndarray) -> None:
        if self.noise is None:
            self.noise = np.zeros((*self.active.shape, *noise.shape), noise.dtype)
        self.noise[slot] = noise

    def _finish(self, at: tuple[np.ndarray, ...], ended: np.ndarray, status: np.ndarray, broken: np.ndarray) -> None:
        touched = []
        for index in ended:
            slot = int(at[0][index]), int(at[1][index])
            client, number = self.clients[slot[0]], int(self.episode[slot])
            self.active[slot] = False
            touched.append(slot[0])
            if broken[index]:
                client.lose(number)
                self._give_up_if_hopeless(slot[0])
                continue
            client.finish(number, int(self.time[slot]), int(self.run[slot]))
            if status[index] == Status.TRUNCATED:
                self.cut[int(self.run[slot])] = self.observation[slot].copy()
        self._drop_surplus(sorted(set(touched)))
        self._fill(sorted(set(touched)))

    def _give_up_if_hopeless(self, index: int) -> None:
        client = self.clients[index]
        if len(client.lost) - len(client.length) >= LARGEST_LOSS:
            self.failures[index] = f"the simulation went wrong in {len(client.lost)} episodes of {client.next}"
            self.active[index] = False

    def _running(self, index: int) -> dict[int, int]:
        """How far each running episode of a client is, by number."""
        slots = np.flatnonzero(self.active[index])
        return dict(zip(self.episode[index, slots].tolist(), self.time[index, slots].tolist(), strict=True))

    def _drop_surplus(self, indices: Sequence[int]) -> None:
        for index in indices:
            drop = self.clients[index].surplus(self._running(index))
            if drop:
                self.clients[index].waiting += drop
                self.active[index] &= ~np.isin(self.episode[index], drop)

    def _fill(self, indices: Sequence[int]) -> None:
        """Start episodes in free lanes of these clients, as far as they are wanted."""
        started: list[tuple[int, int]] = []
        for index in indices:
            if self.failures[index] is not None or self.clients[index].is_met:
                continue
            running = self._running(index)
            for slot in np.flatnonzero(~self.active[index]):
                if not self.clients[index].wants_another(running):
                    break
                number = self.clients[index].take_number()
                running[number] = 0
                self._start(index, int(slot), number)
                started.append((index, int(slot)))
        if started:
            at = tuple(np.array(started).T)
            self.observation[at] = self.simulator.reset(self.lane[at], [self.generator[slot] for slot in started])

    def _start(self, index: int, slot: int, number: int) -> None:
        where = index, slot
        self.active[where] = True
        self.episode[where], self.time[where], self.run[where] = number, 0, self.num_runs
        self.generator[where] = episode_generator(self.plays[index], number)
        self.num_runs += 1


def row_products(x: np.ndarray, kernel: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """x @ kernel for rows x [n, inputs]: with the one kernel, or with that of each row's owner among [plays, ...].

    Every row is computed as if it were the only one. The last digits of a row in BLAS depend on how many rows there
    are, on some processors also on its place among them, and a client's actions must not depend on which lane an
    episode is played in, nor on who else plays.
    """
    return _row_products(x, kernel.reshape(-1, *kernel.shape[-2:]), owner)


@njit(nogil=True, cache=True)
def _row_products(x, kernels, owner):
    rows, inputs = x.shape
    outputs = kernels.shape[2]
    result = np.zeros((rows, outputs), x.dtype)
    for row in range(rows):
        kernel = kernels[owner[row] % len(kernels)]
        for i in range(inputs):
            for j in range(outputs):  # the order of additions is that of i for every j: vectors change no digit
                result[row, j] += x[row, i] * kernel[i, j]
    return result


def _stacked_policy(policies: list[PolicyParams]) -> PolicyParams:
    """The shared policy, or every play's own along a first axis."""
    if all(policy is policies[0] for policy in policies):
        return policies[0]
    layers = zip(*[policy.layers for policy in policies], strict=True)
    return PolicyParams(
        tuple(Dense(np.stack([x.kernel for x in same]), np.stack([x.bias for x in same])) for same in layers),
        np.stack([policy.log_std for policy in policies]),
    )


def _of_owners(policy: PolicyParams, owner: np.ndarray) -> PolicyParams:
    """What each row's owner adds to it; the kernels stay stacked, where `row_products` finds them."""
    if policy.log_std.ndim == 1:  # the shared one
        return policy
    layers = tuple(Dense(layer.kernel, layer.bias[owner]) for layer in policy.layers)
    return PolicyParams(layers, policy.log_std[owner])


def _stacked_filters(filters: list[Filters]) -> Filters:
    """Every client's own, to be broadcast over slots."""

    def stack(*moments: np.ndarray) -> np.ndarray:
        rows = np.stack(moments)
        return rows.reshape(len(rows), 1, -1)

    return Filters(*(type(one[0])(*map(stack, *one)) for one in zip(*filters, strict=True)))
