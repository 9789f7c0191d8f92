"""Predicts a client's advantages where it visited the state but never took the action: ridge on random features."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpohcs.core.array_rules import LARGEST_RETURN
from fedpohcs.core.types import Vector
from fedpohcs.metrics.cells import Keys
from fedpohcs.metrics.model import TabularModel

_NUM_FEATURES = 128
_SEED = 0  # The features are part of the method, not of an experiment's randomness.
_RIDGE = 1e-3  # per pair
_DISCRETE_ACTION_SCALE = 1 / 3  # small compared with the distance of two actions, which makes them independent
_ROWS_AT_ONCE = 4096


class AdvantagePredictor(NamedTuple):
    """Arrays from which a server predicts D(s) A(s,a) of one client, and the centres of the pairs the client saw."""

    state_key: Keys  # [S] ascending
    visitation: Vector  # [S]
    pair_state_key: Keys  # [P] aligned with the table
    pair_centre: NDArray[np.float32]  # [P, obs + act]
    frequency: NDArray[np.float32]  # [obs + act, F]
    phase: NDArray[np.float32]  # [F]
    coefficient: Vector  # [F + 1], the constant last


def fit_predictor(model: TabularModel, visitation: Vector, advantage: Vector) -> AdvantagePredictor:
    """Fits the advantages of the visited pairs by ridge regression on random Fourier features of their centres."""
    actions = model.pair_action.reshape(len(model.pair_key), -1)
    centre = np.concatenate((model.state_centre[model.pair_state], actions), axis=1).astype(np.float32)
    frequency, phase = _random_features(centre, discrete=np.issubdtype(actions.dtype, np.integer))
    by_key = np.argsort(model.state_key)
    return AdvantagePredictor(
        state_key=model.state_key[by_key],
        visitation=visitation[by_key],
        pair_state_key=model.state_key[model.pair_state],
        pair_centre=centre,
        frequency=frequency,
        phase=phase,
        coefficient=_fit_ridge(_features(centre, frequency, phase), advantage),
    )


def predict(predictor: AdvantagePredictor, state_key: Keys, centre: NDArray[np.float32]) -> Vector:
    """D(s) times the predicted A(s,a) at the given pairs; 0 where D(s) is, and where the prediction is absurd."""
    place = np.searchsorted(predictor.state_key, state_key).clip(max=len(predictor.state_key) - 1)
    known = np.flatnonzero(predictor.state_key[place] == state_key)
    value = np.zeros(len(state_key))
    for begin in range(0, len(known), _ROWS_AT_ONCE):
        some = known[begin : begin + _ROWS_AT_ONCE]
        with np.errstate(over="ignore", invalid="ignore"):
            features = _features(centre[some], predictor.frequency, predictor.phase)
            advantage = features @ predictor.coefficient[:-1].astype(np.float32) + predictor.coefficient[-1]
            value[some] = predictor.visitation[place[some]] * advantage
    # Every array of a predictor may be finite and its product not, or the centre of a pair, which another client sent.
    return np.where(np.abs(value) <= LARGEST_RETURN, value, 0.0)


def _random_features(centre: NDArray[np.float32], *, discrete: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Frequencies and phases whose cosines span a Gaussian kernel over the standardised inputs."""
    generator = np.random.default_rng(_SEED)
    num_inputs = centre.shape[1]
    scale = centre.std(axis=0, dtype=np.float64)
    scale[scale == 0] = 1
    # Distances grow with the root of the number of inputs, and so must the width of the kernel.
    scale *= 0.5 * np.sqrt(num_inputs)
    if discrete:
        scale[-1] = _DISCRETE_ACTION_SCALE
    frequency = generator.standard_normal((num_inputs, _NUM_FEATURES)) / scale[:, None]
    phase = generator.uniform(0, 2 * np.pi, _NUM_FEATURES) - centre.mean(axis=0, dtype=np.float64) @ frequency
    return frequency.astype(np.float32), phase.astype(np.float32)


def _features(centre: NDArray[np.float32], frequency: NDArray, phase: NDArray) -> NDArray[np.float32]:
    return np.float32(np.sqrt(2)) * np.cos(centre @ frequency + phase)


def _fit_ridge(features: NDArray[np.float32], target: Vector) -> Vector:
    constant = target.mean()
    gram = (features.T @ features).astype(np.float64)
    gram[np.diag_indices_from(gram)] += _RIDGE * len(target)
    moment = features.T @ (target - constant).astype(np.float32)
    return np.append(np.linalg.solve(gram, moment.astype(np.float64)), constant)
