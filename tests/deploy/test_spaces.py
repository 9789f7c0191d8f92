"""Environments that only the devices have: nodes announce their spaces, and the server needs no module of theirs."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("gymnasium")

from flwr.app import Message

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.deploy.executor import FlowerExecutor
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.export import export_policy, load_run_policy
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions
from fedpohcs.worlds.gym import GymConfig, make_environment
from fedpohcs.worlds.spaces import AnnouncedWorld, announce, announced_world

from .loop import LoopGrid
from .test_executor import SHORT

pytestmark = pytest.mark.usefixtures("no_sleep")
CODE = Path(__file__).parents[2] / "examples" / "fleet" / "code"
TWO = FederationConfig(num_clients=2, num_candidates=2, num_selected=1, evaluation_episodes=1)


@pytest.fixture
def plants(monkeypatch: pytest.MonkeyPatch) -> ExperimentConfig:
    """The environment of the example, whose module is not importable yet."""
    config = preset("gym", selector="fedavg")
    learner = replace(config.learner, hidden_sizes=(4,), filter_warmup_steps=100, steps_per_iteration=100)
    learner = replace(learner, local_iterations=1)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(CODE)])
    sys.modules.pop("plant", None)
    return replace(config, rounds=1, federation=TWO, learner=learner, scenario=GymConfig(env="plant:make_client"))


class DeviceGrid(LoopGrid):
    """Devices on which the module can be imported, while the server cannot."""

    def answer(self, message: Message) -> Message:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(CODE))
            patch.setenv("PYTHONPATH", str(CODE))
            answer = super().answer(message)
        sys.modules.pop("plant", None)
        return answer


def test_a_server_trains_and_exports_without_the_module_of_the_environment(
    plants: ExperimentConfig, states: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="names a module that cannot be imported"):
        check_config(plants)
    grid = DeviceGrid(plants, states)
    for node in grid.node_configs.values():
        node["allow"] = "plant:make_client"
    run = tmp_path / "run"
    make_clients = partial(FlowerExecutor, grid=grid, limits=SHORT)
    history = run_experiment(plants, run, make_clients=make_clients, elsewhere=True)
    assert [len(record.evaluation.client) for record in history.records] == [2, 2]
    with pytest.raises(UserError, match="cannot be imported"):
        make_environment("plant:make_client", 0)
    export_policy(run, tmp_path / "policy.onnx")
    assert load_run_policy(f"{run}@1").act([3.0, 2.0]).shape == (1,)


def test_a_node_with_another_environment_is_refused_and_named(
    plants: ExperimentConfig, states: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = DeviceGrid(plants, states)
    for node in grid.node_configs.values():
        node["allow"] = "plant:make_client"

    def enlarge(question: Message, answer: Message) -> Message:
        if question.metadata.dst_node_id == grid.node_of(1):
            said = answer.content.config_records["answer"]
            said["spaces"] = str(said["spaces"]).replace("[2,", "[3,")
        return answer

    grid.fault = enlarge
    with pytest.raises(UserError, match=r"only 1 of 2 clients came .* must be those of the first client \(=\[2,"):
        FlowerExecutor(plants, grid=grid, limits=SHORT)
    assert "spaces (='[3, [1, -1.0, 1.0], 100]')" in caplog.text


@pytest.mark.parametrize(
    "actions", [DiscreteActions(3), ContinuousActions(2, -1.0, 1.0), ContinuousActions(1, -float("inf"), float("inf"))]
)
def test_spaces_arrive_as_they_were_announced(actions: DiscreteActions | ContinuousActions) -> None:
    world = AnnouncedWorld(4, actions, 500)
    there = announced_world(announce(world))
    assert there == world and there.actions == actions and type(there.actions) is type(actions)
    with pytest.raises(UserError, match="are on the devices"):
        there.make_collector()


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "[]",
        "[4, [2]]",
        "[0, [2], 5]",
        "[4, [2], 0]",
        "[4, [], 5]",
        "[4, [2.5], 5]",
        "[true, [2], 5]",
        "[4, [1, NaN, 1.0], 5]",
        '[4, [1, "a", 1.0], 5]',
        "[1000000, [2], 5]",
        "[4, [2], 100000000]",
        "[4, 2, 5]",
        "[" * 100_000,
        json.dumps({"a": 1}),
    ],
)
def test_what_is_no_announcement_is_refused(text: object) -> None:
    with pytest.raises(UserError, match="announces spaces that are none"):
        announced_world(text)
