"""An experiment as one tree of frozen dataclasses. Each checks itself when it is made.

The same tree is the command line, the stored `config.json` and the Python API. Field comments are the help texts.
"""

import dataclasses
import math
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from fedpohcs.core.algorithms import method_name
from fedpohcs.core.checks import check_kinds, require_fraction, require_not_negative, require_positive
from fedpohcs.core.errors import UserError, require, require_known, shown
from fedpohcs.core.learning import LearningConfig, PPOConfig, default_learner, learner_class
from fedpohcs.core.scenario import WorldConfig, scenario_class, scenario_for, with_present_keys

SHARDED = ("sharded", "ray")
"""Executors whose groups of clients are fixed, and apart from each other."""
SHARD_DEVICES = 2  # host devices where groups are apart: part of the results, as XLA cuts loops by their number
MOST_CLIENTS = 10_000_000  # a few numbers for each of them fit in the memory of any machine
MOST_LISTED = 2**16 - 1  # clients that can all be evaluated, or named one by one
Placement = Literal["between", "beyond"]
"""Where the worlds of held-out clients lie: between those of the clients that train, or beyond their range."""


@dataclass(frozen=True)
class FederationConfig:
    """The clients, and how their updates are combined. Paper: Table 4 and Alg. 3."""

    num_clients: int = 60
    """N, the size of the population."""
    num_candidates: int = 18
    """d, the clients sampled and asked each round."""
    num_selected: int = 6
    """K, the candidates that train."""
    client_weights: tuple[float, ...] | None = None
    """q_n, one positive number per client; they are normalised. None: all equal."""
    update_weights: Literal["steps", "clients"] = "steps"
    """Weigh an update by its environment steps, or by q_n. Weights that the selector returns take precedence."""
    aggregator: str = "parameter-mean"
    """Rule that combines updates into one policy; see `fedpohcs list`. Robust ones count every update alike."""
    tolerated_liars: int = 1
    """f, the Byzantine clients among those selected that a robust aggregator must tolerate. More need a larger K."""
    change_limit: float = 2.0
    """Of norm-clip: the largest change of an update, in multiples of the median change."""
    filter_sigma: float = 0.06
    """Of fedpg-filter: sigma, a bound on the noise of an honest gradient, in units of the change that clients send."""
    filter_delta: float = 0.6
    """Of fedpg-filter: delta; a smaller one makes the threshold larger."""
    filter_episodes: int = 16
    """Of fedpg-filter: B, the episodes behind a gradient, where no server optimiser draws their number."""
    server_optimiser: str | None = None
    """How the server gets from the aggregated policy to the new one; see `fedpohcs list`. None: as the selector
    recommends, which for most is identity."""
    evaluation_episodes: int = 10
    """Episodes per client in an evaluation."""
    evaluation_every: int = 1
    """Rounds from one evaluation to the next."""
    evaluated_clients: int | None = None
    """Clients in an evaluation, drawn at random for every round; means are then of a sample. None: all clients."""
    full_evaluation_rounds: tuple[int, ...] = ()
    """With evaluated_clients: rounds in which all clients are evaluated nevertheless; 0 is the untrained policy."""
    newcomers: Literal["pooled", "play"] = "pooled"
    """With evaluated_clients: how the filters of a client begin that acts for the first time after others: with the
    pooled statistics of those that came last, at no cost, or with steps of its own (learner.filter_warmup_steps)."""
    compared_pairs: Literal["shared", "all"] = "shared"
    """Compare tables on the pairs that at least two candidates visited, or on all. With privacy always on all."""
    personal: Literal["none", "critic", "last-layer", "embedding", "all"] = "none"
    """Weights that each client keeps for itself, and which the mean of the others does not change: the critic, the last
    layer of the policy, a vector before the observation that tells clients apart, or all, so that every client learns
    alone."""
    filters: Literal["own", "shared"] = "own"
    """Each client rescales observations and rewards by its own statistics, or all by those of all clients together,
    which are pooled after every training and evaluation."""
    pooled: bool = False
    """One learner trains on the episodes of all clients, and no updates are averaged: the centralised reference. It
    plays as many steps per round as K clients train on. Needs shared filters and the selector full."""
    finetune_iterations: int = 0
    """Local iterations of every client after the last round, from the final policy; the returns that the clients then
    reach are stored beside those of that policy. 0: none."""
    held_out_clients: int = 0
    """Additional clients, with ids from num_clients on, that are evaluated but never measured, selected or trained."""
    held_out_placement: Placement = "between"
    """Where their worlds lie: between those of the clients that train, or beyond their range."""

    def __post_init__(self) -> None:
        check_kinds("federation.", self)
        n, d, k = self.num_clients, self.num_candidates, self.num_selected
        require_positive("federation.", self, "num_clients", "num_selected")
        rule = f"must not exceed {MOST_CLIENTS}, those that are held out included"
        require(n + self.held_out_clients <= MOST_CLIENTS, "federation.num_clients", n, rule)
        require_positive("federation.", self, "evaluation_episodes", "evaluation_every", "change_limit")
        require_positive("federation.", self, "filter_sigma", "filter_delta", "filter_episodes")
        require_not_negative("federation.", self, "tolerated_liars", "held_out_clients", "finetune_iterations")
        require(
            k <= d,
            "federation.num_selected",
            k,
            f"must not exceed num_candidates (={d})",
            "Sample more or train fewer.",
        )
        require(d <= n, "federation.num_candidates", d, f"must not exceed num_clients (={n})", "Ask fewer clients.")
        self._check_sample()
        rule, remedy = "needs federation.filters 'shared' and federation.personal 'none'", "Use --algorithm pooled."
        plain = self.filters == "shared" and self.personal == "none"
        require(plain or not self.pooled, "federation.pooled", self.pooled, rule, remedy)
        if self.client_weights is not None:
            weights = self.client_weights
            require(len(weights) == n, "federation.client_weights", weights, f"must hold num_clients (={n}) numbers")
            positive = all(math.isfinite(w) and w > 0 for w in weights)
            require(positive, "federation.client_weights", weights, "must be finite and above 0")

    def _check_sample(self) -> None:
        """Refuse a sample for which no interval exists, and rounds that are never evaluated."""
        size, n, full = self.evaluated_clients, self.num_clients, self.full_evaluation_rounds
        rule = f"must be at least 2 and at most num_clients (={n})"
        require(size is None or 2 <= size <= n, "federation.evaluated_clients", size, rule, "None evaluates all.")
        name, every = "federation.full_evaluation_rounds", self.evaluation_every
        require(size is not None or not full, name, full, "needs federation.evaluated_clients")
        rule = f"must be rounds from 0 that are multiples of evaluation_every (={every})"
        require(all(one >= 0 and one % every == 0 for one in full), name, full, rule)


