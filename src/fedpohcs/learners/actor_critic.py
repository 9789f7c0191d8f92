"""What on-policy learners with a policy and a critic share: batches, generalised advantages, the critic's epochs.

Everything here is written for one client and runs under `jax.vmap(..., axis_name=CLIENT_AXIS)`. Collecting and
updating are separate, so that worlds outside JAX share the update.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpohcs.core.learning import ActorCriticConfig
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.actors import PolicyActor, policy_actor, sight_of
from fedpohcs.learners.base import Learner
from fedpohcs.learners.distributions import Categorical, Gaussian
from fedpohcs.learners.filters import Filters, filter_observation, filter_reward
from fedpohcs.learners.gae import generalised_advantage
from fedpohcs.learners.networks import (
    TANH_LAYERS,
    ActorCriticParams,
    AgentParams,
    Apply,
    Network,
    Networks,
    PolicyParams,
    action_distribution,
    agent_of,
    apply_of,
    make_network,
    num_outputs,
    state_value,
)
from fedpohcs.learners.rollout import largest_of_clients, valid_first

Agent = AgentParams | ActorCriticParams
BLOCK = 128  # observations of one client


class Samples(NamedTuple):
    """Values per step that the losses read, [M, ...]."""

    observation: jax.Array  # filtered
    action: jax.Array
    advantage: jax.Array  # standardised over the batch
    value_target: jax.Array
    old: Gaussian | Categorical  # the distribution from which the action was drawn


class Batch(NamedTuple):
    """One collected batch: flattened lanes, padding included."""

    samples: Samples
    valid: jax.Array  # [M]


class Schedule(NamedTuple):
    """Coefficients that depend on the round alone."""

    learning_rate: AnyArray
    entropy_coefficient: AnyArray


class UpdateInfo(NamedTuple):
    """Numbers that one local iteration reports."""

    kl: jax.Array
    entropy: jax.Array
    critic_loss: jax.Array


def masked_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of the entries where `mask` holds; 0 where none does."""
    weight = mask.astype(x.dtype)
    return (x * weight).sum() / jnp.maximum(weight.sum(), 1.0)


def in_blocks(apply: Apply) -> Apply:
    """The network for many observations at once: a block at a time, whose hidden layers stay in the cache.

    Blocks are a multiple of the rows that XLA multiplies at once, so that every output keeps its last digit.
    """

    def apply_in_blocks(weights: Any, observation: jax.Array) -> jax.Array:
        rows = observation.reshape(-1, observation.shape[-1])
        whole = len(rows) // BLOCK * BLOCK
        if whole <= BLOCK:
            return apply(weights, observation)
        blocks = rows[:whole].reshape(-1, BLOCK, rows.shape[-1])
        outputs = jax.lax.map(lambda block: apply(weights, block), blocks)
        outputs = outputs.reshape(whole, -1)
        if whole < len(rows):
            outputs = jnp.concatenate([outputs, apply(weights, rows[whole:])])
        return outputs.reshape(*observation.shape[:-1], -1)

    return apply_in_blocks


def critic_loss(critic: Any, samples: Samples, mask: jax.Array, networks: Networks = TANH_LAYERS) -> jax.Array:
    """Mean squared distance to the value target."""
    return masked_mean((state_value(critic, samples.observation, networks.critic) - samples.value_target) ** 2, mask)


def advantages(
    config: ActorCriticConfig,
    params: Agent,
    filters: Filters,
    trajectory: Trajectory,
    networks: Networks = TANH_LAYERS,
) -> tuple[jax.Array, jax.Array]:
    """GAE and values of every step, [T, E] each; rewards and observations pass the client's filters."""
    observation = filter_observation(filters, trajectory.observation, config.observation_limit)
    critic = in_blocks(networks.critic)
    value = state_value(params.critic, observation, critic)
    continues = trajectory.status == Status.RUNNING
    next_value = jnp.where(continues, jnp.roll(value, -1, axis=0), 0.0)
    if config.bootstrap_at_time_limit:
        cut = filter_observation(filters, trajectory.next_observation, config.observation_limit)
        cut_value = state_value(params.critic, cut, critic)
        next_value = jnp.where(trajectory.status == Status.TRUNCATED, cut_value, next_value)
    reward = filter_reward(filters, trajectory.reward, config.reward_limit)
    delta = jnp.where(trajectory.valid, reward + config.discount * next_value - value, 0.0)
    return generalised_advantage(delta, continues, config.discount, config.gae_discount), value


