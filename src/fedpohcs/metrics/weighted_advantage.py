"""The table D_n A_n of one client, from its recorded steps. Paper: Sec. 4.2."""

import numpy as np
from numpy.typing import NDArray

from fedpohcs.core.config import ModellingConfig
from fedpohcs.core.types import Steps, WeightedAdvantage
from fedpohcs.learners.distributions import Gaussian
from fedpohcs.metrics.advantage import advantages
from fedpohcs.metrics.comparison import selection_metric, stack_tables
from fedpohcs.metrics.episodes import first_steps
from fedpohcs.metrics.model import Policy, action_probabilities, build_model, merge_actions, require_finite
from fedpohcs.metrics.prediction import fit_predictor
from fedpohcs.metrics.recursion import visitation


def weighted_advantage_table(
    steps: Steps, distribution: Policy, config: ModellingConfig, discount: float
) -> WeightedAdvantage:
    """The table D_n A_n of one client: visitation times advantage on the pairs it visited.

    Safe to call from several threads; the work is done without holding the interpreter's lock.

    Args:
        steps: Filtered observations, and actions already clipped and rewards already rescaled if the config says so.
        distribution: The policy, from the centres of state cells [S, obs] to a distribution of NumPy arrays.
        config: How to model.
        discount: gamma of the policy evaluation.

    Paper: Sec. 4.2 and Alg. 3, line 6.
    """
    if not len(steps.reward):
        return WeightedAdvantage(np.empty(0, np.uint64), np.empty(0))
    require_finite(steps)
    steps = first_steps(steps, config.steps_per_episode)
    model = build_model(steps, config)
    probability = action_probabilities(model, distribution, config.action_support)
    transitions, reward = merge_actions(model, probability)
    visits = visitation(transitions, model.start, config.horizon)
    advantage = advantages(model, steps, transitions, reward, config, discount)
    fill = fit_predictor(model, visits, advantage) if config.missing == "predicted" else None
    return WeightedAdvantage(model.pair_key, visits[model.pair_state] * advantage, fill)


def compile_ahead() -> None:
    """Compile the kernels with a small table. Call it in a separate thread while XLA compiles."""

    def stay(states: NDArray[np.float32]) -> Gaussian:
        return Gaussian(np.zeros((len(states), 1), np.float32), np.zeros((len(states), 1), np.float32))

    observation = np.array([[0, 0], [1, 0], [0, 0], [1, 1]], np.float32)
    steps = Steps(observation, observation[:, :1], observation[:, 0], np.array([False, True, False, True]))
    table = weighted_advantage_table(steps, stay, ModellingConfig(), 0.99)
    selection_metric(stack_tables((table, table)), np.ones(2))
