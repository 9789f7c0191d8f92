"""Federated approximate policy iteration (FAPI) on tables. All errors are measured. Paper: Algorithms 1 and 2."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedpohcs.core.errors import require
from fedpohcs.theory.bounds import Errors
from fedpohcs.theory.mdp import AnyFederation, Array, Mask
from fedpohcs.theory.networks import Fit, Model, Tabular
from fedpohcs.theory.operators import action_values, client_mean, evaluate, sup_norm, uniform_policy

Participation = Mask | Callable[[int], Mask]


@dataclass(frozen=True)
class Faults:
    """Errors to inject into a run. Directions are arrays [cycle, ...]; round t uses entry t modulo the cycle.

    Attributes:
        delta: delta_n, the size of each client's evaluation error [..., N], or one number for all clients.
        epsilon: epsilon_n, the loss of each client's improvement [..., N], or one number; only `Tabular` follows it.
        noise: Directions of the evaluation error in [-1, 1] [cycle, ..., N, S]. None: +1 and -1, drawn with `seed`.
        preference: Scores that select the action of a faulty improvement [cycle, ..., N, S, A]. None: drawn.
        clip: Whether V_n^t and V^t are clipped to [0, R_max / (1 - gamma)], the range of true values.
        seed: The seed of all drawn directions.
        value_aggregation: The size of the error in the aggregated values V^t [...], or one number.
        policy_aggregation: The share of `target` in the aggregated policy pi^{t+1} [...], or one number in [0, 1].
        shift: Directions of the error in V^t in [-1, 1] [cycle, ..., S]. None: +1 and -1, drawn.
        target: Policies that the aggregated policy is mixed with [cycle, ..., S, A]. None: uniform.
    """

    delta: ArrayLike = 0.0
    epsilon: ArrayLike = 0.0
    noise: Array | None = None
    preference: Array | None = None
    clip: bool = True
    seed: int = 0
    value_aggregation: ArrayLike = 0.0
    policy_aggregation: ArrayLike = 0.0
    shift: Array | None = None
    target: Array | None = None


@dataclass
class FapiRun:
    """The record of a run. Lists have one entry per round; round t computes pi^{t+1} from pi^t.

    Attributes:
        policies: pi^0 to pi^T.
        average_values: V-bar^{pi^t} for t = 0 to T.
        imaginary_values: V_I^{pi^t} for t = 0 to T; empty unless measured.
        values: V^t, the aggregated value function.
        selected_weights: q'_m of the clients that took part, 0 for the others.
        evaluation_errors: ||V_n^t - V_n^{pi^t}|| of each client.
        improvement_errors: ||T_n^{pi_n} V - T_n V|| of each client, at V^t in Algorithm 1, at V_n^t in Algorithm 2.
        value_aggregation: ||V^t - sum_n q_n V_n^t||.
        policy_aggregation: max_s ||pi^{t+1}(.|s) - sum_m q'_m pi_m^{t+1}(.|s)||_2.
        imaginary_improvement: ||T_I^{pi^{t+1}} V^t - T_I V^t||, bounded by Lemmas 5 and 6 and Propositions 7 and 9.
    """

    policies: list[Array] = field(default_factory=list)
    average_values: list[Array] = field(default_factory=list)
    imaginary_values: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)
    selected_weights: list[Array] = field(default_factory=list)
    evaluation_errors: list[Array] = field(default_factory=list)
    improvement_errors: list[Array] = field(default_factory=list)
    value_aggregation: list[Array] = field(default_factory=list)
    policy_aggregation: list[Array] = field(default_factory=list)
    imaginary_improvement: list[Array] = field(default_factory=list)

    @property
    def policy(self) -> Array:
        """The last policy."""
        return self.policies[-1]


def run_fapi(
    federation: AnyFederation,
    rounds: int,
    *,
    algorithm: Literal[1, 2] = 1,
    model: Model | None = None,
    participation: Participation | None = None,
    faults: Faults | None = None,
    start: Array | None = None,
    measure_imaginary: bool = True,
) -> FapiRun:
    """Federated approximate policy iteration with (1) or without (2) federated policy evaluation.

    Paper: Algorithms 1 and 2. In Algorithm 1 clients improve on the aggregated V^t, in Algorithm 2 each client improves
    on its own V_n^t, and V^t serves only as a measurement. All clients evaluate; those in `participation` improve.

    Args:
        federation: One federation, a stack of them, or a sparse one.
        rounds: T.
        algorithm: 1 or 2.
        model: The parameterisation of values and policies; tables by default.
        participation: The set C as a mask [..., N], or a function from the round to a mask; all clients by default.
        faults: Errors to inject; none by default.
        start: pi^0; uniform by default. `TwoLayerReLU` ignores it and starts at its initial weights.
        measure_imaginary: Whether to measure errors in the imaginary MDP, which is slow for large worlds.
    """
    require(rounds >= 1, "rounds", rounds, "must be at least 1")
    require(algorithm in (1, 2), "algorithm", algorithm, "must be 1 or 2")
    model, faults = model or Tabular(), faults or Faults()
    S, A = federation.rewards.shape[-2:]
    w = model.start_values(S)
    theta = model.start_policy(uniform_policy(S, A) if start is None else start)
    run = FapiRun([model.policy(theta)])
    inject = _Injection(federation, faults)
    for t in range(rounds):
        w_clients = _evaluate_clients(federation, model, w, inject, t, run)
        w = client_mean(federation.weights, w_clients, model.value_axes)
        run.values.append(inject.into_aggregate(model.values(w), t))
        run.value_aggregation.append(
            sup_norm(run.values[-1] - client_mean(federation.weights, model.values(w_clients), 1))
        )
        basis = run.values[-1][..., None, :] if algorithm == 1 else model.values(w_clients)
        theta = _improve(federation, model, theta, basis, inject, t, participation, run)
        if measure_imaginary:
            _measure_imaginary(federation, run)
    run.average_values.append(client_mean(federation.weights, _true_values(federation, run.policy), 1))
    if measure_imaginary:
        run.imaginary_values.append(evaluate(federation.imaginary, run.policy))
    return run


def _evaluate_clients(
    federation: AnyFederation, model: Model, w: Array, inject: "_Injection", t: int, run: FapiRun
) -> Array:
    """Algorithm 1, l. 4-7; Algorithm 2, l. 5."""
    exact = _true_values(federation, run.policy)
    run.average_values.append(client_mean(federation.weights, exact, 1))
    w_clients = model.fit_values(w[(..., None, *(slice(None),) * model.value_axes)], inject.into_values(exact, t))
    run.evaluation_errors.append(sup_norm(model.values(w_clients) - exact))
    return w_clients


def _improve(
    federation: AnyFederation,
    model: Model,
    theta: Array,
    basis: Array,
    inject: "_Injection",
    t: int,
    participation: Participation | None,
    run: FapiRun,
) -> Array:
    """Algorithm 1, l. 10-14; Algorithm 2, l. 6-9."""
    q = action_values(federation.clients, basis)
    q = np.broadcast_to(q, (*q.shape[:-3], federation.weights.shape[-1], *q.shape[-2:]))
    theta_clients = model.improve(theta, Fit(q, inject.epsilon, inject.preference(q, t)))
    policies = model.policy(theta_clients)
    run.improvement_errors.append(sup_norm(q.max(-1) - (policies * q).sum(-1)))
    mask = participation(t) if callable(participation) else participation
    selected = federation.weights if mask is None else selected_weights(federation.weights, mask)
    run.selected_weights.append(selected)
    theta = client_mean(selected, theta_clients, model.policy_axes)
    run.policies.append(inject.into_policy(model.policy(theta), t))
    apart = run.policy - client_mean(selected, policies, 2)
    run.policy_aggregation.append(np.sqrt((apart**2).sum(-1)).max(-1))
    return theta


def _measure_imaginary(federation: AnyFederation, run: FapiRun) -> None:
    q = action_values(federation.imaginary, run.values[-1])
    run.imaginary_improvement.append(sup_norm(q.max(-1) - (run.policy * q).sum(-1)))
    run.imaginary_values.append(evaluate(federation.imaginary, run.policies[-2]))


def _true_values(federation: AnyFederation, policy: Array) -> Array:
    return evaluate(federation.clients, policy[..., None, :, :])


def selected_weights(weights: Array, mask: Mask) -> Array:
    """q'_m = q_m / sum_{m in C} q_m for the selected clients and 0 for the others. Paper: Proposition 7."""
    chosen = weights * mask
    total = chosen.sum(-1, keepdims=True)
    require(bool(np.all(total > 0)), "participation", "no one", "must hold a client with a positive weight")
    return chosen / total


