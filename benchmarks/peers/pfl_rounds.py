"""Rounds of pfl's simulation: K of N clients move a vector of 4 numbers by one gradient step, with NumPy."""

from typing import Any

import numpy as np
from _serve import Turn, serve
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedAlgorithm
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import AlgorithmHyperParams
from pfl.metrics import Metrics
from pfl.model.base import Model
from pfl.stats import MappedVectorStatistics

SELECTED, ROUNDS = 10, 100


class Vector(Model):
    """The global model."""

    def __init__(self) -> None:
        self.weights = np.zeros(4, np.float32)

    def apply_model_update(self, statistics: Any) -> Any:
        self.weights = self.weights + statistics["w"]
        return self, Metrics()


class Averaging(FederatedAlgorithm):
    """Federated averaging of the vector."""

    def get_next_central_contexts(self, *arguments: Any, **named: Any) -> Any:
        """No further round: pfl requires the method, and `rounds` makes the contexts itself."""
        return None

    def simulate_one_user(self, model: Any, user_dataset: Any, central_context: Any) -> Any:
        gradient = model.weights - user_dataset.raw_data[0]
        return MappedVectorStatistics({"w": -0.1 * gradient}, weight=1.0), Metrics()

    def process_aggregated_statistics(self, context: Any, metrics: Any, model: Any, statistics: Any) -> Any:
        statistics.average()
        return model.apply_model_update(statistics)


def rounds(clients: int) -> Turn:
    sampler = get_user_sampler("random", list(range(clients)))
    data = FederatedDataset(lambda user: Dataset([np.full(4, user, np.float32)], user_id=str(user)), sampler)
    backend, algorithm, model, number = SimulatedBackend(data, data), Averaging(), Vector(), 0

    def turn() -> int:
        nonlocal model, number
        for _ in range(ROUNDS):
            context = CentralContext(
                current_central_iteration=number,
                do_evaluation=False,
                cohort_size=SELECTED,
                population=Population.TRAIN,
                algorithm_params=AlgorithmHyperParams(),
                model_train_params=None,
                model_eval_params=None,
                seed=number,
            )
            statistics, metrics = backend.gather_results(model, algorithm, central_context=context)
            model, _ = algorithm.process_aggregated_statistics(context, metrics, model, statistics)
            number += 1
        return ROUNDS

    return turn


if __name__ == "__main__":
    serve({f"{n} clients": lambda n=n: rounds(n) for n in (60, 1000, 10000)})
