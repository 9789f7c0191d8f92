"""A policy as an ONNX model. The few protobuf messages of a perceptron are encoded here, so no ONNX package is needed.

Input `observation`: a batch of raw observations. Outputs: `action`; and what it comes from: `mean` and `log_std` of a
normal distribution, or `logits`, or action `values` of which the greatest is taken, or `output` before actions are
squashed by tanh.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedpohcs.core.version import __version__
from fedpohcs.runs.policy import LOG_STD_LIMITS, Policy

OPSET, IR = 13, 8
FLOAT, INT64 = 1, 7  # types of tensors


class Graph:
    """Nodes and constants of a graph, in the order in which they are applied."""

    def __init__(self) -> None:
        self.nodes: list[bytes] = []
        self.constants: dict[str, bytes] = {}

    def apply(self, operator: str, *inputs: str | tuple[str, Any], output: str = "", **attributes: int | float) -> str:
        """Add a node. An input is the name of a value, or a constant as a pair of its name and array."""
        names = []
        for given in inputs:
            name, array = (given, None) if isinstance(given, str) else given
            if array is not None:
                self.constants[name] = _tensor(name, array)
            names.append(name)
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(_node(operator, names, output, attributes))
        return output


def to_onnx(policy: Policy, client: int | None = None, *, sample: bool = False) -> bytes:
    """The model of one client, or with the default filter that of a device which never trained.

    Args:
        policy: of a run.
        client: from 0; None: the default filter.
        sample: draw the action as in training, with the random numbers of the runtime, instead of the most likely one.
    """
    graph = Graph()
    output = _network(graph, policy, _filtered(graph, policy, client))
    sizes = policy.layers[0][0].shape[0], policy.layers[-1][0].shape[1]
    continuous = _continuous_action if policy.bounds is None else _squashed_action
    act = _discrete_action if policy.discrete else continuous
    outputs = act(graph, policy, output, sizes[1], sample=sample)
    body = [
        *(_field(1, node) for node in graph.nodes),
        _field(2, "policy"),
        *(_field(5, tensor) for tensor in graph.constants.values()),
        _field(11, _value_info("observation", FLOAT, ("batch", sizes[0]))),
        *(_field(12, info) for info in outputs),
    ]
    head = _field(1, IR) + _field(2, "fedpohcs") + _field(3, __version__)
    described = {**policy.about, "client": client, "sample": sample}
    return head + _field(7, b"".join(body)) + _field(8, _field(1, "") + _field(2, OPSET)) + _metadata(described)


def _filtered(graph: Graph, policy: Policy, client: int | None) -> str:
    found = policy.filter_of(client)
    if found is None:
        return "observation"
    limit = np.float32(policy.about["observation_limit"])
    centred = graph.apply("Sub", "observation", ("filter_mean", found[0]))
    scaled = graph.apply("Div", centred, ("filter_std", found[1]))
    return graph.apply("Clip", scaled, ("limit_low", -limit), ("limit_high", limit))


def _network(graph: Graph, policy: Policy, value: str) -> str:
    for index, (kernel, bias) in enumerate(policy.layers):
        if index:
            value = graph.apply("Tanh", value)
        value = graph.apply("MatMul", value, (f"kernel_{index}", kernel))
        value = graph.apply("Add", value, (f"bias_{index}", bias))
    return value


def _continuous_action(graph: Graph, policy: Policy, mean: str, size: int, *, sample: bool) -> list[bytes]:
    mean = graph.apply("Identity", mean, output="mean")
    if sample:
        noise = graph.apply("RandomNormalLike", mean, mean=0.0, scale=1.0)
        noise = graph.apply("Mul", noise, ("std", np.exp(policy.log_std)))
        graph.apply("Add", mean, noise, output="action")
    else:
        graph.apply("Identity", mean, output="action")
    zeros = graph.apply("Mul", mean, ("zero", np.float32(0)))
    graph.apply("Add", zeros, ("log_std_of_all", policy.log_std), output="log_std")
    return [_value_info(name, FLOAT, ("batch", size)) for name in ("action", "mean", "log_std")]


def _squashed_action(graph: Graph, policy: Policy, output: str, size: int, *, sample: bool) -> list[bytes]:
    output, actions = graph.apply("Identity", output, output="output"), size
    before = output
    if policy.about["squash"] == "normal":
        actions = size // 2
        before = _columns(graph, output, 0, actions)
        if sample:
            low, high = (np.float32(limit) for limit in LOG_STD_LIMITS)
            log_std = graph.apply("Clip", _columns(graph, output, actions, size), ("least", low), ("most", high))
            noise = graph.apply("RandomNormalLike", before, mean=0.0, scale=1.0)
            before = graph.apply("Add", before, graph.apply("Mul", noise, graph.apply("Exp", log_std)))
    centre, half = np.asarray(policy.bounds, np.float32)
    scaled = graph.apply("Mul", graph.apply("Tanh", before), ("half_range", half))
    graph.apply("Add", scaled, ("centre", centre), output="action")
    return [_value_info("action", FLOAT, ("batch", actions)), _value_info("output", FLOAT, ("batch", size))]


def _columns(graph: Graph, value: str, begin: int, end: int) -> str:
    """Some columns of a batch."""
    names = (f"begin_{begin}", f"end_{end}")
    bounds = [(name, np.array([at], np.int64)) for name, at in zip(names, (begin, end), strict=True)]
    return graph.apply("Slice", value, *bounds, ("column", np.array([1], np.int64)))


def _discrete_action(graph: Graph, policy: Policy, output: str, size: int, *, sample: bool) -> list[bytes]:
    epsilon = policy.about.get("epsilon")
    name = graph.apply("Identity", output, output="logits" if epsilon is None else "values")
    if not sample:
        graph.apply("ArgMax", name, output="action", axis=1, keepdims=0)
    elif epsilon is None:
        graph.apply("ArgMax", _gumbel(graph, name), output="action", axis=1, keepdims=0)
    else:
        _epsilon_greedy(graph, name, np.float32(epsilon))
    return [_value_info("action", INT64, ("batch",)), _value_info(name, FLOAT, ("batch", size))]


def _gumbel(graph: Graph, logits: str) -> str:
    """Logits with noise whose greatest is drawn by the policy's probabilities (Gumbel)."""
    uniform = graph.apply("RandomUniformLike", logits, low=1e-7, high=1.0)
    waiting = graph.apply("Neg", graph.apply("Log", uniform))
    return graph.apply("Sub", logits, graph.apply("Log", waiting))


