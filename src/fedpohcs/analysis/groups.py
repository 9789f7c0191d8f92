"""Groups of runs that differ only in their seed. A group is one line of a figure."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.config import flat_dict
from fedpohcs.core.errors import UserError, printable
from fedpohcs.core.types import Vector
from fedpohcs.runs.loading import Run, find_runs, load_run

NAMING_SETTING = "scenario.env"
"""The setting that says which environment a world such as `gym` is made of."""


class Group(NamedTuple):
    """Runs of one experiment with different seeds, in the order of the seeds. All names are printable."""

    world: str
    level: str
    label: str  # the selector, and the settings in which groups of the same selector differ
    runs: tuple[Run, ...]
    variant: str = ""  # the settings of the world in which runs of the same world differ

    @property
    def place(self) -> str:
        """The world as titles name it. Groups of different places are never drawn on the same axes."""
        return f"{self.world} ({self.variant})" if self.variant else self.world

    @property
    def mean_returns(self) -> Vector:
        """Mean return by seed and round, [seeds, rounds], up to the last round that all seeds have."""
        length = min(len(run.rounds["round"]) for run in self.runs)
        return np.stack([run.rounds["mean_return"][:length] for run in self.runs])


def load_groups(paths: Iterable[Path]) -> list[Group]:
    """Read the runs in and below `paths` and put them together."""
    return group_runs([load_run(path) for path in find_runs(paths)])


def group_runs(runs: list[Run]) -> list[Group]:
    """The groups in the order in which their first runs come."""
    settings = [flat_dict(run.config) for run in runs]
    families: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for index, (run, variant) in enumerate(zip(runs, _variants(runs, settings), strict=True)):
        families[run.config.world, variant, run.config.level, run.config.method].append(index)
    members: dict[tuple[str, str, str, str], list[Run]] = defaultdict(list)
    for (world, variant, level, method), indices in families.items():
        differing = _differing_keys([settings[index] for index in indices])
        for index in indices:
            details = [f"{key}={settings[index].get(key)}" for key in differing]
            members[world, level, " ".join([method, *details]), variant].append(runs[index])
    return [_named(*map(printable, name), runs=group) for name, group in members.items()]


def _named(world: str, level: str, label: str, variant: str, *, runs: list[Run]) -> Group:
    return Group(world, level, label, _by_seed(runs), variant)


def missing_returns(groups: Iterable[Group]) -> int:
    """How many returns the evaluations of these runs lack, because clients of a fleet did not answer."""
    answered = [run for group in groups for run in group.runs if run.config.federation.evaluated_clients is None]
    returns = [np.isnan(run.client_returns) for run in answered]  # those that were not sampled are not missing
    return sum(int(missing[~missing.all(axis=1)].sum()) for missing in returns)


def averaged_clients(groups: Iterable[Group]) -> str:
    """The clients over which the mean returns of these runs are taken, in words."""
    groups = list(groups)
    if is_sampled(groups):
        return "a random sample of the clients"
    return "the clients that answered" if missing_returns(groups) else "all clients"


def is_sampled(groups: Iterable[Group]) -> bool:
    """Whether some of these runs evaluate a sample of the clients."""
    return any(run.config.federation.evaluated_clients is not None for group in groups for run in group.runs)


def by_level(groups: Iterable[Group]) -> dict[tuple[str, str], list[Group]]:
    """Groups by world and level: the panels of a figure, the tables of a report."""
    panels: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        panels[group.place, group.level].append(group)
    return dict(panels)


def _variants(runs: list[Run], settings: list[dict[str, Any]]) -> list[str]:
    """For each run the settings of its world that other runs of the same world do not share, and its environment."""
    worlds = [run.config.world for run in runs]
    by_world = {name: [some for some, world in zip(settings, worlds, strict=True) if world == name] for name in worlds}
    differing = {
        world: {key for key in _differing_keys(some) if key.startswith("scenario.")} for world, some in by_world.items()
    }
    return [_variant(some, differing[world]) for some, world in zip(settings, worlds, strict=True)]


def _variant(settings: dict[str, Any], differing: set[str]) -> str:
    details = [
        f"{key.removeprefix('scenario.')}={settings.get(key)}" for key in sorted(differing) if key != NAMING_SETTING
    ]
    return ", ".join([*filter(None, [settings.get(NAMING_SETTING)]), *details])


def _by_seed(runs: list[Run]) -> tuple[Run, ...]:
    """One run per seed: the longest, as it holds the shorter ones of that seed."""
    chosen: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: (run.config.seed, run.config.rounds)):
        other = chosen.get(run.config.seed)
        if other is not None and other.config.rounds == run.config.rounds:
            raise UserError(f"run (={str(run.path)!r}) repeats {str(other.path)!r}: give each experiment once.")
        chosen[run.config.seed] = run
    return tuple(chosen.values())


def _differing_keys(settings: list[dict[str, Any]]) -> list[str]:
    """Settings in which experiments differ, except the number of rounds: a longer run starts like a shorter one."""
    compared = (key for key in dict.fromkeys(key for some in settings for key in some) if key not in ("seed", "rounds"))
    return [key for key in compared if any(some.get(key) != settings[0].get(key) for some in settings)]
