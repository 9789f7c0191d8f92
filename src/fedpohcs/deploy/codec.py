"""Converts trees of arrays to Flower records and back. An array is sent as type, shape and plain bytes, no pickle."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from fedpohcs.core.array_rules import ArrayRule
from fedpohcs.core.trees import named_arrays
from fedpohcs.server.replies import RawArray, checked_arrays, expected_like

PLAIN = "fedpohcs.plain"  # layout of the bytes of an array: contiguous, in C order
MEASURED = "measured/"


def to_record(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Named arrays as a record."""
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    return ArrayRecord({name: Array(x.dtype.str, x.shape, PLAIN, x.tobytes()) for name, x in plain.items()})


def from_record(record: ArrayRecord) -> dict[str, RawArray]:
    """The arrays of a record as they arrived, not decoded yet.

    In another layout, such as NumPy's file format, the bytes mean something else. A type that is none stands for it, so
    that the array is refused unread.
    """
    return {
        name: RawArray(one.dtype if one.stype == PLAIN else f"layout {one.stype}", tuple(one.shape), one.data)
        for name, one in record.items()
    }


def extra_from_record(record: ArrayRecord | None) -> dict[str, np.ndarray]:
    """Numbers of any shape that the server sends along with the policy, or `BadReplyError`."""
    received = {} if record is None else from_record(record)
    known = {np.dtype(kind).str: np.dtype(kind) for kind in (np.float32, np.float64, np.int32, np.int64)}
    return checked_arrays(
        received, {name: ArrayRule(known.get(one.dtype, np.float32), one.shape) for name, one in received.items()}
    )


def params_from_record(record: ArrayRecord, template: Any) -> Any:
    """A tree like `template`, or `BadReplyError`."""
    import jax

    like = named_arrays(template)
    arrays = checked_arrays(from_record(record), expected_like(like))
    return jax.tree.unflatten(jax.tree.structure(template), [arrays[name] for name in like])


def measured_name(name: str) -> str:
    """Name in a reply of an array of a metric. The prefix separates metrics from other arrays of the reply."""
    return MEASURED + name


def measured_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of metrics in a reply, by their names without the prefix."""
    return {name.removeprefix(MEASURED): array for name, array in arrays.items() if name.startswith(MEASURED)}
