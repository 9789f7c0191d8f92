"""Every bound of the paper, as a function that returns its terms by name. Numbers are those of the compiled paper.

Docstrings state the conditions that the paper leaves out; docs/theory.md has proofs and counterexamples.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpohcs.theory.levels import Levels, levels_of
from fedpohcs.theory.mdp import AnyFederation, Array

Number = Array | float


class Bound(dict[str, Number]):
    """The terms of a bound by name; their sum is the bound."""

    @property
    def total(self) -> Array:
        """The sum of the terms."""
        return np.asarray(sum(self.values()))


class Errors(NamedTuple):
    """Approximation errors of a run: the largest over all rounds.

    Attributes:
        delta: delta_n per client [..., N]. Paper: Eq. (7).
        epsilon: epsilon_n per client [..., N], at the value function that the client improves on. Paper: Eq. (7).
        value_aggregation: epsilon-bar_w, the error of averaging value parameters.
        policy_aggregation: epsilon-bar_theta or epsilon-tilde_theta, the error of averaging policy parameters.
    """

    delta: Array
    epsilon: Array
    value_aggregation: Number = 0.0
    policy_aggregation: Number = 0.0


class Setting(NamedTuple):
    """The constants of a federation that appear in the bounds."""

    discount: Array
    reward_bound: Array
    num_actions: int
    weights: Array
    levels: Levels

    @property
    def horizon(self) -> Array:
        """1 / (1 - gamma)."""
        return 1 / (1 - self.discount)

    @property
    def largest_value(self) -> Array:
        """R_max / (1 - gamma)."""
        return self.reward_bound * self.horizon


def setting_of(federation: AnyFederation) -> Setting:
    """Compute the constants of a federation that appear in the bounds."""
    num_actions = federation.rewards.shape[-1]
    return Setting(federation.discount, federation.reward_bound, num_actions, federation.weights, levels_of(federation))


def no_errors(setting: Setting) -> Errors:
    """Exact evaluation, improvement and aggregation."""
    return Errors(np.zeros_like(setting.weights), np.zeros_like(setting.weights))


def api(discount: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Bound:
    """limsup ||V^{pi^t} - V*|| of approximate policy iteration in one MDP. Paper: Proposition 1."""
    gamma = np.asarray(discount)
    return Bound(
        improvement=np.asarray(epsilon) / (1 - gamma) ** 2, evaluation=2 * gamma * np.asarray(delta) / (1 - gamma) ** 2
    )


def value_gap(setting: Setting) -> Bound:
    """||V-bar^pi - V_I^pi|| for every policy. Paper: Lemma 4."""
    gamma, h = setting.discount, setting.horizon
    return Bound(heterogeneity=gamma * h**2 * setting.reward_bound * setting.levels.kappa_1)


def mean_evaluation_error(setting: Setting, errors: Errors) -> Bound:
    """delta-bar: ||V^t - V-bar^{pi^t}||. Paper: Sec. 3.1. It contains epsilon-bar_w."""
    return Bound(value_aggregation=errors.value_aggregation, evaluation=(setting.weights * errors.delta).sum(-1))


def evaluation_error(setting: Setting, errors: Errors) -> Bound:
    """delta-dot: ||V^t - V_I^{pi^t}||. Paper: Eq. (8)."""
    return Bound(value_gap(setting) | mean_evaluation_error(setting, errors))


def improvement_with_evaluation(setting: Setting, errors: Errors) -> Bound:
    """epsilon': ||T_I^{pi^{t+1}} V^t - T_I V^t|| in Algorithm 1 with full participation. Paper: Lemma 5.

    Holds for V^t in [0, R_max / (1 - gamma)], or delta_n of at most half of that range.
    """
    gamma, largest = setting.discount, setting.largest_value
    return Bound(
        policy_aggregation=_policy_aggregation(setting, errors),
        heterogeneity=2 * gamma * largest * setting.levels.kappa_1,
        improvement=(setting.weights * errors.epsilon).sum(-1),
    )


def improvement_without_evaluation(setting: Setting, errors: Errors) -> Bound:
    """epsilon-dot: the same in Algorithm 2 with full participation. Paper: Lemma 6."""
    gamma, h, largest = setting.discount, setting.horizon, setting.largest_value
    return Bound(
        policy_aggregation=_policy_aggregation(setting, errors),
        value_aggregation=2 * gamma * errors.value_aggregation,
        pairwise=2 * gamma**2 * h * largest * setting.levels.kappa_2,
        heterogeneity=gamma * largest * setting.levels.kappa_1,
        evaluation=4 * gamma * mean_evaluation_error(setting, errors).total,
        improvement=(setting.weights * errors.epsilon).sum(-1),
    )


def partial_improvement_without_evaluation(setting: Setting, errors: Errors, selected: Array) -> Bound:
    """epsilon-hat: the same in Algorithm 2 with the clients of weight q'_m = `selected`. Paper: Proposition 7."""
    gamma, h, largest = setting.discount, setting.horizon, setting.largest_value
    return Bound(
        policy_aggregation=_policy_aggregation(setting, errors),
        value_aggregation=2 * gamma * errors.value_aggregation,
        pairwise=(gamma + gamma**2) * h * largest * mean_distance(setting, selected),
        heterogeneity=gamma * largest * mean_level(setting, selected),
        evaluation=2 * gamma * ((selected * errors.delta).sum(-1) + mean_evaluation_error(setting, errors).total),
        improvement=(selected * errors.epsilon).sum(-1),
    )


