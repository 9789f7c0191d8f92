"""Returns of final policies for clients that did not train: between the clients that did, and beyond their range.

    python benchmarks/held_out.py FILE --add runs/long                       # evaluates run folders, adds rows to FILE
    python benchmarks/held_out.py docs/data/mountain-cars-held-out.csv       # prints tables of what is stored

A folder holds LEVEL/METHOD/seed-N. The policy is the last of a run. Clients that did not train act with the default
filter, which is pooled over those that did. A row has the mean and the worst tenth of one group of clients: `trained`,
`between` or `beyond`. Means have 95 % bootstrap intervals; differences are paired by seed.
"""

import argparse
import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpohcs.analysis.statistics import mean_interval
from fedpohcs.runs.evaluating import evaluate_policy

GROUPS = ("trained", "between", "beyond")
LEVELS = ("low", "medium", "high")


class Row(NamedTuple):
    """Returns of one group of clients under the last policy of one run."""

    level: str
    method: str
    seed: int
    group: str
    clients: int
    mean_return: float
    worst_tenth: float

    @property
    def key(self) -> tuple[int, str, int, int]:
        return LEVELS.index(self.level), self.method, self.seed, GROUPS.index(self.group)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--add", type=Path, nargs="*", default=[], help="folders with LEVEL/METHOD/seed-N")
    parser.add_argument("--held-out", type=int, default=60, help="clients in each of the groups that did not train")
    parser.add_argument("--episodes", type=int, default=10, help="of every client")
    parser.add_argument("--method", default="gradient-sampling", help="whose differences to the others are shown")
    arguments = parser.parse_args()
    rows = {row.key: row for row in read(arguments.file)} if arguments.file.exists() else {}
    for folder in arguments.add:
        for path in sorted(folder.glob("*/*/seed-*/policy.npz")):
            rows |= {row.key: row for row in evaluated(path.parent, arguments.held_out, arguments.episodes)}
            write(arguments.file, [rows[key] for key in sorted(rows)])
    for level in LEVELS:
        show([row for row in rows.values() if row.level == level], arguments.method)


def evaluated(run: Path, number: int, episodes: int) -> Iterator[Row]:
    """The three rows of a run. Clients that trained play twice, and count once."""
    level, method, seed = run.parts[-3:]
    for placement in GROUPS[1:]:
        found = evaluate_policy(run, held_out=number, placement=placement, episodes=episodes)
        trained = found.client < found.config.federation.num_clients
        for group, members in ((placement, ~trained), ("trained", trained)):
            if group in GROUPS[1:] or placement == "between":
                returns = np.sort(found.mean_return[members])
                tenth = returns[: math.ceil(len(returns) / 10)]
                means = round(float(returns.mean()), 2), round(float(tenth.mean()), 2)
                yield Row(level, method, int(seed.removeprefix("seed-")), group, len(returns), *means)


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        kinds = Row.__annotations__.items()
        return [Row(*(kind(row[name]) for name, kind in kinds)) for row in csv.DictReader(file)]


def write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([Row._fields, *rows])


def show(rows: Sequence[Row], ours: str) -> None:
    """Print the table of a level in Markdown: mean and worst tenth of each group, and differences to the others."""
    methods = sorted({row.method for row in rows}, key=lambda method: (method != ours, method))
    if not rows:
        return
    print(
        f"\n| **{rows[0].level}** | "
        + " | ".join(f"{group}{what}" for group in GROUPS for what in ("", ", tenth"))
        + " |"
    )
    print("| --- |" + " ---: |" * 2 * len(GROUPS))
    for method in methods:
        print(f"| `{method}` | " + " | ".join(cell(by_seed(rows, method, *which)) for which in columns()) + " |")
    for method in methods[1:]:
        cells = []
        for which in columns():
            mine, others = by_seed(rows, ours, *which), by_seed(rows, method, *which)
            cells.append(cell({seed: mine[seed] - others[seed] for seed in mine.keys() & others.keys()}))
        print(f"| above `{method}` by | " + " | ".join(cells) + " |")


def columns() -> Iterator[tuple[str, str]]:
    """The groups, each with its two statistics."""
    for group in GROUPS:
        yield group, "mean_return"
        yield group, "worst_tenth"


def by_seed(rows: Sequence[Row], method: str, group: str, statistic: str) -> dict[int, float]:
    return {row.seed: getattr(row, statistic) for row in rows if (row.method, row.group) == (method, group)}


def cell(values: dict[int, float]) -> str:
    found = mean_interval(list(values.values()))
    return f"{found.estimate:.1f} [{found.low:.1f}, {found.high:.1f}]"


if __name__ == "__main__":
    main()
