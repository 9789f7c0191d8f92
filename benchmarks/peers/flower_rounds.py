"""Rounds of Flower's simulation: K of N clients move a vector of 4 numbers by one step. Round 1 is not timed."""

import os
import time

import numpy as np
from _serve import Turn, cpu_seconds, serve

SELECTED, ROUNDS = 10, 5


def rounds(clients: int) -> Turn:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server, marks = ClientApp(), ServerApp(), []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        weights = message.content["arrays"].to_numpy_ndarrays()[0]
        arrays = ArrayRecord([weights - 0.1 * (weights - 1)])
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
        return Message(content=content, reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(SELECTED / clients, 0.0, SELECTED, 0, min_available_nodes=clients)
        arrays = ArrayRecord([np.zeros(4, np.float32)])
        # Called before the first round and after every round.
        strategy.start(
            grid, arrays, ROUNDS + 1, evaluate_fn=lambda *_: marks.append((time.perf_counter(), cpu_seconds()))
        )

    def turn() -> dict[str, float]:
        marks.clear()
        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": os.cpu_count()}}
        run_simulation(server, client, clients, backend_config=resources)
        (start, cpu_start), (end, cpu_end) = marks[1], marks[-1]
        return {"work": len(marks) - 2, "seconds": end - start, "cpu_seconds": cpu_end - cpu_start}

    return turn


if __name__ == "__main__":
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    serve({f"{n} clients": lambda n=n: rounds(n) for n in (60, 1000, 10000)})
