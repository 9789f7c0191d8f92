"""A run on disk: plain files that are written during training and read by the analysis.

`config.json`, `rounds.csv` and `clients.csv` are pure functions of the config, so two runs can be compared byte by
byte. Facts that depend on the machine are in separate files, `origin.json` and `timings.csv`.
"""

import dataclasses
import fcntl
import io
import json
import os
import platform
import subprocess
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpohcs.core.array_rules import LARGEST_RETURN
from fedpohcs.core.config import ExperimentConfig, from_dict, to_dict
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.files import replace_file
from fedpohcs.core.reading import parse_json_object, read_settings
from fedpohcs.core.types import RoundRecord, Vector
from fedpohcs.core.version import __version__

ROUND_COLUMNS = (
    "round",
    "mean_return",  # over the clients, each counting the same
    "min_return",
    "max_return",
    "weighted_return",  # over the clients, weighted by q_n
    "train_steps",
    "evaluation_steps",
    "num_rejected",
    "candidates",  # ids, joined by spaces
    "selected",
)
CLIENT_COLUMNS = ("round", "client", "role", "metric", "value")
PHASES = ("measure", "select", "train", "aggregate", "evaluate", "total")
TIMING_COLUMNS = ("round", *PHASES)
TABLES = {"rounds": ROUND_COLUMNS, "clients": CLIENT_COLUMNS, "timings": TIMING_COLUMNS}
FILTER_PREFIX = "filters/"  # of the arrays of policy.npz that belong to clients
BAD_REPLY = "bad-reply"  # role of a client whose reply was left out
HELD_OUT = "held-out"  # role of a client that is evaluated and never trains
LAST_ROUNDS = 10  # over which final returns are averaged
MOST_DIGITS = 18  # of a round
FEW_RETURNS, RETURNS_A_ROW = 2**16, 1000  # that a run may have: of all rounds and clients, by rows of clients.csv
MOST_RETURNS = 2**27  # in memory 1 GiB
_TEXT_COLUMNS = {"candidates", "selected", "role", "metric"}
_INTEGER_COLUMNS = {"round", "client", "train_steps", "evaluation_steps", "num_rejected"}
_REPORTED_PACKAGES = ("jax", "jaxlib", "optax", "numpy", "scipy", "numba")


