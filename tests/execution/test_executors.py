"""Executors beside each other: the vectorised one and its one-by-one twin must tell the same story."""

from dataclasses import replace

import numpy as np
import pytest

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.learning import learner_class
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import RoundRecord
from fedpohcs.execution import mapping
from fedpohcs.execution.devices import configure_jax
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.execution.mapping import ClientError, OneByOneMap
from fedpohcs.metrics import heterogeneity, learning_potential, stack_tables
from fedpohcs.runs.experiment import run_experiment, start_training
from fedpohcs.worlds.tabular import TabularWorlds

SMALL = FederationConfig(num_clients=7, num_candidates=5, num_selected=3, evaluation_episodes=8)
CONFIG = replace(preset("tabular"), rounds=3, federation=SMALL)


def records_of(config: ExperimentConfig) -> list[RoundRecord]:
    return list(start_training(config).remaining_rounds())


@pytest.mark.parametrize("kind", ["ppo", "a2c"])
def test_a_client_may_play_a_number_of_episodes_side_by_side(kind: str) -> None:
    """Episodes of this world last to the time limit."""
    learner = learner_class(kind)(
        hidden_sizes=(), local_iterations=2, filter_warmup_steps=0, filter_observations=False, episodes_per_iteration=3
    )
    executor = start_training(replace(CONFIG, learner=learner)).executor
    updates = executor.train(executor.initial_params(), 0, np.array([0, 5]))
    assert updates.steps.tolist() == [2 * 3 * TabularWorlds.horizon] * 2
    assert updates.steps.max() == executor.most_steps.train


@pytest.mark.parametrize("selector", SELECTORS)
def test_vectorised_and_one_by_one_agree(selector: str) -> None:
    config = replace(CONFIG, selector=selector)
    together = records_of(config)
    apart = records_of(replace(config, executor="one-by-one"))
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_array_equal(one.candidates, other.candidates)
        np.testing.assert_array_equal(one.selection.client, other.selection.client)
        np.testing.assert_array_equal(one.train_steps, other.train_steps)
        np.testing.assert_allclose(one.evaluation.mean_return, other.evaluation.mean_return, rtol=1e-4)
        for name, scores in one.selection.scores.items():
            np.testing.assert_allclose(scores, other.selection.scores[name], rtol=1e-3, atol=1e-6)


def test_selectors_of_one_seed_meet_the_same_start_and_the_same_candidates() -> None:
    one = records_of(replace(CONFIG, selector="fedavg"))
    other = records_of(replace(CONFIG, selector="fedpohcs"))
    np.testing.assert_array_equal(one[0].evaluation.mean_return, other[0].evaluation.mean_return)
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left.candidates, right.candidates)


def test_seeds_differ_in_start_and_candidates() -> None:
    one, other = records_of(CONFIG), records_of(replace(CONFIG, seed=1))
    assert (one[0].evaluation.mean_return != other[0].evaluation.mean_return).all()
    assert any((left.candidates != right.candidates).any() for left, right in zip(one[1:], other[1:], strict=True))


def test_a_run_repeats_itself_to_the_last_bit() -> None:
    for one, other in zip(records_of(CONFIG), records_of(CONFIG), strict=True):
        np.testing.assert_array_equal(one.evaluation.mean_return, other.evaluation.mean_return)
        np.testing.assert_array_equal(one.selection.client, other.selection.client)


def test_what_a_client_does_depends_on_its_id_and_not_on_its_company() -> None:
    """Train clients 0, 2, 4 together, and 4 with 1: client 4 must do the same."""
    configure_jax(CONFIG.groups)
    one, other = InProcessExecutor(CONFIG), InProcessExecutor(CONFIG)
    params = one.initial_params()
    together = one.train(params, 0, np.array([0, 2, 4]))
    pair = other.train(params, 0, np.array([4, 1]))
    np.testing.assert_allclose(
        together.params.policy.layers[0].kernel[2], pair.params.policy.layers[0].kernel[0], rtol=1e-4, atol=1e-6
    )
    assert together.steps[2] == pair.steps[0]


