"""Whole episodes in worker processes, including the policy.

That is for simulators written in Python, and for those that exist once per process, such as SUMO. A worker that dies or
hangs is replaced, and its task is given to another. The task names every draw, so the result is the same.
"""

import multiprocessing
import signal
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fedpohcs.core.processes import (
    EXIT_NOT_GUARDED,
    NotGuardedError,
    available_cores,
    interrupts_blocked,
    let_interrupts_in,
    start_method,
)
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.worlds.host import (
    NOISE_STEPS,
    Actor,
    ClientEpisodes,
    HostWorld,
    Play,
    Quota,
    empty_trajectory,
    episode_generator,
)

TASK_TIMEOUT = 600.0  # seconds; a task takes seconds, even on a busy machine
TRIES = 3  # of a task whose worker died or hung
SECONDS_TO_EXIT = 0.1  # for a process that has closed its connection
TRIES_PER_EPISODE = 2  # each with a simulator of its own
LOST_IN_A_ROW = 3  # episodes given up before the client is
MOST_CLIENTS = 16  # in one task, where a process steps many environments at once


Task = dict[int, Play]
"""Plays by their place among those of one call."""


class Simulator(Protocol):
    """The environment of one client."""

    def reset(self, seed: np.random.Generator) -> np.ndarray:
        """Start an episode; everything drawn comes from the generator."""
        ...

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Any]:
        """Observation, reward, whether the episode terminated, whether it was cut, and anything else."""
        ...

    def close(self) -> None:
        """End the simulation, so that another one can be opened."""
        ...


class SimulatedWorld(HostWorld):
    """A world that opens a simulator per client. Instances are picklable."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that simulators need, loaded once for all workers."""
    environments_per_client: int = 1
    """Simulators that a process may have open for a client, stepped in turns with one policy call for all. 1: a process
    has one simulator open at a time, and plays one client after the other."""

    @abstractmethod
    def open(self, client: int) -> Simulator:
        """A simulator of a client. How many a process has open is `environments_per_client`."""

    def make_lanes(self) -> Any:
        """The simulators of many clients at once, a `worlds.lanes.ManyLanes`. A world may have faster ones."""
        from fedpohcs.worlds.lanes import SimulatorLanes  # compiled code

        return SimulatorLanes(self)

    def make_collector(self) -> "WorkerCollector":
        """One worker per core."""
        return WorkerCollector(self)