class RunFolder:
    """Writes a run. Made by `create` or `reopen`; a round is in the files when `append` returns.

    It holds a lock on the folder until `close`, or until its process ends.
    """

    _lock: int | None = None

    def __init__(self, path: Path, config: ExperimentConfig) -> None:
        self.path = path
        self.config = config
        self._lock = _lock(path)
        self._warned: set[str] = set()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    __del__ = close

    @classmethod
    def reopen(cls, path: Path, rounds: int | None = None) -> "RunFolder":
        """Open a run that stopped, to continue it, if given up to another number of rounds."""
        path = Path(path)
        config = read_config(path)
        folder = cls(path, config)
        if rounds is not None and rounds != config.rounds:
            last = folder.last_round()
            require(rounds >= last, "rounds", rounds, f"must not be below the {last} rounds that are there")
            folder.config = dataclasses.replace(config, rounds=rounds)
            replace_file(path / "config.json", _json(to_dict(folder.config)).encode())
        return folder

    @classmethod
    def create(cls, path: Path, config: ExperimentConfig, overwrite: bool = False) -> "RunFolder":
        """Make the folder with its config, origin and empty tables, completely or not at all."""
        path = Path(path)
        check_free(path, overwrite)
        if is_run(path):
            os.close(_lock(path))  # refuse to replace a run that another process writes
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as scratch:
                fresh = Path(scratch) / "run"
                _write_start(fresh, config)
                if path.exists():
                    path.rename(Path(scratch) / "old")  # deleted with the scratch folder
                fresh.rename(path)
        except OSError as error:
            raise UserError(f"out (={str(path)!r}) cannot be written: {error.strerror}.") from error
        return cls(path, config)

    def append(self, record: RoundRecord) -> None:
        """Write one round. `rounds.csv` comes last: a round is complete when it is listed there."""
        self._append("clients", _client_rows(record))
        self._append("timings", [_timing_row(record)])
        self._append("rounds", [_round_row(record, self.config)])

    def _append(self, table: str, rows: Iterable[Iterable[object]]) -> None:
        path = self.path / f"{table}.csv"
        text = "".join(",".join(map(_cell, row)) + "\n" for row in rows)
        if not path.exists():  # the file was removed; write the later rounds
            if table not in self._warned:
                warnings.warn(f"{path} has vanished; a new one is begun", stacklevel=3)
                self._warned.add(table)
            text = ",".join(TABLES[table]) + "\n" + text
        try:
            with path.open("a", encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError as error:
            remedy = "Rounds up to the last checkpoint are safe: fedpohcs resume goes on from there."
            raise UserError(f"{path} cannot be written ({len(text)} bytes): {error.strerror}. {remedy}") from error

    def last_round(self) -> int:
        """The last round that is complete; -1 if there is none."""
        ends = _round_ends(self._table_bytes("rounds"))
        return max(ends, default=-1)

    def cut_after(self, round_number: int) -> None:
        """Delete the rows of later rounds, which are run again."""
        for name in TABLES:
            data = self._table_bytes(name)
            ends = _round_ends(data)
            header = data.find(b"\n") + 1
            os.truncate(
                self.path / f"{name}.csv",
                max((end for number, end in ends.items() if number <= round_number), default=header),
            )

    def _table_bytes(self, table: str) -> bytes:
        try:
            return (self.path / f"{table}.csv").read_bytes()
        except OSError as error:
            reason = f"{table}.csv cannot be read: {error.strerror}."
            raise UserError(f"run (={str(self.path)!r}) cannot go on: {reason}") from error

    def save_policy(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the named arrays of a policy, and of the clients' filters, to `policy.npz`."""
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **arrays)
        replace_file(self.path / "policy.npz", data.getvalue())


def _lock(path: Path) -> int:
    """Lock the folder; the system releases the lock when the process ends."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UserError(f"run (={str(path)!r}) is being written by another process. Wait for it or stop it.") from error
    except OSError as error:  # some network file systems have no locks
        warnings.warn(f"{path} cannot be locked ({error.strerror}); let no other process write it", stacklevel=3)
    return descriptor


def _round_ends(data: bytes) -> dict[int, int]:
    """Position in a table after the last complete row of each round, by round."""
    ends, place = {}, 0
    for line in data.splitlines(keepends=True):
        place += len(line)
        number, _, _ = line.partition(b",")
        if number.isdigit() and len(number) <= MOST_DIGITS and line.endswith(b"\n"):
            ends[int(number)] = place
    return ends


def is_run(path: Path) -> bool:
    """Whether this folder was made by `RunFolder.create`."""
    return all((path / name).is_file() for name in ("config.json", "origin.json", "rounds.csv"))


def check_free(path: Path, overwrite: bool = False) -> None:
    """Refuse a folder whose content a new run would damage."""
    name = f"out (={str(path)!r})"
    try:
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from error
    if not is_run(path):
        raise UserError(f"{name} exists and is not a run. Name another folder.")
    if not overwrite:
        raise UserError(f"{name} already holds a run. Name another folder, or replace it with --overwrite.")


def _write_start(path: Path, config: ExperimentConfig) -> None:
    path.mkdir()
    for name, values in (("config", to_dict(config)), ("origin", describe_origin())):
        (path / f"{name}.json").write_text(_json(values), encoding="utf-8")
    for name, columns in TABLES.items():
        (path / f"{name}.csv").write_text(",".join(columns) + "\n", encoding="utf-8")


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


def _cell(value: object) -> str:
    """A cell of a table; floats have all digits, so that equal text means equal numbers."""
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    return str(value)


def _round_row(record: RoundRecord, config: ExperimentConfig) -> list[object]:
    return [
        int(record.round),
        *_return_cells(record, config),
        int(np.sum(record.train_steps)),
        int(np.sum(record.evaluation.steps)),
        len(record.rejected),
        " ".join(map(str, record.candidates)),
        " ".join(map(str, record.selection.client)),
    ]


def _return_cells(record: RoundRecord, config: ExperimentConfig) -> list[float]:
    """Mean, least, largest and weighted return; NaN without an evaluation."""
    returns = np.asarray(record.evaluation.mean_return, float)
    if not len(returns):
        return [np.nan] * 4
    weights = np.asarray(config.federation.client_weights or np.ones(config.federation.num_clients))
    weights = weights[record.evaluation.client]
    return [returns.mean(), returns.min(), returns.max(), returns @ weights / weights.sum()]


def _client_rows(record: RoundRecord) -> Iterator[tuple[object, ...]]:
    returns = record.evaluation.mean_return
    tables = (
        ("asked", record.upload_bytes, {"upload_bytes": record.upload_bytes.values(), **record.asked_costs}),
        ("candidate", record.candidates, record.selection.scores),
        ("capped", record.capped, {"capped": np.ones(len(record.capped))}),
        ("selected", record.selection.client, {**record.updates_info, "steps": record.train_steps}),
        ("rejected", record.rejected, {"rejected": np.ones(len(record.rejected))}),
        ("evaluated", record.evaluation.client, {"mean_return": returns, **record.evaluation.info}),
        (HELD_OUT, record.held_out.client, {"mean_return": record.held_out.mean_return, **record.held_out.info}),
    )
    for role, clients, metrics in tables:
        for metric, values in metrics.items():
            for client, value in zip(clients, values, strict=True):
                yield int(record.round), int(client), role, metric, float(value)
    for bad in record.bad_replies:
        metric = "/".join(filter(None, (bad.phase, bad.rule, bad.array)))
        yield int(record.round), bad.client, BAD_REPLY, metric, 1.0


def _timing_row(record: RoundRecord) -> list[object]:
    seconds = {"total": sum(record.seconds.values()), **record.seconds}
    return [int(record.round), *(float(seconds.get(phase, 0.0)) for phase in PHASES)]


def describe_origin() -> dict[str, Any]:
    """The software and hardware of a run, without the names of machine and user."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "fedpohcs": __version__,
        **_describe_commit(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "packages": {name: metadata.version(name) for name in _REPORTED_PACKAGES},
    }


def _describe_commit() -> dict[str, Any]:
    """The commit of this source tree; None when the package is not run from its own repository."""
    here = str(Path(__file__).parent)

    def git(*arguments: str) -> str:
        command = ["git", "-C", here, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "storage.py")
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "."))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


