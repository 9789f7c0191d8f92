"""The store of what clients keep: against plain dictionaries, on disk, and through checkpoints of changes."""

import errno
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpohcs.core.errors import UserError
from fedpohcs.execution import store as store_module
from fedpohcs.execution.clients import Snapshot
from fedpohcs.execution.store import IN_MEMORY, LONGEST_CHAIN, ClientState, ClientStore, Rows, StateRows
from fedpohcs.runs import checkpoints
from fedpohcs.runs.checkpoints import Checkpoint, checkpoint_files, is_whole, read_checkpoint, write_checkpoint

NUMBER = 200
ONE = ClientState(
    {"mean": np.full((2,), 0.5), "seen": np.zeros((), np.int32)}, np.full((3,), 7.0), np.zeros((), np.float32)
)

ids = st.lists(st.integers(0, NUMBER - 1), unique=True, max_size=80)
writes = st.lists(st.tuples(st.sampled_from(["filters", "memory", "mean_return"]), ids), max_size=12)


class Model:
    """The same with a dictionary for each field."""

    def __init__(self) -> None:
        self.fields: dict[str, dict[int, Any]] = {name: {} for name in ClientState._fields}

    def put(self, clients: list[int], name: str, number: int) -> None:
        for client in clients:
            self.fields[name][client] = value_of(name, client, number)

    def take(self, client: int) -> ClientState:
        return ClientState(*(self.fields[name].get(client, one) for name, one in ONE._asdict().items()))


def value_of(name: str, client: int, number: int) -> Any:
    value = 1000.0 * number + client
    if name == "filters":
        return {"mean": np.array([value, -value]), "seen": np.int32(number)}
    return np.full(3, value) if name == "memory" else np.float32(value)


def stacked(values: list[Any]) -> Any:
    if not isinstance(values[0], dict):
        return np.stack(values)
    return {key: np.stack([value[key] for value in values]) for key in values[0]}


def put(store: ClientStore, clients: list[int], name: str, number: int) -> None:
    if clients:
        store.put(np.array(clients), **{name: stacked([value_of(name, client, number) for client in clients])})


def assert_equals_model(store: ClientStore, model: Model) -> None:
    found, expected = store.take(np.arange(NUMBER)), [model.take(client) for client in range(NUMBER)]
    for name in ONE._fields:
        jax.tree.map(
            np.testing.assert_array_equal, getattr(found, name), stacked([getattr(one, name) for one in expected])
        )


@pytest.mark.parametrize("in_memory", [IN_MEMORY, 0])
@given(done=writes)
@settings(deadline=None, max_examples=60)
def test_a_store_in_memory_or_on_disk_holds_what_a_dictionary_holds(in_memory: int, done: list) -> None:
    store, model = ClientStore(ONE, NUMBER, in_memory), Model()
    for number, (name, clients) in enumerate(done, 1):
        put(store, clients, name, number)
        model.put(clients, name, number)
    assert_equals_model(store, model)
    acted = list(dict.fromkeys(client for name, clients in done if name == "filters" for client in clients))
    assert store.clients.tolist() == acted
    assert store.unknown(np.arange(NUMBER)).tolist() == [n for n in range(NUMBER) if n not in acted]


@given(done=writes, asked=st.sets(st.integers(0, 11)))
@settings(deadline=None, max_examples=100)
def test_changes_one_after_the_other_make_the_store_again_with_rows_in_the_same_order(done: list, asked: set) -> None:
    store, model, known = ClientStore(ONE, NUMBER), Model(), None
    for number, (name, clients) in enumerate(done):
        put(store, clients, name, number)
        model.put(clients, name, number)
        if number in asked or number == len(done) - 1:
            rows, whole = store.changes()
            known = rows if whole or known is None else known.followed_by(rows)
            assert whole or number > min(asked | {len(done) - 1})
    if known is not None:
        other = ClientStore(ONE, NUMBER)
        other.put_rows(known)
        assert_equals_model(other, model)
        for one, again in zip(store.all_rows().whose, other.all_rows().whose, strict=True):
            assert one.tolist() == again.tolist()


