"""Writes a run folder while a run goes on."""

import dataclasses
import io
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.core.config import ExperimentConfig, to_dict
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.files import replace_file
from fedpohcs.core.locks import FolderLock
from fedpohcs.core.sampling import sample_interval
from fedpohcs.core.types import RoundRecord, RoundTiming
from fedpohcs.runs.keeping import LAST, policy_file
from fedpohcs.runs.layout import (
    ALL_COLUMNS,
    BAD_REPLY,
    FINETUNED,
    HELD_OUT,
    PHASES,
    POLICY_ROUND,
    ROUND_COLUMNS,
    SAMPLE_COLUMNS,
    SCORES,
    TABLES,
    is_run,
    round_columns,
)
from fedpohcs.runs.loading import read_config, read_origin, read_rounds
from fedpohcs.runs.origin import describe_origin

MOST_DIGITS = 18  # of a round
LONGEST_HEADER = 1000  # characters


class RunFolder:
    """Writes a run. Made by `create` or `reopen`; a round is in the files when `append` returns.

    It holds a lock on the folder until `close`, or until its process ends.
    """

    _lock: FolderLock | None = None

    def __init__(self, path: Path, config: ExperimentConfig) -> None:
        self.path = path
        self.config = config
        self._lock = _locked(path)
        self._warned: set[str] = set()
        self._columns = _round_columns(path)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock. May be called twice."""
        if self._lock is not None:
            self._lock.release()
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
            _locked(path).release()  # refuse to replace a run that another process writes
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

    def note_devices(self, devices: str) -> None:
        """Add the devices that this part of the run is made on to `origin.json`; a resumed run may have several."""
        path = self.path / "origin.json"
        origin = read_origin(path)
        stored = origin.get("devices")
        known = stored if isinstance(stored, list) else []  # runs of earlier versions have none
        if devices not in known:
            replace_file(path, _json({**origin, "devices": [*known, devices]}).encode())

    def append(self, record: RoundRecord) -> None:
        """Write one round. `rounds.csv` comes last: a round is complete when it is listed there."""
        self._append("clients", _client_rows(record))
        self._append("timings", [_timing_row(record)])
        figures = round_figures(record, self.config)
        self._append("rounds", [[figures[name] for name in self._columns]])

    def _append(self, table: str, rows: Iterable[Iterable[object]]) -> None:
        path = self.path / f"{table}.csv"
        text = "".join(",".join(map(_cell, row)) + "\n" for row in rows)
        if not path.exists():  # the file was removed; write the later rounds
            if table not in self._warned:
                warnings.warn(f"{path} has vanished; a new one is begun", stacklevel=3)
                self._warned.add(table)
            text = ",".join(self._columns if table == "rounds" else TABLES[table]) + "\n" + text
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

    def done_rounds(self) -> list[dict[str, Any]]:
        """The figures of all rounds that are complete."""
        table = read_rounds(self.path)
        return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]

    def save_policy(self, arrays: Mapping[str, np.ndarray], round_number: int, which: str = LAST) -> None:
        """Write the named arrays of a policy, and of the clients' filters, to `policy.npz` or below `policies`."""
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **arrays, **{POLICY_ROUND: np.array(round_number)})
        path = self.path / policy_file(which)
        path.parent.mkdir(exist_ok=True)
        replace_file(path, data.getvalue())


def _locked(path: Path) -> FolderLock:
    return FolderLock(path, text=f"run (={str(path)!r})")


def _round_columns(path: Path) -> tuple[str, ...]:
    """The columns of `rounds.csv`, which a run goes on with: those of release 0.1, of simulated time, or the usual."""
    try:
        with (path / "rounds.csv").open(encoding="utf-8") as file:
            header = file.readline(LONGEST_HEADER)
    except (OSError, UnicodeDecodeError):
        return ROUND_COLUMNS  # what cannot be read is refused where it is read
    known = {",".join(columns): columns for columns in ALL_COLUMNS}
    return known.get(header.strip(), ROUND_COLUMNS)


