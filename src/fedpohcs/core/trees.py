"""Trees of arrays with a leading client axis, and trees whose arrays have names."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


def named_arrays(tree: Any) -> dict[str, Any]:
    """Every array of a tree, named by its path."""
    import jax

    return dict(zip(_places(tree), map(np.asarray, jax.tree.leaves(tree)), strict=True))


def by_place(tree: Any) -> dict[str, Any]:
    """Every leaf of a tree, named by its path; also inside compiled programs."""
    import jax

    return dict(zip(_places(tree), jax.tree.leaves(tree), strict=True))


def with_places(tree: Any, changed: Mapping[str, Any]) -> Any:
    """The tree with other leaves in these places."""
    return tree_like(tree, {**by_place(tree), **changed})


def tree_like(template: Any, arrays: Mapping[str, Any], prefix: str = "") -> Any:
    """A tree of the template's structure whose arrays are those called `prefix` and their place in it.

    Works inside compiled programs, such as the loss of a learner that reads what a server optimiser sends.
    """
    import jax

    return jax.tree.unflatten(jax.tree.structure(template), [arrays[prefix + place] for place in _places(template)])


def _places(tree: Any) -> tuple[str, ...]:
    """Where each array of a tree is, in the order of its leaves: `policy/layers/0/kernel`."""
    import jax

    return _places_in(jax.tree.structure(tree))


@lru_cache(maxsize=256)  # a run has few structures, and names the arrays of each several times per round
def _places_in(structure: Any) -> tuple[str, ...]:
    import jax

    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    leaves, _ = jax.tree_util.tree_flatten_with_path(numbered)
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves)


def same_form(tree: Any, other: Any) -> bool:
    """Whether two trees have arrays of the same names, shapes and types."""
    return _form(tree) == _form(other)


def same_rows(tree: Any, one: Any, number: int) -> bool:
    """Whether a tree has so many rows of arrays that are named, shaped and typed as those of `one`."""
    return _form(tree) == {name: ((number, *shape), dtype) for name, (shape, dtype) in _form(one).items()}


def _form(tree: Any) -> dict[str, tuple[Any, Any]]:
    return {name: (array.shape, array.dtype) for name, array in named_arrays(tree).items()}


def take_clients(tree: Any, index: Any) -> Any:
    """The given rows of every leaf."""
    import jax

    return jax.tree.map(lambda x: np.asarray(x)[index], tree)


def merged_rows(clients: Any, tree: Any, later_clients: Any, later: Any) -> tuple[NDArray[np.int64], Any]:
    """Rows of clients, with later ones in their place, or after them where a client had none."""
    import jax

    _, old_rows, new_rows = np.intersect1d(clients, later_clients, assume_unique=True, return_indices=True)
    added = np.ones(len(later_clients), bool)
    added[new_rows] = False

    def merge(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        rows = np.concatenate([old, new[added]])
        rows[old_rows] = new[new_rows]
        return rows

    return np.concatenate([clients, later_clients[added]]), jax.tree.map(merge, tree, later)


def finite_clients(stacked: Any) -> NDArray[np.bool_]:
    """Which clients have only finite numbers in a pytree with a leading client axis."""
    import jax

    leaves = [np.asarray(x) for x in jax.tree.leaves(stacked)]
    return np.all([np.isfinite(x).all(axis=tuple(range(1, x.ndim))) for x in leaves], axis=0)
