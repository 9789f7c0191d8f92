"""A fleet on one machine: 18 SuperNodes with TLS and keys, 20 rounds of the preset `tabular`, d = 9, K = 6.

With `--hostile`: private selection under a signed plan, while two nodes are killed and one lies: its table is 100 times
as large as it should be, and the weights that it sends after training are not numbers.

Measured: whether the run ends well; answers that did not come, or were left out; seconds of a round; the largest memory
of each kind of process, the largest sum over all processes at one moment, and how many there were then. A message
starts a process on its node, so this takes long: the better part of an hour on 2 cores.

Needs: pip install 'fedpohcs[flower]'
"""

import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common import Figure, Goal, argument_parser, machine_facts, write_results
from flower import note_memory


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=18)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--hostile", action="store_true", help="private selection, two nodes killed, one liar")
    arguments = parser.parse_args()
    nodes, rounds = (3, 1) if arguments.quick else (arguments.nodes, arguments.rounds)
    facts = machine_facts()
    if arguments.hostile:
        result = run_hostile_fleet(max(nodes, 6), rounds)
        return write_results("fleet-hostile", facts, hostile_figures(result, rounds), result, quick=arguments.quick)
    result = run_fleet(nodes, rounds)
    figures = [
        Figure("exit code of the run", result["code"], "", Goal("<=", 0, "")),
        Figure("rounds", len(result["round_seconds"]), "rounds", Goal(">=", rounds, "rounds")),
        Figure("answers missing in an evaluation", result["missing"], "answers", Goal("<=", 0, "answers")),
        Figure("updates left out", result["rejected"], "updates", Goal("<=", 0, "updates")),
        Figure("answers that broke a rule", result["bad_replies"], "answers", Goal("<=", 0, "answers")),
        Figure("seconds of a round", statistics.median(result["round_seconds"]), "s"),
        Figure("seconds of the whole run", result["seconds"], "s"),
        *(Figure(f"memory of {program}", size, "MB") for program, size in result["memory_mb"].items()),
        Figure("memory of all processes at one moment", result["together_mb"], "MB"),
        Figure("processes at that moment", result["processes"], "processes"),
    ]
    write_results("fleet", facts, figures, {"nodes": nodes, **result}, quick=arguments.quick)