@dataclass(frozen=True)
class ServerOptimiserConfig:
    """Settings of the server optimiser that `federation.server_optimiser` names. Each reads only its own."""

    learning_rate: float | None = None
    """Factor of the server's step. None: 0.01 for adam and yogi, else 1. FedExP and q-FFL compute their own."""
    learning_rate_decay: float = 1.0
    """Of every optimiser: the server's step is multiplied by this once more in every round. 1: it does not decay."""
    momentum: float = 0.5
    """Of momentum: the share of earlier changes that the next round keeps."""
    beta1: float = 0.9
    """Of adam and yogi: decay of the running mean of changes."""
    beta2: float = 0.99
    """Of adam and yogi: decay of the running mean of squared changes."""
    epsilon: float = 1e-3
    """Of adam and yogi: tau, added to the root of the mean square. Of fedexp: added to the squared mean change."""
    alpha: float = 0.1
    """Of fedcm: the share of a client's own step in each of its local steps; the rest is the previous global change."""
    q: float = 1.0
    """Of qffl: how much more clients with a low return count. 0: as without it."""
    lipschitz: float = 1.0
    """Of qffl: L, which shortens the step where updates are long, the more the larger q is."""
    inner_steps: int = 3
    """Of svrpg: N, the server's steps per round, of which all but the first need episodes that the server plays itself.
    0: a geometric number with mean (B + b)/b, drawn in every round."""
    inner_episodes: int = 4
    """Of svrpg: b, episodes of an inner step."""
    batch_episodes: tuple[int, ...] | None = None
    """Of svrpg: B, the episodes that every client plays, is drawn in every round from the first to the second of these
    numbers. None: learner.episodes."""
    simulated_client: int | Literal["mixture"] = "mixture"
    """Of svrpg: whose world the server plays its episodes in: a client's, or that of a client drawn for every step."""
    gradient_decay: float = 0.8
    """Of afedpg: the gradient of step k counts (2 / (k + 2)) to this power in the direction. 0: it is the direction."""
    step_decay: float = 1.0
    """Of afedpg: step k is (2 / (k + 2)) to this power times learning_rate long. 0: all are as long."""
    parts: tuple[str, ...] | None = None
    """Parts of the parameters that it changes, such as policy; the others are averaged. None: all but controls, such
    as the KL coefficient."""

    def __post_init__(self) -> None:
        at = "server_optimiser."
        check_kinds(at, self)
        if self.learning_rate is not None:
            require_positive(at, self, "learning_rate")
        require_not_negative(at, self, "epsilon", "q", "lipschitz")
        require_fraction(at, self, "learning_rate_decay", "alpha")
        require_positive(at, self, "inner_episodes")
        require_not_negative(at, self, "inner_steps")
        where, span = self.simulated_client, self.batch_episodes
        rule = "must be an id from 0, or 'mixture'"
        require(where == "mixture" or where >= 0, f"{at}simulated_client", where, rule)
        rule = "must be two numbers from 1, the smaller one first"
        ascending = span is None or (len(span) == 2 and 1 <= span[0] <= span[1])
        require(ascending, f"{at}batch_episodes", span, rule)
        for name in ("gradient_decay", "step_decay"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{at}{name}", value, "must be between 0 and 1")
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{at}{name}", value, "must be at least 0 and below 1")


@dataclass(frozen=True)
class ModellingConfig:
    """Phase one: the tabular model behind D_n and A_n. Paper: Sec. 4.2."""

    history_rounds: int = 5
    """Number of latest rounds whose evaluation episodes are modelled."""
    episodes: int | None = None
    """Extra episodes that candidates play for their tables. None: tables use the episodes of the evaluation."""
    steps_per_episode: int | None = None
    """Model only the first steps of an episode, up to this number. None: all."""
    observation_cell: float = 0.1
    """Width of a state cell, in units of the filtered observation."""
    discretiser: str | None = None
    """Cells of your own in place of `observation_cell`: module:function from observations [n, obs], unfiltered, to
    integers [n] or [n, k]."""
    action_cell: float = 0.1
    """Width of an action cell. Discrete actions are their own cells."""
    clip_actions: bool = False
    """Clip actions to the action space before they are put into cells."""
    horizon: int = 1000
    """Steps of the visitation recursion."""
    action_support: Literal["state", "client"] = "state"
    """Renormalise the policy over the action cells taken in that state, or over all the client ever took."""
    episode_end: Literal["absorbing", "restart"] = "absorbing"
    """Where the last step of an episode leads: nowhere, or to a start state."""
    advantages: Literal["model", "gae"] = "model"
    """Policy evaluation on the tabular model, or GAE samples averaged by cell."""
    values: Literal["advantage", "action-value"] = "advantage"
    """What weights the visitation: A(s,a), or Q(s,a) of the tabular model. Paper: Sec. 4.1 allows both."""
    standardise: bool = False
    """Scale a client's advantages to mean 0 and standard deviation 1."""
    missing: Literal["zero", "predicted"] = "zero"
    """Pairs a client never visited: zero, or predicted from its own table."""
    rewards: Literal["raw", "filtered"] = "raw"
    """Model the environment's rewards, or each client's own rescaled ones."""

    def __post_init__(self) -> None:
        check_kinds("modelling.", self)
        require_positive("modelling.", self, "history_rounds", "observation_cell", "action_cell", "horizon")
        for name in ("episodes", "steps_per_episode"):
            if getattr(self, name) is not None:
                require_positive("modelling.", self, name)
        rule = "needs modelling.advantages 'model': GAE estimates advantages only"
        require(self.values == "advantage" or self.advantages == "model", "modelling.values", self.values, rule)


@dataclass(frozen=True)
class ProtectionConfig:
    """How private selection protects measurements; docs/privacy-protocol.md is the specification."""

    sketch_size: int = 16_384
    """Words of 4 bytes that a candidate uploads in all; nearly all of them are slots of its sketch."""
    precise: bool = False
    """2**20 words in place of `sketch_size`: nearly the whole table, 4 MiB per candidate."""
    value_limit: float = 128.0
    """Slots of a sketch are clipped to plus and minus this. Raise it where rewards are large."""
    scalar_limit: float | None = None
    """Returns and gradient norms are clipped to plus and minus this before they are rounded. None: they are not, which
    epsilon does not allow."""
    score_bits: int = 8
    """Number of bits to which a score is rounded before it is uploaded."""
    min_cohort: int = 5
    """Least number of candidates in a sum: a sum of few candidates hides little."""
    epsilon: float | None = None
    """Epsilon of differential privacy per uploaded score; every score of a client adds to its loss. None: off."""
    total_epsilon: float | None = None
    """Largest privacy loss of a client in all; a client that has spent it sends no more scores. None: no limit."""
    release: Literal["ids", "scores"] = "ids"
    """What the server learns: the ids of the clients that the candidates choose, or a rounded score of each candidate,
    by which it can tell how their worlds differ."""

    def __post_init__(self) -> None:
        at = "protection."
        check_kinds(at, self)
        size, bits, cohort = self.sketch_size, self.score_bits, self.min_cohort
        in_range = 64 <= size <= 2**24 and size % 2 == 0
        require(in_range, f"{at}sketch_size", size, "must be even, at least 64 and at most 2**24")
        require_positive(at, self, "value_limit")
        require(2 <= bits <= 24, f"{at}score_bits", bits, "must be at least 2 and at most 24")
        remedy = "In a sum of two, each could work out the other's table."
        require(cohort >= 3, f"{at}min_cohort", cohort, "must be at least 3", remedy)
        require_positive(
            at,
            self,
            *(name for name in ("epsilon", "total_epsilon", "scalar_limit") if getattr(self, name) is not None),
        )

    @property
    def num_words(self) -> int:
        """Number of 4-byte words that hold everything a candidate uploads."""
        return 2**20 if self.precise else self.sketch_size


@dataclass(frozen=True)
class DefenceConfig:
    """Limits to a Byzantine client's share of the selections; docs/trust.md has the cost of each. Off by default."""

    table_clip: float | None = None
    """Scale down tables whose norm exceeds this multiple of the median norm of the candidates' tables. None: off."""
    max_selections: int | None = None
    """Largest number of selections of a client in any `window` rounds; a client that has reached it is no candidate.
    None: no limit."""
    window: int = 20
    """Rounds over which `max_selections` counts."""

    def __post_init__(self) -> None:
        check_kinds("defence.", self)
        require_positive("defence.", self, "window")
        require_positive(
            "defence.", self, *(name for name in ("table_clip", "max_selections") if getattr(self, name) is not None)
        )


@dataclass(frozen=True)
class TimeConfig:
    """Simulated time: how fast clients are, when they can be asked, and when the server closes a round."""

    model: Literal["none", "constant", "log-normal", "trace"] = "none"
    """Speeds of clients: no time is simulated, all are equally fast, drawn once per client, or as a file says."""
    steps_per_second: float = 1000.0
    """Environment steps that a client trains on per second; with log-normal speeds the median client."""
    spread: float = 1.0
    """Of log-normal: standard deviation of the logarithm of the speed."""
    bytes_per_second: float | None = None
    """Rate at which each client sends and receives. None: messages take no time. A trace has its own rates."""
    availability: float = 1.0
    """Probability that a sampled client can be asked, drawn anew every round. A trace says it itself."""
    trace: str | None = None
    """Of trace: CSV file with client, steps_per_second, bytes_per_second, from_second and until_second; it repeats
    after the last second."""
    over_selection: float = 1.0
    """Select so many times K clients; the round closes when K updates have arrived, and later ones are dropped."""
    deadline: float | None = None
    """Seconds after the selection at which the round closes in any case. None: it waits."""
    retry_seconds: float = 60.0
    """Seconds that a round takes in which nobody trains."""
    asynchronous: bool = False
    """K clients train at any time, and every update is applied as it arrives: a round is one arrival. AFedPG's rounds
    (Lan et al., 2025)."""
    delay_exponent: float = 0.5
    """Of asynchronous rounds: an update that began d rounds ago counts (1 + d) to the power of minus this. 0: all
    count the same."""

    def __post_init__(self) -> None:
        at = "time."
        check_kinds(at, self)
        require_positive(at, self, "steps_per_second", "retry_seconds")
        require_positive(at, self, *(name for name in ("bytes_per_second", "deadline") if getattr(self, name)))
        for name in ("bytes_per_second", "deadline"):
            require(getattr(self, name) != 0, f"{at}{name}", 0.0, "must be above 0")
        require_not_negative(at, self, "spread", "delay_exponent")
        require_fraction(at, self, "availability")
        factor, rule = self.over_selection, "must be finite and at least 1"
        require(1 <= factor < math.inf, "time.over_selection", factor, rule)
        named = (self.trace is not None) == (self.model == "trace")
        require(named, "time.trace", self.trace, "must name a file if time.model is 'trace', and only then")
        plain = dataclasses.asdict(self) == {f.name: f.default for f in dataclasses.fields(self)}
        rule = "must not be 'none' where another setting of time is given"
        require(self.model != "none" or plain, "time.model", self.model, rule, "Use constant.")
        closes = factor > 1 or self.deadline is not None
        rule = "cannot be combined with over_selection or a deadline: every update counts when it arrives"
        require(not (self.asynchronous and closes), "time.asynchronous", True, rule)


@dataclass(frozen=True)
class AttackConfig:
    """Byzantine clients, to test defences with. Leave it off where results matter."""

    kind: str | None = None
    """What Byzantine clients do; see `fedpohcs list`. None: all clients are honest."""
    clients: tuple[int, ...] | Literal["one-selected"] = (0,)
    """Byzantine clients: ids, counted from 0 as in the files of a run; or one of those selected, drawn anew every
    round."""
    scale: float = 10.0
    """Size of the attack: factor of an inflated table, a flipped change, noise, or a forged score."""

    def __post_init__(self) -> None:
        check_kinds("attack.", self)
        require_positive("attack.", self, "scale")
        who, rule = self.clients, "must be different ids from 0, or 'one-selected'"
        ids = who != "one-selected" and min(who, default=-1) >= 0 and len(who) == len(set(who))
        require(ids or who == "one-selected", "attack.clients", who, rule)


@dataclass(frozen=True)
class ExperimentConfig:
    """One run: a world, a federation, a way to select, a learner."""

    world: str = "mountain-cars"
    level: str = "medium"
    """Level of heterogeneity; every world names its own."""
    selector: str = "fedpohcs"
    """How the clients that train are chosen; see `fedpohcs list`."""
    algorithm: str | None = None
    """The bundle of settings from which this config was made, such as fedprox; see `fedpohcs list`. It names the run;
    other settings say what is trained. None: the selector names the run."""
    rounds: int = 150
    seed: int = 0
    """Decides initial weights, candidate sets and every other draw."""
    executor: Literal["vectorised", "one-by-one", "sharded", "ray"] = "vectorised"
    """Run clients in parallel; one after the other to debug; in fixed groups; or in fixed groups on a Ray cluster, with
    the results of sharded to the byte."""
    groups: int = 2
    """Number of groups into which clients are split. Groups run at the same time if there are enough cores. The default
    does not depend on the cores, because the last digits of a result depend on the size of a group. With sharded and
    ray, client n is always in group n modulo this number, and at most so many actors share the work."""
    privacy: Literal["none", "masked", "he"] = "none"
    """What the server sees of the candidates: their tables, or what `protection.release` says, by masks or by
    homomorphic encryption."""
    scenario: WorldConfig = field(default_factory=WorldConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    server_optimiser: ServerOptimiserConfig = field(default_factory=ServerOptimiserConfig)
    learner: LearningConfig = field(default_factory=default_learner)
    modelling: ModellingConfig = field(default_factory=ModellingConfig)
    protection: ProtectionConfig = field(default_factory=ProtectionConfig)
    defence: DefenceConfig = field(default_factory=DefenceConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    time: TimeConfig = field(default_factory=TimeConfig)

    def __post_init__(self) -> None:
        check_kinds("", self)
        require(self.rounds > 0, "rounds", self.rounds, "must be at least 1")
        require(self.groups > 0, "groups", self.groups, "must be at least 1")
        require(0 <= self.seed < 2**31, "seed", self.seed, "must be at least 0 and below 2**31")
        object.__setattr__(self, "scenario", scenario_for(self.world, self.scenario))
        if self.federation.personal == "embedding" and not self.learner.embedding_size:
            size = max(1, math.ceil(math.log2(self.federation.num_clients)))
            object.__setattr__(self, "learner", dataclasses.replace(self.learner, embedding_size=size))
        if self.privacy != "none":
            rule = f"must be 'zero' with privacy {self.privacy!r}: predictions would name cells to the server"
            require(self.modelling.missing == "zero", "modelling.missing", self.modelling.missing, rule)
            rule = f"must be None with privacy {self.privacy!r}: the server sees no table that it could clip"
            require(self.defence.table_clip is None, "defence.table_clip", self.defence.table_clip, rule)
        self._check_trust()

    @property
    def method(self) -> str:
        """The name of the run in tables and folders: `fedavg`, `fedavg+momentum`, `fedprox`."""
        return method_name(self)

    @property
    def num_devices(self) -> int:
        """Host devices that JAX is given. Where groups are apart, each needs one, however many there are."""
        return SHARD_DEVICES if self.executor in SHARDED else self.groups

    @property
    def filter_weight(self) -> float:
        """Weight in the filters of a step that is played outside training."""
        if self.learner.filter_evaluation_episodes is None:
            return 1.0
        played_per_round = self.federation.evaluation_episodes / self.federation.evaluation_every
        return self.learner.filter_evaluation_episodes / played_per_round

    def _check_trust(self) -> None:
        """Refuse Byzantine clients that do not exist, and a cap under which there are too few to select from."""
        n, k = self.federation.num_clients, self.federation.num_selected
        byzantine = [] if self.attack.clients == "one-selected" or self.attack.kind is None else self.attack.clients
        rule = f"must be below num_clients (={n})"
        require(all(client < n for client in byzantine), "attack.clients", self.attack.clients, rule)
        most, window = self.defence.max_selections, self.defence.window
        if most is not None:
            rule = f"must be at least {-(-k * window // n)}, or {n} clients cannot fill {window} rounds of {k}"
            require(most * n >= k * window, "defence.max_selections", most, rule)


def to_dict(config: Any) -> dict[str, Any]:
    """The config as plain values, every default written out."""
    return dataclasses.asdict(config)


def flat_dict(config: ExperimentConfig) -> dict[str, Any]:
    """The config as one level of plain values, named as on the command line: `learner.momentum`."""
    return flatten(to_dict(config))


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, whose keys are joined by dots."""
    flat = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def from_dict(values: dict[str, Any], cls: type = ExperimentConfig, prefix: str = "") -> Any:
    """The config back from plain values. Unknown keys are refused."""
    if cls is ExperimentConfig:
        values = with_present_keys(values, ExperimentConfig.world)
    hints, names = get_type_hints(cls), [field.name for field in dataclasses.fields(cls)]  # without class variables
    for key in values:
        require_known(f"{prefix}key", key, names)
    arguments = {}
    for key, value in values.items():
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, dict):
                raise UserError(f"{prefix}{key} (={shown(value)}) must be a table of settings.")
            value = from_dict(value, _section_class(hints[key], value, values), f"{prefix}{key}.")
        elif isinstance(value, list):
            value = tuple(value)
        arguments[key] = value
    return cls(**arguments)


def _section_class(declared: Any, section: dict[str, Any], values: dict[str, Any]) -> type:
    """The class of a nested config: that of a learner is named by its kind, that of a scenario by the world."""
    if declared is LearningConfig:
        return learner_class(str(section.get("kind", default_learner().kind)))
    if declared is WorldConfig:
        return scenario_class(values.get("world", ExperimentConfig.world), section)
    return declared


def __getattr__(name: str) -> Any:
    if name == "LearnerConfig":
        warnings.warn(
            "LearnerConfig is called PPOConfig now; the old name goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        return PPOConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
