"""Checkpoints: everything that a run needs to continue. No pickle: a file can name types but cannot run code.

A file is one line that names the format, the SHA-256 of the rest and its length; one line of JSON with the config, the
round and the shape of the state; then the bytes of its arrays. It appears under its name only when it is complete.

Where few clients act in a round, a file has the state of those that changed since another one, which its name tells:
`round-000012.after-000011.ckpt`. The file of round 11 is kept as long as it is needed.
"""

import hashlib
import json
import math
import os
import queue
import re
import sys
import threading
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedpohcs.core.config import ExperimentConfig, flatten, from_dict, to_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.files import replace_file
from fedpohcs.core.moved import new_name
from fedpohcs.core.registries import STORED_TYPES
from fedpohcs.core.types import ServerState
from fedpohcs.runs.policy import PLAIN_KINDS

FORMAT = "fedpohcs-checkpoint-1"
NAME = re.compile(r"round-(\d{6,})(?:\.after-(\d{6,}))?\.ckpt")
NUM_KEPT = 3
SERVER_STATE_NAMES = ("server-state", "fedpohcs.types:ServerState")  # the second one in release 0.1
FREE_KEYS = frozenset({"rounds"})
"""Settings that may differ between a checkpoint and the run that continues it: no round depends on them."""


RENAMED_TYPES = {
    "fedpohcs.deploy.member:Kept": "kept-membership",
    "fedpohcs.execution.clients:Asked": "play-order",
    "fedpohcs.execution.clients:ClientState": "client-state",
    "fedpohcs.experiment:Saved": "saved",
    "fedpohcs.selection:OnePhaseState": "one-phase-state",
}
"""Types that have another name, or a module that became a package, since release 0.1 stored where they are defined."""


class Checkpoint(NamedTuple):
    """The state after a round."""

    round: int
    config: dict[str, Any]
    state: Any  # named tuples, tuples, lists, dicts, None, numbers, text and arrays
    after: int | None = None  # round of the checkpoint that has the state of clients that did not change since


PLAIN_TYPE = re.compile(rf"[<>|][{PLAIN_KINDS}]\d{{1,3}}")  # of an array, as NumPy writes it
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What Python raises for content that is not as it was written, although its checksum fits: anybody can compute one."""


class DamagedError(Exception):
    """A file whose content differs from what was written."""


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """The whole file."""
    arrays: list[np.ndarray] = []
    skeleton = _pack(checkpoint.state, arrays)
    shapes = [[array.dtype.str, array.shape] for array in arrays]
    head = {"round": checkpoint.round, "config": checkpoint.config, "state": skeleton, "arrays": shapes}
    head |= {} if checkpoint.after is None else {"after": checkpoint.after}
    body = b"".join([json.dumps(head).encode(), b"\n", *(array.tobytes() for array in arrays)])
    return f"{FORMAT} {hashlib.sha256(body).hexdigest()} {len(body)}\n".encode() + body


def from_bytes(data: bytes) -> Checkpoint:
    """Read a checkpoint back; `DamagedError` if a single byte differs from what was written."""
    first, _, body = data.partition(b"\n")
    words = first.decode("ascii", "replace").split()
    if len(words) != 3 or words[0] != FORMAT:
        raise DamagedError(f"does not begin with {FORMAT}")
    if words[2] != str(len(body)) or words[1] != hashlib.sha256(body).hexdigest():
        raise DamagedError("is cut off or altered")
    text, _, raw = body.partition(b"\n")
    try:
        head = json.loads(text)
        state = _unpack(head["state"], _read_arrays(head["arrays"], raw))
        return _checked(Checkpoint(head["round"], head["config"], state, head.get("after")))
    except MALFORMED as error:
        raise DamagedError(f"has no sound content ({type(error).__name__})") from error


def _read_arrays(described: Sequence[tuple[str, Sequence[int]]], raw: bytes) -> list[np.ndarray]:
    """The arrays one after the other, of plain numbers alone."""
    arrays, start = [], 0
    for dtype, shape in described:
        count = math.prod(shape)
        if not PLAIN_TYPE.fullmatch(dtype) or min(shape, default=0) < 0:
            raise ValueError("an array holds no plain numbers")
        arrays.append(
            np.frombuffer(raw, dtype, count, start).reshape(shape).copy() if count else np.empty(shape, dtype)
        )
        start += arrays[-1].nbytes
    return arrays


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    if type(checkpoint.round) is not int or not isinstance(checkpoint.config, dict):
        raise ValueError("a checkpoint needs a round and a config")
    if checkpoint.after is not None and not (
        type(checkpoint.after) is int and 0 <= checkpoint.after < checkpoint.round
    ):
        raise ValueError("a checkpoint can only build on an earlier one")
    return checkpoint


@runtime_checkable
class Part(Protocol):
    """A part of a state that may hold only what has changed since an earlier checkpoint."""

    @property
    def whole(self) -> bool:
        """Whether it holds everything."""
        ...

    def followed_by(self, later: Any) -> Any:
        """This part, which is whole, with the changes of a later one."""
        ...


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint of a run, completed by those that it builds on; `DamagedError` if one of them is not sound."""
    newest = from_bytes(path.read_bytes())
    links = [newest]
    while (after := links[-1].after) is not None:
        found = [file for file in checkpoint_files(path.parent.parent) if round_of(file) == after]
        if not found:
            raise DamagedError(f"builds on the checkpoint of round {after}, which is missing")
        try:
            links.append(from_bytes(found[-1].read_bytes()))
        except DamagedError as error:
            raise DamagedError(f"builds on {found[-1].name}, which {error}") from error
        if links[-1].round != after:
            raise DamagedError(f"builds on {found[-1].name}, which is of another round")
    state = links[-1].state
    try:
        for link in reversed(links[:-1]):
            state = _completed(state, link.state)
    except MALFORMED as error:
        raise DamagedError(f"does not fit the checkpoints that it builds on ({type(error).__name__})") from error
    return newest._replace(state=state, after=None)


