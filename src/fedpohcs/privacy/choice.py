"""How members choose the clients that train, from the values that all of them sealed for each other.

Every member computes the same choice, and the server sees nothing else of the values. A choice is the best K values, or
K clients that are drawn in proportion to them. For a draw each value comes with a nonce; the nonces of all members make
a common coin, which the server does not know and which no member can foresee when it seals its own.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedpohcs.privacy.differential import rounded
from fedpohcs.privacy.masking import Cohort
from fedpohcs.privacy.messages import pack_rows
from fedpohcs.privacy.sealing import read_value
from fedpohcs.privacy.terms import Parameters
from fedpohcs.server.selection.sampling import draw_in_proportion

CHOSEN = "If"  # who, and how much its update counts
LARGEST = 3e38  # number that is sent as a float of 4 bytes
Numbers = Mapping[int, float]  # by client


class Choice(NamedTuple):
    """The clients that train, ascending, and how much the update of each counts: 1 where none counts for more."""

    clients: Cohort = ()
    weights: tuple[float, ...] = ()

    def body(self) -> bytes:
        return pack_rows(CHOSEN, zip(self.clients, self.weights, strict=True))

    def signed(self, context: bytes) -> bytes:
        """The bytes that a member signs."""
        return b"fedpohcs choice" + context + self.body()


def choose(values: Mapping[int, bytes], parameters: Parameters, round_number: int) -> Choice:
    """The choice by the values of the whole cohort. A client without a number is not chosen."""
    read = {client: read_value(value, parameters) for client, value in values.items()}
    numbers = {client: number for client, number in read.items() if number is not None}
    if parameters.ask.prefers == "proportional":
        return draw(numbers, parameters, common_coin(values, round_number))
    return rank(numbers, parameters)


def rank(numbers: Numbers, parameters: Parameters) -> Choice:
    """The K clients with the best numbers; the lower id wins a tie."""
    sign = -1.0 if parameters.ask.prefers == "high" else 1.0
    order = sorted((sign * number, client) for client, number in numbers.items())
    clients = tuple(sorted(client for _, client in order[: parameters.ask.num_selected]))
    return Choice(clients, (1.0,) * len(clients))


def draw(numbers: Numbers, parameters: Parameters, coin: int) -> Choice:
    """K clients, drawn in proportion to q_n times their number, as `gradient-sampling` draws in the clear.

    Weights are divided by the smallest of them, and rounded like a score. So they are all 1, except of clients so large
    that they are always drawn.
    """
    if not numbers:
        return Choice()
    clients = sorted(numbers)
    size = np.array([parameters.ask.weights[n] * max(numbers[n], 0.0) for n in clients])
    drawn = draw_in_proportion(size, parameters.ask.num_selected, np.random.default_rng(coin))
    least = min(drawn.weight[drawn.weight > 0], default=1.0)
    weights = (min(rounded(weight / least, parameters.config), LARGEST) for weight in drawn.weight.tolist())
    return Choice(tuple(clients[place] for place in drawn.place.tolist()), tuple(map(_stored, weights)))


def _stored(weight: float) -> float:
    """As it reads in a message."""
    return float(np.float32(weight))


def common_coin(values: Mapping[int, bytes], round_number: int) -> int:
    """A number of 256 bits that the values of all members determine. One secret nonce is enough to make it random."""
    digest = hashlib.sha256(b"fedpohcs coin" + round_number.to_bytes(4, "little"))
    for client in sorted(values):
        digest.update(client.to_bytes(4, "little") + values[client])
    return int.from_bytes(digest.digest(), "little")
