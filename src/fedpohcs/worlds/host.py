"""Worlds stepped outside JAX, and the interface between them and the executor.

A host world makes a `Collector`. The executor passes the collector a `Play` per client and a `Quota`, and receives a
`ClientEpisodes` per client, in the same order. There are two collectors:

- `worlds.lockstep.LockstepCollector` steps all clients and episodes together in one batch simulator (MuJoCo);
- `worlds.workers.WorkerCollector` plays whole episodes in worker processes, including the policy (Gymnasium, SUMO).

What a collector returns is a function of the plays and the quota alone. It must not depend on which other clients play,
on their order, on the number of workers or threads, or on earlier calls.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.worlds.base import ContinuousActions, World

if TYPE_CHECKING:
    from fedpohcs.worlds.lockstep import Simulator as LaneSimulator


class Actor(Protocol):
    """Chooses the actions of one client. It is constant while the client plays, and can be pickled."""

    @property
    def noise(self) -> ActionNoise:
        """The noise that `act` needs per step."""
        ...

    def act(self, observation: Any, noise: Any) -> Any:
        """Actions for unfiltered observations, one or a batch: float32, or int32 where actions are discrete."""
        ...

    def crowd(self, actors: Sequence[Any]) -> "Crowd":
        """This actor and others of its class, for worlds that step many clients at once."""
        ...


class Crowd(Protocol):
    """Many actors of one class."""

    def rows(self, owner: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """(observations, noise) to actions, where row i belongs to the actor `owner[i]`.

        A row's action must not depend on the other rows.
        """
        ...


class Play(NamedTuple):
    """The task of one client. All arrays are NumPy, without a client axis; it can be pickled."""

    client: int
    actor: Actor
    draws: tuple[int, ...]  # names every draw of this play; see `episode_generator`


class Quota(NamedTuple):
    """How much each client plays: whole episodes, numbered from 0, in this order.

    Either `episodes` episodes, or the fewest that have more than `min_steps` steps in total.
    """

    episodes: int | None = None
    min_steps: int | None = None
    steps_per_episode: int | None = None  # cut every episode after this many steps, as the time limit does


class ClientEpisodes(NamedTuple):
    """The episodes of one client."""

    trajectory: Trajectory  # [n, 1, ...]: one lane, episode after episode, no padding; see `empty_trajectory`
    num_lost: int = 0  # episodes given up because the simulation went wrong; they are not in the trajectory
    failure: str | None = None  # why the client cannot take part in this round: "step 17 of episode 2: ..."


class Collector(Protocol):
    """Plays episodes for many clients."""

    def collect(self, plays: Sequence[Play], quota: Quota) -> list[ClientEpisodes]:
        """The episodes of each client, in the order of `plays`.

        Observations and actions are recorded as the world and the policy gave them: unfiltered, unclipped, float32
        (discrete actions: int32). Where an episode was cut, `next_observation` holds the observation after the cut;
        its other rows are never read.

        A simulation that fails does not raise here: a lost episode is replaced by the next one and counted, and a
        client that cannot play at all is returned with an empty trajectory and a `failure`.
        """
        ...

    def close(self) -> None:
        """End threads and processes. A closed collector is not used again."""
        ...


class HostWorld(World):
    """A population of environments stepped outside JAX. Making a world is cheap, making its collector is not.

    `observation_size`, `actions` and `horizon` may be attributes of the class or of the instance. Worlds that agree in
    them share their compiled programs.
    """

    @abstractmethod
    def make_collector(self) -> Collector:
        """The collector that plays this world's episodes."""

    def _shape(self) -> tuple[object, ...]:
        return type(self), self.observation_size, self.actions, self.horizon

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostWorld) and self._shape() == other._shape()

    def __hash__(self) -> int:
        return hash(self._shape())


class LockstepWorld(HostWorld):
    """A world with one simulator that steps the environments of all clients at once."""

    @abstractmethod
    def make_simulator(self) -> "LaneSimulator":
        """The simulator of all clients."""

    def make_collector(self) -> Collector:
        """All clients in one simulation."""
        from fedpohcs.worlds.lockstep import LockstepCollector  # compiled code, loaded with the first collector

        return LockstepCollector(self, self.make_simulator())


def episode_generator(play: Play, episode: int) -> np.random.Generator:
    """The generator of one episode: first the world draws its start from it, then the actor's noise is drawn."""
    return np.random.default_rng([*play.draws, episode])


NOISE_STEPS = 50
"""Steps for which action noise is drawn at once: part of the results, because the world may draw in between."""


def empty_trajectory(world: World) -> Trajectory:
    """A trajectory without steps, with the shapes and types of the world."""
    observation = np.zeros((0, 1, world.observation_size), np.float32)
    if isinstance(world.actions, ContinuousActions):
        action = np.zeros((0, 1, world.actions.size), np.float32)
    else:
        action = np.zeros((0, 1), np.int32)
    return Trajectory(observation, action, np.zeros((0, 1), np.float32), np.zeros((0, 1), np.int8), observation)
