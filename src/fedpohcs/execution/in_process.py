"""Clients of a traced world inside this process."""

import math
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedpohcs.core.randomness import Purpose
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import ClientIds, Params
from fedpohcs.execution.clients import LocalExecutor, PlayOrder, Remember
from fedpohcs.execution.mapping import Chunk, joined
from fedpohcs.learners.base import Broadcast
from fedpohcs.learners.client import ClientInputs, ClientProgram, PlayResult, TrainingResult


class InProcessExecutor(LocalExecutor):
    """Runs a traced world's clients through a `ClientMap`: playing and learning are one compiled program."""

    def _start(self) -> None:
        self.population = jax.tree.map(np.asarray, self.world.population)

    def _warm_up(self, params: Params, clients: ClientIds, filters: Any) -> Any:
        """Play whole evaluations, as many as give the wanted steps if every episode reaches the time limit."""
        episodes = self.config.federation.evaluation_episodes
        steps_an_evaluation = episodes * self.world.horizon * self.config.filter_weight
        for number in range(math.ceil(self.config.learner.filter_warmup_steps / steps_an_evaluation)):
            order = PlayOrder(params, Purpose.WARM_UP, number, clients, filters, episodes)
            filters = self._play(order).filters
        return filters

    def _play(self, order: PlayOrder, remember: Remember | None = None) -> PlayResult:
        """Play episodes. Trajectories are large, so they stay in chunks and are never joined."""
        program = replace(self.program, evaluation_episodes=order.episodes)
        sent = self._broadcast(order.params, order.purpose, order.round_number)
        own = ClientInputs(order.clients, take_clients(self.population, order.clients), order.filters)
        chunks = self.clients.run_chunks(ClientProgram.evaluate, program, sent, (own,), order.clients)
        if remember is not None:
            for part in chunks:
                for position, client in enumerate(part.clients.tolist()):  # views into the chunk
                    remember(client, jax.tree.map(lambda x: x[:, position], part.result.trajectory))  # noqa: B023
        return joined([Chunk(part.clients, part.result._replace(trajectory=None)) for part in chunks])

    def _train(
        self, sent: Broadcast, round_number: int, clients: ClientIds, draws: Any, attempt: int
    ) -> TrainingResult:
        del round_number, attempt  # the key that is sent has them
        state = self.state_of(clients)
        own = (ClientInputs(clients, take_clients(self.population, clients), state.filters), state.memory, draws)
        return joined(self.clients.run_chunks(ClientProgram.train, self.program, sent, own, clients))

    def collect(
        self, sent: Broadcast, round_number: int, iteration: int, clients: ClientIds, min_steps: int, filters: Any
    ) -> tuple[list[Trajectory], Any]:
        """Episodes of the clients, without padding."""
        del round_number
        program = replace(self.program, collected_steps=min_steps)
        sent = sent._replace(key=jax.random.fold_in(sent.key, iteration))
        own = (ClientInputs(clients, take_clients(self.population, clients), filters),)
        played, after = joined(self.clients.run_chunks(ClientProgram.collect, program, sent, own, clients))
        lengths = played.valid.sum(axis=(1, 2)).tolist()
        rows = [jax.tree.map(lambda x: x[row, :length], played) for row, length in enumerate(lengths)]  # noqa: B023
        return rows, after
