"""Settings of the world `hongkong`. The paper leaves all of them open."""

from dataclasses import dataclass
from typing import Literal

from fedpohcs.core.checks import require_positive
from fedpohcs.core.scenario import WorldConfig


@dataclass(frozen=True)
class TrafficConfig(WorldConfig):
    """Settings of the world `hongkong`."""

    horizon: int = 500
    """Steps per episode, of a tenth of a second each."""
    reward: Literal["network", "ego"] = "network"
    """Whose speeds are compared with the target speed: those of all vehicles, or that of the learning vehicle."""
    safety: Literal["flow", "longitudinal", "none"] = "flow"
    """What SUMO controls for the learning vehicle: distance, right of way and red lights; distance alone; or nothing,
    so that it can crash."""
    networks: str = ""
    """Folder made by `fedpohcs osm build`, whose networks replace synthetic areas of the same name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("scenario.", self, "horizon")
