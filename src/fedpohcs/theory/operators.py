"""Bellman operators, exact evaluation and optimal values, visitation, and the objective. Paper: Sec. 2.

Every function takes an MDP or a stack of MDPs: the clients of a federation, the imaginary MDP, or many of either.
Policies are arrays pi(a|s) [..., S, A] and value functions arrays [..., S].
"""

import itertools

import numpy as np

from fedpohcs.core.errors import UserError, require
from fedpohcs.theory.mdp import MDP, AnyFederation, Array, Federation, TabularMDP

IMPROVEMENT_TOLERANCE = 1e-12
"""An action replaces another only if it is better by this share of the largest value, so rounding makes no cycles."""
MOST_POLICIES = 100_000


def action_values(mdp: MDP, values: Array) -> Array:
    """R(s,a) + gamma sum_s' P(s'|s,a) V(s')."""
    return mdp.rewards + mdp.discount[..., None, None] * mdp.expected(values)


def bellman(mdp: MDP, values: Array) -> Array:
    """T V(s) = max_a R(s,a) + gamma sum_s' P(s'|s,a) V(s'). Paper: Sec. 2.2, where max is printed as arg max."""
    return action_values(mdp, values).max(-1)


def bellman_policy(mdp: MDP, policy: Array, values: Array) -> Array:
    """T^pi V(s) = sum_a pi(a|s) (R(s,a) + gamma sum_s' P(s'|s,a) V(s')). Paper: Sec. 2.2."""
    return (policy * action_values(mdp, values)).sum(-1)


def greedy_policy(q: Array) -> Array:
    """The deterministic policy of the best action; among equally good actions, the first."""
    return one_hot(q.argmax(-1), q.shape[-1])


def one_hot(actions: np.ndarray, num_actions: int) -> Array:
    """The table of a deterministic policy."""
    return (actions[..., None] == np.arange(num_actions)).astype(np.float64)


def uniform_policy(num_states: int, num_actions: int) -> Array:
    """The policy with equal probabilities of all actions."""
    return np.full((num_states, num_actions), 1 / num_actions)


def evaluate(mdp: MDP, policy: Array) -> Array:
    """V^pi, the fixed point of T^pi, from the linear system V = r^pi + gamma P^pi V."""
    return mdp.solve(policy, (policy * mdp.rewards).sum(-1))


def optimal_policy(mdp: MDP) -> Array:
    """A deterministic policy that is optimal in every state, by policy iteration."""
    return _policy_iteration(mdp)[0]


def optimal_values(mdp: MDP) -> Array:
    """V*, the fixed point of T."""
    return _policy_iteration(mdp)[1]


def _policy_iteration(mdp: MDP) -> tuple[Array, Array]:
    q = action_values(mdp, np.zeros(mdp.rewards.shape[:-1]))
    policy = greedy_policy(q)
    threshold = IMPROVEMENT_TOLERANCE * (mdp.reward_bound / (1 - mdp.discount))[..., None]
    while True:
        values = evaluate(mdp, policy)
        q = action_values(mdp, values)
        better = q.max(-1) > (policy * q).sum(-1) + threshold
        if not better.any():
            return np.broadcast_to(policy, q.shape), values
        policy = np.where(better[..., None], greedy_policy(q), policy)


def advantages(mdp: MDP, policy: Array) -> Array:
    """A^pi(s,a) = Q^pi(s,a) - V^pi(s)."""
    values = evaluate(mdp, policy)
    return action_values(mdp, values) - values[..., None]


def discounted_visitation(mdp: MDP, policy: Array) -> Array:
    """sum_t gamma^t Pr(s_t = s) from the start distribution; its sum is 1 / (1 - gamma). Paper: Sec. 4.1."""
    return mdp.solve(policy, mdp.start, transposed=True)


def stationary_distribution(mdp: MDP, policy: Array) -> Array:
    """The distribution d with d = d P^pi. Paper: Sec. 4.1. A policy with several of them is refused."""
    chain = mdp.chain(policy)
    S = chain.shape[-1]
    # d (I - P) = 0 and sum d = 1: S + 1 equations of which one is redundant if d is unique.
    system = np.concatenate([np.swapaxes(np.eye(S) - chain, -1, -2), np.ones((*chain.shape[:-2], 1, S))], axis=-2)
    if np.any(np.linalg.matrix_rank(system) < S):
        raise UserError("policy has several stationary distributions. Give all actions a little probability.")
    return np.clip(np.linalg.pinv(system)[..., :, -1], 0, None)


