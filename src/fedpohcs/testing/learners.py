"""Checks of local learners; see `learners.base.Learner`."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs.core.errors import UserError
from fedpohcs.core.learning import LearningConfig, learner_class
from fedpohcs.core.randomness import Purpose, device_key, host_generator
from fedpohcs.core.trees import named_arrays, take_clients
from fedpohcs.execution.mapping import CLIENT_MAPS, joined
from fedpohcs.learners.base import Broadcast, Learner, make_learner
from fedpohcs.learners.client import ClientInputs, ClientProgram, TrainingResult
from fedpohcs.runs.checkpoints import Checkpoint, from_bytes, to_bytes
from fedpohcs.testing.equality import all_equal
from fedpohcs.testing.probes import (
    PROBES,
    ROUNDS,
    ContinuousProbes,
    DiscreteProbes,
    check_probe,
    population_of,
    probe_config,
    rows,
)

QUICK: dict[str, Any] = {"hidden_sizes": (16,), "local_iterations": 5, "steps_per_iteration": 98}
QUICK_CRITIC = {"batch_size": 32, "entropy_coefficient": 0.0, "critic_learning_rate": 0.01, "critic_epochs": 10}
QUICK_PPO = {"learning_rate": 0.02, "learning_rate_decay": 1.0, "epochs": 4, "kl_target": 0.05, **QUICK_CRITIC}
# In minibatches of odd size the two signs of a probe never cancel. Where they do, a gradient is rounding alone, and
# Adam makes a whole step of it.
QUICK_ODD = QUICK_CRITIC | {"batch_size": 33}
QUICK_REPLAY = {
    "learning_rate": 0.01,
    "batch_size": 32,
    "updates_per_iteration": 64,
    "replay_size": 1000,
    "target_rate": 0.05,
}
QUICK_POLICY = QUICK_REPLAY | {"policy_learning_rate": 0.01}
# Odd and few minibatches, because a greedy policy amplifies rounding errors where actions are equally good.
QUICK_MIXTURE = {"batch_size": 33, "updates_per_iteration": 32, "target_rate": 1.0, "target_period": 8, "mixture": 0.3}
QUICK_GRADIENT = {"episodes": 65, "whitening": "batch"}  # of episodes of one step, whitening leaves nothing
QUICK_OF_KIND: dict[str, dict[str, Any]] = {
    "ppo": QUICK_PPO,
    "fedprox": {"proximal_coefficient": 0.01, **QUICK_PPO},
    "fedkl": {"anchor_coefficient": 0.01, "anchor_target": 0.5, **QUICK_PPO},
    "fmarl": QUICK_PPO,
    "a2c": {"learning_rate": 0.02, **QUICK_ODD},
    "npg": {"kl_target": 0.05, **QUICK_ODD},
    "trpo": {"kl_target": 0.05, **QUICK_ODD},
    "gpomdp": {"learning_rate": 2.0, **QUICK_GRADIENT},
    "fedsvrpg-m": {"learning_rate": 2.0, "beta": 0.8, **QUICK_GRADIENT},
    "mfpo": {"learning_rate": 1.0, "momentum": 0.2, **QUICK_GRADIENT},
    "fednpg-admm": {"local_iterations": 1, **QUICK_GRADIENT},
    "dqn": QUICK_REPLAY,
    "dcpi": QUICK_POLICY | QUICK_MIXTURE,
    "ddpg": QUICK_POLICY,
    "td3": QUICK_POLICY,
    "sac": QUICK_POLICY | {"temperature_learning_rate": 0.01},
    "qavg": {"learning_rate": 0.1},
    "sarsa": {"learning_rate": 0.1, "inverse_temperature": 5.0},
}
MAPS = ("vectorised", "one-by-one")
CLIENT_PROBES = ("observation", "action", "both")
"""Probes of the clients that train together. With equal returns, some learners amplify rounding errors."""
NUM_CLIENTS = len(CLIENT_PROBES)


def quick_config(kind: str) -> LearningConfig:
    """A small, fast config of a registered kind, sufficient for the probes."""
    return learner_class(kind)(**QUICK | QUICK_OF_KIND.get(kind, {}))


def check_learner(learner: str | LearningConfig, *, rounds: int = ROUNDS, seed: int = 0) -> None:
    """Check a learner: answers to the probes, state, actors, and independence of clients.

    Args:
        learner: a registered kind, which is checked with quick settings, or the config of your choice. Probes are
            small: a few hundred steps per round and large learning rates suffice.
        rounds: of training in each probe.
        seed: of all draws.
    """
    config = probe_config(quick_config(learner) if isinstance(learner, str) else learner)
    continuous = not _acts(config, DiscreteProbes)
    made = make_learner(config, (ContinuousProbes if continuous else DiscreteProbes)("constant", NUM_CLIENTS))
    check_equality(made)
    check_draws(made, seed)
    check_actors(made, seed)
    check_state(made, seed)
    check_independence(made, seed)
    for probe in PROBES:
        check_probe(config, probe, rounds=rounds, seed=seed, continuous=continuous)


def _acts(config: LearningConfig, world: Any) -> bool:
    try:
        config.check_actions(world.actions)
    except UserError:
        return False
    return True


def check_equality(learner: Learner) -> None:
    """Check that learners with equal configs in worlds of one class are equal, so that they share compiled code."""
    world: Any = type(learner.world)
    twin = make_learner(replace(learner.config), world("both", 2))
    same = twin == learner and hash(twin) == hash(learner)
    _require(same, learner, "must equal another with an equal config, and have the same hash")


def check_draws(learner: Learner, seed: int = 0) -> None:
    """Check that host draws have one row per local iteration and depend on the generator alone."""
    first, again = (learner.draws(np.random.default_rng(seed)) for _ in range(2))
    iterations = learner.config.local_iterations
    lengths = [np.shape(x)[:1] for x in jax.tree.leaves(first)]
    _require(bool(lengths), learner, "must draw at least one array; without draws keep the default of `draws`")
    rule = f"must give draws a leading axis of local_iterations (={iterations})"
    _require(all(length == (iterations,) for length in lengths), learner, rule)
    _require(all_equal(first, again), learner, "must draw the same from equal generators")


def check_actors(learner: Learner, seed: int = 0) -> None:
    """Check that actors act alike on NumPy and JAX arrays, alone and in a batch, before and after pickling."""
    params = _initial_params(learner, seed)
    filters, schedule = jax.tree.map(np.asarray, (learner.init_filters(), learner.schedule(0)))
    generator = np.random.default_rng(seed)
    seen = generator.normal(size=(50, learner.world.observation_size)).astype(np.float32)
    noise = learner.noise.draw(generator, len(seen))
    before = jax.tree.map(np.copy, (params, filters))
    for training in (False, True):
        actor = learner.actor(params, filters, schedule, training=training)
        action = actor.act(seen, noise)
        _require(isinstance(action, np.ndarray), learner, "must act with NumPy arrays on NumPy arrays")
        _require(action.dtype in (np.float32, np.int32), learner, f"must act in float32 or int32, not {action.dtype}")
        _require(
            all_equal(actor.act(seen, noise), action), learner, "must act alike whenever it sees and draws the same"
        )
        one = np.asarray(actor.act(seen[0], noise[0]))
        _require(_close(one, action[0], 1e-5), learner, "must act on one observation as on a batch")
        traced = learner.actor(*jax.tree.map(jnp.asarray, (params, filters, schedule)), training=training)
        on_device = np.asarray(traced.act(jnp.asarray(seen), jnp.asarray(noise)))
        _require(_close(on_device, action, 1e-4), learner, "must act alike on NumPy and JAX arrays")
        _require(
            all_equal(_sent_to_worker(learner, actor).act(seen, noise), action), learner, "must act alike in workers"
        )
        crowd = actor.crowd([actor, actor]).rows(np.arange(len(seen)) % 2)(seen, noise)
        _require(_close(np.asarray(crowd), action, 1e-4), learner, "must act alike in a crowd")
    _require(all_equal((params, filters), before), learner, "must not change its filters or weights while it plays")


def check_state(learner: Learner, seed: int = 0) -> None:
    """Check that parameters and memory are arrays of constant types and shapes, and that checkpoints store them."""
    start = _start(learner, seed)
    for place, array in named_arrays(start).items():
        rule = f"must keep float32, integers or bool in {place!r}, not {array.dtype}"
        _require(array.dtype == np.float32 or array.dtype.kind in "iub", learner, rule)
    result = _trained(learner, "one-by-one", np.arange(1), seed)
    now = take_clients((result.params, result.filters, result.memory), 0)
    kept = jax.tree.structure(start) == jax.tree.structure(now)
    _require(kept, learner, "must keep the structure of its parameters, filters and memory while it trains")
    for (place, old), new in zip(named_arrays(start).items(), named_arrays(now).values(), strict=True):
        rule = f"must keep {place!r} of type {old.dtype} and shape {old.shape}, not {new.dtype} and {new.shape}"
        _require((old.dtype, old.shape) == (new.dtype, new.shape), learner, rule)
    stored = from_bytes(to_bytes(Checkpoint(0, {}, now))).state
    same = jax.tree.structure(stored) == jax.tree.structure(now) and all_equal(stored, now)
    _require(same, learner, "must have parameters and memory that a checkpoint gives back as they were")
    names = tuple(result.info._fields)
    _require(names == tuple(learner.info), learner, f"must report what `info` names, not {', '.join(names)}")
    _require(bool((result.steps > 0).all()), learner, "must count the steps that it learns from")


def check_independence(learner: Learner, seed: int = 0) -> None:
    """Check that a client's training does not depend on other clients, and that equal draws give equal results."""
    together, apart = (_trained(learner, kind, np.arange(NUM_CLIENTS), seed) for kind in MAPS)
    own = (together.params, together.filters, together.memory)
    for place, mine, alone in zip(named_arrays(own), jax.tree.leaves(own), _leaves(apart), strict=True):
        rule = f"must learn the same with other clients and alone; {place!r} differs"
        _require(_close(mine, alone, 1e-3), learner, rule)
    again = _trained(learner, MAPS[0], np.arange(NUM_CLIENTS), seed)
    _require(all_equal(again.params, together.params), learner, "must learn the same from the same seed")


