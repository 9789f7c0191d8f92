"""Exports the policy of a run as NumPy arrays or as an ONNX graph."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.core.errors import UserError, require
from fedpohcs.runs.layout import FILTER_PREFIX
from fedpohcs.runs.loading import read_config
from fedpohcs.runs.policy import Policy, from_arrays, read_arrays

ONNX_OPSET, ONNX_IR = 13, 8
ONNX_FLOAT = 1


def export_policy(run: Path, path: Path, client: int | None = None) -> None:
    """Write the policy of a finished run to `path`, in the format that its ending names.

    Args:
        run: folder of the run.
        path: ends in .npz for all clients, or in .onnx for one.
        client: whose filter becomes part of an ONNX graph, from 0; needed if the run has filters.
    """
    if path.suffix not in (".npz", ".onnx"):
        raise UserError(f"output (={str(path)!r}) must end in .npz or .onnx.")
    arrays, about = read_policy(run)
    if path.suffix == ".npz":
        require(client is None, "client", client, "must not be given for npz, which holds every client")
        wanted: dict[str, Any] = {name: x for name, x in arrays.items() if name.startswith(("policy/", FILTER_PREFIX))}
        wanted["about"] = np.array(json.dumps(about))
        _write(path, lambda file: np.savez(file, **wanted))
    else:
        policy = _policy(run, arrays, about)
        if policy.filter_mean is not None:
            number = len(policy.filter_mean)
            known = client is not None and client < number
            require(known, "client", client, f"must be named for onnx, from 1 to {number}")
        _write(path, lambda file: file.write(to_onnx(policy, client)))


def read_policy(run: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a run's policy, and the settings that are needed to use them."""
    config = read_config(run)
    network = config.learner.network
    require(network is None, "learner.network", network, "cannot be exported or played: only tanh layers can")
    stored = run / "policy.npz"
    if not stored.is_file():
        raise UserError(f"run (={str(run)!r}) has no policy.npz: it is not finished.")
    try:
        found = read_arrays(stored)
    except (OSError, ValueError) as error:
        raise UserError(f"run (={str(run)!r}) has a policy.npz that cannot be read: {error}") from error
    filtered = config.learner.filter_observations
    about = {
        **{name: getattr(config, name) for name in ("world", "level", "selector", "seed", "rounds")},
        "num_clients": config.federation.num_clients,
        "filtered": filtered,
        "observation_limit": config.learner.observation_clip if filtered else None,
        **config.learner.acting(),
    }
    return found, about


def load_run_policy(run: Path) -> Policy:
    """The policy of a run folder."""
    return _policy(run, *read_policy(run))


def _policy(run: Path, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> Policy:
    try:
        return from_arrays(arrays, about)
    except ValueError as error:
        raise UserError(f"run (={str(run)!r}) has a policy.npz that cannot be used: {error}.") from error


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


def to_onnx(policy: Policy, client: int | None = None) -> bytes:
    """An ONNX model from a batch of raw observations to mean actions, or to logits where actions are discrete.

    The few protobuf messages of a perceptron are encoded here, so that no ONNX package is needed.
    """
    constants: dict[str, Any] = {}
    nodes: list[bytes] = []
    value = "observation"

    def apply(operator: str, *operands: tuple[str, Any]) -> None:
        nonlocal value
        constants.update(dict(operands))
        output = f"{operator.lower()}_{len(nodes)}"
        nodes.append(_node(operator, [value, *(name for name, _ in operands)], output))
        value = output

    if policy.filter_mean is not None and policy.filter_std is not None:
        assert client is not None
        limit = np.float32(policy.about["observation_limit"])
        apply("Sub", ("filter_mean", policy.filter_mean[client]))
        apply("Div", ("filter_std", policy.filter_std[client]))
        apply("Clip", ("limit_low", -limit), ("limit_high", limit))
    for index, (kernel, bias) in enumerate(policy.layers):
        if index:
            apply("Tanh")
        apply("MatMul", (f"kernel_{index}", kernel))
        apply("Add", (f"bias_{index}", bias))
    sizes = policy.layers[0][0].shape[0], policy.layers[-1][0].shape[1]
    graph = [
        *(_field(1, node) for node in nodes),
        _field(2, "policy"),
        *(_field(5, _tensor(name, array)) for name, array in constants.items()),
        _field(11, _value_info("observation", sizes[0])),
        _field(12, _value_info(value, sizes[1])),
    ]
    opset = _field(8, _field(1, "") + _field(2, ONNX_OPSET))
    return _field(1, ONNX_IR) + _field(2, "fedpohcs") + _field(7, b"".join(graph)) + opset


def _node(operator: str, inputs: Iterable[str], output: str) -> bytes:
    return b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(4, operator)


def _tensor(name: str, array: Any) -> bytes:
    array = np.asarray(array, "<f4")
    dimensions = b"".join(_field(1, size) for size in array.shape)
    return dimensions + _field(2, ONNX_FLOAT) + _field(8, name) + _field(9, array.tobytes())


def _value_info(name: str, size: int) -> bytes:
    shape = _field(1, _field(2, "batch")) + _field(1, _field(1, size))
    return _field(1, name) + _field(2, _field(1, _field(1, ONNX_FLOAT) + _field(2, shape)))


def _field(number: int, content: int | str | bytes) -> bytes:
    """One field of a protobuf message: a whole number, or bytes with their length in front."""
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    data = content.encode("utf-8") if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; a set top bit says that more follow."""
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