def make_batch(
    config: ActorCriticConfig,
    params: Agent,
    filters: Filters,
    trajectory: Trajectory,
    networks: Networks = TANH_LAYERS,
) -> Batch:
    """Samples of a trajectory with advantages standardised over its valid steps, lanes flattened."""
    advantage, value = advantages(config, params, filters, trajectory, networks)
    mean = masked_mean(advantage, trajectory.valid)
    std = jnp.sqrt(masked_mean((advantage - mean) ** 2, trajectory.valid))
    observation = filter_observation(filters, trajectory.observation, config.observation_limit)
    samples = Samples(
        observation=observation,
        action=trajectory.action,
        advantage=(advantage - mean) / (std + 1e-8),
        value_target=advantage + value,
        old=action_distribution(params.policy, observation, in_blocks(networks.policy)),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), Batch(samples, trajectory.valid))


def critic_optimiser(config: ActorCriticConfig) -> optax.GradientTransformation:
    """Adam."""
    return optax.adam(config.critic_learning_rate)


def run_epochs(
    improve: Callable[[Any, Samples, jax.Array], Any], carry: Any, batch: Batch, orders: jax.Array, batch_size: int
) -> Any:
    """Fold `improve` over minibatches, one pass for each order. The last minibatch of a pass may be smaller."""
    count = batch.valid.sum()
    num_batches = largest_of_clients(-(-count // batch_size))
    padding = -batch.valid.size % batch_size

    def one_epoch(carry: Any, order: jax.Array) -> tuple[Any, None]:
        # Permuted once, so that minibatches are contiguous slices: gathering inside the loop is slower.
        order = jnp.pad(order, (0, padding))
        shuffled = jax.tree.map(lambda x: x[order], batch.samples)

        def one_batch(index: jax.Array, carry: Any) -> Any:
            start = index * batch_size
            samples = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, batch_size), shuffled)
            mask = start + jnp.arange(batch_size) < count
            improved = improve(carry, samples, mask)
            # Clients with fewer steps stay unchanged until the others are done.
            return jax.tree.map(lambda new, old: jnp.where(start < count, new, old), improved, carry)

        return jax.lax.fori_loop(0, num_batches, one_batch, carry), None

    return jax.lax.scan(one_epoch, carry, orders)[0]


def train_critic(
    config: ActorCriticConfig,
    critic: Any,
    state: optax.OptState,
    batch: Batch,
    orders: jax.Array,
    networks: Networks = TANH_LAYERS,
    optimiser: optax.GradientTransformation | None = None,
) -> tuple[Any, optax.OptState]:
    """The critic after one pass over the batch for each order, and the state of its optimiser."""
    descent = critic_optimiser(config) if optimiser is None else optimiser

    def improve_critic(carry: Any, samples: Samples, mask: jax.Array) -> Any:
        critic, state = carry
        gradient = jax.grad(critic_loss)(critic, samples, mask, networks)
        step, state = descent.update(gradient, state, critic)
        return optax.apply_updates(critic, step), state

    return run_epochs(improve_critic, (critic, state), batch, orders, config.batch_size)