def _leaves(result: TrainingResult) -> list[Any]:
    return jax.tree.leaves((result.params, result.filters, result.memory))


def _start(learner: Learner, seed: int) -> Any:
    """Parameters, filters and memory before the first round."""
    params = _initial_params(learner, seed)
    return jax.tree.map(np.asarray, (params, learner.init_filters(), learner.init_memory(params)))


def _trained(learner: Learner, kind: str, clients: np.ndarray, seed: int) -> TrainingResult:
    """One round of these clients, each with a probe of its own, together or one by one."""
    params, filters, memory = _start(learner, seed)
    filters, memory = rows((filters, memory), len(clients))
    env = take_clients(population_of([PROBES[name] for name in CLIENT_PROBES]), clients)
    drawn = [learner.draws(host_generator(seed, Purpose.SHUFFLING, 0, int(client))) for client in clients]
    draws = jax.tree.map(lambda *one: np.stack(one), *drawn)
    sent = Broadcast(params, device_key(seed, Purpose.TRAINING, 0), learner.schedule(0))
    own = (ClientInputs(clients, env, filters), memory, draws)
    program = ClientProgram(learner, evaluation_episodes=1)
    return joined(CLIENT_MAPS[kind](2).run_chunks(ClientProgram.train, program, sent, own, clients))


def _initial_params(learner: Learner, seed: int) -> Any:
    return jax.tree.map(np.asarray, learner.init_params(device_key(seed, Purpose.INITIAL_WEIGHTS)))


def _sent_to_worker(learner: Learner, actor: Any) -> Any:
    """The actor as worker processes receive it."""
    worker: Any = ForkingPickler  # whose `loads` type checkers take for a method
    try:
        return worker.loads(bytes(worker.dumps(actor)))
    except Exception as error:
        raise AssertionError(f"learner {learner.config.kind!r} must have actors that pickle: {error}") from error


def _close(first: Any, second: Any, tolerance: float) -> bool:
    """Whether arrays are equal up to rounding, integers exactly."""
    first, second = np.asarray(first), np.asarray(second)
    if first.shape != second.shape or first.dtype.kind in "iub":
        return np.array_equal(first, second)
    return bool(np.abs(first - second).max(initial=0) <= tolerance * (1 + np.abs(second).max(initial=0)))


def _require(holds: bool, learner: Learner, rule: str) -> None:
    assert holds, f"learner {learner.config.kind!r} {rule}"
