"""What a world knows about the returns of its runs. A run of a world that is not installed here has no such facts."""

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.scenario import find_world
from fedpohcs.core.types import Reference


def thresholds_of(world: str) -> tuple[float, ...]:
    """Mean returns worth reaching in a world; none if it declares none or is unknown."""
    found = find_world(world)
    return () if found is None else found.thresholds


def reference_of(config: ExperimentConfig) -> Reference | None:
    """The reference for runs with this config; None if the world has none or is unknown."""
    found = find_world(config.world)
    return None if found is None else found.reference(config)
