"""A grid of runs on a Ray cluster whose machines share a disk. Extra: ray."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpohcs.cli.grid import Launch, complete_run
from fedpohcs.core.config import ExperimentConfig, from_dict, to_dict
from fedpohcs.core.errors import UserError
from fedpohcs.execution.cluster import import_ray, joined_cluster


class RayJob:
    """A run as a Ray task of one core."""

    def __init__(self, ray: Any, folder: Path, config: ExperimentConfig, log: Sequence[str]) -> None:
        self._ray = ray
        self._result = ray.remote(num_cpus=1)(_task).remote(str(folder.resolve()), to_dict(config), log)

    def failure(self) -> str | None:
        ready, _ = self._ray.wait([self._result], timeout=0)
        if not ready:
            return None
        try:
            return self._ray.get(self._result)
        except self._ray.exceptions.RayError as error:
            return str(error).strip().splitlines()[-1]

    def stop(self) -> None:
        self._ray.cancel(self._result, force=False)


def _task(folder: str, config: dict[str, Any], log: Sequence[str]) -> str:
    try:
        complete_run(Path(folder), from_dict(config), log=log)
    except UserError as error:
        return str(error)
    return ""


@contextmanager
def ray_cluster(log: Sequence[str] = ()) -> Iterator[tuple[Launch, int]]:
    """A launcher for the cluster that RAY_ADDRESS names, or for one on this machine; and its number of cores."""
    ray = import_ray("backend", "ray")
    with joined_cluster(ray) as cores:
        yield lambda folder, config, slot: RayJob(ray, folder, config, log), cores
