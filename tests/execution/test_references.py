"""Reference points of a federation: shared filters, one learner for all worlds, and clients that train on alone."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.randomness import Purpose
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.core.trees import named_arrays
from fedpohcs.execution import make_executor
from fedpohcs.execution.clients import Snapshot
from fedpohcs.execution.devices import configure_jax
from fedpohcs.execution.finetuning import _own, alone, finetuned_evaluation
from fedpohcs.execution.pooled import MixtureBatch, mixed
from fedpohcs.learners.base import Progress
from fedpohcs.learners.filters import Moments, init_filters, update_moments
from fedpohcs.learners.rollout import CLIENT_AXIS
from fedpohcs.learners.shared_filters import SharedFilters, pool_filters, pooled_moments
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.evaluating import evaluate_policy
from fedpohcs.runs.experiment import resume_experiment, run_experiment, start_training
from fedpohcs.runs.loading import load_run

NUM_CLIENTS = 4


def small(algorithm: str | None = None, **federation: object) -> ExperimentConfig:
    """Four clients with filters, two rounds of two short local iterations."""
    config = preset("tabular", algorithm=algorithm, **({} if algorithm else {"selector": "fedavg"}))
    changes = {"num_clients": NUM_CLIENTS, "num_candidates": 3, "num_selected": 2, "evaluation_episodes": 3}
    learner = replace(
        config.learner, local_iterations=2, steps_per_iteration=120, filter_observations=True, filter_warmup_steps=200
    )
    return replace(config, rounds=2, federation=replace(config.federation, **changes | federation), learner=learner)


def equal(one: object, other: object) -> bool:
    first, second = named_arrays(one), named_arrays(other)
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


# Shared filters


def test_pooled_moments_are_those_of_all_streams_together() -> None:
    generator = np.random.default_rng(0)
    streams = [
        generator.normal(place, 1 + abs(place), (count, 3)) for place, count in ((0, 5), (4, 11), (-7, 1), (2, 0))
    ]
    start = init_filters(3).observation
    single = [update_moments(start, stream, np.ones(len(stream), bool)) for stream in streams]
    stacked = Moments(*(np.stack([np.asarray(x) for x in rows]) for rows in zip(*single, strict=True)))
    whole = np.concatenate(streams)
    pooled = pooled_moments(stacked, np.arange(4))
    assert pooled.seen == len(whole)
    np.testing.assert_allclose(pooled.mean, whole.mean(0), rtol=1e-12)
    np.testing.assert_allclose(pooled.squares, ((whole - whole.mean(0)) ** 2).sum(0), rtol=1e-12)
    some = np.concatenate([streams[0], streams[2]])
    np.testing.assert_allclose(pooled_moments(stacked, np.array([0, 2])).mean, some.mean(0), rtol=1e-12)
    filters = SharedFilters((stacked,), (stacked,))
    assert equal(pool_filters(filters, np.arange(4)).own, filters.own)
    np.testing.assert_allclose(pool_filters(filters, np.arange(4)).pooled[0].mean, np.tile(whole.mean(0), (4, 1)))
    assert equal(pool_filters({"a": stacked}, np.arange(4)), {"a": stacked})  # not shared


def test_clients_with_shared_filters_see_alike_and_held_out_clients_add_nothing() -> None:
    configure_jax(2)
    executor = make_executor(small(filters="shared", held_out_clients=2))
    params = executor.initial_params()
    executor.train(params, 0, np.array([1, 3]))
    executor.evaluate(params, 1, np.arange(NUM_CLIENTS))
    before = jax.tree.map(np.copy, executor.state.filters.pooled)
    executor.evaluate(params, 1, np.array([4, 5]))
    pooled, own = executor.state.filters
    assert equal(pooled, before)
    for moments, apart in zip(pooled, own, strict=True):
        assert (moments.mean == moments.mean[0]).all()
        assert (moments.seen == moments.seen[0]).all()
        np.testing.assert_allclose(moments.seen[0], apart.seen[:NUM_CLIENTS].sum(), rtol=1e-6)
    assert len(np.unique(own.observation.mean[:, 0])) > 1
    assert own.observation.seen[1] > own.observation.seen[0]  # it trained


def test_clients_that_see_alike_train_with_the_pooled_filters() -> None:
    """With shared filters the own counts of a client do not reach its training before they are pooled."""
    configure_jax(2)
    executor = make_executor(small(filters="shared"))
    params = executor.initial_params()
    first = executor.rehearse(params, 0, np.array([2]))
    assert equal(first.filters.pooled, jax.tree.map(lambda x: x[2:3], executor.state.filters.pooled))
    spoilt = executor.state.filters.own.observation.mean
    spoilt += 100.0
    assert equal(executor.rehearse(params, 0, np.array([2])).params, first.params)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"pooled": True}, "federation.pooled .* needs federation.filters 'shared'"),
        ({"pooled": True, "filters": "shared", "personal": "all"}, "federation.personal 'none'"),
        ({"finetune_iterations": -1}, "federation.finetune_iterations"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict, match: str) -> None:
    with pytest.raises(UserError, match=match):
        small(**change)


def test_a_pooled_learner_needs_all_clients_and_shared_filters_need_openness() -> None:
    config = small("pooled")
    check_config(config)
    with pytest.raises(UserError, match=r"and fedavg selects some. Use the selector full"):
        check_config(replace(config, selector="fedavg"))
    steered = replace(config, federation=replace(config.federation, server_optimiser="fedcm"))
    with pytest.raises(UserError, match="'fedcm', which steers clients"):
        check_config(steered)
    by_episodes = replace(config, learner=replace(config.learner, episodes_per_iteration=2))
    with pytest.raises(UserError, match=r"learner.episodes_per_iteration .* counts the steps of all clients"):
        check_config(by_episodes)
    with pytest.raises(UserError, match=r"federation.filters .* reveals what clients see"):
        check_config(replace(small(filters="shared"), privacy="masked"))


# Pooled training


def trajectory(*statuses: int, first: float = 0.0) -> Trajectory:
    """One lane of steps whose observations and rewards count from `first`."""
    count = first + np.arange(len(statuses), dtype=float)[:, None]
    status = np.array(statuses, np.int8)[:, None]
    return Trajectory(count[..., None], np.zeros((len(statuses), 1), int), count, status, count[..., None] + 1)


def test_a_mixture_is_the_episodes_of_all_clients_one_after_the_other() -> None:
    running, ended, cut = Status.RUNNING, Status.TERMINATED, Status.TRUNCATED
    whole = mixed([trajectory(running, ended), trajectory(running, running, cut, first=10)], 7, records_next=True)
    assert whole.reward[:, 0].tolist() == [0, 1, 10, 11, 12, 0, 0]
    assert whole.status[:, 0].tolist() == [running, ended, running, running, cut, 0, 0]
    assert whole.next_observation[:5, 0, 0].tolist() == [1, 2, 11, 12, 13]
    assert mixed([trajectory(ended)], 2, records_next=False).next_observation is None


def test_a_round_of_pooled_training_has_the_steps_of_k_clients() -> None:
    configure_jax(2)
    config = small("pooled")
    executor = make_executor(config)
    batch = MixtureBatch.of(config, executor.learner)
    horizon = executor.world.horizon
    # K S = 240 steps per iteration for four clients: 60 each, of which an episode of 50 steps may exceed 10.
    assert (horizon, batch) == (50, MixtureBatch(10, 480, 240))
    longer = replace(config, learner=replace(config.learner, steps_per_iteration=20))
    assert MixtureBatch.of(longer, executor.learner) == MixtureBatch(0, 80, 200)
    updates = executor.train(executor.initial_params(), 0, np.arange(NUM_CLIENTS))
    assert updates.steps.sum() == 400  # two iterations of four episodes; 480 is nearer to them than to three
    assert batch.most_steps == executor.most_steps.train == 720
    assert len(set(updates.steps.tolist())) == 1  # every episode of this world has the same length
    for rows in named_arrays(updates.params).values():
        assert (rows == rows[0]).all()


def test_the_pooled_learner_learns_from_what_all_clients_play() -> None:
    """One iteration, put together by hand: each client plays alone, and one learner gets all of it."""
    configure_jax(2)
    config = small("pooled")
    config = replace(config, learner=replace(config.learner, steps_per_iteration=20, local_iterations=1))
    executor, twin = make_executor(config), make_executor(config)
    params = executor.initial_params()
    updates = executor.train(params, 3, np.arange(NUM_CLIENTS))
    assert updates.steps.tolist() == [50] * 4  # one iteration exceeds the 40 steps of two clients
    sent = twin._broadcast(params, Purpose.TRAINING, 3)
    played, seen = [], []
    for client in range(NUM_CLIENTS):
        one = np.array([client])
        own = jax.tree.map(lambda x, one=one: x[one], twin.state.filters)
        (episode,), after = twin.collect(sent, 3, 0, one, 0, own)
        played.append(episode)
        seen.append(after.own.observation.seen[0])
    moments = jax.tree.map(lambda x: x[0], twin.state.filters.pooled)
    learner = twin.learner.inner
    whole = jax.tree.map(jnp.asarray, mixed(played, 250, records_next=learner.records_next))
    shuffle = executor.learner.inner.__class__(replace(config.learner, steps_per_iteration=200), twin.world).draws(
        np.random.default_rng([config.seed, Purpose.SHUFFLING, 3, 0])
    )
    now = jax.tree.map(lambda x: np.asarray(x)[None], Progress(params, moments, learner.init_memory(params)))
    alone = jax.vmap(lambda now, draws: learner.learn(sent, now, whole, draws), axis_name=CLIENT_AXIS)
    expected = alone(now, shuffle)
    for name, rows in named_arrays(updates.params).items():
        np.testing.assert_allclose(rows[:1], named_arrays(expected.now.params)[name], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(executor.state.filters.own.observation.seen, seen)
    moved = named_arrays(params)["policy/layers/0/kernel"] - named_arrays(updates.params)["policy/layers/0/kernel"][0]
    assert np.abs(moved).max() > 1e-4


def test_a_pooled_run_takes_the_learners_weights_as_they_are_and_resumes_to_the_byte(tmp_path: Path) -> None:
    config = small("pooled")
    training = start_training(config)
    rounds = training.remaining_rounds()
    next(rounds)
    before = training.state.params
    twin = make_executor(config)
    twin.evaluate(before, 0, np.arange(NUM_CLIENTS))
    expected = twin.train(before, 0, np.arange(NUM_CLIENTS)).params
    record = next(rounds)
    assert equal(training.state.params, jax.tree.map(lambda x: x[0], expected))  # a mean of equal weights is exact
    assert len(record.rejected) == 0
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=1), tmp_path / "cut")
    resume_experiment(tmp_path / "cut", rounds=2)
    for name in ("rounds.csv", "clients.csv", "policy.npz"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    evaluate_policy(tmp_path / "whole", episodes=1)  # as any stored policy


# Fine-tuning


def test_fine_tuning_is_one_more_round_of_training_alone() -> None:
    config = small("local", held_out_clients=1)
    training = start_training(config)
    rounds = training.remaining_rounds()
    next(rounds), next(rounds)
    iterations = config.learner.local_iterations
    found = finetuned_evaluation(training.executor, training.state.params, 1, iterations, played=2)
    expected = next(rounds).evaluation
    assert found.client.tolist() == [0, 1, 2, 3, 4]
    assert found.mean_return[:4].tolist() == expected.mean_return.tolist()


def test_fine_tuning_starts_all_clients_from_the_shared_policy_and_changes_nothing_else(tmp_path: Path) -> None:
    paths = {k: tmp_path / str(k) for k in (0, 2)}
    for iterations, path in paths.items():
        run_experiment(small("finetuned", finetune_iterations=iterations, held_out_clients=1), path)
    texts = {k: (path / "clients.csv").read_text().splitlines() for k, path in paths.items()}
    tuned = [line for line in texts[2] if ",finetuned," in line]
    assert [line for line in texts[2] if line not in tuned] == texts[0]
    assert [line.split(",")[:2] for line in tuned] == [["2", str(client)] for client in range(5)]
    assert (paths[0] / "rounds.csv").read_bytes() == (paths[2] / "rounds.csv").read_bytes()
    assert load_run(paths[0]).finetuned_returns is None
    returns = load_run(paths[2]).finetuned_returns
    assert returns.tolist() == [float(line.split(",")[-1]) for line in tuned]
    assert (returns[:4] != load_run(paths[2]).client_returns[-1]).any()
    config = small("finetuned", finetune_iterations=2, held_out_clients=1)
    run_experiment(replace(config, rounds=1), tmp_path / "cut")
    resume_experiment(tmp_path / "cut", rounds=2)
    longer = [line for line in (tmp_path / "cut" / "clients.csv").read_text().splitlines() if ",finetuned," not in line]
    assert longer == texts[0]  # what a shorter run fine-tuned leaves no trace
    stored = evaluate_policy(paths[2], finetune=2, episodes=2)
    assert stored.client.tolist() == [0, 1, 2, 3, 4]
    assert evaluate_policy(paths[2], episodes=2).mean_return.tolist() != stored.mean_return.tolist()


def test_no_iterations_leave_the_policy_as_it_is() -> None:
    """Copies of clients that have not trained play what the clients play."""
    configure_jax(2)
    executor = make_executor(small())
    params = executor.initial_params()
    state = executor.state._replace(filters=_own(executor, params))
    copies = make_executor(alone(executor.config, 1), record=False, snapshot=Snapshot(state, []))
    everyone = np.arange(NUM_CLIENTS)
    expected = executor.evaluate(params, 1, everyone).mean_return
    np.testing.assert_allclose(copies.evaluate(params, 1, everyone).mean_return, expected)
