"""The worst known instance for every term of every bound, and the ratio measured / bound that it reaches.

Random federations are far from most bounds: a bound with half of its constant would still hold on all of them. The
instances here were found by maximising measured / bound, by gradient ascent over transitions, rewards, weights and the
discount or by following a proof to equality, and were then reduced to a few states. `verify` compares each ratio with
the documented one, so a constant that is too small is a violation, and one that is too large is a ratio that fell.

L stands for R_max / (1 - gamma), the largest value. R_max is 1 here: rewards and errors are shares, see `instances`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpohcs.theory import counterexamples
from fedpohcs.theory.instances import CYCLE, LARGE_ERROR, ROUNDS, Instances, instance_of
from fedpohcs.theory.mdp import Array, Federation

MARGIN = 1e-12
"""A client that should be indifferent between two actions prefers the intended one by this reward."""
RARE = 1e-5
"""Weight of a client that hardly changes the imaginary MDP."""
SLOW = 1e-4
"""Probability of a transition that takes much longer than the horizon."""
NEAR, FAR = 0.01, 0.95
"""Discounts for which the next step counts most, or the steps after it."""
EVERYONE, FIRST_CLIENT = np.array([1.0, 1.0]), np.array([1.0, 0.0])
"""Participation of both clients of two, or of client 0 alone."""


class WorstCase(NamedTuple):
    """An instance, and the ratio measured / bound of every claim that it is the worst case of."""

    make: Callable[[], Instances]
    ratios: Mapping[str, float]


def _staying(N: int, S: int, A: int) -> Array:
    """Transitions [N, S, A, S] of identical clients that never leave a state."""
    return np.tile(np.eye(S)[None, :, None], (N, 1, A, 1))


def _federation(P: Array, rewards: Array, discount: float, weights: Array | None = None) -> Federation:
    return Federation(P, rewards, discount, weights=weights, reward_bound=1.0)


def constant_difference() -> Instances:
    """Two value functions that differ by a constant: T contracts their distance by gamma and by no more."""
    federation = _federation(_staying(2, 2, 1), np.zeros((2, 1)), 0.9)
    return instance_of(federation, values=np.ones(2))


def shared_successor() -> Instances:
    """Two value functions that differ only in a state that no transition reaches: both have the same T V."""
    P = np.zeros((2, 2, 1, 2))
    P[..., 0] = 1
    return instance_of(_federation(P, np.zeros((2, 1)), 0.9), values=np.ones(2), other_values=np.array([1.0, 0.0]))


def oscillation(
    error: str, discount: float = 0.7, *, rounds: int = ROUNDS, large: bool = False, participation: Array = EVERYONE
) -> Instances:
    """Policy iteration that errs in a new state in each round, as far as Proposition 1 allows.

    State i leads to state i - 1 unless it takes the action `stay`. Round t errs by letting state t + 1 stay, which
    costs g_{t+1} = gamma g_t + loss per step, loss (1 - gamma^t) / (1 - gamma) in round t. A policy that stays pays it
    in every step: the gap is loss (1 - gamma^t) / (1 - gamma)^2. The loss per round is epsilon_n, or 2 gamma delta_n
    if a state that is undervalued by delta_n is next to one that is overvalued by delta_n.

    Args:
        error: The error that misleads the clients: `epsilon`, `delta` or `value_aggregation`.
        discount: gamma.
        rounds: The number of rounds.
        large: Whether the runs of the claim enlarge evaluation errors.
        participation: The clients that take part; the others have no improvement error.
    """
    federation, loss = _chain(discount, rounds)
    direction, preference = np.zeros((rounds, rounds + 1)), np.zeros((rounds, 2, rounds + 1, 3))
    preference[..., MOVE_TOO] = 1  # elsewhere a faulty improvement has no loss
    for t in range(rounds):
        direction[t, t : t + 2] = -1, 1
        preference[t, :, t + 1] = np.eye(3)[STAY]
    share = loss * (1 - discount)
    misleading = _injected(share / (2 * discount), large)
    errors: dict[str, ArrayLike] = {
        "epsilon": {"epsilon": share * participation, "preference": preference},
        "delta": {"delta": np.full(2, misleading), "noise": np.stack([direction] * 2, 1)},
        "value_aggregation": {"value_aggregation": misleading, "shift": direction},
    }[error]
    return instance_of(federation, participation=participation, **errors)


MOVE, STAY, MOVE_TOO = range(3)


def _chain(discount: float, rounds: int) -> tuple[Federation, float]:
    """The federation of `oscillation`, and the loss per round. Staying costs up to 0.4 per step."""
    S = rounds + 1
    P = _staying(2, S, 3)
    P[:, 1:, MOVE] = P[:, 1:, MOVE_TOO] = np.eye(S)[:-1]
    growth = (1 - discount ** np.arange(S)) / (1 - discount)
    loss = 0.4 / growth[-1]
    rewards = np.full((S, 3), 0.6)
    rewards[:, STAY] -= loss * growth * (1 - 1e-9)  # a little less, so that a misled client prefers to stay
    return _federation(P, rewards, discount), float(loss)


def _injected(size: float, large: bool) -> float:
    """The evaluation error to inject for one of `size`: the claims for any delta_n enlarge what is injected."""
    return size / LARGE_ERROR if large else size


def one_differing_action() -> Instances:
    """Clients that differ in one of three actions, and a policy that always takes it. Definition 2 with equality."""
    P = _staying(2, 2, 3)
    P[1, 0, 2] = [0, 1]
    return instance_of(_federation(P, np.zeros((2, 3)), 0.9), policy=np.eye(3)[[2, 2]])


def opposite_pairs(pairs: int = 6) -> Instances:
    """Clients in opposite pairs that move disjoint pairs of states apart: kappa_{i,j} = kappa_{i,I} + kappa_{j,I}."""
    S = 2 * pairs
    P = np.full((S, S, 1, S), 1 / S)
    for client in range(S):
        first, sign = client - client % 2, 1 - 2 * (client % 2)
        P[client, :, 0, first] += sign / S
        P[client, :, 0, first + 1] -= sign / S
    return instance_of(_federation(P, np.zeros((S, 1)), 0.9))


def reach_or_not() -> Instances:
    """Against Lemma 3; see `counterexamples.reach_or_not`."""
    return instance_of(counterexamples.reach_or_not(0.9))


def coin_flip() -> Instances:
    """Against T_I V = sum_n q_n T_n V; see `counterexamples.coin_flip`. Each client has a good action of its own."""
    return instance_of(counterexamples.coin_flip(), values=np.array([0.0, 1.0]))


def rare_detour(discount: float = 0.9) -> Instances:
    """A rare client leaves a good state for one that is bad for the common client and harmless for itself.

    The imaginary MDP combines both: it leaves at times and then stays in the bad state. V-bar - V_I tends to
    q gamma (L^2 - 1) for a rare client of weight q, and kappa_1 to 4 q. Gradient ascent over federations with 2 to 4
    clients and 3 to 5 states found no ratio above the limit 1/4 of this one.
    """
    good, bad, refuge = range(3)
    P = _staying(2, 3, 1)
    P[1, good, 0], P[1, bad, 0] = np.eye(3)[[bad, refuge]]
    return instance_of(_federation(P, np.array([[1.0], [0.0], [1.0]]), discount, np.array([1 - RARE, RARE])))


def fork() -> Instances:
    """Two clients that differ little and in proportion: the second-order bound on V-bar - V_I with equality.

    At u client 0 may rise and client 1 may fall; at v client 1 may rise and client 0 may fall. From `first` client 0
    may go to u and client 1 to v, so that each client can only rise. The imaginary MDP goes to both and may fall.
    """
    first, u, v, high, low = range(5)
    P = (1 - SLOW) * _staying(2, 5, 1)
    P[:, [high, low], 0, [high, low]] = 1
    for client, exits in enumerate(({first: u, u: high, v: low}, {first: v, u: low, v: high})):
        for state, successor in exits.items():
            P[client, state, 0, successor] += SLOW
    return instance_of(_federation(P, np.eye(5)[high][:, None], 0.9))


def slow_fall(discount: float = 0.9) -> Instances:
    """One client stays in a good state, the other falls out of it slowly. Half of Lemma 17 with equality."""
    P = _staying(2, 2, 1)
    P[1, 0, 0] = [1 - SLOW, SLOW]
    return instance_of(_federation(P, np.array([[1.0], [0.0]]), discount))


def biased_evaluations() -> Instances:
    """Identical clients that overestimate a value, and an aggregate that adds to it. Eq. (8) without heterogeneity."""
    federation = _federation(_staying(2, 1, 1), np.array([[0.3]]), 0.9, np.array([0.25, 0.75]))
    ones = np.ones((1, 2, 1))
    return instance_of(federation, delta=[0.2, 0.1], noise=ones, value_aggregation=0.05, shift=ones[0, :1])


def two_exits() -> Instances:
    """One action leads the clients to states of the largest and of the smallest value. Half of Lemma 15."""
    P = _staying(2, 3, 1)
    P[0, 0, 0], P[1, 0, 0] = np.eye(3)[[1, 2]]
    return instance_of(_federation(P, np.zeros((3, 1)), 0.9), values=np.array([0.0, 1.0, 0.0]))


def _good_and_bad_actions(A: int) -> Federation:
    """The first half of the actions at state 0 has the largest action value L, the other half has 0."""
    P = _staying(2, 3, A)
    P[:, 0] = np.eye(3)[[1] * (A // 2) + [2] * (A // 2)]
    rewards = np.zeros((3, A))
    rewards[1], rewards[0, : A // 2] = 1, 1
    return _federation(P, rewards, 0.9)


def _half(A: int, half: int) -> Array:
    """The policy that is uniform over the first or the second half of the actions, in three states."""
    return np.tile(np.repeat(np.eye(2)[half], A // 2) * 2 / A, (3, 1))


def opposed_policies(A: int) -> Instances:
    """A policy of the best actions against one of the worst actions. Half of Lemma 16, for any number of actions."""
    worst = np.stack([_half(A, 1)] * 2)
    values = np.array([0.0, 1.0, 0.0])
    return instance_of(_good_and_bad_actions(A), policy=_half(A, 0), client_policies=worst, values=values)


def spoiled_aggregate(A: int) -> Instances:
    """Clients take the best actions; the aggregated policy takes the worst ones. Half of the policy aggregation term.

    With four actions client 1 takes the second action, as good as the first, so that both halves are uniform.
    """
    second = np.broadcast_to(np.eye(A)[1], (1, 2, 3, A))
    epsilon = [0.0, 1e-9 if A == 4 else 0.0]
    target = _half(A, 1)[None]
    return instance_of(
        _good_and_bad_actions(A), epsilon=epsilon, preference=second, policy_aggregation=1.0, target=target
    )


def leaking_policy() -> Instances:
    """The aggregated policy sometimes takes an action from which there is no return."""
    P = _staying(2, 2, 2)
    P[:, 0, 1] = [0, 1]
    target = np.eye(2)[[[1, 0]]]
    return instance_of(_federation(P, np.array([[1.0, 0.0], [0.0, 0.0]]), 0.1), policy_aggregation=0.01, target=target)


def faulty_clients() -> Instances:
    """Identical clients of which each loses its epsilon_n. Everyone takes part, or client 0 alone."""
    federation = _federation(_staying(2, 1, 2), np.array([[1.0, 0.0]]), 0.5, np.array([0.25, 0.75]))
    return instance_of(federation, epsilon=[0.2, 0.1], participation=FIRST_CLIENT)


def shifted_aggregate() -> Instances:
    """Two states of the same value; the aggregate undervalues the one that the clients choose in Algorithm 2."""
    P = _staying(2, 3, 2)
    P[:, 0] = np.eye(3)[[1, 2]]
    rewards = np.full((3, 2), 0.5)
    rewards[0] = [MARGIN, 0]
    return instance_of(_federation(P, rewards, 0.9), value_aggregation=0.25, shift=np.array([[0.0, -1.0, 1.0]]))


def own_favourites(N: int = 6, *, large: bool = False) -> Instances:
    """Each of N identical clients overvalues one state that all others undervalue, and goes there.

    Client n chooses its favourite, which it overvalues by delta, over a state that is worth delta more. The mean of all
    clients undervalues the favourite by (1 - 2 / N) delta. Every choice loses 2 gamma delta (1 - 1 / N), the largest
    loss of N identical clients of equal weight; the bound has 4 gamma delta.
    """
    size = 0.1
    favourites = np.arange(N) + 2
    P = _staying(N, N + 2, N + 1)
    P[:, 0] = np.eye(N + 2)[[*favourites, 1]]
    rewards = np.full((N + 2, N + 1), 0.4)
    rewards[0], rewards[1] = 0, 0.4 + size - MARGIN
    noise = np.zeros((1, N, N + 2))
    noise[0, :, favourites] = -1
    noise[0, np.arange(N), favourites] = 1
    return instance_of(_federation(P, rewards, 0.9), delta=np.full(N, _injected(size, large)), noise=noise)


def outvoted(*, large: bool = False) -> Instances:
    """The rare client that takes part overvalues the state that the others undervalue, and undervalues the better one.

    It chooses x over y, which is worth 2 delta_0 more, and which the aggregate overvalues by 2 delta_1 relative to x.
    """
    own, other = 0.05, 0.2
    P = _staying(2, 3, 2)
    P[:, 0] = np.eye(3)[[1, 2]]
    rewards = np.array([[0.0, 0.0], [0.3, 0.3], [0.3 + 2 * own - MARGIN] * 2])
    noise = np.array([[[0.0, 1.0, -1.0], [0.0, -1.0, 1.0]]])
    return instance_of(
        _federation(P, rewards, 0.9, np.array([RARE, 1 - RARE])),
        delta=[_injected(own, large), _injected(other, large)],
        noise=noise,
        participation=FIRST_CLIENT,
    )


def own_exits(size: float = 0.0) -> Instances:
    """Action n leads client n to the high state and the other client to the low one; action 2 leads both to the high.

    Each client is indifferent between its own action and action 2, and takes its own: the imaginary MDP loses half. A
    quarter of Lemma 5. `size`: an evaluation error that overvalues the high state and undervalues the low one.
    """
    _, high, low = np.eye(3)
    noise = np.broadcast_to(high - low, (1, 2, 3))
    return instance_of(_own_exits(0.9), values=high, delta=np.full(2, size), noise=noise)


def _own_exits(discount: float) -> Federation:
    _, high, low = np.eye(3)
    P = _staying(2, 3, 3)
    P[:, 0] = [[high, low, high], [low, high, high]]
    rewards = np.zeros((3, 3))
    rewards[0, :2], rewards[1] = MARGIN, 1
    return _federation(P, rewards, discount)


def all_errors() -> Instances:
    """The federation of `own_exits` with every kind of error and one client that takes part. All terms count."""
    return instance_of(
        _own_exits(0.3),
        delta=[0.02, 0.03],
        epsilon=[0.01, 0.04],
        value_aggregation=0.02,
        policy_aggregation=0.1,
        noise=[[[1.0, -1.0, 1.0], [-1.0, 1.0, 0.5]]],
        shift=[[0.5, 1.0, -1.0]],
        target=np.full((1, 3, 3), 1 / 3),
        participation=FIRST_CLIENT,
    )


def rivals(discount: float) -> Instances:
    """Each of two clients goes where it can stay and the other one slowly falls, instead of where both can stay.

    The probability to fall is p, in the choice itself and in every later step. The imaginary MDP loses gamma p L^2 / 2,
    and kappa_1 = kappa_2 = p. The ratio to Lemma 6 tends to 1 / (2 (1 + gamma)). It is at most 1/2 by the sharper form,
    and for gamma >= 0.4 gradient ascent with 2 to 4 clients found none above this one. Small discounts test the term
    with kappa_1, large ones the term with kappa_2.
    """
    choice, low, both, *own = range(5)
    P = _staying(2, 5, 3)
    for client, state in enumerate(own):
        falling = (1 - SLOW) * np.eye(5)[state] + SLOW * np.eye(5)[low]
        P[client, choice, client] = np.eye(5)[state]
        P[1 - client, choice, client] = P[1 - client, state] = falling
    P[:, choice, 2] = np.eye(5)[both]
    rewards = np.ones((5, 3))
    rewards[low], rewards[choice] = 0, [MARGIN, MARGIN, 0]
    return instance_of(_federation(P, rewards, discount))


def outsider(discount: float) -> Instances:
    """Only a rare client takes part. It stays at x and slowly falls at y; the other client stays at y and falls at x.

    A reward for y makes the rare client indifferent, and it chooses x. The imaginary MDP, which is nearly the other
    client, loses 2 gamma p L^2: half of Proposition 7 and all of its sharper form, for every discount.
    """
    _, low, x, y = range(4)
    P = _staying(2, 4, 2)
    P[:, 0] = np.eye(4)[[x, y]]
    for client, state, action in ((1, x, 0), (0, y, 1)):
        P[client, state] = P[client, 0, action] = (1 - SLOW) * np.eye(4)[state] + SLOW * np.eye(4)[low]
    rewards = np.ones((4, 2))
    rewards[low] = 0
    staying, falling = 1 / (1 - discount), 1 / (1 - discount * (1 - SLOW))
    rewards[0] = [0, discount * (staying - (1 - SLOW) * falling) - MARGIN]
    weights = np.array([RARE, 1 - RARE])
    return instance_of(_federation(P, rewards, discount, weights), participation=FIRST_CLIENT)


def half_blind(discount: float = 0.9, size: float = 0.0, weight: float = RARE) -> Instances:
    """For the rare client that takes part two actions are equal; for the other client one is good and one is bad.

    Half of Proposition 9 and all of its sharper form. `size`: as in `own_exits`. `weight`: that of the rare client; it
    is also the share of the loss that remains if both clients take part, or are drawn.
    """
    _, high, low = np.eye(3)
    P = _staying(2, 3, 2)
    P[0, 0], P[1, 0] = (high + low) / 2, [low, high]
    rewards = np.zeros((3, 2))
    rewards[0, 0], rewards[1] = MARGIN, 1
    return instance_of(
        _federation(P, rewards, discount, np.array([weight, 1 - weight])),
        delta=np.full(2, size),
        noise=np.broadcast_to(high - low, (1, 2, 3)),
        participation=FIRST_CLIENT,
        client_policies=np.eye(2)[[[0] * 3, [1] * 3]],
        values=high,
    )


def opposite_logits() -> Instances:
    """Against Remark 13: two log-linear clients that prefer different actions."""
    preference = np.array([[[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]]])
    return instance_of(_federation(_staying(2, 1, 3), np.zeros((1, 3)), 0.9), preference=preference)


def small_discount(discount: float) -> Instances:
    """Against Sec. 3.2 and Remark 11; see `counterexamples.small_discount`."""
    return instance_of(counterexamples.small_discount(discount))


def skewed_crowd() -> Instances:
    """Against Remark 8; see `counterexamples.skewed_crowd`."""
    return instance_of(counterexamples.skewed_crowd().federation)


def threshold_not_enough() -> Instances:
    """Against Remark 8; see `counterexamples.threshold_not_enough`."""
    federation, client = counterexamples.threshold_not_enough()
    return instance_of(federation, participation=np.eye(federation.num_clients)[client])


def threshold_not_needed() -> Instances:
    """Against Remark 8; see `counterexamples.threshold_not_needed`."""
    federation, client = counterexamples.threshold_not_needed()
    return instance_of(federation, participation=np.eye(federation.num_clients)[client])


def unlucky_selection() -> Instances:
    """Against Proposition 14 for partial participation; see `counterexamples.unlucky_selection`."""
    federation, faults, mask = counterexamples.unlucky_selection()
    shares = np.asarray(faults.epsilon) * (1 - federation.discount)
    return instance_of(federation, epsilon=shares, participation=mask * 1.0)


def one_improves(A: int) -> Instances:
    """Client 0 goes from the worst actions to the best ones, client 1 stays with the worst. One client is drawn.

    Half of the bound on the error of a drawn round, for any number of actions and any probabilities.
    """
    best, worst = _half(A, 0), _half(A, 1)
    federation = _good_and_bad_actions(A)
    return instance_of(
        _federation(federation.transitions, federation.rewards, 0.9, np.array([0.25, 0.75])),
        policy=worst,
        client_policies=np.stack([best, worst]),
        values=np.array([0.0, 1.0, 0.0]),
        draw_probabilities=[0.4, 0.6],
    )


def one_favourite(weights: ArrayLike, probabilities: ArrayLike) -> Instances:
    """See `counterexamples.one_favourite`. The learning potentials of the clients are in the proportion 3 to 1."""
    federation = counterexamples.one_favourite(weights)
    return instance_of(federation, policy=np.full((3, 2), 1 / 2), draw_probabilities=probabilities)


_FULL = ("lemma-5", "lemma-6")
_PARTIAL = ("proposition-7", "proposition-9")
_LASTING = 1 - 0.7**ROUNDS
"""The share of its limit that the gap of `oscillation` reaches within the rounds of a run."""


def _with_sharper(claims: Iterable[str], ratio: float, sharper: float) -> dict[str, float]:
    return {claim: ratio for claim in claims} | {f"{claim}-sharper": sharper for claim in claims}


WORST_CASES: dict[str, WorstCase] = {
    # Sec. 2.2 and Definition 2.
    "constant-difference": WorstCase(constant_difference, {"contraction": 1}),
    "shared-successor": WorstCase(shared_successor, {"monotonicity": 1}),
    "one-differing-action": WorstCase(one_differing_action, {"kappa-action": 1, "kappa-order": 1}),
    "opposite-pairs": WorstCase(opposite_pairs, {"kappa-order-back": 11 / 12}),
    # Proposition 1, and with identical clients Theorem 10 and Proposition 14.
    "oscillating-improvement": WorstCase(
        lambda: oscillation("epsilon"),
        {"proposition-1": _LASTING, "proposition-14": _LASTING, **_with_sharper(["theorem-10"], _LASTING, _LASTING)},
    ),
    "oscillating-evaluation": WorstCase(
        lambda: oscillation("delta"),
        {"proposition-1": _LASTING, "proposition-14": _LASTING, **_with_sharper(["theorem-10"], _LASTING, _LASTING)},
    ),
    "oscillating-aggregate": WorstCase(
        lambda: oscillation("value_aggregation"),
        {"proposition-14": _LASTING / 2, **_with_sharper(["theorem-10"], _LASTING, _LASTING)},
    ),
    "oscillating-selection": WorstCase(
        lambda: oscillation("epsilon", participation=FIRST_CLIENT),
        {"proposition-14-mended": _LASTING, "proposition-14-printed": 2 * _LASTING},
    ),
    "short-oscillating-improvement": WorstCase(
        lambda: oscillation("epsilon", 0.2, rounds=CYCLE), {"theorem-10-printed": 1 - 0.2**CYCLE}
    ),
    "short-oscillating-evaluation": WorstCase(
        lambda: oscillation("delta", 0.2, rounds=CYCLE, large=True), {"theorem-10-printed": 1 - 0.2**CYCLE}
    ),
    "leaking-policy": WorstCase(
        leaking_policy, {"proposition-14": 0.4495006, **_with_sharper(["theorem-10"], 0.4495006, 0.8990011)}
    ),
    # Lemmas 4, 15, 16 and 17, and Eq. (8).
    "rare-detour": WorstCase(
        rare_detour,
        {"equation-8": 0.2474575, "theorem-10-any": 0.2474575, **_with_sharper(["lemma-4"], 0.2474575, 0.4949150)},
    ),
    "fork": WorstCase(fork, {"lemma-4-sharper": 0.9982024}),
    "biased-evaluations": WorstCase(biased_evaluations, {"equation-8": 1}),
    "two-exits": WorstCase(
        two_exits, {"lemma-15-printed": 15, "mean-operator-bound": 1, **_with_sharper(["lemma-15"], 1 / 2, 1)}
    ),
    "opposed-policies-2": WorstCase(
        lambda: opposed_policies(2), {"lemma-16-printed": 13.55, **_with_sharper(["lemma-16"], 1 / 2, 1)}
    ),
    "opposed-policies-4": WorstCase(lambda: opposed_policies(4), _with_sharper(["lemma-16"], 1 / 2, 1)),
    "slow-fall": WorstCase(slow_fall, _with_sharper(["lemma-17"], 0.4995504, 0.9991008)),
    # Lemmas 5 and 6, Propositions 7 and 9: errors of identical clients.
    "faulty-clients": WorstCase(
        faulty_clients,
        {"lemma-6-printed": 1, "proposition-7-printed": 1, **_with_sharper([*_FULL, *_PARTIAL], 1, 1)},
    ),
    "spoiled-aggregate-2": WorstCase(lambda: spoiled_aggregate(2), _with_sharper([*_FULL, *_PARTIAL], 1 / 2, 1)),
    "spoiled-aggregate-4": WorstCase(lambda: spoiled_aggregate(4), _with_sharper([*_FULL, *_PARTIAL], 1 / 2, 1)),
    "shifted-aggregate": WorstCase(
        shifted_aggregate, _with_sharper(["lemma-6"], 1 / 3, 1) | _with_sharper(["proposition-7"], 1 / 2, 1)
    ),
    "own-favourites": WorstCase(own_favourites, _with_sharper(["lemma-6"], 5 / 12, 5 / 12)),
    "own-favourites-any": WorstCase(lambda: own_favourites(large=True), {"lemma-6-printed": 5 / 12}),
    "outvoted": WorstCase(outvoted, _with_sharper(["proposition-7"], 1 - RARE / 2.5, 1 - RARE / 2.5)),
    "outvoted-any": WorstCase(lambda: outvoted(large=True), {"proposition-7-printed": 1 - RARE / 2.5}),
    # The same: heterogeneity.
    "own-exits": WorstCase(
        own_exits, {"equation-7": 27, "lemma-5-exact": 1 / 4, **_with_sharper(["lemma-5"], 1 / 4, 1)}
    ),
    "rivals-near": WorstCase(
        lambda: rivals(NEAR),
        {
            "lemma-6-exact": 0.4950483,
            "theorem-10-exact": 0.1638849,
            **_with_sharper(["lemma-6"], 0.4950483, 0.9900966),
            **_with_sharper(["theorem-10"], 0.1638849, 0.9703912),
        },
    ),
    "rivals-far": WorstCase(
        lambda: rivals(FAR), {"lemma-6-exact": 0.2559362, **_with_sharper(["lemma-6"], 0.2559362, 0.5118723)}
    ),
    "outsider-near": WorstCase(
        lambda: outsider(NEAR),
        {"proposition-7-exact": 0.4999992, **_with_sharper(["proposition-7"], 0.4999992, 0.9999985)},
    ),
    "outsider-far": WorstCase(
        lambda: outsider(FAR),
        {"proposition-7-exact": 0.4990518, **_with_sharper(["proposition-7"], 0.4990518, 0.9981036)},
    ),
    "half-blind": WorstCase(half_blind, {"proposition-9-exact": 1 / 2, **_with_sharper(["proposition-9"], 1 / 2, 1)}),
    "half-blind-near": WorstCase(
        lambda: half_blind(NEAR), {"theorem-10-exact": 0.4900402, **_with_sharper(["theorem-10"], 0.4900402, 0.9800999)}
    ),
    "all-errors": WorstCase(
        all_errors, {"theorem-10-forms": 0, **_with_sharper(["theorem-10"], 0.04886981, 0.1706534)}
    ),
    # Drawn clients.
    "half-blind-often": WorstCase(
        lambda: half_blind(weight=0.25), {"drawn-mean": 0, "drawn-improvement": 1, "fixed-improvement": 4}
    ),
    "one-improves-2": WorstCase(
        lambda: one_improves(2), {"drawn-mean": 0, **_with_sharper(["drawn-round", "drawn-pair"], 1 / 2, 1)}
    ),
    "one-improves-4": WorstCase(lambda: one_improves(4), _with_sharper(["drawn-round", "drawn-pair"], 1 / 2, 1)),
    "one-favourite": WorstCase(lambda: one_favourite([0.5, 0.5], [0.75, 0.25]), {"drawn-table": 0, "allocation": 1}),
    "even-favourites": WorstCase(
        lambda: one_favourite([0.25, 0.75], [0.5, 0.5]), {"allocation": 1, "allocation-excess": 1}
    ),
    "uneven-favourites": WorstCase(
        lambda: one_favourite([0.25, 0.75], [0.75, 0.25]), {"allocation": 3 / 4, "allocation-excess": 1}
    ),
    # Counterexamples.
    "reach-or-not": WorstCase(reach_or_not, {"lemma-3": 2 / 1.1}),
    "coin-flip": WorstCase(coin_flip, {"mean-operator": np.inf}),
    "overvalued-exits": WorstCase(lambda: own_exits(size=0.5), {"lemma-5-printed": 5.25}),
    "overvalued-half-blind": WorstCase(lambda: half_blind(size=0.5), {"proposition-9-printed": 10.5}),
    "small-discount": WorstCase(lambda: small_discount(0.2), {"tighter": 4 / 3}),
    "tiny-discount": WorstCase(
        lambda: small_discount(0.001), {"tighter": 1.996004, "tighter-sharper": 0.998002, "remark-11": 1.990032}
    ),
    "threshold-not-enough": WorstCase(threshold_not_enough, {"remark-8-enough": 1.0003554}),
    "threshold-not-needed": WorstCase(threshold_not_needed, {"remark-8-needed": 33 / 8}),
    "skewed-crowd": WorstCase(
        skewed_crowd,
        {  # five clients, kappa_1 and kappa_2 differ
            "remark-8-nearest": 1.2642857,
            "theorem-10-forms": 0,
            **_with_sharper(["lemma-4"], 0.03720457, 0.07440914),
            **_with_sharper(["tighter"], 0.04501608, 0.02250804),
        },
    ),
    "opposite-logits": WorstCase(opposite_logits, {"remark-13": np.inf}),
    "unlucky-selection": WorstCase(unlucky_selection, {"proposition-14-printed": 10}),
}
"""Worst cases by name. Ratios are exact or rounded to seven digits."""
