"""The bounds of the paper with smaller constants. Proofs are in the docstrings; none of this is in the paper.

All proofs use two facts. First, rows of P_m - P_n sum to 0, so subtracting a constant from V changes nothing. For V
between 0 and R_max / (1 - gamma),

    |sum_s' (P_m - P_n)(s') V(s')| <= ||P_m - P_n||_1 (max V - min V) / 2 <= kappa_{m,n} R_max / (2 (1 - gamma)),

which is half of the bound in Lemmas 4, 15 and 17. Second, T_I V <= sum_n q_n T_n V, because the maximum of a mean is at
most the mean of the maxima. All functions assume value functions in [0, R_max / (1 - gamma)].
"""

import numpy as np

from fedpohcs.theory.bounds import Bound, Errors, Family, Setting, mean_distance, mean_level
from fedpohcs.theory.bounds import policy_difference as _full_policy_difference
from fedpohcs.theory.mdp import Array


def operator_difference(setting: Setting, kappa: Array) -> Array:
    """Half of Lemma 15, by the first fact."""
    return setting.discount * setting.largest_value * kappa / 2


def policy_difference(setting: Setting, aggregation_error: Array | float) -> Array:
    """Half of Lemma 16.

    Action probabilities of two policies have the same sum. Subtract R_max / (2 (1 - gamma)) from the action values,
    then apply the Cauchy-Schwarz inequality.
    """
    return _full_policy_difference(setting, aggregation_error) / 2


def value_difference(setting: Setting, kappa: Array) -> Array:
    """Half of Lemma 17, by V_m - V_n = gamma P_m (V_m - V_n) + gamma (P_m - P_n) V_n and the first fact."""
    return setting.discount * setting.horizon * setting.largest_value * kappa / 2


def value_gap(setting: Setting) -> Bound:
    """||V-bar^pi - V_I^pi||: the smaller one of half of Lemma 4 and a bound of second order in kappa.

    Write D_n = P_n^pi - P-bar^pi. From V_n = V_I + gamma (I - gamma P-bar)^{-1} D_n V_n and sum_n q_n D_n = 0,

        V-bar - V_I = gamma (I - gamma P-bar)^{-1} sum_n q_n D_n (V_n - V_I).

    By the first fact ||D_n (V_n - V_I)|| <= kappa_{n,I} ||V_n - V_I||. By the sharper Lemma 17 ||V_n - V_I|| is at most
    gamma R_max kappa_{n,I} / (2 (1 - gamma)^2). So the gap is at most gamma^2 R_max / (2 (1 - gamma)^3) times
    sum_n q_n kappa_{n,I}^2.
    """
    first = value_difference(setting, setting.levels.kappa_1)
    spread = (setting.weights * setting.levels.to_imaginary**2).sum(-1)
    second = setting.discount**2 * setting.horizon**2 * setting.largest_value * spread / 2
    return Bound(heterogeneity=np.minimum(first, second))


def improvement_with_evaluation(setting: Setting, errors: Errors) -> Bound:
    """A quarter of the heterogeneity term of Lemma 5.

    By the second fact 0 <= T_I V - T_I^{pi-bar} V <= sum_n q_n (T_n V - T_I^{pi_n} V), and T_n V - T_I^{pi_n} V is at
    most epsilon_n + ||T_n^{pi_n} V - T_I^{pi_n} V||. The paper compares T_n with T_I twice, hence its factor of 2.
    """
    return Bound(
        policy_aggregation=policy_difference(setting, errors.policy_aggregation),
        heterogeneity=operator_difference(setting, setting.levels.kappa_1),
        improvement=(setting.weights * errors.epsilon).sum(-1),
    )


def improvement_without_evaluation(setting: Setting, errors: Errors) -> Bound:
    """Half of the heterogeneity terms of Lemma 6, and 2 gamma epsilon-bar_w in place of 6 gamma epsilon-bar_w."""
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
    """Proposition 7 with T_I in place of the T_n in its proof: T_I V - T_I^{pi_m} V involves only T_m and T_I.

    The paper compares T_m with every T_n, which gives kappa_{m,n} in place of kappa_{m,I}.
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
    """Proposition 9 with T_I in place of the T_n in its proof, and therefore without kappa_{m,n}."""
    return Bound(
        policy_aggregation=policy_difference(setting, errors.policy_aggregation),
        heterogeneity=2 * operator_difference(setting, mean_level(setting, selected)),
        improvement=(selected * errors.epsilon).sum(-1),
    )


SHARPER = Family(
    value_gap,
    improvement_with_evaluation,
    improvement_without_evaluation,
    partial_improvement_with_evaluation,
    partial_improvement_without_evaluation,
)
improvement, fapi = SHARPER.improvement, SHARPER.fapi