def is_whole(state: Any) -> bool:
    """Whether no part of a state holds only what has changed."""
    if isinstance(state, Part):
        return state.whole
    return not (isinstance(state, tuple) and hasattr(state, "_fields")) or all(map(is_whole, state))


def _completed(earlier: Any, later: Any) -> Any:
    """A later state, whose parts that hold only changes are completed from an earlier one."""
    if is_whole(later):
        return later
    if isinstance(later, Part):
        return earlier.followed_by(later)
    return type(later)(*map(_completed, earlier, later))


def stored_weight_bytes(folder: Path) -> float:
    """Size of the server's weights in the newest checkpoint of a run, read from its first lines; NaN without one."""
    for path in reversed(checkpoint_files(folder)):
        try:
            with path.open("rb") as file:
                file.readline()
                head = json.loads(file.readline())
            return _weight_bytes(head)
        except (OSError, *MALFORMED):  # being replaced, or damaged; the previous checkpoint has the same size
            continue
    return math.nan


def _weight_bytes(head: dict[str, Any]) -> float:
    server = next(_find(head["state"], SERVER_STATE_NAMES), None)
    if server is None:
        raise ValueError("there is no state of the server")
    used = _find(server["fields"][ServerState._fields.index("params")], {"array"})
    shapes = [head["arrays"][node["fields"]] for node in used]
    if not all(PLAIN_TYPE.fullmatch(kind) for kind, _ in shapes):
        raise ValueError("an array holds no plain numbers")
    return float(sum(np.dtype(kind).itemsize * math.prod(shape) for kind, shape in shapes))


def _find(tree: Any, kinds: Container[str]) -> Iterator[dict[str, Any]]:
    """The nodes of these types in a packed tree, from the root on; nothing within them."""
    if isinstance(tree, dict):
        if tree["type"] in kinds:
            yield tree
        elif isinstance(tree["fields"], list):
            tree = tree["fields"]
    if isinstance(tree, list):
        for inner in tree:
            yield from _find(inner, kinds)


