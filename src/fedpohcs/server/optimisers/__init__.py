"""Server optimisers, which turn the aggregated policy into the new one. One file per rule, named as in the literature.

A server optimiser is one function that makes a `ServerOptimiser`, and one line in `OPTIMISERS`.
"""

from fedpohcs.core.registries import OPTIMISERS
from fedpohcs.server.optimisers.adam import adam
from fedpohcs.server.optimisers.afedpg import afedpg
from fedpohcs.server.optimisers.base import Change, Proposal, ServerOptimiser, by_part
from fedpohcs.server.optimisers.checks import make_optimiser, optimise
from fedpohcs.server.optimisers.fedcm import fedcm
from fedpohcs.server.optimisers.fedexp import fedexp
from fedpohcs.server.optimisers.fedvarp import fedvarp
from fedpohcs.server.optimisers.identity import IDENTITY, identity
from fedpohcs.server.optimisers.last_change import last_change
from fedpohcs.server.optimisers.momentum import momentum
from fedpohcs.server.optimisers.qffl import qffl
from fedpohcs.server.optimisers.scaffold import scaffold
from fedpohcs.server.optimisers.svrpg import svrpg
from fedpohcs.server.optimisers.yogi import yogi
from fedpohcs.server.parts import controls_of

__all__ = [
    "IDENTITY",
    "OPTIMISERS",
    "Change",
    "Proposal",
    "ServerOptimiser",
    "adam",
    "afedpg",
    "by_part",
    "controls_of",
    "fedcm",
    "fedexp",
    "fedvarp",
    "identity",
    "last_change",
    "make_optimiser",
    "momentum",
    "optimise",
    "qffl",
    "scaffold",
    "svrpg",
    "yogi",
]