@dataclass(frozen=True)
class Run:
    """A run read back. Tables are columns by name; ids count from 0."""

    path: Path
    config: ExperimentConfig
    origin: dict[str, Any]
    rounds: dict[str, NDArray[Any]]
    clients: dict[str, NDArray[Any]]
    timings: dict[str, NDArray[Any]]

    @property
    def complete(self) -> bool:
        """Whether all rounds of the config were run."""
        return len(self.rounds["round"]) == self.config.rounds + 1

    @cached_property
    def client_returns(self) -> Vector:
        """Mean return of every client after every round, [R + 1, N]; NaN where a client was not evaluated."""
        return self._returns("evaluated", 0, self.config.federation.num_clients)

    @cached_property
    def held_out_returns(self) -> Vector:
        """Mean return of every held-out client after every round, [R + 1, H]."""
        federation = self.config.federation
        return self._returns(HELD_OUT, federation.num_clients, federation.held_out_clients)

    def _returns(self, role: str, first: int, number: int) -> Vector:
        """Mean return per round and client in a role, whose ids start at `first`."""
        table = self.clients
        rows = (table["role"] == role) & (table["metric"] == "mean_return")
        returns = np.full((len(self.rounds["round"]), number), np.nan)
        returns[table["round"][rows], table["client"][rows] - first] = table["value"][rows]
        return returns

    @cached_property
    def final_returns(self) -> Vector:
        """Mean return of every client over the last rounds, [N]; NaN for a client never evaluated in them."""
        return _last_known_mean(self.client_returns)

    @cached_property
    def final_held_out_returns(self) -> Vector:
        """Mean return of every held-out client over the last rounds, [H]."""
        return _last_known_mean(self.held_out_returns)

    @cached_property
    def times_selected(self) -> NDArray[np.int64]:
        """How often each client was selected, [N]."""
        chosen = np.array(" ".join(self.rounds["selected"]).split(), dtype=int)
        return np.bincount(chosen, minlength=self.config.federation.num_clients)

    @cached_property
    def bad_replies(self) -> Mapping[str, int]:
        """Number of replies that were left out, by phase and rule: `{"train, finite": 2}`."""
        metrics = self.clients["metric"][self.clients["role"] == BAD_REPLY].tolist()
        return Counter(", ".join(metric.split("/", 2)[:2]) for metric in metrics)