def _round_ends(data: bytes) -> dict[int, int]:
    """Position in a table after the last complete row of each round, by round."""
    ends, place = {}, 0
    for line in data.splitlines(keepends=True):
        place += len(line)
        number, _, _ = line.partition(b",")
        if number.isdigit() and len(number) <= MOST_DIGITS and line.endswith(b"\n"):
            ends[int(number)] = place
    return ends


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
        (path / f"{name}.json").write_text(_json(values), encoding="utf-8", newline="\n")
    timed, sampled = config.time.model != "none", config.federation.evaluated_clients is not None
    tables = {**TABLES, "rounds": round_columns(timed=timed, sampled=sampled)}
    for name, columns in tables.items():
        (path / f"{name}.csv").write_text(",".join(columns) + "\n", encoding="utf-8", newline="\n")


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


def _cell(value: object) -> str:
    """A cell of a table; floats have all digits, so that equal text means equal numbers."""
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    return str(value)


def round_figures(record: RoundRecord, config: ExperimentConfig) -> dict[str, Any]:
    """A row of `rounds.csv`, by column."""
    return {
        "round": int(record.round),
        **_returns(record, config),
        "train_steps": int(np.sum(record.train_steps)),
        "evaluation_steps": int(np.sum(record.evaluation.steps)),
        "num_rejected": len(record.rejected),
        "candidates": " ".join(map(str, record.candidates)),
        "selected": " ".join(map(str, record.selection.client)),
        "num_evaluated": len(record.evaluation.client),
        **_time_figures(record, config),
        **_sample_figures(record, config),
    }


def _time_figures(record: RoundRecord, config: ExperimentConfig) -> dict[str, Any]:
    """The simulated time at the end of a round, and the updates that came too late for it."""
    if config.time.model == "none":
        return {}
    timing = record.timing or RoundTiming(0.0, np.zeros(0))  # round 0 takes no time
    return {"simulated_seconds": float(timing.clock), "num_late": len(timing.late)}


def _sample_figures(record: RoundRecord, config: ExperimentConfig) -> dict[str, float]:
    """The interval of the mean return over all clients, where a sample of them is evaluated."""
    if config.federation.evaluated_clients is None:
        return {}
    limits = sample_interval(record.evaluation.mean_return, config.federation.num_clients)
    return dict(zip(SAMPLE_COLUMNS, limits, strict=True))


def _returns(record: RoundRecord, config: ExperimentConfig) -> dict[str, float]:
    """Returns over the clients that were evaluated; NaN without an evaluation."""
    returns = np.asarray(record.evaluation.mean_return, float)
    if not len(returns):
        return dict.fromkeys(SCORES, np.nan)
    weights = np.asarray(config.federation.client_weights or np.ones(config.federation.num_clients))
    weights = weights[record.evaluation.client]
    return {
        "mean_return": returns.mean(),
        "min_return": returns.min(),
        "max_return": returns.max(),
        "weighted_return": returns @ weights / weights.sum(),
        "worst_tenth": np.sort(returns)[: -(-len(returns) // 10)].mean(),
    }


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
        (FINETUNED, record.finetuned.client, {"mean_return": record.finetuned.mean_return}),
    )
    for role, clients, metrics in (*tables, *_timing_tables(record)):
        for metric, values in metrics.items():
            for client, value in zip(clients, values, strict=True):
                yield int(record.round), int(client), role, metric, float(value)
    for bad in record.bad_replies:
        metric = "/".join(filter(None, (bad.phase, bad.rule, bad.array)))
        yield int(record.round), bad.client, BAD_REPLY, metric, 1.0


def _timing_tables(record: RoundRecord) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Rows of clients by role, in simulated time."""
    timing = record.timing
    if timing is None:
        return
    seconds = np.where(np.isfinite(timing.seconds), timing.seconds, np.nan)
    yield "selected", record.selection.client, {"simulated_seconds": seconds}
    yield "late", timing.late, {"late": np.ones(len(timing.late))}
    yield "unavailable", timing.unavailable, {"unavailable": np.ones(len(timing.unavailable))}
    yield "arrived", timing.arrived, {"delay": timing.delay}


def _timing_row(record: RoundRecord) -> list[object]:
    seconds = {"total": sum(record.seconds.values()), **record.seconds}
    return [int(record.round), *(float(seconds.get(phase, 0.0)) for phase in PHASES)]
