"""Start positions: a platoon with random gaps, lanes and desired speeds at a random place on the loop."""

from typing import NamedTuple

import numpy as np

from fedpohcs.worlds.hongkong.networks import Network
from fedpohcs.worlds.hongkong.sight import VEHICLE_LENGTH

NUM_VEHICLES = 11
PLATOON = 400.0  # metres; spread over the whole network, vehicles would rarely meet
LARGEST_SHARE = 0.9  # of the loop that a platoon may take
SMALLEST_GAP = 11.0  # between fronts
SHORTEST_ROAD = 25.0  # on which vehicles start
SPEED_FACTORS = (0.6, 1.0)  # of IDM vehicles: desired speed as a share of the limit
EGO_SPEED_FACTOR, IDM_EGO_SPEED_FACTOR = 1.2, 0.8


class Start(NamedTuple):
    """Start of one vehicle."""

    position: int  # of its road in the loop
    metres: float  # of its front, on that road
    lane: int
    speed_factor: float


def draw_starts(network: Network, generator: np.random.Generator, *, idm_ego: bool = False) -> list[Start]:
    """Starts of all vehicles. The ego vehicle comes first; it starts in the middle half of the platoon.

    Positions are drawn over the metres on which a vehicle may start, so no draw is rejected.
    """
    stretches = _stretches(network)
    total = sum(length for _, _, length in stretches)
    slot = min(PLATOON, LARGEST_SHARE * total) / NUM_VEHICLES
    offset = generator.uniform(0, total)
    within = generator.uniform(0, max(slot - SMALLEST_GAP, 0.0), NUM_VEHICLES)
    lanes = generator.uniform(size=NUM_VEHICLES)
    factors = generator.uniform(*SPEED_FACTORS, size=NUM_VEHICLES)
    ego = int(generator.integers(NUM_VEHICLES // 4, NUM_VEHICLES - NUM_VEHICLES // 4))
    factors[ego] = IDM_EGO_SPEED_FACTOR if idm_ego else EGO_SPEED_FACTOR
    starts = []
    for number in range(NUM_VEHICLES):
        position, metres = _locate(stretches, (offset + number * slot + within[number]) % total)
        lowest, highest = network.loop[position].lanes
        lane = lowest + int(lanes[number] * (highest - lowest + 1))
        starts.append(Start(position, metres, lane, float(factors[number])))
    return [starts.pop(ego), *starts]


def _stretches(network: Network) -> list[tuple[int, float, float]]:
    """The stretches where vehicles may start: position in the loop, first metre and length."""
    return [
        (position, VEHICLE_LENGTH, road.length - VEHICLE_LENGTH - 1.0)
        for position, road in enumerate(network.loop)
        if road.length >= SHORTEST_ROAD
    ]


def _locate(stretches: list[tuple[int, float, float]], metres: float) -> tuple[int, float]:
    for position, first, length in stretches:
        if metres < length:
            return position, first + metres
        metres -= length
    position, first, length = stretches[-1]  # after rounding errors
    return position, first + length
