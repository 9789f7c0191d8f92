"""Generalised advantage estimation for padded, auto-reset rollouts."""

import jax


def generalised_advantage(delta: jax.Array, continues: jax.Array, discount: float, gae_discount: float) -> jax.Array:
    """A_t = delta_t + gamma lambda A_{t+1} within an episode, over the leading time axis.

    Args:
        delta: temporal differences r_t + gamma V(s_{t+1}) - V(s_t), with the bootstrap already decided.
        continues: whether step t + 1 belongs to the same episode.
        discount: gamma.
        gae_discount: lambda.

    Example:
        >>> import numpy as np
        >>> delta, continues = np.ones(3), np.array([True, False, False])  # two episodes
        >>> generalised_advantage(delta, continues, discount=0.5, gae_discount=1.0).tolist()
        [1.5, 1.0, 1.0]
    """
    decay = discount * gae_discount * continues.astype(delta.dtype)

    def combine(
        later: tuple[jax.Array, jax.Array], earlier: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]

    # A linear recurrence: an associative scan needs log T passes over whole arrays, not T steps on tiny ones.
    return jax.lax.associative_scan(combine, (decay, delta), reverse=True)[1]
