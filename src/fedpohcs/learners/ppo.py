"""PPO (Schulman et al., 2017) with an adaptive KL penalty or a clipped surrogate: batch, losses, one local iteration.

Everything here is written for one client and runs under `jax.vmap(..., axis_name=CLIENT_AXIS)`. Collecting and
updating are separate, so that worlds outside JAX share the update.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpohcs.core.learning import PPOConfig
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.learners.actors import PolicyActor, policy_actor, sight_of
from fedpohcs.learners.base import Broadcast, IterationResult, Learner, Progress
from fedpohcs.learners.distributions import Categorical, Gaussian
from fedpohcs.learners.filters import Filters, filter_observation, filter_reward
from fedpohcs.learners.gae import generalised_advantage
from fedpohcs.learners.networks import (
    TANH_LAYERS,
    AgentParams,
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

LARGEST_KL_COEFFICIENT, SMALLEST_KL_COEFFICIENT = 20.0, 1e-8
KL_TOLERANCE = 1.1


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


class OptimiserState(NamedTuple):
    """Momentum or moments of the policy, and moments of the critic; a client keeps its own between rounds."""

    policy: optax.OptState
    critic: optax.OptState


class Schedule(NamedTuple):
    """Coefficients that depend on the round alone."""

    learning_rate: jax.Array
    entropy_coefficient: jax.Array


class UpdateInfo(NamedTuple):
    """Numbers that one local iteration reports."""

    kl: jax.Array
    entropy: jax.Array
    critic_loss: jax.Array


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


def masked_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of the entries where `mask` holds; 0 where none does."""
    weight = mask.astype(x.dtype)
    return (x * weight).sum() / jnp.maximum(weight.sum(), 1.0)


def policy_loss(
    policy: PolicyParams,
    config: PPOConfig,
    samples: Samples,
    mask: jax.Array,
    kl_coefficient: jax.Array,
    entropy_coefficient: jax.Array,
    networks: Networks = TANH_LAYERS,
) -> jax.Array:
    """The negated surrogate with its entropy bonus."""
    new = action_distribution(policy, samples.observation, networks.policy)
    gain = SURROGATES[config.loss](config, samples, new, kl_coefficient)
    return -masked_mean(gain + entropy_coefficient * new.entropy(), mask)


def critic_loss(critic: Any, samples: Samples, mask: jax.Array, networks: Networks = TANH_LAYERS) -> jax.Array:
    """Mean squared distance to the value target."""
    return masked_mean((state_value(critic, samples.observation, networks.critic) - samples.value_target) ** 2, mask)


def advantages(
    config: PPOConfig,
    params: AgentParams,
    filters: Filters,
    trajectory: Trajectory,
    networks: Networks = TANH_LAYERS,
) -> tuple[jax.Array, jax.Array]:
    """GAE and values of every step, [T, E] each; rewards and observations pass the client's filters."""
    observation = filter_observation(filters, trajectory.observation, config.observation_limit)
    value = state_value(params.critic, observation, networks.critic)
    continues = trajectory.status == Status.RUNNING
    next_value = jnp.where(continues, jnp.roll(value, -1, axis=0), 0.0)
    if config.bootstrap_at_time_limit:
        cut = filter_observation(filters, trajectory.next_observation, config.observation_limit)
        cut_value = state_value(params.critic, cut, networks.critic)
        next_value = jnp.where(trajectory.status == Status.TRUNCATED, cut_value, next_value)
    reward = filter_reward(filters, trajectory.reward, config.reward_limit)
    delta = jnp.where(trajectory.valid, reward + config.discount * next_value - value, 0.0)
    return generalised_advantage(delta, continues, config.discount, config.gae_discount), value


def make_batch(
    config: PPOConfig,
    params: AgentParams,
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
        old=action_distribution(params.policy, observation, networks.policy),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), Batch(samples, trajectory.valid))


def policy_optimiser(config: PPOConfig) -> optax.GradientTransformation:
    """Clipped gradients with momentum, or rescaled by Adam; the round's learning rate is applied by the caller."""
    direction = optax.trace(config.momentum) if config.optimiser == "sgd" else optax.scale_by_adam()
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), direction)


def critic_optimiser(config: PPOConfig) -> optax.GradientTransformation:
    """Adam."""
    return optax.adam(config.critic_learning_rate)


def init_optimisers(config: PPOConfig, params: AgentParams) -> OptimiserState:
    """Initial states of both optimisers."""
    return OptimiserState(policy_optimiser(config).init(params.policy), critic_optimiser(config).init(params.critic))


