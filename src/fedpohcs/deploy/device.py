"""The files of a device: where its states are, and the policy that it keeps.

That policy is the last global one that the device was sent, with the client's own observation filter. It stands beside
the client's states, complete: to use it, neither the server nor its run folder is needed.
"""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.core.config import ExperimentConfig, from_dict, to_dict
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.files import make_private_folder, replace_file
from fedpohcs.runs.export import check_exportable, check_output, describe_policy, usable_policy, write_policy
from fedpohcs.runs.loading import read_config
from fedpohcs.runs.policy import DEFAULT_MEAN, DEFAULT_VARIANCE, read_arrays
from fedpohcs.runs.stored import find_stored, stored_arrays

FILE = "policy.npz"
STATISTICS = ("filters/count", "filters/mean", "filters/variance")
"""What the observation filter of a client consists of."""


def default_states() -> Path:
    """Folder for the states of the clients of this machine, where none is named."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "fedpohcs"


def run_folder(states: Path, run: str, client: int) -> Path:
    """Folder for the state of one client in one run."""
    require(run.isalnum(), "run", run, "must be letters and digits")
    return states / run / f"client-{client}"


def own_statistics(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first of the filters, without the axis of clients; nothing if the learner has no such filters."""
    known = all(name in stored for name in STATISTICS)
    return {name: np.asarray(stored[name][0]) for name in STATISTICS} if known else {}


def keep_policy(folder: Path, config: ExperimentConfig, round_number: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Store a global policy: the arrays of its parameters, and the statistics of this client's filter."""
    data = io.BytesIO()
    text = np.array(json.dumps(to_dict(config)))
    np.savez(data, allow_pickle=False, **arrays, round=np.array(round_number), config=text)
    make_private_folder(folder)
    replace_file(folder / FILE, data.getvalue(), mode=0o600)


def kept_statistics(folder: Path) -> dict[str, np.ndarray]:
    """The statistics of the client's filter after its latest evaluation; nothing if there are none."""
    try:
        stored = read_arrays(folder / FILE)
    except (OSError, ValueError):
        return {}
    return {name: stored[name] for name in STATISTICS if name in stored}


def find_kept(states: Path, client: int | None = None, run: str | None = None) -> Path:
    """The newest policy that a client keeps; `client` may be left out if the folder has one client alone."""
    found = {path: path.stat().st_mtime_ns for path in states.glob(f"{run or '*'}/client-*/{FILE}")}
    if client is not None:
        wanted = run_folder(states, "x", client).name
        found = {path: time for path, time in found.items() if path.parent.name == wanted}
    others = sorted({path.parent.name for path in found})
    require(len(others) < 2, "client-id", None, f"must be given: the folder has {', '.join(others)}")
    remedy = "A device keeps the policy of its first evaluation on. Name the --state-dir of its node."
    require(bool(found), "state-dir", str(states), "has no such policy", remedy)
    return max(found, key=lambda path: found[path])


def export_kept(kept: Path, output: Path, policy: str | None = None, *, sample: bool = False) -> dict[str, Any]:
    """Write the policy of a device, with the device's own filter, and return what is known of it.

    Args:
        kept: file of the device.
        output: ends in .npz or .onnx.
        policy: another policy of the same run: an exported .npz file, or a run folder and after an @ which policy.
        sample: let an ONNX graph draw actions.
    """
    check_output(output)
    own, config, round_number = _read_kept(kept)
    check_exportable(config)
    arrays = own
    if policy is not None:
        arrays, round_number = _other_policy(policy, config)
    about = describe_policy(config, round_number) | {"device": kept.parent.name}
    wanted = {name: array for name, array in arrays.items() if name.startswith("policy/")}
    if config.learner.filter_observations:
        missing = [name for name in STATISTICS if name not in own]
        require(not missing, "policy", str(kept), "has no observation filter of this device")
        wanted |= {DEFAULT_MEAN: own["filters/mean"], DEFAULT_VARIANCE: own["filters/variance"]}
    write_policy(output, wanted, usable_policy(policy or str(kept), wanted, about), sample=sample)
    return about


def _read_kept(path: Path) -> tuple[dict[str, np.ndarray], ExperimentConfig, int]:
    try:
        arrays = read_arrays(path)
        return arrays, from_dict(json.loads(str(arrays["config"]))), int(arrays["round"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError, UserError) as error:
        raise UserError(f"policy (={str(path)!r}) cannot be read: {error}") from error


def _other_policy(named: str, config: ExperimentConfig) -> tuple[dict[str, np.ndarray], int]:
    """The arrays and the round of a policy that was copied to this device."""
    path = Path(named)
    if path.suffix != ".npz":
        stored = find_stored(named)
        other = read_config(stored.run)
        _check_same(named, {"world": other.world, "level": other.level}, config)
        return stored_arrays(stored, other)
    try:
        arrays = read_arrays(path)
        about = json.loads(str(arrays.get("about", "{}")))
        _check_same(named, about, config)
        return arrays, int(about["round"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        remedy = "Make one on the server: fedpohcs export RUN@best policy.npz"
        raise UserError(f"policy (={named!r}) is not an exported policy: {error}. {remedy}") from error


def _check_same(named: str, about: Any, config: ExperimentConfig) -> None:
    """Refuse the policy of another world: its numbers could fit by chance."""
    there, here = ((about["world"], about["level"]), (config.world, config.level))
    require(there == here, "policy", named, f"is of the world {' '.join(map(str, there))}, not of {' '.join(here)}")
