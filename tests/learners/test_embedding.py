"""A vector of each client's own before the observation."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.learning import PPOConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.randomness import Purpose
from fedpohcs.execution import make_executor
from fedpohcs.execution.devices import configure_jax
from fedpohcs.learners.networks import Embedded, apply_of, make_network
from fedpohcs.learners.personal import keeps
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.export import check_exportable


def small() -> ExperimentConfig:
    config = preset("tabular", algorithm="fedavg-embedding")
    federation = replace(
        config.federation,
        num_clients=5,
        num_candidates=4,
        num_selected=2,
        evaluation_episodes=2,
        held_out_clients=1,
    )
    learner = replace(
        config.learner,
        hidden_sizes=(4,),
        embedding_size=0,
        local_iterations=1,
        steps_per_iteration=50,
        learning_rate=0.5,
    )
    return replace(config, rounds=3, federation=federation, learner=learner)


@pytest.mark.parametrize(("clients", "size"), [(1, 1), (2, 1), (5, 3), (8, 3), (60, 6), (64, 6), (65, 7)])
def test_the_vector_has_as_many_numbers_as_tell_all_clients_apart(clients: int, size: int) -> None:
    config = small()
    few = {"num_clients": clients, "num_candidates": 1, "num_selected": 1}
    config = replace(config, federation=replace(config.federation, **few), learner=small().learner)
    config = replace(config, learner=replace(config.learner, embedding_size=0))
    assert config.learner.embedding_size == size
    assert replace(config, learner=replace(config.learner, embedding_size=9)).learner.embedding_size == 9


def test_the_network_reads_the_vector_before_the_observation() -> None:
    config = PPOConfig(hidden_sizes=(4,), embedding_size=2)
    weights = make_network(config, 3, 1).init(jax.random.key(0))
    assert weights.vector.tolist() == [0, 0]
    assert weights.within[0].kernel.shape == (5, 4)
    generator = np.random.default_rng(0)
    weights = jax.tree.map(lambda x: generator.normal(size=x.shape), weights)
    seen = generator.normal(size=(7, 3))
    first, last = weights.within
    bias = weights.vector @ first.kernel[:2] + first.bias  # a vector is a bias of the client's own
    expected = np.tanh(seen @ first.kernel[2:] + bias) @ last.kernel + last.bias
    np.testing.assert_allclose(apply_of(config, 3, 1)(weights, seen), expected)


def test_only_the_vectors_are_personal() -> None:
    learner = make_executor(small()).learner
    params = learner.init_params(jax.random.key(0))
    flags = keeps(params, "embedding")
    assert isinstance(flags.policy.layers, Embedded)
    assert flags.policy.layers.vector is flags.critic.vector is True
    assert sum(map(bool, jax.tree.leaves(flags))) == 2
    plain = preset("tabular")
    shapes = make_executor(replace(plain, learner=replace(plain.learner, filter_warmup_steps=0))).initial_params()
    with pytest.raises(UserError, match="is for learners with networks"):
        keeps(shapes, "embedding")


def test_every_client_starts_with_its_own_vector_and_keeps_what_it_learns() -> None:
    configure_jax(2)
    executor = make_executor(small())
    own = executor.state.filters
    assert own.trained.tolist() == [True] * 5 + [False]  # the last one is held out
    drawn = np.random.default_rng([0, Purpose.EMBEDDING, 0, 3]).uniform(-1, 1, 3)
    np.testing.assert_allclose(own.weights.policy.layers.vector[3], drawn, rtol=1e-6)
    before = jax.tree.map(np.copy, own.weights)
    params = executor.initial_params()
    updates = executor.train(params, 0, np.array([1, 3]))
    after = executor.state.filters.weights
    for leaf in ("policy", "critic"):
        old, new, sent = (getattr(tree, leaf) for tree in (before, after, updates.params))
        vectors = [tree.layers.vector if leaf == "policy" else tree.vector for tree in (old, new, sent)]
        changed = (vectors[0] != vectors[1]).any(axis=1)
        assert changed.tolist() == [False, True, False, True, False, False]
        np.testing.assert_array_equal(vectors[1][[1, 3]], vectors[2])
    moved = params.policy.layers._replace(vector=np.full(3, 50.0, np.float32))
    other = params._replace(policy=params.policy._replace(layers=moved))
    twin, third = make_executor(small()), make_executor(small())
    everyone = np.arange(5)
    same = [one.evaluate(sent, 1, everyone).mean_return for one, sent in ((twin, params), (third, other))]
    np.testing.assert_array_equal(*same)  # nobody reads the vector that the server sends
    strange = [one.evaluate(sent, 1, np.array([5])).mean_return for one, sent in ((twin, params), (third, other))]
    assert strange[0] != strange[1]  # but a client that never trained


def test_a_run_with_embeddings_resumes_to_the_byte_and_is_not_exported(tmp_path: Path) -> None:
    run_experiment(small(), tmp_path / "whole")
    run_experiment(replace(small(), rounds=2), tmp_path / "cut")
    resume_experiment(tmp_path / "cut", rounds=3)
    for name in ("rounds.csv", "clients.csv", "policy.npz"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    with pytest.raises(UserError, match=r"learner\.embedding_size .* each client has its own vector"):
        check_exportable(small())
