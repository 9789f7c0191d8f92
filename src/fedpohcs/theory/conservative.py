"""Conservative steps towards a greedy policy: CPI (Kakade and Langford, 2002) and SPI (Pirotta et al., 2013).

Both mix the policy with a target: pi' = (1 - alpha) pi + alpha pi-bar. They differ in alpha, and guarantee a gain of
the expected return. As models of `iteration.run_fapi` they are local improvements that lose a bounded epsilon_n.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.errors import require
from fedpohcs.theory.mdp import MDP, Array
from fedpohcs.theory.networks import Fit, Tabular
from fedpohcs.theory.operators import action_values, discounted_visitation, evaluate, greedy_policy


class Gain(NamedTuple):
    """What the guarantees depend on. Each is an array [...], one number per MDP of a stack.

    Attributes:
        advantage: sum_s d(s) sum_a pi-bar(a|s) A(s,a), with d = sum_t gamma^t Pr, which is not normalised.
        distance: n, the largest sum_a |pi-bar(a|s) - pi(a|s)| of a state.
        range: Delta, the difference between the largest and the smallest sum_a pi-bar(a|s) A(s,a) of a state.
        discount: gamma.
        reward_bound: R_max.
    """

    advantage: Array
    distance: Array
    range: Array
    discount: Array
    reward_bound: Array


Mixing = Callable[[Gain], Array]
"""alpha of a step."""


def gain_of(mdp: MDP, policy: Array, target: Array, q: Array) -> Gain:
    """The quantities of a step from `policy` towards `target` with the action values `q` of the policy."""
    by_state = ((target - policy) * q).sum(-1)
    advantage = (discounted_visitation(mdp, policy) * by_state).sum(-1)
    distance = np.abs(target - policy).sum(-1).max(-1)
    return Gain(advantage, distance, np.ptp(by_state, axis=-1), mdp.discount, mdp.reward_bound)


def spi_mixing(gain: Gain) -> Array:
    """alpha* = min(1, (1 - gamma)^2 A / (gamma n Delta)), which maximises `spi_bound`; 0 without an advantage."""
    curvature = gain.discount * gain.distance * gain.range
    slope = np.maximum((1 - gain.discount) ** 2 * gain.advantage, 0)
    return np.where(slope < curvature, slope / np.maximum(curvature, np.finfo(float).tiny), 1.0) * (slope > 0)


def spi_bound(gain: Gain, alpha: Array) -> Array:
    """J(pi') - J(pi) is at least alpha A - alpha^2 gamma n Delta / (2 (1 - gamma)^2)."""
    curvature = gain.discount * gain.distance * gain.range / (1 - gain.discount) ** 2
    return alpha * gain.advantage - alpha**2 * curvature / 2


@dataclass(frozen=True)
class CpiMixing:
    """alpha = (1 - gamma) (A - rho / 3) / (4 R_max), and 0 for A < 2 rho / 3, where CPI stops.

    The A of the publication is that of normalised visits and of values times 1 - gamma: (1 - gamma)^2 times ours.
    """

    tolerance: float = 0.0
    """rho."""

    def __post_init__(self) -> None:
        require(self.tolerance >= 0, "tolerance", self.tolerance, "must not be negative")

    def __call__(self, gain: Gain) -> Array:
        advantage, rho = normalised_advantage(gain), self.tolerance
        alpha = (1 - gain.discount) * (advantage - rho / 3) / (4 * gain.reward_bound)
        return np.where(advantage < 2 * rho / 3, 0.0, np.clip(alpha, 0, 1))


def normalised_advantage(gain: Gain) -> Array:
    """The policy advantage in the units of Kakade and Langford, at most R_max."""
    return (1 - gain.discount) ** 2 * gain.advantage


def cpi_bound(gain: Gain) -> Array:
    """J(pi') - J(pi) of CPI without tolerance is at least A^2 / (8 R_max (1 - gamma)). Corollary 4.2."""
    advantage = np.maximum(normalised_advantage(gain), 0)
    return advantage**2 / (8 * gain.reward_bound * (1 - gain.discount))


def mixed(policy: Array, target: Array, alpha: Array) -> Array:
    """(1 - alpha) pi + alpha pi-bar."""
    share = np.asarray(alpha)[..., None, None]
    return (1 - share) * policy + share * target


class Step(NamedTuple):
    """One conservative step: the policy that it leads to, its alpha, and what alpha was computed from."""

    policy: Array
    alpha: Array
    gain: Gain


def conservative_step(mdp: MDP, policy: Array, mixing: Mixing = spi_mixing) -> Step:
    """A step towards the greedy policy in one MDP, or in each of a stack."""
    q = action_values(mdp, evaluate(mdp, policy))
    return _step(mdp, policy, q, mixing)


def _step(mdp: MDP, policy: Array, q: Array, mixing: Mixing) -> Step:
    target = greedy_policy(q)
    gain = gain_of(mdp, policy, target, q)
    alpha = mixing(gain)
    return Step(mixed(policy, target, alpha), alpha, gain)


@dataclass(frozen=True)
class Conservative(Tabular):
    """Tables whose clients take conservative steps, as a model of `run_fapi`. Injected epsilon_n are not followed.

    Attributes:
        clients: The MDPs of the federation, `federation.clients`.
        mixing: `spi_mixing`, an instance of `CpiMixing`, or any other function of a `Gain`.
    """

    clients: Any
    mixing: Mixing = spi_mixing

    def improve(self, theta: Array, fit: Fit) -> Array:
        """pi_n, a step from the common policy towards the client's greedy one."""
        return _step(self.clients, theta[..., None, :, :], fit.q, self.mixing).policy
