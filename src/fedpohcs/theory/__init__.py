"""The theory of the paper as code: tables, exact arithmetic, one function per equation.

Names are imported at their first use, like those of `fedpohcs`.
"""

from typing import TYPE_CHECKING

from fedpohcs.core.lazy import importer

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

__getattr__ = importer(
    __name__,
    {
        "iteration": "FapiRun measured_errors run_fapi",
        "levels": "Levels closest_clients levels_of",
        "mdp": "Federation SparseFederation TabularMDP",
        "networks": "SoftmaxLinear Tabular TwoLayerReLU",
        "verify": "verify_claims",
    },
)


def __dir__() -> list[str]:
    return __all__
