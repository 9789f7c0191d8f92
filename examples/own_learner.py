"""A learner of your own: REINFORCE (Williams, 1992), with returns standardised over the steps of a batch."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedpohcs import LEARNERS, Learner, LearningConfig, preset, run_experiment
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.learners.actors import PolicyActor, policy_actor, sight_of
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.gae import generalised_advantage
from fedpohcs.learners.networks import PolicyParams, action_distribution, apply_of, make_network, num_outputs
from fedpohcs.runs.experiment import History
from fedpohcs.testing import check_learner
from fedpohcs.worlds.base import ContinuousActions


@dataclass(frozen=True)
class ReinforceConfig(LearningConfig):
    """Settings of REINFORCE, besides those of every learner."""

    algorithm: ClassVar[str] = f"{__name__}:Reinforce"
    exportable: ClassVar[bool] = True  # it acts by tanh layers, as `policy_actor` does

    kind: str = "reinforce"
    learning_rate: float = 0.05


class Weights(NamedTuple):
    """What is federated."""

    policy: PolicyParams


class Info(NamedTuple):
    """What one local iteration reports."""

    loss: jax.Array
    entropy: jax.Array


class Reinforce(Learner):
    """One step of Adam along the policy gradient per local iteration."""

    info = Info._fields
    records_next = False  # `learn` does not read the observation after a step

    @property
    def sizes(self) -> tuple[int, int]:
        """Inputs and outputs of the policy's network."""
        return self.world.observation_size, num_outputs(self.world.actions)

    def init_params(self, key: jax.Array) -> Weights:
        """Initial weights."""
        actions = self.world.actions
        spread = jnp.zeros(actions.size if isinstance(actions, ContinuousActions) else 0)
        return Weights(PolicyParams(make_network(self.config, *self.sizes).init(key), spread))

    def init_memory(self, params: Weights) -> Any:
        """Adam's moments, which stay with the client."""
        return optax.adam(self.config.learning_rate).init(params)

    def actor(self, params: Weights, filters: Any, schedule: Any, *, training: bool) -> PolicyActor:
        """Draws from the policy."""
        sight = sight_of(filters, self.config.observation_limit)
        return policy_actor(self.noise, params.policy, sight, apply_of(self.config, *self.sizes))

    def distribution(self, params: Weights, observation: jax.Array) -> Any:
        """pi(. | s) of filtered observations."""
        return action_distribution(params.policy, observation, apply_of(self.config, *self.sizes))

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """Increase the probability of actions with more than the mean return."""
        valid = trajectory.valid
        observation = self.filtered(now.filters, trajectory.observation)
        reward = jnp.where(valid, self.filtered_reward(now.filters, trajectory.reward), 0.0)
        # Without values and with lambda = 1, GAE is the discounted return from each step on.
        returns = generalised_advantage(reward, trajectory.status == Status.RUNNING, self.config.discount, 1.0)
        gain = (returns - returns.mean(where=valid)) / (returns.std(where=valid) + 1e-8)

        def loss(params: Weights) -> tuple[jax.Array, jax.Array]:
            policy = self.distribution(params, observation)
            return -(policy.log_prob(trajectory.action) * gain).mean(where=valid), policy.entropy().mean(where=valid)

        (value, entropy), gradient = jax.value_and_grad(loss, has_aux=True)(now.params)
        change, memory = optax.adam(self.config.learning_rate).update(gradient, now.memory)
        params = optax.apply_updates(now.params, change)
        filters = self.observe(now.filters, trajectory)
        return IterationResult(Progress(params, filters, memory), valid.sum(), Info(value, entropy))


LEARNERS["reinforce"] = ReinforceConfig


def check() -> None:
    """Let it solve the probes, and check what the package relies on."""
    check_learner(ReinforceConfig(hidden_sizes=(16,), local_iterations=5, steps_per_iteration=98))


def main(rounds: int = 20, out: Path | None = None) -> History:
    """Train the small world with it and return what happened."""
    config = preset("tabular")
    learner = ReinforceConfig(
        hidden_sizes=(), local_iterations=4, steps_per_iteration=256, filter_observations=False, filter_warmup_steps=0
    )
    return run_experiment(replace(config, learner=learner, rounds=rounds), out)


if __name__ == "__main__":
    check()
    for number, mean_return in enumerate(main().mean_returns):
        print(f"round {number:2d}  mean return {mean_return:6.2f}")