def test_evaluations_count_as_often_as_the_episodes_they_stand_for() -> None:
    learner = replace(CONFIG.learner, filter_observations=True, filter_evaluation_episodes=40)
    configure_jax(CONFIG.groups)
    executor = InProcessExecutor(replace(CONFIG, learner=learner))
    evaluation = executor.evaluate(executor.initial_params(), 0, np.arange(7))
    np.testing.assert_allclose(executor.state.filters.observation.seen, 5 * evaluation.steps)


def test_only_what_the_selector_requires_is_measured() -> None:
    configure_jax(CONFIG.groups)
    executor = InProcessExecutor(CONFIG)
    everyone = np.arange(SMALL.num_clients)
    executor.evaluate(executor.initial_params(), 0, everyone)
    metrics = executor.measure(executor.initial_params(), 0, everyone[:5], frozenset({"gradient_norm"}))
    assert metrics.columns.keys() == {"gradient_norm"}
    assert (metrics.column("gradient_norm") > 0).all()


def test_the_model_is_made_of_the_last_rounds_only() -> None:
    configure_jax(CONFIG.groups)
    config = replace(CONFIG, modelling=replace(CONFIG.modelling, history_rounds=2))
    executor = InProcessExecutor(config)
    for number in range(4):
        executor.evaluate(executor.initial_params(), number, np.arange(SMALL.num_clients))
    assert {len(episodes) for episodes in executor.history.values()} == {2}


@pytest.mark.parametrize("advantages", ["model", "gae"])
@pytest.mark.parametrize("missing", ["zero", "predicted"])
def test_every_variant_of_the_metric_runs_and_scores_all_candidates(advantages: str, missing: str) -> None:
    modelling = replace(CONFIG.modelling, advantages=advantages, missing=missing, standardise=True, rewards="filtered")
    record = records_of(replace(CONFIG, rounds=1, modelling=modelling))[1]
    for scores in record.selection.scores.values():
        assert scores.shape == (SMALL.num_candidates,)
        assert np.isfinite(scores).all()


def test_identical_clients_have_next_to_no_heterogeneity() -> None:
    """At level none all clients share one P, so their tables differ by sampling alone; at level high by more."""

    def share_of_potential(level: str) -> float:
        configure_jax(CONFIG.groups)
        plenty = replace(SMALL, evaluation_episodes=400)
        executor = InProcessExecutor(replace(CONFIG, level=level, federation=plenty))
        everyone, params = np.arange(SMALL.num_clients), executor.initial_params()
        executor.evaluate(params, 0, everyone)
        tables = executor.measure(params, 0, everyone, frozenset({"weighted_advantage"}))
        stacked = stack_tables(tables.column("weighted_advantage"))
        return float(np.mean(heterogeneity(stacked, np.ones(len(everyone))) / learning_potential(stacked)))

    assert share_of_potential("none") < 0.85 * share_of_potential("high")


def test_one_by_one_names_the_client_that_fails() -> None:
    class Failing:
        def train(self, shared: object, own: object) -> object:
            raise ValueError("the wheel came off")

    with pytest.raises(ClientError, match="client 5 failed to train: the wheel came off"):
        OneByOneMap(2).run_chunks(Failing.train, Failing(), np.zeros(1), (np.zeros(2),), np.array([5, 6]))  # pyright: ignore[reportArgumentType]


def test_programs_are_forgotten_when_a_process_has_too_many_mappings_and_results_stay() -> None:
    config = replace(preset("tabular", selector="fedavg"), rounds=1)
    before = run_experiment(config).mean_returns
    mapping.limit_programs()
    assert mapping.compiled_for_groups.cache_info().currsize + mapping.compiled.cache_info().currsize > 0
    mapping.limit_programs(most=0)
    assert mapping.compiled_for_groups.cache_info().currsize + mapping.compiled.cache_info().currsize == 0
    assert run_experiment(config).mean_returns == before
