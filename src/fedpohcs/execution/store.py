"""What clients keep between rounds. A client has a row from the moment it first acts; many rows live on disk."""

import os
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpohcs.core.errors import UserError
from fedpohcs.core.types import ClientIds

IN_MEMORY = 2**30  # bytes of all rows, beyond which they live in memory-mapped files
FEWEST_ROWS = 64
LONGEST_CHAIN = 32  # changes in a row, so that reading a checkpoint opens few files


class ClientState(NamedTuple):
    """What clients keep between rounds, with a leading client axis."""

    filters: Any  # read by actors
    memory: Any  # read by learning alone: momentum, a replay buffer
    mean_return: np.ndarray  # of the latest evaluation


class ClientStore:
    """Rows of state by client id. Memory and time follow the clients that have acted, not the population."""

    def __init__(self, one: ClientState, number: int, in_memory: int = IN_MEMORY) -> None:
        """Hold nobody's state yet.

        Args:
            one: state of a client that has not acted, without a client axis; gives the shapes and types of rows.
            number: of clients that there can be; ids are below it.
            in_memory: bytes of all rows, beyond which they move to files.
        """
        leaves, self._structure = jax.tree.flatten(jax.tree.map(np.asarray, one))
        self._columns = [_Column(leaf, FEWEST_ROWS) for leaf in leaves]
        self._row = np.full(number, -1, np.int32)
        self._clients = np.empty(FEWEST_ROWS, np.int64)  # by row
        self._changed = np.zeros(FEWEST_ROWS, bool)  # by row, since `changes` was last asked for
        self._since: int | None = None  # how many changes were given since all rows were; None: they never were
        self._in_memory = in_memory
        self.size = 0

    @property
    def clients(self) -> ClientIds:
        """Ids of the clients that have a row, in the order of their rows."""
        return self._clients[: self.size]

    def unknown(self, clients: ClientIds) -> ClientIds:
        """Those of the clients that have no row yet."""
        return clients[self._row[clients] < 0]

    def everything(self) -> ClientState:
        """All rows, as a view: what is written into it is stored."""
        return self._tree([column.array[: self.size] for column in self._columns])

    def take(self, clients: ClientIds) -> ClientState:
        """A copy of the rows of clients that have one."""
        rows = self._rows(clients)
        return self._tree([np.asarray(column.array[rows]) for column in self._columns])

    def add(self, clients: ClientIds, state: ClientState) -> None:
        """Give clients that have no row theirs."""
        first, self.size = self.size, self.size + len(clients)
        self._reserve(self.size)
        self._row[clients] = np.arange(first, self.size)
        self._clients[first : self.size] = clients
        self.put(clients, **state._asdict())

    def put(self, clients: ClientIds, **changes: Any) -> None:
        """Replace these fields of the rows of clients that have one."""
        rows = self._rows(clients)
        fields: Mapping[str, Any] = self._tree(self._columns)._asdict()
        for name, values in changes.items():
            jax.tree.map(lambda column, new: column.array.__setitem__(rows, new), fields[name], values)
        self._changed[rows] = True

    def changes(self) -> tuple[ClientIds, bool]:
        """Clients whose rows have changed since this was last asked, and whether these are all rows.

        They are if most of them have changed, or if many changes were given one after the other.
        """
        rows = np.flatnonzero(self._changed[: self.size])
        whole = self._since is None or self._since >= LONGEST_CHAIN or 2 * len(rows) > self.size
        self._since = 0 if whole or self._since is None else self._since + 1
        self._changed[: self.size] = False
        return (self.clients if whole else self.clients[rows]).copy(), whole

    def _tree(self, leaves: list[Any]) -> ClientState:
        return jax.tree.unflatten(self._structure, leaves)

    def _rows(self, clients: ClientIds) -> np.ndarray:
        rows = self._row[clients]
        assert (rows >= 0).all()  # clients are introduced before they act
        return rows

    def _reserve(self, size: int) -> None:
        """Make room for so many rows, at least twice as many as before."""
        room = len(self._clients)
        if size <= room:
            return
        room = min(max(size, 2 * room), len(self._row))
        on_disk = room * sum(column.row_bytes for column in self._columns) > self._in_memory
        for column in self._columns:
            column.grow(room, on_disk=on_disk)
        self._clients = np.resize(self._clients, room)
        self._changed = np.concatenate([self._changed, np.zeros(room - len(self._changed), bool)])


class _Column:
    """The rows of one leaf, in memory or in a file without a name, which ends with the process."""

    def __init__(self, like: np.ndarray, room: int) -> None:
        self.array = np.empty((room, *like.shape), like.dtype)
        self.row_bytes = like.nbytes
        self._file: Any = None

    def grow(self, room: int, *, on_disk: bool) -> None:
        """Make room for so many rows, and keep those that are there."""
        shape, old = (room, *self.array.shape[1:]), self.array
        if not on_disk or not self.row_bytes:
            self.array = np.empty(shape, old.dtype)
            self.array[: len(old)] = old
            return
        moved, self._file = self._file is None, self._file or tempfile.TemporaryFile(prefix="fedpohcs-")  # noqa: SIM115
        _allocate(self._file.fileno(), room * self.row_bytes)
        self.array = np.memmap(self._file, old.dtype, "r+", shape=shape)
        if moved:
            self.array[: len(old)] = old


def _allocate(file: int, size: int) -> None:
    """Take the bytes from the disk now: a mapped page that finds it full would kill the process."""
    try:
        if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
            os.posix_fallocate(file, 0, size)
        else:
            os.ftruncate(file, size)
    except OSError as error:
        remedy = "Free some space, or set TMPDIR to a folder of a larger disk."
        raise UserError(
            f"the state of the clients needs {size} bytes in {tempfile.gettempdir()}: {error.strerror}. {remedy}"
        ) from error
