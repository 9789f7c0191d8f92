"""Runs the program of one client for many clients: in parallel on all cores, or one by one."""

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedpohcs.core.processes import available_cores
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import ClientIds
from fedpohcs.learners.client import ClientProgram

GROUP_AXIS = "groups"
MOST_MAPPINGS = 30_000  # of memory, beyond which compiled programs are forgotten
LARGEST_CHUNK = 64  # clients on a device at the same time; bounds memory for large populations
SHARD_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, LARGEST_CHUNK)  # padding is at most a third
Item = TypeVar("Item")
Result = TypeVar("Result")
Task = Callable[..., Any]
"""A method of `ClientProgram`, taken from the class: `ClientProgram.train`."""


class ClientError(RuntimeError):
    """A client's program raised; the message names the client."""


class Chunk(NamedTuple):
    """The results of some clients. Rows of `result` after the last client are padding."""

    clients: ClientIds
    result: Any


class ClientMap(Protocol):
    """Runs the tasks of a program for many clients."""

    def run_chunks(
        self, task: Task, program: ClientProgram, sent: Any, own: tuple[Any, ...], clients: ClientIds
    ) -> list[Chunk]:
        """`task(program, sent, *own)` for every client, in chunks; `own` has a leading client axis."""
        ...

    def on_host(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """A plain Python function for every item."""
        ...


@cache
def compiled(task: Task, program: ClientProgram) -> Any:
    """One compiled task; equal programs share it."""
    return jax.jit(partial(task, program))


@cache
def compiled_for_groups(task: Task, program: ClientProgram, num_own: int, groups: int) -> Any:
    """One program that every group runs on its own device with its own clients, at the same time."""
    mesh = Mesh(np.array(jax.local_devices()[:groups]), GROUP_AXIS)
    everywhere, apart = PartitionSpec(), PartitionSpec(GROUP_AXIS)
    specs = (everywhere, *[apart] * num_own)
    own_task = partial(task, program)
    task_of_group = jax.shard_map(own_task, mesh=mesh, in_specs=specs, out_specs=apart, check_vma=False)
    return jax.jit(task_of_group, in_shardings=jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))


def limit_programs(most: int = MOST_MAPPINGS) -> None:
    """Forget compiled programs if this process has more memory mappings than `most`.

    Every program maps some pages. Linux allows a process 65,530 mappings, and beyond that XLA crashes. A process that
    makes dozens of runs gets there. A program that is needed again comes from the cache on disk.
    """
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > most:
        forget_programs()


def forget_programs() -> None:
    """Forget all compiled programs of this process."""
    for function in (compiled, compiled_for_groups):
        function.cache_clear()
    jax.clear_caches()
    gc.collect()


def joined(chunks: Sequence[Chunk]) -> Any:
    """Concatenate chunks along the leading client axis of every leaf."""
    return jax.tree.map(
        lambda *parts: np.concatenate([x[: len(c.clients)] for c, x in zip(chunks, parts, strict=True)]),
        *[chunk.result for chunk in chunks],
    )


class VectorisedMap:
    """Splits clients into groups of equal size that run in parallel, with one device per group."""

    def __init__(self, groups: int) -> None:
        self.groups = min(groups, len(jax.local_devices()))
        self._threads = ThreadPoolExecutor(max(groups, len(available_cores())))  # what they compute is the same

    def run_chunks(
        self, task: Task, program: ClientProgram, sent: Any, own: tuple[Any, ...], clients: ClientIds
    ) -> list[Chunk]:
        """Run the task in chunks; a chunk is one call of a group. The last chunk is padded with its last client."""
        width = self._width(len(clients))
        run = compiled_for_groups(task, program, len(own), self.groups)
        chunks = []
        for start in range(0, len(clients), width * self.groups):
            index = np.minimum(np.arange(start, start + width * self.groups), len(clients) - 1)
            result = run(sent, *take_clients(own, index))
            parts = self._by_group(result)
            begins = range(start, len(clients), width)[: self.groups]
            chunks += [Chunk(clients[begin : begin + width], parts[group]) for group, begin in enumerate(begins)]
        return chunks

    def _by_group(self, result: Any) -> list[Any]:
        """The results of every group."""
        if self.groups == 1:
            return [jax.tree.map(np.asarray, result)]
        leaves, structure = jax.tree.flatten(result)
        shards = [[np.asarray(shard.data) for shard in leaf.addressable_shards] for leaf in leaves]
        return [jax.tree.unflatten(structure, [of_leaf[group] for of_leaf in shards]) for group in range(self.groups)]

    def _width(self, number: int) -> int:
        """Clients per chunk."""
        return min(-(-number // self.groups), LARGEST_CHUNK)

    def on_host(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Call the function on one thread per core."""
        return list(self._threads.map(function, items))


class ShardMap(VectorisedMap):
    """Runs the clients of one shard on one device.

    How many of them are asked differs from round to round, so chunks have few widths: few programs are compiled.
    """

    def __init__(self, groups: int) -> None:
        del groups  # a shard is one
        super().__init__(1)

    def _width(self, number: int) -> int:
        return next(width for width in SHARD_WIDTHS if width >= min(number, LARGEST_CHUNK))


class OneByOneMap:
    """Runs one client after the other, for debugging. An error names its client."""

    def __init__(self, groups: int) -> None:
        del groups  # every client is a group of its own

    def run_chunks(
        self, task: Task, program: ClientProgram, sent: Any, own: tuple[Any, ...], clients: ClientIds
    ) -> list[Chunk]:
        """Run the task client by client; each client is a chunk."""
        run = compiled(task, program)
        chunks = []
        for index, client in enumerate(clients):
            one = slice(index, index + 1)
            try:
                result = jax.tree.map(np.asarray, run(sent, *take_clients(own, one)))
            except Exception as error:
                raise ClientError(f"client {client} failed to {task.__name__}: {error}") from error
            chunks.append(Chunk(clients[one], result))
        return chunks

    def on_host(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Call the function for one item after the other."""
        return [function(item) for item in items]


CLIENT_MAPS: dict[str, Callable[[int], ClientMap]] = {
    "vectorised": VectorisedMap,
    "one-by-one": OneByOneMap,
    "sharded": ShardMap,
    "ray": ShardMap,
}
