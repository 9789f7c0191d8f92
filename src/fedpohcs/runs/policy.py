"""A trained policy without the rest of the package: this file needs NumPy alone and may be copied elsewhere.

    policy = load_policy("policy.npz")
    action = policy.act(observation, client=6)                                # the most likely action
    action = policy.act(observation, client=6, generator=np.random.default_rng(0))  # as in training: drawn at random
    action = policy.act(observation)                                          # of a device that never trained

Clients count from 0 here, as in the files of a run. Observations are raw: every client rescales them by its own
running statistics, which are part of the file. Who is none of the clients uses the statistics of all of them together.
A file that a device of a fleet exported has the statistics of that device alone, and uses them without `client`.
"""

import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import IO, Any

import numpy as np

SMALLEST_STD = 1e-6
"""Observations that vary less than this are only centred, as in training."""
LOG_STD_LIMITS = -20.0, 2.0
"""Of a network that gives the spread of its actions, as in training."""
DEFAULT_MEAN, DEFAULT_VARIANCE = "filters/default_mean", "filters/default_variance"
BOUNDS = "policy/bounds"
PLAIN_KINDS = "biufU"  # truth values, numbers and text
UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(RuntimeError, SyntaxError, TypeError, ValueError, OverflowError),
)
"""What Python raises for an archive that is damaged or of another kind; `OSError` for a place before its beginning."""


