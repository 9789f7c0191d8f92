"""Off-policy learners beside cases worked by hand: targets, losses, exploration, memory and schedules."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from fedpohcs.core.algorithms import find_algorithm
from fedpohcs.core.errors import UserError
from fedpohcs.core.learning import (
    DCPIConfig,
    DDPGConfig,
    DQNConfig,
    LearningConfig,
    SACConfig,
    TD3Config,
    learner_class,
)
from fedpohcs.core.noise import BLOCK, ActionNoise
from fedpohcs.core.spaces import ContinuousActions, DiscreteActions
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.learners.base import Broadcast, Progress, make_learner
from fedpohcs.learners.dcpi import ESTIMATE_RATE, estimated
from fedpohcs.learners.distributions import squashed_gaussian
from fedpohcs.learners.networks import ActorCriticParams, Dense, PolicyParams
from fedpohcs.learners.off_policy import PolicyAndCritic, Transitions, Weights
from fedpohcs.learners.sac import SACParams
from fedpohcs.testing import quick_config, run_probe
from fedpohcs.worlds.spaces import AnnouncedWorld

LOW, HIGH = 1.0, 5.0  # centre 3, half range 2: forgetting either is noticed
WORLD = AnnouncedWorld(2, ContinuousActions(1, LOW, HIGH), 4)
CHOICES = AnnouncedWorld(2, DiscreteActions(2), 4)
PLAIN: dict[str, Any] = {
    **{"hidden_sizes": (), "discount": 0.5, "filter_observations": False, "filter_rewards": False},
    **{"local_iterations": 2, "updates_per_iteration": 4, "batch_size": 3, "replay_size": 8, "max_gradient_norm": 1e9},
}
BATCH = Transitions(
    observation=np.array([[1, 0], [0, 1], [1, 1]], np.float32),
    action=np.array([[1], [5], [4]], np.float32),  # shares of the range: -1, 1, .5
    reward=np.array([1, 2, 3], np.float32),
    next_observation=np.array([[0, 1], [1, 0], [2, 1]], np.float32),
    terminated=np.array([False, True, False]),
)
GOES_ON = np.array([1, 0, 1])


def made(config: LearningConfig) -> Any:
    world = WORLD if "policy_learning_rate" in vars(config) and not isinstance(config, DCPIConfig) else CHOICES
    return make_learner(config, world)


def layer(*kernel: list[float], bias: list[float] | None = None) -> tuple[Dense]:
    weights = np.array(kernel, np.float32)
    return (Dense(weights, np.array(bias or [0.0] * weights.shape[1], np.float32)),)


def critics(*weights: list[float]) -> tuple[Dense]:
    """Linear critics of observation (two numbers) and share."""
    kernel = np.array(weights, np.float32)[..., None]
    return (Dense(kernel, np.zeros((len(weights), 1), np.float32)),)


def q(weights: list[float], observation: np.ndarray, share: np.ndarray) -> np.ndarray:
    return np.concatenate([observation, share], axis=1) @ np.array(weights)


POLICY = layer([0.3], [-0.5])
ONE, OTHER = [0.2, 1.0, 0.7], [0.5, 0.4, -0.6]


def test_ddpg_looks_ahead_by_the_target_networks() -> None:
    learner = made(DDPGConfig(**PLAIN))
    found = learner.target_value(PolicyAndCritic(POLICY, critics(ONE)), BATCH, None)
    following = BATCH.next_observation
    share = np.tanh(following @ POLICY[0].kernel)
    np.testing.assert_allclose(found, BATCH.reward + 0.5 * GOES_ON * q(ONE, following, share), rtol=1e-5)


def test_td3_takes_the_lesser_critic_at_actions_with_clipped_noise() -> None:
    learner = made(TD3Config(**PLAIN, smoothing=0.4, smoothing_clip=0.5))
    noise = np.array([[9.0], [0.0], [-1.0]], np.float32)  # of which .4 times is 3.6, 0 and -.4
    found = learner.target_value(PolicyAndCritic(POLICY, critics(ONE, OTHER)), BATCH, noise)
    following = BATCH.next_observation
    clipped = np.array([[0.5], [0.0], [-0.4]])
    share = np.clip(np.tanh(following @ POLICY[0].kernel) + clipped, -1, 1)
    least = np.minimum(q(ONE, following, share), q(OTHER, following, share))
    np.testing.assert_allclose(found, BATCH.reward + 0.5 * GOES_ON * least, rtol=1e-5)


def test_smoothed_actions_stay_within_the_bounds() -> None:
    learner = made(TD3Config(**PLAIN, smoothing=1.0, smoothing_clip=0.5))
    np.testing.assert_allclose(
        learner.smoothed(jnp.array([0.8, -0.9, 0.1]), jnp.array([2.0, -0.3, -5.0])), [1, -1, -0.4]
    )


def test_the_critics_of_td3_are_fitted_together_to_actions_as_shares_of_their_range() -> None:
    learner = made(TD3Config(**PLAIN))
    wanted = np.array([1.0, -1.0, 2.0])
    loss, value = learner.critic_loss(critics(ONE, OTHER), BATCH, wanted)
    share = np.array([[-1.0], [1.0], [0.5]])
    values = np.stack([q(ONE, BATCH.observation, share), q(OTHER, BATCH.observation, share)])
    np.testing.assert_allclose(loss, 0.5 * ((values - wanted) ** 2).mean(axis=1).sum(), rtol=1e-5)
    np.testing.assert_allclose(value, values.mean(), rtol=1e-5)


def started(learner: Any, params: Any) -> Weights:
    memory = learner.init_memory(params)
    return Weights(params, memory.target, memory.moments)


def test_the_policy_and_targets_of_td3_move_with_every_second_step_of_the_critics() -> None:
    learner = made(TD3Config(**PLAIN, policy_delay=2, target_rate=0.5))
    now = started(learner, ActorCriticParams(PolicyParams(POLICY, np.zeros(0)), critics(ONE, OTHER)))
    first, _ = learner.update(now, BATCH, np.zeros((3, 1)), jnp.int32(1))
    second, _ = learner.update(first, BATCH, np.zeros((3, 1)), jnp.int32(2))
    assert not np.allclose(first.params.critic[0].kernel, now.params.critic[0].kernel)
    jax.tree.map(np.testing.assert_array_equal, (first.params.policy, first.target), (now.params.policy, now.target))
    np.testing.assert_allclose(  # all gradients of the policy have one sign, so Adam moves by its rate
        second.params.policy.layers[0].kernel - POLICY[0].kernel, 1e-3 * np.ones((2, 1)), rtol=1e-3
    )
    halfway = (now.target.critic[0].kernel + second.params.critic[0].kernel) / 2
    np.testing.assert_allclose(second.target.critic[0].kernel, halfway, rtol=1e-6)


def test_the_policy_of_ddpg_climbs_its_critic() -> None:
    learner = made(DDPGConfig(**PLAIN))
    params = ActorCriticParams(PolicyParams(POLICY, np.zeros(0)), critics(ONE))
    seen = BATCH.observation
    share = np.tanh(seen @ POLICY[0].kernel)
    expected = -(seen * (0.7 * (1 - share**2))).mean(axis=0)  # of -Q: the slope of Q by the share is .7
    found = learner.gradient(params, BATCH, np.ones(3, bool))
    np.testing.assert_allclose(found[0].kernel[:, 0], expected, rtol=1e-5)
    some = learner.gradient(params, BATCH, np.array([True, False, False]))
    np.testing.assert_allclose(some[0].kernel[:, 0], -(seen * 0.7 * (1 - share**2))[0], rtol=1e-5)


SAC_POLICY = layer([0.3, 0.1], [-0.5, -0.4])  # mean and log standard deviation
LOG_ALPHA = np.float32(np.log(0.25))
SAC_PARAMS = SACParams(PolicyParams(SAC_POLICY, np.zeros(0)), critics(ONE, OTHER), LOG_ALPHA)


def drawn(observation: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares and log densities of the policy, by the density of the normal distribution and the slope of tanh."""
    mean, log_std = np.split(observation.astype(float) @ SAC_POLICY[0].kernel, 2, axis=1)
    before = mean + np.exp(log_std) * noise
    density = norm.pdf(before, mean, np.exp(log_std)) / (1 - np.tanh(before) ** 2)
    return np.tanh(before), np.log(density).sum(axis=1)


