"""Values of metrics as named arrays, in which they are sent, counted in bytes, and checked.

An array is called `METRIC` where the value is a single array, else `METRIC/ARRAY`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedpohcs.core.array_rules import ArrayRule, BadReplyError, check_array, check_names
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.types import Params
from fedpohcs.metrics.base import Arrays, Column, find_metric


def pack(name: str, value: Any) -> dict[str, np.ndarray]:
    """One client's value of a metric as arrays."""
    return {_full_name(name, part): array for part, array in find_metric(name).pack(value).items()}


def num_bytes(name: str, value: Any) -> int:
    """Bytes of the arrays of one client's value."""
    return sum(array.nbytes for array in pack(name, value).values())


def expected_arrays(names: Iterable[str], config: ExperimentConfig, params: Params) -> dict[str, ArrayRule]:
    """The rules for the arrays of these metrics in the reply of one client."""
    return {
        _full_name(name, part): rule
        for name in sorted(names)
        for part, rule in find_metric(name).rules(config, params).items()
    }


def check_arrays(names: Iterable[str], arrays: Arrays, config: ExperimentConfig) -> None:
    """Refuse arrays that keep their single rules but contradict each other."""
    for name in sorted(names):
        try:
            find_metric(name).check(_own(name, arrays), config)
        except BadReplyError as error:
            raise BadReplyError(error.rule, error.text, _full_name(name, error.array)) from error


def check_value(name: str, value: Any, config: ExperimentConfig, params: Params) -> None:
    """Refuse one client's value of a metric if it breaks a rule."""
    arrays, rules = pack(name, value), expected_arrays([name], config, params)
    check_names(arrays, rules)
    for full_name, array in arrays.items():
        check_array(full_name, array, rules[full_name])
    check_arrays([name], arrays, config)


def misfits(name: str, values: Sequence[Any]) -> Iterator[tuple[int, BadReplyError]]:
    """The values, by position, that keep every rule alone but do not fit those of most other clients."""
    metric = find_metric(name)
    for position, error in metric.misfits([metric.pack(value) for value in values]).items():
        yield position, BadReplyError(error.rule, error.text, _full_name(name, error.array))


def unpack_columns(names: Iterable[str], rows: list[Arrays]) -> dict[str, Column]:
    """A column per metric from the arrays of each client."""
    metrics = {name: find_metric(name) for name in sorted(names)}
    return {name: one.join([one.unpack(_own(name, row)) for row in rows]) for name, one in metrics.items()}


def _full_name(name: str, part: str) -> str:
    return f"{name}/{part}" if part else name


def _own(name: str, arrays: Arrays) -> Arrays:
    """The arrays of one metric, by their names within it."""
    inside: Mapping[str, np.ndarray] = {
        full_name.removeprefix(name).removeprefix("/"): array
        for full_name, array in arrays.items()
        if full_name == name or full_name.startswith(f"{name}/")
    }
    return inside
