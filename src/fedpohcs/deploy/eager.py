"""A grid that looks for answers soon: Flower's own looks every three seconds, which is most of a short phase."""

import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

FIRST_WAIT, LONGEST_WAIT, GROWTH = 0.1, 3.0, 1.2  # seconds between two looks; long phases are looked at less often


class EagerGrid:
    """As much of a `Grid` as an executor needs."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def get_node_ids(self) -> list[int]:
        """As Flower says."""
        return list(self.grid.get_node_ids())

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        """The answers that come within `timeout` seconds."""
        waiting, answers = set(self.grid.push_messages(messages)), []
        deadline, wait = time.monotonic() + timeout, FIRST_WAIT
        while waiting and time.monotonic() < deadline:
            time.sleep(wait)
            wait = min(GROWTH * wait, LONGEST_WAIT)
            came = list(self.grid.pull_messages(waiting))
            answers += came
            waiting -= {answer.metadata.reply_to_message_id for answer in came}
        return answers