def test_sac_looks_ahead_to_the_lesser_critic_and_the_entropy() -> None:
    learner = made(SACConfig(**PLAIN))
    noise = np.array([[0.5], [1.0], [-1.5]], np.float32)
    found = learner.target_value(SAC_PARAMS, critics(OTHER, ONE), BATCH, noise)
    share, log_prob = drawn(BATCH.next_observation, noise)
    least = np.minimum(q(ONE, BATCH.next_observation, share), q(OTHER, BATCH.next_observation, share))
    np.testing.assert_allclose(found, BATCH.reward + 0.5 * GOES_ON * (least - 0.25 * log_prob), rtol=1e-4)


def test_the_policy_of_sac_earns_the_lesser_value_and_entropy() -> None:
    learner = made(SACConfig(**PLAIN))
    noise = np.array([[0.5], [1.0], [-1.5]], np.float32)
    losses, found = learner.losses(SAC_PARAMS, SAC_POLICY, BATCH, noise)
    share, log_prob = drawn(BATCH.observation, noise)
    least = np.minimum(q(ONE, BATCH.observation, share), q(OTHER, BATCH.observation, share))
    np.testing.assert_allclose(found, log_prob, rtol=1e-4)
    np.testing.assert_allclose(losses, 0.25 * log_prob - least, rtol=1e-4)