@dataclass(frozen=True)
class Policy:
    """A tanh perceptron that gives a normal distribution of actions, or logits where actions are discrete.

    With `bounds`, actions are squashed by a further tanh: `about["squash"]` says whether outputs are the actions before
    it ("deterministic"), or means and logarithms of standard deviations of a normal distribution before it ("normal").
    """

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]  # kernel and bias
    log_std: np.ndarray  # empty where actions are discrete
    about: dict[str, Any] = field(default_factory=dict)  # world, level, selector, seed, rounds, ...
    filter_mean: np.ndarray | None = None  # [clients, observation]
    filter_std: np.ndarray | None = None
    default_filter: tuple[np.ndarray, np.ndarray] | None = None  # mean and standard deviation over all clients
    bounds: np.ndarray | None = None  # centre and half range of squashed actions

    @property
    def discrete(self) -> bool:
        """Whether an action is one of finitely many choices."""
        return self.log_std.size == 0 and self.bounds is None

    def act(self, observation: Any, client: int | None = None, generator: np.random.Generator | None = None) -> Any:
        """An action for a raw observation, or one each for a batch of them.

        Args:
            observation: as the environment gives it, [..., observation].
            client: whose filter rescales it, from 0; None: the default filter, pooled over all clients.
            generator: draws the action; without one it is the most likely action.
        """
        output = self.forward(self.rescale(observation, client))
        if self.bounds is not None:
            return self._squashed(output, generator)
        if self.discrete and "epsilon" in self.about:
            return self._epsilon_greedy(output, generator)
        if self.discrete:
            noise = 0 if generator is None else generator.gumbel(size=output.shape)
            return np.argmax(output + noise, axis=-1)
        noise = 0 if generator is None else generator.standard_normal(output.shape)
        return output + np.exp(self.log_std) * noise

    def _squashed(self, output: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
        """An action within its bounds. Deterministic policies draw nothing."""
        assert self.bounds is not None
        if self.about["squash"] == "normal":
            mean, log_std = np.split(output, 2, axis=-1)
            noise = 0 if generator is None else generator.standard_normal(mean.shape)
            output = mean + np.exp(np.clip(log_std, *LOG_STD_LIMITS)) * noise
        return self.bounds[0] + self.bounds[1] * np.tanh(output)

    def _epsilon_greedy(self, values: np.ndarray, generator: np.random.Generator | None) -> Any:
        """Epsilon-greedy action for outputs that are action values."""
        greedy = np.argmax(values, axis=-1)
        if generator is None:
            return greedy
        explores = generator.random(greedy.shape) < self.about["epsilon"]
        return np.where(explores, generator.integers(values.shape[-1], size=greedy.shape), greedy)

    def rescale(self, observation: Any, client: int | None = None) -> np.ndarray:
        """The observation after the client's filter, which the network reads."""
        observation = np.asarray(observation, np.float32)
        found = self.filter_of(client)
        if found is None:
            return observation
        limit = self.about.get("observation_limit") or np.inf
        return np.clip((observation - found[0]) / found[1], -limit, limit)

    def filter_of(self, client: int | None = None) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and standard deviation of a client's observations, or of all clients' together; None: not filtered."""
        if client is None or self.default_filter is None:
            return self.default_filter
        if self.filter_mean is None or self.filter_std is None:
            raise ValueError(f"client (={client}) must be None: the file has the default filter alone.")
        if not 0 <= client < len(self.filter_mean):
            raise ValueError(f"client (={client}) must be at least 0 and below {len(self.filter_mean)}.")
        return self.filter_mean[client], self.filter_std[client]

    def forward(self, observation: np.ndarray) -> np.ndarray:
        """The network's output for rescaled observations: mean actions, or logits."""
        *hidden, (last_kernel, last_bias) = self.layers
        for kernel, bias in hidden:
            observation = np.tanh(observation @ kernel + bias)
        return observation @ last_kernel + last_bias


def load_policy(path: str | PathLike[str]) -> Policy:
    """Read a file that `fedpohcs export` wrote, or raise `ValueError`, also if needed filters are missing."""
    stored = read_arrays(path)
    if "about" not in stored:
        raise ValueError(f"{path} is not an exported policy. Make one: fedpohcs export RUN policy.npz")
    try:
        about = json.loads(str(stored["about"]))
    except RecursionError as error:
        raise ValueError("its description is nested too deeply") from error
    if not isinstance(about, dict):
        raise ValueError("its description is no JSON object")
    return from_arrays(stored, about)


def read_arrays(path: str | PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; `ValueError` if it is none, or if it would take more memory than it has bytes."""
    return _read_members(path, lambda file: np.lib.format.read_array(file, allow_pickle=False))


def array_sizes(path: str | PathLike[str]) -> dict[str, int]:
    """The bytes of every array of an .npz file, from their headers alone; `ValueError` as for `read_arrays`."""
    return {name: size for name, (_, size) in _read_members(path, _read_header).items()}


def _read_members(path: str | PathLike[str], read: Callable[[IO[bytes]], Any]) -> dict[str, Any]:
    """What `read` finds in each member, after the headers of all were checked."""
    with open(path, "rb") as whole:
        try:
            with zipfile.ZipFile(whole) as archive:
                members = archive.infolist()
                _check_sizes(members, os.fstat(whole.fileno()).st_size)
                for member in members:
                    with archive.open(member) as file:
                        _check_header(member, *_read_header(file), file.tell())
                return {member.filename.removesuffix(".npy"): _opened(archive, member, read) for member in members}
        except UNREADABLE as error:
            raise ValueError(f"it is not a sound .npz file: {error}") from error


def _opened(archive: zipfile.ZipFile, member: zipfile.ZipInfo, read: Callable[[IO[bytes]], Any]) -> Any:
    with archive.open(member) as file:
        return read(file)


def _check_sizes(members: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse a file that expands. Policies are stored without compression, so no sound one does."""
    expanded = sum(member.file_size for member in members)
    if expanded > size:
        raise ValueError(f"its arrays have {expanded} bytes, more than the {size} of the file")


def _read_header(file: IO[bytes]) -> tuple[np.dtype[Any], int]:
    """Type and bytes of the array that a file in NumPy's format announces."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"an array has format {version}, not (1, 0)")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return dtype, math.prod(shape) * dtype.itemsize


def _check_header(member: zipfile.ZipInfo, dtype: np.dtype[Any], size: int, begin: int) -> None:
    if dtype.kind not in PLAIN_KINDS or dtype.names is not None:
        raise ValueError(f"{member.filename} is of type {dtype}")
    if begin + size != member.file_size:
        raise ValueError(f"{member.filename} announces {size} bytes and has {member.file_size - begin}")


def from_arrays(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> Policy:
    """The policy whose arrays have the names that a run's `policy.npz` gives them."""
    _check_policy(arrays)
    _check_bounds(arrays, about)
    count = _num_layers(arrays)
    layers = [tuple(arrays[f"policy/layers/{i}/{part}"] for part in ("kernel", "bias")) for i in range(count)]
    mean = std = pooled = None
    if about.get("filtered"):
        moments = default_moments(arrays, about.get("num_clients"))
        if moments is None:
            raise ValueError("it was trained on filtered observations, but no filters are stored with it")
        pooled = moments[0].astype(np.float32), _standard_deviation(moments[1]).astype(np.float32)
    if about.get("filtered") and "filters/mean" in arrays:
        mean, std = arrays["filters/mean"], _standard_deviation(arrays["filters/variance"])
    plain = tuple((kernel, bias) for kernel, bias in layers)
    return Policy(plain, arrays["policy/log_std"], about, mean, std, pooled, arrays.get(BOUNDS))


def _standard_deviation(variance: np.ndarray) -> np.ndarray:
    std = np.sqrt(np.maximum(variance, 0))
    return np.where(std > SMALLEST_STD, std, 1).astype(variance.dtype)


def default_moments(arrays: dict[str, np.ndarray], num_clients: Any = None) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean and variance of all observations of all clients, as if one client had seen them; None: nothing is known.

    Held-out clients, whose rows follow, do not count. A fleet stores the pooled numbers alone.
    """
    if DEFAULT_MEAN in arrays:
        return arrays[DEFAULT_MEAN].astype(np.float64), arrays[DEFAULT_VARIANCE].astype(np.float64)
    if "filters/mean" not in arrays:
        return None
    own = slice(num_clients if isinstance(num_clients, int) and num_clients > 0 else None)
    means, variances = (arrays[f"filters/{name}"][own].astype(np.float64) for name in ("mean", "variance"))
    count = arrays["filters/count"][own].astype(np.float64) if "filters/count" in arrays else np.ones(len(means))
    weight = count / count.sum() if count.sum() > 0 else np.full(len(means), 1 / max(len(means), 1))
    mean = weight @ means
    return mean, weight @ (variances + (means - mean) ** 2)


def _num_layers(arrays: dict[str, np.ndarray]) -> int:
    return sum(name.startswith("policy/layers/") and name.endswith("/kernel") for name in arrays)


def _check_policy(arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays that are missing, hold no numbers, or do not fit each other."""
    count = _num_layers(arrays)
    wanted = [f"policy/layers/{index}/{part}" for index in range(count) for part in ("kernel", "bias")]
    filters = (("filters/mean", "filters/variance"), (DEFAULT_MEAN, DEFAULT_VARIANCE))
    wanted += ["policy/log_std", *(name for pair in filters if pair[0] in arrays for name in pair)]
    missing = [name for name in wanted if name not in arrays]
    if missing or not count:
        raise ValueError(f"it holds no tanh policy: it lacks {', '.join(missing) or 'every layer'}")
    if any(arrays[name].dtype.kind != "f" for name in wanted):
        raise ValueError("its arrays are not all of floating-point numbers")
    width: int | None = None
    for index in range(count):
        kernel, bias = arrays[f"policy/layers/{index}/kernel"], arrays[f"policy/layers/{index}/bias"]
        if kernel.ndim != 2 or bias.shape != kernel.shape[1:] or width not in (None, kernel.shape[0]):
            raise ValueError(f"layer {index} of its policy does not fit the others")
        width = kernel.shape[1]
    if arrays["policy/log_std"].shape not in ((0,), (width,)):
        raise ValueError("its log_std does not fit the actions")
    _check_filters(arrays, arrays["policy/layers/0/kernel"].shape[0])


def _check_bounds(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Refuse bounds that are missing where actions are squashed, or that are there where they are not."""
    squash, bounds = about.get("squash"), arrays.get(BOUNDS)
    if squash not in (None, "deterministic", "normal") or (squash is None) != (bounds is None):
        raise ValueError(
            f"its actions are squashed ({squash!r}), but bounds are {'missing' if bounds is None else 'there'}"
        )
    if bounds is not None and (bounds.dtype.kind != "f" or bounds.shape != (2,)):
        raise ValueError("its bounds of actions are not two numbers")


def _check_filters(arrays: dict[str, np.ndarray], observed: int) -> None:
    if DEFAULT_MEAN in arrays and {arrays[name].shape for name in (DEFAULT_MEAN, DEFAULT_VARIANCE)} != {(observed,)}:
        raise ValueError("its default filter does not fit the observations")
    if "filters/mean" not in arrays:
        return
    mean, count = arrays["filters/mean"], arrays.get("filters/count")
    if count is not None and (count.dtype.kind != "f" or count.shape != mean.shape[:1]):
        raise ValueError("its counts of observations do not fit the clients")
    if mean.ndim != 2 or mean.shape != arrays["filters/variance"].shape or mean.shape[1] != observed:
        raise ValueError("its filters do not fit the observations")
