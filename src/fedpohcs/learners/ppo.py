"""PPO (Schulman et al., 2017) with an adaptive KL penalty or a clipped surrogate: losses, one local iteration.

Federated algorithms that keep PPO and change how its weights descend, or what its loss is, derive from it; see
`LocalRule`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpohcs.core.learning import PPOConfig
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.learners.actor_critic import (
    ActorCritic,
    Batch,
    Samples,
    Schedule,
    UpdateInfo,
    critic_loss,
    critic_optimiser,
    decayed_entropy,
    in_blocks,
    make_batch,
    masked_mean,
    run_epochs,
    train_critic,
)
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.distributions import Categorical, Gaussian
from fedpohcs.learners.networks import TANH_LAYERS, AgentParams, Networks, PolicyParams, action_distribution, agent_of
from fedpohcs.learners.rollout import valid_first

LARGEST_KL_COEFFICIENT, SMALLEST_KL_COEFFICIENT = 20.0, 1e-8
KL_TOLERANCE = 1.1


class OptimiserState(NamedTuple):
    """Momentum or moments of the policy, and moments of the critic; a client keeps its own between rounds."""

    policy: optax.OptState
    critic: optax.OptState


Penalty = Callable[[Samples, Gaussian | Categorical], jax.Array]
"""From samples and the new policy to a penalty per sample."""


class LocalRule(NamedTuple):
    """What a federated algorithm may change in the local iterations of PPO."""

    policy: optax.GradientTransformation  # the round's learning rate is applied to its direction
    critic: optax.GradientTransformation
    penalty: Penalty | None = None  # subtracted from the surrogate


Surrogate = Callable[[PPOConfig, Samples, Gaussian | Categorical, jax.Array], jax.Array]


def kl_penalty_surrogate(
    config: PPOConfig, samples: Samples, new: Gaussian | Categorical, kl_coefficient: jax.Array
) -> jax.Array:
    """min(w, cap) A - beta KL(old || new) of each sample, w the importance weight. Paper: Sec. 5.2."""
    weight = jnp.exp(new.log_prob(samples.action) - samples.old.log_prob(samples.action))
    penalty = samples.old.kl_to(new)  # pyright: ignore[reportArgumentType]  old and new are of one kind
    return jnp.minimum(weight, config.importance_cap) * samples.advantage - kl_coefficient * penalty


def clipped_surrogate(
    config: PPOConfig, samples: Samples, new: Gaussian | Categorical, kl_coefficient: jax.Array
) -> jax.Array:
    """min(w A, clip(w, 1 - eps, 1 + eps) A) of each sample (Schulman et al., 2017)."""
    del kl_coefficient
    weight = jnp.exp(new.log_prob(samples.action) - samples.old.log_prob(samples.action))
    clipped = jnp.clip(weight, 1 - config.clip_range, 1 + config.clip_range)
    return jnp.minimum(weight * samples.advantage, clipped * samples.advantage)


SURROGATES: dict[str, Surrogate] = {"kl-penalty": kl_penalty_surrogate, "clip": clipped_surrogate}


def policy_loss(
    policy: PolicyParams,
    config: PPOConfig,
    samples: Samples,
    mask: jax.Array,
    kl_coefficient: jax.Array,
    entropy_coefficient: jax.Array,
    networks: Networks = TANH_LAYERS,
    penalty: Penalty | None = None,
) -> jax.Array:
    """The negated surrogate with its entropy bonus and, if there is one, a penalty."""
    new = action_distribution(policy, samples.observation, networks.policy)
    gain = SURROGATES[config.loss](config, samples, new, kl_coefficient)
    if penalty is not None:
        gain = gain - penalty(samples, new)
    return -masked_mean(gain + entropy_coefficient * new.entropy(), mask)


def policy_optimiser(config: PPOConfig) -> optax.GradientTransformation:
    """Clipped gradients with momentum, or rescaled by Adam; the round's learning rate is applied by the caller."""
    direction = optax.trace(config.momentum) if config.optimiser == "sgd" else optax.scale_by_adam()
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), direction)


def plain_rule(config: PPOConfig) -> LocalRule:
    """PPO as it is."""
    return LocalRule(policy_optimiser(config), critic_optimiser(config))


def init_optimisers(config: PPOConfig, params: AgentParams, rule: LocalRule | None = None) -> OptimiserState:
    """Initial states of both optimisers."""
    policy, critic, _ = rule or plain_rule(config)
    return OptimiserState(policy.init(params.policy), critic.init(params.critic))


