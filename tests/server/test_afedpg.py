"""AFedPG: the published rule with late gradients, reductions to the byte, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpohcs.core.algorithms import with_algorithm
from fedpohcs.core.config import ExperimentConfig, ServerOptimiserConfig, TimeConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.trees import named_arrays, take_clients
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import resume_experiment, run_experiment, start_training
from fedpohcs.server.optimisers import Proposal, make_optimiser

THETA = np.array([1.0, -2.0, 0.5])
GRADIENTS = np.array([[3.0, 4.0, 0.0], [0.0, -1.0, 2.0], [1.0, 1.0, 1.0], [-2.0, 0.0, 0.5], [0.3, 0.1, -4.0]])
DELAYS = [0, 0, 2, 1, 3]


def published(gradients: np.ndarray, delays: list[int], rate: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """The policy and the policy ahead after every update, written out with exact powers."""
    theta, mean, found = THETA.copy(), np.zeros(3), []
    for k, (gradient, delay) in enumerate(zip(gradients, delays, strict=True)):
        count = (2.0 / (k - delay + 2.0)) ** 0.8
        mean = mean - count * mean + count * gradient
        step = 2 * rate / (k + 2) * mean / np.sqrt((mean**2).sum())
        following = (2.0 / (k + 3.0)) ** 0.8
        theta = theta + step
        found.append((theta, theta + (1 - following) / following * step))
    return found


def updated(settings: ServerOptimiserConfig, gradients: np.ndarray, delays: list[int]) -> list[tuple[Any, Any]]:
    """The same by the optimiser; updates are changes of the policy ahead."""
    optimiser, params = make_optimiser("afedpg", settings), {"policy": THETA}
    state, found = optimiser.init(params), []
    for gradient, delay in zip(gradients, delays, strict=True):
        reached = {"policy": optimiser.start(state, params)["policy"] + gradient}
        one = {"policy": reached["policy"][None]}
        params, state = optimiser.apply(state, params, Proposal(reached, one, np.ones(1), delay=delay))
        found.append((params["policy"], optimiser.start(state, params)["policy"]))
    return found


def test_late_gradients_count_as_when_they_were_asked_for() -> None:
    found = updated(ServerOptimiserConfig(learning_rate=0.5), GRADIENTS, DELAYS)
    np.testing.assert_allclose(found, published(GRADIENTS, DELAYS, 0.5), rtol=1e-12)
    in_time = published(GRADIENTS, [0] * 5, 0.5)
    assert np.allclose(found[1][0], in_time[1][0])
    assert not np.allclose(found[2][0], in_time[2][0])


def test_the_first_step_is_along_the_gradient_with_the_length_of_the_rate() -> None:
    (theta, ahead), *_ = updated(ServerOptimiserConfig(learning_rate=0.5), GRADIENTS[:1], [0])
    np.testing.assert_allclose(theta, [1.3, -1.6, 0.5])
    np.testing.assert_allclose(ahead - theta, (1.5**0.8 - 1) * np.array([0.3, 0.4, 0.0]))


def test_without_a_mean_and_with_equal_steps_it_is_the_normalised_gradient_and_looks_nowhere() -> None:
    settings = ServerOptimiserConfig(learning_rate=0.5, gradient_decay=0.0, step_decay=0.0)
    found = updated(settings, GRADIENTS, DELAYS)
    lengths = np.linalg.norm(GRADIENTS, axis=1, keepdims=True)
    np.testing.assert_allclose([theta for theta, _ in found], THETA + np.cumsum(0.5 * GRADIENTS / lengths, axis=0))
    assert all((theta == ahead).all() for theta, ahead in found)


def test_a_gradient_of_nothing_moves_nothing() -> None:
    (theta, ahead), *_ = updated(ServerOptimiserConfig(), np.zeros((1, 3)), [0])
    assert (theta == THETA).all() and (ahead == THETA).all()


# Whole runs


def small(selected: int, **time: Any) -> ExperimentConfig:
    config = with_algorithm(preset("tabular"), "afedpg")
    few = {"num_clients": 5, "num_candidates": 5, "num_selected": selected, "evaluation_episodes": 2}
    return replace(
        config,
        rounds=6,
        federation=replace(config.federation, **few),
        learner=replace(config.learner, episodes=4),
        time=replace(config.time, **time),
    )


def returns(config: ExperimentConfig, out: Path | None = None) -> list[bytes]:
    return [record.evaluation.mean_return.tobytes() for record in run_experiment(config, out).records]


def test_without_delays_it_is_the_synchronous_method_to_the_byte() -> None:
    import jax

    one, other = run_experiment(small(1)), run_experiment(replace(small(1), time=TimeConfig()))
    assert one.mean_returns == other.mean_returns
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    delays = [record.timing.delay.tolist() for record in one.records[1:]]
    assert delays == [[0]] * 6


def flat(new: Any, old: Any) -> np.ndarray:
    """The change of the policy."""
    pairs = zip(*(named_arrays(params.policy).values() for params in (new, old)), strict=True)
    return np.concatenate([np.ravel(one - other) for one, other in pairs])


def test_late_updates_are_changes_of_the_policy_ahead_that_was_sent() -> None:
    """What reaches the rule are the gradients that clients computed, whenever they arrive."""
    training, sent, seen = start_training(small(3, spread=2.0)), {}, []
    train, optimiser = training.executor.train, training.optimiser

    def spied(params: Any, number: int, clients: Any, extra: Any) -> Any:
        assert number == 0 or flat(params, training.state.params).any()  # it is ahead
        updates = train(params, number, clients, extra)
        for row, client in enumerate(updates.client):
            sent[int(client), number] = flat(take_clients(updates.params, row), params)
        return updates

    def noted(state: Any, previous: Any, proposal: Proposal) -> Any:
        change = flat(proposal.params, optimiser.start(state, previous))
        seen.append((int(proposal.client[0]), proposal.delay, change))
        return optimiser.apply(state, previous, proposal)

    training.executor.train, training.optimiser = spied, optimiser._replace(apply=noted)
    list(training.remaining_rounds())
    assert max(delay for _, delay, _ in seen) > 0
    for number, (client, delay, change) in enumerate(seen):
        np.testing.assert_allclose(change, sent[client, number - delay], atol=1e-6)


def test_a_run_that_goes_on_equals_one_that_never_stopped(tmp_path: Path) -> None:
    whole = returns(small(3))
    run_experiment(replace(small(3), rounds=3), tmp_path / "run")
    resumed = resume_experiment(tmp_path / "run", rounds=6)
    assert [record.evaluation.mean_return.tobytes() for record in resumed.records] == whole[4:]


@pytest.mark.parametrize(
    ("section", "change", "text"),
    [
        ("server_optimiser", {"gradient_decay": 1.5}, "server_optimiser.gradient_decay"),
        ("server_optimiser", {"step_decay": -0.1}, "server_optimiser.step_decay"),
        ("federation", {"personal": "last-layer"}, "federation.personal"),
        (None, {"privacy": "masked"}, "time.model"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(section: str | None, change: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text) as refused:
        config = small(3)
        changed = {section: replace(getattr(config, section), **change)} if section else change
        check_config(replace(config, **changed))
    assert "\n" not in str(refused.value)
