"""The interface between a round and the code that runs the clients."""

from collections.abc import Mapping, Set
from typing import Any, NamedTuple, Protocol

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.types import NO_EXTRA, CandidateMetrics, ClientIds, ClientUpdates, Evaluation, Extra, Params


class RemoteClients(NamedTuple):
    """Stands in a checkpoint for clients that keep their own state elsewhere, under the name of the run."""

    run: str
    default_filter: Any = {}  # noqa: RUF012 - arrays by name as `policy.npz` has them, of all clients together


class MostSteps(NamedTuple):
    """Largest numbers of environment steps of one client; a reply that claims more is refused."""

    train: int
    evaluation: int


class Executor(Protocol):
    """Runs clients by id: in this process, in worker processes, or over a network.

    Clients keep their own state (filters, momentum, recorded episodes) on the executor's side; the server sees only
    what these three calls return.
    """

    config: ExperimentConfig
    num_clients: int  # that train; larger ids are held-out clients, which only `evaluate` takes
    most_steps: MostSteps

    def initial_params(self) -> Params:
        """Initial weights; a function of the seed alone."""
        ...

    def expect(self, clients: ClientIds, names: Set[str]) -> None:
        """Announce the clients and metrics of the next `measure`, so that the next `evaluate` can carry the request."""
        ...

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """Phase one: the named metrics of the clients under the current policy."""
        ...

    def train(self, params: Params, round_number: int, clients: ClientIds, extra: Extra = NO_EXTRA) -> ClientUpdates:
        """Phase two: local training from the given parameters; `extra` arrays by name reach the learner's loss."""
        ...

    def simulate(
        self, params: Params, round_number: int, clients: ClientIds, extra: Extra, attempt: int
    ) -> ClientUpdates:
        """Training that the server does itself, by simulation of the clients' worlds; it changes no client.

        An attempt, counted from 1, has draws of its own. Real clients are asked to train for the server.
        """
        ...

    def evaluate(self, params: Params, round_number: int, clients: ClientIds) -> Evaluation:
        """Play evaluation episodes with the given parameters."""
        ...

    def snapshot(self, *, changes: bool = False) -> Any:
        """The state of the clients that checkpoints must store, as a tree of arrays.

        With `changes` it may be what has changed since the last snapshot with `changes`.
        """
        ...

    def stored_policy(self, params: Params) -> Mapping[str, Any]:
        """The arrays of the parameters by name, and the filters of all clients if this executor has them."""
        ...

    def close(self) -> None:
        """End threads and processes of the executor."""
        ...
