"""The theory of the paper as code: tables, exact arithmetic, one function an equation.

Names are imported when first used, as those of `fedpohcs` are.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpohcs.theory.iteration import FapiRun, measured_errors, run_fapi
    from fedpohcs.theory.levels import Levels, closest_clients, levels_of
    from fedpohcs.theory.mdp import Federation, SparseFederation, TabularMDP
    from fedpohcs.theory.networks import SoftmaxLinear, Tabular, TwoLayerReLU
    from fedpohcs.theory.verify import verify_claims

__all__ = [
    "FapiRun",
    "Federation",
    "Levels",
    "SoftmaxLinear",
    "SparseFederation",
    "Tabular",
    "TabularMDP",
    "TwoLayerReLU",
    "closest_clients",
    "levels_of",
    "measured_errors",
    "run_fapi",
    "verify_claims",
]

_HOME = {
    "FapiRun": "iteration",
    "Federation": "mdp",
    "Levels": "levels",
    "SoftmaxLinear": "networks",
    "SparseFederation": "mdp",
    "Tabular": "networks",
    "TabularMDP": "mdp",
    "TwoLayerReLU": "networks",
    "closest_clients": "levels",
    "levels_of": "levels",
    "measured_errors": "iteration",
    "run_fapi": "iteration",
    "verify_claims": "verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
