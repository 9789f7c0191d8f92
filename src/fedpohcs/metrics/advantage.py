"""Advantages, or action values, of the pairs a client visited. Paper: Sec. 4.1 and 4.2."""

from fedpohcs.core.config import ModellingConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.types import Steps, Vector
from fedpohcs.metrics.model import NOWHERE, TabularModel, mean_by_pair
from fedpohcs.metrics.recursion import evaluate_policy
from fedpohcs.metrics.sparse import SparseRows


def model_advantages(model: TabularModel, transitions: SparseRows, reward: Vector, discount: float) -> Vector:
    """A(s,a) = R-hat(s,a) + gamma sum_s' P-hat(s'|s,a) V(s') - V(s) on the visited pairs, V = r_pi + gamma P_pi V."""
    value = evaluate_policy(transitions, reward, discount)
    return _action_values(model, value, discount) - value[model.pair_state]


def model_action_values(model: TabularModel, transitions: SparseRows, reward: Vector, discount: float) -> Vector:
    """Q(s,a) = R-hat(s,a) + gamma sum_s' P-hat(s'|s,a) V(s') on the visited pairs, V = r_pi + gamma P_pi V."""
    return _action_values(model, evaluate_policy(transitions, reward, discount), discount)


def _action_values(model: TabularModel, value: Vector, discount: float) -> Vector:
    arrived = value[model.successor] * (model.successor != NOWHERE)
    return mean_by_pair(model, model.reward + discount * arrived)


def sampled_advantages(model: TabularModel, steps: Steps) -> Vector:
    """The mean of the recorded GAE samples of each visited pair."""
    if steps.advantage is None:
        raise UserError("modelling.advantages (='gae') needs steps with GAE samples. Record them, or choose 'model'.")
    return mean_by_pair(model, steps.advantage.astype("float64"))


def standardised(advantage: Vector) -> Vector:
    """Mean 0 and standard deviation 1 over the visited pairs, each counted once; all 0 if they do not differ."""
    centred = advantage - advantage.mean()
    spread = centred.std()
    # Without this, equal advantages would become rounding noise of size 1.
    return centred / spread if spread > 1e-12 * abs(advantage).max() else 0 * centred


def advantages(
    model: TabularModel,
    steps: Steps,
    transitions: SparseRows,
    reward: Vector,
    config: ModellingConfig,
    discount: float,
) -> Vector:
    """The advantage or action value of each visited pair, computed as the config says."""
    if config.advantages == "gae":
        advantage = sampled_advantages(model, steps)
    elif config.values == "action-value":
        advantage = model_action_values(model, transitions, reward, discount)
    else:
        advantage = model_advantages(model, transitions, reward, discount)
    return standardised(advantage) if config.standardise else advantage
