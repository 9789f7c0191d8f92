"""Shards of clients in the processes of a Ray cluster. Extra: ray.

An actor owns whole shards, and the server's process asks all actors at once. It keeps the last snapshot of every shard
and the orders since then. If an actor dies, another one takes up the snapshots and carries out the orders again: tasks
are functions of state, policy and round, so it arrives at the same bytes. Ray's own pickles carry the messages.
"""

import logging
import os
import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from fedpohcs.core.config import ExperimentConfig, from_dict, to_dict
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.types import ClientIds
from fedpohcs.execution.cluster import ClusterSettings, import_ray, joined_cluster
from fedpohcs.execution.sharding import CHANGING, SNAPSHOT, LocalShards, Order, Parts, Snapshots, shards_of

MOST_ORDERS = 30  # since the last snapshot, before another one is taken: about ten rounds

log = logging.getLogger("fedpohcs")


class Note(NamedTuple):
    """What an actor has to say to the user."""

    text: str
    level: int | None  # of the log; None: it was a warning of Python


class Reply(NamedTuple):
    """What an actor sends back."""

    parts: Any = None  # by shard
    problem: str | None = None  # the text of a `UserError`, which ends the run
    notes: tuple[Note, ...] = ()


class ShardActor:
    """Lives in a process of the cluster and runs its shards there."""

    def open(self, config: dict[str, Any], snapshots: Snapshots, record: bool) -> Reply:
        """Build the clients of the shards; the reply says what computes there."""
        from fedpohcs.core.processes import limit_cores
        from fedpohcs.core.registries import register_plugins
        from fedpohcs.execution.devices import configure_jax

        limit_cores(1)  # there is an actor per core
        with _noted() as notes:
            try:
                register_plugins()
                experiment = from_dict(config)
                configure_jax(experiment.num_devices)
                self.shards = LocalShards(experiment, snapshots, record=record)
            except UserError as error:
                return Reply(problem=str(error), notes=tuple(notes))
        return Reply(versions(), notes=tuple(notes))

    def process(self) -> int:
        """The id of the process."""
        return os.getpid()

    def ask(self, order: Order, clients: Mapping[int, ClientIds]) -> Reply:
        """Let the shards work."""
        with _noted() as notes:
            try:
                return Reply(self.shards.ask(order, clients), notes=tuple(notes))
            except UserError as error:
                return Reply(problem=str(error), notes=tuple(notes))


def versions() -> dict[str, str]:
    """What results depend on besides the config: the same everywhere, or bytes differ."""
    import jax
    import numpy

    from fedpohcs.core.version import __version__

    return {"fedpohcs": __version__, "jax": jax.__version__, "numpy": numpy.__version__, "machine": platform.machine()}


@contextmanager
def _noted() -> Iterator[list[Note]]:
    """Collect what is logged and warned of, which the server's process shall say."""
    notes: list[Note] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notes.append(Note(record.getMessage(), record.levelno))

    handler = Collector()
    log.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *more, **named: notes.append(Note(str(message), None))
            yield notes
    finally:
        log.removeHandler(handler)


class Owner:
    """The server's side of an actor: its shards, and what it takes to replace it."""

    def __init__(self, ray: Any, config: ExperimentConfig, snapshots: Snapshots, *, record: bool) -> None:
        self.ray, self.config, self.record = ray, to_dict(config), record
        self.snapshots = dict(snapshots)
        self.orders: list[tuple[Any, Mapping[int, ClientIds]]] = []  # that changed the shards since the snapshots
        self.failures = 0  # in a row
        self.started = False  # and checked
        options = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._make = ray.remote(**options)(ShardActor).remote
        self.start()

    def start(self) -> None:
        """Start an actor and bring the shards to their present state. It is not waited for."""
        self.started = False
        self.actor = self._make()
        self.opened = self.actor.open.remote(self.config, self.snapshots, self.record)
        for order, clients in self.orders:
            self.actor.ask.remote(order, clients)

    def __str__(self) -> str:
        return f"the actor of shard {', '.join(map(str, self.snapshots))}"

    def submit(self, order: Any, clients: Mapping[int, ClientIds]) -> Any:
        """Ask the actor, and give the reference of its reply."""
        return self.actor.ask.remote(order, clients)

    def kill(self) -> None:
        """End the actor at once."""
        with suppress(Exception):  # it may be dead already, and the cluster as well
            self.ray.kill(self.actor)


def _reason(error: Exception) -> str:
    """Why an actor died, in the words of Ray, without its advice."""
    text = " ".join(str(error).split())
    _, why, rest = text.rpartition("The actor is dead because ")
    return f"{why}{rest}".partition(" Some common causes")[0].rstrip(".")


class Call(NamedTuple):
    """An order that an actor was given."""

    owner: Owner
    clients: Mapping[int, ClientIds]
    reference: Any


