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
STRIDE = 8  # steps of a block; recurrences are sought among the first terms of blocks, because neighbours hardly differ
_ORDER = 32  # first terms that a recurrence reaches back
_SKETCH = 64  # numbers that stand for a term while a recurrence is fitted
_BLOCKS_BETWEEN_CHECKS = 4
_ROUNDING = 1e-13  # of the steps of a block, a residual and a recurrence, relative to what is added up; generous
_SWEEPS_BETWEEN_CHECKS = 8
_MOST_ITERATIONS = 200


def visitation(transitions: SparseRows, start: Vector, horizon: int, tolerance: float = VISITATION_TOLERANCE) -> Vector:
    """D(s): the share of time in each state, by D_{t+1}(s') = sum_s D_t(s) P_pi(s'|s) from D_0 = mu; sums to 1.

    The `horizon` terms D_0, D_1, ... are added up. Once a term nearly is a combination of earlier ones, all that follow
    are too (minimal polynomial extrapolation; Cabay and Jackson, 1976). Their sum is taken from these at once when that
    provably moves D by less than `tolerance`; 0 runs the full recursion.

    Paper: Sec. 4.2, the recursion of D_{n,s',t}. Here D is normalised, as the authors' code does, so that clients with
    short episodes compare with others.
    """
    sliced = SlicedRows(*slice_rows(*transpose(*transitions)))
    total = np.empty(len(start))
    total[sliced.order] = _add_up_visits(*sliced, start, horizon, tolerance)[: len(start)]
    total = np.maximum(total, 0.0)  # An extrapolated sum may be a little off; less than never is always too little.
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
    """The sum of the first `horizon` terms.

    In blocks of STRIDE steps, only first terms are added up one by one: their sum then takes the other steps for all.
    """
    size = (len(begin) - 1) * LANES
    now, after, total = np.zeros(size), np.empty(size), np.zeros(size)
    now[: len(order)] = start[order]
    for _ in range(horizon % STRIDE):
        _add(total, 1.0, now)
        _advance(begin, column, value, now, after)
        now, after = after, now
    now = _add_up_first_terms(begin, column, value, now, horizon // STRIDE, tolerance)
    for _ in range(STRIDE):
        _add(total, 1.0, now)
        _advance(begin, column, value, now, after)
        now, after = after, now
    return total


@_kernel
def _add_up_first_terms(begin, column, value, now, blocks, tolerance):
    """The sum of the first terms of `blocks` blocks, of which `now` is the first; the last ones may be extrapolated."""
    kept = np.empty((min(_ORDER, blocks) + 1, len(now)))  # the latest first terms, in turns: a ring
    sketch = np.empty((len(kept), _SKETCH))
    sign = _random_signs(len(now))
    after, total = np.empty(len(now)), np.zeros(len(now))
    start_mass = now.sum()
    for block in range(blocks):
        place = block % len(kept)
        kept[place] = now
        _add_up_groups(now, sign, sketch[place])
        if tolerance > 0 and block > 0 and block % _BLOCKS_BETWEEN_CHECKS == 0:
            # The other steps of a block have at least the mass of the next first term.
            visits = STRIDE * total.sum() - (STRIDE - 1) * start_mass
            # Halved, because normalising can double an error.
            allowed = tolerance * visits / 2
            weight = _extrapolate(kept, sketch, place, min(block, _ORDER), blocks - block, allowed)
            if len(weight) > 0:
                for back in range(len(weight)):
                    _add(total, weight[back], kept[place - 1 - back])  # A negative place counts from the end.
                return total
        _add(total, 1.0, now)
        for _ in range(STRIDE):
            _advance(begin, column, value, now, after)
            now, after = after, now
    return total


@_kernel
def _extrapolate(kept, sketch, place, order, terms, allowed):
    """Weights of the `order` first terms before the one at `place`, in the sum of that and those that follow it.

    These are `terms` in all. No weights if all the steps of their blocks could be off by more than `allowed` (L1).

    Say T is the steps of a block, and x_0 = c_1 x_{-1} + ... + c_m x_{-m} + r. Then x_n = T^n x_0 is a combination of
    the same m terms plus h_0 T^n r + ... + h_n r, with numbers h that depend on c alone. The sum of x_0, x_1, ... is
    off by the sum of these, g_0 T^(terms-1) r + ... + g_(terms-1) r with g_i = h_0 + ... + h_i. No step stretches the
    L1 norm, so each of the STRIDE steps of the blocks adds at most (|g_0| + |g_1| + ...) |r| to the error. This holds
    however c was found.
    """
    known = np.empty((order + 1, sketch.shape[1]))
    for back in range(order + 1):
        known[back] = sketch[place - back]
    coefficient, distance = _fit_recurrence(known)
    weight, growth = _unroll(coefficient, terms)
    # The distance of sketches proves nothing, but it mostly saves the sums over all states.
    if STRIDE * growth * distance > allowed:
        return weight[:0]
    residual, mass = kept[place].copy(), 0.0
    for back in range(order):
        earlier = kept[place - 1 - back]
        _add(residual, -coefficient[back], earlier)
        mass += abs(coefficient[back]) * earlier.sum()
    certain = STRIDE * growth * (np.abs(residual).sum() + _ROUNDING * mass) <= allowed
    return weight if certain else weight[:0]


@_kernel
def _unroll(coefficient, terms):
    """Weights of x_{-1}, ..., x_{-m} in x_0 + x_1 + ..., `terms` terms, if x_n = c_1 x_{n-1} + ... + c_m x_{n-m}.

    And |g_0| + |g_1| + ... of `_extrapolate`, by which an error of x_0 grows in this sum.
    """
    order = len(coefficient)
    weight = np.zeros(order)  # in the sum
    share = np.zeros(order + 1)  # in the latest term; the last entry stays 0
    share[0] = 1.0
    reached, growth = 0.0, 0.0
    for _ in range(terms):
        leading = share[0]  # h_n: what is known of the latest term, x_{-1} at first, gives way to its recurrence
        reached += leading
        growth += abs(reached)
        for back in range(order):
            share[back] = share[back + 1] + leading * coefficient[back]
            weight[back] += share[back]
    return weight, growth


@_kernel
def _fit_recurrence(terms):
    """Coefficients c with terms[0] = c_1 terms[1] + c_2 terms[2] + ... by least squares, and the distance that is left.

    By modified Gram-Schmidt, the latest term first. A term that is a combination of later ones gets 0.
    """
    basis, target = terms[1:].copy(), terms[0].copy()
    order = len(basis)
    triangle, coefficient = np.zeros((order, order)), np.zeros(order)
    for row in range(order):
        length = np.sqrt(_dot(basis[row], basis[row]))
        if length <= 1e-12 * np.sqrt(_dot(terms[row + 1], terms[row + 1])):
            continue
        for i in range(len(target)):
            basis[row, i] /= length
        triangle[row, row] = length
        for later in range(row + 1, order):
            triangle[row, later] = _dot(basis[row], basis[later])
            _add(basis[later], -triangle[row, later], basis[row])
        coefficient[row] = _dot(basis[row], target)
        _add(target, -coefficient[row], basis[row])
    for row in range(order - 1, -1, -1):
        if triangle[row, row] > 0.0:
            for later in range(row + 1, order):
                coefficient[row] -= triangle[row, later] * coefficient[later]
            coefficient[row] /= triangle[row, row]
    return coefficient, np.sqrt(_dot(target, target))


@_kernel
def _random_signs(size):
    """Plus and minus 1 by a multiplicative hash of the position."""
    sign = np.empty(size)
    for position in range(size):
        sign[position] = 1.0 - 2.0 * ((np.uint64(position) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(63))
    return sign


@_kernel
def _add_up_groups(term, sign, sketch):
    """Sums over groups of states, with random signs so that distances roughly stay (a count sketch)."""
    sketch[:] = 0.0
    for state in range(len(term)):
        sketch[np.uint64(state) % np.uint64(_SKETCH)] += sign[state] * term[state]


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
def _add(total, factor, vector):
    for i in range(len(total)):
        total[i] += factor * vector[i]


@_kernel
def _partial(split, vector, begin, end):
    total = 0.0
    for entry in range(begin, end):
        here = np.uint64(entry)
        total += split.value[here] * vector[split.column[here]]
    return total
