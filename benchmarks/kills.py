"""A run that is killed with SIGKILL many times at random moments, against one that never stopped.

Goal: every kill is survived, and rounds.csv, clients.csv and policy.npz are equal byte by byte in the end. A kill takes
about three seconds; the stored result was made with --kills 1000 if it says so.
"""

import dataclasses
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import HERE, Figure, Goal, argument_parser, machine_facts, write_results

ROUNDS_PER_KILL = 6  # more than a process lives to see
FILES = ("rounds.csv", "clients.csv", "policy.npz")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    arguments = parser.parse_args()
    kills = 3 if arguments.quick else arguments.kills
    facts = machine_facts()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        same = same_after(kills, Path(scratch))
    figures = [
        Figure("kills survived", kills, "of " + str(kills)),
        Figure("files equal to an unbroken run", sum(same.values()), "files", Goal(">=", len(FILES), "files")),
    ]
    write_results(
        "kills", facts, figures, {"same": same, "seconds": time.perf_counter() - start}, quick=arguments.quick
    )


def same_after(kills: int, scratch: Path) -> dict[str, bool]:
    """Which files are equal after so many kills."""
    from fedpohcs import FederationConfig, preset, resume_experiment, run_experiment

    small = FederationConfig(num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=4)
    rounds = kills * ROUNDS_PER_KILL + 10
    config = dataclasses.replace(preset("tabular", selector="power-of-choice"), rounds=rounds, federation=small)
    run_experiment(config, scratch / "whole", checkpoint_every=0)
    run_experiment(dataclasses.replace(config, rounds=1), scratch / "killed")
    resume = [
        sys.executable,
        str(HERE.parent / "tests" / "runs" / "killed_run.py"),
        str(scratch / "killed"),
        str(kills),
    ]
    lengthen(scratch / "killed", rounds)
    subprocess.run(resume, check=True)
    resume_experiment(scratch / "killed")
    return {name: (scratch / "whole" / name).read_bytes() == (scratch / "killed" / name).read_bytes() for name in FILES}


def lengthen(run: Path, rounds: int) -> None:
    """Give the run that many rounds without training any."""
    from fedpohcs.runs.folder import RunFolder

    with RunFolder.reopen(run, rounds):
        pass


if __name__ == "__main__":
    main()
