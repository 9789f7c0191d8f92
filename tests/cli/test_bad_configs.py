"""What users get wrong in a config, in a file and on the command line: exit code 2, one line, nothing written."""

import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from fedpohcs.cli import main

POSITIVE = "must be a finite number above 0"
WHOLE, NUMBER = "must be of type int", "must be of type float"


def cases(keys: str, values: str, rule: str) -> list[tuple[str, str, str]]:
    """Every key with every value; values are TOML, keys have the place that they have on the command line."""
    return [(key, value, rule) for key in keys.split() for value in values.split()]


COUNTS = """federation.num_clients federation.num_selected federation.evaluation_episodes federation.evaluation_every
    learner.local_iterations learner.steps_per_iteration learner.epochs learner.batch_size learner.entropy_decay_rounds
    modelling.history_rounds modelling.horizon scenario.horizon modelling.episodes modelling.steps_per_episode"""
RATES = """learner.learning_rate learner.max_gradient_norm learner.importance_cap learner.clip_range learner.kl_target
    learner.kl_coefficient learner.critic_learning_rate learner.observation_clip learner.reward_clip
    modelling.observation_cell modelling.action_cell protection.value_limit protection.scalar_limit
    protection.epsilon"""
SWITCHES = """learner.bootstrap_at_time_limit learner.filter_observations learner.filter_rewards modelling.clip_actions
    modelling.standardise protection.precise"""
CHOICES = """executor privacy federation.update_weights federation.compared_pairs learner.loss modelling.action_support
    modelling.episode_end modelling.advantages modelling.values modelling.missing modelling.rewards scenario.reward
    scenario.safety"""

FILE_CASES = [
    *cases(COUNTS, "0 -3", POSITIVE),
    *cases(COUNTS, '1.5 "ten" true', WHOLE),
    *cases("rounds groups", "0 -3", "must be at least 1"),
    *cases("rounds groups seed", '1.5 "ten" true', WHOLE),
    *cases("seed", "-1 2147483648", "must be at least 0 and below 2**31"),
    *cases(RATES, "0.0 -1.0 nan inf", POSITIVE),
    *cases(RATES, '"fast" true', NUMBER),
    *cases("learner.learning_rate_decay learner.gae_discount", "0.0 1.5 nan", "must be above 0 and at most 1"),
    *cases("learner.discount", "0.0 1.0 -2.0 nan", "must lie between 0 and 1"),
    *cases("learner.momentum", "1.0 -0.1 nan", "must be at least 0 and below 1"),
    *cases("learner.entropy_coefficient learner.learning_rate_floor", "-1.0 nan inf", "must be a finite number, 0 or"),
    *cases("learner.filter_evaluation_episodes", "0 -1", POSITIVE),
    *cases("learner.filter_warmup_steps learner.critic_epochs", "-1", "must be a finite number, 0 or more"),
    *cases(SWITCHES, '"yes" 1', "must be of type bool"),
    *cases(CHOICES, '"nonsense"', "is not known"),
    *cases(CHOICES, "1", "must be '"),
    *cases("world level selector federation.aggregator scenario.networks", "7", "must be of type str"),
    *cases("modelling.discretiser", "7", "must be of type str, or left out"),
    *cases("learner.hidden_sizes", '3 "64" [1.5] ["a"]', "must be a list, each item of type int"),
    *cases("learner.hidden_sizes", "[64,0] [-1]", "must all be above 0"),
    *cases("federation.client_weights", '"equal" ["a"]', "must be a list, each item of type float"),
    *cases("federation.client_weights", "[1.0] []", "must hold num_clients (=60) numbers"),
    *cases("protection.sketch_size", "63 65 33554432 0", "must be even, at least 64 and at most 2**24"),
    *cases("protection.score_bits", "1 25", "must be at least 2 and at most 24"),
    *cases("protection.min_cohort", "2 -1", "must be at least 3"),
    *cases("federation learner modelling scenario protection", "3", "must be a table of settings"),
    ("federation.num_selected", "19", "must not exceed num_candidates (=18)"),
    ("federation.num_candidates", "61", "must not exceed num_clients (=60)"),
    ("federation.num_candidates", "5", "must not exceed num_candidates (=5)"),
    ("world", '"mars"', "is not known"),
    ("level", '"hgih"', "is not known. Did you mean 'high'?"),
    ("selector", '"fedpohc"', "is not known. Did you mean 'fedpohcs'?"),
    ("federation.aggregator", '"parameter-maen"', "is not known. Did you mean 'parameter-mean'?"),
    ("federation.aggregator", '"policy-mean"', "needs a tabular policy"),
    ("env", '"CartPole-v1"', "is for the world 'gym'"),
]
UNKNOWN_KEYS = """roundz seeed federation.num_client federation.k learner.learning_rat learner.gamma modelling.horizn
    modelling.cell scenario.horison protection.epsilom"""
