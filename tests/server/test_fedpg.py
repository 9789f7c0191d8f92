"""SVRPG and FedPG-BR on the server: the filter, inner loops, batch sizes, and reductions to the byte."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpohcs.core.algorithms import with_algorithm
from fedpohcs.core.config import AttackConfig, ExperimentConfig, FederationConfig, ServerOptimiserConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.steering import ANCHOR, ANCHORED, EPISODES
from fedpohcs.core.types import ClientUpdates
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.server.aggregation.fedpg_filter import near_the_centre
from fedpohcs.server.optimisers import Proposal, make_optimiser

SIGMA, DELTA = 0.1, 0.6


# The filter


def slow_filter(rows: np.ndarray, sigma: float, episodes: int, byzantine: int) -> set[int]:
    """The rule as it is published, clients one by one."""
    count = len(rows)

    def good(threshold: float) -> set[int] | None:
        def near(one: int, other: int) -> bool:
            return math.dist(rows[one], rows[other]) <= threshold

        central = [k for k in range(count) if sum(near(j, k) for j in range(count)) > count / 2]
        if not central:
            return None
        mean = [float(np.mean([rows[k][i] for k in central])) for i in range(rows.shape[1])]
        centre = min(central, key=lambda k: math.dist(rows[k], mean))
        return {k for k in range(count) if near(k, centre)}

    found = good(2 * sigma * math.sqrt(2 * math.log(2 * count / DELTA) / episodes))
    if found is None or len(found) < count - byzantine:
        found = good(2 * sigma)
    return found or set()


@pytest.mark.parametrize("seed", range(30))
def test_the_filter_is_the_published_rule(seed: int) -> None:
    generator = np.random.default_rng(seed)
    count, size = int(generator.integers(3, 11)), int(generator.integers(1, 5))
    rows = generator.normal(0, generator.choice([0.03, 0.1, 0.3]), (count, size))
    rows[: count // 3] += generator.normal(0, 0.3, size)
    episodes, byzantine = int(generator.integers(5, 30)), int(generator.integers(0, count // 2))
    start = generator.normal(size=size)
    merged, kept = near_the_centre(rows + start, start, SIGMA, DELTA, episodes, byzantine)
    wanted = slow_filter(rows, SIGMA, episodes, byzantine)
    assert set(np.flatnonzero(kept)) == wanted
    expected = start + rows[sorted(wanted)].mean(axis=0) if wanted else start
    np.testing.assert_allclose(merged, expected, atol=1e-12)


def test_a_larger_threshold_is_tried_before_too_many_are_removed_and_then_nobody_is_trusted() -> None:
    line = np.array([[0.0], [0.1], [0.2], [0.3]])
    tight = 2 * SIGMA * math.sqrt(2 * math.log(8 / DELTA) / 100)
    assert 0.04 < tight < 0.05  # no two are near
    assert near_the_centre(line, np.zeros(1), SIGMA, DELTA, 100, 1)[1].tolist() == [1, 1, 1, 1]  # 2 sigma = 0.2
    assert near_the_centre(10 * line, np.ones(1), SIGMA, DELTA, 100, 1)[1].tolist() == [0, 0, 0, 0]
    assert near_the_centre(10 * line, np.ones(1), SIGMA, DELTA, 100, 1)[0].tolist() == [1.0]


# Inner steps


def settings(**changes: Any) -> ServerOptimiserConfig:
    return ServerOptimiserConfig(**{"learning_rate": 0.1, "beta2": 0.999, "epsilon": 1e-8, **changes})


def proposal_of(change: float, **more: Any) -> Proposal:
    params = {"w": np.array([1 + change, 2 + change])}
    return Proposal(params, {"w": params["w"][None]}, np.ones(1), np.arange(1), np.zeros(4), **more)


PREVIOUS = {"w": np.array([1.0, 2.0])}


def adam(slopes: list[float]) -> float:
    """Where Adam gets from 0 along these slopes."""
    place, m, v = 0.0, 0.0, 0.0
    for t, slope in enumerate(slopes, 1):
        m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
        place += 0.1 * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return place


def test_one_inner_step_is_adam_on_the_mean_gradient() -> None:
    optimiser = make_optimiser("svrpg", settings(inner_steps=1))
    state, place = optimiser.init(PREVIOUS), 0.0
    slopes = [0.3, -0.2, 0.7]
    for number, slope in enumerate(slopes):
        moved, state = optimiser.apply(state, PREVIOUS, proposal_of(slope))
        place = adam(slopes[: number + 1]) - adam(slopes[:number])
        np.testing.assert_allclose(moved["w"], PREVIOUS["w"] + place, rtol=1e-9)
    stayed, same = optimiser.apply(state, PREVIOUS, proposal_of(0.0))  # nobody is trusted
    assert np.array_equal(stayed["w"], PREVIOUS["w"])
    assert same is state


class Simulator:
    """Gives the same correction in every inner step, and keeps the questions."""

    def __init__(self, correction: float, importance: list[float]) -> None:
        self.correction, self.importance, self.asked = correction, importance, []

    def __call__(self, params: Any, clients: Any, extra: Any, attempt: int) -> ClientUpdates:
        self.asked.append((params["w"].copy(), clients.tolist(), dict(extra), attempt))
        info = {"importance": np.array([self.importance[len(self.asked) - 1]])}
        return ClientUpdates(clients, {"w": params["w"][None] + self.correction}, np.array([9]), info)


def run_inner(change: float, simulator: Simulator, **changes: Any) -> np.ndarray:
    optimiser = make_optimiser("svrpg", settings(**changes))
    generator = np.random.default_rng(0)
    proposal = proposal_of(change, generator=generator, simulate=simulator, sent={EPISODES: np.int32(16)})
    return optimiser.apply(optimiser.init(PREVIOUS), PREVIOUS, proposal)[0]["w"]


def test_inner_steps_follow_the_correction_plus_the_mean_gradient() -> None:
    simulator = Simulator(0.5, [1.0, 1.004])
    moved = run_inner(0.25, simulator, inner_steps=3, inner_episodes=7, simulated_client=2)
    np.testing.assert_allclose(moved, PREVIOUS["w"] + adam([0.25, 0.75, 0.75]), rtol=1e-9)
    (first, clients, extra, attempt), second = simulator.asked
    np.testing.assert_allclose(first, PREVIOUS["w"] + adam([0.25]))
    assert (clients, attempt, second[3]) == ([2], 2, 3)
    assert (extra[EPISODES], extra[ANCHORED]) == (7, 1)
    assert np.array_equal(extra[ANCHOR + "w"], PREVIOUS["w"])


def test_the_inner_loop_ends_after_a_step_whose_episodes_are_of_another_policy() -> None:
    simulator = Simulator(0.5, [0.99, 1.0])
    moved = run_inner(0.25, simulator, inner_steps=5)
    np.testing.assert_allclose(moved, PREVIOUS["w"] + adam([0.25, 0.75]), rtol=1e-9)
    assert len(simulator.asked) == 1


def test_where_nobody_is_trusted_the_server_follows_its_own_gradient() -> None:
    simulator = Simulator(0.5, [1.0] * 2)
    moved = run_inner(0.0, simulator, inner_steps=2)
    np.testing.assert_allclose(moved, PREVIOUS["w"] + adam([0.5, 0.5]), rtol=1e-9)
    assert [extra[ANCHORED] for _, _, extra, _ in simulator.asked] == [0, 0]


def test_batch_sizes_are_uniform_and_inner_loops_geometric() -> None:
    optimiser = make_optimiser("svrpg", settings(inner_steps=0, batch_episodes=(12, 14)))
    generator = np.random.default_rng(0)
    drawn = [int(optimiser.draws(generator)[EPISODES]) for _ in range(600)]
    assert set(drawn) == {12, 13, 14}
    assert min(drawn.count(number) for number in (12, 13, 14)) > 150
    lengths = []
    for seed in range(200):
        simulator = Simulator(0.0, [1.0] * 1000)
        proposal = proposal_of(
            0.1, generator=np.random.default_rng(seed), simulate=simulator, sent={EPISODES: np.int32(12)}
        )
        optimiser.apply(optimiser.init(PREVIOUS), PREVIOUS, proposal)
        lengths.append(len(simulator.asked) + 1)
    assert min(lengths) == 1
    assert abs(np.mean(lengths) - (12 + 4) / 4) < 0.8  # three standard errors
    assert {clients[0] for _, clients, _, _ in simulator.asked} <= set(range(4))


# Whole runs


def small(algorithm: str, **server: Any) -> ExperimentConfig:
    config = with_algorithm(preset("tabular"), algorithm)
    federation = replace(
        config.federation, num_clients=5, num_candidates=5, num_selected=5, evaluation_episodes=2, tolerated_liars=2
    )
    return replace(
        config,
        rounds=3,
        federation=federation,
        learner=replace(config.learner, episodes=4, hidden_sizes=(), filter_warmup_steps=0),
        server_optimiser=replace(config.server_optimiser, learning_rate=0.05, inner_episodes=2, **server),
    )


def same_params(one: Any, other: Any) -> bool:
    import jax

    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


BATCH = {"batch_episodes": (2, 4), "inner_steps": 0}


@pytest.fixture(scope="module")
def reference() -> Any:
    return run_experiment(small("svrpg", **BATCH))


def test_fedpg_br_with_an_infinite_threshold_is_svrpg(reference: Any) -> None:
    config = small("fedpg-br", **BATCH)
    config = replace(config, federation=replace(config.federation, filter_sigma=1e9))
    found = run_experiment(config)
    assert [one.evaluation.mean_return.tobytes() for one in found.records] == [
        one.evaluation.mean_return.tobytes() for one in reference.records
    ]
    assert same_params(found.params, reference.params)
    assert all(record.updates_info["counted"].all() for record in found.records[1:])


def test_svrpg_with_one_inner_step_is_gpomdp() -> None:
    one, other = run_experiment(small("svrpg", inner_steps=1)), run_experiment(small("gpomdp"))
    assert same_params(one.params, other.params)


@pytest.mark.slow
def test_one_by_one_and_resumed_give_the_same(reference: Any, tmp_path: Path) -> None:
    import jax

    config = small("svrpg", **BATCH)
    apart = run_experiment(replace(config, executor="one-by-one"))
    for one, other in zip(jax.tree.leaves(apart.params), jax.tree.leaves(reference.params), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    run_experiment(replace(config, rounds=1), tmp_path / "run")
    resumed = resume_experiment(tmp_path / "run", rounds=3)
    assert same_params(resumed.params, reference.params)


def test_the_servers_episodes_leave_clients_as_they_are_and_have_draws_of_their_own() -> None:
    from fedpohcs.runs.experiment import start_training

    training = start_training(small("svrpg"))
    params, before = training.state.params, training.executor.snapshot().state
    who = np.array([1])
    first, again, other = (training.executor.simulate(params, 0, who, {}, attempt) for attempt in (1, 1, 2))
    trained = training.executor.train(params, 0, who)
    assert same_params(first.params, again.params)
    assert not same_params(first.params, other.params)
    assert not same_params(first.params, trained.params)
    assert same_params(before.memory, training.executor.snapshot().state.memory)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"server_optimiser": {"batch_episodes": (2, 9)}}, "learner.episodes (=4) must be at least 9"),
        ({"server_optimiser": {"simulated_client": 5}}, "server_optimiser.simulated_client (=5) must be below"),
        ({"server_optimiser": {"inner_steps": 0, "batch_episodes": None}}, "server_optimiser.batch_episodes (=None)"),
        ({"learner": preset("tabular").learner}, "federation.server_optimiser (='svrpg') needs a learner"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], text: str) -> None:
    config = small("svrpg")
    section = {
        name: replace(getattr(config, name), **value) if isinstance(value, dict) else value
        for name, value in change.items()
    }
    with pytest.raises(UserError, match=text.replace("(", r"\(").replace(")", r"\)")):
        check_config(replace(config, **section))


@pytest.mark.parametrize("name", ["fedsvrpg-m", "fednpg-admm"])
def test_learners_that_read_the_last_change_need_its_server(name: str) -> None:
    config = with_algorithm(preset("tabular"), name)
    check_config(config)
    with pytest.raises(UserError, match=f"learner.kind .='{name}'. needs federation.server_optimiser last-change"):
        check_config(replace(config, federation=replace(config.federation, server_optimiser="adam")))


def test_on_flower_fedpg_br_needs_a_client_that_plays_for_the_server() -> None:
    from fedpohcs.deploy import require_trusted

    config = small("fedpg-br", batch_episodes=(2, 4))
    with pytest.raises(UserError, match=r"simulated_client .='mixture'. must be the id of a client that you trust"):
        require_trusted(config)
    require_trusted(small("fedpg-br", batch_episodes=(2, 4), simulated_client=0))
    require_trusted(replace(config, federation=replace(config.federation, tolerated_liars=0)))
    require_trusted(small("svrpg"))
    require_trusted(small("fedpg-br", inner_steps=1))


def test_bad_numbers_are_refused() -> None:
    for changes in (
        {"batch_episodes": (4, 2)},
        {"batch_episodes": (4,)},
        {"inner_steps": -1},
        {"simulated_client": -1},
    ):
        with pytest.raises(UserError, match=f"server_optimiser.{next(iter(changes))}"):
            ServerOptimiserConfig(**changes)
    with pytest.raises(UserError, match=r"federation.filter_sigma"):
        FederationConfig(filter_sigma=0.0)


@pytest.mark.slow
def test_a_host_world_plays_as_many_episodes_as_the_server_asks_for_and_spoils_only_byzantine_ones() -> None:
    pytest.importorskip("gymnasium")
    from fedpohcs.execution.attacked import AttackedExecutor
    from fedpohcs.runs.experiment import start_training

    config = with_algorithm(preset("gym/CartPole-v1"), "gpomdp")
    federation = replace(config.federation, num_clients=2, num_candidates=2, num_selected=2, evaluation_episodes=1)
    learner = replace(config.learner, episodes=4, hidden_sizes=(4,), filter_warmup_steps=0)
    config = replace(config, federation=federation, learner=learner, attack=AttackConfig("flipped-reward", (1,)))
    training = start_training(config)
    try:
        told: Any = training.executor
        assert isinstance(told, AttackedExecutor)
        within, params, clients = told.within, training.state.params, np.arange(2)
        few, many = (within.train(params, 0, clients, {EPISODES: np.int32(number)}) for number in (1, 4))
        assert (few.steps < many.steps).all()
        lies = told.train(params, 0, clients)
        start = params.policy.layers[0].kernel
        honest, sent = (one.params.policy.layers[0].kernel - start for one in (many, lies))
        np.testing.assert_allclose(sent[0], honest[0], atol=1e-6)
        np.testing.assert_allclose(sent[1], -honest[1], atol=1e-5)
        one, other = (within.simulate(params, 0, clients[:1], {}, attempt) for attempt in (1, 2))
        assert not same_params(one.params, other.params)
    finally:
        training.executor.close()
