import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("libsumo")

from test_networks import extract, netconvert  # noqa: F401

from fedpohcs.core.errors import UserError
from fedpohcs.worlds.hongkong import simulation
from fedpohcs.worlds.hongkong.areas import AREAS
from fedpohcs.worlds.hongkong.building import build_network
from fedpohcs.worlds.hongkong.networks import Network, load_network
from fedpohcs.worlds.hongkong.settings import TrafficConfig
from fedpohcs.worlds.hongkong.simulation import EGO, LANE_REST, Traffic, TrafficSimulationError
from fedpohcs.worlds.hongkong.world import HongKong

Open = Callable[..., Traffic]


@pytest.fixture
def open_traffic() -> Iterator[Open]:
    """Opens one simulation after the other."""
    live: list[Traffic] = []

    def close() -> None:
        while live:
            live.pop().close()

    def make(area: str | Network = "causeway", **settings: object) -> Traffic:
        close()
        network = load_network(area) if isinstance(area, str) else area
        live.append(Traffic(network, TrafficConfig(**settings)))
        return live[-1]

    yield make
    close()


def episode(traffic: Traffic, seed: int, policy: Callable[[np.random.Generator], tuple[float, float]], **how) -> dict:
    """Plays one and sums it up."""
    generator = np.random.default_rng(seed)
    digest = hashlib.sha256(traffic.reset(seed, **how).tobytes())
    total, steps = 0.0, 0
    while True:
        step = traffic.step(policy(generator))
        digest.update(step.observation.tobytes() + np.float64(step.reward).tobytes())
        total, steps = total + step.reward, steps + 1
        assert np.abs(step.observation).max() <= 1
        if step.terminated or step.truncated:
            return {"digest": digest.hexdigest(), "return": total, "steps": steps, "last": step}


def random_driver(generator: np.random.Generator) -> tuple[float, float]:
    return tuple(generator.normal(size=2))


def racer(generator: np.random.Generator) -> tuple[float, float]:
    return 1.0, generator.uniform(-1, 1)


def idle(generator: np.random.Generator) -> tuple[float, float]:
    return 0.0, 0.0


def test_an_episode_is_a_function_of_its_seed_whatever_came_before_and_however_it_is_reset(open_traffic: Open) -> None:
    traffic = open_traffic("central", horizon=150)
    first = episode(traffic, 3, random_driver)["digest"]
    other = episode(traffic, 4, racer)["digest"]
    again = episode(traffic, 3, random_driver)["digest"]
    reloaded = episode(traffic, 3, random_driver, reload=True)["digest"]
    fresh = episode(open_traffic("central", horizon=150), 3, random_driver)["digest"]
    assert first == again == reloaded == fresh
    assert first != other


@pytest.mark.parametrize("reward", ["network", "ego"])
def test_rewards_lie_between_the_penalty_and_one(reward: str, open_traffic: Open) -> None:
    traffic = open_traffic("po-lam", reward=reward, horizon=100)
    generator = np.random.default_rng(0)
    traffic.reset(0)
    rewards = [traffic.step(racer(generator)).reward for _ in range(100)]
    assert min(rewards) >= -0.1
    assert 0.3 < max(rewards) <= 1


def test_the_network_reward_is_that_of_all_speeds_and_the_ego_reward_that_of_one(open_traffic: Open) -> None:
    for reward in ("network", "ego"):
        traffic = open_traffic("po-lam", reward=reward)
        traffic.reset(0)
        for _ in range(30):
            step = traffic.step((1.0, 0.0))
        target, speeds = traffic.network.target_speed, np.array(traffic.speeds)
        speeds = speeds if reward == "network" else speeds[:1]
        goal = np.linalg.norm(np.full(len(speeds), target))
        assert step.reward == pytest.approx(max(goal - np.linalg.norm(speeds - target), 0) / goal)


def test_full_throttle_gains_the_speed_of_the_areas_acceleration(open_traffic: Open) -> None:
    traffic = open_traffic("kai-tak", safety="none")
    traffic.reset(1)
    for steps in range(1, 6):
        traffic.step((1.0, 0.0))
        assert traffic.speeds[0] == pytest.approx(steps * 0.1 * traffic.network.limits.max_accel)
    for _ in range(2):
        traffic.step((5.0, 0.0))  # clipped to 1
    assert traffic.speeds[0] == pytest.approx(0.7 * traffic.network.limits.max_accel)
    traffic.step((-1.0, 0.0))
    expected = 0.7 * traffic.network.limits.max_accel - 0.1 * traffic.network.limits.max_decel
    assert traffic.speeds[0] == pytest.approx(expected)
    traffic.step((float("nan"), float("nan")))
    assert traffic.speeds[0] == pytest.approx(expected - 0.1 * traffic.network.limits.max_decel)


def lane_after(traffic: Traffic, wish: float, steps: int = 1) -> list[int]:
    lanes = []
    for _ in range(steps):
        traffic.step((0.2, wish))
        lanes.append(traffic.sumo.vehicle.getLaneIndex(EGO))
    return lanes


def start_in_the_middle(traffic: Traffic) -> None:
    """A start on the middle of three lanes, a while away from the next junction."""
    for seed in range(200):
        traffic.reset(seed)
        road = traffic.network.loop[traffic._place.position]
        far = traffic.sumo.vehicle.getLanePosition(EGO) < road.length - 40
        if far and road.lanes == (0, 2) and traffic._place.lane == 1:
            return
    raise AssertionError("no such start")


