"""What averaging aims at: who is drawn, how updates are weighed, and server momentum, each varied on its own.

A method is named DRAW/WEIGHT[/SERVER][/unit][/LEARNER]:
- DRAW: `random`, `full` (everyone trains), `top-SCORE` or `draw-SCORE` (in proportion to it);
- WEIGHT of an update: `steps`, `equal`, `ratio` (score by inclusion probability), `unbiased` (length-sigma by inclusion
  probability), or a SCORE;
- SERVER: `mX` is momentum X on the policy alone, `aX` momentum X on policy and critic, `rX` a server learning rate;
- `unit` gives all changes of the policy one length, their mean, before they are averaged;
- LEARNER: `common` divides advantages by one scale for all clients, `common-length` also undoes the episode length.
SCORE is `potential` (the norm of D_n A_n), `length-potential`, `sigma`, `length-sigma` (the metric gradient_scale),
`own-potential`, the norm over all pairs of a client, or `gradient` and
`mean-gradient`, the norm of the gradient of the mean return over minibatches of 512 or over up to 2048 steps.

Results are one JSON file per run in --out; runs that are there are not run again. `--collect` adds them to the stored
table instead of training:

    python benchmarks/averaging.py --levels high --seeds 0,1 --methods full/steps,full/length-sigma --selected 60
    python benchmarks/averaging.py --collect

See docs/what-averaging-aims-at.md.
"""

import csv
import json
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from _common import argument_parser

from fedpohcs import AGGREGATORS, LEARNERS, SELECTORS, ExperimentConfig, PPOConfig, preset, run_experiment
from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.types import CandidateMetrics, Selection, Vector
from fedpohcs.server.aggregation import Aggregator, Combination, SoundUpdates
from fedpohcs.server.aggregation.mean import weighted_mean
from fedpohcs.server.parts import from_vector, rows_of, vector_of
from fedpohcs.server.selection.base import Question, Selector, choose, choose_at_random
from fedpohcs.server.selection.fedpohcs import heterogeneity_scores
from fedpohcs.server.selection.sampling import draw, inclusion_probabilities

STUDY = Path(__file__).resolve().parent.parent / "docs" / "data" / "averaging-study.csv"
KEYS = ("world", "level", "seed", "method", "k", "candidates", "rounds")
WINDOWS = ("mean_0_100", "mean_91_100", "worst_91_100", "worst_tenth_91_100")
Score = Callable[[Question, CandidateMetrics], Vector]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--world", default="mountain-cars")
    parser.add_argument("--levels", default="medium,high")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default="random/steps,draw-mean-gradient/ratio/m0.5")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--selected", type=int, help="K, and d at least as large")
    parser.add_argument("--candidates", type=int, help="d")
    parser.add_argument("--episodes", type=int, help="evaluation episodes")
    parser.add_argument("--out", type=Path, default=Path("runs/averaging"))
    parser.add_argument("--collect", action="store_true", help="add the runs of --out to the stored table")
    arguments = parser.parse_args()
    if arguments.collect:
        return collect(arguments.out)
    for seed in map(int, arguments.seeds.split(",")):
        for level in arguments.levels.split(","):
            for method in arguments.methods.split(","):
                config = configured(arguments.world, level, seed, method, 3 if arguments.quick else arguments.rounds)
                run(with_sizes(config, arguments), method, arguments.out)


def with_sizes(config: ExperimentConfig, arguments: Namespace) -> ExperimentConfig:
    """With the numbers of candidates, of selected clients and of evaluation episodes that were asked for."""
    federation = config.federation
    selected = arguments.selected or federation.num_selected
    candidates = arguments.candidates or max(federation.num_candidates, selected)
    episodes = arguments.episodes or federation.evaluation_episodes
    sizes = {"num_selected": selected, "num_candidates": candidates, "evaluation_episodes": episodes}
    return replace(config, federation=replace(federation, **sizes))


def collect(out: Path) -> None:
    """Add the results of a folder to the stored table, in the order of their keys."""
    with STUDY.open(newline="") as file:
        rows = {tuple(row[key] for key in KEYS): row for row in csv.DictReader(file)}
    for path in out.glob("*.json"):
        row = row_of(json.loads(path.read_text()))
        rows[tuple(row[key] for key in KEYS)] = row
    with STUDY.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*KEYS, *WINDOWS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))
    print(f"{len(rows)} runs in {STUDY}")