@pytest.mark.parametrize(("log_prob", "grows"), [(1.5, True), (0.5, False)])
def test_the_temperature_grows_where_there_is_less_entropy_than_wanted(log_prob: float, grows: bool) -> None:
    """The wanted entropy of one action is -1, so a log density of 1.5 is an entropy too small."""
    learner = made(SACConfig(**PLAIN))
    slope = jax.grad(learner.temperature_loss)(LOG_ALPHA, jnp.float32(log_prob))
    np.testing.assert_allclose(slope, -(log_prob - 1))
    assert (slope < 0) == grows
    wanted = made(SACConfig(**PLAIN, target_entropy=-2.0))
    np.testing.assert_allclose(jax.grad(wanted.temperature_loss)(LOG_ALPHA, jnp.float32(1.5)), 0.5)


def test_a_step_of_sac_moves_all_three_and_a_rate_of_0_keeps_the_temperature() -> None:
    noise = np.full((3, 2), 0.3, np.float32)
    for rate in (0.01, 0.0):
        learner = made(SACConfig(**PLAIN, temperature_learning_rate=rate))
        now = started(learner, jax.tree.map(jnp.asarray, SAC_PARAMS))
        after, info = learner.update(now, BATCH, noise, jnp.int32(1))
        np.testing.assert_allclose(np.abs(after.params.log_temperature - LOG_ALPHA), rate, rtol=1e-3, atol=1e-9)
        assert not np.allclose(after.params.policy.layers[0].kernel, SAC_POLICY[0].kernel)
        np.testing.assert_allclose(info.entropy, -drawn(BATCH.observation, noise[:, 1:])[1].mean(), rtol=1e-4)
        moved = now.target[0].kernel + 0.01 * (after.params.critic[0].kernel - now.target[0].kernel)
        np.testing.assert_allclose(after.target[0].kernel, moved, rtol=1e-6)


def test_the_squashed_density_is_that_of_a_change_of_variables() -> None:
    """The share of actions below some limits, by numerical integration and by the normal distribution."""
    output = np.array([[0.4, -0.3]])
    actions = np.linspace(LOW + 1e-4, HIGH - 1e-4, 40_001)
    density = np.exp(squashed_gaussian(np.repeat(output, len(actions), 0), LOW, HIGH).log_prob(actions[:, None]))
    for limit in (2.0, 3.5, 4.8):
        below = actions <= limit
        expected = norm.cdf(np.arctanh((limit - 3) / 2), 0.4, np.exp(-0.3))
        np.testing.assert_allclose(np.trapezoid(density[below], actions[below]), expected, atol=1e-4)
    np.testing.assert_allclose(np.trapezoid(density, actions), 1, atol=1e-4)


