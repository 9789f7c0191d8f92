"""FedProx, FedKL, FMARL, A2C, NPG and TRPO against cases worked by hand or in NumPy, and their reductions to PPO."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedpohcs.core.errors import UserError
from fedpohcs.core.learning import A2CConfig, FedKLConfig, FedProxConfig, FMARLConfig, NPGConfig, TRPOConfig, as_kind
from fedpohcs.core.presets import preset
from fedpohcs.learners.a2c import A2C
from fedpohcs.learners.actor_critic import ActorCritic
from fedpohcs.learners.base import Progress
from fedpohcs.learners.dqn import QParams
from fedpohcs.learners.fedkl import DISTANCES, FedKL, adapt_coefficient
from fedpohcs.learners.fedprox import FedProx, proximal
from fedpohcs.learners.fmarl import FMARL, counted_from
from fedpohcs.learners.npg import NPG, Problem, conjugate_gradients
from fedpohcs.learners.personal import Personal, keeps
from fedpohcs.learners.ppo import LocalRule
from fedpohcs.learners.trpo import TRPO
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import run_experiment
from learners.reference import (
    CLIENT_AXIS,
    PPO,
    AgentParams,
    Batch,
    Broadcast,
    Dense,
    DiscreteActions,
    Gaussian,
    PolicyParams,
    PPOConfig,
    Samples,
    Schedule,
    Status,
    Surroundings,
    Trajectory,
    categorical,
    float32,
    init_optimisers,
    update,
)

STEPS = 8
TINY: dict[str, Any] = {
    **{"hidden_sizes": (), "local_iterations": 3, "steps_per_iteration": STEPS - 1, "batch_size": 4},
    **{"filter_observations": False, "filter_rewards": False, "entropy_coefficient": 0.0, "critic_epochs": 1},
}


class World(Surroundings):
    """Episodes of four steps with two actions; the state is one of three, one-hot."""

    observation_size, actions, horizon = 3, DiscreteActions(2), 4


WORLD = World()


def one_hot(states: Any, number: int) -> np.ndarray:
    return np.eye(number, dtype=np.float32)[states]


def played() -> Trajectory:
    """Two episodes of four steps."""
    status = np.full((STEPS, 1), Status.RUNNING, np.int32)
    status[[3, 7]] = Status.TERMINATED
    states, action = np.array([0, 1, 2, 1, 2, 0, 1, 0]), np.array([0, 1, 1, 0, 0, 1, 0, 1], np.int32)
    reward = float32([1, 0, 2, -1, 0, 1, 1, -2])
    seen = one_hot(states, 3)[:, None]
    return Trajectory(seen, action[:, None], reward[:, None], status, seen)


def start_of(learner: ActorCritic) -> Progress:
    """Weights that are not those that the server sent, and an untouched memory."""
    params = learner.init_params(jax.random.key(0))
    return Progress(params, learner.init_filters(), learner.init_memory(params))


def learned(learner: ActorCritic, now: Progress | None = None, number: int = 0, sent: Any = None) -> Any:
    """One local iteration of one client."""
    now = now or start_of(learner)
    draws = jax.tree.map(lambda x: x[number], learner.draws(np.random.default_rng(5)))
    sent = Broadcast(now.params if sent is None else sent, jax.random.key(1), learner.schedule(0))
    own = jax.tree.map(lambda x: jnp.asarray(x)[None], (now, played(), draws))
    return jax.tree.map(lambda x: np.asarray(x)[0], program(learner)(sent, *own))


@cache
def program(learner: ActorCritic) -> Any:
    return jax.jit(jax.vmap(learner.learn, in_axes=(None, 0, 0, 0), axis_name=CLIENT_AXIS))


def equal(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


# FedProx


def test_the_proximal_term_has_the_slope_mu_times_the_distance_to_the_weights_sent() -> None:
    pull = proximal(0.5, {"w": float32([1, 2])})
    weights = {"w": float32([3, 2])}
    changed, _ = pull.update({"w": float32([10, 20])}, pull.init(weights), weights)
    np.testing.assert_allclose(changed["w"], [10 + 0.5 * 2, 20])


# One batch as in test_update: only log sigma changes, and the gradient of the entropy bonus is -0.3 for both actions.
BONUS, RATE = 0.3, 0.1
HAND = PPOConfig(epochs=1, critic_epochs=1, batch_size=4, momentum=0.5, max_gradient_norm=10, critic_learning_rate=0.1)
ORDERS = np.array([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]], np.int32)


def by_hand(rule: LocalRule, config: PPOConfig = HAND) -> AgentParams:
    """The weights after minibatches of 4 and 1."""
    zeros = np.zeros((5, 2), np.float32)
    samples = Samples(zeros[:, :1], zeros, zeros[:, 0], np.full(5, 3, np.float32), Gaussian(zeros, zeros))
    policy = PolicyParams((Dense(np.zeros((1, 2), np.float32), zeros[0]),), zeros[0])
    start = AgentParams(policy, (Dense(np.zeros((1, 1), np.float32), np.zeros(1, np.float32)),), np.float32(0))
    own = (start, init_optimisers(config, start, rule), Batch(samples, np.ones(5, bool)), ORDERS)

    def one(*own: Any) -> AgentParams:
        return update(config, Schedule(float32(RATE), float32(BONUS)), *own, rule=rule)[0]

    with_axis = jax.tree.map(lambda x: jnp.asarray(x)[None], own)
    return jax.tree.map(lambda x: np.asarray(x)[0], jax.jit(jax.vmap(one, axis_name=CLIENT_AXIS))(*with_axis))


def test_fedprox_pulls_policy_and_critic_towards_the_weights_sent() -> None:
    """Sent: log sigma (1, 0) and a critic's bias of 40; mu = 2.

    Policy: gradients (-0.3 - 2, -0.3), a step of 0.1: log sigma (0.23, 0.03). Then -0.3 + 2 (0.23 - 1) = -1.84 and
    -0.3 + 2 * 0.03 = -0.24, with half the velocity before: -2.99 and -0.39. So (0.23 + 0.299, 0.03 + 0.039).
    Critic: without the term the gradient is 2 (0 - 3) = -6, with it -6 - 80 = -86, then about -85.7. Adam's steps are
    as long as the rate while gradients hardly change: the second step is 0.1 too, where it is 0.0997 without the term.
    """
    learner = FedProx(FedProxConfig(**vars(HAND) | {"kind": "fedprox", "proximal_coefficient": 2.0}), Surroundings())
    anchor = AgentParams(
        PolicyParams((Dense(np.zeros((1, 2), np.float32), float32([0, 0])),), float32([1, 0])),
        (Dense(np.zeros((1, 1), np.float32), float32([40])),),
        np.float32(0),
    )
    new = by_hand(learner.rule(anchor))
    np.testing.assert_allclose(new.policy.log_std, [0.23 + 0.299, 0.03 + 0.039], rtol=1e-5)
    m, v = (0.09 * 86 + 0.1 * 85.6) / 0.19, (0.000999 * 86**2 + 0.001 * 85.6**2) / 0.001999
    np.testing.assert_allclose(new.critic[0].bias, [0.1 + 0.1 * m / math.sqrt(v)], rtol=1e-5)


def test_fedprox_without_a_proximal_term_is_the_program_of_ppo() -> None:
    ppo, fedprox = PPO(PPOConfig(**TINY), WORLD), FedProx(FedProxConfig(**TINY, proximal_coefficient=0.0), WORLD)
    programs = []
    for learner in (ppo, fedprox):
        now = start_of(learner)
        sent = Broadcast(now.params, jax.random.key(1), learner.schedule(0))
        draws = learner.draws(np.random.default_rng(5))[0]
        own = jax.tree.map(lambda x: jnp.asarray(x)[None], (now, played(), draws))
        one = jax.vmap(learner.learn, in_axes=(None, 0, 0, 0), axis_name=CLIENT_AXIS)
        programs.append(str(jax.make_jaxpr(one)(sent, *own)))
    assert programs[0] == programs[1]


# FedKL


COIN, OTHER = categorical(np.log([[0.5, 0.5]])), categorical(np.log([[0.75, 0.25]]))
NORMAL = Gaussian(np.array([[0.0, 1.0]]), np.log([[1.0, 2.0]]))
SHIFTED = Gaussian(np.array([[0.3, 1.0]]), np.log([[1.0, 1.0]]))


def distance(name: str, sent: Any, new: Any, samples: Any = None) -> float:
    sent, new = jax.tree.map(jnp.asarray, (sent, new))
    return float(DISTANCES[name](sent, new, samples)[0])


def test_distances_of_coins() -> None:
    """KL(sent || new) = (log 2/3 + log 2) / 2; the other way round it would be 0.131."""
    kl = math.log(4 / 3) / 2
    assert distance("kl", COIN, OTHER) == pytest.approx(kl, rel=1e-5)
    assert distance("sqrt-kl", COIN, OTHER) == pytest.approx(math.sqrt(kl), rel=1e-5)
    assert distance("tv", COIN, OTHER) == pytest.approx(0.25, rel=1e-5)
    assert distance("sqrt-kl", COIN, COIN) == pytest.approx(1e-4, rel=1e-5)


def test_distances_of_normal_distributions() -> None:
    """By hand: variances (1, 4) and (1, 1), means .3 apart in the first action."""
    kl = 0.3**2 / 2 + (math.log(1 / 2) + (4 - 1) / 2)
    assert distance("kl", NORMAL, SHIFTED) == pytest.approx(kl, rel=1e-5)
    assert distance("mahalanobis", NORMAL, SHIFTED) == pytest.approx(0.3, rel=1e-5)
    narrow = SHIFTED._replace(log_std=np.log([[0.5, 1.0]]))
    assert distance("mahalanobis", NORMAL, narrow) == pytest.approx(0.3 / math.sqrt((1 + 0.25) / 2), rel=1e-5)
    assert distance("wasserstein", NORMAL, SHIFTED) == pytest.approx(math.sqrt(0.3**2 + 1), rel=1e-5)


def test_the_total_variation_of_normal_distributions_is_estimated_without_bias() -> None:
    """Of N(0, 1) and N(1, 1) it is 2 Phi(1/2) - 1; actions are drawn from a third distribution."""
    actions = np.random.default_rng(0).normal(0.5, 1.5, (40_000, 1))
    rows = np.zeros_like(actions)
    old = jax.tree.map(jnp.asarray, Gaussian(rows + 0.5, rows + math.log(1.5)))
    samples = Samples(jnp.zeros(1), jnp.asarray(actions), jnp.zeros(1), jnp.zeros(1), old)
    found = DISTANCES["tv"](
        Gaussian(jnp.asarray(rows), jnp.asarray(rows)), Gaussian(jnp.asarray(rows + 1), jnp.asarray(rows)), samples
    )
    assert float(found.mean()) == pytest.approx(math.erf(0.5 / math.sqrt(2)), abs=0.01)


@pytest.mark.parametrize(
    ("sigma", "mean", "largest", "adapted"),
    [
        (4.0, 0.2, 9.0, 8.0),  # far: doubled
        (4.0, 0.05, 9.0, 2.0),  # near: halved
        (4.0, 0.1, 9.0, 4.0),  # within a tenth of the target
        (1.5, 0.05, 9.0, 1.0),  # not below the start value
        (15.0, 0.2, 9.0, 20.0),  # not above 20
        (4.0, 0.2, 1.0, 5.0),  # the penalty is not above the largest advantage
        (1.0, 2.0, 1.0, 0.5),  # which comes last
    ],
)
def test_sigma_follows_the_distance_within_its_bounds(
    sigma: float, mean: float, largest: float, adapted: float
) -> None:
    found = adapt_coefficient(jnp.float32(sigma), jnp.float32(mean), 0.1, 1.0, jnp.float32(largest))
    assert float(found) == pytest.approx(adapted, rel=1e-5)


def test_some_distances_need_continuous_actions() -> None:
    with pytest.raises(UserError, match=r"learner.anchor_distance \(='wasserstein'\) needs .* continuous actions"):
        FedKLConfig(anchor_distance="wasserstein").check_actions(DiscreteActions(2))


def fedkl(**settings: Any) -> FedKL:
    return FedKL(FedKLConfig(**TINY, learning_rate=0.5, **settings), WORLD)


def test_fedkl_without_a_penalty_learns_the_weights_of_ppo_to_the_byte() -> None:
    plain = learned(PPO(PPOConfig(**TINY, learning_rate=0.5), WORLD))
    anchored = learned(fedkl(anchor_coefficient=0.0))
    assert equal(anchored.now.params, plain.now.params)
    assert equal(anchored.now.memory.optimisers, plain.now.memory)
    assert float(anchored.now.memory.coefficient) == 0


def test_fedkl_stays_near_the_policy_sent_and_adapts_sigma_within_a_round() -> None:
    """The distance is to what the server sent, not to the policy before; a new round starts with the first sigma."""
    learner = fedkl(anchor_coefficient=1.0, anchor_target=1e-6)
    start = start_of(learner)
    first = learned(learner, start)
    assert float(first.info.anchor_coefficient) == 1
    assert float(first.now.memory.coefficient) == 2
    second = learned(learner, first.now, 1, start.params)
    assert float(second.info.anchor_coefficient) == 2
    seen = played().observation[:, 0]
    sent, new = (
        jax.nn.softmax(seen @ p.policy.layers[0].kernel + p.policy.layers[0].bias)
        for p in (start.params, second.now.params)
    )
    roots = np.sqrt(np.maximum((sent * np.log(sent / new)).sum(-1), 1e-8))
    np.testing.assert_allclose(second.info.anchor_distance, roots.mean(), rtol=1e-3)
    again = learned(learner, second.now, 0, start.params)
    assert float(again.info.anchor_coefficient) == 1
    free = learned(fedkl(anchor_coefficient=0.0), first.now._replace(memory=first.now.memory), 1, start.params)
    assert float(second.info.anchor_distance) < float(free.info.anchor_distance)


@pytest.mark.parametrize(
    ("settings", "moves"), [({}, True), ({"anchor_coefficient": 1.0, "anchor_target": 1e-3}, False)]
)
def test_fedkl_moves_the_policy_with_its_defaults_and_not_with_those_of_the_authors_program(
    settings: dict[str, float], moves: bool
) -> None:
    """At the learning rate of the presets, and compared with the distance that PPO moves."""
    config = replace(FedKLConfig(**TINY, **settings), learning_rate=1e-3)
    free = learned(FedKL(replace(config, anchor_coefficient=0.0), WORLD)).info.anchor_distance
    held = learned(FedKL(config, WORLD)).info.anchor_distance
    assert (float(held) > 0.9 * float(free)) == moves


# FMARL


def test_fmarl_shortens_every_step_of_a_round() -> None:
    """Velocities -0.3 and -0.45, the second step times the root of lambda = 0.25."""
    learner = FMARL(FMARLConfig(**vars(HAND) | {"kind": "fmarl", "local_decay": 0.25}), Surroundings())
    new = by_hand(learner.rule(None))  # type: ignore[arg-type]
    np.testing.assert_allclose(new.policy.log_std, 0.1 * (0.3 + 0.5 * 0.45) * np.ones(2), rtol=1e-5)


def test_fmarl_counts_steps_over_a_round_and_anew_in_the_next() -> None:
    learner = FMARL(FMARLConfig(**TINY, local_decay=0.25), WORLD)
    first = learned(learner)
    count = lambda result: int(optax.tree_utils.tree_get(result.now.memory.policy, "count"))  # noqa: E731
    assert count(first) == 2  # minibatches of 4
    assert count(learned(learner, first.now, 1)) == 4
    assert count(learned(learner, first.now, 0)) == 2
    kept = counted_from(first.now.memory, jnp.bool_(True))
    assert equal(
        optax.tree_utils.tree_get(kept.policy, "trace"), optax.tree_utils.tree_get(first.now.memory.policy, "trace")
    )


def test_fmarl_without_decay_learns_the_weights_of_ppo_to_the_byte() -> None:
    plain = learned(PPO(PPOConfig(**TINY, learning_rate=0.5), WORLD))
    assert equal(
        learned(FMARL(FMARLConfig(**TINY, learning_rate=0.5, local_decay=1.0), WORLD)).now.params, plain.now.params
    )


# A2C, natural gradient and TRPO


def numpy_gradient(policy: PolicyParams, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of mean(log pi A) by kernel [3, 2] and bias [2], stacked, and the Fisher matrix: exact, in NumPy."""
    seen, action = np.asarray(batch.samples.observation, float), np.asarray(batch.samples.action)
    logits = seen @ np.asarray(policy.layers[0].kernel, float) + np.asarray(policy.layers[0].bias, float)
    chance = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    inputs = np.concatenate([seen, np.ones((len(seen), 1))], axis=1)  # [M, 4]

    def score(choice: np.ndarray) -> np.ndarray:
        slope = np.eye(2)[choice] - chance
        return (inputs[:, :, None] * slope[:, None]).reshape(len(seen), -1)  # [M, 8]

    gradient = (score(action) * np.asarray(batch.samples.advantage, float)[:, None]).mean(0)
    each = [score(np.full(len(seen), choice)) for choice in (0, 1)]
    fisher = sum(np.einsum("mi,mj,m->ij", s, s, chance[:, c]) for c, s in enumerate(each)) / len(seen)
    return gradient, fisher


