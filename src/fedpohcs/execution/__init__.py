"""Executors: who runs the clients."""

from typing import TYPE_CHECKING

from fedpohcs.config import ExperimentConfig

if TYPE_CHECKING:
    from fedpohcs.execution.clients import LocalExecutor, Snapshot


def make_executor(
    config: ExperimentConfig, *, record: bool = True, snapshot: "Snapshot | None" = None
) -> "LocalExecutor":
    """The executor that the config's world needs. JAX must have been configured already."""
    from fedpohcs.envs import world_class
    from fedpohcs.envs.host import HostWorld

    if issubclass(world_class(config.world), HostWorld):
        from fedpohcs.execution.host import HostExecutor

        return HostExecutor(config, record=record, snapshot=snapshot)
    from fedpohcs.execution.in_process import InProcessExecutor

    return InProcessExecutor(config, record=record, snapshot=snapshot)
