"""Worker processes, with a world so simple that every number is known."""

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.trajectory import Status
from fedpohcs.learners.actors import PolicyActor, policy_actor, sight_of
from fedpohcs.learners.filters import Filters, Moments, filter_observation, init_filters
from fedpohcs.learners.networks import Dense, PolicyParams, action_distribution
from fedpohcs.worlds.base import ContinuousActions
from fedpohcs.worlds.host import NOISE_STEPS, ClientEpisodes, Play, Quota, episode_generator
from fedpohcs.worlds.lanes import SimulatorLanes
from fedpohcs.worlds.lockstep import LockstepCollector
from fedpohcs.worlds.workers import LOST_IN_A_ROW, Player, SimulatedWorld, WorkerCollector, make_player

SIZE = 3


class Walk:
    """A random walk that the action pushes; it ends beyond 4, and each client has troubles of its own."""

    def __init__(self, client: int, trouble: str, folder: Path) -> None:
        self.client, self.trouble, self.folder = client, trouble, folder

    def reset(self, seed: np.random.Generator) -> np.ndarray:
        self.generator = seed
        self.state = seed.standard_normal(SIZE).astype(np.float32)
        self.steps = 0
        return self.state

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, None]:
        self.steps += 1
        if self.steps == 3:
            self._trouble()
        self.state = self.state + action + self.generator.standard_normal(SIZE).astype(np.float32)
        is_cut = self.trouble == "cuts" and self.steps == 2
        return self.state, float(self.state[0]), bool(np.abs(self.state).max() > 4), is_cut, None

    def close(self) -> None:
        self.folder.joinpath(f"closed {id(self)}").touch()

    def _trouble(self) -> None:
        first_time = not (self.folder / "seen").exists()
        if self.client != 1 or (self.trouble.startswith("once") and not first_time):
            return
        (self.folder / "seen").touch()
        if "dies" in self.trouble:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hangs" in self.trouble:
            time.sleep(1000)
        if "fails" in self.trouble:
            raise ValueError("the walker stumbled")
        if "starves" in self.trouble:
            take_too_much_memory()


def take_too_much_memory() -> None:
    """As a simulator that grows until the system says no."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**28, limits[1]))
    try:
        np.ones(2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


class Walks(SimulatedWorld):
    levels = ("only",)
    observation_size = SIZE
    actions = ContinuousActions(SIZE, -1.0, 1.0)
    horizon = 40

    def __init__(self, folder: Path, trouble: str = "") -> None:
        self.folder, self.trouble = folder, trouble

    def open(self, client: int) -> Walk:
        return Walk(client, self.trouble, self.folder)


class CrowdedWalks(Walks):
    """The same walks, several at once."""

    environments_per_client = 3


BOTH = pytest.mark.parametrize("walks", [Walks, CrowdedWalks])


def policy(outputs: int = SIZE) -> PolicyParams:
    generator = np.random.default_rng(0)
    layers = [generator.normal(scale=0.1, size=shape).astype(np.float32) for shape in ((SIZE, 5), 5, (5, outputs))]
    return PolicyParams((Dense(layers[0], layers[1]), Dense(layers[2], np.zeros(outputs, np.float32))), layers[1][:0])


def play(client: int, number: int = 0) -> Play:
    weights = policy()._replace(log_std=np.full(SIZE, -1.0, np.float32))
    actor = policy_actor(ActionNoise("normal", SIZE), weights, sight_of(init_filters(SIZE), 5.0))
    return Play(client, actor, (0, 5, number, client))


def same(one: list[ClientEpisodes], other: list[ClientEpisodes]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(a, b) for x, y in pairs for a, b in zip(x.trajectory, y.trajectory, strict=True))


@pytest.fixture
def collectors() -> Iterator[list[WorkerCollector]]:
    """Closed after the test."""
    made: list[WorkerCollector] = []
    yield made
    for collector in made:
        collector.close()


def in_this_process(world: Walks, quota: Quota, clients: int = 4) -> list[ClientEpisodes]:
    with make_player(world) as player:
        return player.play_all([play(client) for client in range(clients)], quota)


@pytest.mark.parametrize("quota", [Quota(episodes=5), Quota(min_steps=60), Quota(episodes=2, steps_per_episode=2)])
@pytest.mark.parametrize("trouble", ["", "cuts"])
def test_many_environments_play_what_one_plays(quota: Quota, trouble: str, tmp_path: Path) -> None:
    """But for rounding: a policy of many rows is computed by another program."""
    one, many = (in_this_process(walks(tmp_path, trouble), quota) for walks in (Walks, CrowdedWalks))
    for own, other in zip(one, many, strict=True):
        np.testing.assert_array_equal(own.trajectory.status, other.trajectory.status)
        cut = own.trajectory.status == Status.TRUNCATED
        assert cut.any() == bool(trouble or quota.steps_per_episode)
        for name in ("observation", "action", "reward"):
            mine, theirs = getattr(own.trajectory, name), getattr(other.trajectory, name)
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
            assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(own.trajectory.next_observation[cut], other.trajectory.next_observation[cut], 1e-4)


def test_clients_have_as_many_simulators_as_they_may_and_those_used_longest_ago_are_closed(tmp_path: Path) -> None:
    lanes = SimulatorLanes(CrowdedWalks(tmp_path))
    collector = LockstepCollector(lanes.world, lanes)
    collector.collect([play(0), play(3)], Quota(episodes=7))
    assert sorted(lanes._open) == [0, 1, 2, 9, 10, 11]
    assert {lanes._open[lane].client for lane in (9, 10, 11)} == {3}
    collector.collect([play(0)], Quota(episodes=1))
    kept = lanes._open[0]
    lanes.close_oldest(1)
    assert lanes._open == {0: kept}
    assert len(list(tmp_path.glob("closed *"))) == 5


def test_one_failure_too_many_in_a_row_gives_a_client_up_however_many_fail_at_once(tmp_path: Path) -> None:
    world = CrowdedWalks(tmp_path, "fails")
    world.environments_per_client = 8
    (played,) = in_this_process(world, Quota(episodes=9), 2)[1:]
    assert (played.num_lost, played.failure) == (3, "episode 2: ValueError: the walker stumbled")


class Moody(Walk):
    """Fails in episodes whose first draw is below zero."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, None]:
        if self.steps == 0:
            self.doomed = self.state[0] < 0
        if self.doomed:
            raise ValueError("not today")
        return super().step(action)


