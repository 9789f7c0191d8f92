"""How aggregation errors of two-layer ReLU networks grow with width and radius, beside the stated rates. Lemmas 12-19.

Rates are about the worst weights in a ball, so the worst ones are constructed, and the mean is over initialisations.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedpohcs.theory.mdp import Array
from fedpohcs.theory.networks import initial_weights, linearised, network, softmax

INPUT_SIZE = 8
REPETITIONS = 12
WIDTHS = (64, 256, 1024, 4096, 16384)
RADII = (0.003, 0.01, 0.03, 0.1, 0.3)
RADIUS = 0.3
WIDTH = 1024


class Start(NamedTuple):
    """A network at its initialisation, and one input of length 1."""

    weights: Array
    signs: Array
    input: Array


def start(generator: np.random.Generator, width: int, *, large: bool = False) -> Start:
    """A random initialisation. `large`: weights of length 1 (variance 1/d) in place of the paper's 1/sqrt(m) (1/(d m)).

    The works that the paper's lemma builds on have the large weights.
    """
    weights = initial_weights(generator, width, INPUT_SIZE, np.sqrt(width) if large else 1.0)
    direction = generator.standard_normal(INPUT_SIZE)
    return Start(weights, generator.choice([-1.0, 1.0], width), direction / np.linalg.norm(direction))


def worst_move(at: Start, radius: float) -> Array:
    """The move v with ||v||_2 <= R that maximises |u_{w0+v}(x) - u^0_{w0+v}(x)|, up to the last neuron.

    A neuron with |w_i x| = z adds y to the difference, in the direction of its sign b_i, once it is moved by z + y
    across 0. So neurons of one sign should be moved. To maximise the sum of y_i with the sum of (z_i + y_i)^2 limited,
    all moved neurons move by the same c (Lagrange), and those with z_i < c / 2 are worth it.
    """
    before = at.weights @ at.input
    distance = np.where(at.signs > 0, np.abs(before), np.inf)
    nearest = np.sort(distance[np.isfinite(distance)])
    count = np.arange(1, len(nearest) + 1)
    # The largest number k of nearest neurons such that c = R / sqrt(k) still pays for the last of them.
    paying = np.flatnonzero(nearest < radius / np.sqrt(count) / 2)
    if not len(paying):
        return np.zeros_like(at.weights)
    k = paying[-1] + 1
    c = radius / np.sqrt(k)
    moved = distance <= nearest[k - 1]
    return np.where(moved, -np.sign(before) * c, 0.0)[:, None] * at.input


def linearisation_error(at: Start, radius: float) -> float:
    """|u_w(x) - u^0_w(x)| at the worst weights of the ball. Paper: Lemma 18."""
    weights = at.weights + worst_move(at, radius)
    x = at.input[None]
    return float(np.abs(network(weights, at.signs, x) - linearised(weights, at.weights, at.signs, x))[0])


def value_aggregation_error(at: Start, radius: float) -> float:
    """|u_{w-bar}(x) - (u_{w_1}(x) + u_{w_2}(x)) / 2| of two clients that moved in opposite directions. Lemma 12."""
    move = worst_move(at, radius)
    clients = np.stack([at.weights + move, at.weights - move])
    outputs = network(clients, at.signs, at.input[None])[:, 0]
    return float(np.abs(network(clients.mean(0), at.signs, at.input[None])[0] - outputs.mean()))


def policy_aggregation_error(at: Start, radius: float) -> float:
    """||pi_{theta-bar} - (pi_{theta_1} + pi_{theta_2}) / 2||_2 of the same clients, with a second action. Lemma 12."""
    move = worst_move(at, radius)
    clients = np.stack([at.weights + move, at.weights - move])
    inputs = np.stack([at.input, np.roll(at.input, 1)])
    policies = softmax(network(clients, at.signs, inputs))
    return float(np.linalg.norm(softmax(network(clients.mean(0), at.signs, inputs)) - policies.mean(0)))


def same_action_difference(at: Start, radius: float) -> float:
    """|u_w(x) - u_w'(x)| of two clients. Paper: Lemma 19. Never more than 2 R: ReLU is 1-Lipschitz."""
    move = _uphill(at, radius)
    outputs = [network(at.weights + side * move, at.signs, at.input[None])[0] for side in (1, -1)]
    return float(abs(outputs[0] - outputs[1]))


