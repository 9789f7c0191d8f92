"""The two recursions over a client's transitions: visitation and policy evaluation. Paper: Sec. 4.2."""

import numpy as np
from numba import njit

from fedpohcs.core.types import Vector
from fedpohcs.metrics.sparse import (
    LANES,
    SlicedRows,
    SparseRows,
    SplitRows,
    follow_paths,
    slice_rows,
    split_rows,
    transpose,
)

# Sums may be reordered and fused; NaN and infinity keep their meaning, and dividing by 0 gives them instead of raising.
_kernel = njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")
VISITATION_TOLERANCE = 5e-7  # of the L1 distance to the full recursion
VALUE_TOLERANCE = 1e-6  # of the sup-norm error, relative to the largest value
_STEPS_BETWEEN_CHECKS = 32
_SWEEPS_BETWEEN_CHECKS = 8
_MOST_ITERATIONS = 200


def visitation(transitions: SparseRows, start: Vector, horizon: int, tolerance: float = VISITATION_TOLERANCE) -> Vector:
    """D(s): the share of time in each state, by D_{t+1}(s') = sum_s D_t(s) P_pi(s'|s) from D_0 = mu; sums to 1.

    The `horizon` terms D_0, D_1, ... are added up. Once D_t only shrinks by a constant factor, the rest is a geometric
    series. It is summed at once when that provably moves D by less than `tolerance`; 0 runs the full recursion.

    Paper: Sec. 4.2, the recursion of D_{n,s',t}. Here D is normalised, as the authors' code does, so that clients with
    short episodes compare with others.
    """
    sliced = SlicedRows(*slice_rows(*transpose(*transitions)))
    total = np.empty(len(start))
    total[sliced.order] = _add_up_visits(*sliced, start, horizon, tolerance)[: len(start)]
    return total / total.sum()


def evaluate_policy(
    transitions: SparseRows, reward: Vector, discount: float, tolerance: float = VALUE_TOLERANCE
) -> Vector:
    """V = r_pi + gamma P_pi V, to a certified relative error of `tolerance` in the sup norm.

    P_pi never stretches the sup norm, so the error is at most the largest residual over 1 - gamma. BiCGSTAB gets there
    in few iterations, preconditioned by a sweep backwards along the paths; where it fails, Gauss-Seidel sweeps,
    which contract by gamma, finish. Paper: Sec. 4.2.
    """
    order = follow_paths(transitions.begin, transitions.column)
    split = SplitRows(*split_rows(*transitions, discount, order))
    # A residual below 1e-13 is rounding error.
    goal = max(tolerance * (1 - discount), 1e-13)
    value = np.empty(len(reward))
    value[order] = _finish(split, reward[order], _accelerate(split, reward[order], goal), goal)
    return value


@_kernel
def _advance(begin, column, value, before, after):
    """One step of the recursion: after = P_pi^T before."""
    for part in range(len(begin) - 1):
        row = np.uint64(part * LANES)
        for lane in range(LANES):
            after[row + np.uint64(lane)] = 0.0
        for entry in range(begin[part], begin[part + 1], LANES):
            for lane in range(LANES):
                here = np.uint64(entry + lane)
                after[row + np.uint64(lane)] += value[here] * before[column[here]]


@_kernel
def _add_up_visits(begin, column, value, order, start, horizon, tolerance):
    size = (len(begin) - 1) * LANES
    before = np.zeros(size)
    before[: len(order)] = start[order]
    after = np.zeros(size)
    total = before.copy()
    for step in range(1, horizon):
        _advance(begin, column, value, before, after)
        if step % _STEPS_BETWEEN_CHECKS == 0:
            rest = _geometric_rest(before, after, horizon - step, tolerance * total.sum())
            if rest >= 0:
                return total + rest * after
        total += after
        before, after = after, before
    return total


