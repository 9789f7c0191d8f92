"""Registries of everything that a config names. One line here, or one entry point of a package, adds a name.

Entries are written as `module:attribute` and imported when they are first used, so that a misspelt name is refused
before anything heavy is loaded. A package offers its own in its `pyproject.toml`:

    [project.entry-points."fedpohcs.worlds"]
    point-mass = "their_package.worlds:PointMass"
"""

import importlib
from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from fedpohcs.core.errors import UserError, require_known


class Registry(MutableMapping[str, Any]):
    """Names to things, or to where things are imported from.

    Example:
        >>> colours = Registry("colour", {"pi": "math:pi"})
        >>> colours["mine"] = "blue"
        >>> sorted(colours), round(colours["pi"], 2)
        (['mine', 'pi'], 3.14)
    """

    def __init__(self, kind: str, entries: dict[str, Any]) -> None:
        self.kind = kind
        self.entries = dict(entries)

    def __getitem__(self, name: str) -> Any:
        entry = self.entries[name]
        if isinstance(entry, str) and ":" in entry:
            entry = self.entries[name] = self._load(name, entry)
        return entry

    def __setitem__(self, name: str, entry: Any) -> None:
        self.entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def find(self, name: str, setting: str | None = None) -> Any:
        """The thing called `name`; an unknown name is refused, and the nearest known one suggested."""
        require_known(setting or self.kind, name, self)
        return self[name]

    def source(self, name: str) -> str:
        """Where the thing is defined, `module:attribute`, without importing it."""
        entry = self.entries[name]
        return entry if isinstance(entry, str) else f"{entry.__module__}:{entry.__qualname__}"

    def _load(self, name: str, entry: str) -> Any:
        module, _, attribute = entry.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except UserError:
            raise
        except Exception as error:
            if module.startswith("fedpohcs."):
                raise
            remedy = "Repair or uninstall the package that offers it."
            raise UserError(f"{self.kind} {name!r} (={entry!r}) cannot be loaded: {error}. {remedy}") from error


WORLDS = Registry(
    "world",
    {
        "mountain-cars": "fedpohcs.worlds.mountain_car:MountainCars",
        "hoppers": "fedpohcs.worlds.mujoco:Hoppers",
        "half-cheetahs": "fedpohcs.worlds.mujoco:HalfCheetahs",
        "walkers": "fedpohcs.worlds.mujoco:Walkers",
        "hongkong": "fedpohcs.worlds.hongkong.world:HongKong",
        "gym": "fedpohcs.worlds.gym:GymWorld",
        "tabular": "fedpohcs.worlds.tabular:TabularWorlds",
        "random-mdps": "fedpohcs.worlds.tables:RandomMDPs",
        "windy-cliffs": "fedpohcs.worlds.tables:WindyCliffs",
        "perturbed-kernels": "fedpohcs.worlds.tables:PerturbedKernels",
        "cartpoles": "fedpohcs.worlds.control:CartPoles",
        "acrobots": "fedpohcs.worlds.control:Acrobots",
        "pendulums": "fedpohcs.worlds.control:Pendulums",
        "discrete-mountain-cars": "fedpohcs.worlds.control:DiscreteMountainCars",
        "gymnax": "fedpohcs.worlds.gymnax:GymnaxWorld",
    },
)
"""World classes; see `worlds.base.World`."""

