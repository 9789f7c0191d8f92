"""What learners with a replay buffer reach on presets of Gymnasium, with their defaults but for the scale of rewards.

For docs/results.md.

    python benchmarks/off_policy.py --folder FOLDER --seeds 0,1,2

FOLDER holds the run folders. What is there already is not trained again. docs/data/off-policy.csv gets the curves of
all runs that are there, and the returns of the last five rounds are printed.
"""

import csv
import statistics
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _common import HERE, print_table

CURVES = HERE.parent / "docs" / "data" / "off-policy.csv"
COLUMNS = ("preset", "learner", "selector", "seed", "round", "train_steps", "mean_return", "min_return")
LAST = 5  # rounds of a curve that the table averages


class Case(NamedTuple):
    """A preset with a learner and a selector."""

    preset: str
    learner: str
    selector: str

    def folder(self, seed: int) -> str:
        return f"{self.learner}-{self.selector}-{seed}"


LEARNERS = {"sac": "gym/Pendulum-v1", "td3": "gym/Pendulum-v1", "dqn": "gym/CartPole-v1"}
CASES = [Case(preset, name, selector) for name, preset in LEARNERS.items() for selector in ("fedavg", "fedpohcs")]


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for run folders")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--collect", action="store_true", help="train nothing: collect the runs that are there")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    for seed in seeds:
        for case in CASES:
            folder = arguments.folder / case.folder(seed)
            if not arguments.collect and not (folder / "policy.npz").is_file():
                train(case, seed, folder)
    rows = [row for case in CASES for seed in seeds for row in curve(case, seed, arguments.folder)]
    with CURVES.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    print_table("off-policy learners", ("preset", "learner", "selector", "seeds", "mean", "worst"), summary(rows))


def train(case: Case, seed: int, folder: Path) -> None:
    chosen = ["--learner.kind", case.learner, "--selector", case.selector, "--seed", str(seed)]
    chosen += ["--learner.reward-statistic", "reward"]
    command = [sys.executable, "-m", "fedpohcs", "train", case.preset, *chosen, "--checkpoint-every", "0"]
    subprocess.run([*command, "--overwrite", "--out", str(folder)], check=True)


def curve(case: Case, seed: int, folder: Path) -> Iterator[tuple[Any, ...]]:
    """Rows of a finished run; steps are those of all clients from the start."""
    path = folder / case.folder(seed)
    if not (path / "policy.npz").is_file():
        return
    steps = 0
    with (path / "rounds.csv").open() as file:
        for row in csv.DictReader(file):
            steps += int(row["train_steps"])
            returns = (f"{float(row[name]):.1f}" for name in ("mean_return", "min_return"))
            yield (*case, seed, int(row["round"]), steps, *returns)


def summary(rows: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Mean and worst client over the last rounds: median of the seeds, and their range."""
    for case in dict.fromkeys(row[:3] for row in rows):
        own = [row for row in rows if row[:3] == case]
        seeds = sorted({row[3] for row in own})
        ends = [[row for row in own if row[3] == seed][-LAST:] for seed in seeds]
        cells = []
        for column in (6, 7):
            values = [statistics.mean(float(row[column]) for row in end) for end in ends]
            cells.append(f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})")
        yield (*case, len(seeds), *cells)


if __name__ == "__main__":
    main()
