"""Whether a selector's choice is better than chance, one round ahead and from the same state.

Curves of whole runs mix what a selector does with what the rounds before have made of everybody. Here all selectors
stand where a stored run ended. Its next candidates are measured, and all of them train. Then the policies of each
selector's choice are averaged, and those of random choices of the same size, and every average is evaluated on all
clients, twice, with the same draws for all choices.

Measured, for each run given: the mean return before and after random choices; by how much each selector's choice is
above the mean of the random ones, and above which share of them; the rank correlation between a random choice's mean
score and its return; and that between the two evaluations, which says how much of the rest is noise.

    fedpohcs train hoppers --selector fedavg --rounds 10 --out runs/ten
    python benchmarks/choices.py runs/ten --random 10

Without a run it makes its own: 50 rounds of `fedavg` on Mountain Cars.
"""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import RESULTS, argument_parser, benchmark_config, machine_facts, print_table

SCORES = {
    "fedpohcs": "selection_metric",
    "power-of-choice": "loss",
    "gradient-norm": "gradient_norm",
    "heterogeneity-only": "similarity",
    "potential-only": "learning_potential",
}
NUM_EVALUATIONS = 2
OTHER_DRAWS = 10_000  # rounds that no run gets to: episodes played under these numbers are not those of the choices


class Outlook(NamedTuple):
    """What became of one state. A choice is a sorted list of client ids; returns are [choice, evaluation]."""

    run: str
    round: int
    before: float
    candidates: list[int]
    scores: dict[str, list[float]]  # by selector, of every candidate
    chosen: dict[str, list[int]]  # by selector
    chosen_returns: dict[str, list[float]]
    random: list[list[int]]
    random_returns: list[list[float]]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders, each with a checkpoint at its end")
    parser.add_argument("--random", type=int, default=100, help="random choices")
    parser.add_argument("--name", default="choices", help="of the file in benchmarks/results")
    arguments = parser.parse_args()
    facts = machine_facts()
    outlooks = []
    for run in arguments.runs or [made_run(arguments.quick)]:
        outlooks.append(look_ahead(run, 3 if arguments.quick else arguments.random))
        show(outlooks[-1])
    name = f"{arguments.name}{'-quick' if arguments.quick else ''}.json"
    content = {"benchmark": arguments.name, "quick": arguments.quick, "machine": facts}
    content["states"] = [outlook._asdict() for outlook in outlooks]
    (RESULTS / name).write_text(json.dumps(content) + "\n")


def made_run(quick: bool) -> Path:
    """A run of Mountain Cars in a folder of its own."""
    from fedpohcs import run_experiment

    folder = Path(tempfile.mkdtemp()) / "fedavg"
    config = dataclasses.replace(benchmark_config("fedavg", quick=quick), rounds=2 if quick else 50)
    run_experiment(config, folder, keep_records=False)
    return folder


def name_of(run: Path) -> str:
    """How the results call a run."""
    return "/".join(run.parts[-3:])


def look_ahead(run: Path, num_random: int) -> Outlook:
    """Try every selector's choice, and random ones, from where the run ended."""
    from fedpohcs.server.round import ask_question
    from fedpohcs.server.selection import make_selector

    executor, server = restored(run)
    config = executor.config
    before = record_episodes(executor, server)
    question = ask_question(server.round, make_selector("fedavg"), config.federation, config.seed)
    names = frozenset({"mean_return", "gradient_norm", "weighted_advantage"})
    metrics = executor.measure(server.params, server.round, question.candidates, names)
    selections = {name: make_selector(name).select(question, metrics, None)[0] for name in SCORES}
    k, generator = question.num_selected, np.random.default_rng(0)
    random = [np.sort(generator.choice(question.candidates, k, replace=False)) for _ in range(num_random)]
    returns = returns_of(executor, server, [*(s.client for s in selections.values()), *random], question.candidates)
    executor.close()
    return Outlook(
        name_of(run),
        server.round,
        before,
        question.candidates.tolist(),
        {name: selections[name].scores[score].tolist() for name, score in SCORES.items()},
        {name: selection.client.tolist() for name, selection in selections.items()},
        dict(zip(SCORES, returns, strict=False)),
        [choice.tolist() for choice in random],
        returns[len(SCORES) :],
    )


