"""Running statistics with which a client rescales observations and rewards. They stay with the client."""

from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.core.types import AnyArray

SMALLEST_STD = 1e-6


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations of a stream of numbers."""

    seen: AnyArray
    mean: AnyArray
    squares: AnyArray


class Filters(NamedTuple):
    """Statistics of the observations and rewards of one client."""

    observation: Moments
    reward: Moments


def no_moments(shape: tuple[int, ...]) -> Moments:
    """Statistics of an empty stream."""
    return Moments(np.zeros((), np.float32), np.zeros(shape, np.float32), np.zeros(shape, np.float32))


def init_filters(observation_size: int) -> Filters:
    """Initial filters, which leave values unchanged."""
    return Filters(no_moments((observation_size,)), no_moments(()))


def update_moments(moments: Moments, values: AnyArray, valid: AnyArray, weight: float = 1.0) -> Moments:
    """Merge the valid entries of a batch into the statistics (Chan's parallel update). Works on NumPy and JAX arrays.

    Each entry has the weight of `weight` entries.
    """
    xp = values.__array_namespace__()
    kept = valid.reshape(valid.shape + (1,) * (values.ndim - valid.ndim)).astype(values.dtype)
    axes = tuple(range(valid.ndim))
    entries = valid.sum().astype(values.dtype)
    mean = (values * kept).sum(axes) / xp.maximum(entries, 1.0)
    squares = weight * (kept * (values - mean) ** 2).sum(axes)
    added = weight * entries
    seen = moments.seen + added
    share = added / xp.maximum(seen, 1.0)
    shift = mean - moments.mean
    return Moments(seen, moments.mean + shift * share, moments.squares + squares + shift**2 * moments.seen * share)


def discounted_returns(trajectory: Trajectory, discount: float) -> Any:
    """Discounted sum of rewards from every step to the end of its episode, [T, E]. Works on NumPy and JAX arrays.

    A sum over 2, 4, 8, ... steps is that over the first half, plus what follows the half. So log T passes over whole
    arrays are enough.
    """
    xp = trajectory.reward.__array_namespace__()
    total = trajectory.reward
    weight = discount * (trajectory.status == Status.RUNNING).astype(total.dtype)  # of what follows
    span = 1
    while span < len(total):
        empty = xp.zeros_like(total[:span])
        total = total + weight * xp.concatenate([total[span:], empty])
        weight = weight * xp.concatenate([weight[span:], empty])
        span *= 2
    return total


def standard_deviation(moments: Moments, xp: Any) -> Any:
    """Standard deviation; 1 for an empty or a constant stream."""
    seen = moments.seen
    if moments.squares.ndim > seen.ndim:  # one count for all numbers of an observation
        seen = seen[..., None]
    std = xp.sqrt(moments.squares / xp.maximum(seen, 1.0))
    return xp.where(std > SMALLEST_STD, std, 1.0)


def stored_filters(filters: Filters) -> dict[str, np.ndarray]:
    """The observation filters of all clients as `policy.npz` has them and `fedpohcs.runs.policy` reads them."""
    seen, mean, squares = (np.asarray(array) for array in filters.observation)
    variance = squares / np.maximum(seen, 1)[:, None]
    return {"filters/mean": mean, "filters/variance": variance, "filters/count": seen}


def filter_observation(filters: Filters, observation: Any, clip: float) -> Any:
    """z-score, clipped. NumPy or JAX, as the observation is."""
    moments = filters.observation
    std = standard_deviation(moments, observation.__array_namespace__())
    return rescaled(observation, moments.mean, std, clip)


def rescaled(observation: Any, mean: Any, std: Any, clip: float) -> Any:
    """z-score with the given mean and standard deviation, clipped."""
    return ((observation - mean) / std).clip(-clip, clip)


def filter_reward(filters: Filters, reward: Any, clip: float) -> Any:
    """Divide by the standard deviation, clipped. Not centred: the sign of a reward is kept."""
    xp = reward.__array_namespace__()
    return xp.clip(reward / standard_deviation(filters.reward, xp), -clip, clip)
