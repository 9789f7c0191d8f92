"""Pooled training: one learner on the mixture of all worlds, the centralised reference of a federation.

Every iteration lets every client play at least one whole episode with the present policy, and the learner learns from
all of them together. A round has as many environment steps as K clients would train on.
"""

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.randomness import Purpose, host_generator
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import ClientIds
from fedpohcs.execution.mapping import ClientMap, joined
from fedpohcs.execution.store import ClientState
from fedpohcs.learners.base import Broadcast, IterationResult, Learner, Progress
from fedpohcs.learners.client import ClientProgram, TrainingResult


class MixtureBatch(NamedTuple):
    """How many steps an iteration and a round of pooled training have."""

    min_steps: int  # of each client per iteration; 0: one episode
    steps_per_round: int  # K I S; a round has as many iterations as come nearest to it, at least one
    room: int  # most steps of an iteration

    @classmethod
    def of(cls, config: ExperimentConfig, learner: Learner) -> "MixtureBatch":
        """About K S steps per iteration where episodes are short enough for that; see `docs/how-to/algorithms.md`."""
        federation, settings, horizon = config.federation, config.learner, learner.world.horizon
        steps = federation.num_selected * settings.steps_per_iteration
        min_steps = max(0, steps // federation.num_clients - horizon)
        room = federation.num_clients * (min_steps + horizon)
        return cls(min_steps, steps * settings.local_iterations, room)

    @property
    def most_steps(self) -> int:
        """Most steps of a round."""
        return self.steps_per_round + self.room


class Pooling(Protocol):
    """What pooled training needs of an executor."""

    config: ExperimentConfig
    learner: Learner
    program: ClientProgram
    clients: ClientMap

    def state_of(self, clients: ClientIds) -> ClientState:
        """State of some clients."""
        ...

    def collect(
        self, sent: Broadcast, round_number: int, iteration: int, clients: ClientIds, min_steps: int, filters: Any
    ) -> tuple[list[Trajectory], Any]: ...


def train_on_mixture(executor: Pooling, sent: Broadcast, round_number: int, clients: ClientIds) -> TrainingResult:
    """A round of pooled training; all clients get the same result, and their own numbers of steps."""
    batch = MixtureBatch.of(executor.config, executor.learner)
    learner = pooled_learner(executor.learner, batch)
    program = replace(executor.program, learner=learner)
    filters, memory, _ = executor.state_of(clients)
    now = Progress(_one(sent.params), *take_clients((filters, memory), slice(1)))
    steps = np.zeros(len(clients), np.int64)
    iteration, learned, counts = 0, None, np.zeros(len(clients), np.int64)
    while not iteration or steps.sum() + counts.sum() / 2 <= batch.steps_per_round:
        current = sent._replace(params=take_clients(now.params, 0))
        played, filters = executor.collect(current, round_number, iteration, clients, batch.min_steps, filters)
        counts = np.array([len(one.reward) for one in played])
        if not counts.sum():
            break  # nobody can play
        drawn = learner.draws(host_generator(executor.config.seed, Purpose.SHUFFLING, round_number, iteration))
        mixture = mixed(played, learner.batch_length, records_next=learner.records_next)
        learned = _learn(executor, program, sent, now, mixture, drawn)
        now = learned.now._replace(filters=now.filters)  # what all have seen is pooled after the round
        steps, iteration = steps + counts, iteration + 1
    return _for_all(now, filters, steps, learned)


def pooled_learner(learner: Learner, batch: MixtureBatch) -> Learner:
    """The learner with room for a batch of all clients."""
    return replace(learner, config=replace(learner.config, local_iterations=1, steps_per_iteration=batch.room))


def mixed(played: list[Trajectory], length: int, *, records_next: bool) -> Trajectory:
    """The episodes of all clients one after the other, as one lane with padding, [length, 1]."""

    def join(*rows: np.ndarray) -> np.ndarray:
        whole = np.concatenate(rows)
        return np.concatenate([whole, np.zeros((length - len(whole), *whole.shape[1:]), whole.dtype)])

    return jax.tree.map(join, *[one if records_next else one._replace(next_observation=None) for one in played])


def _learn(
    executor: Pooling, program: ClientProgram, sent: Broadcast, now: Progress, mixture: Trajectory, drawn: Any
) -> IterationResult:
    own = (now, _one(mixture), drawn)  # draws have a leading axis of one local iteration, here that of one learner
    return joined(executor.clients.run_chunks(ClientProgram.learn, program, sent, own, np.zeros(1, np.int64)))


def _for_all(now: Progress, filters: Any, steps: np.ndarray, learned: IterationResult | None) -> TrainingResult:
    """What one learner has learned, as the result of every client."""
    if learned is None:
        raise UserError("no client can play its environment.")
    number = len(steps)
    params, memory = (jax.tree.map(lambda x: np.repeat(x, number, axis=0), tree) for tree in (now.params, now.memory))
    info = jax.tree.map(lambda x: np.repeat(x, number, axis=0), learned.info)
    return TrainingResult(params, filters, memory, steps, info)


def _one(tree: Any) -> Any:
    """The tree with a leading axis of one client."""
    return jax.tree.map(lambda x: np.asarray(x)[None], tree)
