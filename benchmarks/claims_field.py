"""Claims about FedKL, FedSVRPG-M and optimal sampling on small worlds. For docs/claims.md.

    python benchmarks/claims_field.py kl-cars out.csv        # FedKL on its Mountain Cars, against FedAvg and FedProx
    python benchmarks/claims_field.py kl-cheetahs out.csv    # FedKL on HalfCheetahs whose gravity differs
    python benchmarks/claims_field.py momentum out.csv       # FedSVRPG-M with and without momentum; 1, 3 and 10 agents
    python benchmarks/claims_field.py sampling out.csv       # optimal sampling against uniform and full participation
    python benchmarks/claims_field.py table out.csv ...      # means, and differences paired by seed
    python benchmarks/claims_field.py collect out.csv ...    # join files as docs/data/claims-field.csv

Every run appends its rows; runs that the file has already are skipped, so that a benchmark can be stopped and resumed.
Settings were written down before the first run and not tuned.
"""

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from byzantine import CartPoles, configure
from scipy import stats

from fedpohcs import WORLDS, ExperimentConfig, preset, run_experiment
from fedpohcs.core.algorithms import parse_method

STORED = Path(__file__).resolve().parent.parent / "docs" / "data" / "claims-field.csv"
FIELDS = ("study", "method", "agents", "level", "seed", "round", "return", "worst", "seconds")
Values = dict[int, float]  # by seed


class Case(NamedTuple):
    """One run but for its seed."""

    study: str
    method: str
    agents: int
    level: str


def kl_cars(seeds: Sequence[int]) -> Iterator[tuple[Case, int, ExperimentConfig]]:
    """Level `fedkl`, 50 rounds, 6 of 60 cars. `fedkl-tight` has the defaults of the authors' program."""
    for seed in seeds:
        for method in ("fedavg", "fedprox", "fedkl", "fedkl-tight"):
            config = replace(named("mountain-cars", "fedkl", method.removesuffix("-tight"), seed), rounds=50)
            if method == "fedkl-tight":
                config = replace(config, learner=replace(config.learner, anchor_coefficient=1.0, anchor_target=1e-3))
            yield Case("kl-cars", method, 60, "fedkl"), seed, config


def kl_cheetahs(seeds: Sequence[int]) -> Iterator[tuple[Case, int, ExperimentConfig]]:
    """Ten clients, of which five train in a round; 20 rounds of 5 local iterations of 1000 steps."""
    for seed in seeds:
        for method in ("fedavg", "fedprox", "fedkl"):
            config = named("half-cheetahs", "fedkl", method, seed)
            sizes = {"num_clients": 10, "num_candidates": 10, "num_selected": 5}
            federation = replace(config.federation, **sizes, evaluation_every=5, evaluation_episodes=1)
            short = {"local_iterations": 5, "steps_per_iteration": 1000}
            filters = {"filter_warmup_steps": 1000, "filter_evaluation_episodes": 1}
            learner = replace(config.learner, **short, **filters)
            yield (
                Case("kl-cheetahs", method, 10, "fedkl"),
                seed,
                replace(config, rounds=20, federation=federation, learner=learner),
            )


def momentum(seeds: Sequence[int]) -> Iterator[tuple[Case, int, ExperimentConfig]]:
    """CartPoles that are equal or under different wind; all train. `plain` is FedSVRPG-M with beta 1: no momentum."""
    for seed in seeds:
        for level, agents in (("none", 1), ("none", 3), ("none", 10), ("wind-4", 10)):
            for method, beta in (("fedsvrpg-m", 0.5), ("plain", 1.0)):
                config = configure("fedsvrpg-m", agents, "none", level, seed, 30)
                learner = replace(config.learner, episodes=4, beta=beta)
                yield Case("momentum", method, agents, level), seed, replace(config, learner=learner)


def sampling(seeds: Sequence[int]) -> Iterator[tuple[Case, int, ExperimentConfig]]:
    """The preset `tabular`: two of twelve clients send an update, all twelve are candidates. `full`: all send one."""
    for seed in seeds:
        for level in ("none", "medium", "high"):
            for method in ("fedavg", "optimal-sampling", "optimal-sampling-approximate", "full"):
                config = named("tabular", level, method, seed)
                federation = replace(config.federation, num_candidates=12, num_selected=2, update_weights="clients")
                yield Case("sampling", method, 12, level), seed, replace(config, rounds=40, federation=federation)


