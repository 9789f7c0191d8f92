"""What private selection costs, and how often it chooses as the exact metric does.

Measured, on the tables that the candidates of a training run really made (fedpohcs, privacy none):

- agreement: the share of the K clients chosen from sketches that the exact metric chooses too, by sketch size, by bits
  of the score and by epsilon; the exact metric being the paper's formula (compared_pairs all). The default in
  the clear, which drops pairs of one candidate, is compared with that formula as well.
- masking error: the largest change of Delta_n by masks and fixed point, and by encryption.
- cost: seconds per round for all candidates, and bytes per candidate, of plain, masked and encrypted selection,
  for two phases (the candidates) and one phase (the K that trained).
- session: seconds of all clients and the server together to make the keys of 1,000 clients.

How: seed 0, all rounds of the run; seconds are CPU time, medians over rounds in turns. `--tables FILE` reads recorded
tables, or writes them where there is no such file. `--preset` names another world.

Goals: masked selection <= 50 ms for 18 candidates and <= 5 % of the CPU time of a round; upload <= 70 kB; error of
Delta_n <= 1e-6; agreement >= .97; session <= 30 s.
"""

import dataclasses
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import Figure, Goal, argument_parser, benchmark_config, machine_facts, print_table, write_results

SKETCH_SIZES = (256, 1024, 4096, 16_384, 65_536, 2**20)
SCORE_BITS = (4, 6, 8, 10, 12, 16)
EPSILONS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
SEEDS = 3  # of the hash, for each round


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", type=Path, help="recorded tables, written if missing")
    parser.add_argument("--preset", default="mountain-cars")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    facts = machine_facts()
    rounds, round_seconds, round_cpu = recorded(arguments)
    k = config_of(arguments).federation.num_selected
    agreement = measure_agreement(rounds, k)
    for title, rows in agreement.items():
        print_table(f"overlap with the exact choice, {title}", ("", "overlap", "same set"), rows)
    error = masking_error(rounds)
    costs = measure_costs(arguments, rounds)
    rows = [(name, *values.values()) for name, values in costs.items()]
    print_table("a round of selection", ("", *next(iter(costs.values()))), rows)
    masked = costs["masked, two-phase"]
    added = masked["CPU ms"] - costs["plain, two-phase"]["CPU ms"]
    default = dict((row[0], row[1]) for row in agreement["as configured by default"])
    figures = [
        Figure("masked selection", masked["CPU ms"], "ms", Goal("<=", 50, "ms")),
        Figure("masked minus plain selection, CPU of a round", added / 10 / round_cpu, "%", Goal("<=", 5, "%")),
        Figure("masked selection, CPU of a round", masked["CPU ms"] / 10 / round_cpu, "%", Goal("<=", 5, "%")),
        Figure("CPU of a round", round_cpu, "s"),
        Figure("upload of a candidate", masked["bytes up"], "B", Goal("<=", 70_000, "B")),
        Figure("session of 1,000 clients, CPU", measure_session(1000), "s", Goal("<=", 30, "s")),
        Figure("error of Delta_n by masking", error["masked"], "", Goal("<=", 1e-6, "")),
        Figure("error of Delta_n by encryption", error["he"], "", Goal("<=", 1e-6, "")),
        Figure("overlap with the exact choice", default["masked"], "", Goal(">=", 0.97, "")),
    ]
    samples = {"agreement": agreement, "costs": costs, "round_seconds": round_seconds, "round_cpu": round_cpu}
    suffix = "" if arguments.preset == "mountain-cars" else f"-{arguments.preset}"
    write_results(f"privacy{suffix}", facts, figures, samples, quick=arguments.quick)


def config_of(arguments: Any) -> Any:
    from fedpohcs.core.presets import preset

    if arguments.preset == "mountain-cars":
        config = benchmark_config(quick=arguments.quick)
        rounds = 4 if arguments.quick else arguments.rounds
        return dataclasses.replace(config, rounds=rounds)
    return dataclasses.replace(preset(arguments.preset, selector="fedpohcs"), rounds=arguments.rounds)


def recorded(arguments: Any) -> tuple[list[dict[int, Any]], float, float]:
    """The tables of the candidates by round, and the median seconds of a round, by the clock and of the processor."""
    from fedpohcs.core.types import WeightedAdvantage

    path = arguments.tables
    arrays = dict(np.load(path)) if path is not None and path.exists() else record(config_of(arguments))
    if path is not None and not path.exists():
        np.savez_compressed(path, **arrays)
    rounds: dict[int, dict[int, Any]] = {}
    for name in arrays:
        if name.endswith("/pair"):
            number, client, _ = name.split("/")
            value = arrays[f"{number}/{client}/value"]
            rounds.setdefault(int(number), {})[int(client)] = WeightedAdvantage(arrays[name], value)
    seconds = (float(arrays.get(name, np.nan)) for name in ("round_seconds", "round_cpu"))
    return [rounds[number] for number in sorted(rounds)], *seconds


