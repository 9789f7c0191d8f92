"""Policies of runs that are running, stopped or done, as users name them: `runs/x`, `runs/x@best`, `runs/x@120`."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require_checkpoint
from fedpohcs.core.trees import named_arrays
from fedpohcs.runs.checkpoints import Checkpoint, DamagedError, checkpoint_files, read_checkpoint, round_of
from fedpohcs.runs.keeping import FOLDER, LAST, policy_file
from fedpohcs.runs.layout import POLICY_ROUND
from fedpohcs.runs.policy import DEFAULT_MEAN, DEFAULT_VARIANCE, default_moments, read_arrays
from fedpohcs.server.protocols import RemoteClients


class Stored(NamedTuple):
    """A policy of a run."""

    run: Path
    which: str = LAST

    def __str__(self) -> str:
        return f"{self.run}@{self.which}"


def find_stored(named: Path | str) -> Stored:
    """The run folder and the name after the last `@`; a folder whose own name has an `@` is taken as it is."""
    path = Path(named)
    before, at, which = str(named).rpartition("@")
    if path.exists() or not at:
        return Stored(path)
    if not (which == LAST or which.isdecimal() or re.fullmatch(r"best(:\w+)?", which)):
        raise UserError(f"run (={str(named)!r}) must end in @best, @best:COLUMN, @last or @ROUND after its folder.")
    return Stored(Path(before), which)


def stored_arrays(stored: Stored, config: ExperimentConfig) -> tuple[dict[str, np.ndarray], int]:
    """The arrays of a policy by name, with the filters of the clients, and its round."""
    arrays, round_number = _found_arrays(stored, config)
    if config.learner.filter_observations and default_moments(arrays) is None:
        arrays |= _last_filter(stored.run)
    return arrays, round_number


def require_filters(stored: Stored, arrays: dict[str, np.ndarray], config: ExperimentConfig) -> None:
    """Refuse a policy without the filters that its observations must pass: its actions would be wrong."""
    if config.learner.filter_observations and default_moments(arrays) is None:
        remedy = "On a device that took part: fedpohcs flower export OUTPUT"
        raise UserError(f"run (={str(stored)!r}) has no observation filters, its clients keep them. {remedy}")


def _last_filter(run: Path) -> dict[str, np.ndarray]:
    """The default filter of the last policy: a private fleet makes it once, at the end of the run."""
    last = _read_file(Stored(run)) or {}
    return {name: last[name] for name in (DEFAULT_MEAN, DEFAULT_VARIANCE) if name in last}


def _found_arrays(stored: Stored, config: ExperimentConfig) -> tuple[dict[str, np.ndarray], int]:
    kept = _read_file(stored)
    checkpoint = _read_checkpoint(stored) if kept is None or stored.which == LAST else None
    if checkpoint is not None and (kept is None or checkpoint.round > _round(kept, config)):
        return _from_checkpoint(checkpoint, config), checkpoint.round
    if kept is None and stored.which.isdecimal() and int(stored.which) == 0:
        return _initial_policy(config), 0
    if kept is None:
        there = ", ".join(f"@{which}" for which in _names(stored.run)) or "none yet"
        raise UserError(f"run (={str(stored)!r}) has no such policy. There are: {there}.")
    return kept, _round(kept, config)


def _initial_policy(config: ExperimentConfig) -> dict[str, np.ndarray]:
    """The policy of round 0, made again as the run made it."""
    from fedpohcs.runs.experiment import start_training

    training = start_training(config)
    try:
        next(training.remaining_rounds())  # the evaluation of round 0, which the filters take in
        return dict(training.stored_policy())
    finally:
        training.executor.close()


def _round(kept: dict[str, np.ndarray], config: ExperimentConfig) -> int:
    """The round of a stored policy; release 0.1 stored the last one alone, without its number."""
    stored = kept.get(POLICY_ROUND)
    return int(stored) if stored is not None and stored.shape == () else config.rounds


def _read_file(stored: Stored) -> dict[str, np.ndarray] | None:
    path = stored.run / policy_file(stored.which)
    if not path.is_file():
        return None
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        name = path.relative_to(stored.run)
        raise UserError(f"run (={str(stored.run)!r}) has a {name} that cannot be read: {error}") from error


def _read_checkpoint(stored: Stored) -> Checkpoint | None:
    """The newest sound checkpoint, or that of the wanted round."""
    if not (stored.which == LAST or stored.which.isdecimal()):
        return None
    files = checkpoint_files(stored.run)
    if stored.which != LAST:
        files = [path for path in files if round_of(path) == int(stored.which)]
    for path in reversed(files):
        try:
            return read_checkpoint(path)
        except (DamagedError, OSError):  # being replaced, or damaged: the one before
            continue
    return None


def _from_checkpoint(checkpoint: Checkpoint, config: ExperimentConfig) -> dict[str, np.ndarray]:
    """What `Executor.stored_policy` gave when the checkpoint was written."""
    from fedpohcs.learners.personal import client_learner
    from fedpohcs.learners.shared_filters import known_filters
    from fedpohcs.worlds import make_world

    state: Any = checkpoint.state
    require_checkpoint(hasattr(state, "server") and hasattr(state, "clients"), "the state of a run")
    clients = state.clients
    while hasattr(clients, "clients"):  # of private clients
        clients = clients.clients
    if isinstance(clients, RemoteClients):  # whose environments may be unknown here
        known = isinstance(clients.default_filter, dict)
        require_checkpoint(
            known and all(isinstance(x, np.ndarray) for x in clients.default_filter.values()), "a filter of arrays"
        )
        return {**named_arrays(state.server.params), **clients.default_filter}
    learner = client_learner(config, make_world(config))
    number, held_out = config.federation.num_clients, config.federation.held_out_clients
    rows = clients.rows(np.arange(number + held_out))
    stored = known_filters(learner.stored_filters(rows.state.filters), rows.whose[0], number, held_out)
    return {**learner.arrays(state.server.params), **stored}


def _names(run: Path) -> list[str]:
    """The names of all policies that are there."""
    kept = [path.stem for path in sorted((run / FOLDER).glob("*.npz"))]
    named = [re.sub(r"^round-0*(?=\d)", "", name).replace("best-", "best:") for name in kept]
    last = (run / policy_file(LAST)).is_file() or bool(checkpoint_files(run))
    return [*([LAST] if last else []), *named]
