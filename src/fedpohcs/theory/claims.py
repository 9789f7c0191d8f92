"""The claims of the paper. Each compares a measured number with the bound that it is claimed not to exceed.

A check takes a `Case` of many instances and returns measured numbers and bounds as arrays whose first axis is that of
the instances. The measured number is NaN if a claim does not apply to an instance.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpohcs.theory import bounds, drawing, sharper
from fedpohcs.theory.instances import ROUNDS, Case
from fedpohcs.theory.iteration import FapiRun, measured_errors
from fedpohcs.theory.levels import distance_under
from fedpohcs.theory.mdp import Array
from fedpohcs.theory.networks import softmax
from fedpohcs.theory.operators import (
    action_values,
    average_values,
    bellman,
    bellman_policy,
    client_mean,
    optimal_policy,
    optimal_values,
    sup_norm,
)

Pair = tuple[Array, Array]
OfRun = Callable[[bounds.Setting, bounds.Errors, int, Array | None], bounds.Bound]
OfLevel = Callable[[bounds.Setting, Array], Array]
NOISE = 1e-9
"""Differences below this share of R_max / (1 - gamma) count as rounding."""
UNBOUNDED = 30.0
"""Factor by which claims for any value function enlarge it."""
NUM_DRAWN = (1, 2)
"""Numbers of drawn clients for which all draws are enumerated."""


class Claim(NamedTuple):
    """A statement and its check.

    Attributes:
        place: Its place in the paper; a + marks a statement of ours.
        statement: The statement, in one line.
        holds: Whether it is documented as true; docs/theory.md has the reasons.
        check: Computes measured numbers and bounds.
    """

    place: str
    statement: str
    holds: bool
    check: Callable[[Case], Pair]


def ratios(case: Case, pair: Pair) -> tuple[Array, Array]:
    """The largest measured / bound per instance, and whether the instance violates the claim beyond rounding."""
    measured, allowed = (np.asarray(x, np.float64).reshape(len(case), -1) for x in pair)
    measured, allowed = np.broadcast_arrays(measured, allowed)
    noise = NOISE * np.maximum(case.largest, 1)[:, None]
    real = measured > noise
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(real, measured / np.maximum(allowed, 0), 0.0)
    violated = measured > allowed * (1 + NOISE) + noise
    said = ~np.isnan(measured).all(-1)
    return np.where(said, ratio.max(-1), np.nan), np.any(violated, axis=-1)


def _contraction(case: Case) -> Pair:
    clients, V, W = case.federation.clients, case.values[:, None], case.other_values[:, None]
    moved = [
        sup_norm(bellman(clients, V) - bellman(clients, W)),
        sup_norm(bellman_policy(clients, case["policy"][:, None], V - W) - _policy_reward(case)),
    ]
    return np.stack(moved, 1), (case.federation.discount * sup_norm(case.values - case.other_values))[:, None, None]


def _policy_reward(case: Case) -> Array:
    return (case["policy"] * case.federation.rewards).sum(-1)[:, None]


def _monotonicity(case: Case) -> Pair:
    low, high = np.minimum(case.values, case.other_values), np.maximum(case.values, case.other_values)
    clients, policy = case.federation.clients, case["policy"][:, None]
    lower = bellman(clients, low[:, None]), bellman_policy(clients, policy, low[:, None])
    upper = bellman(clients, high[:, None]), bellman_policy(clients, policy, high[:, None])
    return np.stack(lower, 1), np.stack(upper, 1)


def _api(case: Case) -> Pair:
    run = case.centralised_run
    errors = measured_errors(run)
    gap = _tail_gap(run.imaginary_values, case.imaginary_optimum)
    transient = _transient(case, run.imaginary_values, case.imaginary_optimum)
    return gap - transient, bounds.api(case.federation.discount, errors.epsilon[:, 0], errors.delta[:, 0]).total


def _tail_gap(values: list[Array], target: Array) -> Array:
    return np.max([sup_norm(V - target) for V in values[ROUNDS // 2 :]], axis=0)


def _transient(case: Case, values: list[Array], target: Array) -> Array:
    """The rest of the initial error after half of the rounds. Policy iteration reduces it by gamma per round."""
    return case.federation.discount ** (ROUNDS // 2) * sup_norm(values[0] - target)


def _kappa_by_action(case: Case) -> Pair:
    N = case.federation.num_clients
    pairs = [(i, j) for i in range(N) for j in range(i)]
    under = [distance_under(case.federation, case["policy"], i, j) for i, j in pairs]
    return np.stack(under, 1), np.stack([case.setting.levels.pairwise[:, i, j] for i, j in pairs], 1)


def _average_at_least_imaginary(case: Case) -> Pair:
    return case.imaginary_values, case.average_values


def _value_gap(bound: Callable[[bounds.Setting], bounds.Bound]) -> Callable[[Case], Pair]:
    def check(case: Case) -> Pair:
        return sup_norm(case.average_values - case.imaginary_values), bound(case.setting).total

    return check


def _evaluation_error(case: Case) -> Pair:
    run = case.run(1)
    apart = [sup_norm(V - exact) for V, exact in zip(run.values, run.imaginary_values, strict=False)]
    return np.max(apart, axis=0), bounds.evaluation_error(case.setting, measured_errors(run)).total


def _improvement(
    algorithm: int, partial: bool, *, large: bool = False, bound: OfRun = bounds.improvement
) -> Callable[[Case], Pair]:
    def check(case: Case) -> Pair:
        run = case.run(algorithm, partial=partial, large=large)
        selected = case.selected if partial else None
        allowed = bound(case.setting, measured_errors(run), algorithm, selected)
        return np.max(run.imaginary_improvement, axis=0), allowed.total

    return check


def _theorem(bound: OfRun, *, large: bool = False) -> Callable[[Case], Pair]:
    def check(case: Case) -> Pair:
        measured, allowed = [], []
        for algorithm in (1, 2):
            for selected in (None, case.selected):
                run = case.run(algorithm, partial=selected is not None, large=large)
                measured.append(_final_gap(case, run))
                allowed.append(bound(case.setting, measured_errors(run), algorithm, selected).total)
        return np.stack(measured, 1), np.stack(allowed, 1)

    return check


def _final_gap(case: Case, run: FapiRun) -> Array:
    """The largest distance in the second half of a run, less the rest of the initial error."""
    half = len(run.average_values) // 2
    gap = np.max([sup_norm(V - case.best_values) for V in run.average_values[half:]], axis=0)
    return gap - case.federation.discount**half * sup_norm(run.imaginary_values[0] - case.imaginary_optimum)


def _exact(check: Callable[[Case], Pair]) -> Callable[[Case], Pair]:
    """The same check for instances without injected errors, where only heterogeneity counts."""

    def only_exact(case: Case) -> Pair:
        measured, allowed = check(case)
        faulty = case.has_errors.reshape(-1, *(1,) * (measured.ndim - 1))
        return np.where(faulty, np.nan, measured), allowed

    return only_exact


def _two_forms(case: Case) -> Pair:
    errors = measured_errors(case.run(2, partial=True))
    general = bounds.fapi(case.setting, errors, 2, case.selected).total
    by_level = bounds.fapi_by_level(case.setting, errors, case.selected).total
    return np.abs(general - by_level), NOISE * np.maximum(general, by_level)


def _dominated(case: Case) -> Pair:
    exact = bounds.no_errors(case.setting)
    terms = [bounds.fapi(case.setting, exact, a, s) for a in (1, 2) for s in (None, case.selected)]
    first = np.stack([np.asarray(term["improvement"] + term["evaluation"]) for term in terms], 1)
    return np.stack([np.asarray(term["imaginary"]) for term in terms], 1), first


def _tighter_with_evaluation(bound: OfRun) -> Callable[[Case], Pair]:
    def check(case: Case) -> Pair:
        exact = bounds.no_errors(case.setting)
        return bound(case.setting, exact, 1, None).total, bound(case.setting, exact, 2, None).total

    return check


def _threshold_enough(case: Case) -> Pair:
    exact, chosen = bounds.no_errors(case.setting), case.selected
    below = bounds.mean_distance(case.setting, chosen) < bounds.selection_threshold(case.setting) * (1 - NOISE)
    some = bounds.improvement(case.setting, exact, 2, chosen).total
    return np.where(below, some, np.nan), bounds.improvement(case.setting, exact, 2).total


def _threshold_needed(case: Case) -> Pair:
    exact, chosen = bounds.no_errors(case.setting), case.selected
    some, everyone = (bounds.improvement(case.setting, exact, 2, s).total for s in (chosen, None))
    distance = np.where(some < everyone * (1 - NOISE), bounds.mean_distance(case.setting, chosen), np.nan)
    return distance, bounds.selection_threshold(case.setting)


def _nearest_is_best(case: Case) -> Pair:
    exact = bounds.no_errors(case.setting)
    alone = np.eye(case.federation.num_clients)
    each = np.stack([bounds.improvement(case.setting, exact, 2, one).total for one in alone], 1)
    nearest = case.setting.levels.to_imaginary.argmin(-1)
    return np.take_along_axis(each, nearest[:, None], 1)[:, 0], each.min(1)


def _homogeneous(partial: bool, *, printed: bool) -> Callable[[Case], Pair]:
    def check(case: Case) -> Pair:
        run = case.homogeneous_run(partial)
        setting = bounds.setting_of(case.homogeneous)
        optimum = optimal_values(case.homogeneous.imaginary)
        selected = case.selected if partial and not printed else None
        allowed = bounds.homogeneous(setting, measured_errors(run), selected).total
        transient = _transient(case, run.average_values, optimum)
        return _tail_gap(run.average_values, optimum) - transient, allowed

    return check


def _operators(bound: OfLevel, *, scale: float = 1.0) -> Callable[[Case], Pair]:
    def check(case: Case) -> Pair:
        f, levels = case.federation, case.setting.levels
        V, policy = scale * case.values, case["policy"]
        of_clients = bellman(f.clients, V[:, None]), bellman_policy(f.clients, policy[:, None], V[:, None])
        of_imaginary = bellman(f.imaginary, V), bellman_policy(f.imaginary, policy, V)
        measured, kappas = [], []
        for clients, imaginary in zip(of_clients, of_imaginary, strict=True):
            measured += [sup_norm(clients[:, :, None] - clients[:, None]), sup_norm(clients - imaginary[:, None])]
            kappas += [levels.pairwise, levels.to_imaginary]
        kappa = np.concatenate([k.reshape(len(case), -1) for k in kappas], 1)
        allowed = bound(_per_client(case), kappa)
        return np.concatenate([m.reshape(len(case), -1) for m in measured], 1), allowed

    return check


def _per_client(case: Case) -> bounds.Setting:
    """The setting with one more axis, for bounds per pair of clients."""
    s = case.setting
    return s._replace(discount=s.discount[:, None], reward_bound=s.reward_bound[:, None])


def _policies(bound: OfLevel, *, scale: float = 1.0) -> Callable[[Case], Pair]:
    def check(case: Case) -> Pair:
        f, V = case.federation, scale * case.values
        mean = client_mean(f.weights, case["client_policies"], 2)
        apart = np.sqrt(((case["policy"] - mean) ** 2).sum(-1)).max(-1)
        pairs = [bellman_policy(f.imaginary, policy, V) for policy in (case["policy"], mean)]
        return sup_norm(pairs[0] - pairs[1]), bound(case.setting, apart)

    return check


def _client_values(bound: OfLevel) -> Callable[[Case], Pair]:
    def check(case: Case) -> Pair:
        V = case.client_values
        apart = sup_norm(V[:, :, None] - V[:, None]).reshape(len(case), -1)
        kappa = case.setting.levels.pairwise.reshape(len(case), -1)
        return apart, bound(_per_client(case), kappa)

    return check


def _mean_operator_at_least(case: Case) -> Pair:
    """T_I V <= sum_n q_n T_n V."""
    f = case.federation
    return bellman(f.imaginary, case.values), client_mean(f.weights, bellman(f.clients, case.values[:, None]), 1)


def _mean_operator_equal(case: Case) -> Pair:
    imaginary, mean = _mean_operator_at_least(case)
    return sup_norm(mean - imaginary), np.zeros(len(case))


def _log_linear(case: Case) -> Pair:
    logits = case["preference"][:, 0] * 6
    q = case.federation.weights
    apart = softmax(client_mean(q, logits, 2)) - client_mean(q, softmax(logits), 2)
    return np.sqrt((apart**2).sum(-1)).max(-1), np.zeros(len(case))


def _all_values(case: Case) -> Pair:
    """The loss of a fixed policy at a large V, against the largest loss at any true value function."""
    clients, policy, V = case.federation.clients, case["policy"][:, None], UNBOUNDED * case.values[:, None]
    return sup_norm(bellman(clients, V) - bellman_policy(clients, policy, V)), case.largest[:, None]


def _any_policy(case: Case) -> Pair:
    """|V_I* - max(V-bar^pi, V-bar^{pi_I*})| for an arbitrary policy, against Lemma 4. This replaces Lemma 3."""
    imaginary = case.imaginary_optimum
    gap = bounds.value_gap(case.setting).total
    drawn = np.maximum(case.average_values, average_values(case.federation, optimal_policy(case.federation.imaginary)))
    return np.stack([sup_norm(imaginary - drawn), sup_norm(imaginary - case.best_values)], 1), gap[:, None]


def _drawn_values(case: Case, num_drawn: int) -> tuple[drawing.Draws, Array]:
    """Every draw of K clients, and T_I^{pi-tilde} V of its policy."""
    f = case.federation
    draws = drawing.all_draws(f.weights, case.draw_probabilities, num_drawn)
    policies = draws.policies(case["policy"], case["client_policies"])
    return draws, (policies * action_values(f.imaginary, case.values)[:, None]).sum(-1)


def _mean_policy_values(case: Case, weights: Array) -> Array:
    """T_I^pi V of the mean of the clients' policies."""
    mean = client_mean(weights, case["client_policies"], 2)
    return bellman_policy(case.federation.imaginary, mean, case.values)


