"""A federation on Flower: the same rounds, with clients behind a network."""

import importlib.util
import signal

from fedpohcs.core.config import ExperimentConfig
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


def require_shared(config: ExperimentConfig) -> None:
    """Refuse personal weights, which nodes do not keep."""
    kept, rule = config.federation.personal, "must be none on Flower: nodes keep no weights of their own"
    require(kept == "none", "federation.personal", kept, rule, "Use fedpohcs train.")
