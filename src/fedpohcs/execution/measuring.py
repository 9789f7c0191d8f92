"""Measures clients on this machine: what a metric may read, and checks of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedpohcs.core.array_rules import BadReplyError
from fedpohcs.core.errors import NobodyError, UserError
from fedpohcs.core.randomness import Purpose, device_key
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import CandidateMetrics, ClientIds, Distribution, Params, Vector
from fedpohcs.execution.mapping import compiled, joined
from fedpohcs.execution.shuffling import permutations
from fedpohcs.learners.base import Broadcast
from fedpohcs.learners.client import ClientInputs, ClientProgram
from fedpohcs.metrics.base import Column, Result, find_metric
from fedpohcs.metrics.packing import check_value

if TYPE_CHECKING:
    from fedpohcs.execution.clients import LocalExecutor

DISTRIBUTION_ROWS = 2048  # states per compiled call, so that tables of any size share one shape


class LocalContext:
    """What one metric may read of the clients of a local executor; see `metrics.base.MetricContext`."""

    def __init__(self, metric: str, executor: LocalExecutor, params: Params, round_number: int) -> None:
        self.metric, self.executor, self.params, self.round_number = metric, executor, params, round_number
        self.config, self.learner = executor.config, executor.learner
        key = device_key(self.config.seed, Purpose.GRADIENT_SAMPLE, round_number)
        self.program = executor.program
        self.sent = Broadcast(params, key, self.learner.schedule(round_number))

    def latest_returns(self, clients: ClientIds) -> Vector:
        """Mean undiscounted return of each client in its latest evaluation."""
        return self.executor.latest_returns(clients)

    def episodes(self, client: int) -> Sequence[Trajectory]:
        """Recorded episodes of a client, one trajectory [T, E] per recorded round, newest last."""
        modelled = find_metric(self.metric).reads == "modelled"
        found = self.executor.episodes_of(client, modelled=modelled)
        if not found:
            raise UserError(
                f"metric (={self.metric!r}) reads episodes of client {client}, which recorded none. "
                "Let the metric say reads='episodes' or reads='modelled'."
            )
        return found

    def filters(self, client: int) -> Any:
        """The filters with which a client rescales observations and rewards."""
        return take_clients(self.executor.filters_of(np.array([client])), 0)

    def distribution(self, states: np.ndarray) -> Distribution:
        """Action distributions of the policy in any number of states, computed in calls of one shape."""
        padded = np.pad(states, ((0, -len(states) % DISTRIBUTION_ROWS), (0, 0)))
        program = compiled(ClientProgram.distribution, self.program)
        parts = [
            jax.tree.map(np.asarray, program(self.sent, padded[start : start + DISTRIBUTION_ROWS]))
            for start in range(0, len(padded), DISTRIBUTION_ROWS)
        ]
        return jax.tree.map(lambda *rows: np.concatenate(rows)[: len(states)], *parts)

    def step_advantages(self, client: int, trajectory: Trajectory) -> np.ndarray:
        """Advantage samples of recorded steps, [T, E]."""
        program = compiled(ClientProgram.step_advantages, self.program)
        stacked = self.executor.stacked_episodes([trajectory])
        return np.asarray(program(self.sent, self._own(np.array([client])), stacked))[0, : len(trajectory.reward)]

    def map(self, function: Callable[[int], Result], clients: ClientIds) -> list[Result]:
        """`function(client)` for every client, on several threads; a failure names the client."""

        def one(client: int) -> Result:
            try:
                return function(client)
            except UserError:
                raise
            except Exception as error:
                raise UserError(f"metric (={self.metric!r}) failed for client {client}: {_text(error)}.") from error

        return self.executor.clients.on_host(one, [int(client) for client in clients])

    def compute(self, function: Callable[..., Any], clients: ClientIds, *, shuffled: bool = False) -> np.ndarray:
        """`function(program, sent, own, trajectory[, shuffle])`, compiled, on the latest recorded episodes."""
        episodes = self.executor.stacked_episodes([self.episodes(client)[-1] for client in clients.tolist()])
        own = (self._own(clients), episodes)
        if shuffled:
            own = (*own, permutations(self.sent.key, clients, episodes.valid[0].size))
        return joined(self.executor.clients.run_chunks(function, self.program, self.sent, own, clients))

    def rehearse(self, clients: ClientIds) -> tuple[Params, np.ndarray]:
        """What the clients would send if they trained now, and the steps of each."""
        result = self.executor.rehearse(self.params, self.round_number, clients)
        return result.params, np.asarray(result.steps)

    def _own(self, clients: ClientIds) -> ClientInputs:
        return ClientInputs(clients, None, self.executor.filters_of(clients))


def measure_clients(
    executor: LocalExecutor, params: Params, round_number: int, clients: ClientIds, names: Set[str]
) -> CandidateMetrics:
    """The named metrics of some clients, in their order."""
    columns = {name: _column(LocalContext(name, executor, params, round_number), clients) for name in sorted(names)}
    return CandidateMetrics(clients, columns)


def _column(context: LocalContext, clients: ClientIds) -> Column:
    """The column of a metric. A metric that raises or returns unusable values ends the run with one line."""
    name = context.metric
    metric = find_metric(name)
    try:
        column = metric.join(metric.measure(context, clients))
        if len(column) != len(clients):
            raise UserError(f"metric (={name!r}) must give one value per client, not {len(column)} for {len(clients)}.")
        _require_a_sound_value(context, clients, column)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"metric (={name!r}) failed: {_text(error)}.") from error
    return column


def _require_a_sound_value(context: LocalContext, clients: ClientIds, column: Column) -> None:
    """Refuse a metric without a valid value for any client. Single invalid values are left out in the round."""
    problems = []
    for client, value in zip(clients.tolist(), column, strict=True):
        try:
            return check_value(context.metric, value, context.config, context.params)
        except BadReplyError as error:
            problems.append(f"that of client {client} {error.text}")
    if problems:
        raise NobodyError(f"metric (={context.metric!r}) has no value that keeps its rules: {problems[0]}.")


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
