"""Probe worlds: five tiny problems with known answers. Which of them a learner fails tells which part is wrong.

An episode has one or two steps. The observation holds a sign, drawn when the episode starts, and the time. The action
is one of two choices. The reward comes with the last step, and depends on the sign and on the last action.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs.core.learning import LearningConfig
from fedpohcs.core.randomness import Purpose, device_key, host_generator
from fedpohcs.core.types import AnyArray, Params, Vector
from fedpohcs.execution.mapping import compiled
from fedpohcs.learners.base import Broadcast, Learner, make_learner
from fedpohcs.learners.client import ClientInputs, ClientProgram
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions, TracedWorld, Transition

DISCOUNT = 0.5  # far from 1, so that a value that ignores the discount is clearly wrong
VALUE_TOLERANCE = 0.25
LEAST_SHARE = 0.8  # of the best choice
NUM_ACTIONS_DRAWN = 400
ROUNDS = 8


class Probe(NamedTuple):
    """A problem with a known answer."""

    reward: tuple[tuple[float, float], tuple[float, float]]  # of the last step, by sign (-, +) and choice (0, 1)
    steps: int  # of an episode
    tells: str  # the likely error of a learner that fails here

    def best_values(self) -> Vector:
        """V*(s) of `observations`."""
        ends = np.max(self.reward, axis=1)
        times = np.arange(self.steps)
        return np.concatenate([ends * DISCOUNT ** (self.steps - 1 - time) for time in times])

    def observations(self) -> np.ndarray:
        """Every observation that occurs before a step, [n, 2]: both signs at the first time, then at the second."""
        return np.array([[sign, time] for time in range(self.steps) for sign in (-1, 1)], np.float32)

    def best_choices(self) -> list[int | None]:
        """The best choice for each of `observations`; None where the choice does not matter."""
        last = [None if low == high else int(high > low) for low, high in self.reward]
        return [None, None] * (self.steps - 1) + last


PROBES: dict[str, Probe] = {
    "constant": Probe(((1.0, 1.0), (1.0, 1.0)), 1, "values are not learned at all"),
    "observation": Probe(((-1.0, -1.0), (1.0, 1.0)), 1, "values do not follow the observation"),
    "delayed": Probe(((1.0, 1.0), (1.0, 1.0)), 2, "the value of the next observation, or the discount, is wrong"),
    "action": Probe(((-1.0, 1.0), (-1.0, 1.0)), 1, "actions do not improve, or belong to other rewards"),
    "both": Probe(((1.0, -1.0), (-1.0, 1.0)), 1, "actions do not follow the observation"),
}
"""Probes by name, from the simplest to the hardest."""


class ProbeParams(NamedTuple):
    """Parameters of a probe. They are data, so that one compiled program serves all probes."""

    reward: AnyArray  # [2, 2]
    steps: AnyArray


class ProbeState(NamedTuple):
    """State of an episode."""

    sign: jax.Array  # 0 or 1
    time: jax.Array


class DiscreteProbes(TracedWorld):
    """N clients with the same probe, whose name is the level."""

    levels: ClassVar[tuple[str, ...]] = tuple(PROBES)
    observation_size = 2
    actions: ContinuousActions | DiscreteActions = DiscreteActions(num_choices=2)
    horizon = 2
    reset_noise = 1
    step_noise = 0

    def __init__(self, level: str | Probe, num_clients: int) -> None:
        probe = PROBES[level] if isinstance(level, str) else level
        self.population = population_of([probe] * num_clients)

    def reset(self, noise: jax.Array, params: ProbeParams) -> tuple[ProbeState, jax.Array]:
        """Start with a uniformly random sign."""
        del params
        state = ProbeState((noise[0] < 0.5).astype(jnp.int32), jnp.int32(0))
        return state, self._seen(state)

    def step(self, state: ProbeState, action: jax.Array, noise: jax.Array, params: ProbeParams) -> Transition:
        """One step: the sign does not change, and the last step has the reward."""
        del noise
        following = state._replace(time=state.time + 1)
        ended = following.time >= params.steps
        rewards, share = params.reward[state.sign], self.share(action)
        reward = jnp.where(ended, rewards[0] + share * (rewards[1] - rewards[0]), 0.0)
        return Transition(following, self._seen(following), reward, ended)

    def share(self, action: Any) -> Any:
        """Share of choice 1 in an action, from 0 to 1."""
        return action

    def _seen(self, state: ProbeState) -> jax.Array:
        return jnp.stack([2.0 * state.sign - 1.0, state.time.astype(jnp.float32)])


class ContinuousProbes(DiscreteProbes):
    """Probes whose action is a number that mixes the choices: -1 is choice 0, 1 is choice 1."""

    actions = ContinuousActions(size=1, low=-1.0, high=1.0)

    def share(self, action: Any) -> Any:
        """Linear from 0 at -1 to 1 at 1."""
        return (0.5 + 0.5 * action[..., 0]).clip(0.0, 1.0)


def population_of(probes: list[Probe]) -> ProbeParams:
    """One client per probe."""
    rewards = np.array([probe.reward for probe in probes], np.float32)
    return ProbeParams(rewards, np.array([probe.steps for probe in probes], np.int32))


class Answer(NamedTuple):
    """Values and choices that a learner has learned for each observation of a probe, [n]."""

    observation: np.ndarray  # [n, 2]
    value: Vector | None  # None: the learner estimates no values
    share: Vector  # of choice 1 in evaluations


def probe_config(config: LearningConfig) -> LearningConfig:
    """The config with the settings of the known answers: unfiltered rewards, and the discount of the probes."""
    unfiltered: dict[str, Any] = {"filter_observations": False, "filter_rewards": False, "filter_warmup_steps": 0}
    return replace(config, discount=DISCOUNT, **unfiltered)


def run_probe(
    config: LearningConfig,
    probe: str | Probe,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    continuous: bool = False,
) -> Answer:
    """Train one client alone and return what it has learned.

    Args:
        config: of the learner. Its discount and filters are replaced by those of the probes.
        probe: a name in `PROBES`, or a probe of your own.
        rounds: of local training, each from where the one before ended.
        seed: of initial weights and all draws.
        continuous: let a number mix the two choices.
    """
    probe = PROBES[probe] if isinstance(probe, str) else probe
    world = (ContinuousProbes if continuous else DiscreteProbes)(probe, 1)
    learner = make_learner(probe_config(config), world)
    return answer_of(learner, probe, train_alone(learner, rounds, seed), rounds, seed)


def train_alone(learner: Learner, rounds: int, seed: int) -> Params:
    """The parameters of one client that trains without a federation."""
    program = ClientProgram(learner, evaluation_episodes=1)
    params = jax.tree.map(np.asarray, learner.init_params(device_key(seed, Purpose.INITIAL_WEIGHTS)))
    filters, memory = rows((learner.init_filters(), learner.init_memory(params)))
    train, env = compiled(ClientProgram.train, program), program.world.population
    for number in range(rounds):
        key = device_key(seed, Purpose.TRAINING, number)
        draws = rows(learner.draws(host_generator(seed, Purpose.SHUFFLING, number, 0)))
        sent = Broadcast(params, key, learner.schedule(number))
        result = jax.tree.map(np.asarray, train(sent, ClientInputs(np.arange(1), env, filters), memory, draws))
        params = jax.tree.map(lambda x: x[0], result.params)
        filters, memory = result.filters, result.memory
    return params


def rows(tree: Any, count: int = 1) -> Any:
    """Repeat a value for this many clients, along a leading client axis."""
    return jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], count, axis=0), tree)


def answer_of(learner: Learner, probe: Probe, params: Params, round_number: int, seed: int) -> Answer:
    """The answer of a learner: its estimates of values, and the choices of its actor."""
    seen = probe.observations()
    filters = jax.tree.map(np.asarray, learner.init_filters())
    schedule = jax.tree.map(np.asarray, learner.schedule(round_number))
    actor = learner.actor(params, filters, schedule, training=False)
    noise = learner.noise.draw(np.random.default_rng(seed), NUM_ACTIONS_DRAWN)
    world: Any = learner.world
    played = [world.share(actor.act(np.repeat(one[None], len(noise), axis=0), noise)).mean() for one in seen]
    value = learner.values(params, learner.filtered(filters, seen))
    return Answer(seen, None if value is None else np.asarray(value, float), np.array(played))


def check_probe(config: LearningConfig, probe: str, **options: Any) -> Answer:
    """Run a probe and compare with its known answer. Options are those of `run_probe`."""
    answer, known = run_probe(config, probe, **options), PROBES[probe]
    for row, (seen, choice) in enumerate(zip(answer.observation.tolist(), known.best_choices(), strict=True)):
        if choice is not None:
            share = answer.share[row] if choice else 1 - answer.share[row]
            rule = f"must play choice {choice} with a share of {LEAST_SHARE} or more"
            _require(share >= LEAST_SHARE, config, probe, f"{rule} at observation {seen}, not {share:.2f}")
    if answer.value is not None:
        _check_values(config, probe, answer)
    return answer


def _check_values(config: LearningConfig, probe: str, answer: Answer) -> None:
    """Check that values are between those of the played and of the best choices, up to a tolerance."""
    assert answer.value is not None
    best, played = PROBES[probe].best_values(), played_values(PROBES[probe], answer.share)
    for seen, value, high, low in zip(answer.observation.tolist(), answer.value, best, played, strict=True):
        inside = low - VALUE_TOLERANCE <= value <= high + VALUE_TOLERANCE
        rule = f"must value observation {seen} at {high:g}, up to {VALUE_TOLERANCE} more or less"
        _require(bool(inside), config, probe, f"{rule}, not at {value:.2f}")


def played_values(probe: Probe, share: Vector) -> Vector:
    """V(s) of `observations` for a policy that plays choice 1 with these shares."""
    last = share[-2:]
    ends = (1 - last) * np.array(probe.reward)[:, 0] + last * np.array(probe.reward)[:, 1]
    return np.concatenate([ends * DISCOUNT ** (probe.steps - 1 - time) for time in range(probe.steps)])


def _require(holds: bool, config: LearningConfig, probe: str, rule: str) -> None:
    assert holds, f"learner {config.kind!r} {rule} in the probe {probe!r}: {PROBES[probe].tells}"
