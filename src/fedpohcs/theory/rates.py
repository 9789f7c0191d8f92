"""Aggregation errors of two-layer ReLU networks by width and radius, and the stated rates. Paper: Lemmas 12, 18, 19.

Rates describe the worst weights in a ball, which are constructed here. Errors are means over initialisations.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpohcs.theory import bounds
from fedpohcs.theory.mdp import Array
from fedpohcs.theory.networks import initial_weights, linearised, network, softmax

INPUT_SIZE = 8
REPETITIONS = 12
WIDTHS = (64, 256, 1024, 4096, 16384)
RADII = (0.003, 0.01, 0.03, 0.1, 0.3)
RADIUS = 0.3
WIDTH = 1024


class Start(NamedTuple):
    """A network with initial weights, and one input of length 1."""

    weights: Array
    signs: Array
    input: Array


def start(generator: np.random.Generator, width: int, *, large: bool = False) -> Start:
    """A random initialisation. `large`: weights of length 1 (variance 1/d) in place of the paper's 1/sqrt(m) (1/(d m)).

    The works that the paper's lemma builds on use the large weights.
    """
    weights = initial_weights(generator, width, INPUT_SIZE, np.sqrt(width) if large else 1.0)
    direction = generator.standard_normal(INPUT_SIZE)
    return Start(weights, generator.choice([-1.0, 1.0], width), direction / np.linalg.norm(direction))


def worst_move(at: Start, radius: float) -> Array:
    """The move v with ||v||_2 <= R that maximises |u_{w0+v}(x) - u^0_{w0+v}(x)|, up to one neuron.

    A neuron with |w_i x| = z that moves by z + y across 0 adds y to the difference, with its sign b_i. So only neurons
    of one sign should move. To maximise the sum of y_i for a limited sum of (z_i + y_i)^2, all of them move by the same
    distance c (Lagrange), and neurons with z_i < c / 2 increase the sum.
    """
    before = at.weights @ at.input
    distance = np.where(at.signs > 0, np.abs(before), np.inf)
    nearest = np.sort(distance[np.isfinite(distance)])
    count = np.arange(1, len(nearest) + 1)
    # The largest number k of nearest neurons such that moving the last one by c = R / sqrt(k) increases the sum.
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
    """|u_{w-bar}(x) - (u_{w_1}(x) + u_{w_2}(x)) / 2| of two clients with opposite moves. Lemma 12."""
    move = worst_move(at, radius)
    clients = np.stack([at.weights + move, at.weights - move])
    outputs = network(clients, at.signs, at.input[None])[:, 0]
    return float(np.abs(network(clients.mean(0), at.signs, at.input[None])[0] - outputs.mean()))


def policy_aggregation_error(at: Start, radius: float) -> float:
    """||pi_{theta-bar} - (pi_{theta_1} + pi_{theta_2}) / 2||_2 of the same clients and two actions. Lemma 12."""
    move = worst_move(at, radius)
    clients = np.stack([at.weights + move, at.weights - move])
    inputs = np.stack([at.input, np.roll(at.input, 1)])
    policies = softmax(network(clients, at.signs, inputs))
    return float(np.linalg.norm(softmax(network(clients.mean(0), at.signs, inputs)) - policies.mean(0)))


def same_action_difference(at: Start, radius: float) -> float:
    """|u_w(x) - u_w'(x)| of two clients. Paper: Lemma 19. It is at most 2 R, because ReLU is 1-Lipschitz."""
    move = _uphill(at, radius)
    outputs = [network(at.weights + side * move, at.signs, at.input[None])[0] for side in (1, -1)]
    return float(abs(outputs[0] - outputs[1]))


def other_action_difference(at: Start, radius: float) -> float:
    """|u_w(x) - u_w'(x')| for two actions. Paper: Lemma 19. It is not 0 at R = 0, because the inputs differ."""
    move = _uphill(at, radius)
    first = network(at.weights + move, at.signs, at.input[None])[0]
    return float(abs(first - network(at.weights - move, at.signs, np.roll(at.input, 1)[None])[0]))


def _uphill(at: Start, radius: float) -> Array:
    """The move of length R along the gradient of the output at x if all neurons were active."""
    return radius / np.sqrt(len(at.signs)) * at.signs[:, None] * at.input


def by_width(
    error: Callable[[Start, float], float], *, widths: Sequence[int] = WIDTHS, large: bool = False, seed: int = 0
) -> Array:
    """The mean error over initialisations per width, at radius `RADIUS`."""
    return np.array([_mean(error, width, RADIUS, large, seed) for width in widths])


def by_radius(
    error: Callable[[Start, float], float], *, radii: Sequence[float] = RADII, large: bool = False, seed: int = 0
) -> Array:
    """The mean error over initialisations per radius, at width `WIDTH`."""
    return np.array([_mean(error, WIDTH, radius, large, seed) for radius in radii])


