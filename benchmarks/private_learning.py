"""Whether private selection learns as well as selection in the clear.

Measured: mean return by round of fedpohcs on Mountain Cars with three ways to compare candidates: in the clear on all
pairs (the paper's formula), masked (the same, sketched and rounded), and in the clear on shared pairs (the default).

How: the preset mountain-cars, 150 rounds, seeds 0 to 2, one run after the other, into `--out`; runs that are there are
kept. Then the mean return over the last ten rounds and over all rounds, and the difference of each to the first, paired
by seed, with its 95 % bootstrap interval. `fedpohcs report OUT` draws the curves.
"""

import dataclasses
from pathlib import Path
from typing import Any

from _common import argument_parser, benchmark_config

WAYS: dict[str, dict[str, Any]] = {
    "all-pairs": {"compared_pairs": "all"},
    "masked": {"compared_pairs": "all", "privacy": "masked"},
    "shared-pairs": {},
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/private-learning"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    from fedpohcs.analysis.groups import load_groups
    from fedpohcs.analysis.rendering import print_tables
    from fedpohcs.analysis.tables import statistics_tables
    from fedpohcs.cli.grid import complete_run

    for seed in range(arguments.seeds):
        for name in WAYS:
            complete_run(arguments.out / name / f"seed-{seed}", config_of(name, seed, arguments.quick))
    groups = load_groups([arguments.out / name for name in WAYS])
    print_tables(statistics_tables(groups, reference=groups[0].label))


def config_of(name: str, seed: int, quick: bool) -> Any:
    config = benchmark_config(quick=quick)
    way = dict(WAYS[name])
    federation = dataclasses.replace(config.federation, compared_pairs=way.pop("compared_pairs", "shared"))
    protection = dataclasses.replace(config.protection, min_cohort=3) if quick else config.protection
    rounds = 3 if quick else config.rounds
    return dataclasses.replace(config, seed=seed, rounds=rounds, federation=federation, protection=protection, **way)


if __name__ == "__main__":
    main()
