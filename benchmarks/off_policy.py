"""What learners with a replay buffer reach on presets of Gymnasium, and what single settings change; docs/results.md.

    python benchmarks/off_policy.py scale --folder FOLDER --seeds 0,1,2
    python benchmarks/off_policy.py settings --folder FOLDER
    python benchmarks/off_policy.py figure --out off-policy.png
    python benchmarks/off_policy.py settings --folder FOLDER --only dqn-fedavg-defaults-0  # one run alone

FOLDER holds the run folders. What is there already is not trained again. The curves of all runs that are there get into
docs/data/off-policy.csv (`scale`: rewards divided by their own standard deviation, and DDPGAvg) or
off-policy-settings.csv; stored curves of other runs stay. The returns of the last five rounds are printed. `figure`
draws the stored curves.
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

DATA = HERE.parent / "docs" / "data"
FILES = {"scale": DATA / "off-policy.csv", "settings": DATA / "off-policy-settings.csv"}
COLUMNS = ("preset", "learner", "selector", "setting", "seed", "round", "train_steps", "mean_return", "min_return")
LAST = 5  # rounds of a curve that the table averages
CARTPOLE, PENDULUM = "gym/CartPole-v1", "gym/Pendulum-v1"
SCALE, TURNS = "reward_statistic reward", "every client in every second round"
SMALL = "hidden_sizes 64 64"  # published: 400 and 300, which take twenty times as long
SLOWER = "epsilon_decay 0.6, target_rate 0.003"


class Case(NamedTuple):
    """A preset with a learner, a selector, a setting by the name it has in tables, and a seed."""

    preset: str
    learner: str
    selector: str
    setting: str
    seed: int

    @property
    def folder(self) -> str:
        return "-".join(
            [self.learner, self.selector, self.setting.replace(", ", "-").replace(" ", "-"), str(self.seed)]
        )


OPTIONS: dict[str, list[str]] = {
    "defaults": [],
    SCALE: ["--learner.reward-statistic", "reward"],
    "epsilon_decay 0.6": ["--learner.epsilon-decay", "0.6"],
    "target_rate 0.003": ["--learner.target-rate", "0.003"],
    "learning_rate 3e-4": ["--learner.learning-rate", "3e-4"],
    "no filter_rewards": ["--learner.no-filter-rewards"],
    "memory_at_merge reset": ["--learner.memory-at-merge", "reset"],
    "updates_per_iteration 256": ["--learner.updates-per-iteration", "256"],
    SMALL: ["--learner.hidden-sizes", "64", "64"],
    SLOWER: ["--learner.epsilon-decay", "0.6", "--learner.target-rate", "0.003"],
    TURNS: ["--defence.max-selections", "1", "--defence.window", "2"],
}
"""What a setting is on the command line."""
DRAWN = {
    PENDULUM: [*((name, "fedavg", SCALE) for name in ("sac", "td3", "ddpg")), ("ddpgavg", "full", SMALL)],
    CARTPOLE: [(name, "fedavg", "defaults") for name in ("dqn", "dcpi")],
}
"""Learner, selector and setting of the curves in the figure."""
ALGORITHMS = ("ddpgavg",)
"""Learners with federated settings of their own."""
SINGLE = [name for name in OPTIONS if name not in ("defaults", SCALE, SMALL, SLOWER, TURNS)]


def scale_cases(seeds: list[int]) -> Iterator[Case]:
    """Four learners with two selectors, with rewards divided by their own standard deviation, and DDPGAvg."""
    for seed in seeds:
        yield Case(PENDULUM, "ddpgavg", "full", SMALL, seed)
        for learner, preset in (("sac", PENDULUM), ("td3", PENDULUM), ("ddpg", PENDULUM), ("dqn", CARTPOLE)):
            yield from (Case(preset, learner, selector, SCALE, seed) for selector in ("fedavg", "fedpohcs"))


def settings_cases() -> Iterator[Case]:
    """All runs of docs/data/off-policy-settings.csv."""
    yield from (Case(CARTPOLE, "dqn", "fedavg", "defaults", seed) for seed in range(4))
    yield from (Case(CARTPOLE, "dcpi", "fedavg", "defaults", seed) for seed in range(3))
    yield from (Case(CARTPOLE, "dqn", "fedavg", name, 0) for name in SINGLE)
    yield from (Case(CARTPOLE, "dqn", "fedavg", SLOWER, seed) for seed in range(4))
    for selector in ("fedavg", "fedpohcs"):
        yield from (Case(PENDULUM, "sac", selector, "defaults", seed) for seed in range(2))
    for name in (TURNS, "memory_at_merge reset"):
        yield from (Case(PENDULUM, "sac", "fedpohcs", name, seed) for seed in range(3))


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*FILES, "figure"])
    parser.add_argument("--folder", type=Path, default=Path("runs/off-policy"), help="for run folders")
    parser.add_argument("--out", type=Path, default=Path("off-policy.png"), help="of `figure`")
    parser.add_argument("--seeds", default="0,1,2", help="of `scale`; those of `settings` are fixed")
    parser.add_argument("--only", help="train the run of this folder alone")
    parser.add_argument("--collect", action="store_true", help="train nothing: collect the runs that are there")
    arguments = parser.parse_args()
    if arguments.part == "figure":
        draw(arguments.out)
        return
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    cases = list(scale_cases(seeds) if arguments.part == "scale" else settings_cases())
    for case in cases:
        wanted = not arguments.collect and case.folder == (arguments.only or case.folder)
        if wanted and not (arguments.folder / case.folder / "policy.npz").is_file():
            train(case, arguments.folder / case.folder)
    curves = stored(FILES[arguments.part])
    curves |= {case: found for case in cases if (found := list(curve(case, arguments.folder)))}
    with FILES[arguments.part].open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerows([COLUMNS, *((*case, *row) for case, rows in curves.items() for row in rows)])
    print_table("off-policy learners", (*COLUMNS[:4], "seeds", "mean", "worst"), summary(curves))


def train(case: Case, folder: Path) -> None:
    named = ["--algorithm" if case.learner in ALGORITHMS else "--learner.kind", case.learner]
    chosen = [*named, "--selector", case.selector, "--seed", str(case.seed)]
    command = [sys.executable, "-m", "fedpohcs", "train", case.preset, *chosen, *OPTIONS[case.setting]]
    subprocess.run([*command, "--checkpoint-every", "0", "--overwrite", "--out", str(folder)], check=True)


def curve(case: Case, folder: Path) -> Iterator[tuple[str, ...]]:
    """Rows of a finished run; steps are those of all clients from the start."""
    path = folder / case.folder
    if not (path / "policy.npz").is_file():
        return
    steps = 0
    with (path / "rounds.csv").open() as file:
        for row in csv.DictReader(file):
            steps += int(row["train_steps"])
            returns = (f"{float(row[name]):.1f}" for name in ("mean_return", "min_return"))
            yield (row["round"], str(steps), *returns)


def stored(path: Path) -> dict[Case, list[tuple[str, ...]]]:
    """The rows of a file by case, in its order."""
    curves: dict[Case, list[tuple[str, ...]]] = {}
    with path.open(newline="") as file:
        for preset, learner, selector, setting, seed, *row in list(csv.reader(file))[1:]:
            curves.setdefault(Case(preset, learner, selector, setting, int(seed)), []).append(tuple(row))
    return curves


def draw(path: Path) -> None:
    """Mean return of all clients by steps of training: a line per seed."""
    import matplotlib
    from matplotlib.figure import Figure

    from fedpohcs.analysis.figures import COLOURS, STYLE

    curves = {case: rows for file in FILES.values() for case, rows in stored(file).items()}
    with matplotlib.rc_context(STYLE):
        picture = Figure(figsize=(10.4, 4.4), layout="constrained")
        for axis, (preset, kinds) in zip(picture.subplots(1, 2), DRAWN.items(), strict=True):
            for kind, colour in zip(kinds, COLOURS, strict=False):
                runs = [rows[1:] for case, rows in curves.items() if case[:4] == (preset, *kind)]
                for number, rows in enumerate(runs):
                    steps, returns = ([float(row[column]) for row in rows] for column in (1, 2))
                    label = kind[0] if number == 0 else None
                    axis.plot(steps, returns, color=colour, linewidth=1, label=label)
            scale = "log" if preset == PENDULUM else "linear"  # DDPGAvg has fifteen times the steps of the others
            axis.set(xscale=scale, xlabel="steps of training, all clients", ylabel="mean return", title=preset)
            axis.legend(fontsize=7)
        picture.savefig(path, dpi=160)


def summary(curves: dict[Case, list[tuple[str, ...]]]) -> Iterator[tuple[Any, ...]]:
    """Mean and worst client over the last rounds: median of the seeds, and their range."""
    for kind in dict.fromkeys(case[:4] for case in curves):
        ends = [rows[-LAST:] for case, rows in curves.items() if case[:4] == kind]
        cells = []
        for column in (2, 3):
            values = [statistics.mean(float(row[column]) for row in end) for end in ends]
            cells.append(f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})")
        yield (*kind, len(ends), *cells)


if __name__ == "__main__":
    main()