@_kernel
def _geometric_rest(before, after, steps, allowed):
    """The sum of the remaining terms as a multiple of `after`, if all shrink alike; -1 if that is not certain.

    With after = ratio before + e, the k-th next term is off by at most |e| (1 + ratio + ... + ratio^(k-1)).
    """
    mass = before.sum()
    ratio = min(after.sum() / mass, 1.0) if mass > 0 else 0.0
    distance = 0.0
    for state in range(len(before)):
        distance += abs(after[state] - ratio * before[state])
    loss = 1 - ratio
    # Halved, because normalising can double an error.
    if steps * min(steps, 1 / loss) * distance > allowed / 2:
        return -1.0
    # (1 - ratio^steps) / (1 - ratio), written so that a ratio next to 1 does not cancel all digits.
    return -np.expm1(steps * np.log1p(-loss)) / loss if loss > 0 else float(steps)


@_kernel
def _finish(split, reward, value, goal):
    """Sweep until the certified error is reached; the given value mostly satisfies it already."""
    if not np.isfinite(value).all():
        value = np.zeros(len(value))
    while _largest_residual(split, reward, value) > goal * np.abs(value).max():
        for _ in range(_SWEEPS_BETWEEN_CHECKS):
            _sweep(split, reward, value)
    return value


@_kernel
def _accelerate(split, reward, goal):
    """BiCGSTAB (van der Vorst, 1992) for (I - gamma P_pi) V = r_pi, preconditioned by the diagonal and upper part."""
    size = len(reward)
    value, direction, image = np.zeros(size), np.zeros(size), np.zeros(size)
    step, half_step, half_image = np.zeros(size), np.zeros(size), np.zeros(size)
    residual = reward.copy()
    shadow = reward.copy()
    rho, alpha, omega = 1.0, 1.0, 1.0
    for _ in range(_MOST_ITERATIONS):
        previous, rho = rho, _dot(shadow, residual)
        if rho == 0.0 or omega == 0.0:
            break
        beta = rho / previous * alpha / omega
        for i in range(size):
            direction[i] = residual[i] + beta * (direction[i] - omega * image[i])
        _precondition_and_multiply(split, direction, step, image)
        alpha = rho / _dot(shadow, image)
        for i in range(size):
            residual[i] -= alpha * image[i]
        _precondition_and_multiply(split, residual, half_step, half_image)
        norm = _dot(half_image, half_image)
        omega = _dot(half_image, residual) / norm if norm > 0 else 0.0
        largest, scale = 0.0, 0.0
        for i in range(size):
            value[i] += alpha * step[i] + omega * half_step[i]
            residual[i] -= omega * half_image[i]
            largest = max(largest, abs(residual[i]))
            scale = max(scale, abs(value[i]))
        # Half the goal, because the true residual differs from this running one by rounding.
        if largest <= 0.5 * goal * scale:
            break
    return value


@_kernel
def _precondition_and_multiply(split, vector, solved, image):
    """Solves M solved = vector, M being I - gamma P_pi without its lower part; image = (I - gamma P_pi) solved.

    As M solved is `vector` itself, only the lower part is left to multiply.
    """
    for i in range(len(vector) - 1, -1, -1):
        later = _partial(split, solved, split.middle[i], split.begin[i + 1])
        solved[i] = (vector[i] + later) * split.inverse_diagonal[i]
    for i in range(len(vector)):
        image[i] = vector[i] - _partial(split, solved, split.begin[i], split.middle[i])


@_kernel
def _sweep(split, reward, value):
    """One Gauss-Seidel sweep from the last state to the first, which propagates rewards back along whole paths."""
    for i in range(len(value) - 1, -1, -1):
        expected = _partial(split, value, split.begin[i], split.begin[i + 1])
        value[i] = (reward[i] + expected) * split.inverse_diagonal[i]


@_kernel
def _largest_residual(split, reward, value):
    largest = 0.0
    for i in range(len(value)):
        expected = _partial(split, value, split.begin[i], split.begin[i + 1])
        largest = max(largest, abs(reward[i] + expected - value[i] / split.inverse_diagonal[i]))
    return largest


@_kernel
def _dot(left, right):
    # Without BLAS, which would start further threads.
    total = 0.0
    for i in range(len(left)):
        total += left[i] * right[i]
    return total


@_kernel
def _partial(split, vector, begin, end):
    total = 0.0
    for entry in range(begin, end):
        here = np.uint64(entry)
        total += split.value[here] * vector[split.column[here]]
    return total
