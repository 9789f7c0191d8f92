"""A supervised Flower app that trains where the loss is highest: `flwr run . --stream`."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedpohcs.deploy.strategies import PowerOfChoice

FEATURES, CLASSES, EXAMPLES = 20, 4, 200
client = ClientApp()
server = ServerApp()


def data_of(partition: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's examples: every class has one centre for all clients, but most of a client's data are of one class."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    generator = np.random.default_rng(partition + 1)
    share = np.where(np.arange(CLASSES) == partition % CLASSES, 0.7, 0.1)
    label = generator.choice(CLASSES, EXAMPLES, p=share)
    return centres[label] + generator.normal(size=(EXAMPLES, FEATURES)), label


def loss_and_gradient(weight: np.ndarray, context: Context) -> tuple[float, np.ndarray]:
    x, label = data_of(int(context.node_config["partition-id"]))
    logits = x @ weight
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return -log_p[np.arange(len(x)), label].mean(), x.T @ (np.exp(log_p) - np.eye(CLASSES)[label]) / len(x)


def weight_in(message: Message) -> np.ndarray:
    return message.content.array_records["arrays"].to_numpy_ndarrays()[0]


@client.query("selection")
@client.evaluate()
def tell_loss(message: Message, context: Context) -> Message:
    loss, _ = loss_and_gradient(weight_in(message), context)
    return Message(RecordDict({"metrics": MetricRecord({"loss": loss, "num-examples": EXAMPLES})}), reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    weight = weight_in(message)
    for _ in range(10):
        weight = weight - 0.1 * loss_and_gradient(weight, context)[1]
    metrics = MetricRecord({"num-examples": EXAMPLES})
    return Message(RecordDict({"arrays": ArrayRecord([weight]), "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = PowerOfChoice(num_candidates=6, num_selected=2)  # was: FedAvg()
    start = ArrayRecord([np.zeros((FEATURES, CLASSES))])
    result = strategy.start(grid, start, num_rounds=int(context.run_config["rounds"]))
    losses = {number: float(record["loss"]) for number, record in result.evaluate_metrics_clientapp.items()}
    print("mean loss by round:", losses)
