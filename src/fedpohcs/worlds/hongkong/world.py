"""The federation of ten areas. Paper: Sec. 5.1, HongKongOSMs."""

from importlib.util import find_spec
from typing import ClassVar

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import require
from fedpohcs.core.types import Reference
from fedpohcs.worlds.base import ContinuousActions
from fedpohcs.worlds.hongkong.areas import AREAS
from fedpohcs.worlds.hongkong.networks import load_network
from fedpohcs.worlds.hongkong.reference import idm_reference
from fedpohcs.worlds.hongkong.settings import TrafficConfig
from fedpohcs.worlds.hongkong.sight import OBSERVATION_SIZE
from fedpohcs.worlds.hongkong.simulation import ACTION_SIZE, Traffic, import_libsumo
from fedpohcs.worlds.workers import SimulatedWorld


class HongKong(SimulatedWorld):
    """One learning vehicle among ten IDM vehicles in each of ten synthetic areas; client n drives in the n-th."""

    Config = TrafficConfig
    held_out = True
    levels: ClassVar[tuple[str, ...]] = ("areas",)
    observation_size = OBSERVATION_SIZE
    actions = ContinuousActions(size=ACTION_SIZE, low=-1.0, high=1.0)
    painter = "fedpohcs.worlds.hongkong.drawing:DRIVE"
    preload = ("fedpohcs.worlds.hongkong.world", "libsumo")

    def __init__(
        self, level: str, num_clients: int, num_held_out: int = 0, *, settings: TrafficConfig | None = None
    ) -> None:
        del level  # there is only one
        rule = f"must not exceed the number of areas (={len(AREAS)})"
        require(num_clients <= len(AREAS), "federation.num_clients", num_clients, rule)
        rest = len(AREAS) - num_clients
        rule = f"must not exceed the number of areas without a client that trains (={rest})"
        require(num_held_out <= rest, "federation.held_out_clients", num_held_out, rule)
        if find_spec("libsumo") is None:
            import_libsumo()  # names the missing package before any worker starts
        self.settings = settings or TrafficConfig()
        self.horizon = self.settings.horizon
        names = list(AREAS)[: num_clients + num_held_out]
        self.networks = [load_network(name, self.settings.networks) for name in names]

    @classmethod
    def reference(cls, config: ExperimentConfig) -> Reference | None:
        """Returns of an ego vehicle driven by IDM, as stored in the package for these settings."""
        assert isinstance(config.scenario, TrafficConfig)
        num_clients = config.federation.num_clients
        returns = idm_reference(config.scenario, num_clients)
        return None if returns is None else Reference("driven by IDM", tuple(AREAS)[:num_clients], returns)

    def open(self, client: int) -> Traffic:
        """The simulation of the client's area, in this process."""
        return Traffic(self.networks[client], self.settings)
