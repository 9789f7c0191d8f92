"""Algorithms by the names of the literature: bundles of settings that leave the rest of a config as it is.

A bundle names the learner, the server optimiser, the selector or the aggregator, and the settings that the publication
gives. Everything else, such as rounds and learning rates, comes from the preset, so that algorithms are comparable.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fedpohcs.core.errors import require, require_known
from fedpohcs.core.learning import as_kind
from fedpohcs.core.registries import ALGORITHMS, OPTIMISERS, SELECTORS, register_plugins

if TYPE_CHECKING:
    from fedpohcs.core.config import ExperimentConfig

Settings = dict[str, Any]
"""Settings as in a TOML file: sections are dictionaries."""


class Algorithm(NamedTuple):
    """A named bundle of settings."""

    about: str  # one line for `fedpohcs list`
    settings: Settings


class Method(NamedTuple):
    """What a name such as `fedprox`, `fedavg+momentum` or `fedprox+fedpohcs` stands for; None: as the config has it."""

    algorithm: str | None
    selector: str | None
    optimiser: str | None


def parse_method(text: str, setting: str = "algorithm") -> Method:
    """The parts of a name: an algorithm or a selector first, then a selector or a server optimiser.

    Args:
        text: the name.
        setting: what the name is given for; "selector": an algorithm is refused.
    """
    register_plugins()
    first, *others = text.split("+")
    require_known(setting, first, SELECTORS if setting == "selector" else [*ALGORITHMS, *SELECTORS])
    algorithm = first if first in ALGORITHMS else None
    chosen: dict[str, str] = {} if algorithm else {"selector": first}
    for name in others:
        part = "selector" if name in SELECTORS else "optimiser"
        known = part not in chosen and (name in SELECTORS or name in OPTIMISERS)
        rule = f"has {name!r}, which is no selector or server optimiser to add to {first!r}"
        require(known, setting, text, rule, f"Server optimisers: {', '.join(OPTIMISERS)}.")
        chosen[part] = name
    return Method(algorithm, chosen.get("selector"), chosen.get("optimiser"))


def find_algorithm(name: str) -> Algorithm:
    """The algorithm that is registered under this name."""
    register_plugins()
    found = ALGORITHMS.find(name)
    require(isinstance(found, Algorithm), "algorithm", name, "must be registered as a fedpohcs.Algorithm")
    return found


def with_algorithm(config: "ExperimentConfig", name: str) -> "ExperimentConfig":
    """The config with the settings of an algorithm in place of its own."""
    changes: Settings = {"algorithm": name}
    for key, value in find_algorithm(name).settings.items():
        changes[key] = _section(getattr(config, key), value) if isinstance(value, Mapping) else value
    return replace(config, **changes)


def under_settings(name: str, values: Settings) -> Settings:
    """Settings of a file, with those of an algorithm where the file names none."""
    merged = {**find_algorithm(name).settings, **values}
    for key, value in find_algorithm(name).settings.items():
        if isinstance(value, Mapping) and isinstance(merged[key], Mapping):
            merged[key] = {**value, **merged[key]}
    return merged


def method_name(config: "ExperimentConfig") -> str:
    """The name of a config in tables, figures and folders: `fedavg`, `fedavg+momentum`, `fedprox`, `fedprox+fedpohcs`.

    That of an algorithm is followed by its parts that the config has otherwise.
    """
    optimiser = config.federation.server_optimiser
    if config.algorithm is None:
        return config.selector if optimiser is None else f"{config.selector}+{optimiser}"
    if config.algorithm not in ALGORITHMS:  # of a package that is not installed here
        return config.algorithm
    bundle = find_algorithm(config.algorithm).settings
    parts = (
        (config.learner.kind, bundle.get("learner", {}).get("kind", config.learner.kind)),
        (config.selector, bundle.get("selector", type(config).selector)),
        (optimiser, bundle.get("federation", {}).get("server_optimiser")),
    )
    return "+".join([config.algorithm, *(str(own) for own, usual in parts if own != usual)])


def _section(section: Any, changes: Mapping[str, Any]) -> Any:
    if "kind" in changes:
        section = as_kind(section, changes["kind"])
    return replace(section, **changes)


def _fedavg(**settings: Any) -> Settings:
    """Clients drawn at random, as in FedAvg, and these settings."""
    return {"selector": "fedavg", **settings}


def _with_optimiser(name: str) -> Settings:
    return _fedavg(federation={"server_optimiser": name})


LOCAL = Algorithm(
    "Every client alone: all train in every round, and nothing is shared.",
    {"selector": "full", "federation": {"personal": "all"}},
)
POOLED = Algorithm(
    "One learner on the episodes of all clients, as if their worlds were in one place.",
    {"selector": "full", "federation": {"pooled": True, "filters": "shared"}},
)
FINETUNED = Algorithm(
    "FedAvg, and 25 local iterations of every client alone after the last round.",
    _fedavg(federation={"finetune_iterations": 25}),
)
FEDPER = Algorithm(
    "FedAvg whose clients keep the last layer of the policy (Arivazhagan et al., 2019).",
    _fedavg(federation={"personal": "last-layer"}),
)
FEDAVG_EMBEDDING = Algorithm(
    "FedAvg whose clients learn a vector of their own before the observation (Jin et al., 2022).",
    _fedavg(federation={"personal": "embedding"}),
)
FEDPROX = Algorithm(
    "FedAvg with a proximal term to the weights sent (Li et al., 2020).", _fedavg(learner={"kind": "fedprox"})
)
FEDKL = Algorithm(
    "FedAvg with a penalty on the distance to the policy sent (Xie and Song, 2023).",
    _fedavg(learner={"kind": "fedkl"}),
)
FMARL = Algorithm(
    "FedAvg with learning rates that decay within a round (Xu et al., 2021).", _fedavg(learner={"kind": "fmarl"})
)
A2C = Algorithm("FedAvg of advantage actor-critic (Mnih et al., 2016).", _fedavg(learner={"kind": "a2c"}))
NPG = Algorithm("FedAvg of natural policy gradients (Kakade, 2001).", _fedavg(learner={"kind": "npg"}))
TRPO = Algorithm("FedAvg of TRPO (Schulman et al., 2015).", _fedavg(learner={"kind": "trpo"}))
PPO_CLIP = Algorithm(
    "FedAvg of PPO with the clipped surrogate, 10 epochs (Schulman et al., 2017).",
    _fedavg(learner={"kind": "ppo", "loss": "clip", "epochs": 10}),
)
UNFILTERED = {"filter_observations": False, "filter_rewards": False, "filter_warmup_steps": 0}
DQN = Algorithm("FedAvg of double DQN (van Hasselt et al., 2016).", _fedavg(learner={"kind": "dqn"}))
DQNAVG = Algorithm(
    "DQN of all clients with merged networks, and all else anew in every round (Jin et al., 2022).",
    {
        "selector": "full",
        "federation": {"update_weights": "clients"},
        "learner": {
            "kind": "dqn",
            "hidden_sizes": (128,),
            "discount": 0.9,
            "local_iterations": 12,
            "episodes_per_iteration": 1,
            "updates_per_iteration": 100,  # published: as many as steps; a CartPole has 10 to 200 per episode
            "batch_size": 16,
            "replay_size": 1_000,
            "replay_start": 32,
            "memory_at_merge": "reset",
            "target_rate": 1.0,
            "target_period": 10,
            "double": False,
            "epsilon_decay": 0.99**12,  # per round of 12 episodes
            "epsilon_floor": 0.01,
            **UNFILTERED,
        },
    },
)
DCPI = Algorithm(
    "FedAvg of deep conservative policy iteration (Vieillard et al., 2020).", _fedavg(learner={"kind": "dcpi"})
)
DDPGAVG = Algorithm(
    "DDPG of all clients with merged networks, and all else anew in every round (Jin et al., 2022).",
    {
        "selector": "full",
        "federation": {"update_weights": "clients"},
        "learner": {
            "kind": "ddpg",
            "hidden_sizes": (400, 300),
            "discount": 0.99,
            "local_iterations": 10,
            "steps_per_iteration": 1_000,
            "updates_per_iteration": 1_000,
            "learning_rate": 1e-4,
            "policy_learning_rate": 1e-4,
            "batch_size": 64,
            "replay_size": 100_000,
            "replay_start": 1_000,
            "memory_at_merge": "reset",
            "target_rate": 1e-3,
            "noise_kind": "ou",
            "noise": 0.38,  # of a process with theta .15 and sigma .2
            "noise_decay": 1.0,
            "noise_floor": 0.38,
            **UNFILTERED,
        },
    },
)
DDPG = Algorithm("FedAvg of DDPG (Lillicrap et al., 2016).", _fedavg(learner={"kind": "ddpg"}))
TD3 = Algorithm("FedAvg of TD3 (Fujimoto et al., 2018).", _fedavg(learner={"kind": "td3"}))
SAC = Algorithm("FedAvg of SAC (Haarnoja et al., 2018).", _fedavg(learner={"kind": "sac"}))
FEDAVGM = Algorithm("FedAvg with server momentum (Hsu et al., 2019).", _with_optimiser("momentum"))
FEDADAM = Algorithm("FedAvg with Adam on the server (Reddi et al., 2021).", _with_optimiser("adam"))
FEDYOGI = Algorithm("FedAvg with Yogi on the server (Reddi et al., 2021).", _with_optimiser("yogi"))
FEDEXP = Algorithm(
    "FedAvg with longer server steps where clients disagree (Jhunjhunwala et al., 2023).", _with_optimiser("fedexp")
)
FEDVARP = Algorithm(
    "FedAvg with the latest updates of clients that did not train (Jhunjhunwala et al., 2022).",
    _with_optimiser("fedvarp"),
)
SCAFFOLD = Algorithm(
    "FedAvg with control variates, which correct local steps (Karimireddy et al., 2020).", _with_optimiser("scaffold")
)
FEDCM = Algorithm("FedAvg with the server's momentum in local steps (Xu et al., 2021).", _with_optimiser("fedcm"))
QFFL = Algorithm("FedAvg that weighs clients by powers of their loss (Li et al., 2020).", _with_optimiser("qffl"))
GRADIENT_STEP = {"learning_rate": 1e-3, "beta2": 0.999, "epsilon": 1e-8}
"""Of Adam on the server; the rate is FedPG-BR's on CartPole."""