def _pack(tree: Any, arrays: list[np.ndarray]) -> Any:
    """`tree` as JSON, with numbers in place of its arrays, which are put into `arrays`."""
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return {"type": _stored_name(type(tree)), "fields": [_pack(x, arrays) for x in tree]}
    if isinstance(tree, (tuple, list)):
        return {"type": type(tree).__name__, "fields": [_pack(x, arrays) for x in tree]}
    if isinstance(tree, dict):
        return {"type": "dict", "fields": [[_pack(key, arrays), _pack(x, arrays)] for key, x in tree.items()]}
    array = np.asarray(tree)
    if array.dtype.hasobject:
        raise TypeError(f"a checkpoint cannot hold a {type(tree).__name__}")
    arrays.append(array)
    return {"type": "array", "fields": len(arrays) - 1}


def _unpack(tree: Any, arrays: Sequence[np.ndarray]) -> Any:
    if not isinstance(tree, dict):
        return tree
    kind, fields = tree["type"], tree["fields"]
    if kind == "array":
        return arrays[fields]
    if kind == "dict":
        return {_unpack(key, arrays): _unpack(x, arrays) for key, x in fields}
    values = [_unpack(x, arrays) for x in fields]
    if kind == "list":
        return values
    return tuple(values) if kind == "tuple" else _named_tuple(kind)(*values)


def _stored_name(kind: type) -> str:
    """The name under which a named tuple is stored: the registered one, or the place where another type is defined."""
    source = f"{kind.__module__}:{kind.__qualname__}"
    for name in STORED_TYPES:
        if STORED_TYPES.source(name) == source:
            return name
    return f"optax:{kind.__qualname__}" if source.startswith("optax.") else source


def _named_tuple(name: str) -> Callable[..., Any]:
    """A type by its stored name: a registered one, one of Optax, or one of a module the program has loaded itself."""
    name = RENAMED_TYPES.get(name, name)
    if name in STORED_TYPES:
        return STORED_TYPES[name]
    module, _, path = name.partition(":")
    moved = new_name(module.removeprefix("fedpohcs."))  # release 0.1 stored the module of a type
    source = f"fedpohcs.{moved}:{path}" if moved and module.startswith("fedpohcs.") else name
    for known in STORED_TYPES:
        if STORED_TYPES.source(known) == source:
            return STORED_TYPES[known]
    kind: Any = import_module("optax") if module.partition(".")[0] == "optax" else sys.modules.get(module)
    for part in path.split("."):
        kind = getattr(kind, part, None)
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise UserError(f"checkpoint names the type {name!r}, which this program does not know.")
    return kind


def checkpoint_files(folder: Path) -> list[Path]:
    """All checkpoints of a run, oldest first."""
    found = [path for path in (folder / "checkpoints").glob("round-*.ckpt") if NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (round_of(path), path.name))


def round_of(path: Path) -> int:
    """The round of a checkpoint, from its name."""
    return _numbers(path)[0]


def _numbers(path: Path) -> tuple[int, int | None]:
    """The round of a checkpoint, and that of the one it builds on, from its name."""
    match = NAME.fullmatch(path.name)
    assert match is not None  # `checkpoint_files` gives no others
    return int(match[1]), int(match[2]) if match[2] else None