def _last_known_mean(returns: Vector) -> Vector:
    """Mean over the last rounds by client, without NaN."""
    last = returns[-LAST_ROUNDS:]
    known = ~np.isnan(last)
    mean = np.full(last.shape[1], np.nan)
    return np.divide(np.where(known, last, 0).sum(0), known.sum(0), out=mean, where=known.any(0))


def read_config(path: Path) -> ExperimentConfig:
    """The config of a run folder."""
    if not is_run(path):
        raise UserError(f"run (={str(path)!r}) is not a run folder: it lacks config.json, origin.json or rounds.csv.")
    try:
        return from_dict(parse_json_object(read_settings(path / "config.json")))
    except (UserError, ValueError, TypeError, OSError) as error:
        raise UserError(f"run (={str(path)!r}) cannot be read: config.json: {error}") from error


def load_run(path: Path) -> Run:
    """Read a run folder. A round that was cut off while it was written is left out."""
    path = Path(path)
    config = read_config(path)
    try:
        origin = _read_origin(path / "origin.json")
        rounds = _read_table(path / "rounds.csv", ROUND_COLUMNS)
        num_rounds = len(rounds["round"])
        if num_rounds == 0:
            raise UserError("it holds no rounds yet.")
        clients = _until(_read_table(path / "clients.csv", CLIENT_COLUMNS), num_rounds)
        timings = _by_round(_read_table(path / "timings.csv", TIMING_COLUMNS), num_rounds)
        _check_rounds(rounds, config)
        _check_clients(clients, config)
        _check_size(num_rounds, len(clients["round"]), config)
    except (UserError, ValueError, OverflowError, OSError) as error:
        raise UserError(f"run (={str(path)!r}) cannot be read: {error}") from error
    return Run(path, config, origin, _filled(rounds), clients, timings)


def _read_origin(path: Path) -> dict[str, Any]:
    """What `describe_origin` wrote, as far as it is there."""
    try:
        return parse_json_object(read_settings(path))
    except ValueError as error:
        raise UserError(f"{path.name}: {error}") from error