Study = Callable[[Sequence[int]], Iterator[tuple[Case, int, ExperimentConfig]]]
STUDIES: dict[str, tuple[Study, int]] = {  # with the number of seeds
    "kl-cars": (kl_cars, 5),
    "kl-cheetahs": (kl_cheetahs, 2),
    "momentum": (momentum, 5),
    "sampling": (sampling, 10),
}


def named(world: str, level: str, method: str, seed: int) -> ExperimentConfig:
    """A preset with an algorithm or a selector."""
    chosen = {"algorithm": method} if parse_method(method).algorithm else {"selector": method}
    return replace(preset(world, level, **chosen), seed=seed)


def measure(path: Path, case: Case, seed: int, config: ExperimentConfig) -> None:
    """Run one experiment, unless its rows are there already, and append them."""
    known = path.read_text().splitlines() if path.exists() else []
    start_of_row = ",".join(map(str, (*case, seed, "")))
    if any(row.startswith(start_of_row) for row in known):
        return
    began = time.process_time()
    records = run_experiment(config).records
    seconds = time.process_time() - began
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not known:
            writer.writerow(FIELDS)
        for record in records:
            returns = record.evaluation.mean_return
            if len(returns):
                figures = (f"{returns.mean():.2f}", f"{returns.min():.2f}", f"{seconds:.1f}")
                writer.writerow([*case, seed, record.round, *figures])


def collect(*paths: Path) -> None:
    """Write the rows of all files as one, in the order of the files."""
    rows = [line for path in paths for line in path.read_text().splitlines()[1:]]
    STORED.write_text("\n".join([",".join(FIELDS), *dict.fromkeys(rows)]) + "\n")


def table(*paths: Path) -> None:
    """Mean return over a run and its last fifth, worst client there, and differences to the first method."""
    runs: dict[Case, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                case = Case(row["study"], row["method"], int(row["agents"]), row["level"])
                runs[case][int(row["seed"])].append((float(row["return"]), float(row["worst"])))
    names = ["study", "level", "agents", "method", "seeds", "mean of the run", "last fifth", "worst client"]
    names += ["run, difference", "last fifth, difference"]
    print(f"| {' | '.join(names)} |")
    print("| --- " * len(names) + "|")
    for case, by_seed in runs.items():
        reference = next(other for other in runs if other[2:] == case[2:] and other.study == case.study)
        ours, theirs = figures(by_seed), figures(runs[reference])
        cells = [interval(list(values.values())) for values in ours]
        for place in (0, 1):
            common = sorted(ours[place].keys() & theirs[place].keys())
            differences = [ours[place][seed] - theirs[place][seed] for seed in common]
            cells.append(interval(differences) if case != reference else "")
        print(
            f"| {case.study} | {case.level} | {case.agents} | `{case.method}` | {len(by_seed)} | {' | '.join(cells)} |"
        )


def figures(by_seed: dict[int, list[tuple[float, float]]]) -> tuple[Values, Values, Values]:
    """Of every seed: mean return over the run, over its last fifth, and of the worst client there."""
    whole = {seed: float(np.mean([mean for mean, _ in rows])) for seed, rows in by_seed.items()}
    last = {seed: np.mean(rows[-max(len(rows) // 5, 1) :], axis=0) for seed, rows in by_seed.items()}
    return whole, *({seed: float(means[place]) for seed, means in last.items()} for place in (0, 1))


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % interval of Student's t."""
    if len(values) < 2:
        return f"{np.mean(values):.2f}" if values else ""
    return f"{np.mean(values):.2f} ± {stats.sem(values) * stats.t.ppf(0.975, len(values) - 1):.2f}"


def main() -> None:
    """Run a study, or print the table of some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*STUDIES, "table", "collect"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+")
    given = parser.parse_args()
    WORLDS["cart-poles"] = CartPoles
    if given.what == "table":
        return table(*given.files)
    if given.what == "collect":
        return collect(*given.files)
    study, number = STUDIES[given.what]
    for case, seed, config in study(given.seeds or range(number)):
        measure(given.files[0], case, seed, config)


if __name__ == "__main__":
    main()
