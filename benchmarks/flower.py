"""What Flower costs: the same small federation in one process, in Flower's simulation and on nodes.

Measured, with TLS and node authentication: seconds of a round (median after the first) and of the whole command, with
client apps that stay, with those that Flower starts for each message, and with private selection; the same for 60
clients in simulation; bytes of a message by phase; the largest memory of each kind of process.

Needs: pip install 'fedpohcs[flower-simulation]'
"""

import dataclasses
import os
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import Figure, argument_parser, machine_facts, write_results

PROGRAMS = {
    "fedpohcs.deploy.superlink_process": "flower-superlink",
    "flower-supernode": "flower-supernode",
    "fedpohcs.deploy.supernode": "flower-supernode",
    "flower-superexec": "flower-superexec",
    "fedpohcs.deploy.front": "front",
    "flwr-serverapp": "flwr-serverapp",
    "flwr-clientapp": "flwr-clientapp",
    "fedpohcs.deploy.resident": "client app that stays",
    "flower\0node": "fedpohcs flower node",
}
CASES = (
    ("in process", 3),
    ("simulation", 3),
    ("deployment", 3),
    ("deployment, masked", 3),
    ("deployment, a process for each message", 3),
    ("in process", 60),
    ("simulation", 60),
)
QUICK_CASES = CASES[:3]


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    facts, rounds = machine_facts(), 1 if arguments.quick else 4
    figures: list[Figure] = []
    samples: dict[str, Any] = {}
    for case, num_clients in QUICK_CASES if arguments.quick else CASES:
        load = [round(os.getloadavg()[0], 1)]
        seconds, total, memory = timed_run(case, num_clients, rounds)
        load += [round(os.getloadavg()[0], 1)]
        name = f"{case}, {num_clients} clients"
        samples[name] = {"load": load, "round_seconds": seconds, "total_seconds": total, "memory_mb": memory}
        figures += [Figure(f"{name}: a round", statistics.median(seconds[1:] or seconds), "s")]
        figures += [Figure(f"{name}: all {rounds} rounds and the start", total, "s")]
        figures += [Figure(f"{name}: memory of {program}", size, "MB") for program, size in memory.items()]
    for preset_name in ("tabular", "mountain-cars"):
        samples[f"bytes of {preset_name}"] = sizes = message_bytes(preset_name)
        figures += [Figure(f"{preset_name}: {what}", float(size), "bytes") for what, size in sizes.items()]
    write_results("flower", facts, figures, samples, quick=arguments.quick)


def small_config(case: str, num_clients: int, rounds: int) -> Any:
    """Of the preset `tabular`: what is measured is the way, not the work."""
    from fedpohcs import preset
    from fedpohcs.core.config import ProtectionConfig

    config = preset("tabular")
    sizes = {3: (3, 2), 60: (18, 6)}[num_clients]
    federation = dataclasses.replace(
        config.federation, num_clients=num_clients, num_candidates=sizes[0], num_selected=sizes[1]
    )
    config = dataclasses.replace(config, rounds=rounds, federation=federation)
    if "masked" in case:
        config = dataclasses.replace(config, privacy="masked", protection=ProtectionConfig(min_cohort=3))
    return config


def timed_run(case: str, num_clients: int, rounds: int) -> tuple[list[float], float, dict[str, float]]:
    """Seconds of every trained round, of everything, and the largest memory of each program in MB."""
    from fedpohcs import run_experiment
    from fedpohcs.deploy.app_folder import run_settings
    from fedpohcs.deploy.guardian import marked_processes
    from fedpohcs.runs.loading import load_run

    config, memory, start = small_config(case, num_clients, rounds), {}, time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        if case == "in process":
            run_experiment(config, out)
        else:
            with fleet_for(case, num_clients, Path(scratch) / "logs") as fleet:
                run = fleet.submit(run_settings(config, out, **{"state-dir": str(Path(scratch) / "states")}))
                while run.poll() is None:
                    note_memory(memory, marked_processes(fleet.id))
                    time.sleep(1)
        total = time.perf_counter() - start
        return load_run(out).timings["total"][1:].tolist(), total, memory


def fleet_for(case: str, num_clients: int, logs: Path) -> Any:
    from fedpohcs.deploy.local import LOOPBACK, LocalFleet, find_program, free_port

    class PlainFleet(LocalFleet):
        """With Flower's own SuperNodes."""

        def start_node(self, client: int, key: Path | None = None) -> Any:
            assert self.keys is not None
            arguments = ["--superlink", f"{LOOPBACK}:{self.port}", "--host", LOOPBACK, "--port", str(free_port())]
            given = f"client-id={client} state-dir='{self.states}'"
            arguments += ["--node-config", given, "--root-certificates", str(self.keys.authority)]
            arguments += ["--auth-supernode-private-key", str(key or self.keys.node_key(client))]
            return self.spawn(f"client-{client}", find_program("flower-supernode"), *arguments)

    kind = PlainFleet if "each message" in case else LocalFleet
    runtime = "simulation" if case == "simulation" else "deployment"
    return kind(num_clients, logs, runtime=runtime, private="masked" in case)


def note_memory(memory: dict[str, float], processes: list[int]) -> None:
    for pid in processes:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        except OSError:
            continue
        program = next((name for words, name in PROGRAMS.items() if words in command), None)
        if program and found:
            memory[program] = max(memory.get(program, 0.0), int(found[1]) / 1e3)


def message_bytes(preset_name: str) -> dict[str, int]:
    """Bytes of the arrays that one client and the server exchange in one round."""
    from fedpohcs import preset
    from fedpohcs.core.trees import named_arrays
    from fedpohcs.deploy.client import RemoteClient
    from fedpohcs.deploy.protocol import EVALUATE, TRAIN, Request
    from fedpohcs.execution import configure_jax, make_executor

    config = preset(preset_name)
    config = dataclasses.replace(config, learner=dataclasses.replace(config.learner, filter_warmup_steps=1000))
    configure_jax(1)
    import numpy as np

    params = make_executor(config, members=np.array([0])).initial_params()
    with tempfile.TemporaryDirectory() as scratch:
        client = RemoteClient(config, 0, Path(scratch), record=True)
        evaluated = client.answer(
            Request(EVALUATE, run="a", measures=frozenset({"weighted_advantage"})), lambda like: params
        )
        trained = client.answer(Request(TRAIN, run="a"), lambda like: params)
    table = sum(array.nbytes for name, array in evaluated.items() if name.startswith("measured/"))
    return {
        "to a client, every message": sum(array.nbytes for array in named_arrays(params).values()),
        "from a client, evaluation": sum(array.nbytes for array in evaluated.values()) - table,
        "from a candidate, its table besides": table,
        "from a trained client": sum(array.nbytes for array in trained.values()),
    }


if __name__ == "__main__":
    main()