def row_of(result: dict[str, Any]) -> dict[str, str]:
    """The means of one run, as they are stored."""
    values = {name: np.array(result[name]) for name in ("mean", "worst", "tenth")}
    windows = (values["mean"][:101], *(values[name][91:101] for name in values))
    means = {name: f"{np.mean(window):.2f}" for name, window in zip(WINDOWS, windows, strict=True)}
    return {key: str(result[key]) for key in KEYS if key != "rounds"} | {"rounds": str(len(result["mean"]) - 1)} | means


def run(config: ExperimentConfig, method: str, out: Path) -> None:
    """One run, unless its result is there."""
    k, candidates = config.federation.num_selected, config.federation.num_candidates
    setting = f"{config.world}-{config.level}-{config.seed}-{method.replace('/', '+')}"
    path = out / f"{setting}-{config.rounds}-k{k}-d{candidates}.json"
    if path.exists():
        return
    start = time.perf_counter()
    history = run_experiment(config)
    returns = [r.evaluation.mean_return for r in history.records]
    chosen = [r.selection.client.tolist() for r in history.records]
    result = {
        "world": config.world,
        "level": config.level,
        "seed": config.seed,
        "method": method,
        "k": k,
        "candidates": candidates,
        "mean": [float(np.mean(x)) for x in returns],
        "worst": [float(np.min(x)) for x in returns],
        "tenth": [float(np.mean(np.sort(x)[: max(1, len(x) // 10)])) for x in returns],
        "chosen": chosen,
    }
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    mean = np.array(result["mean"])
    print(
        f"{config.level:7s} s{config.seed} {method:40s} k{k} 0-{config.rounds}: {mean.mean():7.1f}  last 10: "
        f"{mean[-10:].mean():7.1f}  worst: {np.mean(result['worst'][-10:]):7.1f}  {time.perf_counter() - start:.0f} s",
        flush=True,
    )


def configured(world: str, level: str, seed: int, method: str, rounds: int) -> ExperimentConfig:
    """The preset with a method."""
    drawn, weight, *rest = method.split("/")
    SELECTORS[method] = lambda: make(drawn, weight)
    config = replace(preset(world, level=level), selector=method, seed=seed, rounds=rounds)
    for part in rest:
        if part.startswith("common"):
            settings = {f.name: getattr(config.learner, f.name) for f in fields(PPOConfig) if f.name != "kind"}
            config = replace(config, learner=CommonConfig(**settings, undo_length=part == "common-length"))
        elif part == "unit":
            config = replace(config, federation=replace(config.federation, aggregator="equal-lengths"))
        else:
            config = with_server(config, part[0], float(part[1:]))
    return config


def with_server(config: ExperimentConfig, kind: str, value: float) -> ExperimentConfig:
    """With a server optimiser."""
    settings = {
        "m": {"momentum": value, "parts": ("policy",)},
        "a": {"momentum": value},
        "r": {"momentum": 0.0, "learning_rate": value, "parts": ("policy",)},
    }[kind]
    federation = replace(config.federation, server_optimiser="momentum")
    return replace(config, federation=federation, server_optimiser=ServerOptimiserConfig(**settings))


def equal_lengths(updates: SoundUpdates) -> Combination:
    """The weighted mean of updates whose changes of the policy have all been given their mean length."""
    change = rows_of(updates.params.policy) - vector_of(updates.previous.policy)
    length = np.maximum(np.linalg.norm(change, axis=1), 1e-12)
    mean = weighted_mean(updates.params, updates.weight)
    step = updates.weight @ (change * ((updates.weight @ length) / length)[:, None])
    policy = from_vector(vector_of(updates.previous.policy) + step, mean.policy)
    return Combination(mean._replace(policy=policy))


AGGREGATORS["equal-lengths"] = Aggregator(equal_lengths)


def potential(question: Question, metrics: CandidateMetrics) -> Vector:
    tables = metrics.column("weighted_advantage")
    return heterogeneity_scores(question, metrics.client, tables)["learning_potential"]


def own_potential(question: Question, metrics: CandidateMetrics) -> Vector:
    return np.array([np.linalg.norm(table.value) for table in metrics.column("weighted_advantage")])


def length(question: Question, metrics: CandidateMetrics) -> Vector:
    return metrics.column("episode_length")


def length_sigma(question: Question, metrics: CandidateMetrics) -> Vector:
    return metrics.column("gradient_scale")


SCORES: dict[str, tuple[frozenset[str], Score]] = {
    "potential": (frozenset({"weighted_advantage"}), potential),
    "own-potential": (frozenset({"weighted_advantage"}), own_potential),
    "length-potential": (
        frozenset({"weighted_advantage", "episode_length"}),
        lambda q, m: length(q, m) * potential(q, m),
    ),
    "length-own-potential": (
        frozenset({"weighted_advantage", "episode_length"}),
        lambda q, m: length(q, m) * own_potential(q, m),
    ),
    "sigma": (
        frozenset({"gradient_scale", "episode_length"}),
        lambda q, m: length_sigma(q, m) / length(q, m),
    ),
    "gradient": (
        frozenset({"gradient_scale", "gradient_norm"}),
        lambda q, m: length_sigma(q, m) * m.column("gradient_norm"),
    ),
    "mean-gradient": (
        frozenset({"gradient_scale", "policy_gradient"}),
        lambda q, m: length_sigma(q, m) * np.linalg.norm(m.column("policy_gradient"), axis=1),
    ),
    "length-sigma": (frozenset({"gradient_scale"}), length_sigma),
}


def make(drawn: str, weight: str) -> Selector:
    """The selector of a method."""
    kind, _, by = drawn.partition("-")
    names = {name for name in (by, "length-sigma" if weight == "unbiased" else weight) if name in SCORES}
    requires = frozenset().union(*(SCORES[name][0] for name in names))

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        clients = metrics.client if requires else question.candidates
        score = SCORES[by][1](question, metrics) if by else np.ones(len(clients))
        probability = inclusion_probabilities(score, question.num_selected)
        if kind == "draw":
            chosen = clients[draw(probability, question.generator)]
        elif kind == "top":
            chosen = choose(question, clients, score)
        else:
            chosen = choose_at_random(question, clients)
        place = np.searchsorted(clients, chosen)
        if weight == "steps":
            return Selection(chosen), state
        if weight == "equal":
            return Selection(chosen, weight=np.ones(len(chosen))), state
        if weight == "ratio":
            ratio = score / probability
        elif weight == "unbiased":
            ratio = length_sigma(question, metrics) / probability
        else:
            ratio = SCORES[weight][1](question, metrics)
        return Selection(chosen, weight=ratio[place] / ratio[place].sum()), state

    asks = {} if requires else {"asks": lambda question, state: question.candidates[:0]}
    return Selector(select, requires=requires, everyone=kind == "full", **asks)


@dataclass(frozen=True)
class CommonConfig(PPOConfig):
    """PPO that divides advantages by one scale for all clients, which is averaged like the KL coefficient."""

    algorithm: ClassVar[str] = "averaging:CommonPPO"
    kind: str = "ppo-common"
    undo_length: bool = False


LEARNERS["ppo-common"] = "averaging:CommonConfig"


class CommonParams(NamedTuple):
    """As `AgentParams`, with the scale."""

    policy: Any
    critic: Any
    kl_coefficient: Any
    scale: Any  # 0 before anybody has trained

    controls = ("kl_coefficient", "scale")


def _common_ppo() -> type:
    import jax.numpy as jnp

    from fedpohcs.learners.base import IterationResult, Progress
    from fedpohcs.learners.networks import AgentParams
    from fedpohcs.learners.ppo import PPO, advantages, make_batch, masked_mean, update

    class CommonPPO(PPO):
        """PPO with a common scale."""

        def init_params(self, key: Any) -> Any:
            return CommonParams(*super().init_params(key), jnp.float32(0))

        def init_memory(self, params: Any) -> Any:
            return super().init_memory(AgentParams(*params[:3]))

        def learn(self, sent: Any, now: Any, trajectory: Any, draws: Any) -> Any:
            agent = AgentParams(*now.params[:3])
            batch = make_batch(self.config, agent, now.filters, trajectory, self.networks)
            advantage, _ = advantages(self.config, agent, now.filters, trajectory, self.networks)
            mean = masked_mean(advantage, trajectory.valid)
            own = jnp.sqrt(masked_mean((advantage - mean) ** 2, trajectory.valid)) * self.reward_scale(now.filters)
            if self.config.undo_length:
                own = own * trajectory.valid.sum() / jnp.maximum((trajectory.valid & trajectory.last).sum(), 1)
            common = jnp.where(sent.params.scale > 0, sent.params.scale, own)
            scaled = batch.samples._replace(advantage=batch.samples.advantage * own / common)
            batch = batch._replace(samples=scaled)
            params, memory, info = update(self.config, sent.schedule, agent, now.memory, batch, draws, self.networks)
            filters = self.observe(now.filters, trajectory)
            return IterationResult(Progress(CommonParams(*params, own), filters, memory), batch.valid.sum(), info)

    return CommonPPO


def __getattr__(name: str) -> Any:
    if name == "CommonPPO":
        globals()[name] = _common_ppo()
        return globals()[name]
    raise AttributeError(name)


if __name__ == "__main__":
    import sys

    sys.modules["averaging"] = sys.modules["__main__"]
    main()
