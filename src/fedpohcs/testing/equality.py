"""How the checks compare trees of arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def all_equal(first: Any, second: Any) -> bool:
    """Whether all arrays of two trees of one structure are equal; not a number equals itself."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind == "f") for x, y in pairs)
