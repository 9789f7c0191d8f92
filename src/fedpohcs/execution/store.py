"""What clients keep between rounds. Memory and time follow the clients that have acted, not the population."""

import math
import os
import tempfile
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpohcs.core.errors import UserError
from fedpohcs.core.trees import merged_rows, take_clients
from fedpohcs.core.types import ClientIds

IN_MEMORY = 2**30  # bytes of the rows of a field, beyond which they live in memory-mapped files
FEWEST_ROWS = 64
LONGEST_CHAIN = 32  # changes given one after the other, so that few files make a checkpoint


class ClientState(NamedTuple):
    """What clients keep between rounds, with a leading client axis."""

    filters: Any  # read by actors
    memory: Any  # read by learning alone: momentum, a replay buffer
    mean_return: np.ndarray  # of the latest evaluation


class StateRows(NamedTuple):
    """Rows of every field of the state, and the clients that they belong to."""

    state: ClientState
    whose: tuple[ClientIds, ...]  # by field

    def of(self, clients: ClientIds) -> "StateRows":
        """Those of the rows that belong to some clients."""
        own = [np.isin(whose, clients) for whose in self.whose]
        fields = [take_clients(field, index) for field, index in zip(self.state, own, strict=True)]
        return StateRows(
            ClientState(*fields), tuple(whose[index] for whose, index in zip(self.whose, own, strict=True))
        )

    def followed_by(self, later: "StateRows") -> "StateRows":
        """These rows with those of `later` in their place, or after them."""
        pairs = zip(self.whose, self.state, later.whose, later.state, strict=True)
        whose, fields = zip(*(merged_rows(*pair) for pair in pairs), strict=True)
        return StateRows(ClientState(*fields), whose)


class ClientStore:
    """The fields of the state by client. A client has a row of a field from the moment that it is first written.

    Before that, the field is as all clients begin. So the memory of clients that never trained takes no space.
    """

    def __init__(self, one: ClientState, number: int, in_memory: int = IN_MEMORY) -> None:
        """Hold nobody's state yet.

        Args:
            one: the state with which clients begin, without a client axis.
            number: of clients that there can be; ids are below it.
            in_memory: bytes of the rows of a field, beyond which they move to files.
        """
        self._fields = {name: Rows(field, number, in_memory) for name, field in one._asdict().items()}
        self._since: int | None = None  # changes given since all rows were; None: they never were
        self._given = 0  # rows in these

    @property
    def clients(self) -> ClientIds:
        """Ids of the clients that have filters, in the order in which they first acted."""
        return self._fields["filters"].clients

    @property
    def filters(self) -> Any:
        """The filters of these clients, as a view."""
        return self._fields["filters"].everything()

    def unknown(self, clients: ClientIds) -> ClientIds:
        """Those of the clients that have no filters yet."""
        return self._fields["filters"].unknown(clients)

    def take(self, clients: ClientIds) -> ClientState:
        """A copy of the state of some clients."""
        return ClientState(*(rows.take(clients) for rows in self._fields.values()))

    def take_filters(self, clients: ClientIds) -> Any:
        """A copy of the filters of some clients alone; what they keep besides may be large."""
        return self._fields["filters"].take(clients)

    def put(self, clients: ClientIds, **fields: Any) -> None:
        """Replace these fields of the state of some clients."""
        for name, values in fields.items():
            self._fields[name].put(clients, values)

    def put_rows(self, rows: StateRows) -> None:
        """Replace what these rows hold."""
        for field, clients, values in zip(self._fields.values(), rows.whose, rows.state, strict=True):
            field.put(clients, values)

    def all_rows(self) -> StateRows:
        """A copy of all rows."""
        return self._taken(tuple(field.clients.copy() for field in self._fields.values()))

    def changes(self) -> tuple[StateRows, bool]:
        """A copy of the rows that changed since this was last asked, and whether it has all rows.

        It has if changes since then would hold as many rows, or were given too often one after the other. So the work
        of giving all rows is at most that of giving changes, or is rare.
        """
        changed = tuple(field.changed() for field in self._fields.values())
        self._given += sum(map(len, changed))
        many = self._given >= sum(field.size for field in self._fields.values())
        if self._since is None or self._since >= LONGEST_CHAIN or many:
            self._since = self._given = 0
            return self.all_rows(), True
        self._since += 1
        return self._taken(changed), False

    def _taken(self, whose: tuple[ClientIds, ...]) -> StateRows:
        pairs = zip(self._fields.values(), whose, strict=True)
        return StateRows(ClientState(*(field.take(clients) for field, clients in pairs)), whose)


