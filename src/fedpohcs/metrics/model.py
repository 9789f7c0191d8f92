"""The tabular maximum-likelihood model of one client, and the Markov chain of its policy. Paper: Sec. 4.2."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedpohcs.core.config import ModellingConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.types import Steps, Vector
from fedpohcs.metrics.cells import Keys, centres_of, keys_of, number_by_first_visit
from fedpohcs.metrics.sparse import SparseRows, merge_steps

Policy = Callable[[NDArray[np.float32]], Any]  # centres of states [S, obs] -> a Distribution of NumPy arrays
NOWHERE = -1
_LOG_DENSITIES_AT_ONCE = 1 << 16  # half a megabyte, which fits into the cache


class TabularModel(NamedTuple):
    """Every visited state and pair of a client, and its steps in terms of them.

    The steps are the counts C(s,a,s'): P-hat(s'|s,a) is the share of the pair's steps that lead to s', and any
    expectation under it a mean over these steps, so neither is ever stored.
    """

    step_state: NDArray[np.int32]  # [n]
    step_pair: NDArray[np.int32]  # [n]
    successor: NDArray[np.int32]  # [n] state the step leads to, or NOWHERE
    reward: Vector  # [n]
    state_key: Keys  # [S] in the order of the first visit
    state_centre: NDArray[np.float32]  # [S, obs]
    start: Vector  # [S] mu, the distribution of the first state of an episode
    pair_key: Keys  # [P] ascending
    pair_state: NDArray[np.int32]  # [P]
    pair_action: NDArray[np.generic]  # [P, act] centres, or [P] discrete actions
    pair_count: Vector  # [P] C(s,a)


def build_model(steps: Steps, config: ModellingConfig) -> TabularModel:
    """Assign the steps to cells and count them. `first_steps` must have been applied before."""
    step_state_key = keys_of(steps.observation if steps.cell is None else steps.cell, config.observation_cell)
    step_pair_key = keys_of(steps.action, config.action_cell, step_state_key)
    step_state, state_first = number_by_first_visit(step_state_key)
    step_pair, pair_first = _number_ascending(step_pair_key)
    opening = np.concatenate(([True], steps.last[:-1]))
    return TabularModel(
        step_state=step_state,
        step_pair=step_pair,
        successor=_successors(step_state, steps.last, opening, config.episode_end),
        reward=steps.reward.astype(np.float64),
        state_key=step_state_key[state_first],
        state_centre=_state_centres(steps, step_state, state_first, config.observation_cell),
        start=np.bincount(step_state[opening], minlength=len(state_first)) / opening.sum(),
        pair_key=step_pair_key[pair_first],
        pair_state=step_state[pair_first],
        pair_action=centres_of(steps.action[pair_first], config.action_cell),
        pair_count=np.bincount(step_pair, minlength=len(pair_first)).astype(np.float64),
    )


def _state_centres(
    steps: Steps, step_state: NDArray[np.int32], state_first: NDArray[np.int64], width: float
) -> NDArray[np.float32]:
    """The centre of each cell. For a user's cells, whose edges are unknown, the mean of its observations."""
    if steps.cell is None:
        return centres_of(steps.observation[state_first], width).astype(np.float32)
    columns = steps.observation.astype(np.float64).T
    totals = np.stack([_sum_by_group(step_state, np.ascontiguousarray(x), len(state_first)) for x in columns], axis=1)
    return (totals / np.bincount(step_state)[:, None]).astype(np.float32)


def require_finite(steps: Steps) -> None:
    """Refuse steps with numbers that are not finite, which would corrupt the table silently."""
    for name, values in steps._asdict().items():
        if values is not None and not np.isfinite(values).all():
            raise UserError(f"steps.{name} holds numbers that are not finite. The client's environment has diverged.")


def mean_by_pair(model: TabularModel, of_step: Vector) -> Vector:
    """Mean over the steps of each visited pair, [P]; of the rewards it is R-hat(s,a)."""
    return _sum_by_group(model.step_pair, of_step, len(model.pair_key)) / model.pair_count


def action_probabilities(model: TabularModel, policy: Policy, support: Literal["state", "client"]) -> Vector:
    """pi(a|s) of each visited pair, [P]: the density at the centres, normalised over the cells of `support`.

    Over the actions taken in that state the probabilities sum to 1. Over all actions of the
    client they do not: the probability of actions never taken in that state is lost.
    """
    distribution = policy(model.state_centre)
    log_density = _rows(distribution, model.pair_state).log_prob(model.pair_action).astype(np.float64)
    if support == "state":
        return _softmax_by_group(model.pair_state, log_density, len(model.state_key))
    log_total = _log_total_density(distribution, _distinct(model.pair_action), len(model.state_key))
    return np.exp(log_density - log_total[model.pair_state])


def merge_actions(model: TabularModel, probability: Vector) -> tuple[SparseRows, Vector]:
    """Transitions P_pi(s'|s) = sum_a pi(a|s) P-hat(s'|s,a) and rewards r_pi(s) = sum_a pi(a|s) R-hat(s,a)."""
    weight = (probability / model.pair_count)[model.step_pair]
    num_states = len(model.state_key)
    transitions = SparseRows(*merge_steps(model.step_state, model.successor, weight, num_states))
    return transitions, _sum_by_group(model.step_state, weight * model.reward, num_states)


def _number_ascending(keys: Keys) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    number, first = number_by_first_visit(keys)
    order = np.argsort(keys[first])
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank[number], first[order]


def _successors(step_state: NDArray[np.int32], last: NDArray, opening: NDArray, episode_end: str) -> NDArray[np.int32]:
    successor = np.roll(step_state, -1)
    if episode_end == "absorbing":
        successor[last] = NOWHERE
    else:  # The step after a last step starts the next episode; np.roll has wrapped the final step to the first.
        successor[last] = np.roll(step_state[opening], -1)
    return successor


def _rows(distribution: Any, index: Any) -> Any:
    return type(distribution)(*(field[index] for field in distribution))


def _distinct(actions: NDArray[np.generic]) -> NDArray[np.generic]:
    # The bits of a centre identify its cell as well as its index does.
    bits = actions.view(np.int32) if actions.dtype == np.float32 else actions
    return actions[number_by_first_visit(keys_of(bits, 1))[1]]


def _log_total_density(distribution: Any, actions: NDArray[np.generic], num_states: int) -> Vector:
    total = np.empty(num_states)
    block = max(1, _LOG_DENSITIES_AT_ONCE // len(actions))
    for begin in range(0, num_states, block):
        some = slice(begin, begin + block)
        log_density = _rows(distribution, (some, None)).log_prob(actions[None]).astype(np.float64)
        top = log_density.max(axis=1)
        total[some] = top + np.log(np.exp(log_density - top[:, None]).sum(axis=1))
    return total


@njit(nogil=True, cache=True)
def _sum_by_group(group, value, size):
    total = np.zeros(size)
    for row in range(len(group)):
        total[group[row]] += value[row]
    return total


@njit(nogil=True, cache=True)
def _softmax_by_group(group, logit, size):
    top = np.full(size, -np.inf)
    for row in range(len(group)):
        top[group[row]] = max(top[group[row]], logit[row])
    weight = np.empty(len(group))
    total = np.zeros(size)
    for row in range(len(group)):
        weight[row] = np.exp(logit[row] - top[group[row]])
        total[group[row]] += weight[row]
    for row in range(len(group)):
        weight[row] /= total[group[row]]
    return weight