def _check_rounds(rounds: dict[str, NDArray[Any]], config: ExperimentConfig) -> None:
    """Refuse rounds that do not count from 0, absurd returns, and ids of clients that the run does not have."""
    if not np.array_equal(rounds["round"], np.arange(len(rounds["round"]))):
        raise UserError("rounds.csv must have the rounds 0, 1, 2 and so on.")
    n = config.federation.num_clients
    for name in ("mean_return", "min_return", "max_return", "weighted_return"):
        if (np.abs(rounds[name]) > LARGEST_RETURN).any():
            raise UserError(f"rounds.csv must have no {name} beyond {LARGEST_RETURN:g}.")
    for name in ("candidates", "selected"):
        ids = np.array(" ".join(rounds[name]).split(), np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < n:
            raise UserError(f"rounds.csv must name {name} from 0 to {n - 1}, as the config has {n} clients.")


def _check_clients(clients: dict[str, NDArray[Any]], config: ExperimentConfig) -> None:
    """Refuse ids of clients that the run does not have, and rounds before the first."""
    n, held_out = config.federation.num_clients, config.federation.held_out_clients
    is_held_out = clients["role"] == HELD_OUT
    low, high = np.where(is_held_out, n, 0), np.where(is_held_out, n + held_out, n)
    known = (clients["client"] >= low) & (clients["client"] < high)
    known |= clients["role"] == BAD_REPLY  # anybody can send one
    if not known.all():
        wrong = clients["client"][~known][0]
        raise UserError(f"clients.csv names client {wrong}, but the config has {n} clients and {held_out} held out.")
    if (clients["round"] < 0).any():
        raise UserError("clients.csv must have no round below 0.")


def _check_size(num_rounds: int, num_rows: int, config: ExperimentConfig) -> None:
    """Refuse a small folder that announces so many clients and rounds that its returns would fill the memory."""
    announced = num_rounds * (config.federation.num_clients + config.federation.held_out_clients)
    most = min(MOST_RETURNS, FEW_RETURNS + RETURNS_A_ROW * num_rows)
    if announced > most:
        raise UserError(
            f"it has {announced} rounds times clients, more than {most} for {num_rows} rows of clients.csv."
        )


def _by_round(table: dict[str, NDArray[Any]], num_rounds: int) -> dict[str, NDArray[Any]]:
    """One row for each round; NaN where the table has none, because the file was removed or is damaged."""
    rows = (table["round"] >= 0) & (table["round"] < num_rounds)
    columns = {name: np.full(num_rounds, np.nan) for name in table if name != "round"}
    for name, column in columns.items():
        column[table["round"][rows]] = table[name][rows]
    return {"round": np.arange(num_rounds), **columns}


def _filled(rounds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Fill rounds without evaluation with the returns of the previous evaluation."""
    evaluated = ~np.isnan(rounds["mean_return"])
    latest = np.maximum.accumulate(np.where(evaluated, np.arange(len(evaluated)), 0))
    return {name: column[latest] if name.endswith("_return") else column for name, column in rounds.items()}


def _until(table: dict[str, NDArray[Any]], num_rounds: int) -> dict[str, NDArray[Any]]:
    keep = table["round"] < num_rounds
    return {name: column[keep] for name, column in table.items()}


def _read_table(path: Path, columns: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Columns by name. All cells are split at once: a report reads hundreds of thousands of rows."""
    text = path.read_text(encoding="utf-8")
    header, _, body = text[: text.rfind("\n") + 1].partition("\n")  # text after the last line end is an incomplete row
    if header != ",".join(columns):
        raise UserError(f"{path.name} must start with the columns {','.join(columns)}.")
    if body.count(",") != body.count("\n") * (len(columns) - 1):
        raise UserError(f"{path.name} must have {len(columns)} columns in every row.")
    cells = body.replace("\n", ",").split(",")[:-1]
    return {
        name: np.array(cells[index :: len(columns)], dtype=_column_type(name)) for index, name in enumerate(columns)
    }


def _column_type(name: str) -> type:
    if name in _TEXT_COLUMNS:
        return np.str_
    return np.int64 if name in _INTEGER_COLUMNS else np.float64


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders among `paths` and below them, in order, each once."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        runs = [path] if is_run(path) else sorted(file.parent for file in path.rglob("config.json"))
        runs = [run for run in runs if is_run(run)]
        if not runs:
            raise UserError(f"run (={str(path)!r}) is not a run folder, and there is none in it.")
        found.update({run.resolve(): run for run in runs})
    return list(found.values())
