"""Server optimisers: two rounds by hand, what they leave alone, what they remember, and mistakes in them."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from shifting_clients import ShiftingClients, Weights, weights

from fedpohcs.cli import main
from fedpohcs.core.config import FederationConfig, ServerOptimiserConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import AGGREGATORS, OPTIMISERS
from fedpohcs.core.types import ServerState
from fedpohcs.learners.networks import AgentParams
from fedpohcs.runs.checks import optimiser_name
from fedpohcs.runs.experiment import resume_experiment, run_experiment, start_training
from fedpohcs.runs.loading import load_run
from fedpohcs.server.aggregation import Aggregator, Combination
from fedpohcs.server.optimisers import IDENTITY, Proposal, ServerOptimiser, make_optimiser
from fedpohcs.server.round import run_round
from fedpohcs.server.selection import make_selector

SMALL = FederationConfig(num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=4)
CONFIG = replace(preset("tabular"), rounds=4, federation=SMALL)
FILES = ("rounds.csv", "clients.csv", "policy.npz")


def stacked(*updates: Weights) -> Weights:
    return jax.tree.map(lambda *rows: np.stack(rows), *updates)


def two_rounds(name: str, changes: list[list[list[float]]], **settings: Any) -> list[np.ndarray]:
    """The policy after each of two rounds in which equally weighted clients change it so."""
    optimiser = make_optimiser(name, ServerOptimiserConfig(**settings))
    params = weights([1.0, -2.0])
    state, policies = optimiser.init(params), []
    for change in changes:
        updates = stacked(*(weights(params.policy + np.float32(one)) for one in change))
        proposal = Proposal(
            jax.tree.map(lambda x: x.mean(axis=0), updates), updates, np.full(len(change), 1 / len(change))
        )
        params, state = optimiser.apply(state, params, proposal)
        policies.append(params.policy)
    return policies


CHANGES = [[[0.5, 0.25], [0.25, -0.75]], [[-0.125, 0.5], [0.375, 1.0]]]
MEANS = [np.array([0.375, -0.25]), np.array([0.125, 0.75])]
START = np.array([1.0, -2.0])


def test_momentum_adds_up_changes_as_worked_out_by_hand() -> None:
    """v1 = d1, v2 = .5 d1 + d2; each step is twice v."""
    first, second = two_rounds("momentum", CHANGES, momentum=0.5, learning_rate=2.0)
    np.testing.assert_allclose(first, [1.75, -2.5], rtol=1e-6)
    np.testing.assert_allclose(second, [1.75 + 2 * (0.1875 + 0.125), -2.5 + 2 * (-0.125 + 0.75)], rtol=1e-6)


def test_adam_takes_the_steps_of_its_definition() -> None:
    first, second = two_rounds("adam", CHANGES, learning_rate=0.1, beta1=0.5, beta2=0.75, epsilon=0.25)
    m1, v1 = 0.5 * MEANS[0], 0.75 * 0.0625 + 0.25 * MEANS[0] ** 2
    expected = START + 0.1 * m1 / (np.sqrt(v1) + 0.25)
    np.testing.assert_allclose(first, expected, rtol=1e-6)
    m2, v2 = 0.5 * m1 + 0.5 * MEANS[1], 0.75 * v1 + 0.25 * MEANS[1] ** 2
    np.testing.assert_allclose(second, expected + 0.1 * m2 / (np.sqrt(v2) + 0.25), rtol=1e-6)


def test_yogi_takes_the_steps_of_its_definition() -> None:
    """Its second moment grows where the squared change is larger than it, and shrinks where it is smaller."""
    first, second = two_rounds("yogi", CHANGES, learning_rate=0.1, beta1=0.5, beta2=0.75, epsilon=0.3)
    m1 = 0.5 * MEANS[0]
    v1 = np.array([0.09 + 0.25 * 0.140625, 0.09 - 0.25 * 0.0625])
    expected = START + 0.1 * m1 / (np.sqrt(v1) + 0.3)
    np.testing.assert_allclose(first, expected, rtol=1e-6)
    m2 = 0.5 * m1 + 0.5 * MEANS[1]
    v2 = np.array([v1[0] - 0.25 * 0.015625, v1[1] + 0.25 * 0.5625])
    np.testing.assert_allclose(second, expected + 0.1 * m2 / (np.sqrt(v2) + 0.3), rtol=1e-6)


def test_fedexp_extrapolates_by_the_ratio_of_squared_norms() -> None:
    """Round 1: |d1|^2 = .3125, |d2|^2 = .625, |mean|^2 = .203125. Round 2: ratio below 1, so the mean itself."""
    first, second = two_rounds("fedexp", CHANGES, epsilon=0.01)
    ratio = (0.3125 + 0.625) / 2 / (2 * (0.203125 + 0.01))
    assert ratio > 1
    np.testing.assert_allclose(first, START + ratio * MEANS[0], rtol=1e-6)
    assert (0.265625 + 1.140625) / 2 / (2 * (0.578125 + 0.01)) < 1
    np.testing.assert_allclose(second, first + MEANS[1], rtol=1e-6)


def test_fedexp_weighs_the_clients_as_aggregation_does() -> None:
    optimiser = make_optimiser("fedexp", ServerOptimiserConfig(epsilon=0.0))
    start, weight = weights([0.0, 0.0]), np.array([0.75, 0.25])
    updates = stacked(weights([1.0, 0.0]), weights([-2.0, 2.0]))
    mean = np.array([0.25, 0.5])
    params, _ = optimiser.apply(optimiser.init(start), start, Proposal(weights(mean), updates, weight))
    np.testing.assert_allclose(params.policy, (0.75 * 1 + 0.25 * 8) / (2 * 0.3125) * mean, rtol=1e-6)


def test_fedexp_of_clients_that_agree_is_fedavg_to_the_byte() -> None:
    """The ratio of squared norms is 1/2 then, so the step is the mean itself."""
    agreed = [[change[0]] * 3 for change in CHANGES]
    for found, plain in zip(two_rounds("fedexp", agreed), two_rounds("identity", agreed), strict=True):
        assert found.tobytes() == plain.tobytes()


@pytest.mark.parametrize(("name", "roots"), [("adam", 1), ("yogi", 2)])
def test_steps_that_changes_do_not_scale_are_those_of_fedavg(name: str, roots: int) -> None:
    """Far above all changes, tau alone divides; the second moment of Yogi stays at tau^2, whose root is added."""
    settings = {"learning_rate": roots * 1e6, "epsilon": 1e6, "beta1": 0.0, "beta2": 0.0}
    found, plain = two_rounds(name, CHANGES, **settings), two_rounds("identity", CHANGES)
    np.testing.assert_allclose(found, plain, rtol=1e-5)


def test_fedexp_without_any_change_stays_where_it_is() -> None:
    for policy in two_rounds("fedexp", [[[0.0, 0.0]] * 2] * 2, epsilon=0.0):
        np.testing.assert_array_equal(policy, START)


def test_momentum_without_momentum_is_the_identity_to_the_last_bit(tmp_path: Path) -> None:
    plain = replace(CONFIG, federation=replace(SMALL, server_optimiser="momentum"))
    run_experiment(CONFIG, tmp_path / "identity")
    run_experiment(replace(plain, server_optimiser=ServerOptimiserConfig(momentum=0.0)), tmp_path / "momentum")
    run_experiment(replace(plain, server_optimiser=ServerOptimiserConfig(momentum=0.5)), tmp_path / "other")
    for file in FILES:
        assert (tmp_path / "identity" / file).read_bytes() == (tmp_path / "momentum" / file).read_bytes(), file
    assert (tmp_path / "identity" / "rounds.csv").read_bytes() != (tmp_path / "other" / "rounds.csv").read_bytes()


def test_momentum_without_momentum_is_the_identity_in_double_precision_too() -> None:
    """The previous numbers plus the difference would differ from the proposal in the last bit."""
    optimiser = make_optimiser("momentum", ServerOptimiserConfig(momentum=0.0))
    previous, proposed = np.random.default_rng(0).normal(size=(2, 1000))
    assert (previous + (proposed - previous) != proposed).any()
    proposal = Proposal({"q": proposed}, {"q": proposed[None]}, np.ones(1))
    params, _ = optimiser.apply(optimiser.init({"q": previous}), {"q": previous}, proposal)
    np.testing.assert_array_equal(params["q"], proposed)


LEARNING = [name for name in OPTIMISERS if name != "identity"]


@pytest.mark.parametrize("name", LEARNING)
def test_controls_have_the_proposed_value_and_the_other_parts_are_optimised(name: str) -> None:
    optimiser = make_optimiser(name, ServerOptimiserConfig(momentum=0.5, learning_rate=0.5, inner_steps=1))
    previous, proposed = weights([1.0], 1.0, 1.0), weights([2.0], 3.0, 4.0)
    updates = stacked(weights([6.0], 9.0, 4.0), weights([-2.0], -3.0, 4.0))
    state = optimiser.init(previous)
    assert {place.split("/")[0] for place in state} == {"policy", "critic"}
    proposal = Proposal(proposed, updates, np.array([0.5, 0.5]), np.array([0, 1]), np.array([1.0, 2.0]))
    params, _ = optimiser.apply(state, previous, proposal)
    assert params.temperature == 4.0
    assert params.policy[0] not in (1.0, 2.0)
    assert params.critic[0] not in (1.0, 3.0)
    assert params.policy.dtype == np.float32


def test_the_kl_coefficient_of_ppo_is_a_control() -> None:
    assert AgentParams.controls == ("kl_coefficient",)
    assert AgentParams._fields == ("policy", "critic", "kl_coefficient")


def test_only_the_parts_of_the_setting_are_optimised() -> None:
    optimiser = make_optimiser("momentum", ServerOptimiserConfig(learning_rate=0.5, parts=("policy",)))
    previous, proposed = weights([1.0], 1.0, 1.0), weights([2.0], 3.0, 4.0)
    params, _ = optimiser.apply(optimiser.init(previous), previous, Proposal(proposed, stacked(proposed), np.ones(1)))
    assert (params.policy[0], params.critic[0], params.temperature) == (1.5, 3.0, 4.0)


@pytest.mark.parametrize("parts", [("polcy",), ("policy", "kl_coefficient")])
def test_a_part_that_is_not_learnt_is_refused_before_anything_is_trained(parts: tuple) -> None:
    federation = replace(SMALL, server_optimiser="adam")
    config = replace(CONFIG, federation=federation, server_optimiser=ServerOptimiserConfig(parts=parts))
    with pytest.raises(UserError, match=r"server_optimiser.parts \(=.*\) must name some of the parts policy, critic"):
        start_training(config)


def test_parameters_in_a_dict_are_optimised_by_part_too() -> None:
    optimiser = make_optimiser("momentum", ServerOptimiserConfig(learning_rate=0.5))
    previous, proposed = {"q": np.zeros(2, np.float32)}, {"q": np.ones(2, np.float32)}
    params, state = optimiser.apply(
        optimiser.init(previous), previous, Proposal(proposed, stacked(proposed), np.ones(1))
    )  # type: ignore[arg-type]
    np.testing.assert_array_equal(params["q"], [0.5, 0.5])
    np.testing.assert_array_equal(state["q"]["velocity"], [1.0, 1.0])


@pytest.mark.parametrize("name", [name for name in OPTIMISERS if name not in {"scaffold", "fedcm", "svrpg"}])
def test_a_run_that_goes_on_writes_the_bytes_of_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    config = replace(CONFIG, federation=replace(SMALL, server_optimiser=name))
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=2), tmp_path / "parts")
    resume_experiment(tmp_path / "parts", rounds=4)
    for file in FILES:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes(), file


def test_a_round_without_a_sound_update_keeps_policy_and_state() -> None:
    optimiser = make_optimiser("momentum", ServerOptimiserConfig(momentum=0.9))
    clients = ShiftingClients([[1.0], [2.0]])
    state = ServerState(0, clients.initial_params(), None, optimiser=optimiser.init(clients.initial_params()))
    federation = FederationConfig(num_clients=2, num_candidates=2, num_selected=2)
    state, _ = play(state, clients, optimiser, federation)
    assert state.optimiser["policy"]["velocity"].tolist() == [1.5]
    clients.steps[:] = 0
    after, record = play(state, clients, optimiser, federation)
    assert len(record.rejected) == 2
    assert after.params is state.params and after.optimiser is state.optimiser
    clients.steps[:] = 10
    after, _ = play(after, clients, optimiser, federation)
    assert after.params.policy[0] == pytest.approx(1.5 + (0.9 * 1.5 + 1.5))


def play(state: ServerState, clients: Any, optimiser: ServerOptimiser, federation: FederationConfig) -> Any:
    return run_round(state, clients, make_selector("full"), federation, 0, optimiser=optimiser)


def changed(change: Callable[[Weights], Any]) -> Callable[..., Any]:
    return lambda state, previous, proposal: (change(proposal.params), state)


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "NaN": (changed(lambda p: p._replace(policy=p.policy * np.nan)), "a number in policy that is not finite"),
    "too large": (changed(lambda p: p._replace(policy=np.full(1, 1e300))), "a number in policy that is not finite"),
    "shape": (changed(lambda p: p._replace(policy=np.zeros(3))), r"returned policy of shape \(3,\), not \(1,\)"),
    "type": (changed(lambda p: p._replace(policy=np.array(["x"]))), "returned policy of type <U1"),
    "another tree": (changed(lambda p: p._asdict()), "returned parameters with the structure"),
    "nothing": (lambda state, previous, proposal: None, "returned an object of type NoneType"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_optimiser_that_returns_no_parameters_is_refused_by_name(kind: str) -> None:
    apply, message = WRONG[kind]
    with pytest.raises(UserError, match=message) as refused:
        first_round(ServerOptimiser(lambda params: (), apply, name="mine"))
    assert re.match(r"server optimiser 'mine' .+\. .+\.$", str(refused.value))


def first_round(optimiser: ServerOptimiser, **settings: Any) -> tuple[ServerState, ShiftingClients]:
    clients = ShiftingClients([[1.0], [2.0]])
    federation = FederationConfig(num_clients=2, num_candidates=2, num_selected=2, **settings)
    state = ServerState(0, clients.initial_params(), None, optimiser=optimiser.init(clients.initial_params()))
    return play(state, clients, optimiser, federation)[0], clients


def test_an_aggregator_that_returns_no_parameters_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil = Aggregator(lambda updates: Combination(updates.previous._replace(policy=np.full(1, np.nan))))
    monkeypatch.setitem(AGGREGATORS.entries, "mine", spoil)
    with pytest.raises(UserError, match="aggregator 'mine' returned a number in policy that is not finite"):
        first_round(make_optimiser("adam", ServerOptimiserConfig()), aggregator="mine")


def test_numbers_of_another_precision_are_converted() -> None:
    double = changed(lambda p: jax.tree.map(lambda x: np.asarray(x, np.float64), p))
    state, _ = first_round(ServerOptimiser(lambda params: (), double, name="mine"))
    assert {leaf.dtype for leaf in map(np.asarray, jax.tree.leaves(state.params))} == {np.dtype(np.float32)}


def test_what_an_optimiser_sends_reaches_the_clients_and_nothing_is_sent_by_default() -> None:
    sending = IDENTITY._replace(init=lambda params: {"velocity": np.ones(1)}, sends=lambda state: state, name="mine")
    assert [list(extra) for extra in first_round(sending)[1].received] == [["velocity"]]
    assert first_round(IDENTITY)[1].received == [{}]
    with pytest.raises(UserError, match="server optimiser 'mine' sends an object of type list"):
        first_round(sending._replace(sends=lambda state: [1]))  # type: ignore[arg-type, return-value]


def fails(settings: ServerOptimiserConfig) -> ServerOptimiser:
    raise ValueError("half finished")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (fails, "server optimiser 'mine' cannot be made: ValueError: half finished. Its function takes one argument"),
        (lambda settings: 3, "is made by a function that returns an object of type int. It must return a Server"),
        (lambda: IDENTITY, "server optimiser 'mine' cannot be made: TypeError"),
    ],
)
def test_an_optimiser_that_cannot_be_made_is_refused_before_anything_is_written(
    make: Any, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(OPTIMISERS.entries, "mine", make)
    with pytest.raises(UserError, match=message):
        run_experiment(replace(CONFIG, federation=replace(SMALL, server_optimiser="mine")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_optimisers_are_set_on_the_command_line_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--federation.server-optimiser", "adam", "--server-optimiser.learning-rate", "0.05"]
    given += ["--server-optimiser.parts", "policy"]
    assert main(["train", "tabular", "--rounds", "1", "--out", str(tmp_path / "run"), *given]) == 0
    config = load_run(tmp_path / "run").config
    assert config.federation.server_optimiser == "adam"
    assert config.server_optimiser == ServerOptimiserConfig(learning_rate=0.05, parts=("policy",))
    capsys.readouterr()
    assert main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert all(lines[name].strip() != name for name in OPTIMISERS)
    assert main(["train", "tabular", "--out", str(tmp_path / "no"), "--federation.server-optimiser", "adm"]) == 2
    assert "Did you mean 'adam'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_an_epsilon_of_zero_is_refused_where_it_is_divided_by(name: str) -> None:
    with pytest.raises(UserError, match=r"server_optimiser.epsilon \(=0.0\) must be above 0 for adam and yogi"):
        make_optimiser(name, ServerOptimiserConfig(epsilon=0.0))


def test_a_selector_may_recommend_an_optimiser_which_the_config_may_overrule() -> None:
    selector, eager = make_selector("fedavg"), make_selector("fedavg")._replace(optimiser="yogi")
    assert optimiser_name(CONFIG, eager) == "yogi" and CONFIG.method == CONFIG.selector
    plain = replace(CONFIG, federation=replace(CONFIG.federation, server_optimiser="identity"))
    assert optimiser_name(plain, eager) == "identity" and plain.method == f"{CONFIG.selector}+identity"
    assert optimiser_name(CONFIG, selector) == "identity"
