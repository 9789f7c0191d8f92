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
from fedpohcs.metrics.base import SELECTION_METRIC, Column, find_metric, hidden_as
from fedpohcs.server.protocols import Executor


class AttackContext(NamedTuple):
    """What an attack may use besides the honest value: its scale, and a random generator."""

    scale: float  # `attack.scale`
    generator: np.random.Generator  # of this seed, round and client


Lie = AttackContext  # old name; it goes with the next release


class Attack(NamedTuple):
    """What Byzantine clients do to one kind of value that they send.

    `forge` takes the honest value and an `AttackContext`, and returns the value that is sent: a table
    (`WeightedAdvantage`), a score (the largest are selected), or an update (parameters; between the two, `forge` then
    takes the parameters with which training began).
    """

    about: Literal["table", "score", "update"]
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


INFLATED_TABLE = Attack("table", inflated_table)
INFLATED_SCORE = Attack("score", inflated_score)
FLIPPED_UPDATE = Attack("update", flipped_update)
NOISY_UPDATE = Attack("update", noisy_update)
NAN_UPDATE = Attack("update", nan_update)
ZERO_UPDATE = Attack("update", zero_update)


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
        """Phase two, with forged updates; the info `lied` is 1 for the clients that sent one."""
        updates = self.within.train(params, round_number, clients, extra)
        if self.attack.about != "update" or not len(clients):
            return updates
        byzantine = np.isin(updates.client, self._one_of(updates.client, round_number))
        sent = updates.params
        for row in np.flatnonzero(byzantine).tolist():
            context = self._context(round_number, int(updates.client[row]))
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
        return AttackContext(self.config.attack.scale, generator)

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