def test_a_draw_has_the_density_of_its_action_and_bounds_have_finite_ones() -> None:
    both = squashed_gaussian(np.array([[0.5, -1.0, 0.2, -0.7]]), LOW, HIGH)  # two actions
    action, log_prob = both.sample_with_log_prob(np.array([[0.3, -1.2]]))
    np.testing.assert_allclose(both.log_prob(action), log_prob, rtol=1e-9)
    assert ((action > LOW) & (action < HIGH)).all()
    assert np.isfinite(both.log_prob(np.array([[LOW, HIGH]]))).all()
    far = squashed_gaussian(jnp.array([[40.0, 0.0]]))  # where tanh is 1 to the last digit
    assert np.isfinite(far.sample_with_log_prob(jnp.zeros((1, 1)))[1]).all()


def test_dcpi_fits_its_policy_to_a_mixture_with_the_greedy_one() -> None:
    learner = made(DCPIConfig(**PLAIN, mixture=0.25))
    policy, critic, earlier = layer([0.4, 0], [0, 0.2]), layer([1, 0], [0, 2]), layer([0, 0.9], [0.3, 0])
    seen, discrete = BATCH.observation, BATCH._replace(action=np.array([0, 1, 0], np.int32))

    def softmax(logits: np.ndarray) -> np.ndarray:
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    values, before = seen @ critic[0].kernel, softmax(seen @ earlier[0].kernel)
    wished = 0.75 * before + 0.25 * np.eye(2)[values.argmax(axis=1)]
    present = softmax(seen @ policy[0].kernel)
    expected = (wished * np.log(wished / present)).sum(axis=1).mean()
    now = started(learner, ActorCriticParams(PolicyParams(policy, np.zeros(0)), critic))
    now = now._replace(target=PolicyAndCritic(earlier, critic))
    after, info = learner.update(now, discrete, None, jnp.int32(1))
    np.testing.assert_allclose(info.divergence, expected, rtol=1e-5)
    np.testing.assert_allclose(info.mixture, 0.25)
    following = softmax(BATCH.next_observation @ earlier[0].kernel) * (BATCH.next_observation @ critic[0].kernel)
    wanted = BATCH.reward + 0.5 * GOES_ON * following.sum(axis=1)
    taken = values[np.arange(3), [0, 1, 0]]
    np.testing.assert_allclose(info.critic_loss, 0.5 * ((taken - wanted) ** 2).mean(), rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, after.target, now.target)  # copied after 32 steps
    gradient = learner.gradient(now.params, discrete, np.ones(3, bool))
    toward = 0.75 * present + 0.25 * np.eye(2)[values.argmax(axis=1)]
    np.testing.assert_allclose(gradient[0].kernel, seen.T @ (present - toward) / 3, rtol=1e-4, atol=1e-7)


def test_an_adaptive_mixture_is_the_advantage_over_the_range_of_action_values() -> None:
    learner = made(DCPIConfig(**PLAIN, mixture=0.5, mixture_rule="adaptive"))
    params = learner.init_params(jax.random.key(0))
    moments = learner.init_moments(params)._replace(advantage=np.float32(0.3), spread=np.float32(2))
    np.testing.assert_allclose(learner.share(moments), 0.5 * 0.3 / 2)
    after = estimated(moments, jnp.array([[0.5, 0.5], [0.0, 1.0]]), jnp.array([[1.0, 3.0], [0.0, 4.0]]))
    np.testing.assert_allclose(after.advantage, 0.3 + ESTIMATE_RATE * ((1 + 0) / 2 - 0.3))
    np.testing.assert_allclose(after.spread, 2 + ESTIMATE_RATE * (4 - 2))


def test_targets_are_copied_after_their_period() -> None:
    learner = made(DQNConfig(**PLAIN, target_rate=1.0, target_period=3))
    params = learner.init_params(jax.random.key(0))
    old = jax.tree.map(jnp.zeros_like, params.policy.layers)
    for number, expected in ((2, old), (3, params.policy.layers), (4, old), (6, params.policy.layers)):
        found = learner.followed(old, params, jnp.int32(number))
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def steps(count: int, reward: float = 1.0) -> Trajectory:
    shape = (4, 1)
    status = np.where(np.arange(4)[:, None] < count, Status.TRUNCATED, Status.PADDING).astype(np.int8)
    seen, action = np.ones((*shape, 2), np.float32), np.zeros(shape, np.int32)
    return Trajectory(seen, action, np.full(shape, reward, np.float32), status, seen)