class MoodyWalks(CrowdedWalks):
    def open(self, client: int) -> Walk:
        return Moody(client, "", self.folder)


def test_losses_in_a_row_are_counted_in_the_order_of_the_episodes(tmp_path: Path) -> None:
    """Many episodes fail, at once, before the others end; those of client 0 go - + + - + + - - + +."""
    fine = [episode_generator(play(0), number).standard_normal() > 0 for number in range(10)]
    assert np.flatnonzero(np.invert(fine)).tolist() == [0, 3, 6, 7]
    (played,) = in_this_process(MoodyWalks(tmp_path), Quota(episodes=6), 1)
    assert played.failure is None
    assert played.num_lost == 4 > LOST_IN_A_ROW
    assert int(played.trajectory.last.sum()) == 6


@BOTH
def test_results_come_in_the_order_of_the_plays_for_any_number_of_workers(walks, collectors, tmp_path: Path) -> None:
    quota, plays = Quota(episodes=3), [play(client) for client in range(4)]
    expected = in_this_process(walks(tmp_path), quota)
    for workers in (1, 2):
        collectors.append(WorkerCollector(walks(tmp_path), workers))
        assert same(collectors[-1].collect(plays, quota), expected)
        assert same(collectors[-1].collect(plays[::-1], quota), expected[::-1])
    assert not same(expected[:1], expected[1:2])


@pytest.mark.parametrize(
    ("walks", "trouble"), [(Walks, "once dies"), (Walks, "once hangs"), (CrowdedWalks, "once dies")]
)
def test_a_worker_that_dies_or_hangs_is_replaced_and_the_result_is_the_same(
    walks, trouble: str, collectors, tmp_path: Path
) -> None:
    quota = Quota(episodes=2)
    collectors.append(WorkerCollector(walks(tmp_path, trouble), 2, task_timeout=5))
    played = collectors[0].collect([play(client) for client in range(4)], quota)
    assert collectors[0].num_replaced >= 1
    assert same(played, in_this_process(walks(tmp_path), quota))


def test_a_worker_killed_while_idle_is_replaced(collectors, tmp_path: Path) -> None:
    quota, plays = Quota(episodes=1), [play(client) for client in range(4)]
    collectors.append(WorkerCollector(Walks(tmp_path), 1))
    before = collectors[0].collect(plays, quota)
    process = collectors[0]._workers[0].process
    process.kill()
    process.join()
    assert same(collectors[0].collect(plays, quota), before)
    assert collectors[0].num_replaced == 1


@BOTH
def test_a_client_whose_workers_always_die_fails_alone(walks, collectors, tmp_path: Path) -> None:
    collectors.append(WorkerCollector(walks(tmp_path, "dies"), 2))
    played = collectors[0].collect([play(client) for client in range(3)], Quota(episodes=1))
    assert [one.failure is None for one in played] == [True, False, True]
    assert "died or hung" in str(played[1].failure)
    assert len(played[1].trajectory.reward) == 0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is in use")
def test_a_client_that_runs_out_of_memory_fails_alone(collectors, tmp_path: Path) -> None:
    collectors.append(WorkerCollector(Walks(tmp_path, "starves"), 2))
    played = collectors[0].collect([play(client) for client in range(3)], Quota(episodes=1))
    assert [one.failure is None for one in played] == [True, False, True]
    assert "MemoryError" in str(played[1].failure)


@BOTH
def test_an_episode_that_fails_once_is_repeated_with_a_fresh_simulator(walks, tmp_path: Path) -> None:
    quota = Quota(episodes=2)
    played = in_this_process(walks(tmp_path, "once fails"), quota)
    assert (tmp_path / "seen").exists()
    assert [one.num_lost for one in played] == [0] * 4
    assert same(played, in_this_process(walks(tmp_path), quota))


