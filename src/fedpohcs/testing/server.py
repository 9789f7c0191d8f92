"""Checks of selectors, aggregators and server optimisers."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np

from fedpohcs.core.array_rules import ArrayRule
from fedpohcs.core.config import ExperimentConfig, FederationConfig, ServerOptimiserConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import AGGREGATORS
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import CandidateMetrics, ClientIds, ClientUpdates, Params, Selection, WeightedAdvantage
from fedpohcs.learners.networks import AgentParams, init_agent
from fedpohcs.metrics.base import find_metric
from fedpohcs.runs.checkpoints import Checkpoint, from_bytes, to_bytes
from fedpohcs.server.aggregation import aggregate
from fedpohcs.server.optimisers import Proposal, make_optimiser
from fedpohcs.server.optimisers.checks import arrays_to_send
from fedpohcs.server.parts import controls_of
from fedpohcs.server.selection import Question, make_selector
from fedpohcs.testing.equality import all_equal
from fedpohcs.worlds.base import DiscreteActions

NUM_CLIENTS = 12
NUM_QUESTIONS = 20
NUM_UPDATES = 9
TABLE_LENGTH = 20
ANY_LENGTH = 4  # of an array for which the rules allow any length
FAR = 1e6  # size of the numbers that a Byzantine client sends


def check_selector(name: str, *, seed: int = 0) -> None:
    """Check what a registered selector returns for made-up questions."""
    generator = np.random.default_rng(seed)
    for _ in range(NUM_QUESTIONS):
        count = int(generator.integers(2, NUM_CLIENTS + 1))
        candidates = generator.choice(NUM_CLIENTS, count, replace=False)
        k, draw = int(generator.integers(1, count + 1)), int(generator.integers(1000))
        selection = _selected(name, candidates, k, draw)
        _check_selection(name, selection, candidates, k)
        again = _selected(name, candidates, k, draw)
        _require(all_equal(selection, again), f"selector {name!r} must choose the same with the same seed")
        reversed_order = _selected(name, candidates[::-1].copy(), k, draw)
        rule = f"selector {name!r} must not depend on the order of the candidates"
        _require(set(selection.client.tolist()) == set(reversed_order.client.tolist()), rule)
        with_more = _selected(name, candidates, k, draw, more=True)
        _require(
            all_equal(selection, with_more), f"selector {name!r} must read the metrics that it requires, and no other"
        )


def _selected(name: str, candidates: ClientIds, k: int, seed: int, *, more: bool = False) -> Selection:
    """The choice of a new selector; `more` offers metrics that it does not require."""
    selector = make_selector(name)
    k = len(candidates) if selector.everyone else k
    weight = np.full(NUM_CLIENTS, 1 / NUM_CLIENTS)
    question = Question(candidates, k, NUM_CLIENTS, weight, np.random.default_rng(seed))
    state = selector.init()
    asked = selector.asks(question, state)
    strange = set(asked.tolist()) - set(range(NUM_CLIENTS))
    _require(not strange, f"selector {name!r} must ask clients that exist, not {sorted(strange)}")
    names = {*selector.requires, *(("mean_return", "gradient_norm", "weighted_advantage") if more else ())}
    selection, after = selector.select(question, made_up_metrics(asked, names), state)
    stored = from_bytes(to_bytes(Checkpoint(0, {}, after))).state
    _require(all_equal(stored, after), f"selector {name!r} must have a state that a checkpoint gives back as it was")
    return selection


def _check_selection(name: str, selection: Selection, candidates: ClientIds, k: int) -> None:
    at, chosen = f"selector {name!r}", selection.client.tolist()
    most = len(candidates) if make_selector(name).everyone else k
    _require(len(chosen) > 0, f"{at} must choose somebody")
    _require(len(chosen) <= most, f"{at} must choose at most K (={most}) clients, not {len(chosen)}")
    _require(len(set(chosen)) == len(chosen), f"{at} must choose different clients, not {chosen}")
    strangers = sorted(set(chosen) - set(candidates.tolist()))
    _require(not strangers, f"{at} must choose among the candidates; {strangers} are none")
    for score, values in selection.scores.items():
        rule = f"{at} must give one {score!r} per candidate"
        _require(np.shape(values) == np.shape(candidates), f"{rule}, not the shape {np.shape(values)}")
    for field in sorted({"probability", "weight"} & set(selection._fields)):
        _check_weights(f"{at} must give a {field}", getattr(selection, field), len(chosen))


def _check_weights(rule: str, values: Any, count: int) -> None:
    if values is not None:
        sound = np.shape(values) == (count,) and np.isfinite(values).all() and (np.asarray(values) >= 0).all()
        _require(bool(sound), f"{rule} for each chosen client, finite and not negative, not {values}")


def made_up_metrics(clients: ClientIds, names: set[str]) -> CandidateMetrics:
    """Made-up values that keep the rules of their metrics; a client always gets the same values."""
    config = preset("tabular")
    columns = {
        name: find_metric(name).join([_made_up_value(name, client, config) for client in clients.tolist()])
        for name in sorted(names)
    }
    return CandidateMetrics(clients, columns)


def _made_up_value(name: str, client: int, config: ExperimentConfig) -> Any:
    metric, generator = find_metric(name), np.random.default_rng([client, *name.encode()])
    if metric.hide == "table":
        return WeightedAdvantage(np.arange(TABLE_LENGTH, dtype=np.uint64), generator.normal(size=TABLE_LENGTH))
    rules = metric.rules(config, agent(0))
    return metric.unpack({part: _made_up_array(rule, generator) for part, rule in rules.items()})


def _made_up_array(rule: ArrayRule, generator: np.random.Generator) -> np.ndarray:
    shape = tuple(ANY_LENGTH if n is None else n for n in rule.shape)
    return generator.normal(size=shape).clip(rule.low, rule.high).astype(rule.dtype)


def agent(seed: int) -> AgentParams:
    """Parameters of a small tabular policy with its critic; all their numbers depend on the seed."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda x: (x + generator.uniform(0, 0.5, x.shape)).astype(x.dtype), _initial_agent())


