"""Kinds of learners by name, and the change of a config from one kind to another."""

from dataclasses import fields
from typing import Any

from fedpohcs.core.errors import require
from fedpohcs.core.learning.base import LearningConfig
from fedpohcs.core.learning.on_policy import PPOConfig
from fedpohcs.core.registries import LEARNERS, register_plugins


def learner_class(kind: str) -> type[LearningConfig]:
    """The config class of a kind of learner; an unknown kind is refused."""
    register_plugins()
    found = LEARNERS.find(kind, "learner.kind")
    rule = "must be registered as a dataclass derived from LearningConfig"
    require(isinstance(found, type) and issubclass(found, LearningConfig), "learner.kind", kind, rule)
    return found


def as_kind(config: LearningConfig, kind: str) -> LearningConfig:
    """The defaults of another kind of learner, with those settings of this config that mean the same there."""
    if kind == config.kind:
        return config
    kept: dict[str, Any] = {name: getattr(config, name) for name in kept_across_kinds(config.kind, kind)}
    return learner_class(kind)(**kept)


def kept_across_kinds(old: str, new: str) -> list[str]:
    """Settings that stay when a config changes to another kind: those of all learners, or of a family of learners."""
    before, after = learner_class(old), learner_class(new)
    kept = {"network", "hidden_sizes", "discount", "observation_clip", "reward_clip", "reward_statistic"}
    kept |= {field.name for field in fields(LearningConfig) if field.name.startswith("filter_")}
    common = next(base for base in before.__mro__ if issubclass(after, base))
    if common is not LearningConfig:
        kept |= {field.name for field in fields(common)} | {"kl_target"}
    both = {field.name for field in fields(before)} & {field.name for field in fields(after)}
    return [field.name for field in fields(after) if field.name in kept & both - {"kind"}]


def default_learner() -> LearningConfig:
    """The learner of the paper, PPO."""
    return PPOConfig()
