"""A grid without a network: real messages to the real client app, in this process, with faults on demand."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.object_ref import validate
from flwr.supercore.task_identity import TaskIdentity

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.deploy.client_app import app as own_app
from fedpohcs.deploy.keys import Keys
from fedpohcs.deploy.planning import signed_plan
from fedpohcs.deploy.protocol import config_text

Fault = Callable[[Message, Message], Message | None]
"""Takes a question and its answer; gives what arrives, or None if nothing does."""


def identify_process() -> None:
    """Set the ids that Flower sets in the process of a ServerApp; without them no message can be made."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def finds_app(reference: str, folder: Path) -> tuple[bool, str | None]:
    """Whether Flower finds an app by its reference, and what is wrong if not."""
    return validate(reference, project_dir=folder)


class AppGrid:
    """Hands messages to a client app, a context for each node."""

    def __init__(self, app: ClientApp, node_configs: dict[int, dict[str, Any]], run_config: dict[str, Any]) -> None:
        self.app = app
        self.node_configs = node_configs
        self.run_config = run_config
        self.fault: Fault = lambda question, answer: answer
        self.counts: dict[str, int] = {}
        identify_process()

    def get_node_ids(self) -> list[int]:
        return list(self.node_configs)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        del timeout
        answers = []
        for message in messages:
            kind = message.metadata.message_type
            self.counts[kind] = self.counts.get(kind, 0) + 1
            arrived = self.fault(message, self.answer(message))
            if arrived is not None:
                answers.append(arrived)
        return answers

    def answer(self, message: Message) -> Message:
        """What the node that a message is for says to it."""
        node = message.metadata.dst_node_id
        context = Context(1, node, self.node_configs[node], RecordDict(), self.run_config)
        try:
            return self.app(message, context)
        except Exception as error:
            return Message(Error(2, str(error)), reply_to=message)


def node_config(client: int, states: Path, keys: Keys | None = None) -> dict[str, Any]:
    """What the node of a client is started with."""
    if keys is None:
        return {"client-id": client, "state-dir": str(states)}
    paths = {"identity": keys.identity(client), "members": keys.members, "plan-key": keys.operator_public}
    return {"client-id": client, "state-dir": str(states), **{name: str(path) for name, path in paths.items()}}


def give_plan(grid: "LoopGrid", config: ExperimentConfig, keys: Keys) -> bytes:
    """Sign a plan for a private run, and let the run bring it to the nodes."""
    if config.privacy == "none":
        return b""
    plan = signed_plan(config, keys.members, keys.operator, days=1)
    grid.run_config["plan"] = plan.decode()
    return plan


class LoopGrid(AppGrid):
    """The clients of an experiment, one node each; node ids are out of order, as Flower's are."""

    def __init__(
        self, config: ExperimentConfig, states: Path, clients: Iterable[int] | None = None, keys: Keys | None = None
    ) -> None:
        ids = range(config.federation.num_clients) if clients is None else clients
        nodes = {(n * 7919 + 13) % 1009: node_config(n, states, keys) for n in ids}
        super().__init__(own_app, nodes, {"config": config_text(config)})

    def node_of(self, client: int) -> int:
        return next(node for node, given in self.node_configs.items() if given["client-id"] == client)
