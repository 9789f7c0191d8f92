"""What a config names that lies outside the package: functions to import, and folders to read."""

from collections.abc import Iterator

from fedpohcs.core.config import ExperimentConfig, flat_dict

SEPARATORS = ":/\\"  # of module:function, and of paths
FOLDERS = ("scenario.networks",)  # settings that name a folder, even without a separator


def outside_names(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Settings and what they name: `scenario.env`, `modelling.discretiser`, `learner.network`, and others like them.

    No setting is known to be harmless because of its name: worlds and learners of other packages have their own.
    """
    for setting, value in flat_dict(config).items():
        for name in value if isinstance(value, tuple | list) else (value,):
            if isinstance(name, str) and name and (setting in FOLDERS or any(one in name for one in SEPARATORS)):
                yield setting, name
