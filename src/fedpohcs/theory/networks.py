"""Models of values and policies. Clients fit their parameters, the server averages them. Paper: Sec. 3.4.

A model turns parameters into tables. The aggregation error is the difference between the table of the mean parameters
and the mean of the tables. All three models have the interface of `Model`, which `iteration.run_fapi` uses.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fedpohcs.core.errors import require
from fedpohcs.theory.mdp import Array
from fedpohcs.theory.operators import one_hot


class Fit(NamedTuple):
    """The inputs of the clients' improvement steps besides the parameters.

    Attributes:
        q: R + gamma P_n V of every client [..., N, S, A].
        epsilon: epsilon_n, the allowed loss in T_n V [..., N].
        preference: Scores [..., N, S, A] that select the action of a faulty step.
    """

    q: Array
    epsilon: Array
    preference: Array


class Model(Protocol):
    """A model of values and policies. `*_axes` are the numbers of axes of the parameters of one client."""

    value_axes: int
    policy_axes: int

    def start_values(self, num_states: int) -> Array:
        """The parameters w^0."""
        ...

    def start_policy(self, policy: Array) -> Array:
        """The parameters theta^0 of a policy, or of the model's own first policy."""
        ...

    def values(self, w: Array) -> Array:
        """V(s) [..., S]."""
        ...

    def policy(self, theta: Array) -> Array:
        """pi(a|s) [..., S, A]."""
        ...

    def fit_values(self, w: Array, targets: Array) -> Array:
        """Parameters w_n of the clients [..., N, ...] whose values are near `targets` [..., N, S]."""
        ...

    def improve(self, theta: Array, fit: Fit) -> Array:
        """Parameters theta_n of the clients after one local policy improvement."""
        ...


class Tabular:
    """One value per state and one probability per state and action. Averaging has no error."""

    value_axes = 1
    policy_axes = 2

    def start_values(self, num_states: int) -> Array:
        return np.zeros(num_states)

    def start_policy(self, policy: Array) -> Array:
        return policy

    def values(self, w: Array) -> Array:
        return w

    def policy(self, theta: Array) -> Array:
        return theta

    def fit_values(self, w: Array, targets: Array) -> Array:
        return targets

    def improve(self, theta: Array, fit: Fit) -> Array:
        """A policy that loses exactly epsilon_n in every state where it can: ||T^{pi_n} V - T V|| <= epsilon_n.

        The policy mixes the greedy action with the preferred other action, as often as the allowed loss permits.
        """
        best = fit.q.argmax(-1)
        if not np.any(fit.epsilon):
            return one_hot(best, fit.q.shape[-1])
        other = np.where(one_hot(best, fit.q.shape[-1]) > 0, -np.inf, fit.preference).argmax(-1)
        loss = fit.q.max(-1) - np.take_along_axis(fit.q, other[..., None], -1)[..., 0]
        allowed = np.broadcast_to(fit.epsilon[..., None], loss.shape)
        share = np.divide(allowed, loss, out=np.ones_like(loss), where=loss > allowed)[..., None]
        share = np.where(allowed[..., None] > 0, share, 0)
        return (1 - share) * one_hot(best, fit.q.shape[-1]) + share * one_hot(other, fit.q.shape[-1])


@dataclass(frozen=True)
class SoftmaxLinear:
    """Logits and values linear in the parameters, with one feature for each state or pair: log-linear policies.

    A client takes a step of natural policy gradient, theta_n = theta + step * Q_n; its epsilon_n is measured.
    """

    step: float = 1.0
    value_axes = 1
    policy_axes = 2

    def __post_init__(self) -> None:
        require(self.step > 0, "step", self.step, "must be positive")

    def start_values(self, num_states: int) -> Array:
        return np.zeros(num_states)

    def start_policy(self, policy: Array) -> Array:
        return np.log(np.clip(policy, 1e-12, None))

    def values(self, w: Array) -> Array:
        return w

    def policy(self, theta: Array) -> Array:
        return softmax(theta)

    def fit_values(self, w: Array, targets: Array) -> Array:
        return targets

    def improve(self, theta: Array, fit: Fit) -> Array:
        return theta[..., None, :, :] + self.step * fit.q