class WorkerCollector:
    """Plays the episodes of many clients in as many processes as there are cores."""

    def __init__(
        self, world: SimulatedWorld, num_workers: int | None = None, task_timeout: float = TASK_TIMEOUT
    ) -> None:
        """Prepare the collector; workers start at the first call of `collect`.

        Args:
            world: the world of the clients.
            num_workers: processes. None: one per core.
            task_timeout: seconds after which a worker counts as hung.
        """
        self.world = world
        self.num_workers = num_workers or len(available_cores())
        self.task_timeout = task_timeout
        self.num_replaced = 0
        self._workers: list[_Worker] = []

    def collect(self, plays: Sequence[Play], quota: Quota) -> list[ClientEpisodes]:
        """The episodes of each client, in the order of `plays`; they do not depend on the number of workers."""
        waiting, done = deque(self._tasks(plays)), dict[int, ClientEpisodes]()
        tries = [0] * len(plays)
        while len(done) < len(plays):
            self._hand_out(waiting, quota)
            for worker in self._await():
                task, results = worker.task, worker.take_results()
                if results is not None:
                    done |= dict(zip(task, results, strict=True))
                    continue
                worker.check_start()
                self._replace(worker)
                for number, play in task.items():
                    tries[number] += 1
                    if tries[number] < TRIES:
                        waiting.appendleft({number: play})  # alone: others must not suffer from it
                    else:
                        reason = f"its worker process died or hung {TRIES} times"
                        done[number] = ClientEpisodes(empty_trajectory(self.world), failure=reason)
        return [done[number] for number in range(len(plays))]

    def _tasks(self, plays: Sequence[Play]) -> Iterator[Task]:
        """As many clients together as their worker steps at once, and about as many for every worker."""
        together = (
            min(-(-len(plays) // self.num_workers), MOST_CLIENTS) if self.world.environments_per_client > 1 else 1
        )
        for first in range(0, len(plays), together or 1):
            yield dict(enumerate(plays[first : first + together], first))

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.end()
        self._workers = []

    def _hand_out(self, waiting: deque[Task], quota: Quota) -> None:
        """Give every idle worker a task, best of a client whose simulator it has open."""
        while len(self._workers) < min(self.num_workers, len(waiting)):
            self._workers.append(_Worker(self.world, self.task_timeout))
        for worker in self._workers:
            if waiting and not worker.busy:
                task = next((task for task in waiting if worker.clients & _clients(task)), waiting[0])
                waiting.remove(task)
                worker.give(task, quota)

    def _await(self) -> list["_Worker"]:
        """Workers that have sent a result, have died, or are overdue."""
        busy = [worker for worker in self._workers if worker.busy]
        patience = max(min(worker.deadline for worker in busy) - time.monotonic(), 0.0)
        ready = wait([worker.connection for worker in busy], patience)
        return [w for w in busy if w.connection in ready or time.monotonic() >= w.deadline]

    def _replace(self, worker: "_Worker") -> None:
        self.num_replaced += 1
        worker.end(at_once=True)
        self._workers[self._workers.index(worker)] = _Worker(self.world, self.task_timeout)


def _clients(task: Task) -> set[int]:
    return {play.client for play in task.values()}


class _Worker:
    """One process and its task."""

    def __init__(self, world: SimulatedWorld, timeout: float) -> None:
        method = start_method()  # not by forking: a fork of a process that runs JAX could deadlock
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["__main__", __name__, *world.preload])
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, world), daemon=True)
        try:
            with interrupts_blocked():
                self.process.start()
        except (EOFError, ConnectionError) as error:  # the server of processes died while it imported the main module
            raise NotGuardedError from error
        theirs.close()  # so that its death is seen here
        self.timeout, self.deadline = timeout, 0.0
        self.busy = False
        self.clients: set[int] = set()
        self.task: Task

    def give(self, task: Task, quota: Quota) -> None:
        self.task, self.busy, self.clients = task, True, _clients(task)
        self.deadline = time.monotonic() + self.timeout * len(task)
        try:
            self.connection.send((list(task.values()), quota))
        except OSError:
            self.deadline = 0.0  # it died while idle: overdue at once

    def take_results(self) -> list[ClientEpisodes] | None:
        """The results it has sent, or None if it has died or is overdue."""
        try:
            results = self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            return None
        self.busy = False
        return results

    def check_start(self) -> None:
        """Say why a process that never was a worker has ended."""
        self.process.join(SECONDS_TO_EXIT)
        if self.process.exitcode == EXIT_NOT_GUARDED:
            raise NotGuardedError

    def end(self, *, at_once: bool = False) -> None:
        self.connection.close()  # it leaves when it reads the end
        if at_once:
            self.process.kill()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(connection: Connection, world: SimulatedWorld) -> None:
    """The main loop of a worker, until the other end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends its workers
    let_interrupts_in()
    with make_player(world) as player, suppress(EOFError):
        while True:
            plays, quota = _unless_closed(connection.recv)
            results = player.play_all(plays, quota)
            _unless_closed(connection.send, results)


def _unless_closed(use: Any, *data: Any) -> Any:
    """What a connection gives. That the parent has ended, or ends its workers, is an `EOFError`."""
    try:
        return use(*data)
    except OSError as error:
        raise EOFError from error


def make_player(world: SimulatedWorld) -> Any:
    """What plays in a worker: one simulator, or many of each client."""
    if world.environments_per_client == 1:
        return Player(world)
    from fedpohcs.worlds.lanes import LanePlayer  # compiled code

    return LanePlayer(world)


class _Episode(NamedTuple):
    """Recorded steps of one episode; there is one more observation than steps."""

    observations: list[np.ndarray]
    actions: list[np.ndarray]
    rewards: list[float]
    status: Status  # of the last step


class Player:
    """Plays in this process; keeps the simulator of the latest client open."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.client = -1
        self._simulator: Simulator | None = None

    def __enter__(self) -> "Player":
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def play_all(self, plays: Sequence[Play], quota: Quota) -> list[ClientEpisodes]:
        """One client after the other."""
        return [self.play(play, quota) for play in plays]

    def play(self, play: Play, quota: Quota) -> ClientEpisodes:
        """Whole episodes until the quota is met. An episode that fails twice is given up, and counted."""
        episodes: list[_Episode] = []
        number = steps = num_lost = in_a_row = 0
        while not _met(quota, len(episodes), steps):
            episode = self._episode(play, number, quota)
            number += 1
            if isinstance(episode, _Episode):
                episodes.append(episode)
                steps += len(episode.rewards)
                in_a_row = 0
                continue
            num_lost, in_a_row = num_lost + 1, in_a_row + 1
            if in_a_row == LOST_IN_A_ROW:
                reason = f"episode {number - 1}: {episode}"
                return ClientEpisodes(empty_trajectory(self.world), num_lost, reason)
        return ClientEpisodes(_joined(episodes, self.world), num_lost)

    def _episode(self, play: Play, number: int, quota: Quota) -> _Episode | str:
        """An episode, or the reason of its failure. A failed episode is tried once more, with a new simulator."""
        reason = ""
        limit = min(quota.steps_per_episode or self.world.horizon, self.world.horizon)
        for _ in range(TRIES_PER_EPISODE):
            try:
                simulator = self._open(play.client)
                return _run_episode(simulator, episode_generator(play, number), play.actor, limit)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                self._close()
        return reason

    def _open(self, client: int) -> Simulator:
        if self._simulator is None or self.client != client:
            self._close()
            self._simulator = self.world.open(client)
            self.client = client
        return self._simulator

    def _close(self) -> None:
        if self._simulator is not None:
            simulator, self._simulator = self._simulator, None
            simulator.close()


