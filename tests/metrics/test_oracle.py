"""Sampled tables against exact ones: a small random MDP with one-hot observations."""

import numpy as np

from fedpohcs.core.config import ModellingConfig
from fedpohcs.core.types import Steps
from fedpohcs.learners.distributions import Categorical
from fedpohcs.metrics import weighted_advantage_table
from fedpohcs.metrics.cells import keys_of

STATES, ACTIONS, DISCOUNT, HORIZON = 5, 3, 0.95, 50


class RandomMDP:
    """Its last column of probabilities is the end of the episode, which comes by itself: no time limit."""

    def __init__(self, seed: int):
        generator = np.random.default_rng(seed)
        self.start = generator.dirichlet(np.ones(STATES))
        self.transition = generator.dirichlet(np.ones(STATES + 1), size=(STATES, ACTIONS))
        self.reward = generator.normal(size=(STATES, ACTIONS))
        self.policy = generator.dirichlet(np.ones(ACTIONS) * 3, size=STATES)

    def distribution(self, centres):
        return Categorical(np.log(self.policy)[centres.argmax(axis=1)])

    def sample(self, episodes: int, seed: int) -> Steps:
        generator = np.random.default_rng(seed)
        state = generator.choice(STATES, size=episodes, p=self.start)
        alive, records = np.arange(episodes), []
        while len(alive):
            action = draw(self.policy[state], generator)
            target = draw(self.transition[state, action], generator)
            reward = self.reward[state, action] + generator.normal(size=len(alive))
            records.append((alive, state, action, reward, target == STATES))
            alive, state = alive[target < STATES], target[target < STATES]
        episode, state, action, reward, last = map(np.concatenate, zip(*records, strict=True))
        order = np.argsort(episode, kind="stable")
        return Steps(np.eye(STATES, dtype=np.float32)[state[order]], action[order], reward[order], last[order])

    def exact_table(self) -> np.ndarray:
        going_on = self.transition[:, :, :STATES]
        chain = np.einsum("sa,sat->st", self.policy, going_on)
        visits, now = np.zeros(STATES), self.start
        for _ in range(HORIZON):
            visits, now = visits + now, now @ chain
        value = np.linalg.solve(np.eye(STATES) - DISCOUNT * chain, (self.policy * self.reward).sum(axis=1))
        advantage = self.reward + DISCOUNT * going_on @ value - value[:, None]
        return (visits / visits.sum())[:, None] * advantage


def draw(probability, generator):
    return (generator.random((len(probability), 1)) > probability.cumsum(axis=1)).sum(axis=1)


def test_sampled_tables_converge_to_the_exact_ones():
    config = ModellingConfig(horizon=HORIZON)
    state, action = np.divmod(np.arange(STATES * ACTIONS), ACTIONS)
    keys = keys_of(action, 1.0, keys_of(np.eye(STATES)[state], config.observation_cell))
    for seed in range(3):
        mdp = RandomMDP(seed)
        exact = mdp.exact_table().ravel()
        errors = []
        for episodes in (100, 2_000, 40_000):
            table = weighted_advantage_table(mdp.sample(episodes, seed), mdp.distribution, config, DISCOUNT)
            sampled = dict(zip(table.pair.tolist(), table.value, strict=True))
            found = np.array([sampled.get(key, 0.0) for key in keys.tolist()])
            errors.append(np.linalg.norm(found - exact) / np.linalg.norm(exact))
        assert errors[0] > errors[1] > errors[2]
        assert errors[2] < 0.03
