"""A trained policy without the rest of the package: this file needs NumPy alone and may be copied elsewhere.

    policy = load_policy("policy.npz")
    action = policy.act(observation, client=6)                                # the most likely action
    action = policy.act(observation, client=6, generator=np.random.default_rng(0))  # as in training: drawn at random

Clients count from 0 here, as in the files of a run. Observations are raw: every client rescales them by its own
running statistics, which are part of the file.
"""

import json
import warnings
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np

SMALLEST_STD = 1e-6
"""Observations that vary less than this are only centred, as in training."""


@dataclass(frozen=True)
class Policy:
    """A tanh perceptron that gives a normal distribution of actions, or logits where actions are discrete."""

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]  # kernel and bias
    log_std: np.ndarray  # empty where actions are discrete
    about: dict[str, Any] = field(default_factory=dict)  # world, level, selector, seed, rounds, ...
    filter_mean: np.ndarray | None = None  # [clients, observation]
    filter_std: np.ndarray | None = None

    @property
    def discrete(self) -> bool:
        """Whether an action is one of finitely many choices."""
        return self.log_std.size == 0

    def act(self, observation: Any, client: int | None = None, generator: np.random.Generator | None = None) -> Any:
        """An action for a raw observation, or one each for a batch of them.

        Args:
            observation: as the environment gives it, [..., observation].
            client: whose filter rescales it, from 0; needed if the file holds filters.
            generator: draws the action; without one it is the most likely action.
        """
        output = self.forward(self.rescale(observation, client))
        if self.discrete and "epsilon" in self.about:
            return self._epsilon_greedy(output, generator)
        if self.discrete:
            noise = 0 if generator is None else generator.gumbel(size=output.shape)
            return np.argmax(output + noise, axis=-1)
        noise = 0 if generator is None else generator.standard_normal(output.shape)
        return output + np.exp(self.log_std) * noise

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
        if self.filter_mean is None or self.filter_std is None:
            return observation
        if client is None or not 0 <= client < len(self.filter_mean):
            raise ValueError(f"client (={client}) must be at least 0 and below {len(self.filter_mean)}.")
        limit = self.about.get("observation_limit") or np.inf
        return np.clip((observation - self.filter_mean[client]) / self.filter_std[client], -limit, limit)

    def forward(self, observation: np.ndarray) -> np.ndarray:
        """The network's output for rescaled observations: mean actions, or logits."""
        *hidden, (last_kernel, last_bias) = self.layers
        for kernel, bias in hidden:
            observation = np.tanh(observation @ kernel + bias)
        return observation @ last_kernel + last_bias


def load_policy(path: str | PathLike[str]) -> Policy:
    """Read a file that `fedpohcs export` wrote. Warns if a policy that needs filters has none."""
    with np.load(path) as arrays:
        if "about" not in arrays.files:
            raise ValueError(f"{path} is not an exported policy. Make one: fedpohcs export RUN policy.npz")
        stored = {name: arrays[name] for name in arrays.files}
    return from_arrays(stored, json.loads(str(stored["about"])))


def from_arrays(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> Policy:
    """The policy whose arrays have the names that a run's `policy.npz` gives them."""
    count = sum(name.startswith("policy/layers/") and name.endswith("/kernel") for name in arrays)
    layers = [tuple(arrays[f"policy/layers/{i}/{part}"] for part in ("kernel", "bias")) for i in range(count)]
    mean = std = None
    if about.get("filtered") and "filters/mean" in arrays:
        mean = arrays["filters/mean"]
        std = np.sqrt(arrays["filters/variance"])
        std = np.where(std > SMALLEST_STD, std, 1).astype(mean.dtype)
    elif about.get("filtered"):
        warnings.warn(
            "the policy was trained on filtered observations, but no filters are stored with it: its actions are wrong "
            "unless observations are rescaled elsewhere.",
            stacklevel=3,
        )
    return Policy(tuple((kernel, bias) for kernel, bias in layers), arrays["policy/log_std"], about, mean, std)
