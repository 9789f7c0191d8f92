"""A small federation, and a grid without a network."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.presets import preset


@pytest.fixture
def config() -> ExperimentConfig:
    small = FederationConfig(num_clients=4, num_candidates=3, num_selected=2, evaluation_episodes=8)
    return replace(preset("tabular"), rounds=3, federation=small)


@pytest.fixture
def states(tmp_path: Path) -> Path:
    return tmp_path / "states"


@pytest.fixture
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """For grids without a network: between two polls nothing can happen."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
