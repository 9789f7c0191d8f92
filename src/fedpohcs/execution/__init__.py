"""Executors, which run the clients."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedpohcs.core.config import SHARDED, ExperimentConfig
from fedpohcs.core.errors import require_checkpoint
from fedpohcs.core.processes import interrupts_deferred
from fedpohcs.execution.cluster import ClusterSettings

if TYPE_CHECKING:
    from fedpohcs.core.types import ClientIds
    from fedpohcs.execution.clients import LocalExecutor, Snapshot
    from fedpohcs.server.protocols import Executor, RemoteClients


def make_executor(
    config: ExperimentConfig,
    *,
    record: bool = True,
    snapshot: "Snapshot | RemoteClients | None" = None,
    members: "ClientIds | None" = None,
) -> "LocalExecutor":
    """The executor that the config's world needs. JAX must have been configured already."""
    from fedpohcs.worlds import world_class
    from fedpohcs.worlds.host import HostWorld

    if issubclass(world_class(config.world), HostWorld):
        from fedpohcs.execution.host import HostExecutor

        return HostExecutor(config, record=record, snapshot=snapshot, members=members)
    from fedpohcs.execution.in_process import InProcessExecutor

    return InProcessExecutor(config, record=record, snapshot=snapshot, members=members)


def make_clients(
    config: ExperimentConfig, *, record: bool = True, snapshot: Any = None, cluster: ClusterSettings | None = None
) -> "Executor":
    """The executor that the config names: `make_executor`, or one whose clients are in shards."""
    if config.executor not in SHARDED:
        return make_executor(config, record=record, snapshot=snapshot)
    from fedpohcs.execution.sharding import LocalShards, ShardedExecutor, divided_snapshot

    snapshots = divided_snapshot(snapshot, config)
    if config.executor == "sharded":
        return ShardedExecutor(config, LocalShards(config, snapshots, record=record))
    from fedpohcs.execution.ray import RayShards

    return ShardedExecutor(config, RayShards(config, snapshots, record=record, cluster=cluster or ClusterSettings()))


def make_protected_executor(
    config: ExperimentConfig,
    *,
    record: bool = True,
    snapshot: Any = None,
    executor: str | None = None,
    cluster: ClusterSettings | None = None,
) -> "Executor":
    """The executor of `make_clients`, with measurements protected as `config.privacy` says.

    Args:
        config: of the experiment.
        record: keep the episodes of evaluations, which some metrics read.
        snapshot: of an earlier executor of the same config, to go on where that one stood.
        executor: in place of that of the config, with the same results: a run in shards may go on elsewhere.
        cluster: of the executor ray.
    """
    config = config if executor is None else replace(config, executor=executor)
    if config.privacy == "none":
        return make_clients(config, record=record, snapshot=snapshot, cluster=cluster)
    from fedpohcs.execution.private import PrivateExecutor, PrivateSnapshot

    known = isinstance(snapshot, PrivateSnapshot) and snapshot.answers.shape == (config.federation.num_clients,)
    require_checkpoint(snapshot is None or known, "a state of private selection")
    within = make_clients(config, record=record, snapshot=snapshot and snapshot.clients, cluster=cluster)
    return PrivateExecutor(with_byzantine_clients(within, config, only="table"), config, snapshot)


def with_byzantine_clients(executor: "Executor", config: ExperimentConfig, only: str | None = None) -> "Executor":
    """The executor with the Byzantine clients of `config.attack`; with `only`, if that is what they attack."""
    if config.attack.kind is None:
        return executor
    from fedpohcs.core.registries import ATTACKS
    from fedpohcs.execution.attacked import AttackedExecutor

    if only is not None and ATTACKS[config.attack.kind].about != only:
        return executor
    return AttackedExecutor(executor, config)


def configure_jax(num_devices: int) -> None:
    """Set JAX up before it is first used. Imported here, because JAX itself takes a while.

    An exception of a signal handler that is raised in compiled code which JAX imports would abort the process.
    """
    with interrupts_deferred():
        from fedpohcs.execution import devices

    devices.configure_jax(num_devices)
