"""What the round needs of whoever runs the clients."""

from collections.abc import Set
from typing import Any, NamedTuple, Protocol

from fedpohcs.core.types import CandidateMetrics, ClientIds, ClientUpdates, Evaluation, Params


class RemoteClients(NamedTuple):
    """Stands in a checkpoint for clients that keep their own state elsewhere, under the name of the run."""

    run: str


class MostSteps(NamedTuple):
    """Environment steps that one client can make: who says it has made more is wrong."""

    train: int
    evaluation: int


class Executor(Protocol):
    """Runs clients by id: in this process, in worker processes, or over a network.

    Clients keep their own state (filters, momentum, recorded episodes) on the executor's side; the server sees only
    what these three calls return.
    """

    num_clients: int  # that train; ids from here on are held-out clients, which `evaluate` alone takes
    most_steps: MostSteps

    def initial_params(self) -> Params:
        """Fresh weights; a function of the seed alone."""
        ...

    def expect(self, clients: ClientIds, names: Set[str]) -> None:
        """Say whom `measure` will ask for what after the next `evaluate`, so that one message can carry both."""
        ...

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

    def client_filters(self) -> Any:
        """The filters of all clients; None where they stay with the clients."""
        ...

    def close(self) -> None:
        """End whatever runs besides this process."""
        ...