def restored(run: Path) -> tuple[Any, Any]:
    """Clients that record episodes, and the server, as the run left them."""
    from fedpohcs.execution import configure_jax, make_executor
    from fedpohcs.runs.checkpoints import latest_checkpoint
    from fedpohcs.runs.folder import RunFolder

    with RunFolder.reopen(run, None) as folder:
        config, last_round = folder.config, folder.last_round()
    configure_jax(config.groups)
    import fedpohcs.execution.clients  # noqa: F401  a type that a checkpoint names must have been loaded

    checkpoint = latest_checkpoint(run, config, last_round)
    if checkpoint is None:
        raise SystemExit(f"{run} has no checkpoint.")
    return make_executor(config, snapshot=checkpoint.state.clients), checkpoint.state.server


def record_episodes(executor: Any, server: Any, first: int = OTHER_DRAWS) -> float:
    """Play what measuring looks back on, which a run of another selector has not kept; the mean return.

    Its draws are those of the rounds from `first` on.
    """
    state, everyone = executor.state, np.arange(executor.num_clients)
    returns = [
        executor.evaluate(server.params, first + number, everyone).mean_return.mean()
        for number in range(executor.config.modelling.history_rounds)
    ]
    executor.store.put(executor.members, filters=state.filters, memory=state.memory)
    return float(np.mean(returns))


def returns_of(executor: Any, server: Any, choices: list[np.ndarray], candidates: np.ndarray) -> list[list[float]]:
    """Mean return of the policies that these choices would give, [choice][evaluation]."""
    from fedpohcs.core.trees import take_clients
    from fedpohcs.server.aggregation import aggregate
    from fedpohcs.server.round import client_weight, update_weight

    federation, everyone = executor.config.federation, np.arange(executor.num_clients)
    rested = executor.state
    updates = executor.train(server.params, server.round, candidates)
    trained = executor.state
    known: dict[bytes, list[float]] = {}
    for choice in choices:
        if choice.tobytes() in known:
            continue
        at = np.searchsorted(candidates, choice)
        chosen = updates._replace(
            client=choice, params=take_clients(updates.params, at), steps=updates.steps[at], info={}
        )
        weight = update_weight(chosen, client_weight(federation), federation)
        params = aggregate(server.params, chosen, weight, federation).params
        known[choice.tobytes()] = []
        for evaluation in range(NUM_EVALUATIONS):
            state = mixed(rested, trained, choice)  # only who was selected has trained
            executor.store.put(executor.members, **state._asdict())
            number = server.round + 1 + evaluation
            known[choice.tobytes()].append(float(executor.evaluate(params, number, everyone).mean_return.mean()))
    return [known[choice.tobytes()] for choice in choices]


def mixed(rested: Any, trained: Any, choice: np.ndarray) -> Any:
    """What the clients keep, after only these have trained."""
    import jax

    def mix(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        result = old.copy()
        result[choice] = new[choice]
        return result

    return jax.tree.map(mix, rested, trained)


def rank_correlation(one: Any, other: Any) -> float:
    """Spearman's."""
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])


def score_and_return(outlook: Outlook, scores: Any) -> float:
    """Rank correlation of a random choice's mean score with its return; `scores`: of every candidate."""
    score = dict(zip(outlook.candidates, scores, strict=True))
    of_choices = [np.mean([score[client] for client in choice]) for choice in outlook.random]
    return rank_correlation(of_choices, np.mean(outlook.random_returns, axis=1))


def show(outlook: Outlook) -> None:
    returns = np.array(outlook.random_returns)
    mean = returns.mean(axis=1)
    rows = []
    for name in SCORES:
        own = np.mean(outlook.chosen_returns[name])
        correlation = score_and_return(outlook, outlook.scores[name])
        rows.append((name, float(own - mean.mean()), f"{(own > mean).mean():.0%}", correlation))
    again = rank_correlation(*returns.T)
    title = (
        f"{outlook.run} after round {outlook.round}: {outlook.before:.1f} before, "
        f"{mean.mean():.1f} +- {mean.std():.1f} after random choices; correlation of two evaluations {again:.2f}"
    )
    columns = ("selector", "above the random mean", "better than", "correlation of score and return")
    print_table(title, columns, rows)


if __name__ == "__main__":
    main()
