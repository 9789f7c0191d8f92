"""Learning potential, heterogeneity and Delta_n; the two-state example is worked by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpohcs.core.config import ModellingConfig
from fedpohcs.core.types import Steps, WeightedAdvantage
from fedpohcs.learners.distributions import Categorical, Gaussian
from fedpohcs.metrics import (
    AdvantagePredictor,
    heterogeneity,
    learning_potential,
    selection_metric,
    stack_tables,
    weighted_advantage_table,
)
from fedpohcs.metrics.cells import keys_of
from fedpohcs.metrics.prediction import predict


def table(entries: dict[int, float]) -> WeightedAdvantage:
    keys = sorted(entries)
    return WeightedAdvantage(np.array(keys, np.uint64), np.array([entries[key] for key in keys], float))


def random_tables(seed: int, clients: int) -> list[WeightedAdvantage]:
    generator = np.random.default_rng(seed)
    return [
        table({int(key): generator.normal() for key in generator.choice(40, size=generator.integers(0, 30))})
        for _ in range(clients)
    ]


def coin(centres):
    return Categorical(np.full((len(centres), 2), np.log(0.5)))


X, Y = 0.0, 1.0


def two_state_tables() -> list[WeightedAdvantage]:
    """Two clients of two episodes: action 0 at X leads to Y, or action 1 does; the other one ends the episode."""
    observation = np.array([[X], [Y], [X]])
    last = np.array([False, True, True])
    first = Steps(observation, np.array([0, 0, 1]), np.array([0.0, 2.0, 4.0]), last)
    second = Steps(observation, np.array([1, 0, 0]), np.array([0.0, 2.0, 2.0]), last)
    return [weighted_advantage_table(steps, coin, ModellingConfig(), 0.5) for steps in (first, second)]


def value_at(entry: WeightedAdvantage, state: float, action: int) -> float:
    key = keys_of(np.array([action]), 1.0, keys_of(np.array([[state]]), 0.1))
    return float(entry.value[np.searchsorted(entry.pair, key)[0]])


def test_two_state_example_gives_the_tables_worked_by_hand():
    # Both: D_0 = X, D_1 = Y/2, so D(X) = 2/3 and D(Y) = 1/3. V(Y) = 2.
    # First: Q(X,0) = 2/2 = 1, Q(X,1) = 4, V(X) = 5/2. Second: Q(X,0) = 2, Q(X,1) = 1, V(X) = 3/2.
    first, second = two_state_tables()
    found = [[value_at(entry, *pair) for pair in ((X, 0), (X, 1), (Y, 0))] for entry in (first, second)]
    np.testing.assert_allclose(found, [[-1, 1, 0], [1 / 3, -1 / 3, 0]], atol=1e-6)


def test_two_state_example_gives_the_metrics_worked_by_hand():
    stacked = stack_tables(two_state_tables())
    root = np.sqrt(2)
    np.testing.assert_allclose(learning_potential(stacked), [root, root / 3], rtol=1e-6)
    np.testing.assert_allclose(heterogeneity(stacked, np.ones(2)), [2 * root / 3, 2 * root / 3], rtol=1e-6)
    np.testing.assert_allclose(selection_metric(stacked, np.ones(2)), [root / 3, -root / 3], rtol=1e-6)
    # With q = (3/4, 1/4) the mean is (-2/3, 2/3, 0).
    np.testing.assert_allclose(heterogeneity(stacked, np.array([3.0, 1.0])), [root / 3, root], rtol=1e-6)


def test_pairs_of_one_candidate_are_dropped():
    stacked = stack_tables([table({1: 1.0, 2: 2.0, 9: 9.0}), table({2: 3.0, 5: 5.0}), table({1: 4.0})])
    np.testing.assert_array_equal(stacked.toarray(), [[1, 2], [0, 3], [4, 0]])


def test_a_single_table_keeps_all_its_pairs_and_is_its_own_mean():
    stacked = stack_tables([table({1: 3.0, 2: 4.0})])
    np.testing.assert_allclose(selection_metric(stacked, np.ones(1)), [5.0])


def test_candidates_with_nothing_in_common_score_zero():
    stacked = stack_tables([table({1: 1.0}), table({2: 2.0}), table({})])
    assert stacked.shape == (3, 0)
    np.testing.assert_array_equal(selection_metric(stacked, np.ones(3)), 0)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), clients=st.integers(2, 7))
def test_sparse_metrics_equal_the_dense_formulae(seed, clients):
    tables = random_tables(seed, clients)
    weight = np.random.default_rng(seed).uniform(0.1, 1, clients)
    dense = np.zeros((clients, 40))
    for row, entry in enumerate(tables):
        dense[row, entry.pair.astype(int)] = entry.value
    visitors = sum(np.isin(np.arange(40), entry.pair).astype(int) for entry in tables)
    dense = dense[:, visitors > 1]
    stacked = stack_tables(tables)
    np.testing.assert_array_equal(stacked.toarray(), dense)
    mean = weight / weight.sum() @ dense
    np.testing.assert_allclose(learning_potential(stacked), np.linalg.norm(dense, axis=1))
    np.testing.assert_allclose(heterogeneity(stacked, weight), np.linalg.norm(mean - dense, axis=1), atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), clients=st.integers(2, 9))
def test_identical_clients_are_not_heterogeneous(seed, clients):
    entry = random_tables(seed, 1)[0]
    stacked = stack_tables([entry] * clients)
    weight = np.random.default_rng(seed).uniform(0.1, 1, clients)
    assert (heterogeneity(stacked, weight) <= 1e-7 * learning_potential(stacked)).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), clients=st.integers(2, 7))
def test_selection_metric_does_not_depend_on_the_order_of_candidates(seed, clients):
    tables = random_tables(seed, clients)
    generator = np.random.default_rng(seed)
    weight, order = generator.uniform(0.1, 1, clients), generator.permutation(clients)
    delta = selection_metric(stack_tables(tables), weight)
    shuffled = selection_metric(stack_tables([tables[i] for i in order]), weight[order])
    np.testing.assert_allclose(shuffled, delta[order], atol=1e-12)


PREDICTED = ModellingConfig(missing="predicted")


def wanderer(seed: int, centre: float = 0.0) -> Steps:
    """Walks among states; an action is worth its own size, so that its advantage is smooth."""
    generator = np.random.default_rng(seed)
    action = generator.normal(size=(2000, 1)).astype(np.float32)
    observation = (centre + generator.uniform(-0.3, 0.3, size=(2000, 1))).astype(np.float32)
    return Steps(observation, action, action[:, 0].copy(), np.arange(2000) % 50 == 49)


def standard_normal(centres):
    return Gaussian(np.zeros_like(centres), np.zeros_like(centres))


def predicted_table(seed: int, centre: float = 0.0) -> WeightedAdvantage:
    return weighted_advantage_table(wanderer(seed, centre), standard_normal, PREDICTED, 0.5)


def test_predicted_entries_are_close_to_those_of_a_client_that_did_visit():
    fill = predicted_table(0).fill
    state, unseen = np.array([[0.1]]), np.array([[0.137]])
    prediction = predict(fill, keys_of(state, 0.1), np.concatenate((state, unseen), axis=1).astype(np.float32))
    visits = fill.visitation[np.searchsorted(fill.state_key, keys_of(state, 0.1))]
    np.testing.assert_allclose(prediction, visits * 0.137, atol=0.15 * visits[0])


def test_prediction_is_zero_in_a_state_never_visited():
    fill = predicted_table(0).fill
    state = np.array([[7.0]])
    assert predict(fill, keys_of(state, 0.1), np.array([[7.0, 1.0]], np.float32)) == 0


def test_prediction_fills_only_what_was_not_visited():
    tables = [predicted_table(seed) for seed in range(3)]
    bare = stack_tables([entry._replace(fill=None) for entry in tables]).toarray()
    filled = stack_tables(tables).toarray()
    np.testing.assert_array_equal(filled[bare != 0], bare[bare != 0])
    assert (filled[bare == 0] != 0).mean() > 0.9


def test_prediction_adds_nothing_where_the_states_are_others():
    near, also_near, far = (predicted_table(seed, centre) for seed, centre in ((0, 0.0), (1, 0.0), (2, 9.0)))
    assert stack_tables([near, also_near, far]).toarray()[2].max() == 0


def test_predictor_is_arrays_only_and_survives_storage(tmp_path):
    tables = [predicted_table(seed) for seed in range(2)]
    np.savez(tmp_path / "fill.npz", **tables[0].fill._asdict())
    stored = tables[0]._replace(fill=AdvantagePredictor(**np.load(tmp_path / "fill.npz")))
    expected = stack_tables(tables).toarray()
    np.testing.assert_array_equal(stack_tables([stored, tables[1]]).toarray(), expected)


def test_tables_carry_no_centres_unless_they_predict():
    assert weighted_advantage_table(wanderer(0), standard_normal, ModellingConfig(), 0.5).fill is None


def test_mixing_tables_that_predict_with_others_is_refused_but_empty_ones_pass():
    predicting, also = predicted_table(0), predicted_table(1)
    with pytest.raises(ValueError, match="all tables or none"):
        stack_tables([predicting, also._replace(fill=None)])
    assert stack_tables([predicting, also, table({})]).toarray()[2].max() == 0


def test_a_predictor_of_other_inputs_than_most_fills_nothing_and_leaves_the_others_as_they_are():
    """Over a network a client may claim any number of inputs; it must neither end the run nor change others' rows."""
    tables = [predicted_table(seed) for seed in range(3)]
    fill = tables[0].fill
    wider = fill._replace(
        pair_centre=np.pad(fill.pair_centre, ((0, 0), (0, 1))), frequency=np.pad(fill.frequency, ((0, 1), (0, 0)))
    )
    odd = tables[0]._replace(fill=wider)
    filled = stack_tables([odd, *tables[1:]]).toarray()
    bare = stack_tables([one._replace(fill=None) for one in tables]).toarray()
    np.testing.assert_array_equal(filled[0], bare[0])
    assert ((filled != 0).sum(axis=1) > (bare != 0).sum(axis=1)).tolist() == [False, True, True]


def test_discrete_actions_are_predicted_apart():
    generator = np.random.default_rng(0)
    state = generator.integers(20, size=4000)
    action = generator.integers(3, size=4000)
    action[(state == 7) & (action == 1)] = 2
    reward = np.array([0.0, 5.0, -5.0])[action]
    steps = Steps(state[:, None] * 0.1, action, reward, np.arange(4000) % 40 == 39)
    uniform = lambda centres: Categorical(np.full((len(centres), 3), np.log(1 / 3)))  # noqa: E731
    fill = weighted_advantage_table(steps, uniform, PREDICTED, 0.5).fill
    key = keys_of(np.array([[0.7]]), 0.1)
    visits = fill.visitation[np.searchsorted(fill.state_key, key)]
    prediction = predict(fill, key, np.array([[0.7, 1.0]], np.float32)) / visits
    np.testing.assert_allclose(prediction, 5, atol=1.5)
