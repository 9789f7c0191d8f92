"""Parameters by part. A part is a top-level entry of a named tuple or a dict, such as the policy or the critic.

The scales of two parts do not compare, so every rule that measures lengths treats each part as a vector of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpohcs.core.types import Params, Vector


def parts_of(params: Params) -> dict[str, Any]:
    """The parts by name. Parameters that are neither a named tuple nor a dict are a single part.

    Example:
        >>> parts_of({"policy": 1, "critic": 2})
        {'policy': 1, 'critic': 2}
    """
    if hasattr(params, "_asdict"):
        return params._asdict()
    return dict(params) if isinstance(params, dict) else {"params": params}


def controls_of(params: Params) -> tuple[str, ...]:
    """Parts that are not weights but numbers with their own rule, such as the KL coefficient of PPO.

    The class of the parameters names them in its attribute `controls`.
    """
    return getattr(type(params), "controls", ())


def weight_parts(params: Params) -> list[str]:
    """The names of the parts that are weights: all but controls."""
    return [name for name in parts_of(params) if name not in controls_of(params)]


def scaled_change(previous: Params, params: Params, factor: float, names: Sequence[str]) -> Params:
    """Parameters of which these parts are `factor` times as far from the previous ones.

    A factor of 1 gives exactly the parameters themselves.
    """
    import jax

    def scaled(origin: np.ndarray, proposed: np.ndarray) -> np.ndarray:
        far = np.asarray(proposed, float)
        return (far + (factor - 1) * (far - origin)).astype(proposed.dtype)

    old, new = parts_of(previous), parts_of(params)
    return from_parts({**new, **{name: jax.tree.map(scaled, old[name], new[name]) for name in names}}, params)


def from_parts(parts: dict[str, Any], like: Params) -> Params:
    """Parameters of the same kind as `like`, made of these parts."""
    if hasattr(like, "_asdict"):
        return type(like)(**parts)
    return type(like)(parts) if isinstance(like, dict) else parts["params"]


def vector_of(part: Any) -> Vector:
    """All numbers of a part, [P]."""
    import jax  # late, because names of aggregators are checked before JAX is configured

    leaves = [np.ravel(x).astype(float) for x in jax.tree.leaves(part)]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def rows_of(stacked: Any) -> Vector:
    """All numbers of a part with a leading client axis, [K, P]."""
    import jax

    leaves = [np.reshape(x, (len(x), -1)).astype(float) for x in jax.tree.leaves(stacked)]
    return np.concatenate(leaves, axis=1) if leaves else np.zeros((0, 0))


def from_vector(vector: Vector, like: Any) -> Any:
    """A part with the shapes and types of `like`, filled with the numbers of a vector."""
    import jax

    leaves, tree = jax.tree.flatten(like)
    ends = np.cumsum([np.size(x) for x in leaves])
    pieces = zip(np.split(vector, ends[:-1]), leaves, strict=True) if leaves else ()
    return jax.tree.unflatten(tree, [piece.reshape(np.shape(x)).astype(x.dtype) for piece, x in pieces])
