"""Observations of the RL vehicle: 18 numbers about its neighbours on its own and the adjacent lanes. Paper: Sec. 5.1.

The paper names headway, speed and position of visible neighbours. The exact numbers and their order are ours.
"""

from collections.abc import Sequence
from typing import NamedTuple

SIGHT = 100.0  # metres
SPEED_SCALE = 20.0  # m/s; the same for all clients, like SIGHT, so that their observations have one scale
VEHICLE_LENGTH = 5.0
OBSERVATION_SIZE = 18
NO_LANE = (-1.0, 0.0, 0.0)


class Vehicle(NamedTuple):
    """The state of a vehicle on the loop."""

    ring: float  # coordinate of its front, metres
    lane: int  # index; on a junction that of the lane from which it was entered
    speed: float
    share: float  # of its lane that lies behind it; 1 on a junction


def observe(
    ego: Vehicle, others: Sequence[Vehicle], ring: float, lanes: tuple[int, int], target_speed: float
) -> list[float]:
    """Gaps, relative speeds and places of the leader and the follower on three lanes, within -1 and 1.

    Six groups of three, each for the lane with the next higher index, the own lane, and the next lower index: gap to
    the leader, gap to the follower, speed of the leader, of the follower, place of the leader, of the follower.
    An empty lane is encoded as a vehicle at the limit of sight with the target speed and the place of the ego vehicle:
    this is how 18 numbers include the ego vehicle's speed and place. A lane that does not exist is encoded as gap -1.

    Args:
        ego: the RL vehicle.
        others: all other vehicles.
        ring: length of the loop.
        lanes: lowest and highest lane index of the road the ego vehicle is on.
        target_speed: v*.
    """
    here, lane, speed, share = ego
    half = ring / 2
    reach = SIGHT + VEHICLE_LENGTH
    distances = [reach] * 6  # to the leaders on the three lanes, then the followers
    nearest: list[Vehicle | None] = [None] * 6
    for other in others:
        side = lane + 1 - other[1]
        if 0 <= side <= 2:
            ahead = (other[0] - here) % ring
            if ahead > half:
                ahead, side = ring - ahead, side + 3
            if ahead < distances[side]:
                distances[side], nearest[side] = ahead, other
    numbers = [0.0] * OBSERVATION_SIZE
    nobody = (1.0, _clipped((target_speed - speed) / SPEED_SCALE), share)
    for slot in range(6):
        seen = nearest[slot]
        if not lanes[0] <= lane + 1 - slot % 3 <= lanes[1]:
            entries = NO_LANE
        elif seen is None:
            entries = nobody
        else:
            gap = (distances[slot] - VEHICLE_LENGTH) / SIGHT
            entries = gap, _clipped((seen[2] - speed) / SPEED_SCALE), seen[3]
        numbers[slot], numbers[slot + 6], numbers[slot + 12] = entries
    return numbers


def _clipped(x: float) -> float:
    return min(max(x, -1.0), 1.0)
