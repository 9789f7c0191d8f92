"""GPOMDP and what belongs to it against NumPy, and the reductions of SVRPG and FedPG-BR."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core.learning import FedNPGADMMConfig, FedSVRPGMConfig, GPOMDPConfig, MFPOConfig
from fedpohcs.core.steering import ANCHOR, ANCHORED, CHANGE, EPISODES
from fedpohcs.core.trees import named_arrays
from fedpohcs.learners.base import Broadcast, Progress
from fedpohcs.learners.fednpg_admm import FedNPGADMM
from fedpohcs.learners.fedsvrpg_m import FedSVRPGM
from fedpohcs.learners.gpomdp import GPOMDP
from fedpohcs.learners.mfpo import MFPO
from fedpohcs.learners.networks import Dense, MomentumParams, PolicyOnlyParams, PolicyParams
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


def learned(
    learner: Any, params: Any, trajectory: Trajectory, extra: dict[str, Any], memory: Any = (), server: Any = None
) -> Any:
    sent = Broadcast(params if server is None else server, jax.random.key(1), learner.schedule(0), extra)
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


def test_whitening_over_the_batch_keeps_which_episodes_were_better() -> None:
    learner = GPOMDP(replace(CONFIG, whitening="batch"), World())
    returns = np.concatenate([to_go(rewards) for rewards in REWARDS])
    trajectory = jax.tree.map(jnp.asarray, in_one_lane())
    batch = learner.batch(policy_of(START), learner.init_filters(), trajectory, {})
    wanted = (returns - returns.mean()) / returns.std()
    np.testing.assert_allclose(batch.samples.gain, [*wanted, 0, 0], atol=1e-5)


def to_go(rewards: list[float]) -> np.ndarray:
    return np.array([sum(GAMMA ** (k - t) * rewards[k] for k in range(t, len(rewards))) for t in range(len(rewards))])


# Learners with local steps. `SMALL` is the config of all of them, so that their steps can be compared to the byte.

SMALL: dict[str, Any] = {
    **{"hidden_sizes": (), "episodes": 3, "discount": GAMMA, "filter_observations": False, "filter_rewards": False}
}
CHANGED = np.array([[0.1, -0.2], [0.3, 0.0], [-0.4, 0.2]])


def kernel(params: Any) -> np.ndarray:
    return np.asarray(params.policy.layers[0].kernel)


def as_change(table: np.ndarray) -> dict[str, Any]:
    """What the server optimiser `last-change` sends."""
    return {CHANGE + place: x for place, x in named_arrays(policy_of(table)).items()}


def test_fedsvrpg_m_mixes_the_gradient_with_the_corrected_direction_of_the_server() -> None:
    config = FedSVRPGMConfig(**SMALL, learning_rate=0.1, local_iterations=2, beta=0.3)
    result = learned(
        FedSVRPGM(config, World()), policy_of(START), in_one_lane(), as_change(CHANGED), server=policy_of(ANCHOR_TABLE)
    )
    own, earlier = numpy_gradient(START, 3), numpy_gradient(ANCHOR_TABLE, 3, START)
    wanted = 0.3 * own + 0.7 * (CHANGED / (0.1 * 2) + own - earlier)
    np.testing.assert_allclose(kernel(result.now.params), START + 0.1 * wanted, atol=1e-6)


def test_fedsvrpg_m_bounds_importance_weights() -> None:
    far = np.array([[9.0, -9.0], [-9.0, 9.0], [9.0, -9.0]])
    result = learned(
        FedSVRPGM(FedSVRPGMConfig(**SMALL), World()), policy_of(START), in_one_lane(), {}, server=policy_of(far)
    )
    assert 1e-3 <= result.info.importance <= 1.8


def test_fedsvrpg_m_with_beta_1_is_a_plain_local_step_to_the_byte() -> None:
    plain = GPOMDP(GPOMDPConfig(**SMALL, learning_rate=0.05, local_iterations=10), World())
    mixed = FedSVRPGM(FedSVRPGMConfig(**SMALL, beta=1.0), World())
    one = learned(plain, policy_of(START), in_one_lane(), {})
    other = learned(mixed, policy_of(START), in_one_lane(), as_change(CHANGED), server=policy_of(ANCHOR_TABLE))
    assert kernel(one.now.params).tobytes() == kernel(other.now.params).tobytes()


def momentum_of(table: np.ndarray, direction: np.ndarray) -> MomentumParams:
    return MomentumParams(policy_of(table).policy, policy_of(direction).policy)


def test_mfpo_corrects_its_momentum_on_the_episodes_of_the_step() -> None:
    learner = MFPO(MFPOConfig(**SMALL, learning_rate=0.1, momentum=0.8), World())
    result = learned(learner, momentum_of(START, CHANGED), in_one_lane(), {})
    before = START - 0.1 * CHANGED
    wanted = numpy_gradient(START, 3) + 0.8 * (CHANGED - numpy_gradient(before, 3, START))
    np.testing.assert_allclose(kernel(result.now.params), START + 0.1 * wanted, atol=1e-6)
    np.testing.assert_allclose(result.now.params.direction.layers[0].kernel, wanted, atol=1e-6)


@pytest.mark.parametrize(("momentum", "direction"), [(0.0, CHANGED), (0.8, np.zeros((3, 2)))])
def test_mfpo_without_momentum_or_without_a_past_is_a_plain_local_step_to_the_byte(
    momentum: float, direction: np.ndarray
) -> None:
    plain = GPOMDP(GPOMDPConfig(**SMALL, learning_rate=0.05), World())
    learner = MFPO(MFPOConfig(**SMALL, momentum=momentum), World())
    one = learned(plain, policy_of(START), in_one_lane(), {})
    other = learned(learner, momentum_of(START, direction), in_one_lane(), {})
    assert kernel(one.now.params).tobytes() == kernel(other.now.params).tobytes()


RHO = 0.2
ADMM = FedNPGADMM(FedNPGADMMConfig(**SMALL, penalty=RHO, conjugate_steps=30), World())


def flat(table: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """All weights as the learner orders them: kernel, then bias."""
    return np.concatenate([table.ravel(), np.zeros(2) if bias is None else bias])


def fisher(table: np.ndarray) -> np.ndarray:
    """Mean of the Fisher matrices of all states that were visited, of kernel and bias."""
    states = np.concatenate(STATES)
    total = np.zeros((8, 8))
    for state in states:
        chance = softmax(table[state])
        for action in range(2):
            score = np.zeros((3, 2))
            score[state] = np.eye(2)[action] - chance
            vector = flat(score, score.sum(axis=0))
            total += chance[action] * np.outer(vector, vector)
    return total / len(states)


def gradient_of(table: np.ndarray) -> np.ndarray:
    slopes = numpy_gradient(table, 3)
    return flat(slopes, slopes.sum(axis=0))


def change_of(result: Any, table: np.ndarray) -> np.ndarray:
    layer = result.now.params.policy.layers[0]
    return flat(layer.kernel - float32(table), layer.bias)


def test_the_first_step_of_fednpg_admm_is_the_damped_natural_gradient() -> None:
    result = learned(ADMM, policy_of(START), in_one_lane(), {}, ADMM.init_memory(policy_of(START)))
    wanted = np.linalg.solve(fisher(START) + RHO * np.eye(8), gradient_of(START))
    np.testing.assert_allclose(change_of(result, START), wanted, atol=1e-5)


def test_fednpg_admm_follows_its_three_updates() -> None:
    """A client's second round: multiplier, direction, and what is sent."""
    memory = learned(ADMM, policy_of(START), in_one_lane(), {}, ADMM.init_memory(policy_of(START))).now.memory
    y_n = flat(memory.own.layers[0].kernel, memory.own.layers[0].bias)
    result = learned(ADMM, policy_of(ANCHOR_TABLE), in_one_lane(), as_change(CHANGED), memory)
    y = flat(CHANGED)
    multiplier = RHO * (y_n - y)
    own = np.linalg.solve(fisher(ANCHOR_TABLE) + RHO * np.eye(8), gradient_of(ANCHOR_TABLE) - multiplier + RHO * y)
    np.testing.assert_allclose(change_of(result, ANCHOR_TABLE), own + multiplier / RHO, atol=1e-4)
    found = result.now.memory.multiplier.layers[0]
    np.testing.assert_allclose(flat(found.kernel, found.bias), multiplier, atol=1e-5)


