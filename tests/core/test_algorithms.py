"""Algorithms are bundles of settings that explicit settings override; their names are those of the runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.core.algorithms import parse_method, with_algorithm
from fedpohcs.core.config import from_dict, to_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import ALGORITHMS, OPTIMISERS, SELECTORS
from fedpohcs.core.toml import read_toml
from fedpohcs.runs.checks import check_config

DISCRETE, CONTINUOUS = ("dqn", "dqnavg", "dcpi"), ("ddpg", "ddpgavg", "td3", "sac")
"""Algorithms for one kind of actions alone."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_makes_a_sound_config_of_the_presets_and_names_it(name: str) -> None:
    worlds = {"tabular": CONTINUOUS, "mountain-cars": DISCRETE}
    for world in (world for world, unable in worlds.items() if name not in unable):
        config = preset(world, algorithm=name)
        check_config(config)
        assert config.method == config.algorithm == name
        assert with_algorithm(config, name) == config
        assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_no_name_is_both_an_algorithm_and_a_selector() -> None:
    assert not set(ALGORITHMS) & set(SELECTORS)
    assert not set(OPTIMISERS) & set(SELECTORS)


def test_an_algorithm_keeps_the_other_settings_of_its_preset() -> None:
    plain, clipped = (preset("mountain-cars", "high", "fedavg", name) for name in (None, "ppo-clip"))
    assert clipped == replace(plain, algorithm="ppo-clip", learner=replace(plain.learner, loss="clip", epochs=10))


def test_presets_adapt_to_the_selector_of_the_algorithm_unless_another_is_named() -> None:
    assert preset("mountain-cars-paper", algorithm="fedavgm").learner.learning_rate == 0.005
    other = preset("mountain-cars-paper", selector="full", algorithm="fedavgm")
    assert (other.selector, other.learner.learning_rate, other.method) == ("full", 0.001, "fedavgm+full")


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("fedavg", (None, "fedavg", None)),
        ("fedavg+adam", (None, "fedavg", "adam")),
        ("ppo-clip", ("ppo-clip", None, None)),
        ("ppo-clip+full", ("ppo-clip", "full", None)),
        ("ppo-clip+adam+full", ("ppo-clip", "full", "adam")),
    ],
)
def test_a_name_is_an_algorithm_or_selector_with_further_parts(text: str, method: tuple) -> None:
    assert parse_method(text) == method


@pytest.mark.parametrize("text", ["ppo-clip+fedavg+full", "fedavg+full", "ppo-clip+krum", "fedavg+ppo-clip", ""])
def test_a_name_with_two_selectors_or_unknown_parts_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="algorithm"):
        parse_method(text)


def test_the_name_of_a_run_tells_which_parts_are_not_those_of_the_algorithm() -> None:
    config = preset("tabular", algorithm="fedadam")
    assert replace(config, selector="full").method == "fedadam+full"
    plain = replace(config.federation, server_optimiser="identity")
    assert replace(config, federation=plain).method == "fedadam+identity"
    assert replace(config, algorithm="elsewhere").method == "elsewhere"


def test_a_file_names_an_algorithm_and_its_own_settings_come_first(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('algorithm = "ppo-clip"\nworld = "tabular"\n[learner]\nepochs = 4\n')
    config = read_toml(file)
    assert (config.algorithm, config.selector, config.learner.loss) == ("ppo-clip", "fedavg", "clip")
    assert config.learner.epochs == 4
    file.write_text('algorithm = "ppo-clp"\n')
    with pytest.raises(UserError, match="Did you mean 'ppo-clip'"):
        read_toml(file)


def test_a_run_of_an_algorithm_that_is_not_installed_is_refused_but_can_be_read() -> None:
    config = from_dict(to_dict(replace(preset("tabular"), algorithm="theirs")))
    with pytest.raises(UserError, match=r"algorithm \(='theirs'\) is not known"):
        check_config(config)


def test_a_registered_object_that_is_no_algorithm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS.entries, "odd", {"selector": "fedavg"})
    with pytest.raises(UserError, match=r"algorithm \(='odd'\) must be registered as a fedpohcs.Algorithm"):
        preset("tabular", algorithm="odd")


@pytest.mark.parametrize("option", [("--algorithm", "fedavgm+full"), ("--algorithm=fedavgm", "--selector=full")])
def test_train_takes_an_algorithm_whose_settings_options_override(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "tabular", *option, "--federation.server-optimiser", "adam"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {'algorithm = "fedavgm"', 'selector = "full"', 'server_optimiser = "adam"'} <= set(lines)


def test_a_selector_in_place_of_an_algorithm_stands_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "tabular", "--algorithm", "power-of-choice"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'selector = "power-of-choice"' in lines
    assert "# algorithm =" in lines
