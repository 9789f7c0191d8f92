"""Every check notices a plug-in that breaks the contract, and names what is broken."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core import registries as known
from fedpohcs.core.learning import DQNConfig, LearningConfig, PPOConfig
from fedpohcs.core.registries import AGGREGATORS, METRICS, OPTIMISERS, SELECTORS, WORLDS
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.core.types import Selection
from fedpohcs.learners import ppo
from fedpohcs.learners.base import make_learner
from fedpohcs.learners.dqn import DQN
from fedpohcs.learners.rollout import CLIENT_AXIS
from fedpohcs.metrics.base import Metric
from fedpohcs.server.selection import Selector
from fedpohcs.testing import (
    check_aggregator,
    check_metric,
    check_optimiser,
    check_probe,
    check_selector,
    check_world,
    quick_config,
)
from fedpohcs.testing.learners import check_actors, check_draws, check_equality, check_independence, check_state
from fedpohcs.testing.probes import DiscreteProbes, probe_config
from fedpohcs.worlds.base import ContinuousActions
from fedpohcs.worlds.host import ClientEpisodes, HostWorld, Play, Quota, episode_generator
from fedpohcs.worlds.tabular import TabularWorlds


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Put back what a test registers."""
    before = [(registry, dict(registry.entries)) for registry in known.REGISTRIES.values()]
    yield
    for registry, entries in before:
        registry.entries = entries


class LazyCritic(ppo.PPO):
    """Its critic stays as it was."""

    def learn(self, sent: Any, now: Any, trajectory: Any, draws: Any) -> Any:
        learned = super().learn(sent, now, trajectory, draws)
        params = learned.now.params._replace(critic=now.params.critic)
        return learned._replace(now=learned.now._replace(params=params))


class Undiscounted(DQN):
    """Its target forgets the discount."""

    def target_value(self, online: Any, target: Any, batch: Any) -> Any:
        mean = super().target_value(online, target, batch)
        return batch.reward + (mean - batch.reward) / self.config.discount


class Backwards(DQN):
    """Learns from rewards with the wrong sign, and reports values with the right one."""

    def filtered_reward(self, filters: Any, reward: Any) -> Any:
        return -super().filtered_reward(filters, reward)


class Gossip(DQN):
    """Its parameters mix with those of whoever trains with it."""

    def learn(self, sent: Any, now: Any, trajectory: Any, draws: Any) -> Any:
        learned = super().learn(sent, now, trajectory, draws)
        params = jax.tree.map(lambda x: jax.lax.pmean(x, CLIENT_AXIS), learned.now.params)
        return learned._replace(now=learned.now._replace(params=params))


class Misnamed(DQN):
    """Reports other numbers than it says."""

    info = ("loss", "return")


class Doubled(DQN):
    """Keeps numbers of another type after training than before."""

    def init_memory(self, params: Any) -> Any:
        return super().init_memory(params)._replace(written=np.zeros((), np.float64))


class FlatDraws(DQN):
    """Draws without an axis of local iterations."""

    def draws(self, generator: np.random.Generator) -> np.ndarray:
        return super().draws(generator).place[0]


class Moody(DQN):
    """Its actors hold a function that does not pickle."""

    def actor(self, params: Any, filters: Any, schedule: Any, *, training: bool) -> Any:
        actor = super().actor(params, filters, schedule, training=training)
        return actor._replace(apply=lambda weights, seen: self.apply(weights, seen))