def decayed_entropy(config: ActorCriticConfig, round_number: int) -> float:
    """The entropy coefficient of a round; it never gets exactly 0, unless it was 0 from the start."""
    entropy = config.entropy_coefficient * 0.1 ** (round_number // config.entropy_decay_rounds)
    return max(entropy, min(1e-8, config.entropy_coefficient))


@dataclass(frozen=True)
class ActorCritic(Learner):
    """A learner with a policy and a critic. Derived classes say how the policy learns."""

    config: ActorCriticConfig

    @property
    def records_next(self) -> bool:
        """Whether time limits are bootstrapped, which reads the observation after the last step."""
        return self.config.bootstrap_at_time_limit

    @property
    def networks(self) -> Networks:
        """The functions that compute policy and critic from weights."""
        inputs = self.world.observation_size
        return Networks(
            apply_of(self.config, inputs, num_outputs(self.world.actions)), apply_of(self.config, inputs, 1)
        )

    def new_networks(self) -> tuple[Network, Network]:
        """Networks of policy and critic, with their initialisation."""
        inputs = self.world.observation_size
        outputs = num_outputs(self.world.actions)
        return make_network(self.config, inputs, outputs), make_network(self.config, inputs, 1)

    def init_params(self, key: jax.Array) -> Any:
        """Initial weights, the same for every selector of a seed, and for every learner with a critic."""
        weights = agent_of(key, self.world.actions, *self.new_networks(), kl_coefficient=0.0)
        return ActorCriticParams(weights.policy, weights.critic)

    def permutations(self, generator: np.random.Generator, passes: int) -> np.ndarray:
        """Orders of the minibatches of one local training, [I, passes, M]."""
        shape = (self.config.local_iterations, passes, self.batch_length)
        ordered = np.broadcast_to(np.arange(self.batch_length, dtype=np.int32), shape)
        return generator.permuted(ordered, axis=-1)

    def draws(self, generator: np.random.Generator) -> Any:
        """Orders of the critic's minibatches."""
        return self.permutations(generator, self.config.critic_epochs)

    def actor(self, params: Agent, filters: Filters, schedule: Any, *, training: bool) -> PolicyActor:
        """Draws from the policy, in training and in evaluations alike."""
        del schedule, training
        sight = sight_of(filters, self.config.observation_limit)
        return policy_actor(self.noise, params.policy, sight, self.networks.policy)

    def distribution(self, params: Agent, observation: jax.Array) -> Gaussian | Categorical:
        """pi(. | s) of filtered observations."""
        return action_distribution(params.policy, observation, self.networks.policy)

    def values(self, params: Agent, observation: jax.Array) -> jax.Array:
        """V(s) of the critic."""
        return state_value(params.critic, observation, self.networks.critic)

    def step_advantages(self, params: Agent, filters: Filters, trajectory: Trajectory) -> jax.Array:
        """GAE samples of recorded steps, [T, E]."""
        return advantages(self.config, params, filters, trajectory, self.networks)[0]

    def loss_samples(self, params: Agent, filters: Filters, trajectory: Trajectory) -> Batch:
        """Recorded steps as one batch."""
        return make_batch(self.config, params, filters, trajectory, self.networks)

    def gradient(self, params: Any, samples: Samples, mask: jax.Array) -> PolicyParams:
        """Gradient of the negated surrogate mean(w A) without the entropy bonus, at the policy that played."""
        samples = self.drawn_by(params, samples)
        return jax.grad(lambda policy: -self.surrogate(policy, samples, mask, jnp.float32(0)))(params.policy)

    def drawn_by(self, params: Any, samples: Samples) -> Samples:
        """The samples as drawn by the present policy. So XLA does not compute distributions of samples left out."""
        return samples._replace(old=self.distribution(params, samples.observation))

    def surrogate(
        self, policy: PolicyParams, samples: Samples, mask: jax.Array, entropy_coefficient: jax.Array
    ) -> jax.Array:
        """mean(w A) with an entropy bonus, w the importance weight.

        At the old policy its gradient is that of mean(log pi A).
        """
        new = action_distribution(policy, samples.observation, self.networks.policy)
        weight = jnp.exp(new.log_prob(samples.action) - samples.old.log_prob(samples.action))
        return masked_mean(weight * samples.advantage + entropy_coefficient * new.entropy(), mask)

    def critic_learned(self, critic: Any, state: Any, batch: Batch, shuffles: jax.Array) -> tuple[Any, Any]:
        """The critic after its epochs, and the state of its optimiser."""
        orders = jax.vmap(valid_first, in_axes=(0, None))(shuffles, batch.valid)
        return train_critic(self.config, critic, state, batch, orders, self.networks)

    def report(self, policy: PolicyParams, critic: Any, batch: Batch) -> UpdateInfo:
        """The numbers of a local iteration after which policy and critic are these."""
        new = action_distribution(policy, batch.samples.observation, self.networks.policy)
        return UpdateInfo(
            masked_mean(batch.samples.old.kl_to(new), batch.valid),  # pyright: ignore[reportArgumentType]
            masked_mean(new.entropy(), batch.valid),
            critic_loss(critic, batch.samples, batch.valid, self.networks),
        )