def test_taken_rows_are_copies_that_later_writes_do_not_change() -> None:
    store = ClientStore(ONE, NUMBER)
    put(store, [3, 5], "memory", 1)
    taken, rows = store.take(np.array([5])), store.all_rows()
    put(store, [5], "memory", 2)
    assert taken.memory[0, 0] == rows.state.memory[1, 0] == 1005
    taken.memory[:] = 0
    assert store.take(np.array([5])).memory[0, 0] == 2005


def test_space_follows_the_clients_that_have_acted() -> None:
    rows = Rows(np.zeros(1000), 1_000_000)
    rows.put(np.array([999_999]), np.ones((1, 1000)))
    assert sum(column.array.nbytes for column in rows._columns) < 1e6


def test_rows_move_to_disk_when_they_outgrow_their_share_of_memory_and_not_before() -> None:
    rows = Rows(np.zeros(128), 10_000, in_memory=2**17)  # 128 rows
    rows.put(np.arange(100), np.arange(100.0)[:, None] + np.zeros(128))
    assert not rows.on_disk
    rows.put(np.arange(100, 200), np.arange(100.0, 200.0)[:, None] + np.zeros(128))
    assert rows.on_disk
    rows.put(np.arange(200, 1000), np.arange(200.0, 1000.0)[:, None] + np.zeros(128))  # in a larger file
    np.testing.assert_array_equal(rows.take(np.arange(1000))[:, 5], np.arange(1000.0))


def test_a_full_disk_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module.os, "posix_fallocate", full, raising=False)
    rows = Rows(np.zeros(128), 10_000, in_memory=0)
    with pytest.raises(UserError, match=r"state of the clients needs \d+ bytes.*No space left.*TMPDIR"):
        rows.put(np.arange(100), np.zeros((100, 128)))


def test_few_changes_are_given_alone_and_many_or_long_series_as_a_whole() -> None:
    store = ClientStore(ONE, NUMBER)
    put(store, list(range(150)), "memory", 1)
    assert store.changes()[1]
    given = []
    for number in range(LONGEST_CHAIN + 1):
        put(store, [number], "memory", number)
        rows, whole = store.changes()
        given.append(whole)
        assert len(rows.whose[1]) == (150 if whole else 1)
    assert given == [False] * LONGEST_CHAIN + [True]
    put(store, list(range(80)), "memory", 2)
    assert not store.changes()[1]
    put(store, list(range(80)), "memory", 3)
    assert store.changes()[1]  # 160 rows of changes would follow 150


# Checkpoints of changes


class Server(NamedTuple):
    """A server with a store of its clients."""

    clients: Any
    note: Any


def write_rounds(folder: Path, rounds: int, first: int = 0) -> list[StateRows]:
    """Checkpoints of rounds in which a few of 150 clients change; what the store held after each."""
    store, after, held = ClientStore(ONE, NUMBER), None, []
    put(store, list(range(150)), "filters", first)
    for number in range(first, first + rounds):
        put(store, [number % 150, 150 + number % 50], "memory", number + 1)
        rows, whole = store.changes()
        state = Server(Snapshot(rows.state, [], rows.whose, whole), None if number % 2 else (1, 2))
        write_checkpoint(folder, Checkpoint(number, {}, state, None if whole else after))
        after = number
        held.append(store.all_rows())
    return held


def assert_holds(path: Path, rows: StateRows) -> None:
    checkpoint = read_checkpoint(path)
    assert checkpoint.after is None
    assert is_whole(checkpoint.state)
    found = checkpoint.state.clients
    for one, other in zip(found.whose, rows.whose, strict=True):
        assert one.tolist() == other.tolist()
    np.testing.assert_array_equal(found.state.memory, rows.state.memory)
    np.testing.assert_array_equal(found.state.filters["mean"], rows.state.filters["mean"])


