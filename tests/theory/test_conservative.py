"""CPI and SPI: guarantees on random MDPs, hand-worked coefficients, and conservative clients in FAPI."""

import numpy as np
import pytest

from fedpohcs.core.errors import UserError
from fedpohcs.theory import bounds, run_fapi, worlds
from fedpohcs.theory.conservative import (
    Conservative,
    CpiMixing,
    Gain,
    conservative_step,
    cpi_bound,
    gain_of,
    mixed,
    normalised_advantage,
    spi_bound,
    spi_mixing,
)
from fedpohcs.theory.iteration import measured_errors
from fedpohcs.theory.mdp import TabularMDP
from fedpohcs.theory.operators import (
    action_values,
    average_values,
    evaluate,
    expected_return,
    greedy_policy,
    optimal_policy,
    sup_norm,
)

STACK = 2_000


def random_stack(seed: int) -> tuple[TabularMDP, np.ndarray, np.ndarray]:
    """MDPs with discounts from 0.05 to 0.99, a policy for each, and any other policy as the target."""
    generator = np.random.default_rng(seed)
    P = generator.dirichlet(np.full(4, 0.3), (STACK, 4, 3))
    start = generator.dirichlet(np.ones(4), STACK)
    mdps = TabularMDP(P, generator.random((STACK, 4, 3)), generator.uniform(0.05, 0.99, STACK), start)
    policy, target = generator.dirichlet(np.full(3, 0.5), (2, STACK, 4))
    return mdps, policy, target


@pytest.mark.parametrize("greedy", [True, False])
def test_the_bound_of_spi_is_never_violated(greedy: bool) -> None:
    mdps, policy, target = random_stack(0)
    q = action_values(mdps, evaluate(mdps, policy))
    target = greedy_policy(q) if greedy else target
    gain = gain_of(mdps, policy, target, q)
    before = expected_return(mdps, policy)
    for alpha in (spi_mixing(gain), np.full(STACK, 0.1), np.full(STACK, 0.6), np.ones(STACK)):
        gained = expected_return(mdps, mixed(policy, target, alpha)) - before
        assert (gained >= spi_bound(gain, alpha) - 1e-9 * (1 + np.abs(before))).all()


def test_the_bound_of_spi_is_reached() -> None:
    """A state of two actions and no other state: the gain is linear in alpha, and Delta is 0."""
    mdp = TabularMDP(np.ones((1, 2, 1)), [[0.0, 1.0]], 0.5)
    step = conservative_step(mdp, np.array([[0.75, 0.25]]))
    assert step.alpha == 1
    np.testing.assert_allclose(spi_bound(step.gain, step.alpha), 2 - 0.5)
    np.testing.assert_allclose(expected_return(mdp, step.policy), 2.0)


def test_quantities_of_a_step_worked_by_hand() -> None:
    """From state 0 every action leads to state 1, which absorbs and pays 1 for action 1; state 0 pays 1 for action 0.

    With gamma = 1/2 and the uniform policy: visits (1, 1) from state 0, V(1) = 1, V(0) = 1/2 + 1/2.
    Q(0,.) = (3/2, 1/2), Q(1,.) = (1/2, 3/2): the greedy policy gains 1/2 in both states.
    """
    P = np.zeros((2, 2, 2))
    P[:, :, 1] = 1
    mdp = TabularMDP(P, [[1.0, 0.0], [0.0, 1.0]], 0.5, [1.0, 0.0])
    step = conservative_step(mdp, np.full((2, 2), 0.5))
    np.testing.assert_allclose([step.gain.advantage, step.gain.distance, step.gain.range], [1.0, 1.0, 0.0])
    np.testing.assert_allclose(step.policy, [[1, 0], [0, 1]])
    cautious = conservative_step(mdp, np.full((2, 2), 0.5), CpiMixing())
    # A = (1/2)^2 * 1, alpha = (1/2) (1/4) / 4
    np.testing.assert_allclose(normalised_advantage(cautious.gain), 0.25)
    np.testing.assert_allclose(cautious.alpha, 1 / 32)
    np.testing.assert_allclose(cautious.policy[0], [0.5 + 0.5 / 32, 0.5 - 0.5 / 32])