def update(
    config: PPOConfig,
    schedule: Schedule,
    params: AgentParams,
    optimisers: OptimiserState,
    batch: Batch,
    shuffles: jax.Array,
    networks: Networks = TANH_LAYERS,
    rule: LocalRule | None = None,
) -> tuple[AgentParams, OptimiserState, UpdateInfo]:
    """One local iteration on one batch: policy epochs, critic epochs, then the rule for beta.

    Args:
        config: of the learner.
        schedule: of this round.
        params: weights before.
        optimisers: of this client.
        batch: what was collected.
        shuffles: permutations of the batch, [epochs + critic_epochs, M]. Drawn by the caller, because a sort inside
            the compiled loop costs more than the learning.
        networks: how policy and critic are computed.
        rule: of a federated algorithm. None: plain PPO.
    """
    rule = rule or plain_rule(config)
    orders = jax.vmap(valid_first, in_axes=(0, None))(shuffles, batch.valid)

    def improve_policy(carry: Any, samples: Samples, mask: jax.Array) -> Any:
        policy, state = carry
        gradient = jax.grad(policy_loss)(
            policy, config, samples, mask, params.kl_coefficient, schedule.entropy_coefficient, networks, rule.penalty
        )
        direction, state = rule.policy.update(gradient, state, policy)
        step = jax.tree.map(lambda x: -schedule.learning_rate * x, direction)
        return optax.apply_updates(policy, step), state

    policy, policy_state = run_epochs(
        improve_policy, (params.policy, optimisers.policy), batch, orders[: config.epochs], config.batch_size
    )
    critic, critic_state = train_critic(
        config, params.critic, optimisers.critic, batch, orders[config.epochs :], networks, rule.critic
    )
    blocks = Networks(in_blocks(networks.policy), in_blocks(networks.critic))
    new = action_distribution(policy, batch.samples.observation, blocks.policy)
    kl = masked_mean(batch.samples.old.kl_to(new), batch.valid)  # pyright: ignore[reportArgumentType]
    largest_advantage = jnp.where(batch.valid, batch.samples.advantage, -jnp.inf).max()
    kl_coefficient = adapt_kl_coefficient(params.kl_coefficient, kl, config.kl_target, largest_advantage)
    info = UpdateInfo(
        kl, masked_mean(new.entropy(), batch.valid), critic_loss(critic, batch.samples, batch.valid, blocks)
    )
    return AgentParams(policy, critic, kl_coefficient), OptimiserState(policy_state, critic_state), info


def adapt_kl_coefficient(
    coefficient: jax.Array, kl: jax.Array, target: float, largest_advantage: jax.Array
) -> jax.Array:
    """beta doubles if the KL divergence is too large, and halves if it is small.

    It is bounded, so that the penalty alone does not exceed the largest advantage.
    """
    doubled = jnp.where(kl > target * KL_TOLERANCE, coefficient * 2, coefficient)
    adapted = jnp.where(kl < target / KL_TOLERANCE, coefficient / 2, doubled)
    ceiling = jnp.minimum(LARGEST_KL_COEFFICIENT, largest_advantage / jnp.maximum(jnp.abs(kl), 1e-12))
    return jnp.maximum(jnp.minimum(adapted, ceiling), SMALLEST_KL_COEFFICIENT)


@dataclass(frozen=True)
class PPO(ActorCritic):
    """The paper's learner. Paper: Sec. 5.2."""

    config: PPOConfig

    info = UpdateInfo._fields

    def init_params(self, key: jax.Array) -> AgentParams:
        """Initial weights, the same for every selector of a seed."""
        return agent_of(key, self.world.actions, *self.new_networks(), self.config.kl_coefficient)

    def init_memory(self, params: AgentParams) -> Any:
        """Initial states of both optimisers."""
        return init_optimisers(self.config, params, self.rule(params))

    def rule(self, anchor: AgentParams) -> LocalRule:
        """How weights descend in a round that starts from `anchor`, the weights that the server sent."""
        del anchor
        return plain_rule(self.config)

    def schedule(self, round_number: int) -> Schedule:
        """Learning rate and entropy bonus of a round; rounds count from 0."""
        config = self.config
        rate = max(config.learning_rate * config.learning_rate_decay**round_number, config.learning_rate_floor)
        return Schedule(np.float32(rate), np.float32(decayed_entropy(config, round_number)))

    def draws(self, generator: np.random.Generator) -> Any:
        """Permutations for the minibatches of one local training, [I, epochs + critic_epochs, M]."""
        return self.permutations(generator, self.config.epochs + self.config.critic_epochs)

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """Policy and critic epochs on one batch; then the filters are updated."""
        networks = self.networks
        batch = make_batch(self.config, now.params, now.filters, trajectory, networks)
        rule = self.rule(sent.params)
        params, memory, info = update(self.config, sent.schedule, now.params, now.memory, batch, draws, networks, rule)
        filters = self.observe(now.filters, trajectory)
        return IterationResult(Progress(params, filters, memory), batch.valid.sum(), info)

    def gradient(self, params: AgentParams, samples: Samples, mask: jax.Array) -> PolicyParams:
        """Gradient of the surrogate without the entropy bonus, at the policy that played."""
        samples = self.drawn_by(params, samples)
        beta, no_bonus = params.kl_coefficient, jnp.float32(0)
        return jax.grad(policy_loss)(params.policy, self.config, samples, mask, beta, no_bonus, self.networks)