@BOTH
def test_a_client_whose_episodes_keep_failing_says_why(walks, tmp_path: Path) -> None:
    played = in_this_process(walks(tmp_path, "fails"), Quota(episodes=2))
    assert played[1].num_lost == LOST_IN_A_ROW
    assert played[1].failure == "episode 2: ValueError: the walker stumbled"
    assert played[0].failure is None


def test_whole_episodes_are_played_until_there_are_more_steps_than_asked_for(tmp_path: Path) -> None:
    for one in in_this_process(Walks(tmp_path), Quota(min_steps=60)):
        status = one.trajectory.status[:, 0]
        ends = np.flatnonzero(status >= Status.TERMINATED)
        assert ends[-1] == len(status) - 1
        assert len(status) > 60 >= (ends[-2] + 1 if len(ends) > 1 else 0)


def test_episodes_are_cut_at_the_horizon_or_earlier_if_asked(tmp_path: Path) -> None:
    one = in_this_process(Walks(tmp_path), Quota(episodes=5, steps_per_episode=2))[0]
    assert one.trajectory.reward.shape == (10, 1)
    assert set(one.trajectory.status[1::2, 0]) <= {Status.TERMINATED, Status.TRUNCATED}
    assert set(one.trajectory.status[::2, 0]) == {Status.RUNNING}


def test_a_trajectory_holds_what_happened(tmp_path: Path) -> None:
    trajectory = in_this_process(Walks(tmp_path), Quota(episodes=1), 1)[0].trajectory
    generator = episode_generator(play(0), 0)
    start = generator.standard_normal(SIZE).astype(np.float32)
    noise = generator.standard_normal((NOISE_STEPS, SIZE), np.float32)
    filtered = filter_observation(init_filters(SIZE), start, 5.0)
    actor = play(0).actor
    assert isinstance(actor, PolicyActor)
    action = action_distribution(actor.policy, filtered).sample(noise[0])
    np.testing.assert_array_equal(trajectory.observation[0, 0], start)
    np.testing.assert_allclose(trajectory.action[0, 0], action, rtol=1e-6)
    np.testing.assert_array_equal(trajectory.observation[1:], trajectory.next_observation[:-1])
    np.testing.assert_array_equal(trajectory.next_observation[:, 0, 0], trajectory.reward[:, 0])
    assert {trajectory.observation.dtype, trajectory.action.dtype, trajectory.reward.dtype} == {np.dtype(np.float32)}


def test_an_actor_acts_as_filter_and_policy_do() -> None:
    generator = np.random.default_rng(1)
    moments = Moments(np.float32(50), *(generator.uniform(1, 9, SIZE).astype(np.float32) for _ in range(2)))
    filters = Filters(moments, init_filters(SIZE).reward)
    continuous = policy()._replace(log_std=np.full(SIZE, -1.0, np.float32))
    for kind, weights in ((ActionNoise("normal", SIZE), continuous), (ActionNoise("gumbel", 4), policy(4))):
        actor = policy_actor(kind, weights, sight_of(filters, 5.0))
        for observation in generator.normal(scale=9, size=(20, SIZE)).astype(np.float32):
            noise = kind.draw(generator, 1)[0]
            expected = action_distribution(weights, filter_observation(filters, observation, 5.0)).sample(noise)
            np.testing.assert_allclose(actor.act(observation, noise), expected, rtol=1e-5)


def test_closing_ends_the_workers(tmp_path: Path) -> None:
    collector = WorkerCollector(Walks(tmp_path), 2)
    collector.collect([play(0), play(1)], Quota(episodes=1))
    processes = [worker.process for worker in collector._workers]
    collector.close()
    assert len(processes) == 2
    assert not any(process.is_alive() for process in processes)


def test_workers_play_traffic_and_survive_a_kill(collectors) -> None:
    pytest.importorskip("libsumo")
    from fedpohcs.worlds.hongkong.settings import TrafficConfig
    from fedpohcs.worlds.hongkong.world import HongKong

    world = HongKong("areas", 3, settings=TrafficConfig(horizon=300))
    size, actions = world.observation_size, world.actions
    weights = PolicyParams((Dense(np.zeros((size, 2), np.float32), np.zeros(2, np.float32)),), np.zeros(2, np.float32))
    actor = policy_actor(ActionNoise("normal", 2), weights, sight_of(init_filters(size), 5.0))
    plays = [Play(client, actor, (0, client)) for client in range(3)]
    assert isinstance(actions, ContinuousActions)
    with Player(world) as player:
        expected = [player.play(one, Quota(episodes=6)) for one in plays]
    collectors.append(WorkerCollector(world, 2))
    collectors[0].collect(plays, Quota(episodes=1))
    threading.Timer(0.05, collectors[0]._workers[0].process.kill).start()
    assert same(collectors[0].collect(plays, Quota(episodes=6)), expected)
    assert collectors[0].num_replaced == 1
