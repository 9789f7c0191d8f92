"""What a run may not do on a device: import functions that its node does not allow, or choose where states are kept."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedpohcs.core.config import ExperimentConfig, ModellingConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import PRESETS, preset
from fedpohcs.deploy.allowed import outside_names
from fedpohcs.deploy.node import check_allowed, state_folder
from fedpohcs.deploy.node_command import NodeOptions
from fedpohcs.deploy.protocol import HELLO, MESSAGE_TYPES, TRAIN, Request, rules_of, to_values
from fedpohcs.worlds.gym import GymConfig
from fedpohcs.worlds.hongkong.settings import TrafficConfig

from .loop import LoopGrid
from .test_executor import training_on


def context_of(node: dict[str, Any], run: dict[str, Any] | None = None) -> Context:
    return Context(1, 7, node, RecordDict(), run or {})


TABULAR = preset("tabular")
NAMED = {
    "scenario.env": ("os:_exit", replace(preset("gym"), scenario=GymConfig("os:_exit"))),
    "modelling.discretiser": ("os:umask", replace(TABULAR, modelling=ModellingConfig(discretiser="os:umask"))),
    "learner.network": ("ctypes:x", replace(TABULAR, learner=replace(TABULAR.learner, network="ctypes:x"))),
    "scenario.networks": ("etc", replace(preset("hongkong"), scenario=TrafficConfig(networks="etc"))),
}


@pytest.mark.parametrize("setting", NAMED)
def test_a_name_outside_the_package_is_refused_with_the_remedy_unless_it_is_allowed(setting: str) -> None:
    name, config = NAMED[setting]
    for node in ({}, {"client-id": 1}, {"client-id": 1, "partition-id": 0, "allow": f"other:one,{name}s"}):
        with pytest.raises(UserError) as caught:
            check_allowed(context_of(node), config)
        assert str(caught.value).startswith(f"{setting} (={name!r}) is not allowed by this node.")
        assert str(caught.value).endswith(f"--allow {name}")
    check_allowed(context_of({"client-id": 1, "allow": f"other:one,{name}"}), config)
    check_allowed(context_of({"partition-id": 0}), config)  # a simulation


def test_presets_name_nothing_outside_the_package() -> None:
    assert [list(outside_names(preset(name))) for name in PRESETS] == [[] for _ in PRESETS]


@pytest.mark.parametrize("phase", [HELLO, TRAIN])
def test_a_run_that_names_a_function_gets_no_answer_and_nothing_is_imported(
    phase: str, config: ExperimentConfig, states: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text("def make(*sizes): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = replace(config, learner=replace(config.learner, network="planted:make"))
    grid = LoopGrid(config, states)
    request = ConfigRecord(to_values(Request(phase, run="a"), rules_of(config)))
    question = Message(RecordDict({"request": request}), grid.node_of(0), MESSAGE_TYPES[phase])
    (answer,) = grid.send_and_receive([question])
    assert str(answer.error.reason).startswith("learner.network (='planted:make') is not allowed by this node.")
    assert "planted" not in sys.modules


def test_the_option_reaches_the_node_config() -> None:
    options = NodeOptions("localhost:1", 1, insecure=True, allow=("own:env", "own:cells"))
    assert options.node_config() == "client-id=1 max-sketch=16384 allow='own:env,own:cells'"


@pytest.mark.parametrize("name", ["", "a,b", "a b", "a'b", 'a"b', "a\nb"])
def test_a_name_that_would_change_the_node_config_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="without blanks, commas and quotes"):
        NodeOptions("localhost:1", 1, insecure=True, allow=(name,))


def test_a_run_does_not_choose_where_a_device_keeps_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/own")
    asked = {"state-dir": "/chosen/by/the/server"}
    assert state_folder(context_of({"client-id": 1}, asked)) == Path("/own/fedpohcs")
    assert state_folder(context_of({"client-id": 1, "state-dir": "/mine"}, asked)) == Path("/mine")
    assert state_folder(context_of({"partition-id": 0}, asked)) == Path("/chosen/by/the/server")


def test_states_are_for_their_owner_alone(config: ExperimentConfig, states: Path) -> None:
    list(training_on(LoopGrid(config, states), config).remaining_rounds())
    found = list(states.rglob("*"))
    assert len([path for path in found if path.suffix == ".state"]) >= 4
    assert {path.stat().st_mode & 0o777 for path in found if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in [states, *found] if path.is_dir()} == {0o700}
