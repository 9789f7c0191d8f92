"""FedPG-BR on CartPole and HalfCheetah: more agents, Byzantine clients, and honest clients that the filter removes.

    python benchmarks/byzantine.py speedup out.csv          # 1, 3 and 10 agents
    python benchmarks/byzantine.py attacks out.csv          # 3 of 10 clients are Byzantine
    python benchmarks/byzantine.py heterogeneity out.csv    # all are honest, and their worlds differ
    python benchmarks/byzantine.py cheetahs out.csv         # HalfCheetah, 3 of 10 clients are Byzantine
    python benchmarks/byzantine.py table out.csv ...        # means and intervals

`--seeds 0 1 --rounds 40` makes fewer or shorter runs.
Every run appends its rows; runs that the file has already are skipped, so that a benchmark can be stopped and resumed.
The settings are those of the publication (Fan et al., 2021): 16-16 hidden units, discount .999, Adam 1e-3, 16 or 12 to
20 episodes per client and round, sigma .06, delta .6, alpha .4. Units are tanh here, and evaluations draw actions.
HalfCheetah has the published discount .995, sigma .9 and 64-64 units. To be cheap it has episodes of 200 steps in place
of 500, batches of 16 or 12 to 20 episodes in place of 48, and Adam 1e-3 in place of 8e-5.
"""

import argparse
import csv
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fedpohcs import WORLDS, ExperimentConfig, FederationConfig, run_experiment
from fedpohcs.core.algorithms import with_algorithm
from fedpohcs.core.config import AttackConfig
from fedpohcs.core.learning import PPOConfig
from fedpohcs.worlds.base import DiscreteActions, TracedWorld, Transition
from fedpohcs.worlds.mujoco import HalfCheetahs

METHODS = ("gpomdp", "svrpg", "fedpg-br")
SEEDS = range(5)
ROUNDS = 100
BYZANTINE = (0, 4, 8)
ATTACKS = {  # with the published scale of each
    "none": 1.0,
    "random-action": 1.0,
    "flipped-update": 2.5,
    "uniform-noise": 3.0,
    "zero-gradient": 1.0,
    "flipped-reward": 1.0,
    "shuffled-rewards": 1.0,
    "colluding": 1.5,
}
LEVELS = ("none", "length-0.4", "length-0.8", "wind-2", "wind-4", "wind-6", "wind-8")
KEY = ("study", "method", "agents", "attack", "level", "seed")
SHARES = ("removed", "removed_outer", "removed_byzantine", "nobody")
"""Shares since the last evaluation: of honest clients that the filter removed, of the four whose worlds differ most, of
Byzantine clients, and of rounds in which no client was trusted."""
FIELDS = (*KEY, "round", "return", "worst", *SHARES, "seconds")


class Pole(NamedTuple):
    """What differs between clients: half the length of the pole in metres, and a constant force in newtons."""

    length: jax.Array
    wind: jax.Array


class CartPoles(TracedWorld):
    """CartPole-v1 in JAX. `length-w`: half lengths .5 - w/2 to .5 + w/2. `wind-f`: forces -f to f; a push is 10."""

    levels = LEVELS
    observation_size, actions, horizon, reset_noise, step_noise = 4, DiscreteActions(2), 500, 4, 0

    def __init__(self, level: str, num_clients: int) -> None:
        knob, _, width = level.partition("-")
        spread = np.linspace(-1, 1, num_clients) * float(width or 0) if num_clients > 1 else np.zeros(1)
        still = np.zeros(num_clients)
        length, wind = (spread / 2, still) if knob == "length" else (still, spread)
        self.population = Pole(jnp.asarray(0.5 + length, jnp.float32), jnp.asarray(wind, jnp.float32))

    def reset(self, noise: jax.Array, params: Pole) -> tuple[jax.Array, jax.Array]:
        """Almost upright."""
        del params
        state = 0.1 * noise - 0.05
        return state, state

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: Pole) -> Transition:
        """Gymnasium's physics, with a constant force beside the push."""
        del noise
        _, speed, angle, spin = state
        sine, cosine, lever = jnp.sin(angle), jnp.cos(angle), 0.1 * params.length
        push = jnp.where(action == 1, 10.0, -10.0) + params.wind
        pushed = (push + lever * spin**2 * sine) / 1.1
        turning = (9.8 * sine - cosine * pushed) / (params.length * (4 / 3 - 0.1 * cosine**2 / 1.1))
        moved = jnp.stack([speed, pushed - lever * turning * cosine / 1.1, spin, turning])
        state = state + 0.02 * moved
        ended = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 12 * 2 * np.pi / 360)
        return Transition(state, state, jnp.float32(1), ended)


class EqualCheetahs(HalfCheetahs):
    """HalfCheetahs that are all the same, with short episodes."""

    ranges: ClassVar[dict[str, tuple[float, float]]] = {"none": (-9.81, -9.81)}
    horizon = 200


WORLDS["cart-poles"] = CartPoles
WORLDS["equal-cheetahs"] = EqualCheetahs


