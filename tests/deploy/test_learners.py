"""Learners with a replay buffer over Flower's messages: equal to one process, and to the byte after a restart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.learning import as_kind
from fedpohcs.core.presets import preset

from .loop import LoopGrid
from .test_executor import assert_same, in_process, training_on

pytestmark = pytest.mark.usefixtures("no_sleep")
KINDS = ["dqn", "dcpi", "ddpg", "td3", "sac"]
TINY: dict[str, Any] = {
    **{"hidden_sizes": (8,), "local_iterations": 2, "steps_per_iteration": 20, "updates_per_iteration": 4},
    **{"batch_size": 8, "replay_size": 300, "filter_warmup_steps": 0},
}


def tiny(kind: str) -> ExperimentConfig:
    config = preset("tabular" if kind in ("dqn", "dcpi") else "mountain-cars", selector="full")
    few = FederationConfig(num_clients=2, num_candidates=2, num_selected=2, evaluation_episodes=2)
    learner = replace(as_kind(config.learner, kind), **TINY)
    return replace(config, rounds=2, federation=few, learner=learner)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "dqn")) for kind in KINDS])
def test_a_run_over_messages_equals_one_in_process(kind: str, states: Path) -> None:
    """In the second round clients learn from the buffer that they kept."""
    config = tiny(kind)
    there, here = training_on(LoopGrid(config, states), config), in_process(config)
    for one, other in zip(there.remaining_rounds(), here.remaining_rounds(), strict=True):
        assert_same(one, other)
    jax.tree.map(np.testing.assert_array_equal, there.state.params, here.state.params)
