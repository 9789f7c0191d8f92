"""Learning potential, heterogeneity and their difference Delta_n over the tables of candidates. Paper: Sec. 4.1."""

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedpohcs.core.norms import shrinkage
from fedpohcs.core.types import Vector, WeightedAdvantage
from fedpohcs.metrics.cells import Keys
from fedpohcs.metrics.prediction import AdvantagePredictor, predict

Tables = Sequence[WeightedAdvantage]
Rows = Sequence[NDArray]  # one array per candidate


def stack_tables(tables: Tables, compared_pairs: str = "shared") -> csr_array:
    """The tables D_n A_n as rows [C, M] over the pairs that at least two candidates visited, or over all.

    A pair that only one candidate visited does not show how candidates differ. A single table keeps all its pairs.
    """
    support = np.concatenate([table.pair for table in tables])
    support.sort()  # in place: a copy of this size costs as much as sorting it
    if compared_pairs == "all":
        support = np.unique(support)
    elif len(tables) > 1:
        support = _repeated(support)
    entries, columns = zip(*(_restrict(support, table.pair) for table in tables), strict=True)
    values = [table.value[entry] for table, entry in zip(tables, entries, strict=True)]
    if any(table.fill is not None for table in tables):
        columns, values = _fill_rows(tables, entries, columns, values, len(support))
    begin = np.cumsum([0, *(len(column) for column in columns)], dtype=np.int32)
    return csr_array((np.concatenate(values), np.concatenate(columns), begin), shape=(len(tables), len(support)))


def clip_rows(stacked: csr_array, limit: float) -> tuple[csr_array, Vector]:
    """Rows scaled down so that no norm exceeds `limit` times the median norm, and the factors [C].

    Delta_n grows with the scale of a client's own table, so a client could be selected by multiplying its table.
    """
    scale = shrinkage(learning_potential(stacked), limit)
    values = stacked.data * np.repeat(scale, np.diff(stacked.indptr))
    return csr_array((values, stacked.indices, stacked.indptr), shape=stacked.shape), scale


def learning_potential(stacked: csr_array) -> Vector:
    """How much each candidate can learn from the current policy: ||D_n A_n||_F, [C]. Paper: Sec. 4.1."""
    nowhere = np.zeros(stacked.shape[-1])  # pyright: ignore[reportOptionalSubscript]  always two-dimensional
    return _distances(stacked.indptr, stacked.indices, stacked.data, nowhere)


def heterogeneity(stacked: csr_array, weight: Vector) -> Vector:
    """How far each candidate is from the imaginary MDP: kappa-hat_{n,I} = ||sum_k q_k D_k A_k - D_n A_n||_F, [C].

    Paper: Sec. 4.1, before Eq. (DeltaN). The mean is over the candidates given, not over all N clients.
    """
    mean = (weight / np.sum(weight)) @ stacked
    return _distances(stacked.indptr, stacked.indices, stacked.data, mean)


def selection_metric(stacked: csr_array, weight: Vector) -> Vector:
    """Delta_n = ||D_n A_n||_F - ||sum_k q_k D_k A_k - D_n A_n||_F, [C]; the largest are selected.

    Paper: Eq. (DeltaN) of Sec. 4.1, with the mean over the candidates given.
    """
    return learning_potential(stacked) - heterogeneity(stacked, weight)


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def _distances(begin, column, value, mean):
    """Distance of each sparse row from `mean`. Not by BLAS, which would start threads for a row this long."""
    distance = np.empty(len(begin) - 1)
    difference = np.empty(len(mean))
    for row in range(len(distance)):
        # One dense row at a time: expanding the square would give rounding errors for identical clients.
        difference[:] = mean
        for entry in range(begin[row], begin[row + 1]):
            difference[column[entry]] -= value[entry]
        total = 0.0
        for position in range(len(mean)):
            total += difference[position] * difference[position]
        distance[row] = np.sqrt(total)
    return distance


# In the two loops below a position advances by a comparison instead of a branch on it: the keys are hashes, so a branch
# would be mispredicted half the time.
@njit(nogil=True, cache=True)
def _repeated(ordered):
    """The keys that occur more than once in an ascending list."""
    kept = np.empty(len(ordered) + 1, np.uint64)
    count = 0
    before = False
    for position in range(1, len(ordered)):
        same = ordered[position] == ordered[position - 1]
        kept[count] = ordered[position]
        count += same and not before
        before = same
    return kept[:count].copy()


@njit(nogil=True, cache=True)
def _restrict(support, key):
    """Which entries have their key in the support, and where there; both lists ascend."""
    entry = np.empty(len(key) + 1, np.int32)
    column = np.empty(len(key) + 1, np.int32)
    count, here, there = 0, 0, 0
    while here < len(key) and there < len(support):
        mine, shared = key[here], support[there]
        entry[count], column[count] = here, there
        count += mine == shared
        here += mine <= shared
        there += shared <= mine
    return entry[:count].copy(), column[:count].copy()


def _fill_rows(
    tables: Tables, entries: Rows, columns: Rows, values: Rows, support_size: int
) -> tuple[tuple[NDArray, ...], tuple[NDArray, ...]]:
    """Adds to each row its client's predictions for the pairs of the support it did not visit."""
    if any(table.fill is None and len(table.pair) for table in tables):
        raise ValueError("Either all tables or none must predict the entries never visited.")
    predictors = _of_common_width([table.fill for table in tables])
    state_key, centre = _describe(predictors, entries, columns, support_size)
    filled = [
        (column, value) if predictor is None else _fill_row(predictor, state_key, centre, column, value)
        for predictor, column, value in zip(predictors, columns, values, strict=True)
    ]
    return tuple(column for column, _ in filled), tuple(value for _, value in filled)


def _of_common_width(predictors: Sequence[AdvantagePredictor | None]) -> list[AdvantagePredictor | None]:
    """Predictors with the most common number of inputs; others cannot predict for the pairs of these clients."""
    widths = [predictor.pair_centre.shape[1] for predictor in predictors if predictor is not None]
    common = max(sorted(set(widths)), key=widths.count)
    return [one if one is not None and one.pair_centre.shape[1] == common else None for one in predictors]


def _describe(
    predictors: Sequence[AdvantagePredictor | None], entries: Rows, columns: Rows, support_size: int
) -> tuple[Keys, NDArray[np.float32]]:
    """State key and centre of every pair of the support, from the clients that visited it."""
    state_key = np.zeros(support_size, np.uint64)
    num_inputs = next(predictor.pair_centre.shape[1] for predictor in predictors if predictor is not None)
    centre = np.zeros((support_size, num_inputs), np.float32)
    for predictor, entry, column in zip(predictors, entries, columns, strict=True):
        if predictor is not None:
            state_key[column] = predictor.pair_state_key[entry]
            centre[column] = predictor.pair_centre[entry]
    return state_key, centre


def _fill_row(
    predictor: AdvantagePredictor, state_key: Keys, centre: NDArray[np.float32], column: NDArray, value: Vector
) -> tuple[NDArray, Vector]:
    missing = np.ones(len(state_key), bool)
    missing[column] = False
    missing = np.flatnonzero(missing).astype(np.int32)
    predicted = predict(predictor, state_key[missing], centre[missing])
    known = predicted != 0
    column = np.concatenate((column, missing[known]))
    order = np.argsort(column)
    return column[order], np.concatenate((value, predicted[known]))[order]
