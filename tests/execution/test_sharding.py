"""Clients in shards: what is joined, what is stored, and what is refused."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import ClientIds
from fedpohcs.execution.clients import Snapshot
from fedpohcs.execution.mapping import ShardMap
from fedpohcs.execution.sharding import (
    LocalShards,
    Nobody,
    Order,
    Parts,
    ShardedExecutor,
    divided,
    divided_snapshot,
    shards_of,
)
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import resume_experiment, run_experiment, start_training

SMALL = FederationConfig(num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=4, held_out_clients=1)
CONFIG = replace(
    preset("tabular", selector="power-of-choice"), rounds=3, federation=SMALL, groups=3, executor="sharded"
)


def same_bytes(one: Any, other: Any) -> bool:
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(leaves) == len(others) and all(map(np.array_equal, leaves, others))


class Deaf:
    """Shards of which some have nobody that can do anything."""

    def __init__(self, config: ExperimentConfig, deaf: set[int]) -> None:
        self.within, self.deaf = LocalShards(config, divided_snapshot(None, config)), deaf

    def ask(self, order: Order, clients: Mapping[int, ClientIds]) -> Parts:
        parts = self.within.ask(order, clients)
        return {shard: Nobody(f"shard {shard} is deaf") if shard in self.deaf else parts[shard] for shard in parts}

    def close(self) -> None:
        self.within.close()


def executor_of(config: ExperimentConfig = CONFIG) -> ShardedExecutor:
    return ShardedExecutor(config, LocalShards(config, divided_snapshot(None, config)))


def test_a_client_is_always_in_the_same_shard_and_shards_without_clients_do_not_exist() -> None:
    members = {shard: own.tolist() for shard, own in shards_of(CONFIG).items()}
    assert members == {0: [0, 3], 1: [1, 4], 2: [2, 5]}
    assert {shard: own.tolist() for shard, own in divided(np.array([4, 3, 1]), 3).items()} == {0: [3], 1: [4, 1]}


def test_chunks_of_shards_have_few_widths_that_a_device_can_hold() -> None:
    clients = ShardMap(groups=9)
    assert [clients._width(number) for number in (1, 5, 12, 33, 65, 1000)] == [1, 6, 12, 48, 64, 64]
    assert clients.groups == 1


def test_shards_and_a_process_without_them_tell_the_same_story() -> None:
    together = list(start_training(replace(CONFIG, executor="vectorised")).remaining_rounds())
    apart = list(start_training(CONFIG).remaining_rounds())
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_array_equal(one.selection.client, other.selection.client)
        np.testing.assert_array_equal(one.train_steps, other.train_steps)
        np.testing.assert_array_equal(one.evaluation.client, other.evaluation.client)
        np.testing.assert_allclose(one.evaluation.mean_return, other.evaluation.mean_return, rtol=1e-4)
        np.testing.assert_allclose(one.held_out.mean_return, other.held_out.mean_return, rtol=1e-4)


def test_rows_come_back_in_the_order_of_the_request() -> None:
    one, other = executor_of(), executor_of()
    params = one.initial_params()
    mixed, sorted_ = one.train(params, 0, np.array([4, 3, 0, 2])), other.train(params, 0, np.array([0, 2, 3, 4]))
    assert mixed.client.tolist() == [4, 3, 0, 2]
    steps = dict(zip(sorted_.client.tolist(), jax.tree.leaves(sorted_.params)[0], strict=True))
    for client, row in zip(mixed.client.tolist(), jax.tree.leaves(mixed.params)[0], strict=True):
        np.testing.assert_allclose(row, steps[client], rtol=1e-4, atol=1e-6)
    one.evaluate(params, 1, np.arange(5))
    metrics = one.measure(params, 1, np.array([4, 0, 1]), frozenset({"mean_return"}))
    assert metrics.client.tolist() == [4, 0, 1]
    simulated = one.simulate(params, 1, np.array([3, 1, 3]), {}, 1)
    assert simulated.client.tolist() == [3, 1, 3]
    rows = jax.tree.leaves(simulated.params)[0]
    np.testing.assert_array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[1])
    assert not len(one.train(params, 1, np.arange(0)).client)


def test_a_snapshot_is_one_of_all_clients_and_divides_into_what_it_was_made_of() -> None:
    executor = executor_of()
    params = executor.initial_params()
    for number in range(2):
        executor.evaluate(params, number, np.arange(5))
    whole = executor.snapshot()
    assert [(order.round_number, order.clients.tolist()) for order in whole.plays] == [
        (0, [*range(5)]),
        (1, [*range(5)]),
    ]
    stored = executor.learner.stored_filters(whole.state.filters)
    for name, array in stored.items():
        np.testing.assert_array_equal(array, executor.stored_policy(params)[name])
    parts = executor.shards.ask(Order("snapshot"), executor.members)
    assert same_bytes(parts, divided_snapshot(whole, CONFIG))


def test_a_run_that_stopped_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    run_experiment(CONFIG, tmp_path / "whole")
    run_experiment(replace(CONFIG, rounds=1), tmp_path / "run")
    resume_experiment(tmp_path / "run", rounds=3)
    for name in ("rounds.csv", "clients.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_clients_that_never_acted_are_in_no_shard_and_a_run_goes_on_without_them(tmp_path: Path) -> None:
    sampled = replace(SMALL, num_clients=12, num_candidates=3, evaluated_clients=2, newcomers="play")
    config = replace(CONFIG, federation=sampled)
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=1), tmp_path / "run")
    resume_experiment(tmp_path / "run", rounds=3)
    for name in ("rounds.csv", "clients.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    executor = executor_of(config)
    executor.evaluate(executor.initial_params(), 0, np.array([1, 7]))
    snapshot = executor.snapshot()
    assert snapshot.whose is not None and snapshot.whose[0].tolist() == [1, 7]
    policy = executor.stored_policy(executor.initial_params())
    assert {"filters/default_mean", "filters/default_variance"} <= policy.keys()
    assert same_bytes(executor.shards.ask(Order("snapshot"), executor.members), divided_snapshot(snapshot, config))


def test_a_shard_whose_clients_all_fail_is_left_out_and_only_all_of_them_end_the_run() -> None:
    shards = Deaf(CONFIG, {1})
    executor = ShardedExecutor(CONFIG, shards)
    params = executor.initial_params()
    assert executor.evaluate(params, 0, np.arange(5)).client.tolist() == [0, 2, 3]
    assert executor.measure(params, 0, np.array([4, 3, 2]), frozenset({"mean_return"})).client.tolist() == [3, 2]
    with pytest.raises(UserError, match="shard 1 is deaf"):
        executor.evaluate(params, 1, np.array([1, 4]))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"filters": "shared"}, "federation.filters"),
        ({"finetune_iterations": 1}, "federation.finetune_iterations"),
        ({"evaluated_clients": 3}, "federation.newcomers"),
    ],
)
@pytest.mark.parametrize("executor", ["sharded", "ray"])
def test_what_needs_all_clients_in_one_place_is_refused(executor: str, changes: dict[str, Any], text: str) -> None:
    config = replace(CONFIG, executor=executor, federation=replace(SMALL, **changes))
    with pytest.raises(UserError, match=rf"{text} .*executor '{executor}'"):
        check_config(config)


def test_a_snapshot_of_something_else_is_refused() -> None:
    executor = executor_of()
    executor.evaluate(executor.initial_params(), 0, np.arange(5))
    sound = executor.snapshot()
    order = sound.plays[0]
    for broken in (
        "state",
        Snapshot(sound.state, [order._replace(clients=np.arange(4))]),
        Snapshot(sound.state, [order._replace(clients=5)]),  # pyright: ignore[reportArgumentType]
        Snapshot(sound.state._replace(mean_return=np.zeros(7)), []),
        sound._replace(plays=None),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(UserError, match="does not hold a state of the clients"):
            divided_snapshot(broken, CONFIG)