def gain(advantage: float, distance: float = 1.0, spread: float = 1.0) -> Gain:
    return Gain(*(np.float64(x) for x in (advantage, distance, spread, 0.5, 1.0)))


def test_the_coefficient_of_spi_maximises_its_bound() -> None:
    grid = np.linspace(0, 1, 2001)
    for given in (gain(0.3), gain(1.0, 2.0, 0.7), gain(5.0), gain(-0.2), gain(0.0), gain(0.4, 0.0, 0.0)):
        best = grid[np.argmax(spi_bound(given, grid))]
        np.testing.assert_allclose(spi_mixing(given), best, atol=1e-3)


def test_cpi_stops_below_two_thirds_of_its_tolerance() -> None:
    rho = 0.3
    below, above = gain(0.19 * 4), gain(0.21 * 4)  # normalised: times (1 - gamma)^2 = 1/4
    assert CpiMixing(rho)(below) == 0
    np.testing.assert_allclose(CpiMixing(rho)(above), 0.5 * (0.21 - 0.1) / 4)


def test_cpi_gains_at_least_what_its_corollary_says() -> None:
    mdps, policy, _ = random_stack(1)
    step = conservative_step(mdps, policy, CpiMixing())
    gained = expected_return(mdps, step.policy) - expected_return(mdps, policy)
    assert (gained >= cpi_bound(step.gain) - 1e-12).all()
    assert (gained > 0).mean() > 0.99
    assert ((step.alpha >= 0) & (step.alpha <= 0.25)).all()


def test_spi_takes_longer_steps_than_cpi_and_never_loses() -> None:
    mdps, policy, _ = random_stack(2)
    spi, cpi = (conservative_step(mdps, policy, mixing) for mixing in (spi_mixing, CpiMixing()))
    assert (spi.alpha >= cpi.alpha - 1e-12).all()
    assert (expected_return(mdps, spi.policy) >= expected_return(mdps, policy) - 1e-9).all()


def test_repeated_steps_of_spi_reach_the_optimum() -> None:
    mdp = worlds.random_federation(1, 4, 3, discount=0.6, seed=1).imaginary
    policy = np.full((4, 3), 1 / 3)
    for _ in range(300):
        policy = conservative_step(mdp, policy).policy
    np.testing.assert_allclose(expected_return(mdp, policy), expected_return(mdp, optimal_policy(mdp)), rtol=1e-3)


def test_conservative_clients_in_fapi_take_each_its_own_step() -> None:
    made = worlds.random_federation(3, 4, 3, discount=0.6, seed=4)
    run = run_fapi(made, 1, algorithm=2, model=Conservative(made.clients))
    steps = conservative_step(made.clients, run.policies[0][None])
    np.testing.assert_allclose(run.policies[1], steps.policy.mean(0))
    q = action_values(made.clients, evaluate(made.clients, run.policies[0][None]))
    np.testing.assert_allclose(run.improvement_errors[0], sup_norm(q.max(-1) - (steps.policy * q).sum(-1)))


@pytest.mark.parametrize("mixing", [spi_mixing, CpiMixing()])
def test_the_theorem_holds_for_conservative_clients(mixing) -> None:
    for seed in range(5):
        made = worlds.random_federation(3, 4, 3, heterogeneity=0.1, discount=0.5, seed=seed)
        run = run_fapi(made, 60, algorithm=2, model=Conservative(made.clients, mixing))
        setting = bounds.setting_of(made)
        bound = bounds.fapi(setting, measured_errors(run, since=30), 2).total
        best = average_values(made, optimal_policy(made.imaginary))
        assert sup_norm(run.average_values[-1] - best) <= bound


def test_a_whole_step_is_the_greedy_step_of_fapi() -> None:
    made = worlds.random_federation(3, 4, 3, seed=2)
    greedy = run_fapi(made, 4, algorithm=2)
    whole = run_fapi(made, 4, algorithm=2, model=Conservative(made.clients, lambda gain: np.ones(gain.advantage.shape)))
    np.testing.assert_allclose(whole.policy, greedy.policy, atol=1e-12)


def test_a_negative_tolerance_is_refused() -> None:
    with pytest.raises(UserError, match=r"tolerance \(=-1\) must not be negative"):
        CpiMixing(-1)