def run_fleet(nodes: int, rounds: int) -> dict[str, Any]:
    from fedpohcs import preset
    from fedpohcs.deploy.app_folder import run_settings
    from fedpohcs.deploy.guardian import marked_processes
    from fedpohcs.deploy.local import LocalFleet
    from fedpohcs.runs.loading import load_run

    config = preset("tabular")
    federation = replace(
        config.federation, num_clients=nodes, num_candidates=max(2, nodes // 2), num_selected=max(1, nodes // 3)
    )
    config = replace(config, rounds=rounds, federation=federation)
    memory: dict[str, float] = {}
    together, processes, start = 0.0, 0, time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        with LocalFleet(nodes, Path(scratch) / "logs", runtime="deployment") as fleet:
            run = fleet.submit(run_settings(config, out, **{"state-dir": str(Path(scratch) / "states")}))
            while run.poll() is None:
                living = marked_processes(fleet.id)
                note_memory(memory, living)
                now = sum(map(proportional_mb, living))
                if now > together:
                    together, processes = now, len(living)
                time.sleep(5)
        found = load_run(out)
        evaluated = (found.clients["role"] == "evaluated") & (found.clients["metric"] == "mean_return")
        return {
            "code": run.returncode,
            "round_seconds": found.timings["total"][1:].tolist(),
            "missing": nodes * len(found.rounds["round"]) - int(evaluated.sum()),
            "rejected": int(found.rounds["num_rejected"].sum()),
            "bad_replies": sum(found.bad_replies.values()),
            "memory_mb": memory,
            "together_mb": together,
            "processes": processes,
            "seconds": time.perf_counter() - start,
        }


LIAR = 1  # client
LIE = """
import sys

if "fedpohcs.deploy.resident" in sys.orig_argv:
    import numpy as np

    from fedpohcs.deploy import client

    hidden, do = client._hidden, client.RemoteClient._do

    def inflated(metrics, *rest):
        columns = {n: tuple(t._replace(value=100 * t.value) for t in column) for n, column in metrics.columns.items()}
        return hidden(metrics._replace(columns=columns), *rest)

    def not_numbers(self, executor, request, *rest):
        arrays = do(self, executor, request, *rest)
        spoiled = {n: np.full_like(x, np.nan) for n, x in arrays.items() if n.startswith("params/")}
        return {**arrays, **spoiled}

    client._hidden, client.RemoteClient._do = inflated, not_numbers
"""


def run_hostile_fleet(nodes: int, rounds: int) -> dict[str, Any]:
    """A private run in which nodes are killed after a quarter and after half of the rounds, and one lies."""
    from fedpohcs import preset
    from fedpohcs.core.config import ProtectionConfig
    from fedpohcs.deploy.app_folder import run_settings
    from fedpohcs.deploy.local import LocalFleet
    from fedpohcs.runs.loading import load_run

    config = preset("tabular")
    federation = replace(config.federation, num_clients=nodes, num_candidates=nodes // 2, num_selected=nodes // 4)
    protection = ProtectionConfig(min_cohort=3)
    config = replace(config, rounds=rounds, federation=federation, privacy="masked", protection=protection)
    start, killed = time.perf_counter(), list[int]()
    with tempfile.TemporaryDirectory() as scratch:
        out, logs, lie = (Path(scratch) / name for name in ("run", "logs", "lie"))
        lie.mkdir()
        (lie / "sitecustomize.py").write_text(LIE)

        class LyingFleet(LocalFleet):
            """A fleet in which the node of one client runs other code."""

            def start_node(self, client: int, key: Path | None = None) -> Any:
                honest = self.environment
                path = os.pathsep.join([str(lie), *filter(None, [os.environ.get("PYTHONPATH")])])
                self.environment = honest | ({"PYTHONPATH": path} if client == LIAR else {})
                node = super().start_node(client, key)
                self.environment = honest
                return node

        with LyingFleet(nodes, logs, runtime="deployment", private=True) as fleet:
            waiting = {"phase-timeout": 120.0, "startup-timeout": 1200.0}
            run = fleet.submit(run_settings(config, out, **waiting))
            while run.poll() is None:
                done = (out / "rounds.csv").read_text().count("\n") - 2 if (out / "rounds.csv").exists() else 0
                if len(killed) < 2 and done >= rounds * (len(killed) + 1) // 4:
                    killed.append(nodes - 1 - len(killed))
                    fleet.processes[f"client-{killed[-1]}"].kill()  # with -9; its children end with it
                time.sleep(2)
        found = load_run(out)
        log = (logs / "run.log").read_text(errors="replace")
        return {
            "code": run.returncode,
            "rounds": int(found.rounds["round"][-1]),
            "random_rounds": log.count("has no private selection and selects at random"),
            "killed": killed,
            "rejected": int(found.rounds["num_rejected"].sum()),
            "returns": found.rounds["mean_return"].tolist(),
            "bad_replies": {str(key): value for key, value in found.bad_replies.items()},
            "round_seconds": found.timings["total"][1:].tolist(),
            "seconds": time.perf_counter() - start,
        }


def hostile_figures(result: dict[str, Any], rounds: int) -> list[Figure]:
    return [
        Figure("exit code of the run", result["code"], "", Goal("<=", 0, "")),
        Figure("rounds", result["rounds"], "rounds", Goal(">=", rounds, "rounds")),
        Figure("rounds without a private choice", result["random_rounds"], "rounds"),
        Figure("updates left out", result["rejected"], "updates"),
        Figure("mean return at the start", result["returns"][0], ""),
        Figure("mean return at the end", result["returns"][-1], ""),
        Figure("seconds of a round", statistics.median(result["round_seconds"]), "s"),
        Figure("seconds of the whole run", result["seconds"], "s"),
    ]


def proportional_mb(pid: int) -> float:
    """Memory of a process, in which what it shares with others counts in part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1e3


if __name__ == "__main__":
    main()
