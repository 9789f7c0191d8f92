"""What a run refuses before it begins: unknown names, and settings that cannot be combined."""

import importlib.util
from dataclasses import replace
from typing import Any

from fedpohcs.core.config import MOST_LISTED, SHARDED, ExperimentConfig
from fedpohcs.core.errors import require, require_known
from fedpohcs.core.learning import PolicyGradientConfig
from fedpohcs.core.registries import AGGREGATORS, ALGORITHMS, ATTACKS, OPTIMISERS, SELECTORS, register_plugins
from fedpohcs.execution import configure_jax
from fedpohcs.execution.cluster import REMEDY
from fedpohcs.metrics.base import find_metric, hidden_as
from fedpohcs.server.candidates import client_weight
from fedpohcs.server.clock import make_times
from fedpohcs.server.optimisers import ServerOptimiser, make_optimiser
from fedpohcs.server.selection import Selector, make_selector
from fedpohcs.server.selection.base import asks_every_candidate
from fedpohcs.worlds import check_world, make_world
from fedpohcs.worlds.host import HostWorld


def optimiser_name(config: ExperimentConfig, selector: Selector) -> str:
    """The server optimiser of a config: the one it names, or the one that its selector recommends."""
    return config.federation.server_optimiser or selector.optimiser


def check_config(config: ExperimentConfig, *, elsewhere: bool = False) -> None:
    """Refuse names that are not registered, and settings that the world does not allow, before anything is written.

    This is not done when a config is made: runs can be read without the packages of their selector or world.
    If the environments are `elsewhere`, they may be unknown here: whoever knows them calls `check_acting`.
    """
    register_plugins()
    if config.algorithm is not None:
        require_known("algorithm", config.algorithm, ALGORITHMS)
    require_known("selector", config.selector, SELECTORS)
    selector = make_selector(config.selector)
    world = check_world(config)
    _check_standardised(config, selector)
    federation = config.federation
    require_known("federation.aggregator", federation.aggregator, AGGREGATORS)
    optimiser = optimiser_name(config, selector)
    require_known("federation.server_optimiser", optimiser, OPTIMISERS)
    make_optimiser(optimiser, config.server_optimiser)
    _check_gradients(config, optimiser)
    _check_trust(config, selector)
    _check_personal(config, selector, world)
    _check_pooling(config, selector)
    _check_time(config)
    _check_shards(config)
    _check_listed(config)
    if config.privacy != "none":
        _check_privacy(config, selector)
    is_host = issubclass(world, HostWorld)
    if not is_host and hasattr(world, "actions"):
        check_acting(config, world)  # worlds made with JAX must wait until that is configured
    elif not elsewhere:
        if not is_host:  # its settings decide about actions
            configure_jax(config.num_devices)
        check_acting(config, make_world(config))  # says what is missing


def check_acting(config: ExperimentConfig, world: Any) -> None:
    """Refuse a learner or an aggregator that does not fit the actions of the world."""
    config.learner.check_actions(world.actions)
    if config.federation.aggregator == "policy-mean":
        from fedpohcs.worlds.base import DiscreteActions

        tabular = isinstance(world.actions, DiscreteActions) and not config.learner.hidden_sizes
        rule = "needs a tabular policy: discrete actions and no hidden layers"
        require(tabular, "federation.aggregator", config.federation.aggregator, rule, "Use parameter-mean.")


def _check_gradients(config: ExperimentConfig, optimiser: str) -> None:
    """Refuse learners and server optimisers that need each other, and batches for which the learner has no room."""
    settings, kind, n = config.server_optimiser, config.learner.kind, config.federation.num_clients
    needed = getattr(config.learner, "needs_optimiser", None)
    rule = f"needs federation.server_optimiser {needed}, not {optimiser}"
    require(needed in (None, optimiser), "learner.kind", kind, rule)
    if optimiser != "svrpg":
        return
    fits = isinstance(config.learner, PolicyGradientConfig)
    rule = f"needs a learner that follows the gradient of whole episodes, which {kind!r} does not"
    require(fits, "federation.server_optimiser", "svrpg", rule, "Use learner.kind gpomdp.")
    most = max(settings.inner_episodes, *(settings.batch_episodes or (1,)))
    rule = f"must be at least {most}, the most episodes that server_optimiser asks for"
    episodes: int = getattr(config.learner, "episodes", most)
    require(episodes >= most, "learner.episodes", episodes, rule)
    where, rule = settings.simulated_client, f"must be below federation.num_clients (={n})"
    require(where == "mixture" or where < n, "server_optimiser.simulated_client", where, rule)


def _check_personal(config: ExperimentConfig, selector: Selector, world: Any) -> None:
    """Refuse personal weights where clients act outside JAX, and with metrics that read the shared policy."""
    kept = config.federation.personal
    if kept == "none":
        return
    traced = not issubclass(world, HostWorld)
    rule = f"needs a world in JAX, which {config.world!r} is not"
    require(traced, "federation.personal", kept, rule, "Use none.")
    name = optimiser_name(config, selector)
    rule = f"cannot be combined with server optimiser {name!r}, which steers all weights of clients"
    require(not _steers(config, selector), "federation.personal", kept, rule)
    reads = sorted(name for name in selector.requires if find_metric(name).reads != "returns")
    rule = f"cannot be combined with selector {config.selector!r}, whose {' and '.join(reads)} read the shared policy"
    require(not reads, "federation.personal", kept, rule, "Use fedavg, full or power-of-choice.")


