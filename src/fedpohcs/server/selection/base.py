"""The interface of selectors, and functions that most selectors share."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from fedpohcs.core.types import CandidateMetrics, ClientIds, ClientUpdates, Params, Selection, Vector


class Question(NamedTuple):
    """The input of a selection besides the measurements."""

    candidates: ClientIds  # [C]
    num_selected: int  # K
    num_clients: int  # N
    weight: Vector  # [N] q_n
    generator: np.random.Generator  # of this seed and round
    compared_pairs: str = "shared"  # compare tables on pairs that at least two candidates visited, or on "all" pairs
    seconds: Vector | None = None  # [N] that a training of each client is expected to take; None: no time is simulated
    table_clip: float | None = None  # largest norm of a table, in multiples of the median norm; None: no limit

    def among(self, candidates: ClientIds) -> "Question":
        """The same question with fewer candidates, possibly fewer than K."""
        return self._replace(candidates=candidates, num_selected=min(self.num_selected, len(candidates)))


class Selector(NamedTuple):
    """Picks at most K candidates.

    `requires` names the metrics it reads: only those are measured, and only by the clients that `asks` names. `observe`
    sees the checked updates of the clients that trained; an update without steps is none.
    """

    select: Callable[[Question, CandidateMetrics, Any], tuple[Selection, Any]]
    requires: frozenset[str] = frozenset()
    init: Callable[[], Any] = lambda: None
    asks: Callable[[Question, Any], ClientIds] = lambda question, state: question.candidates
    everyone: bool = False  # all clients are candidates and all are selected
    private: bool = False  # it needs Delta_n only, so it works with private selection
    prefers: Literal["high", "low", "proportional"] | None = None
    """It takes the K candidates with the highest or lowest value of its one metric, or draws them in proportion to it,
    so that candidates can choose themselves in private selection. None: it needs the values."""
    observe: Callable[[Any, ClientUpdates, Params], Any] | None = None  # (state, updates, previous policy) -> state
    optimiser: str = "identity"  # the server optimiser that goes with it, unless the config names another
    name: str = ""  # under which it is registered; `make_selector` fills it in


def asks_every_candidate(selector: Selector) -> bool:
    """Whether the selector measures all candidates in every round."""
    return selector.asks is Selector._field_defaults["asks"]


Scores = Callable[[Question, CandidateMetrics], dict[str, Vector]]


def ask_nobody(question: Question, state: Any) -> ClientIds:
    """No clients, for selectors that read no metric."""
    del state
    return question.candidates[:0]


def top_k(clients: ClientIds, score: Vector, k: int) -> ClientIds:
    """The ids of the k largest scores; the lower id wins a tie, NaN loses to every number.

    Example:
        >>> top_k(np.array([7, 3, 5, 9]), np.array([1.0, 2.0, np.nan, 2.0]), 2).tolist()
        [3, 9]
    """
    score = np.where(np.isnan(score), -np.inf, score)
    return np.sort(clients[np.lexsort((clients, -score))[:k]])


def choose(question: Question, clients: ClientIds, score: Vector) -> ClientIds:
    """The K clients with the largest score; K at random if every score is NaN."""
    if np.isnan(score).all():
        return choose_at_random(question, clients)
    return top_k(clients, score, question.num_selected)


def choose_at_random(question: Question, clients: ClientIds) -> ClientIds:
    """K clients, drawn uniformly without replacement; all of them if there are fewer."""
    size = min(question.num_selected, len(clients))
    return np.sort(question.generator.choice(np.sort(clients), size, replace=False))


def by_score(
    name: str,
    requires: str,
    scores: Scores,
    *,
    private: bool = False,
    prefers: Literal["high", "low"] | None = None,
) -> Selector:
    """A stateless selector: the K candidates with the largest `scores[name]`.

    `prefers` says which values of the metric these are, if that alone decides.
    """

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        if metrics.chosen is not None:
            return Selection(metrics.chosen), state
        values = scores(question, metrics)
        return Selection(choose(question, metrics.client, values[name]), values), state

    return Selector(select, requires=frozenset({requires}), private=private, prefers=prefers)