def checkpoint_name(round_number: int, after: int | None = None) -> str:
    """The name of the file of a round."""
    return f"round-{round_number:06d}" + ("" if after is None else f".after-{after:06d}") + ".ckpt"


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint completely or not at all, then delete the oldest ones."""
    place = folder / "checkpoints"
    place.mkdir(exist_ok=True)
    path = place / checkpoint_name(checkpoint.round, checkpoint.after)
    replace_file(path, to_bytes(checkpoint))
    for other in checkpoint_files(folder):
        if round_of(other) == checkpoint.round and other != path:
            other.unlink(missing_ok=True)
    keep_newest(folder, NUM_KEPT)
    return path


def keep_newest(folder: Path, count: int) -> None:
    """Delete all checkpoints except the newest ones, the newest two that are whole, and those that they build on.

    So a damaged file among changes leaves an earlier checkpoint to go on from. With a count of 1 one whole file is
    kept.
    """
    files = checkpoint_files(folder)
    whole = [path for path in files if _numbers(path)[1] is None]
    kept = {*files[-count:], *whole[-min(count, 2) :]}
    needed: set[int | None] = set()
    for path in reversed(files):
        number, after = _numbers(path)
        if path in kept or number in needed:
            needed.add(after)
        else:
            path.unlink(missing_ok=True)


def discard_after(folder: Path, round_number: int) -> None:
    """Delete the checkpoints of later rounds, on which no file of a run that goes on from here may build."""
    for path in checkpoint_files(folder):
        if round_of(path) > round_number:
            path.unlink(missing_ok=True)


def latest_checkpoint(folder: Path, config: ExperimentConfig, last_round: int) -> Checkpoint | None:
    """The newest checkpoint that is sound and not ahead of the tables, which end with `last_round`; None: no file.

    Warns of every damaged checkpoint that it skips. Raises if all are unusable, or if the settings differ.
    """
    problems = []
    for path in reversed(checkpoint_files(folder)):
        try:
            checkpoint = read_checkpoint(path)
        except (DamagedError, OSError) as error:
            problems.append(f"{path.name} {error}")
            warnings.warn(f"checkpoint {path} {error}; trying the one before", stacklevel=2)
            continue
        _check_config(path, checkpoint.config, config)
        if checkpoint.round <= last_round:
            return checkpoint
        problems.append(f"{path.name} is ahead of rounds.csv, which ends with round {last_round}")
    if problems:
        remedy = "Start the run anew with --overwrite."
        raise UserError(f"run (={str(folder)!r}) has no usable checkpoint: {'; '.join(problems)}. {remedy}")
    return None


def _check_config(path: Path, stored: dict[str, Any], config: ExperimentConfig) -> None:
    # Settings that came later than the checkpoint were at their default, and old keys have present names.
    try:
        known = from_dict(stored)
    except (UserError, TypeError, ValueError) as error:
        raise UserError(f"checkpoint (={str(path)!r}) has a config that cannot be read: {error}") from error
    wanted, found = (flatten(json.loads(json.dumps(to_dict(c)))) for c in (config, known))
    differing = [
        f"{key} ({found.get(key)!r} there, {wanted.get(key)!r} here)"
        for key in sorted(wanted.keys() | found.keys())
        if key not in FREE_KEYS and wanted.get(key) != found.get(key)
    ]
    if differing:
        raise UserError(f"checkpoint (={str(path)!r}) belongs to another config: {', '.join(differing)}.")


class CheckpointWriter:
    """Writes checkpoints in order on a separate thread, so that the next round need not wait for the disk.

    At most one waits while another is written. A failure is raised by the next call.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._waiting: queue.Queue[Checkpoint | None] = queue.Queue(maxsize=1)
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._write_all, name="checkpoints", daemon=True)
        self._thread.start()

    def submit(self, checkpoint: Checkpoint) -> None:
        """Queue a checkpoint for writing. Its arrays must not change after this call."""
        self._raise_failure()
        self._waiting.put(checkpoint)

    def close(self) -> None:
        """Return when everything submitted is on disk."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()
        self._raise_failure()

    def _write_all(self) -> None:
        while (checkpoint := self._waiting.get()) is not None:
            if self._failure is None:
                try:
                    self._sync_tables()
                    write_checkpoint(self.folder, checkpoint)
                except Exception as error:  # raised again by the next call
                    self._failure = error

    def _sync_tables(self) -> None:
        """Flush the tables to disk, so that they are never older than the checkpoint."""
        for path in self.folder.glob("*.csv"):
            with suppress(FileNotFoundError), path.open("rb") as file:  # the next row begins a vanished table anew
                os.fsync(file.fileno())

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        if isinstance(self._failure, OSError):
            reason = self._failure.strerror or self._failure
            remedy = "The checkpoints before it are intact; free some space and use fedpohcs resume."
            raise UserError(f"run (={str(self.folder)!r}) cannot store a checkpoint: {reason}. {remedy}")
        raise self._failure