COMMAND_CASES = [
    ("--rounds", "many", "INT"),
    ("--rounds", "2.5", "INT"),
    ("--seed", "x", "INT"),
    ("--clients", "many", "must be a whole number"),
    ("--clients", "0", "must be a finite number above 0"),
    ("--clients", "-4", "must be a finite number above 0"),
    ("--level", "hgih", "Did you mean 'high'?"),
    ("--selector", "fedagv", "Did you mean 'fedavg'?"),
    ("--executor", "parallel", "Expected one of"),
    ("--privacy", "full", "Expected one of"),
    ("--checkpoint-every", "-1", "must be 0 or more"),
    ("--log", "tensorbord", "Did you mean 'tensorboard'?"),
    ("--learner.learning-rate", "nan", POSITIVE),
    ("--learner.learning-rate", "fast", "FLOAT"),
    ("--learner.hidden-sizes", "x", "INT"),
    ("--learner.momentun", "1", "Did you mean --learner.momentum?"),
    ("--federation.num-selected", "7", "must not exceed num_candidates"),
    ("--modelling.missing", "predicted", "must be 'zero' with privacy 'masked'"),
]


def complaint(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The only line that a refused command prints."""
    before = sorted(folder.rglob("*"))
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fedpohcs: ")
    assert captured.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before
    return captured.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(key: str, value: str) -> str:
    section, _, name = key.rpartition(".")
    world = 'world = "hongkong"\n' if section == "scenario" else ""  # the one with most settings of its own
    return world + (f"[{section}]\n" if section else "") + f"{name} = {value}\n"


def as_python(value: str) -> str:
    """How a complaint shows a value that a file holds."""
    import tomllib

    found: Any = tomllib.loads(f"x = {value}")["x"]
    return repr(tuple(found) if isinstance(found, list) else found)


@pytest.mark.parametrize(("key", "value", "rule"), FILE_CASES)
def test_a_bad_value_in_a_file_is_refused_with_key_value_and_rule(
    key: str, value: str, rule: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "exp.toml").write_text(written(key, value))
    text = complaint(["train", "--config", "exp.toml", "--out", "run"], folder, capsys)
    blamed = "federation.num_selected" if "num_candidates (=5)" in rule else key
    assert f"{blamed} (=" in text
    assert blamed != key or f"(={as_python(value)})" in text
    assert rule in text


@pytest.mark.parametrize("key", UNKNOWN_KEYS.split())
def test_an_unknown_key_in_a_file_is_refused_with_its_place(
    key: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "exp.toml").write_text(written(key, "1"))
    text = complaint(["train", "--config", "exp.toml", "--out", "run"], folder, capsys)
    section, _, name = key.rpartition(".")
    assert f"{section + '.' if section else ''}key (={name!r}) is not known" in text
    assert "Known: " in text


BROKEN_FILES = {
    "no value": (b"rounds =\n", "line 1"),
    "no quotes": (b"seed = 1\nlevel = high\n", "line 2"),
    "a key twice": (b"rounds = 1\nrounds = 2\n", "line 2"),
    "a table twice": (b"[learner]\n[learner]\n", "line 2"),
    "an open bracket": (b"[learner\nmomentum = 0.5\n", "line 1"),
    "YAML": (b"rounds: 3\n", "line 1"),
    "JSON": (b'{"rounds": 3}\n', "line 1"),
    "not text": (b"\xff\xfe\x00", "not UTF-8 text"),
}


@pytest.mark.parametrize("kind", BROKEN_FILES)
def test_a_file_that_is_not_toml_is_refused_with_the_line(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, rule = BROKEN_FILES[kind]
    (folder / "exp.toml").write_bytes(content)
    text = complaint(["train", "--config", "exp.toml"], folder, capsys)
    assert "config (='exp.toml')" in text
    assert rule in text


@pytest.mark.parametrize("name", ["nowhere.toml", ".", "exp.toml/below"])
def test_a_file_that_cannot_be_read_is_refused_by_name(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "exp.toml").write_text("")
    text = complaint(["train", "--config", name], folder, capsys)
    assert f"config (='{name}') cannot be read" in text


@pytest.mark.parametrize(("option", "value", "rule"), COMMAND_CASES)
def test_a_bad_option_is_refused_in_one_line(
    option: str, value: str, rule: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = ["--privacy", "masked"] if option == "--modelling.missing" else []
    text = complaint(["train", "tabular", "--out", "run", *private, option, value], folder, capsys)
    assert option.removeprefix("--").replace("-", "_").split(".")[-1][:6] in text.replace("-", "_")
    assert value in text
    assert rule in text


def test_at_least_150_bad_configurations_are_tried() -> None:
    assert len([*FILE_CASES, *UNKNOWN_KEYS.split(), *BROKEN_FILES, *COMMAND_CASES]) >= 150


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "tabular", "--rounds", "many"],
        ["train", "tabular", "--level", "hgih"],
        ["train", "--config", "nowhere.toml"],
        ["compare", "tabular", "--out", "x", "--learner.momentum", "7"],
    ],
)
def test_a_real_process_refuses_without_a_traceback_and_before_jax(arguments: list[str], folder: Path) -> None:
    code = "import sys; from fedpohcs.cli import main; code = main(); print('jax' in sys.modules); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == "False\n"
    assert done.stderr.startswith("fedpohcs: ") and done.stderr.count("\n") == 1
    assert not list(chain(folder.iterdir()))