def _drawn_mean(case: Case) -> Pair:
    truth, biases = _mean_policy_values(case, case.federation.weights), []
    for num_drawn in NUM_DRAWN:
        draws, values = _drawn_values(case, num_drawn)
        biases.append(sup_norm(draws.mean(values) - truth))
    return np.stack(biases, 1), np.zeros((len(case), 1))


def _drawn_improvement(case: Case) -> Pair:
    draws, values = _drawn_values(case, 1)
    return _one_round(case, draws.mean(values))


def _fixed_improvement(case: Case) -> Pair:
    return _one_round(case, _mean_policy_values(case, case.selected))


def _one_round(case: Case, improved: Array) -> Pair:
    """The loss of T_I^pi V = `improved` against T_I V, and the sharper Lemma 5 with the errors of the policies."""
    f, V = case.federation, case.values[:, None]
    epsilon = sup_norm(bellman(f.clients, V) - bellman_policy(f.clients, case["client_policies"], V))
    allowed = sharper.improvement_with_evaluation(case.setting, bounds.Errors(np.zeros_like(epsilon), epsilon))
    return sup_norm(bellman(f.imaginary, case.values) - improved), allowed.total


def _drawn_round(bound: OfLevel, num_drawn: int) -> Callable[[Case], Pair]:
    """The root mean square of T_I^{pi-tilde} V - T_I^{pi-bar} V per state; the mean of its size is at most that."""

    def check(case: Case) -> Pair:
        q, r = case.federation.weights[:, None], case.draw_probabilities[:, None]
        draws, values = _drawn_values(case, num_drawn)
        apart = values - _mean_policy_values(case, case.federation.weights)[:, None]
        moves = np.swapaxes(case["client_policies"] - case["policy"][:, None], 1, 2)
        error = drawing.mean_square_error(q, r, moves, num_drawn)
        return np.sqrt(draws.mean(apart**2)), bound(_per_client(case), np.sqrt(np.maximum(error, 0)))

    return check


