import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpohcs.core.config import (
    AttackConfig,
    DefenceConfig,
    ExperimentConfig,
    FederationConfig,
    ModellingConfig,
    ProtectionConfig,
    ServerOptimiserConfig,
    from_dict,
    to_dict,
)
from fedpohcs.core.errors import UserError
from fedpohcs.core.learning import PPOConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import PRESETS, SELECTORS
from fedpohcs.worlds import world_levels

positive = st.floats(1e-12, 1e12)
fraction = st.floats(0.001, 0.999)


@st.composite
def federations(draw: st.DrawFn) -> FederationConfig:
    n = draw(st.integers(1, 40))
    d = draw(st.integers(1, n))
    return FederationConfig(
        num_clients=n,
        num_candidates=d,
        num_selected=draw(st.integers(1, d)),
        client_weights=draw(st.none() | st.tuples(*[positive] * n)),
        update_weights=draw(st.sampled_from(["steps", "clients"])),
    )


@st.composite
def experiments(draw: st.DrawFn) -> ExperimentConfig:
    learner = PPOConfig(
        loss=draw(st.sampled_from(["kl-penalty", "clip"])),
        hidden_sizes=tuple(draw(st.lists(st.integers(1, 512), max_size=3))),
        learning_rate=draw(positive),
        discount=draw(fraction),
        bootstrap_at_time_limit=draw(st.booleans()),
    )
    modelling = ModellingConfig(
        steps_per_episode=draw(st.none() | st.integers(1, 1000)),
        observation_cell=draw(positive),
        missing=draw(st.sampled_from(["zero", "predicted"])),
    )
    protection = ProtectionConfig(
        sketch_size=2 * draw(st.integers(32, 2**20)),
        precise=draw(st.booleans()),
        score_bits=draw(st.integers(2, 24)),
        epsilon=draw(st.none() | positive),
    )
    return ExperimentConfig(
        world=draw(st.sampled_from(["mountain-cars", "tabular"])),
        selector=draw(st.sampled_from(sorted(SELECTORS))),
        rounds=draw(st.integers(1, 10_000)),
        seed=draw(st.integers(0, 2**31 - 1)),
        federation=draw(federations()),
        learner=learner,
        modelling=modelling,
        defence=DefenceConfig(max_selections=draw(st.none() | st.integers(20, 40))),
        attack=AttackConfig(
            kind=draw(st.none() | st.just("zero-update")), clients=draw(st.just("one-selected") | st.just((0,)))
        ),
        privacy=draw(st.sampled_from(["none", "masked", "he"] if modelling.missing == "zero" else ["none"])),
        protection=protection,
    )


@given(experiments())
def test_config_comes_back_from_json_unchanged(config: ExperimentConfig) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_config_for_every_level_and_selector(name: str) -> None:
    for level in world_levels(preset(name).world):
        for selector in SELECTORS:
            config = preset(name, level, selector)
            assert (config.level, config.selector) == (level, selector)


@pytest.mark.parametrize(
    ("level", "rounds"), [("low", 10), ("medium", 20), ("high", 50), ("high-authors", 50), ("fedkl", 20)]
)
def test_entropy_of_mountain_cars_decays_slower_at_higher_levels(level: str, rounds: int) -> None:
    assert preset("mountain-cars", level).learner.entropy_decay_rounds == rounds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mountain-car",), "Did you mean 'mountain-cars'"),
        (("mountain-cars", "hihg"), "Did you mean 'high'"),
        (("mountain-cars", None, "fedagv"), "Did you mean 'fedavg'"),
    ],
)
def test_unknown_preset_level_or_selector_is_refused_with_the_nearest_name(arguments: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message):
        preset(*arguments)


