"""Any executor with Byzantine clients, to see what a lie gains and what a defence costs.

These liars measure and train as everybody does, and change what they send. A kind of lie is one function and one line
in `ATTACKS`. Nothing here has a state, so checkpoints know nothing of it.
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


class Lie(NamedTuple):
    """What a liar may use: how large a lie is wanted, and randomness."""

    scale: float  # `attack.scale`
    generator: np.random.Generator  # of this seed, round and client


class Attack(NamedTuple):
    """What liars do to one of the things they send.

    `tell` takes the honest thing and a `Lie` and gives what is sent: a table (`WeightedAdvantage`), a score (the
    largest are selected), or an update (parameters; it takes those that training began with as well).
    """

    about: Literal["table", "score", "update"]
    tell: Callable[..., Any]


def inflated_table(table: WeightedAdvantage, lie: Lie) -> WeightedAdvantage:
    """A table `scale` times as large: Delta_n grows with it."""
    return table._replace(value=lie.scale * table.value)


def lying_score(score: float, lie: Lie) -> float:
    """A score `scale` times as large as its size, or as 1 if that is larger; where scores are bounded, the largest."""
    return lie.scale * max(abs(score), 1.0)


def flipped_update(update: Params, start: Params, lie: Lie) -> Params:
    """The change of the policy with its sign flipped, `scale` times as large."""
    return jax.tree.map(lambda new, old: old - lie.scale * (new - old), update, start)


def noisy_update(update: Params, start: Params, lie: Lie) -> Params:
    """Noise in place of the change of the policy, `scale` times as large."""

    def noise(new: Any, old: Any) -> Any:
        size = lie.scale * np.sqrt(np.mean((new - old) ** 2)) if new.size else 0.0
        return old + size * lie.generator.standard_normal(new.shape)

    return jax.tree.map(noise, update, start)


def nan_update(update: Params, start: Params, lie: Lie) -> Params:
    """Weights that are not numbers."""
    del start, lie
    return jax.tree.map(lambda new: np.full_like(new, np.nan), update)


def zero_update(update: Params, start: Params, lie: Lie) -> Params:
    """Weights that are all zero."""
    del start, lie
    return jax.tree.map(np.zeros_like, update)


INFLATED_TABLE = Attack("table", inflated_table)
LYING_SCORE = Attack("score", lying_score)
FLIPPED_UPDATE = Attack("update", flipped_update)
NOISY_UPDATE = Attack("update", noisy_update)
NAN_UPDATE = Attack("update", nan_update)
ZERO_UPDATE = Attack("update", zero_update)


class AttackedExecutor(ForwardingExecutor):
    """Any executor; what liars send is changed on its way to the server."""

    def __init__(self, within: Executor, config: ExperimentConfig) -> None:
        super().__init__(within, config)
        assert config.attack.kind is not None
        self.attack = ATTACKS[config.attack.kind]
        # A score that comes out of the protocol has a bound; the server would not read one beyond.
        self.bounded = config.privacy != "none" and config.protection.epsilon is None

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """Phase one, with lies about tables or scores."""
        metrics = self.within.measure(params, round_number, clients, names)
        liars = np.flatnonzero(np.isin(metrics.client, self._named()))
        lies = {int(row): self._lie(round_number, int(metrics.client[row])) for row in liars}
        columns = metrics.columns
        if self.attack.about == "table" and not metrics.private:
            changed = {name: self._claimed_tables(columns[name], lies) for name in hidden_as(columns, "table")}
        elif self.attack.about == "score":
            changed = {name: self._claimed_scores(name, columns[name], lies) for name in columns if _direction(name)}
        else:
            return metrics
        return metrics._replace(columns={**columns, **changed})

    def train(self, params: Params, round_number: int, clients: ClientIds, extra: Extra = NO_EXTRA) -> ClientUpdates:
        """Phase two, with lies about updates; who lied is noted."""
        updates = self.within.train(params, round_number, clients, extra)
        if self.attack.about != "update" or not len(clients):
            return updates
        lied = np.isin(updates.client, self._one_of(updates.client, round_number))
        sent = updates.params
        for row in np.flatnonzero(lied).tolist():
            lie = self._lie(round_number, int(updates.client[row]))
            sent = _with_row(sent, row, self.attack.tell(take_clients(updates.params, row), params, lie))
        return updates._replace(params=sent, info={**updates.info, "lied": lied.astype(float)})

    def _named(self) -> ClientIds:
        who = self.config.attack.clients
        return np.array([] if isinstance(who, str) else who, int)

    def _one_of(self, selected: ClientIds, round_number: int) -> ClientIds:
        """Who lies in training: the clients of the config, or one of those selected."""
        if self.config.attack.clients != "one-selected":
            return self._named()
        generator = host_generator(self.config.seed, Purpose.ATTACK, round_number)
        return generator.choice(np.sort(selected), 1)

    def _lie(self, round_number: int, client: int) -> Lie:
        generator = host_generator(self.config.seed, Purpose.ATTACK, round_number, client + 1)
        return Lie(self.config.attack.scale, generator)

    def _claimed_tables(self, tables: Sequence[WeightedAdvantage], lies: Mapping[int, Lie]) -> Column:
        return tuple(self.attack.tell(one, lies[row]) if row in lies else one for row, one in enumerate(tables))

    def _claimed_scores(self, name: str, scores: Vector, lies: Mapping[int, Lie]) -> Vector:
        """Scores as the server reads them; a client that lost its connection cannot lie either."""
        largest = 1.0 if name == SELECTION_METRIC and self.bounded else np.inf
        claimed, sign = scores.copy(), _direction(name)
        for row, lie in lies.items():
            if not np.isnan(scores[row]):
                claimed[row] = sign * min(self.attack.tell(sign * float(scores[row]), lie), largest)
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