def flat(policy: PolicyParams) -> np.ndarray:
    layer = policy.layers[0]
    return np.concatenate([np.asarray(layer.kernel, float), np.asarray(layer.bias, float)[None]]).reshape(-1)


def batch_of(learner: ActorCritic, now: Progress) -> Batch:
    return learner.loss_samples(now.params, now.filters, jax.tree.map(jnp.asarray, played()))


def test_a2c_takes_one_rmsprop_step_along_the_policy_gradient() -> None:
    """The mean square starts at 0: v = 0.25 g^2 and the step is 0.1 g / (sqrt v + 1e-5), that is 0.2 by sign."""
    learner = A2C(A2CConfig(**TINY, learning_rate=0.1, square_decay=0.75, max_gradient_norm=100.0), WORLD)
    now = start_of(learner)
    gradient, _ = numpy_gradient(now.params.policy, batch_of(learner, now))
    step = 0.1 * gradient / (np.sqrt(0.25 * gradient**2) + 1e-5)
    after = learned(learner, now)
    np.testing.assert_allclose(flat(after.now.params.policy) - flat(now.params.policy), step, rtol=1e-3, atol=1e-6)
    assert not equal(after.now.params.critic, now.params.critic)


def test_conjugate_gradients_solve_a_linear_system_in_as_many_steps_as_it_has_unknowns() -> None:
    generator = np.random.default_rng(1)
    root = generator.normal(size=(5, 5))
    matrix, wanted = root @ root.T + np.eye(5), generator.normal(size=5)
    solved = conjugate_gradients(lambda v: jnp.asarray(matrix, jnp.float32) @ v, jnp.asarray(wanted, jnp.float32), 9)
    np.testing.assert_allclose(solved, np.linalg.solve(matrix, wanted), rtol=1e-4)
    assert not np.isnan(conjugate_gradients(lambda v: v, jnp.zeros(3), 4)).any()