@pytest.mark.parametrize(("wish", "lane"), [(0.34, 2), (0.33, 1), (-0.33, 1), (-0.34, 0), (7.0, 2)])
def test_a_wish_beyond_a_third_changes_the_lane(wish: float, lane: int, open_traffic: Open) -> None:
    traffic = open_traffic("sham-shui-po", safety="none")
    start_in_the_middle(traffic)
    assert lane_after(traffic, wish) == [lane]


def test_after_a_change_the_lane_is_kept_for_five_steps_and_only_the_change_is_charged(open_traffic: Open) -> None:
    traffic = open_traffic("sham-shui-po", safety="none")
    start_in_the_middle(traffic)
    assert traffic.step((0.2, 1.0)).info["changed_lane"]
    assert lane_after(traffic, -1.0, LANE_REST) == [2] * LANE_REST
    assert lane_after(traffic, -1.0) == [1]
    start_in_the_middle(traffic)
    changed = traffic.step((0.0, 1.0)).reward
    start_in_the_middle(traffic)
    kept = traffic.step((0.0, 0.0)).reward
    assert kept - changed == pytest.approx(0.1, abs=1e-3)


def test_without_safety_full_throttle_ends_in_a_crash_with_reward_zero(open_traffic: Open) -> None:
    traffic = open_traffic("causeway", safety="none")
    for seed in range(3):
        played = episode(traffic, seed, lambda generator: (1.0, 0.0))
        assert played["last"].terminated
        assert played["last"].reward == 0
        assert played["steps"] < 500


def test_an_idm_driven_ego_vehicle_gets_going_by_itself(open_traffic: Open) -> None:
    traffic = open_traffic("po-lam", horizon=200, reward="ego")
    assert episode(traffic, 0, idle, idm_ego=True)["return"] > 3 * episode(traffic, 0, idle)["return"] + 10


def test_a_second_simulation_in_a_process_is_refused_until_the_first_is_closed(open_traffic: Open) -> None:
    traffic = open_traffic("central")
    with pytest.raises(UserError, match=r"one simulation per process, and that of 'central' is open.*WorkerCollector"):
        Traffic(load_network("kai-tak"))
    traffic.reset(0)
    traffic.step((0.0, 0.0))  # the first is none the worse for it
    traffic.close()
    Traffic(load_network("kai-tak")).close()


def test_a_lost_vehicle_cuts_the_episode_and_is_named(open_traffic: Open) -> None:
    traffic = open_traffic("po-lam")
    traffic.reset(0)
    traffic.sumo.vehicle.remove("idm-3")
    step = traffic.step((0.0, 0.0))
    assert step.truncated
    assert not step.terminated
    assert step.info["lost"] == ["idm-3"]
    assert episode(traffic, 1, idle)["steps"] == 500


def test_an_error_of_sumo_in_the_middle_of_a_step_names_area_seed_and_step(open_traffic: Open) -> None:
    traffic = open_traffic("po-lam")
    traffic.reset(5)
    traffic.step((0.0, 0.0))
    traffic.sumo.vehicle.changeTarget(EGO, traffic.network.loop[0].edge)
    traffic.sumo.vehicle.remove(EGO)
    traffic.sumo.vehicle.add("stranger", "from-0")
    with pytest.raises(TrafficSimulationError, match=r"po-lam, seed 5, step 2: .*TraCIException"):
        traffic.step((0.0, 0.0))


def test_without_libsumo_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libsumo", None)
    with pytest.raises(UserError, match=r"pip install 'fedpohcs\[sumo\]'"):
        Traffic(load_network("central"))
    assert Traffic._live is None


def test_there_are_at_most_as_many_clients_as_areas() -> None:
    with pytest.raises(UserError, match=r"num_clients \(=11\) must not exceed the number of areas \(=10\)"):
        HongKong("areas", 11)


def test_a_real_extract_runs_from_map_to_episode(open_traffic: Open, tmp_path: Path, netconvert: None) -> None:  # noqa: F811
    network = build_network(extract("tsim_sha_tsui_2015.roads.osm"), "tsim-sha-tsui", tmp_path)
    played = episode(open_traffic(network), 0, racer)
    assert played["steps"] == 500
    assert played["return"] > 100


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.slow
def test_two_thousand_resets_do_not_grow(open_traffic: Open) -> None:
    traffic = open_traffic("causeway")
    sizes = []
    for seed in range(2200):
        traffic.reset(seed)
        traffic.step((1.0, 0.0))
        if seed in (200, 2199):
            sizes.append(resident_megabytes())
    assert sizes[1] - sizes[0] < 4


@pytest.mark.slow
@pytest.mark.parametrize("area", AREAS)
def test_in_safe_mode_nobody_crashes_or_gets_lost(area: str, open_traffic: Open) -> None:
    """Twenty episodes in each of ten areas."""
    traffic = open_traffic(area)
    for seed in range(20):
        driver = (random_driver, racer)[seed % 2]
        played = episode(traffic, seed, driver)
        assert played["steps"] == 500
        assert "lost" not in played["last"].info
        assert played["last"].info["other_collisions"] == 0


def test_vehicles_that_find_no_room_are_an_error_that_names_them(
    open_traffic: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = open_traffic("po-lam")
    start = simulation.draw_starts(traffic.network, np.random.default_rng(0))[0]
    monkeypatch.setattr(simulation, "draw_starts", lambda *_, **__: [start] * 11)
    monkeypatch.setattr(simulation, "STEPS_TO_INSERT", 3)
    with pytest.raises(TrafficSimulationError, match=r"po-lam, seed 0: no room for .*idm-"):
        traffic.reset(0)
