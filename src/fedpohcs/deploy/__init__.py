"""A federation on Flower: the same rounds, with clients behind a network."""

import importlib.util

from fedpohcs.core.errors import UserError


def require_flower(*, simulation: bool = False) -> None:
    """Say in one line what is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise UserError("Flower is not installed. Install it with: pip install 'fedpohcs[flower]'")
    if simulation and importlib.util.find_spec("ray") is None:
        remedy = "Install it with: pip install 'fedpohcs[flower-simulation]'"
        raise UserError(f"Flower's simulation needs Ray, which is not installed. {remedy}")