def _drawn_table(case: Case) -> Pair:
    q, r, tables = case.federation.weights, case.draw_probabilities, case.learning_tables
    truth = client_mean(q, tables, 2)
    apart, sizes = [], []
    for num_drawn in NUM_DRAWN:
        draws = drawing.all_draws(q, r, num_drawn)
        errors = ((draws.estimates(tables) - truth[:, None]) ** 2).sum((-1, -2))
        stated = drawing.mean_square_error(q, r, tables.reshape(*tables.shape[:2], -1), num_drawn)
        apart.append(np.abs((draws.probabilities * errors).sum(-1) - stated))
        sizes.append(drawing.second_moment(q, r, _potentials(case)))
    return np.stack(apart, 1), NOISE * np.stack(sizes, 1)


def _potentials(case: Case) -> Array:
    """||D_n A_n||_F, the learning potential. Paper: Sec. 4.1."""
    return np.sqrt((case.learning_tables**2).sum((-1, -2)))


def _allocation(case: Case) -> Pair:
    q, x = case.federation.weights, _potentials(case)
    some = x.max(-1) > NOISE * case.largest
    best = drawing.best_probabilities(q, np.where(some[:, None], x, 1))
    least = (q**2 / np.where(q * x > 0, best, 1) * x**2).sum(-1)
    return np.where(some, least, np.nan), drawing.second_moment(q, case.draw_probabilities, x)