class Unequal(DQN):
    """Equal only to itself."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass(frozen=True)
class OwnDQN(DQNConfig):
    algorithm: ClassVar[str] = ""


@dataclass(frozen=True)
class OwnPPO(PPOConfig):
    algorithm: ClassVar[str] = ""


def config_of(kind: type) -> LearningConfig:
    """Quick settings for a broken learner of this file."""
    own, base = (OwnPPO, "ppo") if issubclass(kind, ppo.PPO) else (OwnDQN, "dqn")
    named = dataclass(frozen=True)(type(f"Own{kind.__name__}", (own,), {"algorithm": f"{__name__}:{kind.__name__}"}))
    quick = quick_config(base)
    return named(**{field.name: getattr(quick, field.name) for field in dataclasses.fields(quick)})


def learner_of(kind: type) -> Any:
    return make_learner(probe_config(config_of(kind)), DiscreteProbes("constant", 2))


@pytest.mark.parametrize(
    ("kind", "probe", "complaint"),
    [
        (LazyCritic, "constant", "must value observation"),
        (Undiscounted, "delayed", "the value of the next observation, or the discount, is wrong"),
        (Backwards, "action", "must play choice 1"),
    ],
)
def test_a_probe_notices_a_learner_that_learns_something_else(kind: type, probe: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_probe(config_of(kind), probe)


@pytest.mark.parametrize(
    ("kind", "check", "complaint"),
    [
        (Gossip, check_independence, "must learn the same with other clients and alone"),
        (Misnamed, check_state, "must report what `info` names, not loss, value"),
        (Doubled, check_state, "must keep float32, integers or bool"),
        (FlatDraws, check_draws, "leading axis of local_iterations"),
        (Moody, check_actors, "must have actors that pickle"),
        (Unequal, check_equality, "must equal another with an equal config"),
    ],
)
def test_the_check_of_a_learner_notices(kind: type, check: Any, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(learner_of(kind))


def selecting(choose: Any, **parts: Any) -> Any:
    return lambda: Selector(lambda question, metrics, state: (choose(question, metrics), state), **parts)


def first(question: Any, metrics: Any) -> Selection:
    return Selection(question.candidates[: question.num_selected])


def outsider(question: Any, metrics: Any) -> Selection:
    return Selection(np.arange(question.num_selected))


def twice(question: Any, metrics: Any) -> Selection:
    return Selection(np.repeat(question.candidates[:1], question.num_selected))


def by_chance(question: Any, metrics: Any) -> Selection:
    return Selection(np.random.default_rng().choice(question.candidates, question.num_selected, replace=False))


def everybody(question: Any, metrics: Any) -> Selection:
    return Selection(np.sort(question.candidates))


def nosy(question: Any, metrics: Any) -> Selection:
    score = metrics.columns.get("mean_return", np.arange(len(metrics.client)))
    return Selection(metrics.client[np.argsort(-score)[: question.num_selected]])


@pytest.mark.parametrize(
    ("choose", "complaint"),
    [
        (first, "must not depend on the order"),
        (outsider, "must choose among the candidates"),
        (twice, "must choose different clients"),
        (by_chance, "must choose the same with the same seed"),
        (everybody, "must choose at most K"),
        (nosy, "must (read the metrics that it requires|not depend on the order)"),
    ],
)
def test_the_check_of_a_selector_notices(choose: Any, complaint: str) -> None:
    SELECTORS["broken"] = selecting(choose)
    with pytest.raises(AssertionError, match=complaint):
        check_selector("broken")


MEAN, TRIMMED_MEAN = AGGREGATORS["parameter-mean"], AGGREGATORS["trimmed-mean"]


def merging(rule: Any) -> Any:
    """An aggregator that applies a rule to every array of the updates."""
    return MEAN._replace(combine=lambda given: MEAN.combine(given)._replace(params=jax.tree.map(rule, given.params)))


@pytest.mark.parametrize(
    ("aggregator", "complaint"),
    [
        (merging(lambda x: x[-1]), "must not depend on the order"),
        (merging(lambda x: 2 * x.mean(axis=0)), "must make equal updates the new policy"),
        (merging(lambda x: x.mean(axis=0, dtype=float)), "must keep 'policy/layers/0/kernel' of type float32"),
        (MEAN._replace(least=lambda byzantine: 2 * byzantine + 1), "must not let one Byzantine client"),
        (TRIMMED_MEAN._replace(least=lambda byzantine: 9 - byzantine), "must need more updates"),
    ],
)
def test_the_check_of_an_aggregator_notices(aggregator: Any, complaint: str) -> None:
    AGGREGATORS["broken"] = aggregator
    with pytest.raises(AssertionError, match=complaint):
        check_aggregator("broken")


def optimising(change: Any) -> Any:
    """Makes a server optimiser that changes the previous policy in this way, and takes controls from the proposal."""

    def apply(state: Any, previous: Any, proposal: Any) -> Any:
        return change(previous)._replace(kl_coefficient=proposal.params.kl_coefficient), state

    return lambda settings: OPTIMISERS["identity"](settings)._replace(apply=apply)


def raised(params: Any) -> Any:
    return jax.tree.map(lambda x: x + np.float32(1), params)


def raised_in_place(params: Any) -> Any:
    params.critic[0].bias[:] += 1
    return params


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (optimising(raised), "must stay where it is"),
        (optimising(raised_in_place), "must not change what it is given"),
        (optimising(lambda params: params), "must move the policy"),
        (
            lambda settings: OPTIMISERS["identity"](settings)._replace(apply=lambda state, old, proposal: (old, state)),
            "must take controls",
        ),
    ],
)
def test_the_check_of_a_server_optimiser_notices(make: Any, complaint: str) -> None:
    OPTIMISERS["broken"] = make
    with pytest.raises(AssertionError, match=complaint):
        check_optimiser("broken")


def ones(context: Any, clients: Any) -> np.ndarray:
    return np.ones(len(clients))


@pytest.mark.parametrize(
    ("metric", "complaint"),
    [
        (Metric(lambda context, clients: np.ones(5), reads=None), "one value per client, not 5 for 3"),
        (Metric(lambda context, clients: np.full(3, np.nan), reads=None), "not finite"),
        (Metric(lambda context, clients: np.random.default_rng().random(3), reads=None), "same for the same seed"),
        (Metric(ones, reads=None, unpack=lambda arrays: 2 * arrays[""]), "must be unpacked to what was packed"),
        (Metric(ones, reads=None, hide="table"), "must be a WeightedAdvantage per client"),
    ],
)
def test_the_check_of_a_metric_notices(metric: Metric, complaint: str) -> None:
    METRICS["broken"] = metric
    with pytest.raises(AssertionError, match=complaint):
        check_metric("broken")


class Lonely(TabularWorlds):
    """One client, however many were asked for."""

    def __init__(self, level: str, num_clients: int, num_held_out: int = 0) -> None:
        super().__init__(level, 1)


class Cramped(TabularWorlds):
    """Says that observations are smaller than they are."""

    observation_size = 2


class Unlike(TabularWorlds):
    """Every world of the class is another."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Endless(TabularWorlds):
    """Its rewards grow beyond all bounds."""

    def step(self, state: Any, action: Any, noise: Any, params: Any) -> Any:
        moved = super().step(state, action, noise, params)
        return moved._replace(reward=moved.reward / jnp.where(moved.state == state, 0.0, 1.0))