@pytest.mark.parametrize(
    ("cls", "changes", "message"),
    [
        (FederationConfig, {"num_selected": 19}, "num_selected"),
        (FederationConfig, {"num_candidates": 61}, "num_candidates"),
        (FederationConfig, {"num_selected": 0}, "num_selected"),
        (FederationConfig, {"client_weights": (1.0,)}, "client_weights"),
        (
            FederationConfig,
            {"num_clients": 2, "num_candidates": 2, "num_selected": 1, "client_weights": (1, -1)},
            "above",
        ),
        (PPOConfig, {"learning_rate": float("nan")}, "learning_rate"),
        (PPOConfig, {"learning_rate": -1.0}, "learning_rate"),
        (PPOConfig, {"discount": 1.0}, "discount"),
        (PPOConfig, {"momentum": 1.0}, "momentum"),
        (PPOConfig, {"hidden_sizes": (64, 0)}, "hidden_sizes"),
        (ModellingConfig, {"observation_cell": float("inf")}, "observation_cell"),
        (ModellingConfig, {"steps_per_episode": 0}, "steps_per_episode"),
        (FederationConfig, {"compared_pairs": "al"}, "Did you mean 'all'"),
        (ProtectionConfig, {"sketch_size": 63}, "sketch_size"),
        (ProtectionConfig, {"sketch_size": 2**25}, "sketch_size"),
        (ProtectionConfig, {"sketch_size": 129}, "must be even"),
        (ProtectionConfig, {"value_limit": 0.0}, "value_limit"),
        (ProtectionConfig, {"scalar_limit": float("inf")}, "scalar_limit"),
        (ProtectionConfig, {"score_bits": 1}, "score_bits"),
        (ProtectionConfig, {"score_bits": 25}, "score_bits"),
        (ProtectionConfig, {"min_cohort": 2}, "at least 3"),
        (ProtectionConfig, {"epsilon": 0.0}, "epsilon"),
        (ProtectionConfig, {"epsilon": float("nan")}, "epsilon"),
        (ProtectionConfig, {"precise": 1}, "must be of type bool"),
        (FederationConfig, {"tolerated_liars": -1}, "tolerated_liars"),
        (FederationConfig, {"change_limit": 0.0}, "change_limit"),
        (FederationConfig, {"server_optimiser": 3}, "must be of type str"),
        (ServerOptimiserConfig, {"learning_rate": 0.0}, r"server_optimiser.learning_rate \(=0.0\) must be"),
        (
            ServerOptimiserConfig,
            {"momentum": 1.0},
            r"server_optimiser.momentum \(=1.0\) must be at least 0 and below 1",
        ),
        (ServerOptimiserConfig, {"beta1": -0.1}, "beta1"),
        (ServerOptimiserConfig, {"beta2": float("nan")}, "beta2"),
        (ServerOptimiserConfig, {"epsilon": -1.0}, "epsilon"),
        (ServerOptimiserConfig, {"parts": (1,)}, "must be a list, each item of type str, or left out"),
        (DefenceConfig, {"table_clip": 0.0}, "table_clip"),
        (DefenceConfig, {"table_clip": "much"}, "must be of type float"),
        (DefenceConfig, {"max_selections": 1.5}, "must be of type int"),
        (DefenceConfig, {"max_selections": 0}, "max_selections"),
        (DefenceConfig, {"window": 0}, "window"),
        (AttackConfig, {"kind": 3}, "must be of type str"),
        (AttackConfig, {"clients": ()}, "must be different ids from 0, or 'one-selected'"),
        (AttackConfig, {"clients": (1, 1)}, "must be different ids"),
        (AttackConfig, {"clients": (-1,)}, "must be different ids"),
        (AttackConfig, {"clients": (0.5,)}, "must be a list, each item of type int or 'one-selected'"),
        (AttackConfig, {"clients": "all"}, "must be a list, each item of type int or 'one-selected'"),
        (AttackConfig, {"clients": 4}, "must be a list, each item of type int or 'one-selected'"),
        (AttackConfig, {"scale": float("inf")}, "scale"),
        (ExperimentConfig, {"attack": AttackConfig("zero-update", (60,))}, r"must be below num_clients \(=60\)"),
        (ExperimentConfig, {"defence": DefenceConfig(max_selections=1)}, "must be at least 2, or 60 clients cannot"),
        (ExperimentConfig, {"defence": DefenceConfig(table_clip=2.0), "privacy": "he"}, "the server sees no table"),
        (ExperimentConfig, {"privacy": "mask"}, "Did you mean 'masked'"),
        (ExperimentConfig, {"rounds": 0}, "rounds"),
        (ExperimentConfig, {"seed": -1}, "seed"),
        (ExperimentConfig, {"rounds": 2.5}, r"rounds \(=2.5\) must be of type int"),
        (ExperimentConfig, {"rounds": True}, "must be of type int"),
        (ExperimentConfig, {"rounds": "many"}, "must be of type int"),
        (ExperimentConfig, {"executor": "vectorized"}, "Did you mean 'vectorised'"),
        (PPOConfig, {"batch_size": 12.5}, "learner.batch_size"),
        (PPOConfig, {"loss": "clipped"}, "Did you mean 'clip'"),
        (PPOConfig, {"learning_rate": "fast"}, "must be of type float"),
        (ModellingConfig, {"action_support": "states"}, "Did you mean 'state'"),
        (ModellingConfig, {"standardise": 1}, "must be of type bool"),
        (ModellingConfig, {"values": "action-value", "advantages": "gae"}, "needs modelling.advantages 'model'"),
    ],
)
def test_config_refuses_a_bad_value_by_name(cls: type, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cls(**changes)


def test_unknown_key_of_a_stored_config_is_refused_with_its_place() -> None:
    with pytest.raises(UserError, match=r"learner\.key \(='learning_rat'\).*learning_rate"):
        from_dict({"learner": {"learning_rat": 1.0}})