def _policy_gradient(episodes: int, federation: Settings, **server: Any) -> Settings:
    """One gradient of so many episodes per client, and steps of Adam on the server."""
    return _fedavg(
        learner={"kind": "gpomdp", "episodes": episodes},
        federation={"server_optimiser": "svrpg", "update_weights": "clients", **federation},
        server_optimiser={**GRADIENT_STEP, **server},
    )


GPOMDP = Algorithm(
    "One gradient per client and round, Adam on the server (Baxter and Bartlett, 2001).",
    _policy_gradient(16, {}, inner_steps=1),
)
SVRPG = Algorithm(
    "GPOMDP with further server steps of reduced variance (Papini et al., 2018).",
    _policy_gradient(16, {}, inner_steps=3),
)
FEDPG_BR = Algorithm(
    "SVRPG with a Byzantine filter and random batch sizes (Fan et al., 2021).",
    _policy_gradient(20, {"aggregator": "fedpg-filter"}, inner_steps=0, batch_episodes=(12, 20)),
)
FEDSVRPG_M = Algorithm(
    "Local policy gradients with the server's momentum and reduced variance (Wang et al., 2024).",
    _fedavg(learner={"kind": "fedsvrpg-m"}, federation={"server_optimiser": "last-change"}),
)
MFPO = Algorithm(
    "Local policy gradients whose momentum is averaged like the weights (Yue et al., 2024).",
    _fedavg(learner={"kind": "mfpo"}),
)
FEDNPG_ADMM = Algorithm(
    "Natural gradients that clients agree on by ADMM, without Fisher matrices in messages (Lan et al., 2023).",
    _fedavg(
        learner={"kind": "fednpg-admm"},
        federation={"server_optimiser": "last-change", "update_weights": "clients"},
        server_optimiser={"learning_rate": 0.1},
    ),
)
AFEDPG = Algorithm(
    "Asynchronous policy gradients: one update per round, from a policy that looks ahead (Lan et al., 2025).",
    _fedavg(
        learner={"kind": "gpomdp", "episodes": 16},
        federation={"server_optimiser": "afedpg", "update_weights": "clients"},
        time={"model": "log-normal", "asynchronous": True, "delay_exponent": 0.0},
    ),
)