@pytest.mark.parametrize(
    ("world", "complaint"),
    [
        (Lonely, "must have a population of num_clients"),
        (Cramped, r"must reset to an observation of shape \(2,\)"),
        (Unlike, "must equal another of the same config"),
        (Endless, "must give finite observations and rewards"),
    ],
)
def test_the_check_of_a_world_notices(world: type, complaint: str) -> None:
    WORLDS["broken"] = world
    with pytest.raises(AssertionError, match=complaint):
        check_world("broken")


class Walk(HostWorld):
    """A host world without a simulator, stepped in this process: each client walks until it has gone far enough."""

    levels: ClassVar[tuple[str, ...]] = ("own",)
    observation_size, actions, horizon = 1, ContinuousActions(1, -math.inf, math.inf), 50

    def __init__(self, level: str, num_clients: int) -> None:
        del level, num_clients

    def make_collector(self) -> Any:
        return self

    def close(self) -> None:
        pass

    def collect(self, plays: Sequence[Play], quota: Quota) -> list[ClientEpisodes]:
        return [
            ClientEpisodes(self.walk(play, min(self.horizon, quota.steps_per_episode or self.horizon)))
            for play in plays
        ]

    def walk(self, play: Play, most: int) -> Trajectory:
        """One episode, cut at the time limit."""
        generator = episode_generator(play, 0)
        place = generator.normal(size=1).astype(np.float32)
        seen, actions = [place], []
        for noise in play.actor.noise.draw(generator, most):
            actions.append(play.actor.act(seen[-1], noise))
            seen.append(seen[-1] + actions[-1])
        status = np.full((most, 1), Status.RUNNING, np.int8)
        status[-1] = Status.TRUNCATED
        observation, action = np.stack(seen)[:, None], np.stack(actions)[:, None]
        reward = -np.abs(observation[1:, :, 0])
        return Trajectory(observation[:-1], action, reward, status, observation[1:])


