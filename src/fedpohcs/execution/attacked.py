"""Any executor with Byzantine clients, to measure what an attack gains and what a defence costs.

Byzantine clients measure and train like honest clients, and then change what they send. A kind of attack is one
function and one line in `ATTACKS`. Attacks have no state, so checkpoints do not store any.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.randomness import Purpose, host_generator
from fedpohcs.core.registries import ATTACKS
from fedpohcs.core.steering import BYZANTINE
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import (
    NO_EXTRA,
    CandidateMetrics,
    ClientIds,
    ClientUpdates,
    Extra,
    Params,
    Vector,
    WeightedAdvantage,
)
from fedpohcs.execution.forwarding import ForwardingExecutor
from fedpohcs.learners.client import Poison
from fedpohcs.metrics.base import SELECTION_METRIC, Column, find_metric, hidden_as
from fedpohcs.server.protocols import Executor


class AttackContext(NamedTuple):
    """What an attack may use besides the honest value: its scale, random generators, and what accomplices know."""

    scale: float  # `attack.scale`
    generator: np.random.Generator  # of this seed, round and client
    common: np.random.Generator = np.random.default_rng(0)  # of this seed and round, alike for all Byzantine clients
    updates: Params = None  # honest updates of all Byzantine clients that train, with a leading axis


Lie = AttackContext  # old name; it goes with the next release


class Attack(NamedTuple):
    """What Byzantine clients do to one kind of value that they send.

    `forge` takes the honest value and an `AttackContext`, and returns the value that is sent: a table
    (`WeightedAdvantage`), a score (the largest are selected), or an update (parameters; between the two, `forge` then
    takes the parameters with which training began). About episodes it takes nothing and returns a `Poison`: they
    learn from spoiled episodes, and send what comes of it.
    """

    about: Literal["table", "score", "update", "episodes"]
    forge: Callable[..., Any]


def inflated_table(table: WeightedAdvantage, context: AttackContext) -> WeightedAdvantage:
    """A table `scale` times as large: Delta_n grows with it."""
    return table._replace(value=context.scale * table.value)


def inflated_score(score: float, context: AttackContext) -> float:
    """A score `scale` times as large as its size, or as 1 if that is larger; where scores are bounded, the largest."""
    return context.scale * max(abs(score), 1.0)


def flipped_update(update: Params, start: Params, context: AttackContext) -> Params:
    """The change of the policy with its sign flipped, `scale` times as large."""
    return jax.tree.map(lambda new, old: old - context.scale * (new - old), update, start)


def noisy_update(update: Params, start: Params, context: AttackContext) -> Params:
    """Noise in place of the change of the policy, `scale` times as large."""

    def noise(new: Any, old: Any) -> Any:
        size = context.scale * np.sqrt(np.mean((new - old) ** 2)) if new.size else 0.0
        return old + size * context.generator.standard_normal(new.shape)

    return jax.tree.map(noise, update, start)


def nan_update(update: Params, start: Params, context: AttackContext) -> Params:
    """Weights that are not numbers."""
    del start, context
    return jax.tree.map(lambda new: np.full_like(new, np.nan), update)


def zero_update(update: Params, start: Params, context: AttackContext) -> Params:
    """Weights that are all zero."""
    del start, context
    return jax.tree.map(np.zeros_like, update)


def zero_gradient(update: Params, start: Params, context: AttackContext) -> Params:
    """The weights that the server sent: no change."""
    del update, context
    return jax.tree.map(np.array, start)


def uniform_noise(update: Params, start: Params, context: AttackContext) -> Params:
    """The change plus uniform noise, `scale` times as large as the range of the change in each array."""

    def noise(new: Any, old: Any) -> Any:
        change = np.asarray(new) - old
        width = context.scale * (change.max() - change.min()) if change.size else 0.0
        return new + width * context.generator.uniform(-1, 1, new.shape)

    return jax.tree.map(noise, update, start)


def colluding_update(update: Params, start: Params, context: AttackContext) -> Params:
    """The mean update of all Byzantine clients, moved in one random direction by `scale` times their largest distance.

    All of them send the same, near enough to honest updates to pass a filter of distances.
    """
    del start
    leaves, tree = jax.tree.flatten(update)
    rows = np.concatenate([np.reshape(x, (len(x), -1)) for x in jax.tree.leaves(context.updates)], axis=1).astype(float)
    largest = max(np.sqrt(((rows - row) ** 2).sum(axis=1)).max() for row in rows)
    direction = context.common.standard_normal(rows.shape[1])
    moved = rows.mean(axis=0) + context.scale * largest * direction / np.linalg.norm(direction)
    pieces = np.split(moved, np.cumsum([np.size(x) for x in leaves])[:-1])
    return jax.tree.unflatten(tree, [one.reshape(np.shape(x)) for one, x in zip(pieces, leaves, strict=True)])


def random_action() -> Poison:
    """Clients play at random, with weights of 0, and learn from that as if the policy had played."""
    return Poison(blind=True)


def flipped_reward() -> Poison:
    """Clients learn from rewards with their sign flipped."""
    return Poison(reward=negated)


def reordered_rewards() -> Poison:
    """Clients learn from their rewards in random order. It changes nothing where all rewards are equal."""
    return Poison(reward=shuffled)


def negated(reward: Any, valid: Any, noise: Any) -> Any:
    """Rewards with their sign flipped."""
    del valid, noise
    return -reward


def shuffled(reward: Any, valid: Any, noise: Any) -> Any:
    """The rewards of a batch in random order."""
    xp = reward.__array_namespace__()
    values, is_step = reward.reshape(-1), valid.reshape(-1)
    order = xp.argsort(xp.where(is_step, noise.reshape(-1), 2.0))  # steps in random order, then padding
    position = xp.cumsum(is_step) - 1
    return xp.where(is_step, values[order[position]], values).reshape(reward.shape)


INFLATED_TABLE = Attack("table", inflated_table)
INFLATED_SCORE = Attack("score", inflated_score)
FLIPPED_UPDATE = Attack("update", flipped_update)
NOISY_UPDATE = Attack("update", noisy_update)
NAN_UPDATE = Attack("update", nan_update)
ZERO_UPDATE = Attack("update", zero_update)
ZERO_GRADIENT = Attack("update", zero_gradient)
UNIFORM_NOISE = Attack("update", uniform_noise)
COLLUDING = Attack("update", colluding_update)
RANDOM_ACTION = Attack("episodes", random_action)
FLIPPED_REWARD = Attack("episodes", flipped_reward)
SHUFFLED_REWARDS = Attack("episodes", reordered_rewards)


class AttackedExecutor(ForwardingExecutor):
    """Any executor; what Byzantine clients send is changed on its way to the server."""

    def __init__(self, within: Executor, config: ExperimentConfig) -> None:
        super().__init__(within, config)
        assert config.attack.kind is not None
        self.attack = ATTACKS[config.attack.kind]
        # The private protocol bounds scores; the server would refuse a larger one.
        self.bounded = config.privacy != "none" and config.protection.epsilon is None

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """Phase one, with forged tables or scores."""
        metrics = self.within.measure(params, round_number, clients, names)
        byzantine = np.flatnonzero(np.isin(metrics.client, self._named()))
        contexts = {int(row): self._context(round_number, int(metrics.client[row])) for row in byzantine}
        columns = metrics.columns
        if self.attack.about == "table" and not metrics.private:
            changed = {name: self._claimed_tables(columns[name], contexts) for name in hidden_as(columns, "table")}
        elif self.attack.about == "score":
            changed = {
                name: self._claimed_scores(name, columns[name], contexts) for name in columns if _direction(name)
            }
        else:
            return metrics
        return metrics._replace(columns={**columns, **changed})

    def train(self, params: Params, round_number: int, clients: ClientIds, extra: Extra = NO_EXTRA) -> ClientUpdates:
        """Phase two, with forged updates or spoiled episodes; the info `lied` is 1 for the clients that sent one."""
        if self.attack.about not in ("update", "episodes") or not len(clients):
            return self.within.train(params, round_number, clients, extra)
        who = self._one_of(clients, round_number)
        if self.attack.about == "episodes":
            extra = {**extra, BYZANTINE: np.isin(np.arange(self.num_clients), who)}
        updates = self.within.train(params, round_number, clients, extra)
        byzantine = np.isin(updates.client, who)
        sent = updates.params
        forged = np.flatnonzero(byzantine) if self.attack.about == "update" else np.arange(0)
        for row in forged.tolist():
            context = self._context(round_number, int(updates.client[row]))
            context = context._replace(updates=take_clients(updates.params, forged))
            sent = _with_row(sent, row, self.attack.forge(take_clients(updates.params, row), params, context))
        return updates._replace(params=sent, info={**updates.info, "lied": byzantine.astype(float)})

    def _named(self) -> ClientIds:
        who = self.config.attack.clients
        return np.array([] if isinstance(who, str) else who, int)

    def _one_of(self, selected: ClientIds, round_number: int) -> ClientIds:
        """Clients that are Byzantine in training: those of the config, or one of those selected."""
        if self.config.attack.clients != "one-selected":
            return self._named()
        generator = host_generator(self.config.seed, Purpose.ATTACK, round_number)
        return generator.choice(np.sort(selected), 1)

    def _context(self, round_number: int, client: int) -> AttackContext:
        generator = host_generator(self.config.seed, Purpose.ATTACK, round_number, client + 1)
        common = host_generator(self.config.seed, Purpose.ATTACK, round_number, self.num_clients + 1)
        return AttackContext(self.config.attack.scale, generator, common)

    def _claimed_tables(self, tables: Sequence[WeightedAdvantage], contexts: Mapping[int, AttackContext]) -> Column:
        return tuple(
            self.attack.forge(one, contexts[row]) if row in contexts else one for row, one in enumerate(tables)
        )

    def _claimed_scores(self, name: str, scores: Vector, contexts: Mapping[int, AttackContext]) -> Vector:
        """Scores as the server reads them; a client that lost its connection sends no forged score either."""
        largest = 1.0 if name == SELECTION_METRIC and self.bounded else np.inf
        claimed, sign = scores.copy(), _direction(name)
        for row, context in contexts.items():
            if not np.isnan(scores[row]):
                claimed[row] = sign * min(self.attack.forge(sign * float(scores[row]), context), largest)
        return claimed


def _direction(name: str) -> int:
    """1 if the clients with the largest values of a metric are selected, -1 if the lowest are, 0 if it is no score."""
    prefers = "high" if name == SELECTION_METRIC else find_metric(name).prefers
    return {"high": 1, "low": -1, None: 0}[prefers]


def _with_row(stacked: Params, row: int, one: Params) -> Params:
    """Stacked parameters with those of one client replaced."""

    def replaced(rows: Any, new: Any) -> Any:
        changed = np.array(rows)
        changed[row] = new
        return changed

    return jax.tree.map(replaced, stacked, one)