@pytest.mark.parametrize("kind", [NPG, TRPO])
def test_a_natural_step_is_that_of_the_exact_fisher_matrix(kind: Any) -> None:
    """delta is small, so that the line search takes the whole step."""
    config = (NPGConfig if kind is NPG else TRPOConfig)(**TINY, kl_target=1e-4, damping=0.1, conjugate_steps=20)
    learner = kind(config, WORLD)
    now = start_of(learner)
    gradient, fisher = numpy_gradient(now.params.policy, batch_of(learner, now))
    damped = fisher + 0.1 * np.eye(8)
    x = np.linalg.solve(damped, gradient)
    step = math.sqrt(2 * 1e-4 / (x @ damped @ x)) * x
    after = learned(learner, now)
    np.testing.assert_allclose(flat(after.now.params.policy) - flat(now.params.policy), step, rtol=2e-3, atol=1e-6)
    assert 0 < float(after.info.kl) < 1e-4  # less than delta, because of the damping


def test_trpo_whose_line_search_takes_the_whole_step_is_the_natural_gradient_to_the_byte() -> None:
    settings: dict[str, Any] = {**TINY, "kl_target": 1e-3, "damping": 0.5}
    natural, trusting = NPG(NPGConfig(**settings), WORLD), TRPO(TRPOConfig(**settings), WORLD)
    assert equal(learned(natural).now.params, learned(trusting).now.params)


