"""A fleet on one machine: 18 SuperNodes with TLS and keys, 20 rounds of the preset `tabular`, d = 9, K = 6.

Measured: whether the run ends well; answers that did not come, or were left out; seconds of a round; the largest memory
of each kind of process, the largest sum over all processes at one moment, and how many there were then. A message
starts a process on its node, so this takes long: the better part of an hour on 2 cores.

Needs: pip install 'fedpohcs[flower]'
"""

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
    arguments = parser.parse_args()
    nodes, rounds = (3, 1) if arguments.quick else (arguments.nodes, arguments.rounds)
    facts = machine_facts()
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


def proportional_mb(pid: int) -> float:
    """Memory of a process, in which what it shares with others counts in part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1e3


if __name__ == "__main__":
    main()
