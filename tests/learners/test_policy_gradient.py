"""GPOMDP and what belongs to it against NumPy, and the reductions of SVRPG and FedPG-BR."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core.learning import GPOMDPConfig
from fedpohcs.core.steering import ANCHOR, ANCHORED, EPISODES
from fedpohcs.core.trees import named_arrays
from fedpohcs.learners.base import Broadcast, Progress
from fedpohcs.learners.gpomdp import GPOMDP
from fedpohcs.learners.networks import Dense, PolicyOnlyParams, PolicyParams
from fedpohcs.learners.policy_gradient import whitened_returns
from learners.reference import DiscreteActions, Status, Surroundings, Trajectory, float32

GAMMA = 0.9
CONFIG = GPOMDPConfig(
    hidden_sizes=(), episodes=3, discount=GAMMA, filter_observations=False, filter_rewards=False, learning_rate=0.5
)


class World(Surroundings):
    """Episodes of at most four steps with two actions; the state is one of three, one-hot."""

    observation_size, actions, horizon = 3, DiscreteActions(2), 4


STATES = [[0, 1, 2], [2], [1, 0, 2, 1]]
ACTIONS = [[0, 1, 1], [1], [1, 0, 0, 1]]
REWARDS = [[1.0, -2.0, 0.5], [3.0], [0.0, 1.0, 1.0, 4.0]]


def in_one_lane() -> Trajectory:
    """The three episodes one after the other, as host worlds give them, with padding behind."""
    sizes = [len(one) for one in STATES]
    status = np.full(10, Status.RUNNING, np.int8)
    status[np.cumsum(sizes) - 1] = Status.TERMINATED, Status.TRUNCATED, Status.TERMINATED
    status[8:] = Status.PADDING
    pad = [0, 0]
    seen = np.eye(3, dtype=np.float32)[np.concatenate([*STATES, pad])]
    action, reward = np.concatenate([*ACTIONS, pad]).astype(np.int32), float32(np.concatenate([*REWARDS, [7, 7]]))
    return Trajectory(seen[:, None], action[:, None], reward[:, None], status[:, None], None)


def in_three_lanes() -> Trajectory:
    """The same episodes side by side, as traced worlds give them."""
    seen, action = np.zeros((4, 3, 3), np.float32), np.zeros((4, 3), np.int32)
    reward, status = np.full((4, 3), 7, np.float32), np.full((4, 3), Status.PADDING, np.int8)
    for lane, (states, actions, rewards) in enumerate(zip(STATES, ACTIONS, REWARDS, strict=True)):
        n = len(states)
        seen[:n, lane], action[:n, lane], reward[:n, lane] = np.eye(3)[states], actions, rewards
        status[:n, lane] = Status.RUNNING
        status[n - 1, lane] = Status.TERMINATED
    return Trajectory(seen, action, reward, status, None)


def whitened(rewards: list[float]) -> np.ndarray:
    returns = np.zeros(len(rewards))
    for t in range(len(rewards)):
        returns[t] = sum(GAMMA ** (k - t) * rewards[k] for k in range(t, len(rewards)))
    return (returns - returns.mean()) / (returns.std() + 1e-8)


def numpy_gradient(table: np.ndarray, episodes: int, weights_of: np.ndarray | None = None) -> np.ndarray:
    """Gradient of mean(w log pi G) by the table of logits [S, A], w = pi_table / pi_weights_of."""
    slopes, count = np.zeros((3, 2)), 0
    for states, actions, rewards in list(zip(STATES, ACTIONS, REWARDS, strict=True))[:episodes]:
        for state, action, gain in zip(states, actions, whitened(rewards), strict=True):
            chance = softmax(table[state])
            weight = 1.0 if weights_of is None else chance[action] / softmax(weights_of[state])[action]
            slopes[state] += weight * gain * (np.eye(2)[action] - chance)
            count += 1
    return slopes / count


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum()


def policy_of(table: np.ndarray) -> PolicyOnlyParams:
    return PolicyOnlyParams(PolicyParams((Dense(float32(table), np.zeros(2, np.float32)),), np.zeros(0, np.float32)))


def learned(learner: Any, params: Any, trajectory: Trajectory, extra: dict[str, Any], memory: Any = ()) -> Any:
    sent = Broadcast(params, jax.random.key(1), learner.schedule(0), extra)
    own = jax.tree.map(lambda x: jnp.asarray(x)[None], (Progress(params, learner.init_filters(), memory), trajectory))
    run = jax.vmap(learner.learn, in_axes=(None, 0, 0, None), axis_name="clients")
    return jax.tree.map(lambda x: np.asarray(x)[0], run(sent, *own, np.zeros(0)))


START = np.array([[0.2, -0.1], [0.0, 0.4], [-0.3, 0.3]])
ANCHOR_TABLE = np.array([[0.0, 0.3], [0.5, 0.0], [0.1, -0.2]])


@pytest.mark.parametrize("make", [in_one_lane, in_three_lanes])
@pytest.mark.parametrize("episodes", [3, 2, 1])
def test_the_change_is_the_gradient_of_the_episodes_that_count(make: Any, episodes: int) -> None:
    extra = {} if episodes == 3 else {EPISODES: np.int32(episodes)}
    result = learned(GPOMDP(CONFIG, World()), policy_of(START), make(), extra)
    wanted = numpy_gradient(START, episodes)
    (layer,) = result.now.params.policy.layers
    np.testing.assert_allclose(layer.kernel, START + 0.5 * wanted, atol=1e-6)
    np.testing.assert_allclose(layer.bias, 0.5 * wanted.sum(axis=0), atol=1e-6)
    assert result.steps == 8
    norm = np.sqrt((wanted**2).sum() + (wanted.sum(axis=0) ** 2).sum())
    np.testing.assert_allclose(result.info.gradient_norm, norm, rtol=1e-5)


def test_returns_are_whitened_within_episodes_and_padding_has_none() -> None:
    trajectory = jax.tree.map(jnp.asarray, in_one_lane())
    found = np.asarray(whitened_returns(trajectory.reward, trajectory, GAMMA))[:, 0]
    np.testing.assert_allclose(found, np.concatenate([*map(whitened, REWARDS), [0, 0]]), atol=1e-6)


def test_an_anchor_gives_the_difference_of_two_gradients_on_the_same_episodes() -> None:
    extra = {ANCHOR + place: x for place, x in named_arrays(policy_of(ANCHOR_TABLE)).items()}
    result = learned(GPOMDP(CONFIG, World()), policy_of(START), in_one_lane(), {**extra, ANCHORED: np.float32(1)})
    wanted = numpy_gradient(START, 3) - numpy_gradient(ANCHOR_TABLE, 3, START)
    np.testing.assert_allclose(result.now.params.policy.layers[0].kernel, START + 0.5 * wanted, atol=1e-6)
    weights = [
        softmax(ANCHOR_TABLE[s])[a] / softmax(START[s])[a]
        for s, a in zip(np.concatenate(STATES), np.concatenate(ACTIONS), strict=True)
    ]
    np.testing.assert_allclose(result.info.importance, np.mean(weights), rtol=1e-5)
    own = learned(GPOMDP(CONFIG, World()), policy_of(START), in_one_lane(), {**extra, ANCHORED: np.float32(0)})
    np.testing.assert_allclose(
        own.now.params.policy.layers[0].kernel, START + 0.5 * numpy_gradient(START, 3), atol=1e-6
    )


def test_at_the_anchor_itself_the_difference_is_exactly_nothing() -> None:
    extra = {ANCHOR + place: x for place, x in named_arrays(policy_of(START)).items()}
    result = learned(GPOMDP(CONFIG, World()), policy_of(START), in_one_lane(), {**extra, ANCHORED: np.float32(1)})
    assert result.info.gradient_norm == 0
    assert result.now.params.policy.layers[0].kernel.tobytes() == float32(START).tobytes()


def test_the_learning_rate_is_the_length_of_the_step() -> None:
    short, long = (
        learned(GPOMDP(replace(CONFIG, learning_rate=rate), World()), policy_of(START), in_one_lane(), {})
        for rate in (0.5, 1.0)
    )
    change = [one.now.params.policy.layers[0].kernel - float32(START) for one in (short, long)]
    np.testing.assert_allclose(2 * change[0], change[1], atol=1e-6)
