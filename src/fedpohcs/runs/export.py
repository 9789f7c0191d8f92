"""Exports the policy of a run as NumPy arrays or as an ONNX graph."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.runs.card import NAME as CARD
from fedpohcs.runs.card import check_card, make_card
from fedpohcs.runs.layout import FILTER_PREFIX
from fedpohcs.runs.loading import read_config
from fedpohcs.runs.onnx import to_onnx
from fedpohcs.runs.policy import Policy, from_arrays
from fedpohcs.runs.stored import Stored, find_stored, require_filters, stored_arrays


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
    check_output(path)
    stored = find_stored(run)
    arrays, about = read_policy(stored)
    if card:
        check_card(path)
    policy = usable_policy(str(stored), arrays, about)  # also before an .npz is written: nobody could use a bad one
    if client is not None and path.suffix == ".onnx":
        _check_client(client, policy)
    write_policy(path, arrays, policy, client, sample=sample)
    if card:
        text = make_card(stored, read_config(stored.run), about, path)
        _write(path.with_name(CARD), lambda file: file.write(text.encode()))


def _check_client(client: int, policy: Policy) -> None:
    """Refuse a client that the run does not have, or whose filter it does not have."""
    number = policy.about["num_clients"] if policy.filter_mean is None else len(policy.filter_mean)
    require(0 <= client < number, "client", client, f"must be at least 0 and below {number}")
    known = policy.filter_mean is not None or policy.default_filter is None
    remedy = "Leave it out, or export on that device: fedpohcs flower export"
    require(known, "client", client, "has no filter here: clients of a fleet keep their own", remedy)


def write_policy(
    path: Path, arrays: Mapping[str, np.ndarray], policy: Policy, client: int | None = None, *, sample: bool = False
) -> None:
    """Write the arrays of a policy as .npz, or the policy as .onnx."""
    if path.suffix == ".npz":
        require(client is None, "client", client, "must not be given for npz, which holds every client")
        require(not sample, "sample", sample, "must not be given for npz, whose act() draws with a generator")
        wanted: dict[str, Any] = {name: x for name, x in arrays.items() if name.startswith(("policy/", FILTER_PREFIX))}
        wanted["about"] = np.array(json.dumps(policy.about))
        _write(path, lambda file: np.savez(file, **wanted))
    else:
        _write(path, lambda file: file.write(to_onnx(policy, client, sample=sample)))


def check_output(path: Path) -> None:
    """Refuse a file whose ending names no format."""
    if path.suffix not in (".npz", ".onnx"):
        raise UserError(f"output (={str(path)!r}) must end in .npz or .onnx.")


def read_policy(stored: Stored) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a policy of a run, and the settings that are needed to use them."""
    config = read_config(stored.run)
    check_exportable(config)
    found, round_number = stored_arrays(stored, config)
    require_filters(stored, found, config)
    return found, describe_policy(config, round_number)


def check_exportable(config: ExperimentConfig) -> None:
    """Refuse a policy that is more than tanh layers, or whose learner does not say that it acts by them."""
    network, learner = config.learner.network, config.learner
    require(network is None, "learner.network", network, "cannot be exported or played: only tanh layers can")
    size = learner.embedding_size
    require(size == 0, "learner.embedding_size", size, "cannot be exported or played: each client has its own vector")
    rule = "cannot be exported or played: its config class does not say that it acts by tanh layers"
    require(learner.exportable, "learner.kind", learner.kind, rule, "See LearningConfig.exportable.")


def describe_policy(config: ExperimentConfig, round_number: int) -> dict[str, Any]:
    """The settings that are needed to use a policy, and where it comes from."""
    filtered = config.learner.filter_observations
    return {
        "round": round_number,
        **{name: getattr(config, name) for name in ("world", "level", "selector", "seed", "rounds")},
        "num_clients": config.federation.num_clients,
        "filtered": filtered,
        "observation_limit": config.learner.observation_clip if filtered else None,
        **config.learner.acting(),
    }


def load_run_policy(run: Path | str) -> Policy:
    """A policy of a run: the last one, or the one that is named after an @."""
    stored = find_stored(run)
    return usable_policy(str(stored), *read_policy(stored))


def usable_policy(name: str, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> Policy:
    """The policy of these arrays, or `UserError` if they are none."""
    try:
        return from_arrays(arrays, about)
    except ValueError as error:
        raise UserError(f"run (={name!r}) has a policy that cannot be used: {error}.") from error


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