LEARNERS = Registry(
    "learner",
    {
        "ppo": "fedpohcs.core.learning:PPOConfig",
        "fedprox": "fedpohcs.core.learning:FedProxConfig",
        "fedkl": "fedpohcs.core.learning:FedKLConfig",
        "fmarl": "fedpohcs.core.learning:FMARLConfig",
        "a2c": "fedpohcs.core.learning:A2CConfig",
        "npg": "fedpohcs.core.learning:NPGConfig",
        "trpo": "fedpohcs.core.learning:TRPOConfig",
        "gpomdp": "fedpohcs.core.learning:GPOMDPConfig",
        "fedsvrpg-m": "fedpohcs.core.learning:FedSVRPGMConfig",
        "mfpo": "fedpohcs.core.learning:MFPOConfig",
        "fednpg-admm": "fedpohcs.core.learning:FedNPGADMMConfig",
        "dqn": "fedpohcs.core.learning:DQNConfig",
        "dcpi": "fedpohcs.core.learning:DCPIConfig",
        "ddpg": "fedpohcs.core.learning:DDPGConfig",
        "td3": "fedpohcs.core.learning:TD3Config",
        "sac": "fedpohcs.core.learning:SACConfig",
        "qavg": "fedpohcs.core.learning:QAvgConfig",
        "sarsa": "fedpohcs.core.learning:SarsaConfig",
    },
)
"""Config classes of local learners, which name their algorithm; see `core.learning.LearningConfig`."""

METRICS = Registry(
    "metric",
    {
        "mean_return": "fedpohcs.metrics.returns:MEAN_RETURN",
        "episode_return": "fedpohcs.metrics.returns:EPISODE_RETURN",
        "return_std": "fedpohcs.metrics.returns:RETURN_STD",
        "episode_length": "fedpohcs.metrics.returns:EPISODE_LENGTH",
        "gradient_norm": "fedpohcs.metrics.gradients:GRADIENT_NORM",
        "gradient_scale": "fedpohcs.metrics.gradients:GRADIENT_SCALE",
        "return_gradient": "fedpohcs.metrics.gradients:RETURN_GRADIENT",
        "policy_gradient": "fedpohcs.metrics.gradients:POLICY_GRADIENT",
        "update_norm": "fedpohcs.metrics.updates:UPDATE_NORM",
        "weighted_advantage": "fedpohcs.metrics.table:WEIGHTED_ADVANTAGE",
    },
)
"""Instances of `Metric`: what clients can measure. A selector names those that it reads."""

SELECTORS = Registry(
    "selector",
    {
        "fedavg": "fedpohcs.server.selection.fedavg:fedavg",
        "power-of-choice": "fedpohcs.server.selection.power_of_choice:power_of_choice",
        "gradient-norm": "fedpohcs.server.selection.gradient_norm:gradient_norm",
        "fedpohcs": "fedpohcs.server.selection.fedpohcs:fedpohcs",
        "fedpohcs-one-phase": "fedpohcs.server.selection.one_phase:fedpohcs_one_phase",
        "potential-sampling": "fedpohcs.server.selection.proportional:potential_sampling",
        "gradient-sampling": "fedpohcs.server.selection.proportional:gradient_sampling",
        "gradient-sampling-one-phase": "fedpohcs.server.selection.proportional:gradient_sampling_one_phase",
        "optimal-sampling": "fedpohcs.server.selection.optimal:optimal_sampling",
        "optimal-sampling-approximate": "fedpohcs.server.selection.optimal:optimal_sampling_approximate",
        "cpow-d": "fedpohcs.server.selection.power_of_choice:cpow_d",
        "rpow-d": "fedpohcs.server.selection.power_of_choice:rpow_d",
        "learnability": "fedpohcs.server.selection.learnability:learnability",
        "leave-one-out": "fedpohcs.server.selection.leave_one_out:leave_one_out",
        "gradient-agreement": "fedpohcs.server.selection.gradient_agreement:gradient_agreement",
        "clustered-sampling": "fedpohcs.server.selection.clustered:clustered_sampling",
        "divfl": "fedpohcs.server.selection.divfl:divfl",
        "fedcor": "fedpohcs.server.selection.fedcor:fedcor",
        "oort": "fedpohcs.server.selection.oort:oort",
        "afl": "fedpohcs.server.selection.afl:afl",
        "full": "fedpohcs.server.selection.fedavg:full",
        "heterogeneity-only": "fedpohcs.server.selection.ablations:heterogeneity_only",
        "potential-only": "fedpohcs.server.selection.ablations:potential_only",
    },
)
"""Functions that make a `Selector`."""

