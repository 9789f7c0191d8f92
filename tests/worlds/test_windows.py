"""Worlds whose observations are the latest few observations."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from fedpohcs.core.errors import UserError
from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.presets import preset
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.learners.actors import RowByRow
from fedpohcs.learners.rollout import collect_episodes, draw_noise
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.export import load_run_policy
from fedpohcs.runs.playing import play_episodes
from fedpohcs.worlds import make_world
from fedpohcs.worlds.base import DiscreteActions
from fedpohcs.worlds.gym import GymConfig, GymWorld
from fedpohcs.worlds.host import HostWorld, Play, Quota
from fedpohcs.worlds.mountain_car import MountainCars
from fedpohcs.worlds.mujoco import Hoppers
from fedpohcs.worlds.windows import first_window, next_window, windowed
from fedpohcs.worlds.workers import Player

LENGTH = 3


class Newest(NamedTuple):
    """Reads the newest observation of a window alone, so that it acts alike with and without windows."""

    noise: ActionNoise
    size: int

    def act(self, observation: Any, noise: Any) -> Any:
        newest = observation[..., -self.size :]
        if self.noise.kind == "gumbel":
            return (newest[..., 0] + noise[..., 0] > 0).astype(np.int32)
        return 0.5 * newest[..., : self.noise.size] + noise

    def crowd(self, actors: Any) -> RowByRow:
        return RowByRow(actors)


def stacked_by_hand(trajectory: Trajectory) -> np.ndarray:
    """The window of every step of one lane, from its observations without windows."""
    rows, start = [], 0
    for time, status in enumerate(np.asarray(trajectory.status)[:, 0]):
        wanted = [max(start, time - back) for back in reversed(range(LENGTH))]
        rows.append(np.concatenate([np.asarray(trajectory.observation)[index, 0] for index in wanted]))
        start = start if status == Status.RUNNING else time + 1
    return np.stack(rows)


def assert_windows_of(windows: Trajectory, plain: Trajectory) -> None:
    valid = np.asarray(plain.valid)[:, 0]
    np.testing.assert_array_equal(np.asarray(windows.observation)[valid, 0], stacked_by_hand(plain)[valid])
    for name in ("action", "reward", "status"):
        np.testing.assert_array_equal(getattr(windows, name), getattr(plain, name))


def test_a_window_holds_the_oldest_first_and_starts_with_repeats() -> None:
    window = first_window(np.array([1.0, 10.0]), 3)
    assert window.tolist() == [1, 10, 1, 10, 1, 10]
    window = next_window(next_window(window, np.array([2.0, 20.0])), np.array([3.0, 30.0]))
    assert window.tolist() == [1, 10, 2, 20, 3, 30]
    assert next_window(window, np.array([4.0, 40.0])).tolist() == [2, 20, 3, 30, 4, 40]


def test_windows_of_traced_episodes_are_those_of_their_observations_and_begin_anew_with_each_episode() -> None:
    plain = MountainCars("medium", 1)
    actor = Newest(ActionNoise("normal", 1), plain.observation_size)
    env = plain.population

    def played(world: Any) -> Trajectory:
        noise = draw_noise(jax.random.key(3), world, actor.noise, 1, 1500)
        act = lambda seen, drawn: 3 * actor.act(seen, drawn)  # noqa: E731 - large actions, so that episodes end early
        return collect_episodes(noise, world, env, act, 1500, record_next=True, largest=lambda x: x)

    recorded = played(plain)
    assert (np.asarray(recorded.status) == Status.TERMINATED).any() or (np.asarray(recorded.last)).sum() > 1
    assert_windows_of(played(windowed(plain, LENGTH)), recorded)


def test_windows_of_a_gymnasium_world_are_those_of_gymnasiums_own_wrapper() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    world = GymWorld("own", 1, settings=GymConfig("CartPole-v1"))
    theirs = gymnasium.wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), LENGTH, padding_type="reset")
    ours = windowed(world, LENGTH).open(0)
    generator = np.random.default_rng(5)
    observation, _ = theirs.reset(seed=int(np.random.default_rng(5).integers(2**31)))
    np.testing.assert_array_equal(ours.reset(generator), observation.ravel())
    for action in (0, 1, 1, 0, 1, 0):
        observation, *_ = theirs.step(action)
        np.testing.assert_array_equal(ours.step(np.int32(action))[0], observation.ravel())
    ours.close()


def test_windows_of_episodes_that_workers_play_are_those_of_their_observations() -> None:
    pytest.importorskip("gymnasium")
    world = GymWorld("own", 1, settings=GymConfig("CartPole-v1"))
    play = Play(0, Newest(ActionNoise("gumbel", 2), 4), (0, 1, 2))
    with Player(world) as plain, Player(windowed(world, LENGTH)) as windows:
        assert_windows_of(
            windows.play(play, Quota(episodes=3)).trajectory, plain.play(play, Quota(episodes=3)).trajectory
        )


def test_windows_of_many_environments_in_lockstep_do_not_mix_lanes() -> None:
    pytest.importorskip("mujoco")
    world = Hoppers("medium", 3)
    plays = [Play(client, Newest(ActionNoise("normal", 3), 11), (0, client)) for client in (2, 0, 1)]
    plain, windows = world.make_collector(), windowed(world, LENGTH).make_collector()
    for one, other in zip(
        windows.collect(plays, Quota(min_steps=120)), plain.collect(plays, Quota(min_steps=120)), strict=True
    ):
        assert_windows_of(one.trajectory, other.trajectory)
    plain.close()
    windows.close()


def test_worlds_with_windows_share_programs_only_if_their_windows_are_equal() -> None:
    two, three = (windowed(MountainCars("medium", 2), length) for length in (2, 3))
    assert two == windowed(MountainCars("low", 5), 2) and two != three and hash(two) != hash(three)
    assert two != MountainCars("medium", 2)


def test_one_observation_is_the_world_itself() -> None:
    world = MountainCars("medium", 2)
    assert windowed(world, 1) is world


def test_a_world_with_a_collector_of_its_own_refuses_windows() -> None:
    class Own(HostWorld):
        observation_size, actions, horizon = 2, DiscreteActions(2), 5

        def make_collector(self) -> Any: ...

    with pytest.raises(UserError, match=r"learner.observation_window \(=4\) must be 1: Own plays"):
        windowed(Own(), 4)


@pytest.mark.parametrize("value", [0, -1])
def test_a_window_holds_at_least_one_observation(value: int) -> None:
    with pytest.raises(UserError, match="observation_window"):
        replace(preset("tabular").learner, observation_window=value)


def test_a_run_with_windows_trains_selects_by_tables_and_is_played_with_windows(tmp_path: Path) -> None:
    config = preset("tabular")
    config = replace(config, rounds=1, learner=replace(config.learner, observation_window=2))
    size = make_world(replace(config, learner=replace(config.learner, observation_window=1))).observation_size
    history = run_experiment(config, tmp_path / "run")
    assert len(history.mean_returns) == 2 and np.isfinite(history.mean_returns).all()
    assert load_run_policy(tmp_path / "run").layers[0][0].shape[0] == 2 * size
    episode = play_episodes(tmp_path / "run", 0, 1)[0]
    assert episode.observations.shape[1] == size  # an episode shows the world as it is
    assert len(episode.rewards)
