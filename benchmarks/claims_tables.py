"""The tables of QAvg and PAvg on RandomMDPs and WindyCliffs, and the errors of FedSARSA by clients and perturbations.

Results are those of docs/claims.md. `--figure` draws the errors of FedSARSA from stored results, without computing.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import RESULTS, Figure, argument_parser, machine_facts, write_results

from fedpohcs.theory import worlds
from fedpohcs.theory.averaging import ProjPAvg, QAvg, Rate, SoftPAvg, run_averaging
from fedpohcs.theory.linear_td import Problem, run_linear_td, squared_errors
from fedpohcs.theory.mdp import Federation
from fedpohcs.theory.operators import best_deterministic_policy, objective, single
from fedpohcs.worlds.kernels import perturbed_chains

LOCAL_STEPS = (1, 2, 4, 8, 16, 32)
LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
CLIENTS = (1, 2, 5, 10, 20, 40)
NOISES = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
CHUNK = 500  # repetitions at a time, so that the tables stay in the cache


class Setting(NamedTuple):
    """One row group of a table: the method, its rate and the number of iterations, rounds times local steps."""

    method: Any
    rate: Rate
    iterations: int


RANDOM = {
    "QAvg": Setting(QAvg("released"), Rate(0.01, 0.5), 128),
    "QAvg as published": Setting(QAvg(), Rate(0.01, 0.5), 128),
    "QAvg as published, rate 1": Setting(QAvg(), Rate(1.0), 128),
    "SoftPAvg": Setting(SoftPAvg(), Rate(0.05, 0.8), 2048),
    "ProjPAvg": Setting(ProjPAvg(), Rate(0.01, 0.9), 2048),
}
CLIFF_VALUE = worlds.CLIFF_SHIFT / 0.05
CLIFFS = {
    "QAvg": Setting(QAvg("released"), Rate(1e-3, 0.1, CLIFF_VALUE), 640),
    "SoftPAvg": Setting(SoftPAvg(), Rate(0.05, 0.8, CLIFF_VALUE), 2048),
    "ProjPAvg": Setting(ProjPAvg(), Rate(0.01, 0.9, CLIFF_VALUE), 2048),
}


def random_worlds(count: int, seed: int) -> tuple[Federation, Federation]:
    """So many federations of 5 clients to train and 20 to test."""
    return worlds.split(worlds.random_mdps(25, stack=(count,), seed=seed), 5)


def windy_worlds(count: int, seed: int) -> tuple[Federation, Federation]:
    """So many federations of 5 random winds to train, and 20 evenly spaced ones to test."""
    winds = np.random.default_rng(seed).random((count, 5))
    parts = [worlds.windy_cliffs(row) for row in winds]
    test, shape = worlds.windy_cliffs(np.linspace(0, 1, 20)), (count, 20, 16, 4, 16)
    trained = np.stack([part.transitions for part in parts])
    shared = (test.rewards, test.discount, test.start)
    return Federation(trained, *shared), Federation(np.broadcast_to(test.transitions, shape), *shared)


def first_table(setting: Setting, count: int, shape: tuple[int, int], seed: int, baseline: float) -> np.ndarray:
    """Random start tables: uniform numbers, or distributions of them; action values start at the baseline."""
    drawn = np.random.default_rng([seed, 1]).random((count, *shape))
    if isinstance(setting.method, ProjPAvg):
        return drawn / drawn.sum(-1, keepdims=True)
    return drawn + baseline * isinstance(setting.method, QAvg)


def objectives(
    make: Callable[[int, int], tuple[Federation, Federation]], setting: Setting, count: int, baseline: float
) -> dict[str, np.ndarray]:
    """Objectives at the end by E, on the clients that train and on the others, [2, repetitions] each."""
    found: dict[str, list[np.ndarray]] = {}
    for seed in range(-(-count // CHUNK)):
        here = min(CHUNK, count - seed * CHUNK)
        train, test = make(here, seed)
        start = first_table(setting, here, train.rewards.shape[-2:], seed, baseline)
        for steps in (*LOCAL_STEPS, None):
            rounds = setting.iterations // (steps or 1)
            options: dict[str, Any] = {"start": start, "rate": setting.rate, "local_steps": steps or 1}
            run = run_averaging(train, setting.method, rounds, merge=steps is not None, **options)
            both = [objective(world, run.policy) for world in (train, test)]
            found.setdefault(str(steps or "never"), []).append(np.stack(both))
            if steps is None:  # every client alone: the mean return of the policies in all worlds
                own = [setting.method.policy(run.clients[..., n, :, :]) for n in range(run.clients.shape[-3])]
                each = [np.mean([objective(world, policy) for policy in own], axis=0) for world in (train, test)]
                found.setdefault("alone", []).append(np.stack(each))
    return {name: np.concatenate(parts, axis=-1) - baseline for name, parts in found.items()}


def table_of(found: dict[str, np.ndarray]) -> dict[str, Any]:
    """Means and standard errors, and those of the difference to E = never, repetition by repetition."""

    def mean(x: np.ndarray) -> list[float]:
        return [float(x.mean()), float(x.std(ddof=1) / np.sqrt(x.size))]

    return {
        name: {
            "train": mean(both[0]),
            "test": mean(both[1]),
            "train minus never": mean(both[0] - found["never"][0]),
            "test minus never": mean(both[1] - found["never"][1]),
        }
        for name, both in found.items()
    }


def gaps_by_level(count: int) -> dict[str, list[float]]:
    """Loss of undamped QAvg with E = 1 to the best deterministic policy by enumeration, mean and standard error."""
    found = {}
    for level in LEVELS:
        losses = []
        for seed in range(count):
            federation = worlds.random_mdps(5, heterogeneity=level, seed=seed)
            run = run_averaging(federation, QAvg(), 200, start=np.zeros((5, 5)), rate=Rate(1.0))
            best = objective(federation, best_deterministic_policy(federation))
            losses.append(float((best - run.objectives[-1]) / best))
        found[str(level)] = [float(np.mean(losses)), float(np.std(losses, ddof=1) / np.sqrt(count))]
    return found


def imaginary_agreement(count: int) -> float:
    """Largest difference of published QAvg with E = 1 from the same on the imaginary MDP alone."""
    federation = random_worlds(count, 0)[0]
    start = np.random.default_rng(0).random((count, 5, 5))
    run, alone = (
        run_averaging(world, QAvg(), 128, start=start, rate=Rate(0.01)) for world in (federation, single(federation))
    )
    return float(np.abs(run.table - alone.table).max())


def sarsa_error(clients: int, steps: int, transition_noise: float = 0.0, reward_noise: float = 0.0) -> list[float]:
    """Squared error of client 0, mean over 10 repetitions and its standard error."""
    chains = perturbed_chains(clients, transition_noise=transition_noise, reward_noise=reward_noise)
    problem = Problem(chains)
    errors = squared_errors(problem, run_linear_td(problem, steps))
    return [float(errors.mean()), float(errors.std(ddof=1) / np.sqrt(errors.size))]


def sarsa_errors(steps: int) -> dict[str, Any]:
    """By the number of clients without perturbation and with some, and by each perturbation."""
    pairs = {"none": (0.0, 0.0), "transitions 2": (2.0, 0.0), "rewards 0.1": (0.0, 0.1), "rewards 0.5": (0.0, 0.5)}
    by_clients = {name: {n: sarsa_error(n, steps, *pair) for n in CLIENTS} for name, pair in pairs.items()}
    by_noise = {
        "transitions": {x: sarsa_error(20, steps, x, 0.0) for x in NOISES},
        "rewards": {x: sarsa_error(20, steps, 0.0, x) for x in NOISES},
    }
    return {"by clients": by_clients, "by noise": by_noise}


def draw(results: dict[str, Any], path: Path) -> None:
    """The errors of FedSARSA by the number of clients and by the size of perturbations."""
    import matplotlib
    from matplotlib.figure import Figure as Picture

    from fedpohcs.analysis.figures import COLOURS, STYLE

    with matplotlib.rc_context(STYLE):
        picture = Picture(figsize=(10.4, 4.4), layout="constrained")
        by_clients, by_noise = picture.subplots(1, 2)
        for (name, points), colour in zip(results["by clients"].items(), COLOURS, strict=False):
            mean, error = np.array(list(points.values())).T
            by_clients.errorbar([int(n) for n in points], mean, error, color=colour, marker="o", label=name)
        first = results["by clients"]["none"]["1"][0]
        by_clients.plot(CLIENTS, first / np.array(CLIENTS), color="0.55", linestyle="--", label="1/N")
        by_clients.set(xscale="log", yscale="log", xlabel="clients N", ylabel=r"$\|\theta-\theta^*\|^2$ of client 0")
        for (name, points), colour in zip(results["by noise"].items(), COLOURS, strict=False):
            mean, error = np.array(list(points.values())).T
            by_noise.errorbar([float(x) for x in points], mean, error, color=colour, marker="o", label=name)
        by_noise.set(yscale="log", xlabel="size of the perturbation, 20 clients")
        for axis in (by_clients, by_noise):
            axis.legend()
        picture.savefig(path, dpi=160)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--figure", type=Path, help="draw the stored errors of FedSARSA into this file, and end")
    parser.add_argument("--part", choices=("random", "cliffs", "levels", "sarsa"), help="compute this part alone")
    parser.add_argument("--repetitions", type=int, help="of every table, in place of those of docs/claims.md")
    arguments = parser.parse_args()
    if arguments.figure:
        draw(json.loads((RESULTS / "claims-tables-sarsa.json").read_text())["samples"], arguments.figure)
        return
    for part in [arguments.part] if arguments.part else ("random", "cliffs", "levels", "sarsa"):
        compute(part, arguments.quick, arguments.repetitions)


def compute(part: str, quick: bool, repetitions: int | None) -> None:
    facts, began = machine_facts(), time.process_time()
    samples: dict[str, Any] = {}
    if part == "random":
        for name, setting in RANDOM.items():
            few = setting.iterations > 1000
            count = repetitions or (4 if quick else 2_000 if few else 16_000)
            samples[name] = {"repetitions": count, **table_of(objectives(random_worlds, setting, count, 0.0))}
        samples["largest difference from the imaginary MDP"] = imaginary_agreement(10)
    elif part == "cliffs":
        for name, setting in CLIFFS.items():
            count = repetitions or (3 if quick else 200)
            samples[name] = {"repetitions": count, **table_of(objectives(windy_worlds, setting, count, CLIFF_VALUE))}
    elif part == "levels":
        samples = gaps_by_level(repetitions or (2 if quick else 100))
    else:
        samples = sarsa_errors(200 if quick else 20_000)
    figures = [Figure(f"claims, part {part}, processor time", time.process_time() - began, "s")]
    write_results(f"claims-tables-{part}", facts, figures, samples, quick=quick)


if __name__ == "__main__":
    main()