AGGREGATORS = Registry(
    "aggregator",
    {
        "parameter-mean": "fedpohcs.server.aggregation.mean:PARAMETER_MEAN",
        "policy-mean": "fedpohcs.server.aggregation.policy_mean:POLICY_MEAN",
        "coordinate-median": "fedpohcs.server.aggregation.coordinate_median:COORDINATE_MEDIAN",
        "trimmed-mean": "fedpohcs.server.aggregation.trimmed_mean:TRIMMED_MEAN",
        "phocas": "fedpohcs.server.aggregation.phocas:PHOCAS",
        "krum": "fedpohcs.server.aggregation.krum:KRUM",
        "multi-krum": "fedpohcs.server.aggregation.krum:MULTI_KRUM",
        "norm-clip": "fedpohcs.server.aggregation.norm_clip:NORM_CLIP",
        "fedpg-filter": "fedpohcs.server.aggregation.fedpg_filter:FEDPG_FILTER",
    },
)
"""Instances of `Aggregator`."""

OPTIMISERS = Registry(
    "server optimiser",
    {
        "identity": "fedpohcs.server.optimisers.identity:identity",
        "momentum": "fedpohcs.server.optimisers.momentum:momentum",
        "adam": "fedpohcs.server.optimisers.adam:adam",
        "yogi": "fedpohcs.server.optimisers.yogi:yogi",
        "fedexp": "fedpohcs.server.optimisers.fedexp:fedexp",
        "fedvarp": "fedpohcs.server.optimisers.fedvarp:fedvarp",
        "scaffold": "fedpohcs.server.optimisers.scaffold:scaffold",
        "fedcm": "fedpohcs.server.optimisers.fedcm:fedcm",
        "qffl": "fedpohcs.server.optimisers.qffl:qffl",
        "svrpg": "fedpohcs.server.optimisers.svrpg:svrpg",
        "last-change": "fedpohcs.server.optimisers.last_change:last_change",
        "afedpg": "fedpohcs.server.optimisers.afedpg:afedpg",
    },
)
"""Functions of a `ServerOptimiserConfig` that make a `ServerOptimiser`."""

ALGORITHMS = Registry(
    "algorithm",
    {
        "local": "fedpohcs.core.algorithms:LOCAL",
        "pooled": "fedpohcs.core.algorithms:POOLED",
        "finetuned": "fedpohcs.core.algorithms:FINETUNED",
        "fedper": "fedpohcs.core.algorithms:FEDPER",
        "fedavg-embedding": "fedpohcs.core.algorithms:FEDAVG_EMBEDDING",
        "fedprox": "fedpohcs.core.algorithms:FEDPROX",
        "fedkl": "fedpohcs.core.algorithms:FEDKL",
        "fmarl": "fedpohcs.core.algorithms:FMARL",
        "a2c": "fedpohcs.core.algorithms:A2C",
        "npg": "fedpohcs.core.algorithms:NPG",
        "trpo": "fedpohcs.core.algorithms:TRPO",
        "ppo-clip": "fedpohcs.core.algorithms:PPO_CLIP",
        "dqn": "fedpohcs.core.algorithms:DQN",
        "dqnavg": "fedpohcs.core.algorithms:DQNAVG",
        "dcpi": "fedpohcs.core.algorithms:DCPI",
        "ddpg": "fedpohcs.core.algorithms:DDPG",
        "ddpgavg": "fedpohcs.core.algorithms:DDPGAVG",
        "td3": "fedpohcs.core.algorithms:TD3",
        "sac": "fedpohcs.core.algorithms:SAC",
        "fedavgm": "fedpohcs.core.algorithms:FEDAVGM",
        "fedadam": "fedpohcs.core.algorithms:FEDADAM",
        "fedyogi": "fedpohcs.core.algorithms:FEDYOGI",
        "fedexp": "fedpohcs.core.algorithms:FEDEXP",
        "fedvarp": "fedpohcs.core.algorithms:FEDVARP",
        "scaffold": "fedpohcs.core.algorithms:SCAFFOLD",
        "fedcm": "fedpohcs.core.algorithms:FEDCM",
        "qffl": "fedpohcs.core.algorithms:QFFL",
        "gpomdp": "fedpohcs.core.algorithms:GPOMDP",
        "svrpg": "fedpohcs.core.algorithms:SVRPG",
        "fedpg-br": "fedpohcs.core.algorithms:FEDPG_BR",
        "fedsvrpg-m": "fedpohcs.core.algorithms:FEDSVRPG_M",
        "mfpo": "fedpohcs.core.algorithms:MFPO",
        "fednpg-admm": "fedpohcs.core.algorithms:FEDNPG_ADMM",
        "afedpg": "fedpohcs.core.algorithms:AFEDPG",
    },
)
"""Instances of `Algorithm`: named bundles of settings. A selector's name stands for the selector alone."""

