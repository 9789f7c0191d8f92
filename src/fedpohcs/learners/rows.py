"""Many small policies at once in NumPy: every row is computed as if it were the only one."""

import numpy as np
from numba import njit

from fedpohcs.learners.networks import Dense


def row_affine(x: np.ndarray, layer: Dense, owner: np.ndarray) -> np.ndarray:
    """Rows x [n, inputs] through a layer: one layer for all rows, or that of each row's owner along its first axis.

    Every row is computed as if it were the only one. The last digits of a row in BLAS depend on how many rows there
    are, on some processors also on its place among them, and a client's actions must not depend on which lane an
    episode is played in, nor on who else plays.
    """
    return _row_affine(x, layer.kernel, layer.bias, owner)


@njit(nogil=True, cache=True)
def _row_affine(x, kernels, biases, owner):
    """Each sum is made in the order of the inputs, so vectors of outputs and four inputs at a time change no digit."""
    rows, inputs = x.shape
    outputs = kernels.shape[2]
    result = np.zeros((rows, outputs), x.dtype)
    in_fours = inputs - inputs % 4
    for row in range(rows):
        own = owner[row] % len(kernels)
        y, z, k = result[row], x[row], kernels[own]
        for i in range(0, in_fours, 4):
            for j in range(outputs):
                y[j] = y[j] + z[i] * k[i, j] + z[i + 1] * k[i + 1, j] + z[i + 2] * k[i + 2, j] + z[i + 3] * k[i + 3, j]
        for i in range(in_fours, inputs):
            for j in range(outputs):
                y[j] += z[i] * k[i, j]
        y += biases[own]
    return result
