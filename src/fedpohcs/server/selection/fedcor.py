"""FedCor: clients whose training is expected to lower the losses of all the most (Tang et al., 2022).

A Gaussian process describes how the losses of clients change together. The covariance of two clients follows from the
distance of two points, which are fitted to the changes of the latest rounds by leave-one-out likelihood. Clients are
picked one by one; after each pick the covariance is conditioned on it, so that the next one adds something new.
"""

from typing import Any

import numpy as np

from fedpohcs.core.types import CandidateMetrics, ClientIds, Selection, Vector
from fedpohcs.server.selection.base import Question, Selector, choose_at_random

RETURN = "mean_return"
DIMENSIONS = 10  # of the points
HISTORY, FIT_EVERY = 10, 5  # rounds
DISCOUNT = 0.8  # weight of a change per round of its age
ANNEALING = 0.9  # a client counts less by this factor each time it is picked
NOISE = 0.01  # variance of single changes, which are scaled to a mean square of 1
FIT_STEPS = 30  # of L-BFGS

State = dict[str, np.ndarray]


def fedcor() -> Selector:
    """Candidates picked one by one by what a Gaussian process expects of their training for all clients."""

    def select(question: Question, metrics: CandidateMetrics, state: State | None) -> tuple[Selection, State]:
        state = observed(_first(question) if state is None else state, metrics)
        number = int(state["round"])
        if number % FIT_EVERY == 0 and number > 0:
            state |= {"points": fit_points(state["points"], state["changes"])}
        if number < FIT_EVERY:
            return Selection(choose_at_random(question, question.candidates)), state
        covariance = kernel(state["points"])
        clients = np.sort(question.candidates)
        chosen = pick(covariance, question.weight, state["factor"], clients, question.num_selected)
        factor = state["factor"].copy()
        factor[chosen] *= ANNEALING
        return Selection(np.sort(chosen)), state | {"factor": factor}

    return Selector(select, requires=frozenset({RETURN}), asks=ask_everyone)


def ask_everyone(question: Question, state: Any) -> ClientIds:
    """All clients: the process is fitted to how all returns change."""
    del state
    return np.arange(question.num_clients)


def _first(question: Question) -> State:
    n = question.num_clients
    points = question.generator.normal(size=(n, DIMENSIONS)) / np.sqrt(DIMENSIONS)
    return {
        "points": points,
        "returns": np.full(n, np.nan),
        "changes": np.zeros((0, n)),
        "factor": np.ones(n),
        "round": np.array(-1),
    }


def observed(state: State, metrics: CandidateMetrics) -> State:
    """The state with how the losses of all clients have changed; a client that sent no return has not changed."""
    returns = state["returns"].copy()
    returns[metrics.client] = metrics.column(RETURN)
    change = state["returns"] - returns  # of losses, which are negated returns
    change = np.where(np.isnan(change), 0.0, change)
    returns = np.where(np.isnan(returns), state["returns"], returns)
    size, changes = np.sqrt(np.mean(change**2)), state["changes"]
    if size > 0:
        changes = np.concatenate([changes, change[None] / size])[-HISTORY:]
    return state | {"returns": returns, "changes": changes, "round": state["round"] + 1}


def kernel(points: Vector) -> Vector:
    """exp(-|x_i - x_j|^2 / 2) of all pairs of points, [N, N]."""
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    return np.exp(-0.5 * squares)


def pick(covariance: Vector, weight: Vector, factor: Vector, candidates: ClientIds, number: int) -> ClientIds:
    """So many candidates, each the one with the largest expected improvement of all given those picked before."""
    chosen: list[int] = []
    for _ in range(min(number, len(candidates))):
        left = np.setdiff1d(candidates, chosen)
        gain = factor[left] * (weight @ covariance[:, left]) / np.sqrt(np.maximum(np.diag(covariance)[left], 1e-12))
        chosen.append(int(left[np.argmax(gain)]))
        covariance = conditioned(covariance, chosen[-1])
    return np.array(chosen, np.int64)


def conditioned(covariance: Vector, client: int) -> Vector:
    """The covariance once the change of one client is known, up to noise."""
    column = covariance[:, client]
    return covariance - np.outer(column, column) / (covariance[client, client] + NOISE)


def fit_points(points: Vector, changes: Vector) -> Vector:
    """The points that make the changes of the latest rounds most likely, each client's given those of the others."""
    from scipy.optimize import minimize

    if not len(changes):
        return points
    weight = np.power(DISCOUNT, np.arange(len(changes), dtype=np.float64)[::-1])

    def loss(flat: Vector) -> tuple[float, Vector]:
        value, slope = leave_one_out(flat.reshape(points.shape), changes, weight)
        return -value, -slope.ravel()

    found = minimize(loss, points.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": FIT_STEPS}).x
    return found.reshape(points.shape) if np.isfinite(found).all() else points


def leave_one_out(points: Vector, changes: Vector, weight: Vector) -> tuple[float, Vector]:
    """Weighted sum over rounds of log p(change of i | changes of the others), and its gradient by the points.

    Rasmussen and Williams (2006): Eq. 5.10 to 5.13. With A the inverse covariance and a = A y, the prediction of y_i
    has the variance 1 / A_ii and the error a_i / A_ii.
    """
    covariance = kernel(points)
    inverse = np.linalg.inv(covariance + NOISE * np.eye(len(points)))
    diagonal, value, slope = np.diag(inverse), 0.0, np.zeros_like(covariance)
    for share, change in zip(weight, changes, strict=True):
        alpha = inverse @ change
        value += share * float((0.5 * np.log(diagonal) - 0.5 * alpha**2 / diagonal).sum())
        on_diagonal = 0.5 / diagonal + 0.5 * alpha**2 / diagonal**2
        outer = np.outer(inverse @ (alpha / diagonal), alpha)
        slope += share * (0.5 * (outer + outer.T) - (inverse * on_diagonal) @ inverse)
    pull = 2 * slope * covariance  # how the value changes with -|x_i - x_j|^2 / 2, both ways
    return value, pull @ points - pull.sum(1)[:, None] * points