def test_a_single_client_of_fednpg_admm_needs_no_multiplier_and_reaches_the_natural_gradient() -> None:
    """With one client y = y_n + lambda_n / rho, so that lambda_n stays 0; at fixed weights y becomes H^-1 g."""
    memory, extra = ADMM.init_memory(policy_of(START)), as_change(np.zeros((3, 2)))
    for _ in range(150):
        result = one_step(memory, extra)
        memory, change = result.now.memory, change_of(result, START)
        extra = as_change_with_bias(change)
    matrix, slope = fisher(START), gradient_of(START)
    np.testing.assert_allclose(matrix @ change, slope, atol=2e-3)
    np.testing.assert_allclose(flat(memory.multiplier.layers[0].kernel), 0, atol=1e-4)


compiled_step = jax.jit(jax.vmap(ADMM.learn, in_axes=(None, 0, 0, None), axis_name="clients"))


def one_step(memory: Any, extra: dict[str, Any]) -> Any:
    params = policy_of(START)
    sent = Broadcast(params, jax.random.key(1), ADMM.schedule(0), extra)
    own = (Progress(params, ADMM.init_filters(), memory), in_one_lane())
    stacked = jax.tree.map(lambda x: jnp.asarray(x)[None], own)
    return jax.tree.map(lambda x: np.asarray(x)[0], compiled_step(sent, *stacked, np.zeros(0)))


def as_change_with_bias(vector: np.ndarray) -> dict[str, Any]:
    layer = Dense(float32(vector[:6].reshape(3, 2)), float32(vector[6:]))
    params = PolicyOnlyParams(PolicyParams((layer,), np.zeros(0, np.float32)))
    return {CHANGE + place: x for place, x in named_arrays(params).items()}