def test_a_natural_gradient_with_much_damping_is_the_policy_gradient() -> None:
    """Then the matrix that is inverted is nearly a multiple of the identity."""
    learner = NPG(NPGConfig(**TINY, kl_target=1e-4, damping=1e5), WORLD)
    now = start_of(learner)
    gradient, _ = numpy_gradient(now.params.policy, batch_of(learner, now))
    step = flat(learned(learner, now).now.params.policy) - flat(now.params.policy)
    length = math.sqrt(2 * 1e-4 / 1e5)  # of a step x with x 1e5 x / 2 = 1e-4
    np.testing.assert_allclose(step, length * gradient / np.linalg.norm(gradient), atol=0.02 * length)


def trpo() -> TRPO:
    return TRPO(TRPOConfig(**TINY, kl_target=0.5, line_search_factor=0.5, line_search_steps=3), WORLD)


def searched(gain: Any, full: float) -> float:
    """The step of a line search from 0 with divergence w^2/2, at most 1/2."""
    problem = Problem(lambda w: gain(w[0]), lambda w: 0.5 * w[0] ** 2)
    return float(trpo().step(problem, jnp.zeros(1), jnp.array([full]))[0])


def test_the_line_search_takes_the_longest_good_step_or_none() -> None:
    assert searched(lambda w: w, 1.0) == 1.0
    assert searched(lambda w: w, 3.0) == 0.75  # 3 and 1.5 diverge too far
    assert searched(lambda w: w, 8.0) == 0.0  # 8, 4 and 2 do
    assert searched(lambda w: w - 0.9 * w**2, 1.0) == 1.0
    assert searched(lambda w: w - 1.2 * w**2, 1.0) == 0.5  # the gain at 1 is below that at 0
    assert searched(lambda w: -w, 1.0) == 0.0


