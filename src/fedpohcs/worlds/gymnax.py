"""Environments of the package gymnax as a federation: a client per set of their parameters.

The package has the physics; this world gives each client its own `EnvParams`, which differ in one field. Time
limits are applied outside of the environment, as in every world.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedpohcs.core.config import Placement
from fedpohcs.core.errors import UserError, require, require_known
from fedpohcs.core.lazy import LazyModule
from fedpohcs.core.scenario import WorldConfig
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions, TracedWorld, Transition, with_held_out
from fedpohcs.worlds.control import SHARES, Context

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:  # the class is read for options and help texts, which must not wait for JAX
    jax, jnp = LazyModule("jax"), LazyModule("jax.numpy")

INSTALL = "Install it: pip install 'fedpohcs[gymnax]'"

DERIVED: dict[str, dict[str, Callable[[Any], Any]]] = {
    "CartPole-v1": {
        "total_mass": lambda own: own.masscart + own.masspole,
        "polemass_length": lambda own: own.masspole * own.length,
    }
}
"""Parameters that an environment keeps beside the ones that they follow from."""


@dataclass(frozen=True)
class GymnaxConfig(WorldConfig):
    """Settings of the world `gymnax`."""

    env: str = "CartPole-v1"
    """A registered environment of gymnax."""
    context: str = "length"
    """The field of its parameters that differs between clients."""
    low: float | None = None
    """Its least value, of the first client at the level high. None: half of the usual value."""
    high: float | None = None
    """Its largest value, of the last client at the level high. None: one and a half times the usual value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("low", "high"):
            value = getattr(self, name)
            require(value is None or math.isfinite(value), f"scenario.{name}", value, "must be a finite number")


