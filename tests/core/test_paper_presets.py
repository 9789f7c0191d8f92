"""Presets beside the numbers that the paper states. Paper: Sec. 4.2, 5.1 to 5.3, Tables 1-4, appendix on settings."""

from dataclasses import replace

import pytest

from fedpohcs.core.config import ExperimentConfig, flat_dict
from fedpohcs.core.presets import preset

SELECTORS = ("fedpohcs", "fedavg", "power-of-choice", "gradient-norm")  # the columns of Tables 1-3
COMMON = {
    "learner.batch_size": 128,
    "learner.steps_per_iteration": 2048,
    "learner.discount": 0.99,
    "learner.gae_discount": 0.95,
    "learner.momentum": 0.9,  # Sec. 5.2, as are the next two
    "learner.hidden_sizes": (64, 64),
    "learner.loss": "kl-penalty",
}
TABLES = {  # decay of the learning rate, epochs and KL target: Tables 1-3; N, d, K, I: Table 4; episodes: Sec. 5.2
    "mountain-cars": (0.98, 1, 0.003, 60, 18, 6, 5, 10),
    "hoppers": (0.9, 1, 0.003, 60, 18, 6, 20, 100),
    "hongkong": (0.98, 10, 1e-4, 10, 9, 2, 10, 20),
}
LEARNING_RATES = {"mountain-cars": 0.001, "hoppers": 0.03, "hongkong": 1e-4}
TRAJECTORIES = {"mountain-cars": 200, "hoppers": 200, "hongkong": 1000}  # Sec. 4.2
COLUMNS = (
    *("learner.learning_rate_decay", "learner.epochs", "learner.kl_target"),
    *("federation.num_clients", "federation.num_candidates", "federation.num_selected", "learner.local_iterations"),
    "federation.evaluation_episodes",
)


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("world", TABLES)
def test_a_paper_preset_has_every_number_that_the_paper_states(world: str, selector: str) -> None:
    found = flat_dict(preset(f"{world}-paper", selector=selector))
    rate = 0.005 if (world, selector) == ("mountain-cars", "fedavg") else LEARNING_RATES[world]
    stated = COMMON | dict(zip(COLUMNS, TABLES[world], strict=True)) | {"learner.learning_rate": rate}
    assert {key: found[key] for key in stated} == stated
    assert found["modelling.history_rounds"] * found["federation.evaluation_episodes"] == TRAJECTORIES[world]
    assert found["modelling.episodes"] is None  # the evaluation episodes are the trajectories


def test_mountain_cars_run_for_500_rounds_with_cells_of_a_tenth() -> None:
    config = preset("mountain-cars-paper")
    assert config.rounds == 500  # "500 data points"
    assert (config.modelling.observation_cell, config.modelling.action_cell) == (0.1, 0.1)  # Sec. 5.3


@pytest.mark.parametrize("world", TABLES)
def test_a_paper_preset_follows_the_formulas_of_the_paper(world: str) -> None:
    config = preset(f"{world}-paper")
    assert config.modelling.advantages == "gae"  # Sec. 4.2
    assert config.modelling.values == "advantage"  # Eq. (DeltaN)
    assert config.federation.compared_pairs == "all"  # Eq. (DeltaN)
    assert config.federation.update_weights == "clients"  # Alg. 3, l. 14
    assert config.federation.client_weights is None  # Sec. 5.1: equally weighted


def without_what_is_stated(config: ExperimentConfig) -> ExperimentConfig:
    """The settings in which a paper preset may differ from ours, made equal."""
    federation = replace(config.federation, update_weights="steps", compared_pairs="shared", evaluation_episodes=10)
    learner = replace(config.learner, learning_rate=0.001, filter_evaluation_episodes=None)
    modelling = replace(config.modelling, history_rounds=5, advantages="model", episodes=None)
    return replace(config, rounds=1, federation=federation, learner=learner, modelling=modelling)


@pytest.mark.parametrize("world", TABLES)
def test_paper_presets_differ_from_ours_in_nothing_else(world: str) -> None:
    for selector in SELECTORS:
        ours, paper = preset(world, selector=selector), preset(f"{world}-paper", selector=selector)
        assert without_what_is_stated(ours) == without_what_is_stated(paper)


@pytest.mark.parametrize("name", ["mountain-cars", "hongkong"])
def test_our_presets_have_the_numbers_of_the_tables_with_one_learning_rate(name: str) -> None:
    for selector in SELECTORS:
        found = flat_dict(preset(name, selector=selector))
        stated = (
            COMMON | dict(zip(COLUMNS, TABLES[name], strict=True)) | {"learner.learning_rate": LEARNING_RATES[name]}
        )
        assert {key: found[key] for key in stated} == stated
