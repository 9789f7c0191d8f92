"""Fine-tuning: what every client reaches if it trains on alone from the policy that the federation has learned."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.types import Evaluation, Params
from fedpohcs.learners.client import ControlledMemory
from fedpohcs.learners.personal import Own, Personal

if TYPE_CHECKING:
    from fedpohcs.execution.clients import LocalExecutor


def finetuned_evaluation(
    executor: "LocalExecutor", params: Params, round_number: int, iterations: int, played: int | None = None
) -> Evaluation:
    """Train a copy of every client for so many local iterations, and evaluate each copy with its own weights.

    Held-out clients train apart, because last digits depend on the batch.

    Args:
        executor: of the clients; it does not change.
        params: the policy that all start from.
        round_number: of that policy.
        iterations: local iterations.
        played: the round whose evaluation episodes are played. None: that of the policy, so that returns before and
            after differ by the training alone as far as possible.
    """
    from fedpohcs.execution import make_executor
    from fedpohcs.execution.clients import Snapshot

    config = alone(executor.config, iterations)
    state = executor.state._replace(filters=_own(executor, params), memory=_plain(executor.state.memory))
    copies = make_executor(config, record=False, snapshot=Snapshot(state, []), members=executor.members)
    try:
        held_out = executor.members >= executor.num_clients
        parts = []
        for clients in (executor.members[~held_out], executor.members[held_out]):
            if len(clients):
                copies.train(params, round_number, clients)
                parts.append(copies.evaluate(params, round_number if played is None else played, clients))
    finally:
        copies.close()
    return Evaluation(
        np.concatenate([part.client for part in parts]),
        np.concatenate([part.mean_return for part in parts]),
        np.concatenate([part.steps for part in parts]),
    )


def alone(config: ExperimentConfig, iterations: int) -> ExperimentConfig:
    """The config of clients that train alone for so many local iterations."""
    federation = replace(
        config.federation, personal="all", pooled=False, finetune_iterations=0, server_optimiser="identity"
    )
    learner = replace(config.learner, local_iterations=iterations)
    return replace(config, algorithm=None, selector="full", federation=federation, learner=learner)


def _own(executor: "LocalExecutor", params: Params) -> Own:
    """The filters of all clients with the weights that each starts from."""
    learner, filters = executor.learner, executor.state.filters
    if isinstance(learner, Personal):
        weights = jax.tree.map(np.asarray, jax.vmap(lambda own: learner.weights(params, own))(filters))
        within = filters.filters
    else:
        weights = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], len(executor.members), axis=0), params)
        within = filters
    return Own(within, weights, np.ones(len(executor.members), bool))


def _plain(memory: Any) -> Any:
    """The memory of the learner, without a control variate."""
    return memory.within if isinstance(memory, ControlledMemory) else memory