ATTACKS = Registry(
    "attack",
    {
        "inflated-table": "fedpohcs.execution.attacked:INFLATED_TABLE",
        "lying-score": "fedpohcs.execution.attacked:INFLATED_SCORE",
        "flipped-update": "fedpohcs.execution.attacked:FLIPPED_UPDATE",
        "noisy-update": "fedpohcs.execution.attacked:NOISY_UPDATE",
        "nan-update": "fedpohcs.execution.attacked:NAN_UPDATE",
        "zero-update": "fedpohcs.execution.attacked:ZERO_UPDATE",
        "zero-gradient": "fedpohcs.execution.attacked:ZERO_GRADIENT",
        "uniform-noise": "fedpohcs.execution.attacked:UNIFORM_NOISE",
        "colluding": "fedpohcs.execution.attacked:COLLUDING",
        "random-action": "fedpohcs.execution.attacked:RANDOM_ACTION",
        "flipped-reward": "fedpohcs.execution.attacked:FLIPPED_REWARD",
        "shuffled-rewards": "fedpohcs.execution.attacked:SHUFFLED_REWARDS",
    },
)
"""Instances of `Attack`."""

PRESETS = Registry(
    "preset",
    {
        "mountain-cars": "fedpohcs.core.presets:mountain_cars",
        "mountain-cars-paper": "fedpohcs.core.presets:mountain_cars_paper",
        "hoppers": "fedpohcs.core.presets:hoppers",
        "hoppers-paper": "fedpohcs.core.presets:hoppers_paper",
        "hongkong": "fedpohcs.core.presets:hongkong",
        "hongkong-paper": "fedpohcs.core.presets:hongkong_paper",
        "half-cheetahs": "fedpohcs.core.presets:half_cheetahs",
        "walkers": "fedpohcs.core.presets:walkers",
        "gym": "fedpohcs.core.presets:gym",
        "tabular": "fedpohcs.core.presets:tabular",
        "random-mdps": "fedpohcs.core.presets:random_mdps",
        "windy-cliffs": "fedpohcs.core.presets:windy_cliffs",
        "perturbed-kernels": "fedpohcs.core.presets:perturbed_kernels",
        "cartpoles": "fedpohcs.core.presets:cartpoles",
        "acrobots": "fedpohcs.core.presets:acrobots",
        "pendulums": "fedpohcs.core.presets:pendulums",
        "discrete-mountain-cars": "fedpohcs.core.presets:discrete_mountain_cars",
        "gymnax": "fedpohcs.core.presets:gymnax",
        "gym/CartPole-v1": "fedpohcs.core.gym_presets:cart_pole",
        "gym/Acrobot-v1": "fedpohcs.core.gym_presets:acrobot",
        "gym/Pendulum-v1": "fedpohcs.core.gym_presets:pendulum",
        "gym/MountainCar-v0": "fedpohcs.core.gym_presets:mountain_car",
        "gym/MountainCarContinuous-v0": "fedpohcs.core.gym_presets:mountain_car_continuous",
        "gym/LunarLander-v3": "fedpohcs.core.gym_presets:lunar_lander",
        "gym/LunarLanderContinuous-v3": "fedpohcs.core.gym_presets:lunar_lander_continuous",
        "gym/BipedalWalker-v3": "fedpohcs.core.gym_presets:bipedal_walker",
        "gym/Hopper-v5": "fedpohcs.core.gym_presets:hopper",
        "gym/Walker2d-v5": "fedpohcs.core.gym_presets:walker",
        "gym/HalfCheetah-v5": "fedpohcs.core.gym_presets:half_cheetah",
    },
)
"""Functions of level and selector that make an `ExperimentConfig`."""