@cache
def _initial_agent() -> AgentParams:
    return jax.tree.map(np.asarray, init_agent(jax.random.key(0), 4, DiscreteActions(3), (), kl_coefficient=1.0))


def check_aggregator(name: str) -> None:
    """Check what a registered aggregator makes of made-up updates of a tabular policy."""
    at, rows = f"aggregator {name!r}", [agent(number) for number in range(1, NUM_UPDATES + 1)]
    previous, merged = agent(0), _aggregated(name, rows)
    _check_like(at, merged, previous)
    order = np.random.default_rng(0).permutation(NUM_UPDATES)
    shuffled = _aggregated(name, [rows[row] for row in order])
    _require(_close(merged, shuffled), f"{at} must not depend on the order of the updates")
    _require(_close(merged, _aggregated(name, rows)), f"{at} must give the same for the same updates")
    equal = _aggregated(name, rows[:1] * NUM_UPDATES)
    _require(_close(_behaviour(equal), _behaviour(rows[0])), f"{at} must make equal updates the new policy")
    _check_least(name, rows)
    if AGGREGATORS[name].least(1) > 1:
        _check_bounded(name, rows)


def _merge(name: str, rows: list[Params], byzantine: int = 1) -> Any:
    stacked = jax.tree.map(lambda *one: np.stack(one), *rows)
    updates = ClientUpdates(np.arange(len(rows)), stacked, np.full(len(rows), 10))
    federation = FederationConfig(aggregator=name, tolerated_liars=byzantine)
    return aggregate(agent(0), updates, np.full(len(rows), 10.0), federation)


def _aggregated(name: str, rows: list[Params]) -> Any:
    result = _merge(name, rows)
    _require(len(result.rejected) == 0, f"aggregator {name!r} must accept {len(rows)} sound updates")
    counted = result.info.get("counted", np.ones(len(rows)))
    inside = ((counted >= 0) & (counted <= 1)).all()
    _require(bool(inside), f"aggregator {name!r} must count each update from 0 to 1, not {counted}")
    return jax.tree.map(np.asarray, result.params)


def _check_least(name: str, rows: list[Params]) -> None:
    """Check that the policy changes only if there are enough updates for the tolerated Byzantine clients."""
    at, least = f"aggregator {name!r}", AGGREGATORS[name].least
    numbers = [least(byzantine) for byzantine in range(4)]
    _require(numbers[0] >= 1 and numbers == sorted(numbers), f"{at} must need more updates the more may be false")
    few = max(1, numbers[2]) - 1
    if few:
        result = _merge(name, rows[:few], byzantine=2)
        _require(all_equal(result.params, agent(0)), f"{at} must keep the policy with fewer updates than `least`")
    result = _merge(name, rows[: few + 1], byzantine=2)
    _require(len(result.rejected) == 0, f"{at} must do with as many updates as `least` says")


