"""All on-policy algorithms on Mountain Cars, for docs/results.md: returns, worst tenth, bytes, processor seconds.

    python benchmarks/algorithms.py train FOLDER --seeds 0          # all methods and levels with one seed
    python benchmarks/algorithms.py collect FOLDER                  # docs/data/mountain-cars-algorithms.csv
    python benchmarks/algorithms.py show                            # the table of the documentation, from that file

`collect` adds what is complete to the file, also while runs go on, and says how many of the runs there are. So the
table can be made in parts: `train` leaves out what the file has, and the folder of a part may be deleted after that.

FOLDER holds LEVEL/METHOD/seed-N. `train` keeps what is complete, and goes on with a run that was stopped. It goes seed
by seed, so that an unfinished table has whole rows. Every run is trained in this process; processor seconds per round
are those of all rounds but the first after a start, which compiles.

`local` and `full` train all 60 cars in every round; they have a tenth of the rounds, and so about as many steps. A
round of `afedpg` has one update; it has six times as many rounds, and is evaluated after every sixth.
"""

import csv
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs import ExperimentConfig, UserError, preset, resume_experiment, run_experiment
from fedpohcs.analysis.communication import traffic
from fedpohcs.analysis.statistics import mean_interval
from fedpohcs.core.algorithms import parse_method
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.keeping import Keep
from fedpohcs.runs.loading import load_run

TABLE = Path(__file__).resolve().parent.parent / "docs" / "data" / "mountain-cars-algorithms.csv"
LEVELS = ("low", "medium", "high")
GROUPS = {
    "References": "fedavg local full pooled finetuned",
    "Personal weights": "fedper fedavg-embedding",
    "Local losses and learners": "fedprox fedkl fmarl a2c npg trpo ppo-clip",
    "Server optimisers": "fedavgm fedadam fedyogi fedexp fedvarp scaffold fedcm qffl",
    "Policy-gradient federations": "gpomdp svrpg fedpg-br fedsvrpg-m mfpo fednpg-admm afedpg",
    "Selectors": "power-of-choice gradient-norm fedpohcs gradient-sampling optimal-sampling "
    "optimal-sampling-approximate cpow-d rpow-d learnability leave-one-out gradient-agreement clustered-sampling divfl "
    "fedcor oort afl",
}
METHODS = [name for names in GROUPS.values() for name in names.split()]
ROUNDS, EVERYBODY, ONE_BY_ONE = 150, ("local", "full"), ("afedpg",)
COLUMNS = ("level", "method", "seed", "rounds", "mean_return", "worst_tenth", "train_steps", "megabytes", "seconds")
SECONDS = "processor-seconds.csv"
Key = tuple[int, str, str]  # seed, method, level
WINDOW = 15  # the last of so many parts of a run is averaged: 10 of 150 rounds


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("train", "collect", "show"))
    parser.add_argument("folder", type=Path, nargs="?", help="for run folders")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if arguments.action == "show":
        return show(read(TABLE))
    if arguments.folder is None:
        parser.error(f"{arguments.action} needs a folder")
    stored = {row.key: row for row in read(TABLE)} if TABLE.exists() else {}
    if arguments.action == "collect":
        return write(TABLE, stored | {row.key: row for row in collected(arguments.folder)})
    for seed in map(int, arguments.seeds.split(",")):
        for method in arguments.methods.split(","):
            for level in arguments.levels.split(","):
                if (seed, method, level) not in stored:
                    train(arguments.folder, level, method, seed, arguments.rounds)