def _excess(case: Case) -> Pair:
    q, r, x = case.federation.weights, case.draw_probabilities, _potentials(case)
    applies = x.min(-1) > NOISE * case.largest
    factor = drawing.largest_excess(q, r, np.where(applies[:, None], x, 1))
    moment = drawing.second_moment(q, r, x)
    return np.where(applies, moment, np.nan), factor * (q * x).sum(-1) ** 2


def _improvement_claims(
    name: str, place: str, what: str, setup: tuple[int, bool], any_delta: bool, sharper_statement: str
) -> dict[str, Claim]:
    """The claims about one bound on the improvement error.

    Args:
        name: Key of the first claim; the others have a suffix.
        place: Place in the paper.
        what: The bounded error.
        setup: The algorithm, and whether only some clients take part.
        any_delta: Whether the bound holds for any delta_n, without a limit on the value functions.
        sharper_statement: The statement of the sharper form.
    """
    check = _improvement(*setup)
    for_any_delta, for_sharper = _improvement(*setup, large=True), _improvement(*setup, bound=sharper.improvement)
    return {
        name: Claim(place, f"{what}, values bounded", True, check),
        f"{name}-exact": Claim(place, "the same without errors", True, _exact(check)),
        f"{name}-printed": Claim(place, "the same for any delta_n", any_delta, for_any_delta),
        f"{name}-sharper": Claim(f"{place} +", sharper_statement, True, for_sharper),
    }