def partial_improvement_with_evaluation(setting: Setting, errors: Errors, selected: Array) -> Bound:
    """epsilon-acute: the same in Algorithm 1 with the clients of weight q'_m = `selected`. Paper: Proposition 9.

    Holds for V^t in [0, R_max / (1 - gamma)], or delta_n of at most half of that range.
    """
    gamma, largest = setting.discount, setting.largest_value
    return Bound(
        policy_aggregation=_policy_aggregation(setting, errors),
        pairwise=gamma * largest * mean_distance(setting, selected),
        heterogeneity=gamma * largest * mean_level(setting, selected),
        improvement=(selected * errors.epsilon).sum(-1),
    )


class Family(NamedTuple):
    """The bounds that Theorem 10 is composed of: those of the paper, or the smaller ones of `sharper`.

    Attributes:
        value_gap: Lemma 4.
        with_evaluation: Lemma 5, Algorithm 1 with full participation.
        without_evaluation: Lemma 6, Algorithm 2 with full participation.
        partial_with_evaluation: Proposition 9, Algorithm 1 with partial participation.
        partial_without_evaluation: Proposition 7, Algorithm 2 with partial participation.
    """

    value_gap: Callable[[Setting], Bound]
    with_evaluation: Callable[[Setting, Errors], Bound]
    without_evaluation: Callable[[Setting, Errors], Bound]
    partial_with_evaluation: Callable[[Setting, Errors, Array], Bound]
    partial_without_evaluation: Callable[[Setting, Errors, Array], Bound]

    def improvement(self, setting: Setting, errors: Errors, algorithm: int, selected: Array | None = None) -> Bound:
        """The bound on the improvement error of an algorithm with full or partial participation."""
        if selected is None:
            full = self.with_evaluation if algorithm == 1 else self.without_evaluation
            return full(setting, errors)
        partial = self.partial_with_evaluation if algorithm == 1 else self.partial_without_evaluation
        return partial(setting, errors, selected)

    def fapi(self, setting: Setting, errors: Errors, algorithm: int, selected: Array | None = None) -> Bound:
        """limsup |V-bar^{pi^t}(s) - max(V-bar^{pi*}(s), V-bar^{pi_I*}(s))| in every state. Paper: Theorem 10.

        Also holds with any other policy in place of pi*; see docs/theory.md.
        """
        gap = self.value_gap(setting).total
        delta = gap + mean_evaluation_error(setting, errors).total
        epsilon = self.improvement(setting, errors, algorithm, selected).total
        return Bound(api(setting.discount, epsilon, delta) | Bound(imaginary=2 * gap))


PAPER = Family(
    value_gap,
    improvement_with_evaluation,
    improvement_without_evaluation,
    partial_improvement_with_evaluation,
    partial_improvement_without_evaluation,
)
improvement, fapi = PAPER.improvement, PAPER.fapi


def fapi_constants(discount: ArrayLike, reward_bound: ArrayLike) -> tuple[Array, Array, Array]:
    """C_1, C_2 and C_3. Paper: Theorem 10."""
    gamma, R = np.asarray(discount), np.asarray(reward_bound)
    return (
        2 * gamma * (gamma**2 - gamma + 1) / (1 - gamma) ** 4 * R,
        gamma / (1 - gamma) ** 3 * R,
        (gamma + gamma**2) / (1 - gamma) ** 4 * R,
    )


