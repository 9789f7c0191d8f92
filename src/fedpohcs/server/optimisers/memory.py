"""Vectors of single clients that a server optimiser remembers. Clients that were never heard of have zeros."""

import numpy as np

from fedpohcs.core.types import ClientIds, Vector

Memory = dict[str, np.ndarray]
"""`client` [M], ascending, and `row` [M, P]: float32, because they fill most of a checkpoint."""


def empty_memory(size: int) -> Memory:
    """Nobody has been heard of."""
    return {"client": np.zeros(0, np.int64), "row": np.zeros((0, size), np.float32)}


def recall(memory: Memory, clients: ClientIds) -> Vector:
    """The vectors of these clients, [K, P]."""
    rows = np.zeros((len(clients), memory["row"].shape[1]))
    _, here, there = np.intersect1d(clients, memory["client"], return_indices=True)
    rows[here] = memory["row"][there]
    return rows


def memorise(memory: Memory, clients: ClientIds, rows: Vector) -> Memory:
    """The memory with new vectors of these clients.

    Example:
        >>> memory = memorise(empty_memory(1), np.array([4, 2]), np.array([[1.0], [2.0]]))
        >>> recall(memorise(memory, np.array([4]), np.array([[5.0]])), np.array([2, 3, 4])).tolist()
        [[2.0], [0.0], [5.0]]
    """
    kept = ~np.isin(memory["client"], clients)
    client = np.concatenate((memory["client"][kept], clients))
    row = np.concatenate((memory["row"][kept], rows.astype(np.float32)))
    order = np.argsort(client)
    return {"client": client[order], "row": row[order]}