def _met(quota: Quota, episodes: int, steps: int) -> bool:
    if quota.episodes is not None:
        return episodes >= quota.episodes
    return steps > (quota.min_steps or 0)


def _run_episode(simulator: Simulator, generator: np.random.Generator, actor: Actor, limit: int) -> _Episode:
    observation = simulator.reset(generator)
    observations, taken, rewards, noise = [observation], [], [], actor.noise.draw(generator, NOISE_STEPS)
    while True:
        position = len(rewards) % NOISE_STEPS
        if rewards and not position:
            noise = actor.noise.draw(generator, NOISE_STEPS)
        action = actor.act(observation, noise[position])
        observation, reward, terminated, truncated, _ = simulator.step(action)
        observations.append(observation)
        taken.append(action)
        rewards.append(reward)
        if terminated:
            return _Episode(observations, taken, rewards, Status.TERMINATED)
        if truncated or len(rewards) >= limit:
            return _Episode(observations, taken, rewards, Status.TRUNCATED)


def _joined(episodes: Sequence[_Episode], world: SimulatedWorld) -> Trajectory:
    """Join episodes into one lane."""
    if not episodes:
        return empty_trajectory(world)
    status = np.full(sum(len(e.rewards) for e in episodes), Status.RUNNING, np.int8)
    status[np.cumsum([len(e.rewards) for e in episodes]) - 1] = [e.status for e in episodes]
    columns = (
        np.array([x for e in episodes for x in e.observations[:-1]], np.float32),
        np.array([x for e in episodes for x in e.actions]),
        np.array([x for e in episodes for x in e.rewards], np.float32),
        status,
        np.array([x for e in episodes for x in e.observations[1:]], np.float32),
    )
    return Trajectory(*(column[:, None] for column in columns))
