"""How what one client does is run for many: together on every core, or one by one."""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from fedpohcs.learners.client import Learner
from fedpohcs.types import ClientIds

LARGEST_CHUNK = 64  # clients a device holds at once: bounds memory when the population is large
Item = TypeVar("Item")
Result = TypeVar("Result")


class ClientError(RuntimeError):
    """A client's program raised; the message names the client."""


class Chunk(NamedTuple):
    """The result of some clients. What follows the last of `clients` in `result` is padding."""

    clients: ClientIds
    result: Any


class ClientMap(Protocol):
    """Runs the methods of a learner for many clients."""

    def run_chunks(
        self, learner: Learner, task: str, shared: Any, own: tuple[Any, ...], clients: ClientIds
    ) -> list[Chunk]:
        """`learner.task(shared, *own)` for every client, in chunks; `own` has a leading client axis."""
        ...

    def on_host(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """A plain Python function for every item."""
        ...


@cache
def compiled(learner: Learner, task: str) -> Any:
    """The program of one task; equal learners share it."""
    return jax.jit(getattr(learner, task))


def joined(chunks: Sequence[Chunk]) -> Any:
    """Chunks whose every leaf has a leading client axis, as one."""
    return jax.tree.map(
        lambda *parts: np.concatenate([x[: len(c.clients)] for c, x in zip(chunks, parts, strict=True)]),
        *[chunk.result for chunk in chunks],
    )


def take_clients(tree: Any, index: Any) -> Any:
    """Rows of every leaf."""
    return jax.tree.map(lambda x: np.asarray(x)[index], tree)


class VectorisedMap:
    """Clients are split into groups, which run side by side: one device a core, one thread a device."""

    def __init__(self, groups: int) -> None:
        devices = jax.local_devices()
        self.groups = groups
        self._next_device = itertools.cycle(devices)
        self._here = threading.local()
        self._tracing = threading.Lock()
        self._threads = ThreadPoolExecutor(len(devices), initializer=self._take_device)

    def _take_device(self) -> None:
        self._here.device = next(self._next_device)

    def run_chunks(
        self, learner: Learner, task: str, shared: Any, own: tuple[Any, ...], clients: ClientIds
    ) -> list[Chunk]:
        """All chunks have one shape, so that there is one program; the last is padded with its last client."""
        width = min(-(-len(clients) // self.groups), LARGEST_CHUNK)
        program = compiled(learner, task)
        starts = range(0, len(clients), width)
        index = [np.minimum(np.arange(start, start + width), len(clients) - 1) for start in starts]
        with self._tracing:
            # Once, under a lock: threads that trace the same program at the same time only slow each other down.
            program.trace(shared, *take_clients(own, index[0]))

        def run_chunk(index: np.ndarray) -> Any:
            # Inputs placed on the thread's device, not a default device: that would be a reason to trace again.
            inputs = jax.device_put((shared, *take_clients(own, index)), self._here.device)
            return jax.tree.map(np.asarray, program(*inputs))

        results = list(self._threads.map(run_chunk, index))
        parts = [clients[start : start + width] for start in starts]
        return [Chunk(part, result) for part, result in zip(parts, results, strict=True)]

    def on_host(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """On one thread a device, whose JAX calls go to that device."""

        def on_own_device(item: Item) -> Result:
            with jax.default_device(self._here.device):
                return function(item)

        return list(self._threads.map(on_own_device, items))


class OneByOneMap:
    """The debugging twin: one client after the other; a failure names its client."""

    def __init__(self, groups: int) -> None:
        del groups  # every client is its own

    def run_chunks(
        self, learner: Learner, task: str, shared: Any, own: tuple[Any, ...], clients: ClientIds
    ) -> list[Chunk]:
        """Each client is a chunk."""
        program = compiled(learner, task)
        chunks = []
        for index, client in enumerate(clients):
            one = slice(index, index + 1)
            try:
                result = jax.tree.map(np.asarray, program(shared, *take_clients(own, one)))
            except Exception as error:
                raise ClientError(f"client {client} failed to {task}: {error}") from error
            chunks.append(Chunk(clients[one], result))
        return chunks

    def on_host(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """In order."""
        return [function(item) for item in items]


CLIENT_MAPS: dict[str, Callable[[int], ClientMap]] = {"vectorised": VectorisedMap, "one-by-one": OneByOneMap}
