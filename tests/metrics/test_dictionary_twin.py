"""The fast path against a slow twin: dictionaries, tuples and loops, written straight from Sec. 4.2 of the paper."""

import itertools
import math
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedpohcs.core.config import ModellingConfig
from fedpohcs.core.types import Steps
from fedpohcs.learners.distributions import Categorical, Gaussian
from fedpohcs.metrics import weighted_advantage_table
from fedpohcs.metrics.cells import keys_of

DISCOUNT = 0.9
WIDTH = 0.5


def random_steps(seed: int, *, discrete: bool) -> Steps:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 12, size=8)
    count = lengths.sum()
    return Steps(
        observation=generator.normal(size=(count, 2)).astype(np.float32) * 0.6,
        action=generator.integers(3, size=count) if discrete else generator.normal(size=(count, 2)).astype(np.float32),
        reward=generator.normal(size=count).astype(np.float32),
        last=np.isin(np.arange(count), np.cumsum(lengths) - 1),
        advantage=generator.normal(size=count),
    )


def gaussian(centres):
    mean = np.stack((np.sin(centres[:, 0]), centres[:, 1] * 0.5), axis=1)
    return Gaussian(mean, np.full_like(mean, -0.3))


def categorical(centres):
    logits = np.stack((centres[:, 0], centres[:, 1], np.zeros(len(centres))), axis=1)
    return Categorical(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def cell(values) -> tuple[int, ...]:
    values = np.atleast_1d(values)
    return tuple(int(v) if isinstance(v, np.integer) else round(float(v) / WIDTH) for v in values)


def density(policy, state, action, *, discrete: bool) -> float:
    centre = np.array([state], np.float32) * WIDTH
    centre_of_action = np.array(action) if discrete else np.array([action]) * WIDTH
    return math.exp(policy(centre).log_prob(centre_of_action)[0])


def episodes_of(steps: Steps, limit: int | None) -> list[list[tuple]]:
    episodes, episode = [], []
    for index in range(len(steps.reward)):
        record = (cell(steps.observation[index]), cell(steps.action[index]))
        episode.append((*record, float(steps.reward[index]), float(steps.advantage[index])))
        if steps.last[index]:
            episodes.append(episode[:limit])
            episode = []
    return episodes


def twin(steps: Steps, policy, config: ModellingConfig, *, discrete: bool) -> dict[tuple, float]:
    episodes = episodes_of(steps, config.steps_per_episode)
    count, transition, reward, sample = Counter(), defaultdict(Counter), Counter(), Counter()
    for number, episode in enumerate(episodes):
        for step, (state, action, gain, advantage) in enumerate(episode):
            pair = (state, action)
            count[pair] += 1
            reward[pair] += gain
            sample[pair] += advantage
            if step + 1 < len(episode):
                transition[pair][episode[step + 1][0]] += 1
            elif config.episode_end == "restart":
                transition[pair][episodes[(number + 1) % len(episodes)][0][0]] += 1

    all_actions = {action for _, action in count}
    taken = defaultdict(set)
    for state, action in count:
        taken[state].add(action)
    probability = {}
    for state, action in count:
        support = taken[state] if config.action_support == "state" else all_actions
        total = sum(density(policy, state, other, discrete=discrete) for other in support)
        probability[state, action] = density(policy, state, action, discrete=discrete) / total

    now = Counter(episode[0][0] for episode in episodes)
    visits = Counter()
    for _ in range(config.horizon):
        visits.update(now)
        following = Counter()
        for (state, action), share in probability.items():
            for target, times in transition[state, action].items():
                following[target] += now[state] * share * times / count[state, action]
        now = following
    total_visits = sum(visits.values())

    value = defaultdict(float)
    for _ in range(400):
        updated = defaultdict(float)
        for pair, share in probability.items():
            updated[pair[0]] += share * action_value(pair, count, transition, reward, value)
        value = updated
    if config.advantages == "gae":
        advantage = {pair: sample[pair] / count[pair] for pair in count}
    else:
        advantage = {pair: action_value(pair, count, transition, reward, value) - value[pair[0]] for pair in count}
    if config.standardise:
        mean, spread = np.mean(list(advantage.values())), np.std(list(advantage.values()))
        advantage = {pair: (number - mean) / spread for pair, number in advantage.items()}
    return {pair: visits[pair[0]] / total_visits * advantage[pair] for pair in count}


def action_value(pair, count, transition, reward, value) -> float:
    future = sum(times * value[target] for target, times in transition[pair].items())
    return (reward[pair] + DISCOUNT * future) / count[pair]


def keyed(table: dict[tuple, float]) -> dict[int, float]:
    states = keys_of(np.array([state for state, _ in table]), 1.0)
    keys = keys_of(np.array([action for _, action in table]), 1.0, states)
    return dict(zip(keys.tolist(), table.values(), strict=True))


OPTIONS = list(
    itertools.product(("state", "client"), ("absorbing", "restart"), ("model", "gae"), (False, True), (None, 4))
)


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize(("support", "end", "advantages", "standardise", "limit"), OPTIONS)
def test_fast_path_equals_the_dictionary_twin(discrete, support, end, advantages, standardise, limit):
    config = ModellingConfig(
        observation_cell=WIDTH,
        action_cell=WIDTH,
        horizon=25,
        action_support=support,
        episode_end=end,
        advantages=advantages,
        standardise=standardise,
        steps_per_episode=limit,
    )
    for seed in range(3):
        steps = random_steps(seed, discrete=discrete)
        policy = categorical if discrete else gaussian
        table = weighted_advantage_table(steps, policy, config, DISCOUNT)
        expected = keyed(twin(steps, policy, config, discrete=discrete))
        assert table.pair.tolist() == sorted(expected)
        scale = max(map(abs, expected.values()))
        np.testing.assert_allclose(table.value, [expected[key] for key in table.pair.tolist()], atol=3e-6 * scale)


def test_threads_give_the_same_tables():
    clients = [random_steps(seed, discrete=False) for seed in range(12)]

    def table(steps):
        return weighted_advantage_table(steps, gaussian, ModellingConfig(), 0.99)

    with ThreadPoolExecutor(4) as pool:
        for alone, together in zip(map(table, clients), pool.map(table, clients), strict=True):
            np.testing.assert_array_equal(alone.pair, together.pair)
            np.testing.assert_array_equal(alone.value, together.value)
