"""A federation on Flower: the same rounds, with clients behind a network."""

import importlib.util
import signal

from fedpohcs.core.config import MOST_LISTED, ExperimentConfig
from fedpohcs.core.errors import UserError, require


def require_flower(*, simulation: bool = False) -> None:
    """Say in one line what is missing."""
    if not hasattr(signal, "SIGKILL"):  # Windows
        raise UserError("Flower fleets need Linux or macOS. On Windows use WSL, or fedpohcs train.")
    if importlib.util.find_spec("flwr") is None:
        raise UserError("Flower is not installed. Install it with: pip install 'fedpohcs[flower]'")
    if simulation and importlib.util.find_spec("ray") is None:
        remedy = "Install it with: pip install 'fedpohcs[flower-simulation]'"
        raise UserError(f"Flower's simulation needs Ray, which is not installed. {remedy}")


def require_no_held_out(config: ExperimentConfig) -> None:
    """Refuse held-out clients: no node has their environments."""
    rule = "must be 0 on Flower: held-out clients are evaluated in the process that trains"
    number = config.federation.held_out_clients
    require(number == 0, "federation.held_out_clients", number, rule, "Use fedpohcs train.")


def require_masked(config: ExperimentConfig) -> None:
    """Refuse private selection that is safe in a simulation only."""
    from fedpohcs.server.selection.base import asks_every_candidate
    from fedpohcs.server.selection.checks import make_selector

    rule = "is for simulations: a server that alters ciphertexts and sees who refuses finds the key of all clients"
    require(config.privacy != "he", "privacy", config.privacy, rule, "Use masked.")
    selector = make_selector(config.selector)
    named = config.privacy != "none" and bool(selector.requires) and not asks_every_candidate(selector)
    rule = "lets the server name the cohorts, which with privacy only a simulation does"
    require(not named, "selector", config.selector, rule, "Use fedpohcs.")


def require_shared(config: ExperimentConfig) -> None:
    """Refuse what only clients in one process can do: personal weights, shared filters, simulated time, and so on."""
    kept, rule = config.federation.personal, "must be none on Flower: nodes keep no weights of their own"
    require(kept == "none", "federation.personal", kept, rule, "Use fedpohcs train.")
    filters, rule = config.federation.filters, "must be own on Flower: nodes send no statistics of what they see"
    require(filters == "own", "federation.filters", filters, rule, "Use fedpohcs train.")
    model, rule = config.time.model, "must be none on Flower: nodes take the time that they take"
    require(model == "none", "time.model", model, rule, "Use fedpohcs train.")
    iterations, rule = config.federation.finetune_iterations, "must be 0 on Flower: nodes do not train on alone"
    require(iterations == 0, "federation.finetune_iterations", iterations, rule, "Use fedpohcs train.")
    federation, rule = config.federation, "must be play on Flower: nodes send no statistics of what they see"
    plays = federation.newcomers == "play" or federation.evaluated_clients is None
    require(plays, "federation.newcomers", federation.newcomers, rule)
    number, rule = federation.num_clients, f"must not exceed {MOST_LISTED} on Flower: the server knows every client"
    require(number <= MOST_LISTED, "federation.num_clients", number, rule, "Use fedpohcs train.")


def require_trusted(config: ExperimentConfig) -> None:
    """Refuse a robust aggregator whose server optimiser lets any node play the server's episodes.

    On Flower the server has no worlds, so a node plays for it, and no aggregator checks the reply of that node.
    """
    from fedpohcs.core.registries import AGGREGATORS
    from fedpohcs.server.optimisers import OPTIMISERS, make_optimiser

    federation, where = config.federation, config.server_optimiser.simulated_client
    name = federation.server_optimiser
    simulates = name in OPTIMISERS and make_optimiser(str(name), config.server_optimiser).simulates
    robust = AGGREGATORS[federation.aggregator].least(federation.tolerated_liars) > 1
    rule = "must be the id of a client that you trust: its node plays for the server, and no aggregator checks it"
    remedy = "Name one, or set federation.tolerated_liars 0."
    require(not (simulates and robust and where == "mixture"), "server_optimiser.simulated_client", where, rule, remedy)
