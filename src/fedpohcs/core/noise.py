"""The random numbers that an actor turns into actions. The actor names their kind; the rollout draws them."""

from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedpohcs.core.types import AnyArray

if TYPE_CHECKING:
    import jax


BLOCK = 50
"""Steps over which an Ornstein-Uhlenbeck process runs. Host worlds draw noise for as many at once."""


class ActionNoise(NamedTuple):
    """The random numbers of one distribution that an actor needs per step.

    All are independent, except those of an Ornstein-Uhlenbeck process ("ou"): each of its numbers is standard normal,
    and the share `1 - pull` of it goes over into the next step. A new process starts every `BLOCK` steps.
    """

    kind: Literal["normal", "gumbel", "uniform", "ou"]  # standard ones; uniform on [0, 1)
    size: int
    pull: float = 1.0

    def draw(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        """Noise of some steps on the host, [steps, size]."""
        shape = (steps, self.size)
        if self.kind == "normal":
            return generator.standard_normal(shape, np.float32)
        if self.kind == "ou":
            return self._correlated(generator.standard_normal(shape, np.float32))
        if self.kind == "uniform":
            return generator.random(shape, np.float32)
        return generator.gumbel(size=shape).astype(np.float32)

    def draw_on_device(self, key: "jax.Array", shape: tuple[int, ...]) -> "jax.Array":
        """Noise inside a compiled program, [*shape, size]."""
        import jax

        if self.kind == "ou":
            return self._correlated(jax.random.normal(key, (*shape, self.size)))
        draw = {"normal": jax.random.normal, "gumbel": jax.random.gumbel, "uniform": jax.random.uniform}[self.kind]
        return draw(key, (*shape, self.size))

    def _correlated(self, normal: AnyArray) -> AnyArray:
        """Independent numbers, [steps, ...], as those of the process."""
        xp, steps = normal.__array_namespace__(), len(normal)
        padded = xp.concat([normal, xp.zeros((-steps % BLOCK, *normal.shape[1:]), normal.dtype)])
        blocks = padded.reshape(-1, BLOCK, normal[0].size)
        return (correlation(self.pull) @ blocks).reshape(padded.shape)[:steps]


@cache
def correlation(pull: float) -> np.ndarray:
    """The matrix from independent numbers z to those of the process.

    x[t+1] = (1 - pull) x[t] + sqrt(1 - (1 - pull)^2) z[t+1], from x[0] = z[0].
    """
    kept, step = 1 - pull, np.arange(BLOCK)
    elapsed = np.maximum(step[:, None] - step, 0)
    fresh = np.where(step == 0, 1.0, np.sqrt(1 - kept**2))
    return np.tril(kept**elapsed * fresh).astype(np.float32)