def other_action_difference(at: Start, radius: float) -> float:
    """|u_w(x) - u_w'(x')| for two actions. Paper: Lemma 19. Not 0 at R = 0: the inputs differ, too."""
    move = _uphill(at, radius)
    first = network(at.weights + move, at.signs, at.input[None])[0]
    return float(abs(first - network(at.weights - move, at.signs, np.roll(at.input, 1)[None])[0]))


def _uphill(at: Start, radius: float) -> Array:
    """A move of length R that raises the output at x by as much as small moves can."""
    return radius / np.sqrt(len(at.signs)) * at.signs[:, None] * at.input


def by_width(
    error: Callable[[Start, float], float], *, widths: Sequence[int] = WIDTHS, large: bool = False, seed: int = 0
) -> Array:
    """The mean error over initialisations, for every width, at radius `RADIUS`."""
    return np.array([_mean(error, width, RADIUS, large, seed) for width in widths])


def by_radius(
    error: Callable[[Start, float], float], *, radii: Sequence[float] = RADII, large: bool = False, seed: int = 0
) -> Array:
    """The mean error over initialisations, for every radius, at width `WIDTH`."""
    return np.array([_mean(error, WIDTH, radius, large, seed) for radius in radii])


def _mean(error: Callable[[Start, float], float], width: int, radius: float, large: bool, seed: int) -> float:
    generator = np.random.default_rng([seed, width])
    return float(np.mean([error(start(generator, width, large=large), radius) for _ in range(REPETITIONS)]))


def exponent(sizes: Sequence[float], errors: Array) -> float:
    """The slope of log(error) against log(size), by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(errors, 1e-300)), 1)[0])


class Rate(NamedTuple):
    """A stated rate and a measured one.

    Attributes:
        place: Where it is stated.
        statement: Of what, in what.
        stated: The exponent of the paper.
        measured: The exponent of the worst case, fitted.
        holds: Whether the worst case obeys the stated rate: errors shrink at least as fast.
    """

    place: str
    statement: str
    stated: float
    measured: float
    holds: bool


TOLERANCE = 0.02
"""Fitted exponents are that exact."""


def measured_rates(seed: int = 0) -> list[Rate]:
    """The stated rates of Lemmas 12, 18 and 19 beside those of the worst weights in the ball."""
    rows = (
        ("Lemma 18", "linearisation, in the width m", -0.1, linearisation_error, True, False),
        ("Lemma 18 +", "the same with variance 1/d", -0.1, linearisation_error, True, True),
        ("Lemma 18", "linearisation, in the radius R", 1.2, linearisation_error, False, False),
        ("Lemma 12", "value aggregation, in the width m", -0.1, value_aggregation_error, True, False),
        ("Lemma 12 +", "the same with variance 1/d", -0.1, value_aggregation_error, True, True),
        ("Lemma 12", "value aggregation, in the radius R", 1.2, value_aggregation_error, False, False),
        ("Lemma 12", "policy aggregation, in the radius R", 0.5, policy_aggregation_error, False, False),
        ("Lemma 19", "outputs at one action, in R", 1.0, same_action_difference, False, False),
        ("Lemma 19", "outputs at two actions, in R", 1.0, other_action_difference, False, False),
    )
    return [_rate(*row, seed) for row in rows]


def _rate(
    place: str,
    statement: str,
    stated: float,
    error: Callable[[Start, float], float],
    in_width: bool,
    large: bool,
    seed: int,
) -> Rate:
    if in_width:
        fitted = exponent(WIDTHS, by_width(error, large=large, seed=seed))
        return Rate(place, statement, stated, fitted, fitted <= stated + TOLERANCE)
    fitted = exponent(RADII, by_radius(error, large=large, seed=seed))
    return Rate(place, statement, stated, fitted, fitted >= stated - TOLERANCE)
