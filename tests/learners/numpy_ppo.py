"""A second PPO, in float64 NumPy with every gradient derived by hand. It imports nothing from the program.

Written from the definitions: Schulman et al. (2016) for generalised advantages, Schulman et al. (2017) for both
surrogates, Kingma and Ba (2015) for Adam, docs/decisions.md for filters and beta. It prefers plain to fast code.

A network is a flat list [kernel, bias, kernel, bias, ...]; a policy is such a list and then the logarithms of its
standard deviations, which are empty for discrete actions. `settings` has the fields of `PPOConfig`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Network = list[Floats]

PADDING, RUNNING, TERMINATED, TRUNCATED = range(4)
TINY_STD = 1e-6  # a stream that varies less is not rescaled
ADAM_DECAY, ADAM_SQUARE_DECAY, ADAM_EPSILON = 0.9, 0.999, 1e-8


# Filters


class Statistics(NamedTuple):
    """How many entries were seen, their mean and their sum of squared deviations."""

    seen: Any
    mean: Any
    squares: Any


def std_of(statistics: Statistics) -> Floats:
    std = np.sqrt(statistics.squares / max(statistics.seen, 1.0))
    return np.where(std > TINY_STD, std, 1.0)


def with_entries(statistics: Statistics, entries: Floats, weight: float = 1.0) -> Statistics:
    """Statistics of the old and the new entries together, by their sums and sums of squares."""
    seen = statistics.seen + weight * len(entries)
    total = statistics.seen * statistics.mean + weight * entries.sum(axis=0)
    total_of_squares = statistics.squares + statistics.seen * statistics.mean**2 + weight * (entries**2).sum(axis=0)
    mean = total / seen
    return Statistics(seen, mean, total_of_squares - seen * mean**2)


def seen_observation(settings: Any, statistics: Statistics, observation: Floats) -> Floats:
    """What policy and critic see of raw observations."""
    if not settings.filter_observations:
        return observation
    limit = settings.observation_clip
    return np.clip((observation - statistics.mean) / std_of(statistics), -limit, limit)


def seen_reward(settings: Any, statistics: Statistics, reward: Floats) -> Floats:
    """What the learner sees of raw rewards: scaled, never shifted."""
    if not settings.filter_rewards:
        return reward
    return np.clip(reward / std_of(statistics), -settings.reward_clip, settings.reward_clip)


# Networks


def forward(network: Network, rows: Floats) -> list[Floats]:
    """What enters each layer, then what leaves the last; tanh between layers."""
    values = [rows]
    for kernel, bias in zip(network[::2], network[1::2], strict=True):
        last = len(values) == len(network) // 2
        affine = values[-1] @ kernel + bias
        values.append(affine if last else np.tanh(affine))
    return values


def backward(network: Network, values: list[Floats], slope: Floats) -> Network:
    """The gradient of a scalar whose derivative by the output is `slope`."""
    gradient: Network = []
    for kernel, entered in zip(network[-2::-2], values[-2::-1], strict=True):
        gradient = [entered.T @ slope, slope.sum(axis=0), *gradient]
        slope = (slope @ kernel.T) * (1 - entered**2)  # d tanh(x) = 1 - tanh(x)^2; not used below the first layer
    return gradient


# Distributions: each derivative is a pair, by the output of the network and by log sigma, one row per sample.

Slopes = tuple[Floats, Floats]


class Normal(NamedTuple):
    """Independent normal actions, one sigma per action for all states."""

    mean: Floats  # [M, A]
    log_std: Floats  # [A]

    def log_prob(self, action: Floats) -> Floats:
        variance = np.exp(2 * self.log_std)
        return -0.5 * ((action - self.mean) ** 2 / variance + np.log(2 * math.pi * variance)).sum(axis=1)

    def log_prob_slopes(self, action: Floats) -> Slopes:
        variance = np.exp(2 * self.log_std)
        distance = action - self.mean
        return distance / variance, distance**2 / variance - 1

    def entropy(self) -> Floats:
        """One half of log(2 pi e sigma^2) for each action; the same in every state."""
        return np.full(len(self.mean), (0.5 * np.log(2 * math.pi * math.e * np.exp(2 * self.log_std))).sum())

    def entropy_slopes(self) -> Slopes:
        return np.zeros_like(self.mean), np.ones_like(self.mean)

    def kl_from(self, old: "Normal") -> Floats:
        """KL(old || self)."""
        spread = np.exp(2 * old.log_std) + (old.mean - self.mean) ** 2
        return (self.log_std - old.log_std + spread / (2 * np.exp(2 * self.log_std)) - 0.5).sum(axis=1)

    def kl_from_slopes(self, old: "Normal") -> Slopes:
        variance = np.exp(2 * self.log_std)
        spread = np.exp(2 * old.log_std) + (old.mean - self.mean) ** 2
        return (self.mean - old.mean) / variance, 1 - spread / variance


class Choice(NamedTuple):
    """One of finitely many actions."""

    probability: Floats  # [M, A]

    @property
    def no_slope(self) -> Floats:
        """There is no sigma."""
        return np.zeros((len(self.probability), 0))

    def log_prob(self, action: NDArray[np.int64]) -> Floats:
        return np.log(self.probability[np.arange(len(action)), action])

    def log_prob_slopes(self, action: NDArray[np.int64]) -> Slopes:
        return np.eye(self.probability.shape[1])[action] - self.probability, self.no_slope

    def entropy(self) -> Floats:
        return -(self.probability * np.log(self.probability)).sum(axis=1)

    def entropy_slopes(self) -> Slopes:
        surprise = -np.log(self.probability)
        return self.probability * (surprise - self.entropy()[:, None]), self.no_slope

    def kl_from(self, old: "Choice") -> Floats:
        """KL(old || self)."""
        return (old.probability * np.log(old.probability / self.probability)).sum(axis=1)

    def kl_from_slopes(self, old: "Choice") -> Slopes:
        return self.probability - old.probability, self.no_slope


def head(output: Floats, log_std: Floats) -> Any:
    """The distribution that the output of the policy stands for."""
    if log_std.size:
        return Normal(output, log_std)
    exponential = np.exp(output - output.max(axis=1, keepdims=True))
    return Choice(exponential / exponential.sum(axis=1, keepdims=True))


def distribution(policy: Network, observation: Floats) -> Any:
    return head(forward(policy[:-1], observation)[-1], policy[-1])


def value(critic: Network, observation: Floats) -> Floats:
    return forward(critic, observation)[-1][:, 0]


# Advantages and the batch


class Episode(NamedTuple):
    """The steps of one episode of one lane, and how its last step ended."""

    steps: slice
    lane: int
    ending: int


def episodes_of(status: NDArray[np.int64]) -> list[Episode]:
    """Every lane of [T, E] cut behind its last steps; padding belongs to none."""
    episodes = []
    for lane in range(status.shape[1]):
        begin = 0
        for time, ending in enumerate(status[:, lane].tolist()):
            if ending in (TERMINATED, TRUNCATED):
                episodes.append(Episode(slice(begin, time + 1), lane, ending))
                begin = time + 1
    return episodes


def episode_advantages(reward: Floats, value: Floats, value_after: float, gamma: float, lambda_: float) -> Floats:
    """The sum over l of (gamma lambda)^l delta_{t+l}, written out. Schulman et al. (2016), Eq. 16."""
    following = np.append(value[1:], value_after)
    delta = reward + gamma * following - value
    return np.array(
        [
            sum((gamma * lambda_) ** (later - t) * delta[later] for later in range(t, len(delta)))
            for t in range(len(delta))
        ]
    )


class Samples(NamedTuple):
    """One row per step of a batch."""

    observation: Floats
    action: Any
    advantage: Floats
    target: Floats
    old: Any


class Batch(NamedTuple):
    """All rows of a trajectory, [T * E], padding included."""

    samples: Samples
    valid: NDArray[np.bool_]


def advantages(
    settings: Any, critic: Network, observed: Statistics, rewarded: Statistics, trajectory: Any
) -> tuple[Floats, Floats]:
    """Advantages and values, [T, E] each; both are 0 in the padding."""
    advantage, values = np.zeros(trajectory.reward.shape), np.zeros(trajectory.reward.shape)
    for steps, lane, ending in episodes_of(trajectory.status):
        seen = seen_observation(settings, observed, trajectory.observation[steps, lane])
        values[steps, lane] = value(critic, seen)
        after = 0.0
        if ending == TRUNCATED and settings.bootstrap_at_time_limit:
            left = seen_observation(settings, observed, trajectory.next_observation[steps.stop - 1, lane])
            after = value(critic, left[None])[0]
        reward = seen_reward(settings, rewarded, trajectory.reward[steps, lane])
        advantage[steps, lane] = episode_advantages(
            reward, values[steps, lane], after, settings.discount, settings.gae_discount
        )
    return advantage, values


def make_batch(
    settings: Any, policy: Network, critic: Network, observed: Statistics, rewarded: Statistics, trajectory: Any
) -> Batch:
    advantage, values = (x.reshape(-1) for x in advantages(settings, critic, observed, rewarded, trajectory))
    valid = trajectory.status.reshape(-1) != PADDING
    mean, std = advantage[valid].mean(), advantage[valid].std()
    rows = trajectory.observation.reshape(len(valid), -1)
    observation = seen_observation(settings, observed, rows)
    action = trajectory.action.reshape(len(valid), *trajectory.action.shape[2:])
    standardised = np.where(valid, (advantage - mean) / (std + 1e-8), 0.0)
    old = distribution(policy, observation)
    return Batch(Samples(observation, action, standardised, advantage + values, old), valid)


def rows_of(samples: Samples, index: Any) -> Samples:
    """Some rows. A standard deviation belongs to all rows, so it stays whole."""
    old = samples.old
    old = old._replace(mean=old.mean[index]) if isinstance(old, Normal) else Choice(old.probability[index])
    return samples._replace(
        observation=samples.observation[index],
        action=samples.action[index],
        advantage=samples.advantage[index],
        target=samples.target[index],
        old=old,
    )


# Losses, each with its gradient


def kl_penalty_gain(settings: Any, weight: Floats, advantage: Floats) -> tuple[Floats, Floats]:
    """min(w, cap) A and its derivative by w, without the penalty."""
    cap = settings.importance_cap
    return np.where(weight < cap, weight, cap) * advantage, np.where(weight < cap, advantage, 0.0)


def clipped_gain(settings: Any, weight: Floats, advantage: Floats) -> tuple[Floats, Floats]:
    """PPO's clipped gain and its derivative by w. Schulman et al. (2017), Eq. 7 and Fig. 1.

    A gain is cut off where the weight has moved too far in the direction that its advantage asks for.
    """
    high, low = 1 + settings.clip_range, 1 - settings.clip_range
    too_high, too_low = (advantage > 0) & (weight > high), (advantage < 0) & (weight < low)
    gain = np.where(too_high, high * advantage, np.where(too_low, low * advantage, weight * advantage))
    return gain, np.where(too_high | too_low, 0.0, advantage)


def policy_loss(settings: Any, policy: Network, samples: Samples, beta: float, bonus: float) -> tuple[float, Network]:
    """The negated mean of gain - beta KL(old || new) + bonus H(new), and its gradient."""
    values = forward(policy[:-1], samples.observation)
    new = head(values[-1], policy[-1])
    weight = np.exp(new.log_prob(samples.action) - samples.old.log_prob(samples.action))
    if settings.loss == "clip":
        gain, by_weight = clipped_gain(settings, weight, samples.advantage)
        beta = 0.0  # the clipped objective has no penalty
    else:
        gain, by_weight = kl_penalty_gain(settings, weight, samples.advantage)
    total = gain - beta * new.kl_from(samples.old) + bonus * new.entropy()
    by_log_prob = (by_weight * weight)[:, None]  # dw = w d log pi
    by_output, by_log_std = (
        by_log_prob * likelihood - beta * penalty + bonus * entropy
        for likelihood, penalty, entropy in zip(
            new.log_prob_slopes(samples.action), new.kl_from_slopes(samples.old), new.entropy_slopes(), strict=True
        )
    )
    gradient = backward(policy[:-1], values, -by_output / len(weight))
    return -total.mean(), [*gradient, -by_log_std.mean(axis=0)]


def critic_loss(critic: Network, samples: Samples) -> tuple[float, Network]:
    """The mean squared error and its gradient."""
    values = forward(critic, samples.observation)
    error = values[-1][:, 0] - samples.target
    return (error**2).mean(), backward(critic, values, 2 * error[:, None] / len(error))


def finite_differences(loss: Callable[[Network], float], network: Network, width: float = 1e-6) -> Network:
    """The gradient by central differences, one weight at a time."""
    slopes = [np.zeros_like(x) for x in network]
    for own, slope in zip(network, slopes, strict=True):
        for index in np.ndindex(own.shape):
            kept = own[index]
            own[index] = kept + width
            above = loss(network)
            own[index] = kept - width
            slope[index] = (above - loss(network)) / (2 * width)
            own[index] = kept
    return slopes


# Optimisers


def norm(gradient: Network) -> float:
    return math.sqrt(sum((part**2).sum() for part in gradient))


def clipped_to_norm(gradient: Network, limit: float) -> Network:
    length = norm(gradient)
    return [part * limit / length for part in gradient] if length > limit else gradient


class Adam(NamedTuple):
    """How many steps were made, and the running means of the gradient and of its square."""

    steps: int
    first: Network
    second: Network


def adam_step(state: Adam, gradient: Network, learning_rate: float) -> tuple[Network, Adam]:
    """What is added to the weights. Kingma and Ba (2015), Alg. 1."""
    steps = state.steps + 1
    first = [ADAM_DECAY * m + (1 - ADAM_DECAY) * g for m, g in zip(state.first, gradient, strict=True)]
    second = [
        ADAM_SQUARE_DECAY * v + (1 - ADAM_SQUARE_DECAY) * g**2 for v, g in zip(state.second, gradient, strict=True)
    ]
    step = [
        -learning_rate * (m / (1 - ADAM_DECAY**steps)) / (np.sqrt(v / (1 - ADAM_SQUARE_DECAY**steps)) + ADAM_EPSILON)
        for m, v in zip(first, second, strict=True)
    ]
    return step, Adam(steps, first, second)


# One local iteration


class Agent(NamedTuple):
    """All that a local iteration changes, but for the filters."""

    policy: Network
    critic: Network
    beta: float
    velocity: Network
    adam: Adam


class Report(NamedTuple):
    """What a local iteration did."""

    kl: float
    entropy: float
    critic_loss: float


def minibatches(shuffle: Any, valid: NDArray[np.bool_], size: int) -> list[list[int]]:
    """The valid steps in shuffled order, cut into minibatches; the last may be short."""
    order = [int(step) for step in shuffle if valid[step]]
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


def adapted_beta(settings: Any, beta: float, kl: float, largest_advantage: float) -> float:
    """The rule of docs/decisions.md."""
    if kl > 1.1 * settings.kl_target:
        beta *= 2
    elif kl < settings.kl_target / 1.1:
        beta /= 2
    return max(min(beta, 20.0, largest_advantage / max(kl, 1e-12)), 1e-8)


def local_iteration(
    settings: Any, learning_rate: float, bonus: float, agent: Agent, batch: Batch, shuffles: Any
) -> tuple[Agent, Report]:
    """Policy epochs, then critic epochs, one shuffle each, then the rule for beta."""
    policy, critic, beta, velocity, adam = agent
    samples, valid = batch

    for shuffle in shuffles[: settings.epochs]:
        for chosen in minibatches(shuffle, valid, settings.batch_size):
            _, gradient = policy_loss(settings, policy, rows_of(samples, chosen), beta, bonus)
            gradient = clipped_to_norm(gradient, settings.max_gradient_norm)
            velocity = [settings.momentum * v + g for v, g in zip(velocity, gradient, strict=True)]
            policy = [x - learning_rate * v for x, v in zip(policy, velocity, strict=True)]
    for shuffle in shuffles[settings.epochs :]:
        for chosen in minibatches(shuffle, valid, settings.batch_size):
            _, gradient = critic_loss(critic, rows_of(samples, chosen))
            step, adam = adam_step(adam, gradient, settings.critic_learning_rate)
            critic = [x + s for x, s in zip(critic, step, strict=True)]

    played = rows_of(samples, valid)
    new = distribution(policy, played.observation)
    report = Report(new.kl_from(played.old).mean(), new.entropy().mean(), critic_loss(critic, played)[0])
    beta = adapted_beta(settings, beta, report.kl, played.advantage.max())
    return Agent(policy, critic, beta, velocity, adam), report
