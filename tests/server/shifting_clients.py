"""Clients whose training is known in advance: client n adds its own vector to the policy."""

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.types import CandidateMetrics, ClientIds, ClientUpdates, Evaluation
from fedpohcs.server.protocols import MostSteps


class Weights(NamedTuple):
    """Parameters with two parts that are learnt and one that is a control."""

    controls = ("temperature",)

    policy: np.ndarray
    critic: tuple[np.ndarray, ...]
    temperature: np.ndarray


def weights(policy: Any, critic: Any = 0.0, temperature: Any = 1.0) -> Weights:
    return Weights(np.asarray(policy, np.float32), (np.asarray(critic, np.float32),), np.float32(temperature))


class ShiftingClients:
    """An executor: client n adds `shifts[n]` to the policy and doubles the temperature; its return is n."""

    def __init__(self, shifts: Any, steps: Any = None) -> None:
        self.shifts = np.asarray(shifts, np.float32)
        self.num_clients = len(self.shifts)
        self.steps = np.full(self.num_clients, 10) if steps is None else np.asarray(steps)
        self.config = ExperimentConfig()
        self.most_steps = MostSteps(10**6, 10**6)
        self.trained: list[list[int]] = []
        self.received: list[Mapping[str, Any]] = []

    def initial_params(self) -> Weights:
        return weights(np.zeros_like(self.shifts[0]))

    def expect(self, clients: ClientIds, names: Set[str]) -> None: ...

    def measure(self, params: Weights, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        return CandidateMetrics(clients, {"mean_return": clients.astype(float)} if "mean_return" in names else {})

    def train(
        self, params: Weights, round_number: int, clients: ClientIds, extra: Mapping[str, Any] | None = None
    ) -> ClientUpdates:
        self.trained.append(clients.tolist())
        self.received.append({} if extra is None else extra)
        count = len(clients)
        stacked = Weights(
            params.policy + self.shifts[clients],
            tuple(np.repeat(leaf[None], count, axis=0) for leaf in params.critic),
            np.repeat(2 * params.temperature[None], count),
        )
        return ClientUpdates(clients, stacked, self.steps[clients].astype(np.int64))

    def evaluate(self, params: Weights, round_number: int, clients: ClientIds) -> Evaluation:
        return Evaluation(clients, clients.astype(float), np.ones(len(clients), np.int64))

    def snapshot(self) -> Any: ...

    def stored_policy(self, params: Weights) -> Any: ...

    def close(self) -> None: ...
