"""What a Byzantine client gains, what defences take back, and what they cost where all clients are honest.

Measured:

- selection: how often a client that multiplies its table, or claims the largest score, is selected, without and with
  the clip of tables, the cap on selections, and both; and how much of the honest choice is kept. The tables are those
  that the candidates of a training run really made (fedpohcs, Mountain Cars, seed 0); every third client in turn is
  Byzantine in every round in which it is a candidate, and the selections of the whole run are made again.
- scores: how often a client is selected that claims the largest score in masked selection, or sends a table x100, in
  whole runs of 60 rounds, without and with defences; and the mean return of defended runs of honest clients. Seed 0.
- updates: mean return over the last ten of 60 rounds, with one Byzantine update among the K = 6 of every round, by
  aggregator and kind of attack; seeds 0 and 1 for parameter-mean and trimmed-mean, seed 0 for the others.

How: `--tables FILE` reads recorded tables, or writes them where there is no such file. Runs go into `--out`; those that
are complete are kept.

Goals: a table x100 gets <= 1.2 times its fair share of selections, a forged score <= 2 times; >= .93 of the honest
choice is kept; with trimmed-mean a run with one Byzantine update keeps >= 90 % of the return without (parameter-mean).
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _common import Figure, Goal, argument_parser, benchmark_config, machine_facts, print_table, write_results

from privacy import recorded

SCALES = {"honest": 1.0, "x2": 2.0, "x5": 5.0, "x10": 10.0, "x100": 100.0, "score": math.inf}
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "clip 2": {"table_clip": 2.0},
    "clip 1.5": {"table_clip": 1.5},
    "clip 1.25": {"table_clip": 1.25},
    "clip 1": {"table_clip": 1.0},
    "cap 5 of 20": {"max_selections": 5},
    "cap 4 of 20": {"max_selections": 4},
    "cap 3 of 20": {"max_selections": 3},
    "clip 1.5, cap 4 of 20": {"table_clip": 1.5, "max_selections": 4},
    "clip 1, cap 3 of 20": {"table_clip": 1.0, "max_selections": 3},
}
AGGREGATORS = {
    "parameter-mean": 2,
    "trimmed-mean": 2,
    "coordinate-median": 1,
    "phocas": 1,
    "multi-krum": 1,
    "norm-clip": 1,
}
"""Seeds of each."""
ATTACKS = ("flipped-update", "noisy-update", "zero-update", "nan-update")
BYZANTINE = 30  # in the middle of sixty cars


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", type=Path, help="recorded tables, written if missing")
    parser.add_argument("--out", type=Path, default=Path("runs/attacks"))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--kept", action="store_true", help="train nothing: report the runs that are complete")
    parser.add_argument("--only", choices=tuple(PARTS), help="measure and store one part alone")
    arguments = parser.parse_args()
    arguments.preset = "mountain-cars"  # for the recording
    for name, measure in PARTS.items():
        if arguments.only in (None, name):
            facts = machine_facts()
            samples, figures = measure(arguments)
            write_results(f"attacks-{name}", facts, figures, samples, quick=arguments.quick)


def measure_selection(arguments: Any) -> tuple[Any, list[Figure]]:
    """Selections of a run made again from its tables, with one Byzantine client at a time."""
    rounds, _, _ = recorded(arguments)
    federation = benchmark_config(quick=arguments.quick).federation
    k, n = federation.num_selected, federation.num_clients
    choose = chooser(rounds, federation)
    plain = choices(choose, rounds, {}, None, 1.0)
    byzantine = range(0, n, 3)
    asked = {client: [number for number, tables in enumerate(rounds) if client in tables] for client in byzantine}
    cells: dict[str, Any] = {}
    for name, defence in DEFENCES.items():
        honest = choices(choose, rounds, defence, None, 1.0)
        cells[name] = {"kept without a liar": overlap(honest, plain, k)}
        for attack, scale in SCALES.items():
            runs = {client: choices(choose, rounds, defence, client, scale) for client in byzantine}
            times = sum(client in runs[client][number] for client in byzantine for number in asked[client])
            pairs = [(runs[client][number], plain[number]) for client in byzantine for number in asked[client]]
            cells[name][attack] = {
                "of candidacies": times / len(pairs),
                "times the fair share": times / (len(byzantine) * len(rounds)) * n / k,
                "kept": overlap(*zip(*pairs, strict=True), k),
            }
    rows = [
        (
            name,
            cell["kept without a liar"],
            cell["x100"]["kept"],
            *(cell[attack]["times the fair share"] for attack in SCALES),
        )
        for name, cell in cells.items()
    ]
    titles = ("defence", "kept, all honest", "kept, x100", *SCALES)
    print_table(f"selections of a Byzantine client, times the fair share, {k / n:.2f} of the rounds", titles, rows)
    return cells, list(selection_figures(cells))


def selection_figures(cells: dict[str, Any]) -> Iterator[Figure]:
    share = "times the fair share"
    yield Figure("table x100, no defence, times the fair share", cells["none"]["x100"][share], "")
    for name in ("clip 1.5", "clip 1", "cap 4 of 20", "clip 1.5, cap 4 of 20"):
        yield Figure(f"table x100, {name}, times the fair share", cells[name]["x100"][share], "", Goal("<=", 1.2, ""))
        kept = cells[name]["kept without a liar"]
        yield Figure(f"honest choice kept by {name}", kept, "", Goal(">=", 0.93, ""))
    yield Figure("lying score, cap, times the fair share", cells["cap 4 of 20"]["score"][share], "", Goal("<=", 2, ""))


Choose = Callable[[int, frozenset[int], float | None, int | None, float], frozenset[int]]


def chooser(rounds: list[dict[int, Any]], federation: Any) -> Choose:
    """Whom fedpohcs chooses of the candidates of a round; each answer is computed once."""
    from fedpohcs.core.types import CandidateMetrics
    from fedpohcs.execution.attacked import AttackContext, inflated_table
    from fedpohcs.server.selection import Question, make_selector, top_k

    weight = np.full(federation.num_clients, 1 / federation.num_clients)
    select, known = make_selector("fedpohcs").select, {}

    def choose(
        number: int, left: frozenset[int], clip: float | None, byzantine: int | None, scale: float
    ) -> frozenset[int]:
        key = number, left, clip, *((byzantine, scale) if byzantine in left and scale != 1 else ())
        if key not in known:
            clients = np.array(sorted(left))
            tables = {client: rounds[number][client] for client in clients.tolist()}
            generator = np.random.default_rng(0)
            if byzantine in tables and math.isfinite(scale):
                tables[byzantine] = inflated_table(tables[byzantine], AttackContext(scale, generator))
            k = min(federation.num_selected, len(clients))
            question = Question(clients, k, len(weight), weight, generator, federation.compared_pairs, clip)
            metrics = CandidateMetrics(clients, {"weighted_advantage": tuple(tables.values())})
            selection, _ = select(question, metrics, None)
            chosen, score = selection.client, selection.scores["selection_metric"]
            if byzantine in tables and math.isinf(scale):
                chosen = top_k(clients, np.where(clients == byzantine, np.inf, score), k)
            known[key] = frozenset(chosen.tolist())
        return known[key]

    return choose


def choices(
    choose: Choose, rounds: list[dict[int, Any]], defence: dict[str, Any], byzantine: int | None, scale: float
) -> list[frozenset[int]]:
    """Who is selected in each round, the cap counting what was selected before."""
    from fedpohcs.core.config import DefenceConfig
    from fedpohcs.server.defences import defended, remember
    from fedpohcs.server.selection import Question

    settings, recent, selected = DefenceConfig(**defence), (), []
    for number, tables in enumerate(rounds):
        sampled = Question(np.array(sorted(tables)), len(tables), 0, np.zeros(0), np.random.default_rng(0))
        question, _ = defended(sampled, recent, settings)
        left = frozenset(question.candidates.tolist())
        selected.append(choose(number, left, settings.table_clip, byzantine, scale))
        recent = remember(recent, np.array(sorted(selected[-1])), settings)
    return selected


def overlap(ours: Sequence[frozenset[int]], theirs: Sequence[frozenset[int]], k: int) -> float:
    return statistics.fmean(len(a & b) / k for a, b in zip(ours, theirs, strict=True))


def measure_scores(arguments: Any) -> tuple[Any, list[Figure]]:
    """Whole runs with a client that is Byzantine in phase one."""
    from fedpohcs.core.config import AttackConfig, DefenceConfig, ProtectionConfig

    byzantine = 2 if arguments.quick else BYZANTINE
    score, table = AttackConfig("lying-score", (byzantine,)), AttackConfig("inflated-table", (byzantine,), 100.0)
    cap = DefenceConfig(max_selections=18 if arguments.quick else 4)
    masked = {"privacy": "masked", "protection": ProtectionConfig(release="scores")}
    ways: dict[str, dict[str, Any]] = {
        "lying score, masked": {**masked, "attack": score},
        "lying score, masked, cap 4 of 20": {**masked, "attack": score, "defence": cap},
        "table x100": {"attack": table},
        "table x100, clip 1.5, cap 4 of 20": {"attack": table, "defence": dataclasses.replace(cap, table_clip=1.5)},
        "honest": {},
        "honest, clip 1.5": {"defence": DefenceConfig(table_clip=1.5)},
        "honest, clip 1": {"defence": DefenceConfig(table_clip=1.0)},
        "honest, cap 4 of 20": {"defence": cap},
    }
    cells = {}
    for name, changes in ways.items():
        runs = whole_runs(arguments, name.replace(",", "").replace(" ", "-"), 1, changes)
        if not runs:
            continue
        fair = runs[0].config.federation.num_selected / runs[0].config.federation.num_clients
        shares = [float(run.times_selected[byzantine]) / run.config.rounds for run in runs]
        cells[name] = {"of rounds": shares, "times the fair share": statistics.fmean(shares) / fair} | returns(runs)
    rows = [(name, cell["times the fair share"], statistics.fmean(cell["last ten"])) for name, cell in cells.items()]
    print_table("one Byzantine client in phase one, whole runs", ("", "times the fair share", "mean return"), rows)
    claims = [
        Figure(
            f"{name}, times the fair share",
            cell["times the fair share"],
            "",
            Goal("<=", 2, "") if "cap" in name else None,
        )
        for name, cell in cells.items()
        if "score" in name
    ]
    return cells, claims


def measure_updates(arguments: Any) -> tuple[Any, list[Figure]]:
    """Whole runs with one Byzantine update per round."""
    from fedpohcs.core.config import AttackConfig

    attacks = {"none": AttackConfig(), **{kind: AttackConfig(kind, "one-selected") for kind in ATTACKS}}
    cells: dict[str, dict[str, Any]] = {}
    for name, seeds in AGGREGATORS.items():
        cells[name] = {}
        for kind, attack in attacks.items():
            runs = whole_runs(arguments, f"{name}-{kind}", seeds, {"attack": attack, "aggregator": name})
            cells[name] |= {kind: returns(runs)} if runs else {}
    rows = [
        (name, *(statistics.fmean(cell[kind]["last ten"]) if kind in cell else "-" for kind in attacks))
        for name, cell in cells.items()
    ]
    print_table("mean return, last ten rounds, by attack", ("aggregator", *attacks), rows)
    free = cells["parameter-mean"]["none"]["last ten"]
    figures = [Figure("parameter-mean without a lie", statistics.fmean(free), "mean return")]
    for kind in [kind for kind in ATTACKS if kind in cells["trimmed-mean"]]:
        attacked = cells["trimmed-mean"][kind]["last ten"]  # by seed; what is not there yet is compared with nothing
        kept = 100 * sum(attacked) / sum(free[: len(attacked)])
        figures.append(Figure(f"trimmed-mean with {kind}, of the return without", kept, "%", Goal(">=", 90, "%")))
    return cells, figures


def whole_runs(arguments: Any, name: str, seeds: int, changes: dict[str, Any]) -> list[Any]:
    """The runs of seeds 0, 1, ..., trained now unless they are there."""
    from fedpohcs.cli.grid import complete_run
    from fedpohcs.runs.loading import load_run

    runs = []
    for seed in range(seeds):
        folder = arguments.out / ("quick" if arguments.quick else "") / name / f"seed-{seed}"
        if not arguments.kept and not is_complete(folder):
            complete_run(folder, config_of(arguments, seed, **changes))
        if is_complete(folder):
            runs.append(load_run(folder))
    return runs


def is_complete(folder: Path) -> bool:
    from fedpohcs.cli.grid import read_progress
    from fedpohcs.runs.layout import is_run
    from fedpohcs.runs.loading import read_config

    return is_run(folder) and read_progress(folder).round == read_config(folder).rounds


def config_of(arguments: Any, seed: int, aggregator: str = "parameter-mean", **changes: Any) -> Any:
    config = benchmark_config(quick=arguments.quick)
    k = 6 if arguments.quick else config.federation.num_selected  # krum needs five
    sizes = {"num_selected": k, "num_candidates": max(k, config.federation.num_candidates)}
    federation = dataclasses.replace(config.federation, aggregator=aggregator, **sizes)
    rounds = 3 if arguments.quick else arguments.rounds
    return dataclasses.replace(config, seed=seed, rounds=rounds, federation=federation, **changes)


def returns(runs: list[Any]) -> dict[str, list[Any]]:
    return {
        "seeds": [run.config.seed for run in runs],
        "last ten": [float(run.rounds["mean_return"][-10:].mean()) for run in runs],
        "all rounds": [float(run.rounds["mean_return"].mean()) for run in runs],
    }


PARTS = {"selection": measure_selection, "scores": measure_scores, "updates": measure_updates}

if __name__ == "__main__":
    main()