def record(config: Any) -> dict[str, Any]:
    """Train, and keep every table on its way to the server."""
    from fedpohcs.runs.experiment import start_training

    arrays: dict[str, Any] = {}
    training = start_training(config)
    measure = training.executor.measure

    def keep(params: Any, number: int, clients: Any, names: Any) -> Any:
        metrics = measure(params, number, clients, names)
        for client, table in zip(clients.tolist(), metrics.column("weighted_advantage"), strict=True):
            arrays[f"{number}/{client}/pair"], arrays[f"{number}/{client}/value"] = table.pair, table.value
        return metrics

    training.executor.measure = keep
    seconds, cpu, start = [], [], time.process_time()
    for record in training.remaining_rounds():
        seconds.append(sum(record.seconds.values()))
        cpu.append(time.process_time() - start)
        start = time.process_time()
    arrays["round_seconds"], arrays["round_cpu"] = np.median(seconds[3:]), np.median(cpu[3:])
    return arrays


def sketched_scores(tables: Any, num_slots: int, seed: int) -> Any:
    """Delta_n / ||S|| from sketches."""
    from fedpohcs.privacy.sketch import count_sketch, relative_metric

    sketches = np.stack([count_sketch(table, seed, num_slots) for table in tables])
    mean = sketches.mean(axis=0)
    return np.array([relative_metric(mean, sketch) for sketch in sketches])


def exact_scores(tables: Any, compared_pairs: str) -> Any:
    """Delta_n / ||S|| from the tables themselves."""
    from fedpohcs.metrics import selection_metric, stack_tables

    rows = stack_tables(tables, compared_pairs)
    return selection_metric(rows, np.ones(len(tables))) / np.sqrt(np.sum(rows.mean(axis=0) ** 2))


def measure_agreement(rounds: list[dict[int, Any]], k: int) -> dict[str, list[tuple[Any, float, float]]]:
    from fedpohcs.core.config import ProtectionConfig
    from fedpohcs.privacy.differential import protected_level
    from fedpohcs.privacy.terms import RESERVED_WORDS

    tables = [tuple(by_client.values()) for by_client in rounds]
    exact = [exact_scores(row, "all") for row in tables]
    default = ProtectionConfig()
    sketched = {
        size: [sketched_scores(t, size - RESERVED_WORDS, seed) for t in tables for seed in range(SEEDS)]
        for size in SKETCH_SIZES
    }
    repeated = [scores for scores in exact for _ in range(SEEDS)]

    def protected(scores: list[Any], **changes: Any) -> list[Any]:
        config, draw = dataclasses.replace(default, **changes), np.random.default_rng(0).random
        return [np.array([protected_level(float(x), config, draw) for x in row], float) for row in scores]

    shared = [exact_scores(row, "shared") for row in tables]
    ours = sketched[default.num_words]
    return {
        "by sketch size (exact scores)": [(f"{size:,}", *overlap(repeated, sketched[size], k)) for size in sketched],
        "by bits of the score (exact tables)": [
            (bits, *overlap(exact, protected(exact, score_bits=bits), k)) for bits in SCORE_BITS
        ],
        "by epsilon (exact tables)": [
            (epsilon, *overlap(repeated, protected(repeated, epsilon=epsilon), k)) for epsilon in EPSILONS
        ],
        "as configured by default": [
            ("masked", *overlap(repeated, protected(ours), k)),
            ("precise", *overlap(repeated, protected(sketched[2**20]), k)),
            ("none on shared pairs", *overlap(exact, shared, k)),
        ],
    }


def overlap(ours: list[Any], theirs: list[Any], k: int) -> tuple[float, float]:
    """Mean share of the K that both choose, and how often they choose the same K. Ties go to the lower place."""
    from fedpohcs.server.selection import top_k

    pairs = [
        (set(top_k(np.arange(len(a)), a, k).tolist()), set(top_k(np.arange(len(b)), b, k).tolist()))
        for a, b in zip(ours, theirs, strict=True)
    ]
    same = statistics.mean(a == b for a, b in pairs)
    return statistics.mean(len(a & b) / k for a, b in pairs), same