class RayShards:
    """All shards of a federation, each in an actor."""

    def __init__(
        self, config: ExperimentConfig, snapshots: Snapshots, *, record: bool, cluster: ClusterSettings
    ) -> None:
        """Start the actors and wait until their clients are there.

        Args:
            config: of the experiment.
            snapshots: of all shards.
            record: keep the episodes of evaluations, which some metrics read.
            cluster: where the actors live, and how many there are.
        """
        self.ray, self.cluster = import_ray("executor", "ray"), cluster
        self.members, self.owners = shards_of(config), list[Owner]()
        self._at_end = ExitStack()
        try:
            cores = self._at_end.enter_context(joined_cluster(self.ray, cluster.address, cluster.actors))
            number = min(cluster.actors or cores, len(snapshots))
            require(number <= cores, "ray.actors", number, f"must not exceed the {cores} cores of the cluster")
            for first in range(number):
                own = {shard: snapshots[shard] for shard in sorted(snapshots)[first::number]}
                self.owners.append(Owner(self.ray, config, own, record=record))
            self._await_start()
        except BaseException:
            self.close()
            raise

    def ask(self, order: Order, clients: Mapping[int, ClientIds]) -> Parts:
        """Ask all actors at once. An actor that dies is replaced, and asked again."""
        assert self.owners  # not closed: Ray would start a cluster of its own accord
        reference, parts = self.ray.put(order), {}
        calls = [
            Call(owner, own, owner.submit(reference, own))
            for owner in self.owners
            if (own := {shard: clients[shard] for shard in owner.snapshots if shard in clients})
        ]
        while calls:
            calls = [again for call in calls if (again := self._received(call, order, reference, parts)) is not None]
        if max(len(owner.orders) for owner in self.owners) >= MOST_ORDERS:
            self.ask(SNAPSHOT, self.members)
        return parts

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for owner in self.owners:
            owner.kill()
        self.owners = []
        self._at_end.close()

    def _received(self, call: Call, order: Order, reference: Any, parts: Parts) -> Call | None:
        """Add the reply of a call to the parts. If its actor has died, the call to the actor that replaces it."""
        owner = call.owner
        try:
            self._check_start(owner)
            reply = self.ray.get(call.reference)
        except self._deaths as error:
            self._replace(owner, error)
            return call._replace(reference=owner.submit(reference, call.clients))
        owner.failures = 0
        parts |= self._told(reply)
        if order.task in CHANGING:
            owner.orders.append((reference, call.clients))
        elif order.task == SNAPSHOT.task:
            owner.snapshots, owner.orders = reply.parts, []
        return None

    def _await_start(self) -> None:
        for owner in self.owners:
            while not owner.started:
                try:
                    self._check_start(owner)
                except self._deaths as error:
                    self._replace(owner, error)

    def _check_start(self, owner: Owner) -> None:
        """Wait for the start of an actor, and refuse one that computes with other versions."""
        if owner.started:
            return
        timeout = self.cluster.startup_timeout
        try:
            found = self._told(self.ray.get(owner.opened, timeout=timeout))
        except self.ray.exceptions.GetTimeoutError as error:
            rule = f"seconds were not enough to start {owner}: no core of the cluster is free, or it is slow"
            raise UserError(f"ray.startup_timeout (={timeout:g}) {rule}.") from error
        own = versions()
        differing = [f"{name} {found[name]}, not {own[name]}" for name in own if found[name] != own[name]]
        if differing:
            text = "a machine of the cluster would compute other digits. It has "
            raise UserError(f"{text}{'; '.join(differing)}.")
        owner.started = True

    def _replace(self, owner: Owner, error: Exception) -> None:
        """Start another actor in place of one that has died, unless too many have."""
        reason = _reason(error)
        if getattr(error, "actor_init_failed", False):
            raise UserError(f"a machine of the cluster cannot start actors. Is fedpohcs installed there? {reason}")
        owner.failures += 1
        if owner.failures > self.cluster.restarts:
            raise UserError(f"{owner} died {owner.failures} times in a row (ray.restarts). Ray says: {reason}.")
        log.warning("%s died; another one takes over. Ray says: %s.", owner, reason)
        owner.kill()
        owner.start()

    def _told(self, reply: Reply) -> Any:
        """The content of a reply, after what the actor had to say."""
        for note in reply.notes:
            if note.level is None:
                warnings.warn(note.text, stacklevel=2)
            else:
                log.log(note.level, "%s", note.text)
        if reply.problem is not None:
            raise UserError(reply.problem)
        return reply.parts

    @property
    def _deaths(self) -> tuple[type[Exception], ...]:
        """What Ray raises if an actor, its machine or its reply is lost."""
        errors = self.ray.exceptions
        return errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError, errors.ObjectLostError
