"""DQNAvg beside clients alone on CartPoles and Acrobots, and DCPI beside DQN on CartPole. For docs/claims.md.

    python benchmarks/claims_values.py cartpoles OUT.csv --seeds 0 1 2 3 4
    python benchmarks/claims_values.py acrobots OUT.csv --seeds 0 1 2
    python benchmarks/claims_values.py dcpi OUT.csv --seeds 0 1 2 3 4
    python benchmarks/claims_values.py tables OUT.csv
    python benchmarks/claims_values.py figure OUT.csv --out claims-dqnavg.png

A part appends its rows to OUT.csv and leaves out what is there already. `tables` prints the tables of the page.
"""

import argparse
import csv
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedpohcs.core.algorithms import with_algorithm
from fedpohcs.core.config import ExperimentConfig, FederationConfig, Placement
from fedpohcs.core.learning import as_kind
from fedpohcs.core.presets import preset
from fedpohcs.core.trees import take_clients
from fedpohcs.execution import make_executor
from fedpohcs.execution.devices import configure_jax
from fedpohcs.runs.experiment import Training
from fedpohcs.worlds.control import ControlConfig

COLUMNS = ("world", "method", "seed", "episodes", "set", "mean_return", "worst")
PLACEMENTS: tuple[Placement, ...] = ("between", "beyond")
CLIENTS, HELD_OUT, EPISODES = 5, 8, 768  # of a client in training
EVERY = 96  # episodes of a client between two rows of a curve
PUBLISHED = {"cartpoles": (200, 100), "acrobots": (1000, 200)}
"""Steps of an episode, and gradient steps per episode: published is one per step, here their number is fixed."""
METHODS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "DQNAvg, merge 12": (12, {}, {}),
    "DQNAvg, merge 48": (48, {}, {}),
    "personalised, merge 12": (12, {"personal": "embedding"}, {}),
    "alone": (12, {"personal": "all"}, {"memory_at_merge": "keep"}),
}
LONGER: dict[str, Any] = {"discount": 0.99, "replay_size": 20_000}
OTHERWISE: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "merge 12, discount .99": (12, {}, {"discount": 0.99}),
    "merge 12, replay 20,000": (12, {}, {"replay_size": 20_000}),
    "merge 12, discount .99, replay 20,000": (12, {}, LONGER),
    "alone, discount .99, replay 20,000": (12, {"personal": "all"}, {"memory_at_merge": "keep", **LONGER}),
}
"""What only `--methods` names. The replay buffer of the publication holds one failed episode of Acrobots."""
DRAWN = {
    "cartpoles": ["DQNAvg, merge 12", "alone", "DQNAvg, merge 48", "personalised, merge 12"],
    "acrobots": ["DQNAvg, merge 12", "alone", *list(OTHERWISE)[-2:]],
}
CONSERVATIVE: dict[str, dict[str, Any]] = {
    "DQN": {"kind": "dqn", "double": False},
    "double DQN": {"kind": "dqn"},
    "DCPI, alpha 0.1": {"kind": "dcpi"},
    "DCPI, alpha adaptive": {"kind": "dcpi", "mixture": 1.0, "mixture_rule": "adaptive"},
}
SAME = {"target_rate": 1.0, "target_period": 32}
"""Of both learners: their target networks are copies that are made every 32 gradient steps."""
PLACES: dict[str, tuple[str, str]] = {"alone": ("none", "all"), "federated": ("high", "none")}


class Row(NamedTuple):
    """Return over a set of clients at one time of a run."""

    world: str
    method: str
    seed: int
    episodes: int  # or rounds
    set: str
    mean_return: float
    worst: float

    @classmethod
    def of(cls, case: tuple[str, str, int], episodes: int, name: str, returns: np.ndarray) -> "Row":
        return cls(*case, episodes, name, round(float(returns.mean()), 2), round(float(returns.min()), 2))


