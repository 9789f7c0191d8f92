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