def fapi_by_level(setting: Setting, errors: Errors, selected: Array) -> Bound:
    """Theorem 10 for Algorithm 2 with partial participation, with one term per level of heterogeneity.

    The paper hides the factors of the last terms in O-notation; here they are explicit.
    """
    gamma, h = setting.discount, setting.horizon
    C_1, C_2, C_3 = fapi_constants(gamma, setting.reward_bound)
    mean_delta = mean_evaluation_error(setting, errors).total
    return Bound(
        kappa_1=C_1 * setting.levels.kappa_1,
        selected_to_imaginary=C_2 * mean_level(setting, selected),
        selected_to_all=C_3 * mean_distance(setting, selected),
        policy_aggregation=_policy_aggregation(setting, errors) * h**2,
        value_aggregation=2 * gamma * errors.value_aggregation * h**2,
        evaluation=2 * gamma * h**2 * (2 * mean_delta + (selected * errors.delta).sum(-1)),
        improvement=h**2 * (selected * errors.epsilon).sum(-1),
    )


def homogeneous(setting: Setting, errors: Errors, selected: Array | None = None) -> Bound:
    """limsup ||V-bar^{pi^t} - V-bar^{pi*}|| of identical clients with federated evaluation. Paper: Proposition 14.

    For partial participation the paper also prints sum_n q_n epsilon_n, which is false. With `selected` the weights
    are q'_m, as in its proof. pi* must be optimal in every state, not only from mu.
    """
    gamma, h = setting.discount, setting.horizon
    weights = setting.weights if selected is None else selected
    return Bound(
        policy_aggregation=_policy_aggregation(setting, errors) * h**2,
        value_aggregation=2 * gamma * h**2 * errors.value_aggregation,
        improvement=h**2 * (weights * errors.epsilon).sum(-1),
        evaluation=2 * gamma * h**2 * mean_evaluation_error(setting, errors).total,
    )


def selection_threshold(setting: Setting) -> Array:
    """2 gamma / (1 + gamma) kappa_2: the limit of Remark 8 on the mean kappa_{m,n} of the selected clients."""
    return 2 * setting.discount / (1 + setting.discount) * setting.levels.kappa_2


def operator_difference(setting: Setting, kappa: Array) -> Array:
    """||T_m V - T_n V||, and the same for T^pi and T_I. Paper: Lemma 15. Holds for |V| <= R_max / (1 - gamma)."""
    return setting.discount * setting.largest_value * kappa


def policy_difference(setting: Setting, aggregation_error: Number) -> Array:
    """||T^pi V - T^pi-bar V||. Paper: Lemma 16. Holds for |V| <= R_max / (1 - gamma)."""
    return np.asarray(aggregation_error) * np.sqrt(setting.num_actions) * setting.largest_value


def value_difference(setting: Setting, kappa: Array) -> Array:
    """|V_m^pi(s) - V_n^pi(s)|. Paper: Lemma 17."""
    return setting.discount * setting.horizon * setting.largest_value * kappa


def linearisation_rate(radius: ArrayLike, width: ArrayLike, weight_bound: ArrayLike) -> Array:
    """R^{6/5} m^{-1/10} R-hat^{2/5}: the stated rate of linearisation and of value aggregation. Lemmas 12 and 18."""
    return np.asarray(radius) ** 1.2 * np.asarray(width, float) ** -0.1 * np.asarray(weight_bound) ** 0.4


def policy_aggregation_rate(radius: ArrayLike) -> Array:
    """R^{1/2}: the stated rate of policy aggregation. Paper: Lemma 12. It is a bound with the factor sqrt(8)."""
    return np.sqrt(np.asarray(radius))


def output_difference_rate(radius: ArrayLike) -> Array:
    """R: the stated rate of the difference of two outputs. Paper: Lemma 19. For one action, 2 R is a bound."""
    return np.asarray(radius, float)


def mean_level(setting: Setting, selected: Array) -> Array:
    """sum_m q'_m kappa_{m,I}."""
    return (selected * setting.levels.to_imaginary).sum(-1)


def mean_distance(setting: Setting, selected: Array) -> Array:
    """sum_m sum_n q'_m q_n kappa_{m,n}."""
    return np.einsum("...m,...n,...mn->...", selected, setting.weights, setting.levels.pairwise)


def _policy_aggregation(setting: Setting, errors: Errors) -> Array:
    return policy_difference(setting, errors.policy_aggregation)
