"""Tables of stored learning curves: means over seeds, and differences of one method to the others, paired by seed.

A curve file has a row per level, selector, seed and round; the other columns are those of `rounds.csv`. `--add` reads
run folders into it, so that the tables of the documentation can be made again from files of the repository when the
run folders are gone:

    python benchmarks/curves.py docs/data/mountain-cars-sampling-curves.csv --add runs/sampling

Means have 95 % bootstrap intervals; p is that of the sign-flip test; P is the probability that a run of the method is
above a run of the other. Only complete runs are read.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpohcs.analysis.statistics import Interval, mean_interval, probability_above, sign_flip_test

STORED = Path(__file__).resolve().parent.parent / "docs/data/mountain-cars-sampling-curves.csv"
KEYS = ("level", "selector", "seed", "round")
COLUMNS = ("mean_return", "min_return", "worst_tenth")  # of a new file
LEVELS = ("low", "medium", "high", "areas")
Key = tuple[str, str, int, int]  # those of KEYS
Rows = dict[Key, list[str]]
Values = dict[int, float]  # by seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=STORED)
    parser.add_argument("--add", type=Path, nargs="*", default=[], help="folders with LEVEL/SELECTOR/seed-N")
    parser.add_argument("--method", default="gradient-sampling", help="whose differences to the others are shown")
    parser.add_argument("--windows", default="0-100,91-100,141-150", help="first and last round of each mean")
    arguments = parser.parse_args()
    columns, rows = read(arguments.file) if arguments.file.exists() else (COLUMNS, {})
    for folder in arguments.add:
        rows |= collected(folder, columns)
    if arguments.add:
        write(arguments.file, columns, rows)
    for level in sorted({key[0] for key in rows}, key=LEVELS.index):
        for window in arguments.windows.split(","):
            first, last = map(int, window.split("-"))
            for column in (name for name in COLUMNS if name in columns):
                found = over_window(rows, level, (first, last), columns.index(column))
                show(found, arguments.method, (level, column, window))


def read(path: Path) -> tuple[Sequence[str], Rows]:
    """The columns of a curve file, and its rows by what they are about."""
    with path.open(newline="") as file:
        table = csv.reader(file)
        columns = next(table)[len(KEYS) :]
        return columns, {(level, selector, int(seed), int(at)): values for level, selector, seed, at, *values in table}


def collected(folder: Path, columns: Sequence[str]) -> Rows:
    """The rows of run folders."""
    rows = {}
    for path in folder.glob("*/*/seed-*/rounds.csv"):
        if not (path.parent / "policy.npz").exists():
            continue  # it still trains
        level, selector, seed = path.parts[-4], path.parts[-3], int(path.parts[-2].removeprefix("seed-"))
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                rows[level, selector, seed, int(row["round"])] = [shortened(row[name]) for name in columns]
    return rows


def shortened(value: str) -> str:
    """A return in hundredths, and a list of clients as it is."""
    try:
        return f"{float(value):.2f}" if "." in value else value
    except ValueError:
        return value


def write(path: Path, columns: Sequence[str], rows: Rows) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*KEYS, *columns])
        table.writerows([*key, *rows[key]] for key in sorted(rows, key=lambda key: (LEVELS.index(key[0]), *key[1:])))


def show(found: dict[str, Values], method: str, heading: tuple[str, str, str]) -> None:
    """Print one statistic of every selector, beside the difference of `method` to it."""
    print("\n{}, {}, rounds {}".format(*heading))
    for selector, values in found.items():
        line = f"{selector:22s} n {len(values):2d}  {text(mean_interval(list(values.values())))}"
        ours = found.get(method, {})
        common = sorted(values.keys() & ours.keys())
        if selector != method and common:
            pairs = np.array([[ours[seed], values[seed]] for seed in common])
            above = probability_above(pairs[:, 0], pairs[:, 1])
            difference = pairs[:, 0] - pairs[:, 1]
            line += f"  {method} above by {text(mean_interval(difference))}, p {sign_flip_test(difference):.3f}"
            line += f", P {above.estimate:.2f} [{above.low:.2f}, {above.high:.2f}]"
        print(line)


def over_window(rows: Rows, level: str, window: tuple[int, int], place: int) -> dict[str, Values]:
    """Mean of the column at a place over the rounds of a window, by selector and seed; shorter runs are left out."""
    first, last = window
    seen: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (at, selector, seed, number), values in rows.items():
        if at == level and first <= number <= last:
            seen[selector, seed].append(float(values[place]))
    found: dict[str, Values] = defaultdict(dict)
    for (selector, seed), values in sorted(seen.items()):
        if len(values) == last - first + 1:
            found[selector][seed] = float(np.mean(values))
    return found


def text(interval: Interval) -> str:
    return f"{interval.estimate:.1f} [{interval.low:.1f}, {interval.high:.1f}]"


if __name__ == "__main__":
    main()
