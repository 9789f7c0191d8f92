"""What a server must know of a world whose environments are elsewhere: sizes of observations and actions, time limit.

The devices of a fleet announce it, so that a server needs neither their simulators nor their code.
"""

import json
import math
from typing import Any

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.spaces import ContinuousActions, DiscreteActions
from fedpohcs.worlds import check_world
from fedpohcs.worlds.base import World
from fedpohcs.worlds.host import Collector, HostWorld

LARGEST_SIZE = 100_000  # numbers of an observation, or choices: weights are made for as many
LONGEST_EPISODE = 10**7  # steps


def is_announced(config: ExperimentConfig) -> bool:
    """Whether devices announce the spaces of this world: those of worlds made with JAX are known everywhere."""
    return issubclass(check_world(config), HostWorld)


class AnnouncedWorld(HostWorld):
    """A world that others play. It makes no collector."""

    def __init__(self, observation_size: int, actions: ContinuousActions | DiscreteActions, horizon: int) -> None:
        self.observation_size, self.actions, self.horizon = observation_size, actions, horizon

    def make_collector(self) -> Collector:
        """Refuse: the environments are on the devices."""
        raise UserError("the environments of this world are on the devices of its fleet.")


def announce(world: World) -> str:
    """Sizes and time limit of a world as one line of text.

    Example:
        >>> announce(AnnouncedWorld(4, DiscreteActions(2), 500))
        '[4, [2], 500]'
    """
    return json.dumps([world.observation_size, list(world.actions), world.horizon])


def announced_world(text: Any) -> AnnouncedWorld:
    """The world that a device announced, or `UserError` if the text is none or claims absurd sizes."""
    try:
        size, actions, horizon = json.loads(text)
        known: Any = DiscreteActions(*actions) if len(actions) == 1 else ContinuousActions(*actions)
        sound = _counts(size, LARGEST_SIZE) and _counts(known[0], LARGEST_SIZE) and _counts(horizon, LONGEST_EPISODE)
        if sound and all(isinstance(limit, float) and not math.isnan(limit) for limit in known[1:]):
            return AnnouncedWorld(size, known, horizon)
    except (TypeError, ValueError, RecursionError):
        pass
    raise UserError(f"it announces spaces that are none: {str(text)[:100]!r}.")


def _counts(number: Any, most: int) -> bool:
    return type(number) is int and 0 < number <= most