def test_a_batch_without_advantages_gives_no_step() -> None:
    """Not one that is 0 / 0."""
    problem = Problem(lambda w: 0.0 * w.sum(), lambda w: 0.5 * (w**2).sum())
    full = trpo().full_step(problem, jnp.ones(2))
    np.testing.assert_array_equal(full, [0, 0])


# Settings


def test_another_kind_of_the_same_family_keeps_the_settings_of_the_preset() -> None:
    ppo = replace(preset("mountain-cars").learner, steps_per_iteration=77)
    prox = as_kind(ppo, "fedprox")
    assert prox == FedProxConfig(**vars(ppo) | {"kind": "fedprox"})
    trust = as_kind(ppo, "trpo")
    assert (trust.steps_per_iteration, trust.bootstrap_at_time_limit, trust.kl_target) == (77, False, ppo.kl_target)
    assert as_kind(ppo, "a2c").learning_rate == A2CConfig().learning_rate
    other = as_kind(replace(ppo, reward_statistic="return", discount=0.5), "dqn")
    assert (other.steps_per_iteration, other.reward_statistic, other.discount) == (256, "return", 0.5)


# Personal weights


def test_personal_weights_are_refused_where_clients_act_outside_jax() -> None:
    pytest.importorskip("mujoco")
    with pytest.raises(UserError, match=r"federation\.personal \(='all'\) needs a world in JAX"):
        check_config(preset("hoppers", algorithm="local"))