def published(world: str, method: str, seed: int) -> ExperimentConfig:
    """DQNAvg with the settings of the publication, and what the method has otherwise."""
    horizon, updates = PUBLISHED[world]
    merge, federation, learner = (METHODS | OTHERWISE)[method]
    config = with_algorithm(preset(world, level="high"), "dqnavg")
    everyone = {"num_clients": CLIENTS, "num_candidates": CLIENTS, "num_selected": CLIENTS}
    steps = {"local_iterations": merge, "updates_per_iteration": updates, "epsilon_decay": 0.99**merge}
    return replace(
        config,
        seed=seed,
        rounds=EPISODES // merge,
        scenario=ControlConfig(horizon=horizon),
        federation=replace(config.federation, **everyone, evaluation_every=EVERY // merge, **federation),
        learner=replace(config.learner, **steps, **learner),
    )


def unseen(config: ExperimentConfig, placement: Placement) -> ExperimentConfig:
    """The same with clients that never train. Clients alone are heard by executors of a common policy."""
    personal = "none" if config.federation.personal == "all" else config.federation.personal
    federation = replace(config.federation, personal=personal, held_out_clients=HELD_OUT, held_out_placement=placement)
    return replace(config, federation=federation)


def qavg_curves(world: str, method: str, seed: int) -> Iterator[Row]:
    """Returns of clients that train, and of unseen ones between them and beyond their range.

    Of clients alone it is the mean return of their policies; `own` is that of each in its own world.
    """
    config, case = published(world, method, seed), (world, method, seed)
    configure_jax(config.groups)
    training, ids = Training(config), np.arange(CLIENTS + HELD_OUT)
    judges = {name: make_executor(unseen(config, name), record=False) for name in PLACEMENTS}
    for record in training.remaining_rounds():
        found = record.evaluation.mean_return
        if not len(found):
            continue
        at = record.round * config.learner.local_iterations
        yield Row.of(case, at, "own", found)
        policies = list(policies_of(training))
        if config.federation.personal == "all":
            found = mean_returns(judges["between"], policies, record.round, ids[:CLIENTS])
        yield Row.of(case, at, "train", found)
        for name, judge in judges.items():
            yield Row.of(case, at, name, mean_returns(judge, policies, record.round, ids[CLIENTS:]))


def policies_of(training: Training) -> Iterator[Any]:
    """The merged policy, or that of every client if they train alone."""
    executor: Any = training.executor
    if training.config.federation.personal != "all" or not executor.state.filters.trained.all():
        yield training.state.params
        return
    for client in range(CLIENTS):
        yield take_clients(executor.state.filters.weights, client)


def mean_returns(judge: Any, policies: Sequence[Any], number: int, clients: np.ndarray) -> np.ndarray:
    """Of each of these clients, the mean over the policies."""
    return np.mean([judge.evaluate(policy, number, clients).mean_return for policy in policies], axis=0)


def conservative_curves(place: str, method: str, seed: int) -> Iterator[Row]:
    """Returns by round of five clients, each alone with the usual CartPole, or together with different poles."""
    level, personal = PLACES[place]
    config = preset("cartpoles", level=level, selector="full")
    federation = FederationConfig(CLIENTS, num_candidates=CLIENTS, num_selected=CLIENTS, evaluation_episodes=10)
    settings = {**SAME, **CONSERVATIVE[method]}
    learner = as_kind(config.learner, settings["kind"])
    config = replace(
        config,
        seed=seed,
        rounds=20,
        federation=replace(federation, personal=personal),
        learner=replace(learner, **settings),
    )
    configure_jax(config.groups)
    for record in Training(config).remaining_rounds():
        yield Row.of((place, method, seed), record.round, "own", record.evaluation.mean_return)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PUBLISHED, "dcpi", "tables", "figure"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--methods", nargs="*", choices=[*METHODS, *OTHERWISE], default=[*METHODS])
    parser.add_argument("--out", type=Path, default=Path("claims-dqnavg.png"), help="of `figure`")
    arguments = parser.parse_args()
    rows = read(arguments.file)
    if arguments.part == "tables":
        show(rows)
        return
    if arguments.part == "figure":
        draw(rows, arguments.out)
        return
    for seed in arguments.seeds:
        for curve, *case in cases(arguments.part, arguments.methods):
            if not any((row.world, row.method, row.seed) == (*case, seed) for row in rows):
                append(arguments.file, list(curve(*case, seed)))
                print(*case, seed, f"{time.process_time():.0f} s", flush=True)


def cases(part: str, methods: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The function that makes a curve, and what it takes besides the seed."""
    if part == "dcpi":
        yield from ((conservative_curves, place, method) for place in PLACES for method in CONSERVATIVE)
    else:
        yield from ((qavg_curves, part, method) for method in methods)


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        cells = list(csv.reader(file))[1:]
    return [
        Row(world, method, int(seed), int(at), name, float(x), float(y))
        for world, method, seed, at, name, x, y in cells
    ]


def append(path: Path, rows: list[Row]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerows([*([COLUMNS] if is_new else []), *rows])


def show(rows: list[Row]) -> None:
    """Means at the end and over the whole curve, by seed, and the differences of methods to the first one."""
    by_curve: dict[tuple[str, str, str], dict[int, list[Row]]] = {}
    for row in rows:
        by_curve.setdefault((row.world, row.set, row.method), {}).setdefault(row.seed, []).append(row)
    first: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for (world, name, method), seeds in by_curve.items():
        found = {seed: figures_of(curve) for seed, curve in seeds.items()}
        base = first.setdefault((world, name), found)
        cells = []
        for figure in next(iter(found.values())):
            values = [one[figure] for one in found.values()]
            less = [one[figure] - base[seed][figure] for seed, one in found.items() if seed in base]
            cells.append(f"{figure} {interval(values)}, minus the first {interval(less)}")
        print(f"{world:10s} {name:8s} {method:24s} n {len(seeds)}  " + ";  ".join(cells))


def draw(rows: list[Row], path: Path) -> None:
    """Returns on unseen clients by episodes: means over seeds, and all seeds behind them."""
    import matplotlib
    from matplotlib.figure import Figure

    from fedpohcs.analysis.figures import COLOURS, STYLE

    with matplotlib.rc_context(STYLE):
        picture = Figure(figsize=(10.4, 4.4), layout="constrained")
        for axis, (world, methods) in zip(picture.subplots(1, 2), DRAWN.items(), strict=True):
            for method, colour in zip(methods, COLOURS, strict=False):
                runs: dict[int, list[Row]] = {}
                for row in rows:
                    if (row.world, row.method, row.set) == (world, method, "between"):
                        runs.setdefault(row.seed, []).append(row)
                episodes = [row.episodes for row in next(iter(runs.values()))]
                returns = np.array([[row.mean_return for row in run] for run in runs.values()])
                axis.plot(episodes, returns.T, color=colour, alpha=0.25, linewidth=0.8)
                axis.plot(episodes, returns.mean(axis=0), color=colour, label=f"{method} ({len(runs)} seeds)")
            axis.set(xlabel="episodes per client", ylabel="return on unseen clients", title=world)
            axis.legend(fontsize=7)
        picture.savefig(path, dpi=160)


def figures_of(curve: list[Row]) -> dict[str, float]:
    """Of one run: after training, over the latter half of it, and how much returns fall from one row to the next."""
    returns = np.array([row.mean_return for row in curve])
    half = returns[len(returns) // 2 :]
    falls = np.maximum(-np.diff(half), 0.0)
    return {
        "end": returns[-1],
        "worst": curve[-1].worst,
        "all": returns.mean(),
        "late": half.mean(),
        "falls": falls.mean(),
    }


def interval(values: Sequence[float]) -> str:
    """Mean, and half of the 95 % interval of Student's t."""
    if len(values) < 2:
        return f"{values[0]:.1f}"
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.1f} ± {half:.1f}"


if __name__ == "__main__":
    main()
