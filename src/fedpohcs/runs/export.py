"""Exports the policy of a run as NumPy arrays or as an ONNX graph."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.core.errors import UserError, require
from fedpohcs.runs.card import NAME as CARD
from fedpohcs.runs.card import check_card, make_card
from fedpohcs.runs.layout import FILTER_PREFIX
from fedpohcs.runs.loading import read_config
from fedpohcs.runs.onnx import to_onnx
from fedpohcs.runs.policy import Policy, from_arrays
from fedpohcs.runs.stored import Stored, find_stored, stored_arrays


def export_policy(
    run: Path | str, path: Path, client: int | None = None, *, sample: bool = False, card: bool = False
) -> None:
    """Write a policy of a run to `path`, in the format that its ending names.

    Args:
        run: folder of the run, and after an @ which policy: last (the default), best, best:COLUMN or a round.
        path: ends in .npz for all clients, or in .onnx for one.
        client: whose filter becomes part of an ONNX graph, from 0; None: the filter of a client that never trained.
        sample: let an ONNX graph draw actions as in training; NumPy decides when it acts.
        card: write a model card beside it, README.md.
    """
    if path.suffix not in (".npz", ".onnx"):
        raise UserError(f"output (={str(path)!r}) must end in .npz or .onnx.")
    stored = find_stored(run)
    arrays, about = read_policy(stored)
    if card:
        check_card(path)
    if path.suffix == ".npz":
        require(client is None, "client", client, "must not be given for npz, which holds every client")
        require(not sample, "sample", sample, "must not be given for npz, whose act() draws with a generator")
        wanted: dict[str, Any] = {name: x for name, x in arrays.items() if name.startswith(("policy/", FILTER_PREFIX))}
        wanted["about"] = np.array(json.dumps(about))
        _write(path, lambda file: np.savez(file, **wanted))
    else:
        policy = _policy(stored, arrays, about)
        number = about["num_clients"] if policy.filter_mean is None else len(policy.filter_mean)
        require(client is None or 0 <= client < number, "client", client, f"must be at least 0 and below {number}")
        _write(path, lambda file: file.write(to_onnx(policy, client, sample=sample)))
    if card:
        text = make_card(stored, read_config(stored.run), about, path)
        _write(path.with_name(CARD), lambda file: file.write(text.encode()))


def read_policy(stored: Stored) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a policy of a run, and the settings that are needed to use them."""
    config = read_config(stored.run)
    network = config.learner.network
    require(network is None, "learner.network", network, "cannot be exported or played: only tanh layers can")
    found, round_number = stored_arrays(stored, config)
    filtered = config.learner.filter_observations
    about = {
        "round": round_number,
        **{name: getattr(config, name) for name in ("world", "level", "selector", "seed", "rounds")},
        "num_clients": config.federation.num_clients,
        "filtered": filtered,
        "observation_limit": config.learner.observation_clip if filtered else None,
        **config.learner.acting(),
    }
    return found, about


def load_run_policy(run: Path | str) -> Policy:
    """A policy of a run: the last one, or the one that is named after an @."""
    stored = find_stored(run)
    return _policy(stored, *read_policy(stored))


def _policy(stored: Stored, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> Policy:
    try:
        return from_arrays(arrays, about)
    except ValueError as error:
        raise UserError(f"run (={str(stored)!r}) has a policy that cannot be used: {error}.") from error


def _write(path: Path, write: Any) -> None:
    """Write a file completely or not at all."""
    unfinished = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            write(file)
        unfinished.replace(path)
    except OSError as error:
        raise UserError(f"output (={str(path)!r}) cannot be written: {error.strerror}.") from error