class Rows:
    """A tree of arrays with a row per client, for the clients that were written."""

    def __init__(self, one: Any, number: int, in_memory: int = IN_MEMORY) -> None:
        """No rows yet.

        Args:
            one: what a client without a row has; gives the form of rows.
            number: of clients that there can be; ids are below it.
            in_memory: bytes of all rows, beyond which they move to files.
        """
        leaves, self._structure = jax.tree.flatten(jax.tree.map(np.asarray, one))
        self._columns = [_Column(leaf) for leaf in leaves]
        self._row = np.full(number, -1, np.int32)
        self._clients = np.empty(FEWEST_ROWS, np.int64)  # by row
        self._changed = np.zeros(FEWEST_ROWS, bool)  # by row
        self._in_memory = in_memory
        self.size = 0

    @property
    def clients(self) -> ClientIds:
        """Ids of the clients that have a row, in the order of their rows."""
        return self._clients[: self.size]

    @property
    def on_disk(self) -> bool:
        """Whether rows are in files."""
        return any(column.on_disk for column in self._columns)

    def unknown(self, clients: ClientIds) -> ClientIds:
        """Those of the clients that have no row yet."""
        return clients[self._row[clients] < 0]

    def everything(self) -> Any:
        """All rows, as a view that must not be written."""
        return self._tree([column.array[: self.size] for column in self._columns])

    def take(self, clients: ClientIds) -> Any:
        """A copy of the rows of some clients."""
        rows = self._row[clients]
        return self._tree([column.take(rows) for column in self._columns])

    def put(self, clients: ClientIds, tree: Any) -> None:
        """Replace the rows of some clients, each named once; who has none gets one."""
        self._add(self.unknown(clients))
        rows = self._row[clients]
        for column, values in zip(self._columns, jax.tree.leaves(tree), strict=True):
            column.array[rows] = values
        self._changed[rows] = True

    def changed(self) -> ClientIds:
        """Clients whose rows were written since this was last asked, in the order of their rows."""
        rows = np.flatnonzero(self._changed[: self.size])
        self._changed[rows] = False
        return self._clients[rows]

    def _tree(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(self._structure, leaves)

    def _add(self, clients: ClientIds) -> None:
        first, self.size = self.size, self.size + len(clients)
        self._reserve(self.size)
        self._row[clients] = np.arange(first, self.size)
        self._clients[first : self.size] = clients

    def _reserve(self, size: int) -> None:
        """Make room for so many rows, if there is not enough at least for twice as many as before."""
        if size <= len(self._clients):
            return
        room = max(size, min(2 * len(self._clients), len(self._row)))
        to_disk = room * sum(column.row_bytes for column in self._columns) > self._in_memory
        for column in self._columns:
            column.grow(room, to_disk=to_disk)
        self._clients = np.resize(self._clients, room)
        self._changed = np.concatenate([self._changed, np.zeros(room - len(self._changed), bool)])


class _Column:
    """The rows of one array, in memory or in a file."""

    def __init__(self, one: np.ndarray) -> None:
        self.one = one
        self.array = np.empty((FEWEST_ROWS, *one.shape), one.dtype)
        self.row_bytes = one.nbytes

    @property
    def on_disk(self) -> bool:
        return isinstance(self.array, np.memmap)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """A copy of these rows; row -1 is that of a client that has none."""
        taken = np.asarray(self.array[rows])
        taken[rows < 0] = self.one
        return taken

    def grow(self, room: int, *, to_disk: bool) -> None:
        """Make room for so many rows, and keep those that are there."""
        shape, old = (room, *self.array.shape[1:]), self.array
        self.array = _mapped(shape, old.dtype) if to_disk and self.row_bytes else np.empty(shape, old.dtype)
        self.array[: len(old)] = old


def _mapped(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array in a file without a name, which ends with the array."""
    size = math.prod(shape) * dtype.itemsize
    try:
        with tempfile.TemporaryFile(prefix="fedpohcs-") as file:  # the mapping keeps it open
            # Take the bytes from the disk now: a mapped page that finds it full would kill the process.
            if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        remedy = "Free some space, or set TMPDIR to a folder of a larger disk."
        where = f"the state of the clients needs {size} bytes in {tempfile.gettempdir()}"
        raise UserError(f"{where}: {error.strerror}. {remedy}") from error
