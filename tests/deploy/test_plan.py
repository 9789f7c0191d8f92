"""What nodes refuse of a server that does not keep to the operator's plan, and the commands that make plans."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedpohcs.cli import main
from fedpohcs.core.config import ExperimentConfig, FederationConfig, ProtectionConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.deploy.executor import FlowerExecutor
from fedpohcs.deploy.keys import Keys, ledger_of, make_keys, make_operator
from fedpohcs.deploy.planning import signed_plan
from fedpohcs.deploy.protocol import config_text
from fedpohcs.privacy.plan import new_plan, server_plan, sign_plan

from .loop import LoopGrid, give_plan
from .test_executor import SHORT

FEDERATION = FederationConfig(num_clients=4, num_candidates=4, num_selected=2, evaluation_episodes=4)
PROTECTION = ProtectionConfig(sketch_size=1024, min_cohort=4)
CONFIG = replace(preset("tabular"), rounds=2, federation=FEDERATION, privacy="masked", protection=PROTECTION)

pytestmark = pytest.mark.usefixtures("no_sleep")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return make_keys(tmp_path / "keys", 4, ["localhost"])


def server_on(grid: LoopGrid, config: ExperimentConfig) -> FlowerExecutor:
    """A server that checks nothing itself."""
    grid.run_config["config"] = config_text(config)
    return FlowerExecutor(config, grid=grid, limits=SHORT)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"protection": replace(PROTECTION, min_cohort=3)}, r"protection.min_cohort \(4 there, 3 here\)"),
        ({"protection": replace(PROTECTION, score_bits=24)}, "protection.score_bits"),
        ({"protection": replace(PROTECTION, sketch_size=2**24)}, "protection.sketch_size"),
        ({"protection": replace(PROTECTION, epsilon=0.1)}, "protection.epsilon"),
        ({"protection": replace(PROTECTION, release="scores")}, "protection.release"),
        ({"federation": replace(FEDERATION, num_candidates=3)}, "federation.num_candidates"),
        ({"seed": 1}, r"seed \(0 there, 1 here\)"),
        ({"rounds": 3}, r"rounds \(2 there, 3 here\)"),
        ({"selector": "power-of-choice"}, "selector"),
        ({"privacy": "none"}, "privacy .='none'. is not enough"),
        ({"rounds": 1}, None),
        ({}, None),
    ],
)
def test_a_node_refuses_what_the_plan_does_not_say(changes: dict, reason: str | None, keys: Keys, states: Path) -> None:
    grid = LoopGrid(CONFIG, states, keys=keys)
    give_plan(grid, CONFIG, keys)
    if reason is None:
        assert len(server_on(grid, replace(CONFIG, **changes)).nodes) == 4
        return
    with pytest.raises(UserError, match=reason):
        server_on(grid, replace(CONFIG, **changes))


def by_another(keys: Keys, folder: Path) -> bytes:
    make_operator(folder / "other")
    return signed_plan(CONFIG, keys.members, folder / "other", days=1)


def expired(keys: Keys, folder: Path) -> bytes:
    from fedpohcs.deploy.keys import load_members, load_private

    plan = new_plan(CONFIG, load_members(keys.members), days=-1)
    return sign_plan(plan, load_private("operator", keys.operator))


def of_other_members(keys: Keys, folder: Path) -> bytes:
    others = make_keys(folder / "others", 4, ["localhost"])
    return signed_plan(CONFIG, others.members, keys.operator, days=1)


def altered(keys: Keys, folder: Path) -> bytes:
    del folder
    plan = signed_plan(CONFIG, keys.members, keys.operator, days=1)
    assert plan.count(b'"min_cohort": 4') == 1
    return plan.replace(b'"min_cohort": 4', b'"min_cohort": 3')


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (by_another, "not signed by the operator"),
        (expired, "has expired"),
        (of_other_members, "another list of members"),
        (altered, "not signed by the operator"),
        (lambda keys, folder: b"", "does not begin with its title"),
    ],
)
def test_a_node_refuses_a_plan_that_is_not_the_operators(
    make: Callable[[Keys, Path], bytes], reason: str, keys: Keys, states: Path, tmp_path: Path
) -> None:
    grid = LoopGrid(CONFIG, states, keys=keys)
    grid.run_config["plan"] = make(keys, tmp_path).decode()
    with pytest.raises(UserError, match=reason):
        server_on(grid, CONFIG)


def test_a_node_has_a_limit_of_its_own(keys: Keys, states: Path) -> None:
    """The operator may have signed what the device cannot or will not send."""
    config = replace(CONFIG, protection=replace(PROTECTION, sketch_size=2**15))
    grid = LoopGrid(config, states, keys=keys)
    give_plan(grid, config, keys)
    with pytest.raises(UserError, match=r"sketch_size \(=32768\) is above the limit of this node \(=16384\)"):
        server_on(grid, config)
    for node in grid.node_configs.values():
        node["max-sketch"] = 2**15
    assert len(server_on(grid, config).nodes) == 4


def test_a_node_without_its_ledger_is_refused_and_told_what_to_do(keys: Keys, states: Path) -> None:
    grid = LoopGrid(CONFIG, states, keys=keys)
    give_plan(grid, CONFIG, keys)
    ledger_of(keys.identity(3)).unlink()
    with pytest.raises(UserError, match=r"ledger .* was made with the identity.*new plan"):
        server_on(grid, CONFIG)


def test_a_node_measures_what_the_selector_needs_and_sends_nothing_without_an_invitation(
    keys: Keys, states: Path
) -> None:
    grid = LoopGrid(CONFIG, states, keys=keys)
    give_plan(grid, CONFIG, keys)
    server = server_on(grid, CONFIG)
    params, everyone = server.initial_params(), np.arange(4)
    for surplus in ("mean_return", "gradient_norm", "policy_gradient"):
        assert not server.measurements(params, 0, everyone, frozenset({"weighted_advantage", surplus}))
        assert all(f"metrics (={surplus!r}) are not what selector" in bad.text for bad in server.reported())
    answers = server.measurements(params, 0, everyone, frozenset({"weighted_advantage"}))
    assert [arrays["measured/weighted_advantage"].tobytes() for arrays in answers.values()] == [b""] * 4


def test_the_operator_signs_a_plan_and_the_server_writes_an_app_for_it(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["tabular", "--clients", "4", "--privacy", "masked", "--protection.min-cohort", "3"]
    members = ["--members", str(keys.members)]
    assert main(["flower", "plan", *settings, *members, "--operator", "operator", "--plan", "plan"]) == 0
    shown = capsys.readouterr().out
    assert "operator.pub: a new key" in shown and "valid for 30 days" in shown
    assert (tmp_path / "operator").stat().st_mode & 0o777 == 0o600
    assert server_plan((tmp_path / "plan").read_bytes()).config.federation.num_clients == 4
    before = (tmp_path / "operator").read_bytes()
    assert main(["flower", "plan", *settings, *members, "--plan", "later"]) == 0
    assert (tmp_path / "operator").read_bytes() == before  # one key signs all plans
    assert main(["flower", "app", *settings, *members]) == 2
    assert "plan (='none') must be given with privacy 'masked'" in capsys.readouterr().err
    assert main(["flower", "app", *settings, "--seed", "5", *members, "--plan", "plan"]) == 2
    assert "the plan has other settings: seed (0 there, 5 here)" in capsys.readouterr().err
    assert main(["flower", "app", *settings, *members, "--plan", "plan"]) == 0
    text = (tmp_path / "fleet" / "fedpohcs-app" / "pyproject.toml").read_text()
    assert (tmp_path / "plan").read_text() in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--privacy", "none"], "privacy (='none') needs no plan"),
        (["--privacy", "he"], "privacy (='he') is for simulations"),
        (["--privacy", "masked", "--days", "0"], "days (=0) must be at least 1"),
        (["--privacy", "masked", "--clients", "5"], "must list the clients 0 to 4"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(
    options: list[str], message: str, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    if "he" in options:
        pytest.importorskip("tenseal")
    files = ["--members", str(keys.members), "--operator", str(keys.operator), "--plan", str(keys.folder / "plan")]
    clients = [] if "--clients" in options else ["--clients", "4"]
    settings = ["tabular", *clients, "--protection.min-cohort", "3", *options]
    assert main(["flower", "plan", *settings, *files]) == 2
    assert message in capsys.readouterr().err
    assert not (keys.folder / "plan").exists()
