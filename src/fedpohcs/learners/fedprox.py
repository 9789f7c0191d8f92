"""FedProx (Li et al., 2020): local losses with a proximal term, which holds weights near those that the server sent."""

from dataclasses import dataclass
from typing import Any

import jax
import optax

from fedpohcs.core.learning import FedProxConfig
from fedpohcs.learners.networks import AgentParams
from fedpohcs.learners.ppo import PPO, LocalRule, plain_rule


def proximal(coefficient: float, anchor: Any) -> optax.GradientTransformation:
    """Adds the gradient of coefficient/2 times the squared distance to `anchor`, coefficient (w - anchor)."""

    def pull(gradient: Any, weights: Any) -> Any:
        return jax.tree.map(lambda g, w, sent: g + coefficient * (w - sent), gradient, weights, anchor)

    return optax.stateless(pull)


@dataclass(frozen=True)
class FedProx(PPO):
    """PPO with a proximal term in the losses of policy and critic. Gradients are clipped with the term."""

    config: FedProxConfig

    def rule(self, anchor: AgentParams) -> LocalRule:
        """Both optimisers, pulled towards the weights that the server sent."""
        plain, coefficient = plain_rule(self.config), self.config.proximal_coefficient
        if coefficient == 0:
            return plain
        return LocalRule(
            optax.chain(proximal(coefficient, anchor.policy), plain.policy),
            optax.chain(proximal(coefficient, anchor.critic), plain.critic),
        )