def round_of(learner: Any, params: Any, memory: Any, played: list[Trajectory]) -> Progress:
    now = Progress(params, learner.init_filters(), memory)
    sent = Broadcast(params, jax.random.key(0), learner.schedule(0))
    draws = learner.draws(np.random.default_rng(0))
    learn = jax.jit(learner.learn)
    for number, one in enumerate(played):
        now = learn(sent, now, one, jax.tree.map(lambda x: x[number], draws)).now  # noqa: B023
    return now


@pytest.mark.parametrize(("at_merge", "written"), [("keep", 8), ("reset", 4)])
def test_memory_is_kept_or_starts_anew_with_a_round_and_targets_start_from_merged_weights(
    at_merge: Any, written: int
) -> None:
    learner = made(DQNConfig(**PLAIN, memory_at_merge=at_merge, target_rate=0.001))
    params = jax.tree.map(np.asarray, learner.init_params(jax.random.key(0)))
    first = round_of(learner, params, learner.init_memory(params), [steps(2), steps(2)])
    assert int(first.memory.written) == 4
    assert int(first.memory.moments[1][0].count) == 8  # gradient steps of two local iterations
    assert not np.allclose(first.memory.target[0].kernel, first.params.policy.layers[0].kernel, atol=1e-4)
    merged = jax.tree.map(lambda x: x + 1, params)
    second = round_of(learner, merged, first.memory, [steps(2), steps(2)])
    assert int(second.memory.written) == written
    assert int(second.memory.moments[1][0].count) == (16 if at_merge == "keep" else 8)
    np.testing.assert_allclose(second.memory.target[0].kernel, merged.policy.layers[0].kernel, atol=1e-3)


def test_a_client_with_too_few_transitions_collects_and_does_not_learn() -> None:
    learner = made(DQNConfig(**PLAIN, replay_start=4))
    params = jax.tree.map(np.asarray, learner.init_params(jax.random.key(0)))
    few = round_of(learner, params, learner.init_memory(params), [steps(3)])
    jax.tree.map(np.testing.assert_array_equal, few.params, params)
    assert (int(few.memory.written), int(few.memory.moments[1][0].count)) == (3, 0)
    enough = round_of(learner, params, learner.init_memory(params), [steps(3), steps(1)])
    assert not np.allclose(enough.params.policy.layers[0].kernel, params.policy.layers[0].kernel)


def test_exploration_of_ddpg_fades_to_its_floor_and_stays_within_bounds() -> None:
    learner = made(DDPGConfig(**PLAIN, noise=0.8, noise_decay=0.5, noise_floor=0.3))
    np.testing.assert_allclose([learner.schedule(n).spread for n in range(4)], [0.8, 0.4, 0.3, 0.3])
    params = ActorCriticParams(PolicyParams(POLICY, np.zeros(0)), critics(ONE))
    seen, noise = BATCH.observation, np.array([[0.5], [-0.5], [9.0]], np.float32)
    share = np.tanh(seen @ POLICY[0].kernel)
    act = learner.actor(params, learner.init_filters(), learner.schedule(1), training=True).act
    np.testing.assert_allclose(act(seen, noise), 3 + 2 * np.clip(share + 0.4 * noise, -1, 1), rtol=1e-5)
    act = learner.actor(params, learner.init_filters(), learner.schedule(1), training=False).act
    np.testing.assert_allclose(act(seen, noise), 3 + 2 * share, rtol=1e-5)


def test_sac_draws_from_its_policy_in_the_units_of_the_world() -> None:
    learner = made(SACConfig(**PLAIN))
    noise = np.array([[0.5], [1.0], [-1.5]], np.float32)
    actor = learner.actor(SAC_PARAMS, learner.init_filters(), (), training=False)
    share, log_prob = drawn(BATCH.observation, noise)
    action = actor.act(BATCH.observation, noise)
    np.testing.assert_allclose(action, 3 + 2 * share, rtol=1e-5)
    found = learner.distribution(SAC_PARAMS, jnp.asarray(BATCH.observation)).log_prob(action)
    np.testing.assert_allclose(found, log_prob - np.log(2), rtol=1e-3)  # a density over twice the range