def _check_pooling(config: ExperimentConfig, selector: Selector) -> None:
    """Refuse pooled training of some clients, and what one learner or shared filters cannot do."""
    federation = config.federation
    if federation.pooled:
        rule = f"trains on all clients, and {config.selector} selects some"
        require(selector.everyone, "federation.pooled", True, rule, "Use the selector full.")
        rule = f"cannot be combined with server optimiser {optimiser_name(config, selector)!r}, which steers clients"
        require(not _steers(config, selector), "federation.pooled", True, rule)
        episodes = getattr(config.learner, "episodes_per_iteration", None)
        rule = "must be None with federation.pooled, which counts the steps of all clients"
        require(episodes is None, "learner.episodes_per_iteration", episodes, rule, "Set learner.steps_per_iteration.")
    rule = f"reveals what clients see, which privacy {config.privacy!r} does not hide"
    hidden = federation.filters == "own" or config.privacy == "none"
    require(hidden, "federation.filters", federation.filters, rule, "Use own.")
    hidden = federation.newcomers == "play" or federation.evaluated_clients is None or config.privacy == "none"
    require(hidden, "federation.newcomers", federation.newcomers, rule, "Use play.")


def _check_shards(config: ExperimentConfig) -> None:
    """Refuse what needs all clients in one place where they are divided into shards, and a missing package."""
    if config.executor not in SHARDED:
        return
    apart = f"with executor {config.executor!r}, whose groups of clients know nothing of each other"
    filters, newcomers = config.federation.filters, config.federation.newcomers
    require(filters == "own", "federation.filters", filters, f"must be own {apart}", "Use vectorised.")
    alone = newcomers == "play" or config.federation.evaluated_clients is None
    require(alone, "federation.newcomers", newcomers, f"must be play {apart}")
    iterations, rule = config.federation.finetune_iterations, f"must be 0 with executor {config.executor!r}"
    require(iterations == 0, "federation.finetune_iterations", iterations, rule, "Use fedpohcs evaluate --finetune.")
    missing = config.executor == "ray" and importlib.util.find_spec("ray") is None
    require(not missing, "executor", config.executor, "needs the extra ray", REMEDY)


def _check_time(config: ExperimentConfig) -> None:
    """Refuse simulated time where the server does not decide who trains, and a trace that cannot be read."""
    model, federation = config.time.model, config.federation
    if model == "none":
        return
    rule = f"must be 'none' with privacy {config.privacy!r}: candidates that protect each other must all be there"
    require(config.privacy == "none", "time.model", model, rule)
    rule = "must be 'none' with federation.pooled, as no clients train"
    require(not federation.pooled, "time.model", model, rule)
    rule = f"needs aggregator parameter-mean: an asynchronous round has one update, {federation.aggregator} needs more"
    plain = federation.aggregator == "parameter-mean"
    require(plain or not config.time.asynchronous, "time.asynchronous", True, rule)
    make_times(config)


def _check_listed(config: ExperimentConfig) -> None:
    """Refuse populations of which all clients cannot be evaluated, or named one by one, where that is needed."""
    federation = config.federation
    needs = {
        "unless federation.evaluated_clients is set": federation.evaluated_clients is None,
        "with federation.client_weights, which name every client": federation.client_weights is not None,
        "with federation.finetune_iterations, which train every client": federation.finetune_iterations > 0,
        "with privacy, for which every client has keys": config.privacy != "none",
    }
    number = federation.num_clients + federation.held_out_clients
    for rule in (rule for rule, needed in needs.items() if needed):
        require(number <= MOST_LISTED, "federation.num_clients", number, f"must not exceed {MOST_LISTED} {rule}")


def _steers(config: ExperimentConfig, selector: Selector) -> bool:
    """Whether the server optimiser changes the local steps of clients."""
    constant = replace(config.server_optimiser, learning_rate_decay=1.0)  # a decay changes what `sends` is
    optimiser = make_optimiser(optimiser_name(config, selector), constant)
    usual = ServerOptimiser._field_defaults
    return optimiser.controls or optimiser.sends is not usual["sends"] or optimiser.start is not usual["start"]


def _check_standardised(config: ExperimentConfig, selector: Selector) -> None:
    """Refuse metrics of the gradient of the return with a learner that does not follow standardised advantages."""
    reads = sorted(name for name in selector.requires if find_metric(name).standardised)
    fits = not reads or config.learner.standardises_advantages
    rule = f"reads {' and '.join(reads)}, which learner.kind {config.learner.kind!r} does not have"
    require(fits, "selector", config.selector, rule, "Use ppo, or another selector.")


