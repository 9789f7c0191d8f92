"""What the round needs of whoever runs the clients."""

from collections.abc import Set
from typing import Any, Protocol

from fedpohcs.types import CandidateMetrics, ClientIds, ClientUpdates, Evaluation, Params


class Executor(Protocol):
    """Runs clients by id: in this process, in worker processes, or over a network.

    Clients keep their own state (filters, momentum, recorded episodes) on the executor's side; the server sees only
    what these three calls return.
    """

    num_clients: int

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """Phase one: how the clients' worlds look under the current policy; only the named metrics."""
        ...

    def train(self, params: Params, round_number: int, clients: ClientIds) -> ClientUpdates:
        """Phase two: local training from the given parameters."""
        ...

    def evaluate(self, params: Params, round_number: int, clients: ClientIds) -> Evaluation:
        """Play with the given parameters."""
        ...

    def snapshot(self) -> Any:
        """Everything the clients carry from round to round that this side must store, as a tree of arrays."""
        ...