def walking(change: Any) -> type[Walk]:
    """The world with something wrong in what is played: `change(plays, played)`."""

    class Broken(Walk):
        def collect(self, plays: Sequence[Play], quota: Quota) -> list[ClientEpisodes]:
            return change(plays, super().collect(plays, quota))

    return Broken


def recording(**changes: Any) -> type[Walk]:
    """The world with other arrays in its trajectories, each made of the right one."""

    def changed(one: ClientEpisodes) -> ClientEpisodes:
        wrong = {name: change(getattr(one.trajectory, name)) for name, change in changes.items()}
        return one._replace(trajectory=one.trajectory._replace(**wrong))

    return walking(lambda plays, played: [changed(one) for one in played])


class Breathless(Walk):
    """Goes on after its time limit."""

    def walk(self, play: Play, most: int) -> Trajectory:
        return super().walk(play, most + 1)


class Aging(Walk):
    """Rewards depend on how often it was played before."""

    def __init__(self, level: str, num_clients: int) -> None:
        self.calls = 0

    def walk(self, play: Play, most: int) -> Trajectory:
        self.calls += 1
        steps = super().walk(play, most)
        return steps._replace(reward=steps.reward + np.float32(self.calls))


def together(plays: Sequence[Play], played: list[ClientEpisodes]) -> list[ClientEpisodes]:
    return [x._replace(trajectory=x.trajectory._replace(reward=x.trajectory.reward / len(plays))) for x in played]


def failing(plays: Sequence[Play], played: list[ClientEpisodes]) -> list[ClientEpisodes]:
    return [one._replace(failure="the floor is wet") for one in played]


def test_a_sound_host_world_without_bounds_of_its_actions_passes() -> None:
    WORLDS["walks"] = Walk
    check_world("walks")


@pytest.mark.parametrize(
    ("world", "complaint"),
    [
        (walking(together), "must play the same for a client whoever else plays"),
        (Aging, "must play the same for a client whoever else plays, and whenever it plays"),
        (walking(failing), "must play: the floor is wet"),
        (walking(lambda plays, played: played[:-1]), "must return one ClientEpisodes per play, not 2"),
        (Breathless, "must end an episode after at most 50 steps, not 51"),
        (recording(observation=lambda x: x.astype(float)), "must record observations in float32"),
        (recording(observation=lambda x: x[:, 0]), r"must record observations of shape \(50, 1, 1\), not \(50, 1\)"),
        (recording(action=lambda x: x[:, 0]), r"must record actions of type float32 and shape \(50, 1, 1\)"),
        (recording(reward=lambda x: x / 0), "must give finite observations and rewards"),
        (recording(status=lambda x: np.full_like(x, Status.RUNNING)), "must record whole episodes"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_the_check_of_a_host_world_notices(world: type, complaint: str) -> None:
    WORLDS["broken"] = world
    with pytest.raises(AssertionError, match=complaint):
        check_world("broken")
