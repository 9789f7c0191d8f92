"""Server optimisers of the literature, against the published formulas in NumPy, and the rules they reduce to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from shifting_clients import Weights, weights

from fedpohcs.core.config import ExperimentConfig, FederationConfig, ServerOptimiserConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.experiment import resume_experiment, run_experiment, start_training
from fedpohcs.server.optimisers import Proposal, ServerOptimiser, make_optimiser
from fedpohcs.worlds.gym import GymConfig
from leaning import ITERATIONS, RATE, leaning_config

N = 4
FEW = FederationConfig(num_clients=N, num_candidates=3, num_selected=2)
RETURNS = np.array([4.0, 0.0, 2.0, np.nan])


def optimiser_of(name: str, **settings: Any) -> ServerOptimiser:
    return make_optimiser(name, ServerOptimiserConfig(**settings))


def proposal_of(previous: Weights, clients: list[int], changes: Any, returns: np.ndarray = RETURNS) -> Proposal:
    """A proposal in which these clients change the policy so, all with the same weight."""
    rows = [weights(previous.policy + np.float32(change), 1.0, 2.0) for change in changes]
    updates = jax.tree.map(lambda *parts: np.stack(parts), *rows)
    weight = np.full(len(rows), 1 / len(rows))
    mean = jax.tree.map(lambda x: np.tensordot(weight, x, axes=1).astype(x.dtype), updates)
    return Proposal(mean, updates, weight, np.array(clients), returns)


# FedVARP


def test_fedvarp_replaces_absent_clients_by_their_latest_changes() -> None:
    """v = mean over S of (Delta_k - y_k) + mean over all N of y_n, written with a dictionary of y."""
    generator, optimiser = np.random.default_rng(0), optimiser_of("fedvarp", learning_rate=0.5)
    params = weights(np.zeros(3))
    state, remembered = optimiser.init(params), dict.fromkeys(range(N), np.zeros(3))
    for clients in ([0, 1], [1, 3], [0, 2], [1, 2, 3], [0]):
        changes = generator.normal(size=(len(clients), 3)).astype(np.float32)
        v = np.mean([change - remembered[k] for k, change in zip(clients, changes, strict=True)], axis=0)
        expected = params.policy + 0.5 * (v + np.mean(list(remembered.values()), axis=0))
        remembered |= dict(zip(clients, changes, strict=True))
        params, state = optimiser.apply(state, params, proposal_of(params, clients, changes))
        np.testing.assert_allclose(params.policy, expected, rtol=1e-5, atol=1e-6)


def test_fedvarp_with_full_participation_is_fedavg_to_the_byte() -> None:
    generator, optimiser = np.random.default_rng(1), optimiser_of("fedvarp")
    params = weights(generator.normal(size=200))
    state = optimiser.init(params)
    for _ in range(5):
        proposal = proposal_of(params, [0, 1, 2, 3], generator.normal(size=(N, 200)))
        params, state = optimiser.apply(state, params, proposal)
        assert params.policy.tobytes() == proposal.params.policy.tobytes()


# q-FFL


def published_qffl(changes: np.ndarray, loss: np.ndarray, q: float, lipschitz: float) -> np.ndarray:
    """Delta_k = F^q L (theta - theta_k), h_k = q F^(q-1) |L (theta - theta_k)|^2 + L F^q; the step of theta."""
    delta = [f**q * lipschitz * -change for f, change in zip(loss, changes, strict=True)]
    h = [
        q * f ** (q - 1) * np.sum((lipschitz * change) ** 2) + lipschitz * f**q
        for f, change in zip(loss, changes, strict=True)
    ]
    return -np.sum(delta, axis=0) / np.sum(h)


@pytest.mark.parametrize("q", [0.001, 0.5, 1.0, 5.0])
def test_qffl_is_the_published_rule(q: float) -> None:
    """The losses of returns 4, 0 and 2 are 0 (cut to .01), 1 and .5."""
    changes = np.random.default_rng(2).normal(size=(3, 2)).astype(np.float32)
    start, optimiser = weights(np.zeros(2)), optimiser_of("qffl", q=q, lipschitz=3.0)
    params, _ = optimiser.apply(optimiser.init(start), start, proposal_of(start, [0, 1, 2], changes))
    expected = published_qffl(changes.astype(float), np.array([0.01, 1.0, 0.5]), q, 3.0)
    np.testing.assert_allclose(params.policy, expected, rtol=1e-4)


def test_qffl_with_q_0_is_fedavg_to_the_byte() -> None:
    generator, optimiser = np.random.default_rng(3), optimiser_of("qffl", q=0.0)
    params = weights(generator.normal(size=200))
    state = optimiser.init(params)
    for clients in ([0, 1, 2], [1, 3], [3]):
        proposal = proposal_of(params, clients, generator.normal(size=(len(clients), 200)))
        params, state = optimiser.apply(state, params, proposal)
        assert params.policy.tobytes() == proposal.params.policy.tobytes()


def test_losses_of_qffl_are_relative_to_the_best_and_worst_return_ever_seen() -> None:
    optimiser, start, changes = optimiser_of("qffl", lipschitz=0.0), weights(np.zeros(2)), [[1.0, 0], [0, 1.0]]
    _, state = optimiser.apply(optimiser.init(start), start, proposal_of(start, [0, 1], changes))
    later = np.array([2.0, 3.0, 2.5, 3.5])  # between the 0 and the 4 of before
    params, state = optimiser.apply(state, start, proposal_of(start, [0, 1], changes, later))
    np.testing.assert_allclose(params.policy, np.array([0.5, 0.25]) / 0.75, rtol=1e-6)
    assert (state["policy"]["best"], state["policy"]["worst"]) == (4, 0)
    unknown = np.array([2.0, np.nan, np.nan, np.nan])  # counts like those that are known
    params, _ = optimiser.apply(state, start, proposal_of(start, [0, 1], changes, unknown))
    np.testing.assert_allclose(params.policy, [0.5, 0.5], rtol=1e-6)


# Decaying steps


@pytest.mark.parametrize("name", ["identity", "momentum", "fedvarp"])
def test_steps_decay_from_the_second_round_on(name: str) -> None:
    """Without memory, changes of 1 make steps 1, 1/2, 1/4; the critic and controls are proposed as they are."""
    optimiser = optimiser_of(name, learning_rate_decay=0.5, momentum=0.0, parts=("policy",))
    plain, start = optimiser_of(name, momentum=0.0, parts=("policy",)), weights(np.zeros(1))
    state, plain_state, params = optimiser.init(start), plain.init(start), start
    for number in range(3):
        proposal = proposal_of(params, [0, 1, 2, 3], np.ones((N, 1)))
        full, plain_state = plain.apply(plain_state, params, proposal)
        new, state = optimiser.apply(state, params, proposal)
        np.testing.assert_allclose(new.policy - params.policy, 0.5**number * (full.policy - params.policy), rtol=1e-6)
        assert (new.critic[0], new.temperature) == (1.0, 2.0)
        params = new


def test_a_decay_that_is_none_or_no_fraction_changes_nothing_or_is_refused() -> None:
    assert optimiser_of("identity", learning_rate_decay=1.0).init(weights([0.0])) == ()
    with pytest.raises(UserError, match=r"server_optimiser.learning_rate_decay \(=1.5\) must be above 0 and at most 1"):
        ServerOptimiserConfig(learning_rate_decay=1.5)


# SCAFFOLD and FedCM, which steer local steps


def with_optimiser(config: ExperimentConfig, name: str, **settings: Any) -> ExperimentConfig:
    federation = replace(config.federation, server_optimiser=name)
    return replace(config, federation=federation, server_optimiser=ServerOptimiserConfig(**settings))


def trained(config: ExperimentConfig) -> list[tuple[RoundRecord, np.ndarray]]:
    """The record and the weights after every round."""
    training, rounds = start_training(config), []
    try:
        for record in training.remaining_rounds():
            leaves = jax.tree.leaves(training.state.params)
            rounds.append((record, np.concatenate([np.ravel(leaf) for leaf in leaves])))
    finally:
        training.executor.close()
    return rounds


WORLDS = {
    "tabular": replace(preset("tabular"), federation=FEW),
    "gym": replace(preset("gym"), scenario=GymConfig(env="CartPole-v1"), federation=FEW),
}


@pytest.mark.parametrize("world", WORLDS)
def test_scaffold_is_the_published_rule(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients theta - goal, corrected by c - c_n in each of I steps; c_n <- c_n - c + (theta - theta_n) / (I eta)."""
    if world == "gym":
        pytest.importorskip("gymnasium")
    config = with_optimiser(leaning_config(WORLDS[world], monkeypatch), "scaffold", learning_rate=0.8)
    (_, theta), *rounds = trained(config)
    c, own = np.zeros_like(theta), np.zeros((N, len(theta)))
    for record, found in rounds:
        clients, ends, changes = record.selection.client.tolist(), [], []
        for client, goal in zip(clients, record.updates_info["goal"], strict=True):
            local = theta.astype(float)
            for _ in range(ITERATIONS):
                local = local - RATE * ((local - goal) - own[client] + c)
            control = own[client] - c + (theta - local) / (ITERATIONS * RATE)
            changes.append(control - own[client])
            own[client] = control
            ends.append(local)
        theta = theta + 0.8 * (np.mean(ends, axis=0) - theta)
        c = c + len(clients) / N * np.mean(changes, axis=0)
        np.testing.assert_allclose(found, theta, rtol=1e-4, atol=1e-5)
    assert abs(c).max() > 1e-3  # there was something to correct


