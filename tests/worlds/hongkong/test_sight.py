"""The 18 numbers, for vehicles placed by hand on a ring of 1000 m. Target speed 12 m/s."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedpohcs.worlds.hongkong.areas import AREAS
from fedpohcs.worlds.hongkong.networks import load_network
from fedpohcs.worlds.hongkong.placement import NUM_VEHICLES, SHORTEST_ROAD, SMALLEST_GAP, draw_starts
from fedpohcs.worlds.hongkong.sight import VEHICLE_LENGTH, Vehicle, observe

RING, TARGET = 1000.0, 12.0
EGO = Vehicle(500.0, 1, 8.0, 0.25)
LEADER_GAP, FOLLOWER_GAP, LEADER_SPEED, FOLLOWER_SPEED, LEADER_PLACE, FOLLOWER_PLACE = range(0, 18, 3)
LEFT, OWN, RIGHT = range(3)


def see(*others: Vehicle, ego: Vehicle = EGO, lanes: tuple[int, int] = (0, 2)) -> Sequence[float]:
    return observe(ego, others, RING, lanes, TARGET)


def test_an_empty_road_reads_as_phantoms_at_the_edge_of_sight() -> None:
    assert see() == pytest.approx([1.0] * 6 + [(12 - 8) / 20] * 6 + [0.25] * 6)


def test_a_leader_on_the_own_lane_shows_gap_speed_and_place() -> None:
    seen = see(Vehicle(535.0, 1, 10.0, 0.6))
    assert seen[LEADER_GAP + OWN] == pytest.approx((35 - VEHICLE_LENGTH) / 100)
    assert seen[LEADER_SPEED + OWN] == pytest.approx((10 - 8) / 20)
    assert seen[LEADER_PLACE + OWN] == 0.6
    assert seen[LEADER_GAP + LEFT] == seen[LEADER_GAP + RIGHT] == seen[FOLLOWER_GAP + OWN] == 1.0


def test_a_follower_on_the_lane_with_the_higher_index_is_seen_on_the_left() -> None:
    seen = see(Vehicle(480.0, 2, 3.0, 1.0))
    assert seen[FOLLOWER_GAP + LEFT] == pytest.approx((20 - VEHICLE_LENGTH) / 100)
    assert seen[FOLLOWER_SPEED + LEFT] == pytest.approx((3 - 8) / 20)
    assert seen[FOLLOWER_PLACE + LEFT] == 1.0


def test_the_nearest_of_several_is_seen() -> None:
    seen = see(Vehicle(560.0, 0, 1.0, 0.1), Vehicle(530.0, 0, 2.0, 0.2), Vehicle(545.0, 0, 3.0, 0.3))
    assert seen[LEADER_PLACE + RIGHT] == 0.2


def test_the_ring_is_closed() -> None:
    ego = EGO._replace(ring=990.0)
    seen = see(Vehicle(20.0, 1, 8.0, 0.5), ego=ego)
    assert seen[LEADER_GAP + OWN] == pytest.approx((30 - VEHICLE_LENGTH) / 100)
    assert see(ego, ego=Vehicle(20.0, 1, 8.0, 0.5))[FOLLOWER_GAP + OWN] == pytest.approx(0.25)


def test_nobody_is_seen_beyond_a_hundred_metres_or_two_lanes_away() -> None:
    assert see(Vehicle(500 + 100 + VEHICLE_LENGTH, 1, 1.0, 0.1), Vehicle(510.0, 3, 1.0, 0.1), lanes=(0, 3)) == see()
    assert see(Vehicle(500 + 99 + VEHICLE_LENGTH, 1, 1.0, 0.1)) != see()


def test_a_lane_that_is_not_there_differs_from_an_empty_one() -> None:
    seen = see(Vehicle(510.0, 2, 1.0, 0.1), lanes=(0, 1))
    assert [seen[group + LEFT] for group in range(0, 18, 3)] == [-1, -1, 0, 0, 0, 0]
    assert seen[LEADER_GAP + RIGHT] == 1


def test_speeds_are_clipped() -> None:
    assert see(Vehicle(510.0, 1, 90.0, 0.1))[LEADER_SPEED + OWN] == 1.0


@pytest.mark.parametrize("name", AREAS)
def test_vehicles_start_apart_on_long_roads_and_existing_lanes(name: str) -> None:
    network = load_network(name)
    for seed in range(50):
        starts = draw_starts(network, np.random.default_rng(seed))
        assert len(starts) == NUM_VEHICLES
        for start in starts:
            road = network.loop[start.position]
            assert road.length >= SHORTEST_ROAD
            assert VEHICLE_LENGTH <= start.metres < road.length
            assert road.lanes[0] <= start.lane <= road.lanes[1]
        fronts = np.sort([network.starts[start.position] + start.metres for start in starts])
        assert np.diff(fronts, append=fronts[0] + network.ring).min() >= SMALLEST_GAP - 1e-9


def test_the_ego_vehicle_starts_with_others_before_and_behind_it() -> None:
    network = load_network("kai-tak")
    for seed in range(20):
        ego, *others = draw_starts(network, np.random.default_rng(seed))
        here = network.starts[ego.position] + ego.metres
        ahead = [(network.starts[s.position] + s.metres - here) % network.ring < network.ring / 2 for s in others]
        assert 2 <= sum(ahead) <= 8