class TwoLayerReLU:
    """u_w(s) and f_theta(s,a) as two-layer ReLU networks of width m near their start. Paper: Eqs. (nn1) and (nn2).

    Output weights b_i are fixed signs. Initial input weights are uniform on a sphere of radius 1 / sqrt(m), as the
    paper requires: their mean is 0, the second moment is 1 / (d m), and all lengths equal the radius of the sphere.
    After every gradient step the weights are projected onto the ball of radius R around the initial weights.

    Args:
        num_states: S; a state is a unit vector of R^S.
        num_actions: A; a pair is (e_s, e_a) / sqrt(2), of length 1.
        width: m.
        radius: R_w = R_theta.
        step: Size of a policy improvement: the logits aim at f + step * Q_n.
        gradient_steps: Projected gradient steps of one local fit.
        seed: Seed of the initial weights.
        weight_scale: Radius of the sphere of the initial weights, times sqrt(m). It is 1 in the paper, and sqrt(m) in
            the works that its lemma builds on.
    """

    value_axes = 2
    policy_axes = 2

    def __init__(
        self,
        num_states: int,
        num_actions: int,
        width: int,
        radius: float,
        *,
        step: float = 1.0,
        gradient_steps: int = 40,
        seed: int = 0,
        weight_scale: float = 1.0,
    ) -> None:
        require(width >= 1, "width", width, "must be at least 1")
        require(radius > 0, "radius", radius, "must be positive")
        generator = np.random.default_rng(seed)
        self.radius, self.step, self.gradient_steps = radius, step, gradient_steps
        self.states = np.eye(num_states)
        pairs = np.concatenate(
            [np.repeat(np.eye(num_states), num_actions, 0), np.tile(np.eye(num_actions), (num_states, 1))], axis=1
        )
        self.pairs, self.shape = pairs / np.sqrt(2), (num_states, num_actions)
        self.signs = generator.choice([-1.0, 1.0], width)
        self.w_start = initial_weights(generator, width, num_states, weight_scale)
        self.theta_start = initial_weights(generator, width, num_states + num_actions, weight_scale)

    def start_values(self, num_states: int) -> Array:
        return self.w_start

    def start_policy(self, policy: Array) -> Array:
        return self.theta_start

    def values(self, w: Array) -> Array:
        return network(w, self.signs, self.states)

    def policy(self, theta: Array) -> Array:
        return softmax(self._logits(theta))

    def _logits(self, theta: Array) -> Array:
        return network(theta, self.signs, self.pairs).reshape(*theta.shape[:-2], *self.shape)

    def fit_values(self, w: Array, targets: Array) -> Array:
        return self._fit(w, self.w_start, self.states, targets)

    def improve(self, theta: Array, fit: Fit) -> Array:
        targets = self._logits(theta) + self.step * (fit.q - fit.q.mean(-1, keepdims=True))
        return self._fit(theta, self.theta_start, self.pairs, targets.reshape(*targets.shape[:-2], -1))

    def _fit(self, weights: Array, start: Array, inputs: Array, targets: Array) -> Array:
        weights = np.broadcast_to(weights, (*targets.shape[:-1], *start.shape))
        # The largest eigenvalue of the tangent kernel is at most that of the Gram matrix, so the steps do not diverge.
        rate = 1.0 / np.linalg.norm(inputs @ inputs.T, 2)
        for _ in range(self.gradient_steps):
            weights = project(weights - rate * fit_gradient(weights, self.signs, inputs, targets), start, self.radius)
        return weights


def initial_weights(generator: np.random.Generator, width: int, size: int, scale: float = 1.0) -> Array:
    """Input weights [m, d], uniform on the sphere of radius scale / sqrt(m). Paper: Eq. (initialization)."""
    directions = generator.standard_normal((width, size))
    return scale / np.sqrt(width) * directions / np.linalg.norm(directions, axis=-1, keepdims=True)


def network(weights: Array, signs: Array, inputs: Array) -> Array:
    """u_w(x) = m^{-1/2} sum_i b_i relu(w_i x) for every row x of `inputs` [rows, d]. Paper: Eqs. (nn1), (nn2)."""
    return signs @ np.maximum(weights @ inputs.T, 0) / np.sqrt(len(signs))


def linearised(weights: Array, start: Array, signs: Array, inputs: Array) -> Array:
    """u^0_w(x): the network with the activations of its start. Paper: App. of Lemma 12."""
    active = start @ inputs.T > 0
    return signs @ (active * (weights @ inputs.T)) / np.sqrt(len(signs))


def fit_gradient(weights: Array, signs: Array, inputs: Array, targets: Array) -> Array:
    """The gradient by the weights of half the squared distance of the network from its targets."""
    before = weights @ inputs.T
    error = signs @ np.maximum(before, 0) / np.sqrt(len(signs)) - targets
    return ((signs[:, None] * (before > 0)) * error[..., None, :]) @ inputs / np.sqrt(len(signs))


def project(weights: Array, start: Array, radius: float) -> Array:
    """The nearest weights with ||w - w^0||_2 <= R. Paper: Sec. 3.4."""
    moved = weights - start
    length = np.sqrt((moved**2).sum((-1, -2), keepdims=True))
    return start + moved * np.minimum(1, radius / np.maximum(length, radius))


def softmax(logits: Array) -> Array:
    """exp f(s,a) / sum_a' exp f(s,a'). Paper: Eq. (policy_parameterization)."""
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
