"""Checks of the values that selectors return. Selectors may be written by users; errors name them."""

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import numpy as np

from fedpohcs.core import registries
from fedpohcs.core.errors import require_known
from fedpohcs.core.types import CandidateMetrics, ClientIds, Selection, Vector
from fedpohcs.metrics.base import find_metric
from fedpohcs.server.factories import kind_of, make_registered, refuse
from fedpohcs.server.selection.base import Question, Selector


def make_selector(name: str) -> Selector:
    """The selector that is registered under this name; it knows its name, and requires only metrics that exist."""
    selector = make_registered(registries.SELECTORS, name, Selector)
    if isinstance(selector.requires, str) or not isinstance(selector.requires, Collection):
        _refuse(name, f"has requires (={selector.requires!r})", "It must be a set of names, such as {'mean_return'}.")
    for metric in sorted(selector.requires):
        require_known(f"metric that selector {name!r} requires", metric, registries.METRICS)
        find_metric(metric)
    return selector._replace(requires=frozenset(selector.requires), name=name)


def ask_clients(selector: Selector, question: Question, state: Any) -> ClientIds:
    """The clients that the selector asks to measure."""
    asked = _ids(selector.name, "asks", selector.asks(question, state))
    outside = asked[(asked < 0) | (asked >= question.num_clients)]
    if len(outside):
        remedy = f"Ids run from 0 to {question.num_clients - 1}."
        _refuse(selector.name, f"asks id {outside[0]}, which does not exist", remedy)
    return asked


def choose_clients(
    selector: Selector, question: Question, metrics: CandidateMetrics, state: Any
) -> tuple[Selection, Any]:
    """The selector's choice and its new state."""
    answer = selector.select(question, metrics, state)
    if isinstance(answer, Selection) or not (isinstance(answer, tuple) and len(answer) == 2):
        _refuse(selector.name, f"returned {kind_of(answer)}", "It must return a Selection and the new state.")
    selection, state = answer
    if not isinstance(selection, Selection):
        _refuse(selector.name, f"returned {kind_of(selection)} as its choice", "It must be a Selection.")
    client = _chosen(selector.name, selection.client, question)
    scores = _scores(selector.name, selection.scores, question.candidates)
    probability = _probability(selector.name, selection.probability, client)
    weight, total = _weight(selector.name, selection.weight, client), _total(selector.name, selection.total)
    return Selection(client, scores, probability, weight, total), state


def _chosen(name: str, chosen: Any, question: Question) -> ClientIds:
    client = _ids(name, "chose", chosen)
    strangers = client[~np.isin(client, question.candidates)]
    if len(strangers):
        remedy = "Choose ids of question.candidates."
        _refuse(name, f"chose id {strangers[0]}, which is not a candidate", remedy)
    if len(client) > question.num_selected:
        remedy = "Choose at most question.num_selected."
        _refuse(name, f"chose {len(client)} clients, more than num_selected (={question.num_selected})", remedy)
    return client


def _ids(name: str, verb: str, values: Any) -> ClientIds:
    """Check that ids are distinct integers."""
    ids = np.asarray(values)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        found = f"an array of type {ids.dtype} and shape {ids.shape}"
        _refuse(name, f"{verb} {found}", "Clients are a one-dimensional array of integer ids.")
    if not (ids[1:] > ids[:-1]).all():  # ascending ids are distinct
        unique, times = np.unique(ids, return_counts=True)
        if len(unique) < len(ids):
            _refuse(name, f"{verb} id {unique[times > 1][0]} more than once", "Name every client once.")
    return ids.astype(np.int64)


def _scores(name: str, scores: Any, candidates: ClientIds) -> dict[str, Vector]:
    if not isinstance(scores, Mapping):
        _refuse(name, f"returned {kind_of(scores)} as scores", "Scores are a dict of arrays by name.")
    checked = {}
    for score, values in scores.items():
        checked[score] = _vector(name, f"score {score!r}", values, candidates, "candidate")
        infinite = np.isinf(checked[score])
        if infinite.any():
            value, client = checked[score][infinite][0], candidates[infinite][0]
            text = f"gave client {client} the score {score!r} {value}, which is not finite"
            _refuse(name, text, "Use NaN where a client has no score.")
    return checked


def _probability(name: str, values: Any, client: ClientIds) -> Vector | None:
    if values is None:
        return None
    probability = _vector(name, "probability", values, client, "chosen")
    wrong = ~((probability > 0) & (probability <= 1))
    if wrong.any():
        text = f"gave client {client[wrong][0]} the probability {probability[wrong][0]}"
        _refuse(name, text, "It must be above 0 and at most 1.")
    return probability


def _weight(name: str, values: Any, client: ClientIds) -> Vector | None:
    if values is None:
        return None
    weight = _vector(name, "weight", values, client, "chosen")
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    if wrong.any():
        text = f"gave client {client[wrong][0]} the weight {weight[wrong][0]}"
        _refuse(name, text, "It must be finite and not below 0.")
    if len(weight) and not 0 < weight.sum() < np.inf:
        _refuse(name, f"gave weights whose sum is {weight.sum()}", "Their sum must be finite and above 0.")
    return weight


def _total(name: str, total: Any) -> float | None:
    if total is None or (isinstance(total, float) and 0 < total < np.inf):
        return total
    _refuse(name, f"returned {total!r} as total", "It must be None, or a finite number above 0.")


def _vector(name: str, what: str, values: Any, clients: ClientIds, role: str) -> Vector:
    """Check that there is one number per client."""
    try:
        vector = np.asarray(values, float)
    except (TypeError, ValueError):
        _refuse(name, f"returned {kind_of(values)} as {what}", f"It must be an array with one number per {role}.")
    if vector.shape != clients.shape:
        text = f"returned {what} of shape {vector.shape} for {len(clients)} {role} clients"
        _refuse(name, text, f"It must hold one number per {role} client, in the same order.")
    return vector


def _refuse(name: str, text: str, remedy: str) -> NoReturn:
    refuse(f"selector {name!r}", text, remedy)
