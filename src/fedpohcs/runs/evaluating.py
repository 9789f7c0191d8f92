"""Returns of a stored policy on any population: that of its run, another level, or more clients."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.config import MOST_LISTED, ExperimentConfig, Placement
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import ClientIds, Params, Vector
from fedpohcs.runs.loading import read_config
from fedpohcs.runs.policy import default_moments
from fedpohcs.runs.stored import find_stored, require_filters, stored_arrays

FIRST_ROUND = 2**20  # a round that no run has, so that episodes differ from those of its evaluations


class PolicyReturns(NamedTuple):
    """Mean undiscounted return of each client."""

    config: ExperimentConfig  # of the population
    round: int  # of the policy
    client: ClientIds
    mean_return: Vector
    own_filter: np.ndarray  # [C] whether the client's own filter was used, or the default one

    @property
    def worst_tenth(self) -> float:
        """Mean over the tenth of the clients, rounded up, with the lowest returns."""
        return float(np.sort(self.mean_return)[: math.ceil(len(self.mean_return) / 10)].mean())


def evaluate_policy(
    run: Path | str,
    *,
    level: str | None = None,
    clients: int | None = None,
    held_out: int | None = None,
    placement: Placement | None = None,
    episodes: int | None = None,
    seed: int = 0,
    finetune: int = 0,
) -> PolicyReturns:
    """Let a stored policy play with every client of a population.

    Actions are drawn as in training. A client that the run has uses its own filter; a client of another population, and
    one that the run held out of training and did not store, uses the default filter, pooled over all clients.

    Args:
        run: folder, and after an @ which policy.
        level: of heterogeneity; None: that of the run.
        clients: number of clients, spread over the level as its world does it; None: as many as in the run.
        held_out: further clients, whose worlds nobody trained in; None: as many as in the run.
        placement: of the further clients, between the others or beyond their range; None: as in the run.
        episodes: per client; None: as many as in the evaluations of the run.
        seed: of the episodes.
        finetune: local iterations that every client trains alone before it plays, with a new optimiser and reward
            filter. The learning rate is that of the round after the policy's.
    """
    stored = find_stored(run)
    source = read_config(stored.run)
    arrays, round_number = stored_arrays(stored, source)
    require_filters(stored, arrays, source)
    config = _population(source, level, clients, held_out, placement, episodes)
    from fedpohcs.execution import configure_jax, make_executor
    from fedpohcs.execution.finetuning import finetuned_evaluation
    from fedpohcs.runs.checks import check_config

    check_config(config)
    configure_jax(config.num_devices)
    executor = make_executor(config, record=False)
    try:
        number = config.federation.num_clients + config.federation.held_out_clients
        everyone = np.arange(number)
        own = everyone < min(_num_common(source, config), len(arrays.get("filters/mean", ())))
        if source.learner.filter_observations:
            filters = executor.filters_of(everyone)
            _fill_filters(filters.observation, arrays, own, source.federation.num_clients)
            executor.store.put(everyone, filters=filters)
        params = _filled_params(executor.initial_params(), arrays, str(stored))
        played = FIRST_ROUND + seed
        if finetune:
            found = finetuned_evaluation(executor, params, round_number, finetune, played)
        else:
            found = executor.evaluate(params, played, everyone)
    finally:
        executor.close()
    return PolicyReturns(config, round_number, found.client, found.mean_return, own[found.client])


def _population(
    source: ExperimentConfig,
    level: str | None,
    clients: int | None,
    held_out: int | None,
    placement: Placement | None,
    episodes: int | None,
) -> ExperimentConfig:
    """The config of the population: privacy, attacks and training do not matter for an evaluation."""
    federation = source.federation
    number = federation.num_clients if clients is None else clients
    require(number > 0, "clients", number, "must be at least 1")
    most, remedy = MOST_LISTED, "Evaluate fewer, spread over the same level: --clients 600."
    require(number <= most, "clients", number, f"must not exceed {most}, which are evaluated one by one", remedy)
    federation = replace(
        federation,
        num_clients=number,
        num_candidates=1,
        num_selected=1,
        client_weights=None,
        evaluated_clients=None,
        full_evaluation_rounds=(),
        personal="none",  # what is stored is the shared policy
        filters="own",  # each client's, as they are stored
        pooled=False,
        finetune_iterations=0,
        held_out_clients=federation.held_out_clients if held_out is None else held_out,
        held_out_placement=placement or federation.held_out_placement,
        evaluation_episodes=federation.evaluation_episodes if episodes is None else episodes,
    )
    learner = replace(source.learner, filter_warmup_steps=0)  # filters come from the run
    return replace(source, level=level or source.level, selector="fedavg", federation=federation, learner=learner)


def _num_common(source: ExperimentConfig, config: ExperimentConfig) -> int:
    """How many clients, counted from 0, are those of the run. Its number decides where held-out clients lie."""
    own, other = source.federation, config.federation
    if (own.num_clients, source.level) != (other.num_clients, config.level):
        return 0
    held_out = ((one.held_out_clients, one.held_out_placement) for one in (own, other))
    return own.num_clients + (own.held_out_clients if len(set(held_out)) == 1 else 0)


def _fill_filters(moments: Any, arrays: dict[str, np.ndarray], own: np.ndarray, num_clients: int) -> None:
    """Give each client its own observation statistics, or those of all clients of the run together."""
    pooled = default_moments(arrays, num_clients)
    assert pooled is not None  # refused before
    moments.seen[:], moments.mean[:], moments.squares[:] = 1, *pooled
    rows = np.flatnonzero(own)
    if len(rows):
        mean, variance, count = (arrays[f"filters/{name}"].astype(np.float64) for name in ("mean", "variance", "count"))
        moments.seen[rows], moments.mean[rows] = count[rows], mean[rows]
        moments.squares[rows] = variance[rows] * count[rows, None]


def _filled_params(template: Params, arrays: dict[str, np.ndarray], name: str) -> Params:
    """The parameters whose arrays a run stored, in the form that its learner makes."""
    import jax

    wanted = named_arrays(template)
    fits = all(key in arrays and arrays[key].shape == np.shape(array) for key, array in wanted.items())
    if not fits:
        raise UserError(f"run (={name!r}) has a policy that does not fit its learner.")
    leaves = [arrays[key].astype(np.asarray(array).dtype) for key, array in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)
