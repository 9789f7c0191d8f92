"""How what one client does is run for many: together on every core, or one by one."""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from fedpohcs.learners.client import Learner
from fedpohcs.learners.rollout import CLIENT_AXIS

LARGEST_CHUNK = 64  # clients a device holds at once: bounds memory when the population is large
Item, Result = TypeVar("Item"), TypeVar("Result")


class ClientFailure(RuntimeError):
    """A client's program raised; the message names the client."""


class ClientMap(Protocol):
    """Runs the methods of a learner for many clients."""

    def run(self, learner: Learner, task: str, shared: Any, own: tuple[Any, ...], clients: Sequence[int]) -> Any:
        """`learner.task(shared, *own)` for every client; `own` and the result have a leading client axis."""
        ...

    def on_host(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """A plain Python function for every item."""
        ...


@cache
def compiled(learner: Learner, task: str, num_own: int) -> Callable[..., Any]:
    """The program of one task over stacked clients; equal learners share it."""
    return jax.jit(jax.vmap(getattr(learner, task), in_axes=(None, *[0] * num_own), axis_name=CLIENT_AXIS))


def take_clients(tree: Any, index: Any) -> Any:
    """Rows of every leaf."""
    return jax.tree.map(lambda x: np.asarray(x)[index], tree)


class VectorisedMap:
    """Clients are split between devices, one device a core and one thread a device, and vmapped on each."""

    def __init__(self) -> None:
        devices = jax.local_devices()
        self.num_devices = len(devices)
        self._next_device = itertools.cycle(devices)
        self._here = threading.local()
        self._threads = ThreadPoolExecutor(len(devices), initializer=self._take_device)

    def _take_device(self) -> None:
        self._here.device = next(self._next_device)

    def run(self, learner: Learner, task: str, shared: Any, own: tuple[Any, ...], clients: Sequence[int]) -> Any:
        """All chunks have one shape, so that there is one program; the last is padded with its last client."""
        width = min(-(-len(clients) // self.num_devices), LARGEST_CHUNK)
        program = compiled(learner, task, len(own))

        def run_chunk(start: int) -> Any:
            index = np.minimum(np.arange(start, start + width), len(clients) - 1)
            return jax.tree.map(np.asarray, program(shared, *take_clients(own, index)))

        chunks = self.on_host(run_chunk, range(0, len(clients), width))
        return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(clients)], *chunks)

    def on_host(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """On one thread a device, whose JAX calls go to that device."""

        def on_own_device(item: Item) -> Result:
            with jax.default_device(self._here.device):
                return function(item)

        return list(self._threads.map(on_own_device, items))


class OneByOneMap:
    """The debugging twin: one client after the other; a failure names its client."""

    def run(self, learner: Learner, task: str, shared: Any, own: tuple[Any, ...], clients: Sequence[int]) -> Any:
        """Map over clients, each by itself."""
        program = compiled(learner, task, len(own))
        results = []
        for index, client in enumerate(clients):
            try:
                results.append(program(shared, *take_clients(own, slice(index, index + 1))))
            except Exception as error:
                raise ClientFailure(f"client {client} failed to {task}: {error}") from error
        return jax.tree.map(lambda *parts: np.concatenate(parts), *results)

    def on_host(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """In order."""
        return [function(item) for item in items]


CLIENT_MAPS: dict[str, Callable[[], ClientMap]] = {"vectorised": VectorisedMap, "one-by-one": OneByOneMap}