def update(
    config: PPOConfig,
    schedule: Schedule,
    params: AgentParams,
    optimisers: OptimiserState,
    batch: Batch,
    shuffles: jax.Array,
    networks: Networks = TANH_LAYERS,
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
    """
    orders = jax.vmap(valid_first, in_axes=(0, None))(shuffles, batch.valid)

    def improve_policy(carry: Any, samples: Samples, mask: jax.Array) -> Any:
        policy, state = carry
        gradient = jax.grad(policy_loss)(
            policy, config, samples, mask, params.kl_coefficient, schedule.entropy_coefficient, networks
        )
        direction, state = policy_optimiser(config).update(gradient, state)
        step = jax.tree.map(lambda x: -schedule.learning_rate * x, direction)
        return optax.apply_updates(policy, step), state

    def improve_critic(carry: Any, samples: Samples, mask: jax.Array) -> Any:
        critic, state = carry
        gradient = jax.grad(critic_loss)(critic, samples, mask, networks)
        step, state = critic_optimiser(config).update(gradient, state, critic)
        return optax.apply_updates(critic, step), state

    policy, policy_state = run_epochs(
        improve_policy, (params.policy, optimisers.policy), batch, orders[: config.epochs], config.batch_size
    )
    critic, critic_state = run_epochs(
        improve_critic, (params.critic, optimisers.critic), batch, orders[config.epochs :], config.batch_size
    )
    new = action_distribution(policy, batch.samples.observation, networks.policy)
    kl = masked_mean(batch.samples.old.kl_to(new), batch.valid)  # pyright: ignore[reportArgumentType]
    largest_advantage = jnp.where(batch.valid, batch.samples.advantage, -jnp.inf).max()
    kl_coefficient = adapt_kl_coefficient(params.kl_coefficient, kl, config.kl_target, largest_advantage)
    info = UpdateInfo(
        kl, masked_mean(new.entropy(), batch.valid), critic_loss(critic, batch.samples, batch.valid, networks)
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


class PPO(Learner):
    """The paper's learner. Paper: Sec. 5.2."""

    config: PPOConfig

    info = UpdateInfo._fields

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

    def init_params(self, key: jax.Array) -> AgentParams:
        """Initial weights, the same for every selector of a seed."""
        inputs, actions = self.world.observation_size, self.world.actions
        policy = make_network(self.config, inputs, num_outputs(actions))
        return agent_of(key, actions, policy, make_network(self.config, inputs, 1), self.config.kl_coefficient)

    def init_memory(self, params: AgentParams) -> OptimiserState:
        """Initial states of both optimisers."""
        return init_optimisers(self.config, params)

    def schedule(self, round_number: int) -> Schedule:
        """Learning rate and entropy bonus of a round; rounds count from 0."""
        config = self.config
        rate = max(config.learning_rate * config.learning_rate_decay**round_number, config.learning_rate_floor)
        entropy = config.entropy_coefficient * 0.1 ** (round_number // config.entropy_decay_rounds)
        return Schedule(jnp.float32(rate), jnp.float32(max(entropy, min(1e-8, config.entropy_coefficient))))

    def draws(self, generator: np.random.Generator) -> np.ndarray:
        """Permutations for the minibatches of one local training, [I, epochs + critic_epochs, M]."""
        config = self.config
        shape = (config.local_iterations, config.epochs + config.critic_epochs, self.batch_length)
        ordered = np.broadcast_to(np.arange(self.batch_length, dtype=np.int32), shape)
        return generator.permuted(ordered, axis=-1)

    def actor(self, params: AgentParams, filters: Filters, schedule: Any, *, training: bool) -> PolicyActor:
        """Draws from the policy, in training and in evaluations alike."""
        del schedule, training
        sight = sight_of(filters, self.config.observation_limit)
        return policy_actor(self.noise, params.policy, sight, self.networks.policy)

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: jax.Array) -> IterationResult:
        """Policy and critic epochs on one batch; then the filters are updated."""
        networks = self.networks
        batch = make_batch(self.config, now.params, now.filters, trajectory, networks)
        params, memory, info = update(self.config, sent.schedule, now.params, now.memory, batch, draws, networks)
        filters = self.observe(now.filters, trajectory)
        return IterationResult(Progress(params, filters, memory), batch.valid.sum(), info)

    def distribution(self, params: AgentParams, observation: jax.Array) -> Gaussian | Categorical:
        """pi(. | s) of filtered observations."""
        return action_distribution(params.policy, observation, self.networks.policy)

    def values(self, params: AgentParams, observation: jax.Array) -> jax.Array:
        """V(s) of the critic."""
        return state_value(params.critic, observation, self.networks.critic)

    def step_advantages(self, params: AgentParams, filters: Filters, trajectory: Trajectory) -> jax.Array:
        """GAE samples of recorded steps, [T, E]."""
        return advantages(self.config, params, filters, trajectory, self.networks)[0]

    def loss_samples(self, params: AgentParams, filters: Filters, trajectory: Trajectory) -> Batch:
        """Recorded steps as one batch."""
        return make_batch(self.config, params, filters, trajectory, self.networks)

    def gradient(self, params: AgentParams, samples: Samples, mask: jax.Array) -> PolicyParams:
        """Gradient of the surrogate without the entropy bonus."""
        beta, no_bonus = params.kl_coefficient, jnp.float32(0)
        return jax.grad(policy_loss)(params.policy, self.config, samples, mask, beta, no_bonus, self.networks)