def personal(kept: str) -> Personal:
    return Personal(PPOConfig(**TINY, learning_rate=0.5), WORLD, kept)


@pytest.mark.parametrize(
    ("kept", "names"),
    [("all", {"policy", "critic", "kl_coefficient"}), ("critic", {"critic"}), ("last-layer", {"policy"})],
)
def test_clients_keep_the_weights_that_are_personal(kept: str, names: set[str]) -> None:
    learner = Personal(PPOConfig(**TINY | {"hidden_sizes": (4,)}), WORLD, kept)
    sent = learner.init_params(jax.random.key(0))
    own = learner.init_filters()
    assert equal(learner.weights(sent, own), sent)  # nobody has trained yet
    mine = jax.tree.map(lambda x: x + 7, own.weights)
    used = learner.weights(sent, own._replace(weights=mine, trained=np.ones((), bool)))
    assert {name for name in sent._fields if not equal(getattr(used, name), getattr(sent, name))} == names
    if kept == "last-layer":
        assert equal(used.policy.layers[0], sent.policy.layers[0])
        assert equal(used.policy.layers[1], mine.policy.layers[1])
        assert equal(used.policy.log_std, sent.policy.log_std)


def test_a_client_alone_goes_on_from_its_own_weights_whatever_the_server_sends() -> None:
    alone, plain = personal("all"), PPO(PPOConfig(**TINY, learning_rate=0.5), WORLD)
    first, same = learned(alone), learned(plain)
    assert equal(first.now.params, same.now.params)
    assert equal(first.now.filters.weights, same.now.params)
    garbage = jax.tree.map(lambda x: x + 9, first.now.params)
    second = learned(alone, first.now._replace(params=garbage), 1, garbage)
    assert equal(second.now.params, learned(plain, same.now, 1, garbage).now.params)