def test_advantages_are_what_an_action_is_worth_beyond_the_policy() -> None:
    learner = made(SACConfig(**PLAIN))
    played = Trajectory(
        BATCH.observation[:, None],
        BATCH.action[:, None],
        BATCH.reward[:, None],
        np.array([[Status.RUNNING], [Status.TRUNCATED], [Status.PADDING]], np.int8),
        BATCH.next_observation[:, None],
    )
    found = learner.step_advantages(SAC_PARAMS, learner.init_filters(), jax.tree.map(jnp.asarray, played))
    best, share = np.tanh(BATCH.observation @ SAC_POLICY[0].kernel[:, :1]), np.array([[-1.0], [1.0], [0.5]])
    values = [np.minimum(q(ONE, BATCH.observation, x), q(OTHER, BATCH.observation, x)) for x in (share, best)]
    np.testing.assert_allclose(found[:, 0], (values[0] - values[1]) * [1, 1, 0], rtol=1e-4, atol=1e-6)


def test_correlated_noise_is_standard_and_loses_its_pull_with_every_step() -> None:
    noise = ActionNoise("ou", 1, pull=0.15)
    host = noise.draw(np.random.default_rng(0), 20_000)
    device = np.asarray(noise.draw_on_device(jax.random.key(0), (500, 40)))
    assert host.shape == (20_000, 1) and device.shape == (500, 40, 1)
    for x in (host.reshape(-1, BLOCK), device[:, :, 0].reshape(-1, BLOCK, 40).transpose(0, 2, 1).reshape(-1, BLOCK)):
        np.testing.assert_allclose(x.std(), 1, atol=0.03)
        for lag in (1, 5):
            np.testing.assert_allclose((x[:, lag:] * x[:, :-lag]).mean(), 0.85**lag, atol=0.04)
        np.testing.assert_allclose((x[1:, 0] * x[:-1, -1]).mean(), 0, atol=0.15)  # blocks are independent
    short = noise.draw(np.random.default_rng(0), 7)
    np.testing.assert_allclose(short[1], 0.85 * short[0] + np.sqrt(1 - 0.85**2) * _normal(7)[1], rtol=1e-5)
    assert noise.draw(np.random.default_rng(0), 60).shape == (60, 1)


def _normal(steps: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((steps, 1), np.float32)


@pytest.mark.parametrize(
    ("kind", "actions", "complaint"),
    [
        ("sac", DiscreteActions(2), r"learner.kind \(='sac'\) needs a world with continuous actions. Use dqn or ppo."),
        ("td3", ContinuousActions(1, -np.inf, 1.0), "needs a world whose actions have finite bounds"),
        ("dcpi", ContinuousActions(1, -1.0, 1.0), "needs a world with discrete actions. Use sac or ppo."),
    ],
)
def test_actions_that_a_learner_cannot_take_are_refused_in_one_line(kind: str, actions: Any, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as refused:
        make_learner(learner_class(kind)(), AnnouncedWorld(2, actions, 4))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "change", "complaint"),
    [
        ("dqn", {"replay_start": 9, "replay_size": 8}, "replay_start.*must be at most learner.replay_size"),
        ("dqn", {"episodes_per_iteration": 0}, "episodes_per_iteration"),
        ("ppo", {"episodes_per_iteration": 0}, "episodes_per_iteration"),
        ("dqn", {"memory_at_merge": "forget"}, "memory_at_merge"),
        ("ddpg", {"noise_pull": 0.0}, "noise_pull"),
        ("td3", {"policy_delay": 0}, "policy_delay"),
        ("sac", {"temperature": 0.0}, "temperature"),
        ("dcpi", {"mixture": 1.5}, "mixture"),
    ],
)
def test_bad_settings_are_refused(kind: str, change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        replace(learner_class(kind)(), **change)


@pytest.mark.parametrize("name", ["dqnavg", "ddpgavg"])
def test_published_settings_are_settings(name: str) -> None:
    settings = find_algorithm(name).settings["learner"]
    config = learner_class(settings["kind"])(**settings)
    assert config.memory_at_merge == "reset"  # type: ignore[attr-defined]


@pytest.mark.learning
def test_sac_learns_which_action_each_observation_needs() -> None:
    answer = run_probe(quick_config("sac"), "both", continuous=True)
    assert answer.share[0] < 0.1  # the least action for one sign
    assert answer.share[1] > 0.9  # the largest for the other