def _drawn_round_claims(name: str, what: str, num_drawn: int) -> dict[str, Claim]:
    """The claims about the error of one drawn round: Lemma 16 with a root mean squared error."""
    printed, half = (_drawn_round(module.policy_difference, num_drawn) for module in (bounds, sharper))
    return {
        name: Claim("Lemma 16 +", f"mean error of {what}", True, printed),
        f"{name}-sharper": Claim("Lemma 16 +", f"half of it, {what}", True, half),
    }


def _difference_claims(
    name: str, place: str, what: str, check: Callable[..., Callable[[Case], Pair]], printed: OfLevel, half: OfLevel
) -> dict[str, Claim]:
    """The claims about a bound that holds for bounded value functions only, and there with half of its constant."""
    return {
        name: Claim(place, f"{what}, V bounded", True, check(printed)),
        f"{name}-printed": Claim(place, "the same for any V", False, check(printed, scale=UNBOUNDED)),
        f"{name}-sharper": Claim(f"{place} +", "half of it", True, check(half)),
    }


CLAIMS: dict[str, Claim] = {
    "contraction": Claim("Sec. 2.2", "T_n and T_n^pi contract by gamma", True, _contraction),
    "monotonicity": Claim("Sec. 2.2", "T_n and T_n^pi are monotone", True, _monotonicity),
    "proposition-1": Claim("Prop. 1", "error bound of approximate policy iteration", True, _api),
    "equation-7": Claim("Eq. (7)", "improvement error finite for all V in R^S", False, _all_values),
    "kappa-action": Claim("Def. 2", "kappa_ij is reached by one action", True, _kappa_by_action),
    "kappa-order": Claim(
        "Def. 2", "kappa_1 <= kappa_2", True, lambda case: (case.setting.levels.kappa_1, case.setting.levels.kappa_2)
    ),
    "kappa-order-back": Claim(
        "Def. 2 +",
        "kappa_2 <= 2 kappa_1",
        True,
        lambda case: (case.setting.levels.kappa_2, 2 * case.setting.levels.kappa_1),
    ),
    "lemma-3": Claim("Lemma 3", "V-bar^pi >= V_I^pi in every state", False, _average_at_least_imaginary),
    "lemma-4": Claim("Lemma 4", "||V-bar^pi - V_I^pi|| bounded by kappa_1", True, _value_gap(bounds.value_gap)),
    "lemma-4-sharper": Claim("Lemma 4 +", "half of it, or second order", True, _value_gap(sharper.value_gap)),
    "equation-8": Claim("Eq. (8)", "||V^t - V_I^pi|| <= delta-dot", True, _evaluation_error),
    **_improvement_claims("lemma-5", "Lemma 5", "improvement in Alg. 1", (1, False), False, "a quarter of its kappa_1"),
    **_improvement_claims("lemma-6", "Lemma 6", "improvement in Alg. 2", (2, False), True, "half of its kappas"),
    "mean-operator": Claim("Proof of Lemma 6", "T_I V = sum_n q_n T_n V", False, _mean_operator_equal),
    "mean-operator-bound": Claim("Proof of Lemma 6 +", "T_I V <= sum_n q_n T_n V", True, _mean_operator_at_least),
    "tighter": Claim(
        "Sec. 3.2", "Lemma 5 is tighter than Lemma 6", False, _tighter_with_evaluation(bounds.improvement)
    ),
    "tighter-sharper": Claim(
        "Sec. 3.2 +", "the sharper Lemma 5 is", True, _tighter_with_evaluation(sharper.improvement)
    ),
    **_improvement_claims("proposition-7", "Prop. 7", "Alg. 2, some take part", (2, True), True, "through T_I alone"),
    "remark-8-enough": Claim("Remark 8", "below the threshold is enough", False, _threshold_enough),
    "remark-8-needed": Claim("Remark 8", "below the threshold is needed", False, _threshold_needed),
    "remark-8-nearest": Claim("Remark 8", "least kappa_mI has the least bound", False, _nearest_is_best),
    **_improvement_claims("proposition-9", "Prop. 9", "Alg. 1, some take part", (1, True), False, "through T_I alone"),
    "theorem-10": Claim("Theorem 10", "error bound of FAPI, all four forms", True, _theorem(bounds.fapi)),
    "theorem-10-exact": Claim("Theorem 10", "the same without errors", True, _exact(_theorem(bounds.fapi))),
    "theorem-10-printed": Claim("Theorem 10", "the same for any delta_n", True, _theorem(bounds.fapi, large=True)),
    "theorem-10-forms": Claim("Theorem 10", "C_1, C_2, C_3 give the same bound", True, _two_forms),
    "theorem-10-any": Claim("Theorem 10 +", "any policy may stand for pi*", True, _any_policy),
    "theorem-10-sharper": Claim("Theorem 10 +", "sharper constants", True, _theorem(sharper.fapi)),
    "remark-11": Claim("Remark 11", "the first term is the larger one", False, _dominated),
    "remark-13": Claim("Remark 13", "log-linear policies average without error", False, _log_linear),
    "proposition-14": Claim("Prop. 14", "identical clients, all take part", True, _homogeneous(False, printed=True)),
    "proposition-14-printed": Claim(
        "Prop. 14", "identical clients, some take part", False, _homogeneous(True, printed=True)
    ),
    "proposition-14-mended": Claim("Prop. 14 +", "with q'_m epsilon_m", True, _homogeneous(True, printed=False)),
    **_difference_claims(
        "lemma-15", "Lemma 15", "||T_m V - T_n V||", _operators, bounds.operator_difference, sharper.operator_difference
    ),
    **_difference_claims(
        "lemma-16",
        "Lemma 16",
        "||T^pi V - T^pi-bar V||",
        _policies,
        bounds.policy_difference,
        sharper.policy_difference,
    ),
    "lemma-17": Claim(
        "Lemma 17", "|V_m^pi - V_n^pi| bounded by kappa_mn", True, _client_values(bounds.value_difference)
    ),
    "lemma-17-sharper": Claim("Lemma 17 +", "half of it", True, _client_values(sharper.value_difference)),
    "drawn-mean": Claim("Drawing +", "a drawn round is right on average", True, _drawn_mean),
    "drawn-improvement": Claim("Lemma 5 +", "a drawn round keeps it on average", True, _drawn_improvement),
    "fixed-improvement": Claim("Lemma 5 +", "a fixed selection keeps it", False, _fixed_improvement),
    **_drawn_round_claims("drawn-round", "one drawn client", 1),
    **_drawn_round_claims("drawn-pair", "two drawn clients", 2),
    "drawn-table": Claim("Drawing +", "mean squared error of drawn D_n A_n", True, _drawn_table),
    "allocation": Claim("Drawing +", "r_n ~ q_n ||D_n A_n|| is the best", True, _allocation),
    "allocation-excess": Claim("Drawing +", "excess of any other r (Kantorovich)", True, _excess),
}