@pytest.mark.parametrize("rounds", [1, 2, 5, LONGEST_CHAIN + 1, LONGEST_CHAIN + 2, 2 * LONGEST_CHAIN + 5])
def test_the_newest_checkpoints_can_be_read_however_many_were_pruned(rounds: int, tmp_path: Path) -> None:
    held = write_rounds(tmp_path, rounds)
    files = checkpoint_files(tmp_path)
    for path in files[-3:]:
        assert_holds(path, held[checkpoints.round_of(path)])
    assert len(files) <= 2 * (LONGEST_CHAIN + 1) + 3
    checkpoints.keep_newest(tmp_path, 1)
    assert_holds(checkpoint_files(tmp_path)[-1], held[-1])


@pytest.mark.parametrize("broken", range(6))
def test_a_damaged_or_lost_file_of_a_chain_leaves_those_before_it(broken: int, tmp_path: Path) -> None:
    held = write_rounds(tmp_path, 6)
    files = checkpoint_files(tmp_path)
    assert len(files) == 6  # all build on the first
    if broken % 2:
        files[broken].unlink()
    else:
        files[broken].write_bytes(files[broken].read_bytes()[:-1])
    for number, path in enumerate(files):
        if number < broken:
            assert_holds(path, held[number])
        elif path.exists():
            with pytest.raises(checkpoints.DamagedError, match="builds on" if number > broken else "cut off"):
                read_checkpoint(path)


def test_a_damaged_whole_checkpoint_leaves_the_chain_before_it(tmp_path: Path) -> None:
    held = write_rounds(tmp_path, LONGEST_CHAIN + 8)
    files = checkpoint_files(tmp_path)
    whole = [path for path in files if ".after-" not in path.name]
    assert len(whole) == 2
    whole[-1].write_bytes(b"")
    before = files[files.index(whole[-1]) - 1] if files.index(whole[-1]) else whole[0]
    assert_holds(before, held[checkpoints.round_of(before)])


@pytest.mark.parametrize("fail_at", [*range(1, 9), *range(4 * LONGEST_CHAIN, 4 * LONGEST_CHAIN + 8)])
def test_a_process_that_dies_at_any_call_of_a_save_leaves_a_chain_that_can_be_read(
    fail_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DiedError(BaseException):
        pass

    calls = 0

    def counted(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fail_at:
                raise DiedError
            return real(*args, **kwargs) if real is not os.fsync else None

        return call

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace", "unlink"):
            patch.setattr(os, name, counted(getattr(os, name)))
        with pytest.raises(DiedError):
            write_rounds(tmp_path, 2 * LONGEST_CHAIN)
    saved = list(checkpoint_files(tmp_path))
    if saved:
        last = checkpoints.round_of(saved[-1])
        (tmp_path / "other").mkdir()
        assert_holds(saved[-1], write_rounds(tmp_path / "other", last + 1)[-1])
    assert saved or fail_at <= 3


@pytest.mark.parametrize("whose", [None, (np.arange(3),) * 2, ("a", "b", "c"), (np.arange(9),) * 3])
def test_changes_of_another_form_are_damaged(whose: Any, tmp_path: Path) -> None:
    write_rounds(tmp_path, 1)
    rows = ClientStore(ONE, NUMBER).all_rows()
    changes = Snapshot(rows.state, [], whose, whole=False)
    path = write_checkpoint(tmp_path, Checkpoint(1, {}, Server(changes, None), 0))
    with pytest.raises(checkpoints.DamagedError, match="does not fit"):
        read_checkpoint(path)


def test_a_checkpoint_that_claims_to_build_on_a_later_one_is_damaged(tmp_path: Path) -> None:
    data = checkpoints.to_bytes(Checkpoint(3, {}, None, 3))
    with pytest.raises(checkpoints.DamagedError):
        checkpoints.from_bytes(data)