def expected_return(mdp: MDP, policy: Array) -> Array:
    """eta_n(pi) = E_{s ~ mu} V_n^pi(s). Paper: Eq. (1)."""
    return (mdp.start * evaluate(mdp, policy)).sum(-1)


def average_values(federation: AnyFederation, policy: Array) -> Array:
    """V-bar^pi(s) = sum_n q_n V_n^pi(s). Paper: Sec. 2.1."""
    return client_mean(federation.weights, evaluate(federation.clients, _for_clients(policy)), 1)


def objective(federation: AnyFederation, policy: Array) -> Array:
    """eta(pi) = sum_n q_n eta_n(pi) = E_{s ~ mu} V-bar^pi(s). Paper: Eqs. (2) and (3)."""
    return (federation.start * average_values(federation, policy)).sum(-1)


def objective_gradient(federation: AnyFederation, policy: Array) -> Array:
    """The derivative of eta by pi(a|s): sum_n q_n d_n(s) Q_n(s,a), by the policy gradient theorem."""
    clients, policies = federation.clients, _for_clients(policy)
    q = action_values(clients, evaluate(clients, policies))
    return client_mean(federation.weights, discounted_visitation(clients, policies)[..., None] * q, 2)


def best_deterministic_policy(federation: Federation) -> Array:
    """The deterministic policy with the largest eta, by exhaustive search over all A^S policies.

    A stochastic policy may have a larger eta, which is not the return of one MDP. See `counterexamples.coin_flip`.
    """
    S, A = federation.num_states, federation.num_actions
    require(A**S <= MOST_POLICIES, "policies", A**S, f"must be at most {MOST_POLICIES}", "Use good_policy.")
    choices = np.array(list(itertools.product(range(A), repeat=S)))
    policies = one_hot(choices, A)
    return policies[int(np.argmax(objective(federation, policies)))]


def good_policy(federation: AnyFederation, steps: int = 6) -> Array:
    """A policy with a large eta, possibly stochastic, by Frank-Wolfe steps that are kept if they increase eta.

    The maximum of eta is hard to find (Paper: Sec. 2.1). This policy replaces pi* where a good policy is sufficient.
    """
    start = optimal_policy(federation.imaginary)
    stack = np.broadcast_shapes(start.shape[:-2], federation.weights.shape[:-1])
    best = np.broadcast_to(start, (*stack, *start.shape[-2:]))
    best_return = objective(federation, best)
    best, best_return = _better(federation, best, best_return, np.full_like(best, 1 / best.shape[-1]))
    for _ in range(steps):
        direction = greedy_policy(objective_gradient(federation, best)) - best
        centre = best
        for size in (1.0, 0.5, 0.1):
            best, best_return = _better(federation, best, best_return, centre + size * direction)
    return best


def _better(federation: AnyFederation, best: Array, best_return: Array, candidate: Array) -> tuple[Array, Array]:
    found = objective(federation, candidate)
    better = found > best_return
    return np.where(better[..., None, None], candidate, best), np.where(better, found, best_return)


def client_mean(weights: Array, tables: Array, axes: int) -> Array:
    """sum_n q_n x_n over the axis of clients, which precedes the last `axes` axes."""
    expanded = weights.reshape(*weights.shape, *(1,) * axes)
    return (expanded * tables).sum(-axes - 1)


def sup_norm(values: Array) -> Array:
    """||V|| = max_s |V(s)|. Paper: Sec. 2.2."""
    return np.abs(values).max(-1)


def _for_clients(policy: Array) -> Array:
    return policy[..., None, :, :]


def single(federation: Federation) -> Federation:
    """The imaginary MDP as a federation of one client: centralised learning. Paper: Sec. 3.5."""
    mdp: TabularMDP = federation.imaginary
    P = mdp.transitions[..., None, :, :, :]
    return Federation(P, mdp.rewards, mdp.discount, mdp.start, reward_bound=mdp.reward_bound)