STORED_TYPES = Registry(
    "stored type",
    {
        "saved": "fedpohcs.runs.experiment:RunState",
        "server-state": "fedpohcs.core.types:ServerState",
        "known-returns": "fedpohcs.core.types:KnownReturns",
        "under-way": "fedpohcs.server.clock:UnderWay",
        "weighted-advantage": "fedpohcs.core.types:WeightedAdvantage",
        "advantage-predictor": "fedpohcs.metrics.prediction:AdvantagePredictor",
        "one-phase-state": "fedpohcs.server.selection.one_phase:OnePhaseState",
        "client-snapshot": "fedpohcs.execution.clients:Snapshot",
        "controlled-memory": "fedpohcs.learners.client:ControlledMemory",
        "client-state": "fedpohcs.execution.store:ClientState",
        "play-order": "fedpohcs.execution.clients:PlayOrder",
        "private-snapshot": "fedpohcs.execution.private:PrivateSnapshot",
        "remote-clients": "fedpohcs.server.protocols:RemoteClients",
        "filters": "fedpohcs.learners.filters:Filters",
        "own-weights": "fedpohcs.learners.personal:Own",
        "shared-filters": "fedpohcs.learners.shared_filters:SharedFilters",
        "moments": "fedpohcs.learners.filters:Moments",
        "agent-params": "fedpohcs.learners.networks:AgentParams",
        "actor-critic-params": "fedpohcs.learners.networks:ActorCriticParams",
        "policy-params": "fedpohcs.learners.networks:PolicyParams",
        "policy-only-params": "fedpohcs.learners.networks:PolicyOnlyParams",
        "momentum-params": "fedpohcs.learners.networks:MomentumParams",
        "fednpg-admm-memory": "fedpohcs.learners.fednpg_admm:Memory",
        "embedded": "fedpohcs.learners.networks:Embedded",
        "dense": "fedpohcs.learners.networks:Dense",
        "ppo-optimisers": "fedpohcs.learners.ppo:OptimiserState",
        "fedkl-memory": "fedpohcs.learners.fedkl:Memory",
        "q-params": "fedpohcs.learners.dqn:QParams",
        "replay-memory": "fedpohcs.learners.off_policy:Memory",
        "transitions": "fedpohcs.learners.off_policy:Transitions",
        "policy-and-critic": "fedpohcs.learners.off_policy:PolicyAndCritic",
        "dcpi-moments": "fedpohcs.learners.dcpi:MixtureMoments",
        "sac-params": "fedpohcs.learners.sac:SACParams",
        "sac-moments": "fedpohcs.learners.sac:SACMoments",
        "membership": "fedpohcs.privacy.client:Membership",
        "kept-membership": "fedpohcs.deploy.member:MemberState",
    },
)
"""Named tuples that checkpoints hold, by the name under which they are stored: modules may move, names may not."""

REGISTRIES: dict[str, Registry] = {
    "worlds": WORLDS,
    "learners": LEARNERS,
    "metrics": METRICS,
    "selectors": SELECTORS,
    "aggregators": AGGREGATORS,
    "optimisers": OPTIMISERS,
    "algorithms": ALGORITHMS,
    "attacks": ATTACKS,
    "presets": PRESETS,
    "stored_types": STORED_TYPES,
}
"""By the plural that names their entry points: `fedpohcs.worlds`, `fedpohcs.selectors`, ..."""


@cache
def register_plugins() -> None:
    """Add what installed packages offer, once. A name that is taken already keeps its meaning."""
    for group, registry in REGISTRIES.items():
        for entry in entry_points(group=f"fedpohcs.{group}"):
            if entry.name not in registry:
                registry[entry.name] = entry.value
