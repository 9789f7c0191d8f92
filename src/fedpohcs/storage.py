"""A run on disk: plain files written while it trains, read by the analysis and by nothing else.

`config.json`, `rounds.csv` and `clients.csv` are pure functions of the config, so two runs can be compared byte by
byte. What depends on the machine is kept apart, in `origin.json` and `timings.csv`.
"""

import csv
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpohcs import __version__
from fedpohcs.config import ExperimentConfig, from_dict, to_dict
from fedpohcs.errors import UserError
from fedpohcs.types import Params, RoundRecord, Vector

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
LAST_ROUNDS = 10  # that count as the end of a run
_TEXT_COLUMNS = {"candidates", "selected", "role", "metric"}
_INTEGER_COLUMNS = {"round", "client", "train_steps", "evaluation_steps", "num_rejected"}
_REPORTED_PACKAGES = ("jax", "jaxlib", "optax", "numpy", "scipy", "numba")


class RunFolder:
    """The writer. Made by `create`; every round is on disk as soon as `append` returns."""

    def __init__(self, path: Path, config: ExperimentConfig) -> None:
        self.path = path
        self.config = config

    @classmethod
    def create(cls, path: Path, config: ExperimentConfig, overwrite: bool = False) -> "RunFolder":
        """Make the folder with its config, origin and empty tables; all of it or nothing."""
        path = Path(path)
        check_free(path, overwrite)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as scratch:
                fresh = Path(scratch) / "run"
                _write_start(fresh, config)
                if path.exists():
                    path.rename(Path(scratch) / "old")  # leaves with the scratch folder
                fresh.rename(path)
        except OSError as error:
            raise UserError(f"out (={str(path)!r}) cannot be written: {error.strerror}.") from error
        return cls(path, config)

    def append(self, record: RoundRecord) -> None:
        """Write one round. `rounds.csv` comes last: a round is complete when it is listed there."""
        _append(self.path / "clients.csv", _client_rows(record))
        _append(self.path / "timings.csv", [_timing_row(record)])
        _append(self.path / "rounds.csv", [_round_row(record, self.config)])

    def save_policy(self, params: Params) -> None:
        """Write every array of `params` to `policy.npz`, named by its place in the tree."""
        import jax

        leaves, _ = jax.tree_util.tree_flatten_with_path(params)
        names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
        arrays: dict[str, Any] = {name: np.asarray(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}
        unfinished = self.path / "policy.partial.npz"
        np.savez(unfinished, **arrays)
        unfinished.replace(self.path / "policy.npz")


def is_run(path: Path) -> bool:
    """Whether this folder was made by `RunFolder.create`."""
    return all((path / name).is_file() for name in ("config.json", "origin.json", "rounds.csv"))


def check_free(path: Path, overwrite: bool = False) -> None:
    """Refuse a place that a new run would damage."""
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
    _write_json(path / "config.json", to_dict(config))
    _write_json(path / "origin.json", describe_origin())
    for name, columns in (("rounds", ROUND_COLUMNS), ("clients", CLIENT_COLUMNS), ("timings", TIMING_COLUMNS)):
        (path / f"{name}.csv").write_text(",".join(columns) + "\n", encoding="utf-8")


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _append(path: Path, rows: Iterable[Iterable[object]]) -> None:
    text = "".join(",".join(map(_cell, row)) + "\n" for row in rows)
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)


def _cell(value: object) -> str:
    """Floats with every digit they have, so that equal text means equal numbers."""
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
    """Mean, least, largest and weighted return; not numbers where nobody was evaluated."""
    returns = np.asarray(record.evaluation.mean_return, float)
    if not len(returns):
        return [np.nan] * 4
    weights = np.asarray(config.federation.client_weights or np.ones(config.federation.num_clients))
    weights = weights[record.evaluation.client]
    return [returns.mean(), returns.min(), returns.max(), returns @ weights / weights.sum()]


def _client_rows(record: RoundRecord) -> Iterator[tuple[object, ...]]:
    returns = record.evaluation.mean_return
    tables = (
        ("candidate", record.candidates, record.selection.scores),
        ("selected", record.selection.client, {**record.updates_info, "steps": record.train_steps}),
        ("rejected", record.rejected, {"rejected": np.ones(len(record.rejected))}),
        ("evaluated", record.evaluation.client, {"mean_return": returns, **record.evaluation.info}),
    )
    for role, clients, metrics in tables:
        for metric, values in metrics.items():
            for client, value in zip(clients, values, strict=True):
                yield int(record.round), int(client), role, metric, float(value)


def _timing_row(record: RoundRecord) -> list[object]:
    seconds = {"total": sum(record.seconds.values()), **record.seconds}
    return [int(record.round), *(float(seconds.get(phase, 0.0)) for phase in PHASES)]


def describe_origin() -> dict[str, Any]:
    """Where and with what a run was made; nothing that names the machine or its user."""
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
        table = self.clients
        rows = (table["role"] == "evaluated") & (table["metric"] == "mean_return")
        returns = np.full((len(self.rounds["round"]), self.config.federation.num_clients), np.nan)
        returns[table["round"][rows], table["client"][rows]] = table["value"][rows]
        return returns

    @cached_property
    def final_returns(self) -> Vector:
        """Mean return of every client over the last rounds, [N]; NaN for a client never evaluated in them."""
        returns = self.client_returns[-LAST_ROUNDS:]
        known = ~np.isnan(returns)
        mean = np.full(returns.shape[1], np.nan)
        return np.divide(np.where(known, returns, 0).sum(0), known.sum(0), out=mean, where=known.any(0))

    @cached_property
    def times_selected(self) -> NDArray[np.int64]:
        """How often each client was selected, [N]."""
        chosen = np.array(" ".join(self.rounds["selected"]).split(), dtype=int)
        return np.bincount(chosen, minlength=self.config.federation.num_clients)


def load_run(path: Path) -> Run:
    """Read a run folder. A round that was cut off while it was written is left out."""
    path = Path(path)
    if not is_run(path):
        raise UserError(f"run (={str(path)!r}) is not a run folder: it lacks config.json, origin.json or rounds.csv.")
    try:
        config = from_dict(json.loads((path / "config.json").read_text(encoding="utf-8")))
        origin = json.loads((path / "origin.json").read_text(encoding="utf-8"))
        rounds = _read_table(path / "rounds.csv", ROUND_COLUMNS)
        clients = _read_table(path / "clients.csv", CLIENT_COLUMNS)
        timings = _read_table(path / "timings.csv", TIMING_COLUMNS)
    except (ValueError, TypeError, OSError) as error:
        raise UserError(f"run (={str(path)!r}) cannot be read: {error}") from error
    num_rounds = len(rounds["round"])
    if num_rounds == 0:
        raise UserError(f"run (={str(path)!r}) holds no rounds yet.")
    return Run(path, config, origin, rounds, _until(clients, num_rounds), _until(timings, num_rounds))


def _until(table: dict[str, NDArray[Any]], num_rounds: int) -> dict[str, NDArray[Any]]:
    keep = table["round"] < num_rounds
    return {name: column[keep] for name, column in table.items()}


def _read_table(path: Path, columns: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    if not rows or tuple(rows[0]) != columns:
        raise UserError(f"{path.name} must start with the columns {','.join(columns)}.")
    body = rows[1:]
    if body and len(body[-1]) != len(columns):
        del body[-1]
    return {
        name: np.array([row[index] for row in body], dtype=_column_type(name)) for index, name in enumerate(columns)
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
