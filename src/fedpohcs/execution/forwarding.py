"""An executor around another one, to which it forwards all calls."""

from collections.abc import Mapping, Set
from typing import Any

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.types import NO_EXTRA, CandidateMetrics, ClientIds, ClientUpdates, Evaluation, Extra, Params
from fedpohcs.server.protocols import Executor


class ForwardingExecutor:
    """Hands every call to the executor `within`. Subclasses override what they change."""

    def __init__(self, within: Executor, config: ExperimentConfig) -> None:
        self.within, self.config = within, config
        self.num_clients, self.most_steps = within.num_clients, within.most_steps

    def initial_params(self) -> Params:
        """The initial weights of the executor within."""
        return self.within.initial_params()

    def expect(self, clients: ClientIds, names: Set[str]) -> None:
        """Announce a measurement to the executor within."""
        self.within.expect(clients, names)

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """What the clients of the executor within measure."""
        return self.within.measure(params, round_number, clients, names)

    def train(self, params: Params, round_number: int, clients: ClientIds, extra: Extra = NO_EXTRA) -> ClientUpdates:
        """What the clients of the executor within learn."""
        return self.within.train(params, round_number, clients, extra)

    def simulate(
        self, params: Params, round_number: int, clients: ClientIds, extra: Extra, attempt: int
    ) -> ClientUpdates:
        """What the server simulates with the executor within."""
        return self.within.simulate(params, round_number, clients, extra, attempt)

    def evaluate(self, params: Params, round_number: int, clients: ClientIds) -> Evaluation:
        """What the clients of the executor within play."""
        return self.within.evaluate(params, round_number, clients)

    def finetune(self, params: Params, round_number: int, iterations: int) -> Evaluation:
        """The returns of the clients of the executor within after further local iterations."""
        return self.within.finetune(params, round_number, iterations)  # pyright: ignore[reportAttributeAccessIssue]

    def snapshot(self, *, changes: bool = False) -> Any:
        """The state of the executor within."""
        return self.within.snapshot(changes=changes)

    def stored_policy(self, params: Params) -> Mapping[str, Any]:
        """The policy as the executor within stores it."""
        return self.within.stored_policy(params)

    def close(self) -> None:
        """End whatever the executor within runs besides this process."""
        self.within.close()