def measured_errors(run: FapiRun, since: int = 0) -> Errors:
    """The largest errors over the rounds of a run from round `since` on, which the bounds depend on."""
    return Errors(
        delta=np.max(run.evaluation_errors[since:], axis=0),
        epsilon=np.max(run.improvement_errors[since:], axis=0),
        value_aggregation=np.max(run.value_aggregation[since:], axis=0),
        policy_aggregation=np.max(run.policy_aggregation[since:], axis=0),
    )


class _Injection:
    """Adds the errors of `Faults` to a run and draws the directions that are not given."""

    def __init__(self, federation: AnyFederation, faults: Faults) -> None:
        self.faults = faults
        self.generator = np.random.default_rng(faults.seed)
        self.largest = federation.reward_bound / (1 - federation.discount)
        N = federation.weights.shape[-1]
        self.delta, self.epsilon, self.value_size, self.policy_share = (
            np.asarray(given, np.float64)
            for given in (faults.delta, faults.epsilon, faults.value_aggregation, faults.policy_aggregation)
        )
        self._check(N)
        self.epsilon = np.broadcast_to(self.epsilon, (*self.epsilon.shape[:-1], N))

    def _check(self, N: int) -> None:
        sizes = {"delta": self.delta, "epsilon": self.epsilon, "value_aggregation": self.value_size}
        for name, given in sizes.items():
            require(bool(np.all(given >= 0)), name, given.tolist(), "must not be negative")
        for name in ("delta", "epsilon"):
            shape = sizes[name].shape
            fits = not shape or shape[-1] == N
            require(fits, name, shape, f"must be one number or have the shape [N] = [{N}]")
        share = self.policy_share
        inside = bool(np.all((share >= 0) & (share <= 1)))
        require(inside, "policy_aggregation", share.tolist(), "must lie in [0, 1]")

    def into_values(self, exact: Array, t: int) -> Array:
        """The evaluated V_n^t: the exact values and the evaluation error of the round."""
        return self._shifted(exact, self.delta, self.faults.noise, self.largest[..., None, None], t)

    def into_aggregate(self, mean: Array, t: int) -> Array:
        """The aggregated V^t: the values of the mean parameters and the injected aggregation error."""
        return self._shifted(mean, self.value_size, self.faults.shift, self.largest[..., None], t)

    def _shifted(self, values: Array, size: Array, directions: Array | None, largest: Array, t: int) -> Array:
        if not np.any(size):
            return values
        direction = self.generator.choice([-1.0, 1.0], values.shape) if directions is None else _turn(directions, t)
        shifted = values + size[..., None] * direction
        return np.clip(shifted, 0, largest) if self.faults.clip else shifted

    def into_policy(self, policy: Array, t: int) -> Array:
        """The aggregated pi^{t+1}: the policy of the mean parameters, mixed with the target of the round."""
        if not np.any(self.policy_share):
            return policy
        share = self.policy_share[..., None, None]
        target = uniform_policy(*policy.shape[-2:]) if self.faults.target is None else _turn(self.faults.target, t)
        return (1 - share) * policy + share * target

    def preference(self, q: Array, t: int) -> Array:
        """The scores of the actions that a faulty improvement selects from."""
        if not np.any(self.epsilon):
            return np.zeros(1)
        given = self.faults.preference
        return self.generator.random(q.shape) if given is None else _turn(given, t)


def _turn(cycle: Array, t: int) -> Array:
    return cycle[t % len(cycle)]
