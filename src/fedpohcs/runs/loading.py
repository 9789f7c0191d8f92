"""Reads run folders, which anybody may have written."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpohcs.core.array_rules import LARGEST_RETURN
from fedpohcs.core.config import MOST_LISTED, ExperimentConfig, from_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.reading import parse_json_object, read_settings
from fedpohcs.core.types import ClientIds, Vector
from fedpohcs.runs.layout import (
    ALL_COLUMNS,
    BAD_REPLY,
    CLIENT_COLUMNS,
    FINETUNED,
    HELD_OUT,
    ROUND_COLUMNS,
    SAMPLE_COLUMNS,
    SCORES,
    TIMING_COLUMNS,
    is_run,
)

LAST_ROUNDS = 10  # over which final returns are averaged
FEW_RETURNS, RETURNS_A_ROW = 2**16, 1000  # that a run may have: of all rounds and clients, by rows of clients.csv
MOST_RETURNS = 2**27  # in memory 1 GiB
_TEXT_COLUMNS = {"candidates", "selected", "role", "metric"}
_INTEGER_COLUMNS = {"round", "client", "train_steps", "evaluation_steps", "num_rejected", "num_evaluated", "num_late"}


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

    @cached_property
    def finetuned_returns(self) -> Vector | None:
        """Mean return of every client after fine-tuning, [N + H]; None: the run has none."""
        rows = (self.clients["role"] == FINETUNED) & (self.clients["metric"] == "mean_return")
        if not rows.any():
            return None
        federation = self.config.federation
        number = federation.num_clients + federation.held_out_clients
        returns = np.full(number, np.nan)
        returns[self.clients["client"][rows]] = self.clients["value"][rows]
        return returns

    def returns_in(self, round_number: int) -> tuple[ClientIds, Vector]:
        """The clients that were evaluated after a round, and the mean return of each."""
        table = self.clients
        rows = (table["role"] == "evaluated") & (table["metric"] == "mean_return") & (table["round"] == round_number)
        return table["client"][rows], table["value"][rows]

    def _returns(self, role: str, first: int, number: int) -> Vector:
        """Mean return per round and client in a role, whose ids start at `first`."""
        table = self.clients
        rows = (table["role"] == role) & (table["metric"] == "mean_return")
        returns = np.full((len(self.rounds["round"]), number), np.nan)
        returns[table["round"][rows], table["client"][rows] - first] = table["value"][rows]
        return returns

    def _final(self, role: str, first: int, number: int) -> Vector:
        """Mean return over the last rounds by client; NaN for a client never evaluated in them."""
        table, since = self.clients, len(self.rounds["round"]) - LAST_ROUNDS
        rows = (table["role"] == role) & (table["metric"] == "mean_return") & (table["round"] >= since)
        rows &= ~np.isnan(table["value"])
        client, value = table["client"][rows] - first, table["value"][rows]
        times = np.bincount(client, minlength=number)
        total = np.bincount(client, value, minlength=number)
        return np.divide(total, times, out=np.full(number, np.nan), where=times > 0)

    @cached_property
    def final_returns(self) -> Vector:
        """Mean return of every client over the last rounds, [N]; NaN for a client never evaluated in them."""
        return self._final("evaluated", 0, self.config.federation.num_clients)

    @cached_property
    def final_held_out_returns(self) -> Vector:
        """Mean return of every held-out client over the last rounds, [H]."""
        federation = self.config.federation
        return self._final(HELD_OUT, federation.num_clients, federation.held_out_clients)

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
        origin = read_origin(path / "origin.json")
        rounds = read_rounds(path)
        num_rounds = len(rounds["round"])
        if num_rounds == 0:
            raise UserError("it holds no rounds yet.")
        clients = _until(_read_table(path / "clients.csv", CLIENT_COLUMNS), num_rounds)
        timings = _by_round(read_timings(path), num_rounds)
        _check_rounds(rounds, config)
        _check_clients(clients, config)
        _check_size(num_rounds, len(clients["round"]), config)
    except (UserError, ValueError, OverflowError, OSError) as error:
        raise UserError(f"run (={str(path)!r}) cannot be read: {error}") from error
    return Run(path, config, origin, _filled(rounds), clients, timings)


def read_rounds(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a run's `rounds.csv`; release 0.1 has fewer, simulated time and sampled evaluations have more."""
    return _read_table(path / "rounds.csv", ROUND_COLUMNS, *ALL_COLUMNS)


def read_timings(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a run's `timings.csv`."""
    return _read_table(path / "timings.csv", TIMING_COLUMNS)


def read_origin(path: Path) -> dict[str, Any]:
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
    either = is_held_out | (clients["role"] == FINETUNED)
    low, high = np.where(is_held_out, n, 0), np.where(either, n + held_out, n)
    known = (clients["client"] >= low) & (clients["client"] < high)
    known |= clients["role"] == BAD_REPLY  # anybody can send one
    if not known.all():
        wrong = clients["client"][~known][0]
        raise UserError(f"clients.csv names client {wrong}, but the config has {n} clients and {held_out} held out.")
    if (clients["round"] < 0).any():
        raise UserError("clients.csv must have no round below 0.")


def _check_size(num_rounds: int, num_rows: int, config: ExperimentConfig) -> None:
    """Refuse a small folder that announces so many clients and rounds that its returns would fill the memory.

    Returns of large populations are never made a table of all rounds and clients.
    """
    number = config.federation.num_clients + config.federation.held_out_clients
    announced = number * num_rounds if number <= MOST_LISTED else 0
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
    return {name: column[latest] if name in (*SCORES, *SAMPLE_COLUMNS) else column for name, column in rounds.items()}


def _until(table: dict[str, NDArray[Any]], num_rounds: int) -> dict[str, NDArray[Any]]:
    keep = table["round"] < num_rounds
    return {name: column[keep] for name, column in table.items()}


def _read_table(path: Path, columns: tuple[str, ...], *others: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Columns by name. All cells are split at once: a report reads hundreds of thousands of rows."""
    text = path.read_text(encoding="utf-8")
    header, _, body = text[: text.rfind("\n") + 1].partition("\n")  # text after the last line end is an incomplete row
    columns = next((some for some in others if header == ",".join(some)), columns)
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
