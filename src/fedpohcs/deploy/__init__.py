"""A federation on Flower: the same rounds, with clients behind a network."""

import importlib.util

from fedpohcs.errors import UserError


def require_flower() -> None:
    """Say in one line what is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise UserError("Flower is not installed. Install it with: pip install 'fedpohcs[flower]'")
