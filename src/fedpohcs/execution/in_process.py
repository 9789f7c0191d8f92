"""Clients of a traced world inside this process."""

import math
from dataclasses import replace

import jax
import numpy as np

from fedpohcs.core.randomness import Purpose
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import ClientIds, Params
from fedpohcs.execution.clients import Asked, LocalExecutor
from fedpohcs.execution.mapping import Chunk, joined
from fedpohcs.learners.client import Evaluated, Own, Trained
from fedpohcs.learners.filters import Filters


class InProcessExecutor(LocalExecutor):
    """Runs a traced world's clients through a `ClientMap`: playing and learning are one compiled program."""

    def _start(self) -> None:
        self.population = jax.tree.map(np.asarray, self.world.population)

    def _warm_up(self, params: Params, clients: ClientIds, filters: Filters) -> Filters:
        """As many whole evaluations as would give the steps if every episode lasted to the time limit."""
        episodes = self.config.federation.evaluation_episodes
        steps_an_evaluation = episodes * self.world.horizon * self.config.filter_weight
        for number in range(math.ceil(self.config.learner.filter_warmup_steps / steps_an_evaluation)):
            asked = Asked(params, Purpose.WARM_UP, number, clients, filters, episodes)
            filters = self._play(asked, remember=False).filters
        return filters

    def _play(self, asked: Asked, *, remember: bool) -> Evaluated:
        """Trajectories are large, so they are kept in chunks and never joined."""
        learner = replace(self.learner, evaluation_episodes=asked.episodes)
        shared = self._shared(asked.params, asked.purpose, asked.round_number)
        own = Own(asked.clients, take_clients(self.population, asked.clients), asked.filters)
        chunks = self.clients.run_chunks(learner, "evaluate", shared, (own,), asked.clients)
        if remember:
            for part in chunks:
                for position, client in enumerate(part.clients.tolist()):  # views of what they played together
                    self._remember(client, jax.tree.map(lambda x: x[:, position], part.result.trajectory))  # noqa: B023
        return joined([Chunk(part.clients, part.result._replace(trajectory=None)) for part in chunks])

    def _train(self, params: Params, round_number: int, clients: ClientIds, shuffles: np.ndarray) -> Trained:
        shared = self._shared(params, Purpose.TRAINING, round_number)
        env, filters, optimisers = take_clients((self.population, self.state.filters, self.state.optimisers), clients)
        own = (Own(clients, env, filters), optimisers, shuffles)
        return joined(self.clients.run_chunks(self.learner, "train", shared, own, clients))