def config_of(level: str, method: str, seed: int, rounds: int) -> ExperimentConfig:
    """The preset with an algorithm or selector, and as many rounds as give every row about the same steps."""
    named = parse_method(method)
    chosen = {"algorithm": method} if named.algorithm else {"selector": method}
    config = preset("mountain-cars", level, **chosen)
    share = config.federation.num_clients // config.federation.num_selected
    if method in EVERYBODY:
        return replace(config, seed=seed, rounds=rounds // share)
    if method in ONE_BY_ONE:
        each = config.federation.num_selected
        federation = replace(config.federation, evaluation_every=each)
        return replace(config, seed=seed, rounds=rounds * each, federation=federation)
    return replace(config, seed=seed, rounds=rounds)


class ProcessorClock:
    """Adds the processor seconds of every round but the first to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: float | None = None

    def on_start(self, config: ExperimentConfig) -> None:
        """Begin without a time."""

    def on_round(self, record: RoundRecord) -> None:
        """Note what the round took, unless something was compiled in it: in the first rounds after a start."""
        now = time.process_time()
        if self.last is not None and record.round > 1:
            with self.path.open("a") as file:
                file.write(f"{record.round},{now - self.last:.4f}\n")
        self.last = now

    def on_finish(self) -> None:
        """Do nothing."""


def train(folder: Path, level: str, method: str, seed: int, rounds: int) -> None:
    """One run, from where it stopped; none if it is complete."""
    run = folder / level / method / f"seed-{seed}"
    if (run / "policy.npz").is_file():
        return
    run.parent.mkdir(parents=True, exist_ok=True)
    clock = ProcessorClock(run.parent / f"seed-{seed}-{SECONDS}")
    start = time.process_time()
    try:
        if (run / "config.json").is_file():
            resume_experiment(run, observers=[clock], checkpoint_every=10, keep_records=False, keep=Keep())
        else:
            config = config_of(level, method, seed, rounds)
            run_experiment(config, run, observers=[clock], checkpoint_every=10, keep_records=False, keep=Keep())
    except UserError as error:
        print(f"{level} {method} {seed}: refused. {error}", file=sys.stderr, flush=True)
        return
    print(f"{level} {method} {seed}: {time.process_time() - start:.0f} processor seconds", flush=True)


class Row(NamedTuple):
    """What one run gave."""

    level: str
    method: str
    seed: int
    rounds: int
    mean_return: float  # over the last part of the run
    worst_tenth: float
    train_steps: int
    megabytes: float  # of messages that the algorithm needs; evaluation is left out
    seconds: float  # of processor time for a run, from the mean of its rounds

    @property
    def key(self) -> Key:
        """Which run it is."""
        return self.seed, self.method, self.level


def collected(folder: Path) -> list[Row]:
    """The complete runs of a folder."""
    return [row_of(path) for path in folder.glob("*/*/seed-*/") if (path / "policy.npz").is_file()]


def row_of(path: Path) -> Row:
    """The figures of one run folder."""
    run, (level, method, seed) = load_run(path), path.parts[-3:]
    last = max(run.config.rounds // WINDOW, 1)
    noted = path.parent / f"{seed}-{SECONDS}"
    lines = noted.read_text().splitlines() if noted.exists() else []
    spent = {int(number): float(seconds) for number, seconds in csv.reader(lines)}
    return Row(
        level,
        method,
        int(seed.removeprefix("seed-")),
        run.config.rounds,
        *(round(float(np.nanmean(run.rounds[name][-last:])), 2) for name in ("mean_return", "worst_tenth")),
        int(run.rounds["train_steps"].sum()),
        round(float(traffic(run).learning.sum()) / 1e6, 2),
        round(float(np.mean(list(spent.values()) or [np.nan])) * run.config.rounds, 1),
    )


def write(path: Path, runs: Mapping[Key, Row]) -> None:
    """Write the rows by seed, method and level, and say how many there are."""
    rows = sorted(runs.values(), key=lambda row: (row.seed, METHODS.index(row.method), LEVELS.index(row.level)))
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    print(f"{len(rows)} of {5 * len(LEVELS) * len(METHODS)} runs in {path}")


def read(path: Path) -> list[Row]:
    """The rows of a file."""
    with path.open(newline="") as file:
        kinds = Row.__annotations__.values()
        return [
            Row(*(kind(row[name]) for kind, name in zip(kinds, COLUMNS, strict=True))) for row in csv.DictReader(file)
        ]


def show(rows: Sequence[Row]) -> None:
    """Print a Markdown table: a line per method, mean and worst tenth at each level."""
    seen: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        seen[row.method, row.level].append(row)
    heads = [f"{level}{what}" for level in LEVELS for what in (", mean", ", worst tenth")]
    print("| | " + " | ".join([*heads, "MB", "seconds", "seeds"]) + " |")
    print("| --- |" + " ---: |" * (len(heads) + 3))
    for group, names in GROUPS.items():
        lines = [line(name, [seen[name, level] for level in LEVELS]) for name in names.split()]
        for text in [f"| *{group}* |" + " |" * (len(heads) + 3), *filter(None, lines)] if any(lines) else []:
            print(text)


def line(method: str, by_level: Sequence[Sequence[Row]]) -> str | None:
    """The line of one method; None if it has no run."""
    rows = [row for level in by_level for row in level]
    if not rows:
        return None
    cells: list[Any] = [interval(column) for level in by_level for column in columns(level)]
    size = f"{np.mean([row.megabytes for row in rows]):.0f}".replace("nan", "")
    cells += [size, f"{np.mean([row.seconds for row in rows]):.0f}", ", ".join(str(len(level)) for level in by_level)]
    if len({len(level) for level in by_level}) == 1:
        cells[-1] = len(by_level[0])
    return f"| `{method}` | " + " | ".join(map(str, cells)) + " |"


def columns(rows: Sequence[Row]) -> Iterator[list[float]]:
    yield [row.mean_return for row in rows]
    yield [row.worst_tenth for row in rows]


def interval(values: list[float]) -> str:
    """A mean, and its 95 % bootstrap interval if there are at least two values."""
    if not values:
        return ""
    found = mean_interval(values)
    return f"{found.estimate:.0f}" if len(values) == 1 else f"{found.estimate:.0f} [{found.low:.0f}, {found.high:.0f}]"


if __name__ == "__main__":
    main()
