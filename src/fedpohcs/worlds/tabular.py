"""Random finite MDPs with one-hot observations: the smallest world, in which every estimate has an exact value."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from fedpohcs.core.lazy import LazyModule
from fedpohcs.worlds.base import DiscreteActions, TracedWorld, Transition

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:  # the class is read for options and help texts, which must not wait for JAX
    jax, jnp = LazyModule("jax"), LazyModule("jax.numpy")

NUM_STATES, NUM_ACTIONS = 6, 3
SHARE_OF_OWN_WORLD = {"none": 0.0, "low": 0.2, "medium": 0.5, "high": 1.0}


class TableParams(NamedTuple):
    """The parameter that differs between clients: P_n, as cumulative probabilities over the next state."""

    cumulative: jax.Array  # [S, A, S]


class TabularWorlds(TracedWorld):
    """N clients that share states, actions, rewards and starts, and mix a common P with one of their own."""

    held_out = True
    levels: ClassVar[tuple[str, ...]] = tuple(SHARE_OF_OWN_WORLD)
    observation_size = NUM_STATES
    actions = DiscreteActions(num_choices=NUM_ACTIONS)
    horizon = 50
    reset_noise = 1
    step_noise = 1

    def __init__(self, level: str, num_clients: int, num_held_out: int = 0) -> None:
        self.transitions = random_transitions(SHARE_OF_OWN_WORLD[level], num_clients + num_held_out)
        self.rewards = np.random.default_rng(1).uniform(size=(NUM_STATES, NUM_ACTIONS))
        self.population = TableParams(jnp.asarray(np.cumsum(self.transitions, axis=-1), jnp.float32))

    def reset(self, noise: jax.Array, params: TableParams) -> tuple[jax.Array, jax.Array]:
        """A start state, drawn uniformly."""
        del params
        state = jnp.minimum((noise[0] * NUM_STATES).astype(jnp.int32), NUM_STATES - 1)
        return state, jax.nn.one_hot(state, NUM_STATES)

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: TableParams) -> Transition:
        """Draw the next state by inverting the cumulative distribution. Episodes end at the time limit only."""
        following = jnp.minimum((noise[0] >= params.cumulative[state, action]).sum(), NUM_STATES - 1)
        reward = jnp.asarray(self.rewards, jnp.float32)[state, action]
        return Transition(following, jax.nn.one_hot(following, NUM_STATES), reward, jnp.zeros((), bool))


def random_transitions(share_of_own: float, num_clients: int) -> np.ndarray:
    """P_n = (1 - share) P_common + share P_own, each row a flat Dirichlet draw: [N, S, A, S].

    Clients are drawn one after the other, so more of them leave the first ones as they are.
    """
    generator = np.random.default_rng(0)
    common = generator.dirichlet(np.ones(NUM_STATES), size=(NUM_STATES, NUM_ACTIONS))
    own = generator.dirichlet(np.ones(NUM_STATES), size=(num_clients, NUM_STATES, NUM_ACTIONS))
    return (1 - share_of_own) * common + share_of_own * own