def test_every_lane_of_an_evaluation_acts_with_the_weights_of_its_client() -> None:
    learner, generator = personal("all"), np.random.default_rng(3)
    sent = learner.init_params(jax.random.key(0))
    fresh = learner.init_filters()
    weights = [jax.tree.map(lambda x: generator.normal(0, 5, x.shape).astype(np.float32), sent) for _ in range(3)]
    lanes = [fresh._replace(weights=own, trained=np.ones((), bool)) for own in weights] + [fresh]
    lanes[-1] = lanes[-1]._replace(weights=jax.tree.map(np.asarray, lanes[-1].weights))
    own = jax.tree.map(lambda *rows: jnp.stack(rows), *lanes)
    seen, noise = one_hot([0, 1, 2, 1], 3), generator.gumbel(size=(4, 2)).astype(np.float32)
    acted = learner.actor(sent, own, (), training=False).act(jnp.asarray(seen), jnp.asarray(noise))
    policies = [*weights, sent]
    logits = [x @ p.policy.layers[0].kernel + p.policy.layers[0].bias for x, p in zip(seen, policies, strict=True)]
    np.testing.assert_array_equal(acted, np.argmax(np.array(logits) + noise, axis=1))


def test_weights_that_a_learner_does_not_have_cannot_be_personal() -> None:
    with pytest.raises(UserError, match=r"federation.personal \(='critic'\) is for learners with a critic"):
        keeps(QParams(PolicyParams((), np.zeros(0))), "critic")
    with pytest.raises(UserError, match=r"federation.personal \(='all'\) cannot be combined with selector 'fedpohcs'"):
        check_config(preset("tabular", selector="fedpohcs", algorithm="local"))
    alone = preset("tabular", algorithm="local")
    steered = replace(alone, federation=replace(alone.federation, server_optimiser="scaffold"))
    with pytest.raises(UserError, match=r"cannot be combined with server optimiser 'scaffold'"):
        check_config(steered)
    check_config(replace(alone, server_optimiser=replace(alone.server_optimiser, learning_rate_decay=0.9)))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["local", "fedper"])
def test_a_federation_of_one_client_learns_what_a_client_with_personal_weights_learns(algorithm: str) -> None:
    histories = []
    for name in (None, algorithm):
        config = preset("tabular", selector="full", algorithm=name)
        federation = replace(config.federation, num_clients=1, num_candidates=1, num_selected=1)
        histories.append(run_experiment(replace(config, federation=federation, rounds=3)))
    one, other = histories
    assert equal(one.params, other.params)
    np.testing.assert_array_equal(one.mean_returns, other.mean_returns)