def test_scaffold_with_one_client_is_plain_training_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = leaning_config(WORLDS["tabular"], monkeypatch, num_clients=1, num_candidates=1, num_selected=1)
    for (_, plain), (_, found) in zip(trained(alone), trained(with_optimiser(alone, "scaffold")), strict=True):
        assert plain.tobytes() == found.tobytes()


def test_fedcm_is_the_published_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local direction alpha g + (1 - alpha) m, where m is the last global change over -eta I."""
    alpha = 0.3
    config = with_optimiser(leaning_config(WORLDS["tabular"], monkeypatch), "fedcm", alpha=alpha)
    (_, theta), *rounds = trained(config)
    m = np.zeros_like(theta)
    for record, found in rounds:
        ends = []
        for goal in record.updates_info["goal"]:
            local = theta.astype(float)
            for _ in range(ITERATIONS):
                local = local - RATE * (alpha * (local - goal) + (1 - alpha) * m)
            ends.append(local)
        change = np.mean(ends, axis=0) - theta
        theta, m = theta + change, -change / (RATE * ITERATIONS)
        np.testing.assert_allclose(found, theta, rtol=1e-4, atol=1e-5)


def test_fedcm_with_alpha_1_is_fedavg_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    config = leaning_config(WORLDS["tabular"], monkeypatch)
    for (_, plain), (_, found) in zip(
        trained(config), trained(with_optimiser(config, "fedcm", alpha=1.0)), strict=True
    ):
        assert plain.tobytes() == found.tobytes()


@pytest.mark.parametrize("name", ["scaffold", "fedcm"])
def test_a_steered_run_that_goes_on_writes_the_bytes_of_one_that_never_stopped(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = with_optimiser(leaning_config(WORLDS["tabular"], monkeypatch), name)
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=2), tmp_path / "parts")
    resume_experiment(tmp_path / "parts", rounds=4)
    for file in ("rounds.csv", "clients.csv", "policy.npz"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes(), file


def test_only_the_parts_of_the_setting_are_steered() -> None:
    start = weights(np.zeros(2))
    for name in ("scaffold", "fedcm"):
        optimiser = optimiser_of(name, parts=("policy",))
        sent = optimiser.sends(optimiser.init(start))
        assert set(sent) == {"steering/share", "steering/drift/policy"}
    assert optimiser_of("scaffold").controls and not optimiser_of("fedcm").controls
