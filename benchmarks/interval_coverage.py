"""How often a 95 % interval of `fedpohcs.analysis.statistics` holds the true mean, for few seeds.

Samples are made up, of normal and of exponential numbers with a known mean. Beside it stand the plain percentiles of
the same bootstrap, which is what many scripts report.
"""

import numpy as np
from _common import Figure, argument_parser, machine_facts, print_table, write_results

from fedpohcs.analysis.statistics import CONFIDENCE, bootstrap_limits, resampled_means

SEEDS = (3, 4, 5, 6, 8, 10, 20)


def main() -> None:
    quick = argument_parser(__doc__).parse_args().quick
    facts = machine_facts()
    generator = np.random.default_rng(1)
    rows = []
    for num_seeds in SEEDS:
        shape = (num_seeds, 200 if quick else 4000)
        normal, exponential = generator.normal(size=shape), generator.exponential(size=shape) - 1
        plain = np.quantile(resampled_means(normal), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
        limits = (bootstrap_limits(normal), bootstrap_limits(exponential), plain)
        rows.append((num_seeds, *(float(np.mean((low <= 0) & (high >= 0))) for low, high in limits)))
    columns = ("seeds", "normal data", "exponential data", "plain percentiles, normal data")
    print_table("share of intervals that hold the mean", columns, rows)
    figures = [Figure(f"coverage with {n} seeds, normal data", share, "") for n, share, *_ in rows]
    write_results("interval_coverage", facts, figures, {"columns": columns, "rows": rows}, quick=quick)


if __name__ == "__main__":
    main()
