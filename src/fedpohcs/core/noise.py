"""The random numbers that an actor turns into actions. The actor names their kind; the rollout draws them."""

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import jax


class ActionNoise(NamedTuple):
    """The independent random numbers of one distribution that an actor needs per step."""

    kind: Literal["normal", "gumbel", "uniform"]  # standard ones; uniform on [0, 1)
    size: int

    def draw(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        """Noise of some steps on the host, [steps, size]."""
        shape = (steps, self.size)
        if self.kind == "normal":
            return generator.standard_normal(shape, np.float32)
        if self.kind == "uniform":
            return generator.random(shape, np.float32)
        return generator.gumbel(size=shape).astype(np.float32)

    def draw_on_device(self, key: "jax.Array", shape: tuple[int, ...]) -> "jax.Array":
        """Noise inside a compiled program, [*shape, size]."""
        import jax

        draw = {"normal": jax.random.normal, "gumbel": jax.random.gumbel, "uniform": jax.random.uniform}[self.kind]
        return draw(key, (*shape, self.size))