def _check_bounded(name: str, rows: list[Params]) -> None:
    """Check that one Byzantine client moves no weight farther from honest ones than the length of honest changes."""
    honest, previous = np.stack([_vector(row) for row in rows[1:]]), _vector(agent(0))
    slack = FederationConfig().change_limit * np.linalg.norm(honest - previous, axis=1).max()
    for lie in (FAR, -FAR):
        merged = _vector(_aggregated(name, [jax.tree.map(lambda x: np.full_like(x, lie), rows[0]), *rows[1:]]))  # noqa: B023
        inside = (merged >= honest.min(axis=0) - slack) & (merged <= honest.max(axis=0) + slack)
        _require(bool(inside.all()), f"aggregator {name!r} must not let one Byzantine client move the policy far")


def check_optimiser(name: str) -> None:
    """Check what a registered server optimiser makes of made-up proposals."""
    at, optimiser = f"server optimiser {name!r}", make_optimiser(name, ServerOptimiserConfig())
    previous, weight = agent(0), np.full(3, 1 / 3)

    def step(state: Any, target: Params) -> tuple[Params, Any]:
        updates = jax.tree.map(lambda x: np.repeat(x[None], 3, axis=0), target)
        kept = jax.tree.map(np.copy, (state, previous))
        generator, returns = np.random.default_rng(0), np.array([1.0, 5.0, np.nan, 2.0])
        sent = arrays_to_send(optimiser, state, generator)
        proposal = Proposal(target, updates, weight, np.arange(3), returns, sent, generator, _no_progress)
        params, after = optimiser.apply(state, previous, proposal)
        _require(all_equal(kept, (state, previous)), f"{at} must not change what it is given")
        _check_like(at, params, previous)
        _check_stored(at, after)
        controls = [part for part in controls_of(previous) if hasattr(previous, part)]
        taken = all(all_equal(getattr(params, part), getattr(target, part)) for part in controls)
        _require(taken, f"{at} must take controls ({', '.join(controls)}) from the proposal")
        return params, after

    start = optimiser.init(previous)
    _check_stored(at, start)
    stayed, _ = step(start, previous)
    _require(_close(stayed, previous), f"{at} must stay where it is if the first proposal is the previous policy")
    moved, after = step(start, agent(1))
    _require(all_equal(moved, step(start, agent(1))[0]), f"{at} must give the same for the same state and proposal")
    for number in range(2, 6):
        moved, after = step(after, agent(number))
    _require(not _close(moved.policy, previous.policy), f"{at} must move the policy towards the proposals")


def _no_progress(params: Params, clients: Any, extra: Any, attempt: int) -> ClientUpdates:
    """Training in simulated worlds that leads nowhere."""
    del extra, attempt
    stacked = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], len(clients), axis=0), params)
    ones = np.ones(len(clients))
    return ClientUpdates(clients, stacked, ones.astype(np.int64), {"importance": ones})


def _check_stored(at: str, state: Any) -> None:
    stored = from_bytes(to_bytes(Checkpoint(0, {}, state))).state
    same = jax.tree.structure(stored) == jax.tree.structure(state) and all_equal(stored, state)
    _require(same, f"{at} must have a state that a checkpoint gives back as it was")


def _check_like(at: str, params: Params, previous: Params) -> None:
    """Check structure, types and shapes, and that all numbers are finite."""
    same = jax.tree.structure(params) == jax.tree.structure(previous)
    _require(same, f"{at} must keep the structure of the parameters")
    for (place, old), new in zip(named_arrays(previous).items(), named_arrays(params).values(), strict=True):
        rule = f"{at} must keep {place!r} of type {old.dtype} and shape {old.shape}, not {new.dtype} and {new.shape}"
        _require((old.dtype, old.shape) == (new.dtype, new.shape), rule)
        _require(bool(np.isfinite(new).all()), f"{at} must give finite numbers in {place!r}")


def _behaviour(params: AgentParams) -> Any:
    """A form in which equal policies are equal arrays: logits without their constant per state."""
    (layer,) = params.policy.layers
    logits = layer.kernel + layer.bias
    return logits - logits.max(axis=1, keepdims=True), params.critic, params.kl_coefficient


def _vector(params: Params) -> np.ndarray:
    return np.concatenate([np.ravel(x).astype(float) for x in jax.tree.leaves(params)])


def _close(first: Any, second: Any) -> bool:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in pairs)


def _require(holds: bool, rule: str) -> None:
    assert holds, rule
