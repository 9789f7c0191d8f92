"""The same bounds with smaller constants, proved in the docstrings. None of this is in the paper.

Two facts are behind all of it. First, rows of P_m - P_n sum to 0, so a constant may be taken off V: for V between 0 and
R_max / (1 - gamma),

    |sum_s' (P_m - P_n)(s') V(s')| <= ||P_m - P_n||_1 (max V - min V) / 2 <= kappa_{m,n} R_max / (2 (1 - gamma)),

half of what Lemmas 4, 15 and 17 have. Second, T_I V <= sum_n q_n T_n V, because the maximum of a mean is at most the
mean of the maxima. All functions assume value functions in [0, R_max / (1 - gamma)].
"""

import numpy as np

from fedpohcs.theory.bounds import Bound, Errors, Setting, api, mean_distance, mean_evaluation_error, mean_level
from fedpohcs.theory.bounds import policy_difference as _full_policy_difference
from fedpohcs.theory.mdp import Array


def operator_difference(setting: Setting, kappa: Array) -> Array:
    """Half of Lemma 15, by the first fact."""
    return setting.discount * setting.largest_value * kappa / 2


def policy_difference(setting: Setting, aggregation_error: Array | float) -> Array:
    """Half of Lemma 16.

    Action probabilities of two policies have the same sum, so R_max / (2 (1 - gamma)) may be taken off the action
    values before the inequality of Cauchy and Schwarz is used.
    """
    return _full_policy_difference(setting, aggregation_error) / 2


def value_difference(setting: Setting, kappa: Array) -> Array:
    """Half of Lemma 17: V_m - V_n = gamma P_m (V_m - V_n) + gamma (P_m - P_n) V_n, and the first fact."""
    return setting.discount * setting.horizon * setting.largest_value * kappa / 2


def value_gap(setting: Setting) -> Bound:
    """||V-bar^pi - V_I^pi||: half of Lemma 4, or a bound of second order in kappa where that is less.

    Write D_n = P_n^pi - P-bar^pi. From V_n = V_I + gamma (I - gamma P-bar)^{-1} D_n V_n and sum_n q_n D_n = 0,

        V-bar - V_I = gamma (I - gamma P-bar)^{-1} sum_n q_n D_n (V_n - V_I).

    By the first fact ||D_n (V_n - V_I)|| <= kappa_{n,I} ||V_n - V_I||, and by the sharper Lemma 17 that norm is at most
    gamma R_max kappa_{n,I} / (2 (1 - gamma)^2). So the gap is at most gamma^2 R_max / (2 (1 - gamma)^3) times
    sum_n q_n kappa_{n,I}^2: clients that differ little hardly differ from the imaginary MDP on average.
    """
    first = value_difference(setting, setting.levels.kappa_1)
    spread = (setting.weights * setting.levels.to_imaginary**2).sum(-1)
    second = setting.discount**2 * setting.horizon**2 * setting.largest_value * spread / 2
    return Bound(heterogeneity=np.minimum(first, second))


def improvement_with_evaluation(setting: Setting, errors: Errors) -> Bound:
    """A quarter of the heterogeneity term of Lemma 5.

    By the second fact 0 <= T_I V - T_I^{pi-bar} V <= sum_n q_n (T_n V - T_I^{pi_n} V), and T_n V - T_I^{pi_n} V is at
    most epsilon_n + ||T_n^{pi_n} V - T_I^{pi_n} V||. The paper compares T_n with T_I once more, which costs its factor
    of 2.
    """
    return Bound(
        policy_aggregation=policy_difference(setting, errors.policy_aggregation),
        heterogeneity=operator_difference(setting, setting.levels.kappa_1),
        improvement=(setting.weights * errors.epsilon).sum(-1),
    )


def improvement_without_evaluation(setting: Setting, errors: Errors) -> Bound:
    """Half of the heterogeneity terms of Lemma 6, with epsilon-bar_w counted twice and not six times."""
    gamma = setting.discount
    return Bound(
        policy_aggregation=policy_difference(setting, errors.policy_aggregation),
        value_aggregation=2 * gamma * errors.value_aggregation,
        pairwise=2 * gamma * value_difference(setting, setting.levels.kappa_2),
        heterogeneity=operator_difference(setting, setting.levels.kappa_1),
        evaluation=4 * gamma * (setting.weights * errors.delta).sum(-1),
        improvement=(setting.weights * errors.epsilon).sum(-1),
    )


def partial_improvement_without_evaluation(setting: Setting, errors: Errors, selected: Array) -> Bound:
    """Proposition 7 with T_I in place of the T_n in its proof: T_I V - T_I^{pi_m} V needs T_m and T_I alone.

    Going through every T_n costs the paper kappa_{m,n} where kappa_{m,I} is enough.
    """
    gamma = setting.discount
    return Bound(
        policy_aggregation=policy_difference(setting, errors.policy_aggregation),
        value_aggregation=2 * gamma * errors.value_aggregation,
        pairwise=2 * gamma * value_difference(setting, mean_distance(setting, selected)),
        heterogeneity=2 * operator_difference(setting, mean_level(setting, selected)),
        evaluation=2 * gamma * ((selected + setting.weights) * errors.delta).sum(-1),
        improvement=(selected * errors.epsilon).sum(-1),
    )


def partial_improvement_with_evaluation(setting: Setting, errors: Errors, selected: Array) -> Bound:
    """Proposition 9 with T_I in place of the T_n in its proof: no kappa_{m,n} is left."""
    return Bound(
        policy_aggregation=policy_difference(setting, errors.policy_aggregation),
        heterogeneity=2 * operator_difference(setting, mean_level(setting, selected)),
        improvement=(selected * errors.epsilon).sum(-1),
    )


def improvement(setting: Setting, errors: Errors, algorithm: int, selected: Array | None = None) -> Bound:
    """The sharper bound on the improvement error that belongs to an algorithm and to who takes part."""
    if selected is None:
        full = improvement_with_evaluation if algorithm == 1 else improvement_without_evaluation
        return full(setting, errors)
    partial = partial_improvement_with_evaluation if algorithm == 1 else partial_improvement_without_evaluation
    return partial(setting, errors, selected)


def fapi(setting: Setting, errors: Errors, algorithm: int, selected: Array | None = None) -> Bound:
    """Theorem 10 with the constants of this module."""
    gap = value_gap(setting).total
    delta = gap + mean_evaluation_error(setting, errors).total
    epsilon = improvement(setting, errors, algorithm, selected).total
    return Bound(api(setting.discount, epsilon, delta) | Bound(imaginary=2 * gap))
