"""From the clients' updates to one global policy. One file per rule, named as in the literature.

An aggregator is one function, wrapped in an `Aggregator`, and one line in `AGGREGATORS`.

Robust aggregators bound what a few Byzantine clients can do. They count every update alike, because the number of steps
behind an update is a claim of its sender. They treat the parts of the parameters apart.
"""

from fedpohcs.core.registries import AGGREGATORS
from fedpohcs.server.aggregation.base import Aggregation, Aggregator, Combination, SoundUpdates, aggregate, by_part
from fedpohcs.server.aggregation.coordinate_median import COORDINATE_MEDIAN, coordinate_median
from fedpohcs.server.aggregation.fedpg_filter import FEDPG_FILTER, fedpg_filter
from fedpohcs.server.aggregation.krum import KRUM, MULTI_KRUM, krum, multi_krum
from fedpohcs.server.aggregation.mean import PARAMETER_MEAN, parameter_mean
from fedpohcs.server.aggregation.norm_clip import NORM_CLIP, norm_clip
from fedpohcs.server.aggregation.phocas import PHOCAS, phocas
from fedpohcs.server.aggregation.policy_mean import POLICY_MEAN, policy_mean, tabular_policy
from fedpohcs.server.aggregation.trimmed_mean import TRIMMED_MEAN, trimmed_mean

Arrived, Combined, Aggregated = SoundUpdates, Combination, Aggregation  # old names; they go with the next release

__all__ = [
    "AGGREGATORS",
    "COORDINATE_MEDIAN",
    "FEDPG_FILTER",
    "KRUM",
    "MULTI_KRUM",
    "NORM_CLIP",
    "PARAMETER_MEAN",
    "PHOCAS",
    "POLICY_MEAN",
    "TRIMMED_MEAN",
    "Aggregated",
    "Aggregation",
    "Aggregator",
    "Arrived",
    "Combination",
    "Combined",
    "SoundUpdates",
    "aggregate",
    "by_part",
    "coordinate_median",
    "fedpg_filter",
    "krum",
    "multi_krum",
    "norm_clip",
    "parameter_mean",
    "phocas",
    "policy_mean",
    "tabular_policy",
    "trimmed_mean",
]