def configure(method: str, agents: int, attack: str, level: str, seed: int, rounds: int) -> ExperimentConfig:
    """One run."""
    tolerated = (agents - 1) * 4 // 10
    plain = ExperimentConfig(
        world="cart-poles",
        level=level,
        selector="full",
        rounds=rounds,
        seed=seed,
        groups=1,
        federation=FederationConfig(agents, agents, agents, evaluation_every=5, tolerated_liars=tolerated),
        learner=PPOConfig(
            hidden_sizes=(16, 16),
            discount=0.999,
            filter_observations=False,
            filter_rewards=False,
            filter_warmup_steps=0,
        ),
    )
    config = replace(with_algorithm(plain, method.removesuffix("-unfiltered")), selector="full")
    if method.endswith("-unfiltered"):
        config = replace(config, federation=replace(config.federation, aggregator="parameter-mean"))
    if attack != "none":
        config = replace(config, attack=AttackConfig(attack, BYZANTINE, ATTACKS[attack]))
    return config


def as_cheetahs(config: ExperimentConfig) -> ExperimentConfig:
    """The same run on HalfCheetah."""
    federation = replace(config.federation, filter_sigma=0.9, evaluation_every=10, evaluation_episodes=3)
    learner = replace(config.learner, hidden_sizes=(64, 64), discount=0.995)
    return replace(config, world="equal-cheetahs", federation=federation, learner=learner)


def measure(path: Path, study: str, method: str, agents: int, attack: str, level: str, seed: int) -> None:
    """Run one experiment, unless its rows are there already, and append them."""
    known = path.read_text().splitlines() if path.exists() else []
    start_of_row = f"{study},{method},{agents},{attack},{level},{seed},"
    if any(row.startswith(start_of_row) for row in known):
        return
    began = time.perf_counter()
    config = configure(method, agents, attack, level, seed, ROUNDS)
    records = run_experiment(as_cheetahs(config) if study == "cheetahs" else config).records
    seconds = time.perf_counter() - began
    lies = np.isin(np.arange(agents), BYZANTINE) & (attack != "none")
    outer = np.abs(np.arange(agents) - (agents - 1) / 2) > agents / 4
    groups, since = (~lies, ~lies & outer, lies), []
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if not known:
            writer.writerow(FIELDS)
        for record in records:
            if "counted" in record.updates_info:
                left_out = 1 - record.updates_info["counted"]
                since.append([*(left_out[some].mean() if some.any() else np.nan for some in groups), left_out.all()])
            if not len(record.evaluation.client):
                continue
            returns = record.evaluation.mean_return[~lies]
            shares = [f"{share:.4f}" for share in np.mean(since, axis=0)] if since else [""] * len(SHARES)
            figures = [f"{returns.mean():.2f}", f"{returns.min():.2f}", *shares, f"{seconds:.1f}"]
            writer.writerow([study, method, agents, attack, level, seed, record.round, *figures])
            since = []


def speedup(path: Path, seeds: Any) -> None:
    """The same world for all clients; 1, 3 or 10 of them."""
    for seed in seeds:
        for agents in (1, 3, 10):
            for method in METHODS:
                measure(path, "speedup", method, agents, "none", "none", seed)


def attacks(path: Path, seeds: Any) -> None:
    """The same world for all clients, of which 3 of 10 are Byzantine."""
    for seed in seeds:
        for attack in list(ATTACKS)[1:]:  # the first is in `speedup`
            for method in METHODS:
                measure(path, "attacks", method, 10, attack, "none", seed)


def heterogeneity(path: Path, seeds: Any) -> None:
    """Honest clients in different worlds, with and without the filter."""
    for seed in seeds:
        for level in LEVELS:
            for method in ("fedpg-br", "fedpg-br-unfiltered"):
                measure(path, "heterogeneity", method, 10, "none", level, seed)


def cheetahs(path: Path, seeds: Any) -> None:
    """HalfCheetahs that are the same for all clients, of which none or 3 of 10 are Byzantine."""
    for seed in seeds:
        for attack in ("flipped-update", "none", "random-action"):
            for method in METHODS:
                measure(path, "cheetahs", method, 10, attack, "none", seed)


STUDIES = {"speedup": speedup, "attacks": attacks, "heterogeneity": heterogeneity, "cheetahs": cheetahs}


def interval(values: Any) -> str:
    """Mean and 95 % interval of Student's t."""
    mean = np.mean(values)
    half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1) if len(values) > 1 else np.nan
    return f"{mean:.1f} +- {half:.1f}"


def table(*paths: Path) -> None:
    """Means over seeds: of the return over all evaluations, of the last one, of the worst client, of who is removed."""
    runs: dict[Any, dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        for row in csv.DictReader(path.open()):
            runs[tuple(row[name] for name in KEY[:-1])][row["seed"]].append(row)
    names = [*KEY[:-1], "mean of the run", "last", "worst client", *(f"{name} %" for name in SHARES)]
    print(f"| {' | '.join(names)} |")
    print("| --- " * len(names) + "|")
    for key, by_seed in runs.items():
        area = [np.mean([float(row["return"]) for row in rows]) for rows in by_seed.values()]
        last = [float(rows[-1]["return"]) for rows in by_seed.values()]
        worst = [float(rows[-1]["worst"]) for rows in by_seed.values()]
        figures = [interval(area), interval(last), interval(worst)]
        for name in SHARES:
            shares = [
                100 * np.mean(found)
                for rows in by_seed.values()
                if (found := [float(row[name]) for row in rows if row[name] not in ("", "nan")])
            ]
            figures.append(interval(shares) if shares else "")
        print(f"| {' | '.join([*key, *figures])} |")


def main() -> None:
    """Run a study, or print the table of some."""
    global ROUNDS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*STUDIES, "table"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    ROUNDS = given.rounds
    if given.what == "table":
        table(*given.files)
    else:
        STUDIES[given.what](given.files[0], given.seeds)


if __name__ == "__main__":
    main()