class GymnaxWorld(TracedWorld):
    """N clients whose environments differ in one parameter, ascending with their ids; the others are gymnax's."""

    Config = GymnaxConfig
    levels: ClassVar[tuple[str, ...]] = tuple(SHARES)
    held_out = extrapolates = True
    reset_noise = step_noise = 2

    @classmethod
    def check_settings(cls, settings: GymnaxConfig) -> None:
        """Refuse to go on without the package."""
        del settings
        if find_spec("gymnax") is None:
            raise UserError(f"this world needs the package gymnax. {INSTALL}")

    def __init__(
        self,
        level: str,
        num_clients: int,
        num_held_out: int = 0,
        *,
        settings: GymnaxConfig | None = None,
        placement: Placement = "between",
    ) -> None:
        settings = settings or GymnaxConfig()
        self.check_settings(settings)
        gymnax = imported()
        require_known("scenario.env", settings.env, gymnax.registered_envs)
        with refusing(settings.env):
            self.env, self.usual = gymnax.make(settings.env)
        self.name, self.derived, name = settings.env, DERIVED.get(settings.env, {}), settings.context
        require_known("scenario.context", name, self._contexts())
        values = context_of(settings, getattr(self.usual, name)).values(level, num_clients)
        self.population = {name: jnp.asarray(with_held_out(values, num_held_out, placement), jnp.float32)}
        self._read_spaces()
        with refusing(settings.env):
            self._try_out()

    def _contexts(self) -> list[str]:
        """The parameters that can differ."""
        fields = {field.name: getattr(self.usual, field.name) for field in dataclasses.fields(self.usual)}
        fixed = {"max_steps_in_episode", *self.derived}
        known = [name for name, usual in fields.items() if isinstance(usual, float) and name not in fixed]
        rule = "has no parameter that is a number with a point, so its clients could not differ"
        require(bool(known), "scenario.env", self.name, rule, "Use the world 'gym'.")
        return known

    def _read_spaces(self) -> None:
        """Sizes of observations and actions, and the time limit."""
        seen, acts = self.env.observation_space(self.usual), self.env.action_space(self.usual)
        self.is_numbered = hasattr(seen, "n")  # observations are one of n, which becomes a row of zeros and a one
        shape = (seen.n,) if self.is_numbered else seen.shape
        self.observation_size = math.prod(shape)
        if hasattr(acts, "n"):
            self.actions = DiscreteActions(int(acts.n))
        else:
            bounds = np.array([acts.low, acts.high], dtype=object)
            finite = all(np.isfinite(np.asarray(bound, float)).all() for bound in bounds)
            require(finite, "scenario.env", self.name, "has actions without bounds", "Use the world 'gym'.")
            self.actions = ContinuousActions(math.prod(acts.shape), -1.0, 1.0)
        self.horizon = int(self.usual.max_steps_in_episode)

    def _try_out(self) -> None:
        """Compute the shapes of a step."""
        own, noise = {name: rows[0] for name, rows in self.population.items()}, jnp.zeros(2)
        action = jnp.zeros((), jnp.int32) if isinstance(self.actions, DiscreteActions) else jnp.zeros(self.actions.size)
        jax.eval_shape(lambda: self.step(self.reset(noise, own)[0], action, noise, own))

    def reset(self, noise: jax.Array, params: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        """An episode of gymnax begins."""
        observation, state = self.env.reset_env(key_from(noise), self.params_of(params))
        return jax.tree.map(jnp.asarray, state), self._seen(observation)

    def step(self, state: Any, action: jax.Array, noise: jax.Array, params: dict[str, jax.Array]) -> Transition:
        """A step of gymnax without its time limit and without a new episode. Action 1 is the client's upper bound."""
        own = self.params_of(params)
        if isinstance(self.actions, ContinuousActions):
            space = self.env.action_space(own)
            share = (jnp.clip(action, -1.0, 1.0).reshape(space.shape) + 1) / 2
            action = space.low + share * (space.high - space.low)
        observation, moved, reward, terminated, _ = self.env.step_env(key_from(noise), state, action, own)
        moved = jax.tree.map(lambda new, old: jnp.reshape(new, old.shape).astype(old.dtype), moved, state)
        return Transition(moved, self._seen(observation), jnp.reshape(reward, ()), jnp.reshape(terminated, ()))

    def params_of(self, own: dict[str, jax.Array]) -> Any:
        """The parameters of a client: its own value, what follows from it, and gymnax's values."""
        params = self.usual.replace(**own)
        return params.replace(**{name: follow(params) for name, follow in self.derived.items()})

    def _seen(self, observation: jax.Array) -> jax.Array:
        if self.is_numbered:
            return jax.nn.one_hot(observation, self.observation_size)
        return jnp.ravel(observation).astype(jnp.float32)

    def __eq__(self, other: object) -> bool:
        """Whether programs can be shared: they contain the physics of an environment."""
        return isinstance(other, GymnaxWorld) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, ...]:
        return (self.name, *self.population)


def imported() -> Any:
    """The package gymnax."""
    try:
        return import_module("gymnax")
    except ImportError as error:  # it does not declare all packages that it needs
        raise UserError(f"the package gymnax cannot be imported: {error}. {INSTALL}") from error


@contextmanager
def refusing(env: str) -> Iterator[None]:
    """Refuse an environment whose own code raises."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"scenario.env (={env!r}) cannot be used here: {reason}") from error


def context_of(settings: GymnaxConfig, usual: float) -> Context:
    """The range of a parameter, from the settings or around its usual value."""
    around = sorted((0.5 * usual, 1.5 * usual))
    low, high = (end if own is None else own for own, end in zip((settings.low, settings.high), around, strict=True))
    rule = f"must be below scenario.high (={high:g}); the usual {settings.context} is {usual:g}"
    require(low < high, "scenario.low", low, rule)
    return Context(usual, low, high)


def key_from(noise: jax.Array) -> jax.Array:
    """A key of JAX from two uniform numbers in [0, 1)."""
    return jax.random.wrap_key_data((noise * 2.0**24).astype(jnp.uint32), impl="threefry2x32")