def _mean(error: Callable[[Start, float], float], width: int, radius: float, large: bool, seed: int) -> float:
    generator = np.random.default_rng([seed, width])
    return float(np.mean([error(start(generator, width, large=large), radius) for _ in range(REPETITIONS)]))


def exponent(sizes: Sequence[float], errors: Array) -> float:
    """The slope of log(error) against log(size), by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(errors, 1e-300)), 1)[0])


class Statement(NamedTuple):
    """A rate that the paper states, and what is documented about it.

    Attributes:
        place: The lemma; a + marks a form of ours.
        text: The error, and the variable in which the rate is stated.
        exponent: The exponent that the paper prints.
        stated: The stated rate as a function of radius and width.
        error: The measured error of a network at its worst weights in the ball.
        in_width: Whether the rate is one in the width m; otherwise it is one in the radius R.
        large: Whether weights have variance 1/d in place of the paper's 1/(d m).
        worst: The exponent of the worst case. None: it depends on the range of radii.
        holds: Whether the worst case obeys the stated rate.
    """

    place: str
    text: str
    exponent: float
    stated: Callable[[ArrayLike, ArrayLike], Array]
    error: Callable[[Start, float], float]
    in_width: bool = False
    large: bool = False
    worst: float | None = None
    holds: bool = True


class Rate(NamedTuple):
    """A stated exponent beside the measured one.

    Attributes:
        statement: The stated rate.
        stated: The exponent of `statement.stated`.
        measured: The exponent of the worst case, fitted.
    """

    statement: Statement
    stated: float
    measured: float

    @property
    def holds(self) -> bool:
        """Whether the worst case obeys the stated rate: the error decreases at least as fast."""
        if self.statement.in_width:
            return self.measured <= self.stated + TOLERANCE
        return self.measured >= self.stated - TOLERANCE

    @property
    def complaints(self) -> list[str]:
        """One line per difference from what is documented."""
        known, lines = self.statement, []
        if abs(self.stated - known.exponent) > EXACT:
            lines.append(f"states the exponent {self.stated:.2f}, printed is {known.exponent:.2f}")
        if self.holds != known.holds:
            lines.append(f"is documented to {'hold' if known.holds else 'be violated'}, and is not")
        if known.worst is not None and abs(self.measured - known.worst) > SPREAD:
            lines.append(f"has a worst case with the exponent {self.measured:.2f}, documented is {known.worst:.2f}")
        return [f"{known.place} ({known.text}) {line}." for line in lines]


EXACT = 1e-9
TOLERANCE = 0.02
"""Error of a fitted exponent when it is compared with a stated one."""
SPREAD = 0.05
"""Error of a fitted exponent over seeds."""


def _stated_values(radius: ArrayLike, width: ArrayLike) -> Array:
    return bounds.linearisation_rate(radius, width, 1.0)


def _stated_policies(radius: ArrayLike, width: ArrayLike) -> Array:
    return bounds.policy_aggregation_rate(radius)


def _stated_outputs(radius: ArrayLike, width: ArrayLike) -> Array:
    return bounds.output_difference_rate(radius)


def _value_statements(place: str, name: str, error: Callable[[Start, float], float]) -> list[Statement]:
    """The rate in the width, which is false for the stated initialisation and true for a larger one, and in R."""
    in_width = Statement(place, f"{name}, in the width m", -0.1, _stated_values, error, in_width=True, worst=0)
    larger = in_width._replace(place=f"{place} +", text="the same with variance 1/d", large=True, worst=-1 / 6)
    in_radius = Statement(place, f"{name}, in the radius R", 1.2, _stated_values, error, worst=4 / 3)
    return [in_width._replace(holds=False), larger, in_radius]


STATEMENTS = [
    *_value_statements("Lemma 18", "linearisation", linearisation_error),
    *_value_statements("Lemma 12", "value aggregation", value_aggregation_error),
    Statement(
        "Lemma 12", "policy aggregation, in the radius R", 0.5, _stated_policies, policy_aggregation_error, worst=4 / 3
    ),
    Statement("Lemma 19", "outputs at one action, in R", 1.0, _stated_outputs, same_action_difference, worst=1),
    Statement("Lemma 19", "outputs at two actions, in R", 1.0, _stated_outputs, other_action_difference, holds=False),
]


def measured_rates(seed: int = 0) -> list[Rate]:
    """The stated rates of Lemmas 12, 18 and 19 beside those of the worst weights in the ball."""
    return [_measured(statement, seed) for statement in STATEMENTS]


def _measured(statement: Statement, seed: int) -> Rate:
    if statement.in_width:
        sizes, stated = WIDTHS, statement.stated(RADIUS, WIDTHS)
        errors = by_width(statement.error, large=statement.large, seed=seed)
    else:
        sizes, stated = RADII, statement.stated(RADII, WIDTH)
        errors = by_radius(statement.error, large=statement.large, seed=seed)
    return Rate(statement, exponent(sizes, stated), exponent(sizes, errors))
