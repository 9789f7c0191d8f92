"""Checks of metrics; see `metrics.base.Metric`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedpohcs.core.array_rules import BadReplyError
from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import Params, WeightedAdvantage
from fedpohcs.execution import make_executor
from fedpohcs.metrics.base import find_metric
from fedpohcs.metrics.packing import check_value, expected_arrays, pack, unpack_columns

CLIENTS = np.array([2, 0, 3])
HIDING = ("number", "table", None)


def check_metric(name: str, config: ExperimentConfig | None = None) -> None:
    """Check what a registered metric measures of a few clients.

    Args:
        name: of the metric.
        config: of the experiment in which clients are measured. None: four small tabular worlds.
    """
    config = config or _small()
    column, params = _measured(name, config)
    at = f"metric {name!r}"
    _require(len(column) == len(CLIENTS), f"{at} must give one value per client, not {len(column)} for {len(CLIENTS)}")
    arrays = [pack(name, value) for value in column]
    for value, one in zip(column, arrays, strict=True):
        _check_value(name, value, config, params)
        _require(one.keys() <= expected_arrays([name], config, params).keys(), f"{at} must pack what its rules name")
    received: list[Any] = list(arrays)
    again = [pack(name, value) for value in unpack_columns([name], received)[name]]
    _require(_all_same(arrays, again), f"{at} must be unpacked to what was packed")
    repeated = [pack(name, value) for value in _measured(name, config)[0]]
    _require(_all_same(arrays, repeated), f"{at} must be the same for the same seed")
    _check_hiding(name, column, arrays)


def _small() -> ExperimentConfig:
    federation = FederationConfig(num_clients=4, num_candidates=3, num_selected=2, evaluation_episodes=2)
    return replace(preset("tabular"), rounds=1, federation=federation)


def _measured(name: str, config: ExperimentConfig) -> tuple[Any, Params]:
    executor = make_executor(config)
    try:
        params = executor.initial_params()
        executor.evaluate(params, 0, np.arange(config.federation.num_clients))
        return executor.measure(params, 0, CLIENTS, {name}).column(name), params
    except UserError as error:
        raise AssertionError(f"metric {name!r} must be measured: {error}") from error
    finally:
        executor.close()


def _check_value(name: str, value: Any, config: ExperimentConfig, params: Params) -> None:
    try:
        check_value(name, value, config, params)
    except BadReplyError as error:
        raise AssertionError(f"metric {name!r} must keep its own rules: {error}") from error


def _check_hiding(name: str, column: Any, arrays: list[dict[str, np.ndarray]]) -> None:
    """Check that the values of a metric have the form that `hide` declares."""
    hide = find_metric(name).hide
    _require(hide in HIDING, f"metric {name!r} must say hide='number', 'table' or None, not {hide!r}")
    if hide == "number":
        single = all(one.keys() == {name} and one[name].shape == () for one in arrays)
        _require(single, f"metric {name!r} must be one number per client to be hidden as a {hide}")
    if hide == "table":
        tables = all(isinstance(value, WeightedAdvantage) for value in column)
        _require(tables, f"metric {name!r} must be a WeightedAdvantage per client to be hidden as a table")


def _all_same(first: list[dict[str, np.ndarray]], second: list[dict[str, np.ndarray]]) -> bool:
    return len(first) == len(second) and all(_same(x, y) for x, y in zip(first, second, strict=True))


def _same(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    names = first.keys() | second.keys()
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and np.array_equal(first[name], second[name]) for name in names
    )


def _require(holds: bool, rule: str) -> None:
    assert holds, rule
