"""What to hold learned policies against, where a world offers it: stored returns of somebody who does not learn."""

from typing import NamedTuple

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.types import Vector


class Reference(NamedTuple):
    """Mean return of each client under a fixed way to act."""

    label: str
    clients: tuple[str, ...]  # names
    mean_return: Vector


def reference_of(config: ExperimentConfig) -> Reference | None:
    """The reference for runs with this config; None where there is none."""
    if config.world != "hongkong":
        return None
    from fedpohcs.worlds.hongkong.areas import AREAS
    from fedpohcs.worlds.hongkong.reference import idm_reference

    num_clients = config.federation.num_clients
    returns = idm_reference(config.scenario, num_clients)  # pyright: ignore[reportArgumentType]
    return None if returns is None else Reference("driven by IDM", tuple(AREAS)[:num_clients], returns)
