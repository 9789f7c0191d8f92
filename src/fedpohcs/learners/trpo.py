"""TRPO (Schulman et al., 2015): natural gradient steps, shortened until the divergence is small and the gain larger."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedpohcs.core.learning import TRPOConfig
from fedpohcs.learners.npg import NPG, Problem, Weights


@dataclass(frozen=True)
class TRPO(NPG):
    """The natural gradient with a line search."""

    config: TRPOConfig

    def step(self, problem: Problem, start: Weights, full: Weights) -> Weights:
        """The longest step that is tried whose divergence is at most delta and whose gain is larger; or none."""
        config, gain = self.config, problem.gain(start)

        def tried(number: jax.Array) -> Weights:
            return start + config.line_search_factor**number * full

        def good(number: jax.Array) -> jax.Array:
            weights = tried(number)
            return (problem.divergence(weights) <= config.kl_target) & (problem.gain(weights) > gain)

        def go_on(carry: Any) -> jax.Array:
            number, found = carry
            return ~found & (number < config.line_search_steps)

        def shorten(carry: Any) -> Any:
            number, _ = carry
            found = good(number)
            return jnp.where(found, number, number + 1), found

        number, found = jax.lax.while_loop(go_on, shorten, (jnp.int32(0), jnp.bool_(False)))
        return jnp.where(found, tried(number), start)
