"""FedSARSA and FedTD (Zhang et al., 2024) in perturbed kernels: exact fixed points, and many runs at once.

Action values are linear in one-hot features of the classes (s mod c, a mod c), so theta is a table [..., c, c]. Rewards
may differ between clients, which the theory of the paper excludes.
"""

from typing import NamedTuple

import numpy as np

from fedpohcs.core.errors import require
from fedpohcs.theory.mdp import Array
from fedpohcs.theory.networks import softmax
from fedpohcs.worlds.kernels import PerturbedChains

BLOCK = 100
"""Steps whose random numbers are drawn at once."""


class Problem(NamedTuple):
    """Clients and what they estimate. The number of classes divides that of the states and that of the actions.

    Attributes:
        chains: The MDPs of the clients.
        classes: c.
        discount: gamma.
        inverse_temperature: L; the policy is softmax(L Q). 0: always uniform, which makes it FedTD.
    """

    chains: PerturbedChains
    classes: int = 5
    discount: float = 0.2
    inverse_temperature: float = 0.01

    def policy(self, theta: Array) -> Array:
        """Probabilities of the classes of actions by class of the state; within a class actions are equally likely."""
        return softmax(self.inverse_temperature * theta)


def fixed_point(problem: Problem, client: int = 0, tolerance: float = 1e-12) -> Array:
    """theta* [c, c] of a client alone: its expected update is 0 under the stationary distribution of its own policy."""
    theta = np.zeros((problem.classes, problem.classes))
    only = problem.chains._replace(chains=problem.chains.chains[[client]], rewards=problem.chains.rewards[[client]])
    transitions, rewards = only.transitions[0], only.rewards[0]
    for _ in range(1_000):
        found = _evaluated(problem, transitions, rewards, problem.policy(theta))
        if np.abs(found - theta).max() <= tolerance * (1 + np.abs(found).max()):
            return found
        theta = found
    require(False, "inverse_temperature", problem.inverse_temperature, "must be small enough for a fixed point")
    return theta


def _evaluated(problem: Problem, P: Array, R: Array, policy: Array) -> Array:
    """The fixed point of TD(0) for a fixed policy: E[phi (phi - gamma phi')^T] theta = E[phi r]."""
    c, (S, A) = problem.classes, R.shape
    pi = policy[np.arange(S) % c][:, np.arange(A) % c] * c / A
    chain = (pi[:, None, :] @ P)[:, 0]
    system = np.vstack([(np.eye(S) - chain).T, np.ones(S)])
    visits = np.linalg.lstsq(system, np.r_[np.zeros(S), 1.0], rcond=None)[0]
    pairs = visits[:, None] * pi
    place = (np.arange(S) % c)[:, None] * c + np.arange(A) % c  # of the feature of each pair
    following = P @ _features(pi, place, c)
    expected = np.zeros((c * c, c * c))
    np.add.at(expected, place, pairs[..., None] * following)
    mass, rewards = (np.bincount(place.ravel(), x.ravel(), c * c) for x in (pairs, pairs * R))
    return np.linalg.solve(np.diag(mass) - problem.discount * expected, rewards).reshape(c, c)


def _features(pi: Array, place: Array, c: int) -> Array:
    """E[phi(s, a)] over the actions of each state [S, c^2]."""
    found = np.zeros((len(pi), c * c))
    np.add.at(found, (np.arange(len(pi))[:, None], place), pi)
    return found


def run_linear_td(
    problem: Problem,
    steps: int,
    *,
    repetitions: int = 10,
    rate: float = 0.01,
    local_steps: int = 10,
    seed: int = 0,
) -> Array:
    """The mean theta after every merge, [rounds, repetitions, c, c].

    Every client follows one trajectory without resets: theta_n <- theta_n + rate (r + gamma Q(s', a') - Q(s, a)) phi.
    After every `local_steps` steps, theta_n becomes the mean over the clients.

    Args:
        problem: Clients and policy.
        steps: T, steps of every client.
        repetitions: Independent runs, all in one call.
        rate: alpha, constant.
        local_steps: K.
        seed: Seed of all trajectories.
    """
    require(steps >= local_steps >= 1, "local_steps", local_steps, f"must be at least 1 and at most {steps} steps")
    require(rate > 0, "rate", rate, "must be positive")
    clients = _Clients(problem, repetitions, np.random.default_rng(seed))
    found, noise = [], np.zeros(0)
    for step in range(steps):
        if step % BLOCK == 0:
            noise = clients.generator.random((BLOCK, 3, repetitions, clients.num_clients))
        clients.advance(noise[step % BLOCK], rate)
        if (step + 1) % local_steps == 0:
            found.append(clients.merge())
    return np.stack(found)


class _Clients:
    """States, actions and parameters of all clients of all repetitions, [M, N, ...]."""

    def __init__(self, problem: Problem, repetitions: int, generator: np.random.Generator) -> None:
        self.problem, self.generator = problem, generator
        self.cumulative = np.cumsum(problem.chains.chains, axis=-1)
        self.num_clients, self.num_states, self.num_actions = problem.chains.rewards.shape
        shape = (repetitions, self.num_clients)
        self.theta = np.zeros((*shape, problem.classes, problem.classes))
        self.run, self.client = np.indices(shape)
        self.state = generator.integers(self.num_states, size=shape)
        self.action = self._draw_action(self.state, *generator.random((2, *shape)))

    def advance(self, noise: Array, rate: float) -> None:
        """One step of everybody."""
        c, state, action = self.problem.classes, self.state, self.action
        reward = self.problem.chains.rewards[self.client, state, action]
        moved = (noise[0][..., None] >= self.cumulative[self.client, state]).sum(-1)
        shifted = np.minimum(moved, self.num_states - 1) + self.problem.chains.shifts[action]
        self.state = shifted % self.num_states
        self.action = self._draw_action(self.state, noise[1], noise[2])
        here = (self.run, self.client, state % c, action % c)
        following = self.theta[self.run, self.client, self.state % c, self.action % c]
        self.theta[here] += rate * (reward + self.problem.discount * following - self.theta[here])

    def _draw_action(self, state: Array, of_class: Array, within: Array) -> Array:
        c = self.problem.classes
        policy = self.problem.policy(self.theta[self.run, self.client, state % c])
        chosen = np.minimum((of_class[..., None] >= policy.cumsum(-1)).sum(-1), c - 1)
        return chosen + c * (within * (self.num_actions // c)).astype(int)

    def merge(self) -> Array:
        """Everybody gets the mean parameters."""
        mean = self.theta.mean(1)
        self.theta[:] = mean[:, None]
        return mean


def squared_errors(problem: Problem, found: Array, last: float = 0.25) -> Array:
    """||theta - theta*||^2 of client 0, as the mean over the last rounds of each repetition, [repetitions]."""
    apart = found[-max(int(last * len(found)), 1) :] - fixed_point(problem)
    return (apart**2).sum((-1, -2)).mean(0)