def masking_error(rounds: list[dict[int, Any]]) -> dict[str, float]:
    """Largest change of Delta_n (not divided by anything) by what the protocol does to a sketch."""
    from fedpohcs.privacy import homomorphic, masking
    from fedpohcs.privacy.sketch import FixedPoint, count_sketch, relative_metric

    worst = {"masked": 0.0, "he": 0.0}
    largest = {"masked": masking.LARGEST, "he": homomorphic.LARGEST}
    for tables in rounds:
        sketches = [count_sketch(table, 1, 16_368) for table in tables.values()]
        mean = np.mean(sketches, axis=0)
        for name in worst:
            fixed = FixedPoint(128.0, largest[name])
            total = fixed.decode(np.sum([fixed.encode(sketch, 1 / len(sketches)) for sketch in sketches], axis=0))
            for sketch in sketches:
                before = relative_metric(mean, sketch) * float(np.sqrt(np.sum(mean**2)))
                after = relative_metric(total, sketch) * float(np.sqrt(np.sum(total**2)))
                worst[name] = max(worst[name], abs(after - before))
    return worst


class Stored:
    """An executor whose clients have measured before."""

    def __init__(self, rounds: list[dict[int, Any]], num_clients: int) -> None:
        from fedpohcs.server.protocols import MostSteps

        self.rounds, self.num_clients, self.number = rounds, num_clients, 0
        self.most_steps = MostSteps(0, 0)  # nobody plays

    def measure(self, params: Any, number: int, clients: Any, names: Any) -> Any:
        from fedpohcs.core.types import CandidateMetrics

        tables = tuple(self.rounds[self.number][client] for client in clients.tolist())
        return CandidateMetrics(clients, {"weighted_advantage": tables})


def measure_costs(arguments: Any, rounds: list[dict[int, Any]]) -> dict[str, dict[str, float]]:
    k = config_of(arguments).federation.num_selected
    samples: dict[str, list[tuple[float, float, float]]] = {}
    for phases in PHASES:
        name = f"plain, {phases}"
        samples[name] = [plain_cost(list(t.values())[: k if phases == "one-phase" else None]) for t in rounds]
        for mode, release in (("masked", "ids"), ("masked", "scores"), ("he", "ids"), ("he", "scores")):
            if (phases == "one-phase") == (release == "scores"):
                samples[f"{mode}, {phases}"] = private_costs(arguments, rounds, mode, release)
    samples["masked, two-phase, scores"] = private_costs(arguments, rounds, "masked", "scores", one_phase=False)
    names = ("CPU ms", "bytes up", "bytes down")
    return {
        name: {key: statistics.median(column) for key, column in zip(names, zip(*rows, strict=True), strict=True)}
        for name, rows in samples.items()
        if rows
    }


def private_costs(
    arguments: Any, rounds: list[dict[int, Any]], mode: str, release: str, *, one_phase: bool | None = None
) -> list[tuple[float, float, float]]:
    """Of each round: the cohorts are the candidates whose tables were recorded, or the first K of them."""
    from fedpohcs.execution.private import PrivateExecutor

    config = config_of(arguments)
    n, k = config.federation.num_clients, config.federation.num_selected
    one_phase = release == "scores" if one_phase is None else one_phase
    protection = dataclasses.replace(config.protection, min_cohort=3, release=release)
    selector = "fedpohcs-one-phase" if one_phase else "fedpohcs"
    config = dataclasses.replace(config, privacy=mode, protection=protection, selector=selector)
    executor = PrivateExecutor(Stored(rounds, n), config)
    executor.cohorts.open_session(0)
    for tables in rounds:  # two clients agree on their key when they first meet, which is not counted
        for client, other in itertools.permutations(tables, 2):
            executor.wire.clients[client]._pair_key(other)
    samples = []
    for number, tables in enumerate(rounds):
        executor.within.number = number
        clients = np.array(sorted(tables)[: k if one_phase else None])
        start = time.process_time()
        costs = executor.measure({}, number, clients, {"weighted_advantage"}).costs
        seconds = time.process_time() - start
        samples.append((1000 * seconds, costs["upload_bytes"].mean(), costs["download_bytes"].mean()))
    return samples


def measure_session(num_clients: int) -> float:
    """CPU seconds of all clients and the server to open a session."""
    from fedpohcs.core.presets import preset
    from fedpohcs.execution.private import PrivateExecutor

    config = preset("tabular")
    federation = dataclasses.replace(config.federation, num_clients=num_clients, num_candidates=100, num_selected=20)
    config = dataclasses.replace(config, privacy="masked", federation=federation)
    executor = PrivateExecutor(Stored([], num_clients), config)
    start = time.process_time()
    executor.cohorts.open_session(0)
    seconds = time.process_time() - start
    assert len(executor.server.ready) == num_clients
    return seconds


PHASES = ("two-phase", "one-phase")


def plain_cost(tables: list[Any]) -> tuple[float, float, float]:
    """Of the server's work on tables it received."""
    from fedpohcs.metrics import selection_metric, stack_tables

    start = time.process_time()
    selection_metric(stack_tables(tables), np.ones(len(tables)))
    seconds = time.process_time() - start
    return 1000 * seconds, statistics.mean(t.pair.nbytes + t.value.nbytes for t in tables), 0.0


if __name__ == "__main__":
    main()