def _epsilon_greedy(graph: Graph, values: str, epsilon: np.float32) -> None:
    """The action of the greatest value, or with probability epsilon any."""
    greedy = graph.apply("ArgMax", values, axis=1, keepdims=1)
    random = graph.apply("RandomUniformLike", values, low=0.0, high=1.0)
    anything = graph.apply("ArgMax", random, axis=1, keepdims=1)
    column = graph.apply("Cast", greedy, to=FLOAT)  # has the shape of one number per observation
    explores = graph.apply("Less", graph.apply("RandomUniformLike", column, low=0.0, high=1.0), ("epsilon", epsilon))
    chosen = graph.apply("Where", explores, anything, greedy)
    graph.apply("Reshape", chosen, ("row", np.array([-1], np.int64)), output="action")


def _metadata(about: Mapping[str, Any]) -> bytes:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
    return b"".join(_field(14, _field(1, name) + _field(2, text)) for name, text in texts.items())


def _node(operator: str, inputs: Iterable[str], output: str, attributes: Mapping[str, int | float]) -> bytes:
    described = b"".join(_field(5, _attribute(*item)) for item in attributes.items())
    return b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(4, operator) + described


def _attribute(name: str, value: int | float) -> bytes:
    if isinstance(value, int):
        return _field(1, name) + _field(3, value) + _field(20, 2)
    return _field(1, name) + _varint(2 << 3 | 5) + np.float32(value).tobytes() + _field(20, 1)


def _tensor(name: str, array: Any) -> bytes:
    array = np.asarray(array)
    array = array.astype("<i8" if array.dtype.kind == "i" else "<f4")
    dimensions = b"".join(_field(1, size) for size in array.shape)
    return (
        dimensions
        + _field(2, INT64 if array.dtype.kind == "i" else FLOAT)
        + _field(8, name)
        + _field(9, array.tobytes())
    )


def _value_info(name: str, kind: int, shape: tuple[str | int, ...]) -> bytes:
    """Name, type and shape of an input or output; a size may have a name in place of a number."""
    sizes = b"".join(_field(1, _field(2 if isinstance(size, str) else 1, size)) for size in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, sizes)))


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