def _check_trust(config: ExperimentConfig, selector: Selector) -> None:
    """Refuse more Byzantine clients than the aggregator tolerates, a cap with `full`, and attacks on nothing."""
    federation, attack = config.federation, config.attack
    name, byzantine = federation.aggregator, federation.tolerated_liars
    k = federation.num_clients if selector.everyone else federation.num_selected
    least = AGGREGATORS[name].least(byzantine)
    rule = (
        f"must be at least {least} for {name} to tolerate federation.tolerated_liars (={byzantine}) Byzantine clients"
    )
    require(k >= least, "federation.num_selected", k, rule, "Select more clients, or tolerate fewer.")
    most = config.defence.max_selections
    capped = most is not None and selector.everyone
    require(not capped, "defence.max_selections", most, f"cannot hold with {config.selector}, which selects everyone")
    if attack.kind is not None:
        _check_attack(config, selector.requires)


def _check_attack(config: ExperimentConfig, requires: frozenset[str]) -> None:
    kind, tables = config.attack.kind, bool(hidden_as(requires, "table"))
    require_known("attack.kind", str(kind), ATTACKS)
    about = ATTACKS[str(kind)].about
    rule = f"is about {about}s, which no client sends with selector {config.selector} and privacy {config.privacy}"
    scores = any(find_metric(name).prefers for name in requires) or (tables and config.privacy != "none")
    scores = scores and (config.privacy == "none" or config.protection.release == "scores")
    sent = {"table": tables, "score": scores, "update": True, "episodes": True}[about]
    require(sent, "attack.kind", kind, rule)
    rule = f"is for attacks on updates or episodes: when clients send {about}s, none is selected yet"
    everyone = config.attack.clients != "one-selected"
    require(everyone or about in ("update", "episodes"), "attack.clients", config.attack.clients, rule, "Name ids.")


WEIGHT_RATIO = 1.5  # of the largest q_n to the smallest; then any cohort passes `privacy.terms.check_invitation`
PRIVACY_PACKAGES = {"masked": ("privacy", ("cryptography",)), "he": ("he", ("cryptography", "tenseal"))}


def _check_privacy(config: ExperimentConfig, selector: Selector) -> None:
    """Refuse what the protocol cannot do, or cannot do safely."""
    extra, packages = PRIVACY_PACKAGES[config.privacy]
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    remedy = f"pip install 'fedpohcs[{extra}]'"
    require(not missing, "privacy", config.privacy, f"needs the package {', '.join(missing)}", remedy)
    federation, protection, tables = config.federation, config.protection, hidden_as(selector.requires, "table")
    for name in sorted(selector.requires):
        rule = f"reads the metric {name!r}, which privacy {config.privacy!r} cannot hide"
        require(find_metric(name).hide is not None, "selector", config.selector, rule, "Use privacy none.")
    if hidden_as(selector.requires, "number"):
        bounded = protection.epsilon is None or protection.scalar_limit is not None
        rule = f"must be set with an epsilon and {config.selector}, whose numbers have no bound of their own"
        require(bounded, "protection.scalar_limit", protection.scalar_limit, rule)
    if tables:
        _check_hidden_table(config, selector, tables)
    if selector.requires and protection.release == "ids":
        _check_ids_only(config, selector)
    if not tables and (protection.release == "scores" or not selector.requires):
        return
    drawn = asks_every_candidate(selector)
    asked, name = (federation.num_candidates, "candidates") if drawn else (federation.num_selected, "selected")
    least = protection.min_cohort
    rule = f"must be at least protection.min_cohort (={least}) with privacy {config.privacy!r}"
    require(asked >= least, f"federation.num_{name}", asked, rule, "Ask more, or lower min_cohort to 3 at least.")
    weights = client_weight(federation)
    rule = f"must not differ by more than a factor of {WEIGHT_RATIO} with privacy {config.privacy!r}"
    even = weights.max() <= WEIGHT_RATIO * weights.min()
    remedy = "A mean in which one client counts for much reveals its table."
    require(even, "federation.client_weights", federation.client_weights, rule, remedy)


def _check_hidden_table(config: ExperimentConfig, selector: Selector, tables: list[str]) -> None:
    rule = f"reads {len(tables)} tables, {' and '.join(tables)}, of which privacy {config.privacy!r} can hide one"
    require(len(tables) == 1, "selector", config.selector, rule)
    if not selector.private:
        able = sorted(name for name in SELECTORS if make_selector(name).private)
        rule = f"needs the tables themselves, which privacy {config.privacy!r} keeps on the clients"
        require(False, "selector", config.selector, rule, f"Use {' or '.join(able)}.")


def _check_ids_only(config: ExperimentConfig, selector: Selector) -> None:
    """Refuse what needs scores where the server learns the ids of the chosen clients alone."""
    remedy = "To let the server learn a score of every candidate: --protection.release scores"
    alone = selector.prefers is not None and len(selector.requires) == 1 and asks_every_candidate(selector)
    rule = "needs the values of its metrics, and with protection.release 'ids' the server learns none"
    require(alone, "selector", config.selector, rule, remedy)
    most = config.defence.max_selections
    rule = "cannot hold with protection.release 'ids': candidates choose among all of them"
    require(most is None, "defence.max_selections", most, rule, remedy)
