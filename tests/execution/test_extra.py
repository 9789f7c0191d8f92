"""What a server optimiser sends besides the policy reaches the loss of every learner in this process."""

from dataclasses import replace

import pytest

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.presets import preset
from fedpohcs.runs.experiment import start_training
from fedpohcs.worlds.gym import GymConfig
from pulled import assert_goal_reached_the_loss, pulled_config

SMALL = FederationConfig(num_clients=4, num_candidates=3, num_selected=3, evaluation_episodes=1)


@pytest.mark.parametrize("executor", ["vectorised", "one-by-one"])
def test_what_the_server_sends_reaches_the_loss(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pulled_config(replace(preset("tabular"), federation=SMALL), monkeypatch)
    assert_goal_reached_the_loss(start_training(replace(config, executor=executor)))


@pytest.mark.parametrize("executor", ["vectorised", "one-by-one"])
def test_what_the_server_sends_reaches_the_loss_in_a_host_world(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    poles = replace(preset("gym"), scenario=GymConfig(env="CartPole-v1"), federation=SMALL)
    training = start_training(replace(pulled_config(poles, monkeypatch), executor=executor))
    try:
        assert_goal_reached_the_loss(training)
    finally:
        training.executor.close()
