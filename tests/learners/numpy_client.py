"""A client of the tabular world that plays and trains in NumPy, with the random numbers of the program."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from learners import numpy_ppo
from learners.reference import InProcessExecutor, Noise, Purpose, Trajectory, device_key, draw_noise, host_generator

EPISODES, HORIZON, PADDING = 6, 50, 50
"""Six whole episodes are the fewest with more than 256 steps; the program has room for seven."""
ONE_HOT = np.eye(6)


def exact(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


class NumpyClient:
    """One client of an executor's population: its world and what it keeps between rounds."""

    def __init__(self, executor: InProcessExecutor, client: int) -> None:
        self.client, self.seed = client, executor.config.seed
        self.world, self.learner, self.settings = executor.world, executor.learner, executor.config.learner
        self.observed = numpy_ppo.Statistics(0.0, np.zeros(6), np.zeros(6))
        self.rewarded = numpy_ppo.Statistics(0.0, 0.0, 0.0)
        params = exact(executor.initial_params())
        policy, critic = ([0 * x for x in jax.tree.leaves(part)] for part in (params.policy, params.critic))
        self.agent = numpy_ppo.Agent(policy, critic, 0.0, policy, numpy_ppo.Adam(0, critic, critic))

    def forget_momentum(self) -> None:
        self.agent = self.agent._replace(velocity=[0 * x for x in self.agent.velocity])

    def train(self, params: Any, number: int, rate: float, bonus: float, forget: bool = False) -> numpy_ppo.Report:
        """The local iterations of a round from the given weights; with `forget`, each starts without velocity."""
        policy, critic, beta = exact(params)
        self.agent = self.agent._replace(
            policy=jax.tree.leaves(policy), critic=jax.tree.leaves(critic), beta=float(beta)
        )
        reports = []
        for noise, shuffles in self._draws(number):
            played = self._play(noise)
            reports.append(self._learn(played, rate, bonus, shuffles))
            self._absorb(played)
            if forget:
                self.forget_momentum()
        return reports[-1]

    def _draws(self, number: int) -> Iterator[tuple[Noise, np.ndarray]]:
        """Noise and shuffles of each local iteration, named by seed, purpose, round and client."""
        shuffles = self.learner.draws(host_generator(self.seed, Purpose.SHUFFLING, number, self.client))
        key = jax.random.fold_in(device_key(self.seed, Purpose.TRAINING, number), self.client)
        for iteration, own in enumerate(jax.random.split(key, len(shuffles))):
            yield (
                exact(draw_noise(own, self.world, self.learner.noise, 1, self.settings.steps_per_iteration)),
                shuffles[iteration],
            )

    def _play(self, noise: Noise) -> Trajectory:
        """Whole episodes with frozen filters, [T, 1]. They end at the time limit only."""
        steps, state = [], int(noise.start[0, 0] * 6)
        for time in range(EPISODES * HORIZON):
            action = self._action(state, noise.action[time, 0])
            after = self._state_after(state, action, noise.step[time, 0, 0])
            last = time % HORIZON == HORIZON - 1
            status = numpy_ppo.TRUNCATED if last else numpy_ppo.RUNNING
            steps.append((ONE_HOT[state], action, self.world.rewards[state, action], status, ONE_HOT[after]))
            state = int(noise.reset[time, 0, 0] * 6) if last else after
        rows = [np.array(column)[:, None] for column in zip(*steps, strict=True)]
        return Trajectory(*(np.concatenate([x, np.zeros_like(x[:PADDING])]) for x in rows))

    def _action(self, state: int, gumbel: np.ndarray) -> int:
        seen = numpy_ppo.seen_observation(self.settings, self.observed, ONE_HOT[state])
        probability = numpy_ppo.distribution(self.agent.policy, seen[None]).probability[0]
        return int(np.argmax(np.log(probability) + gumbel))

    def _state_after(self, state: int, action: int, uniform: float) -> int:
        return int((uniform >= np.cumsum(self.world.transitions[self.client, state, action])).sum())

    def _learn(self, played: Trajectory, rate: float, bonus: float, shuffles: np.ndarray) -> numpy_ppo.Report:
        """One local iteration, with the filters that were used for acting."""
        policy, critic = self.agent.policy, self.agent.critic
        batch = numpy_ppo.make_batch(self.settings, policy, critic, self.observed, self.rewarded, played)
        self.agent, report = numpy_ppo.local_iteration(self.settings, rate, bonus, self.agent, batch, shuffles)
        return report

    def _absorb(self, played: Trajectory) -> None:
        self.observed = numpy_ppo.with_entries(self.observed, played.observation[played.valid])
        self.rewarded = numpy_ppo.with_entries(self.rewarded, played.reward[played.valid])
