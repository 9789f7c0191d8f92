"""The error of a party that refuses a message."""


class RefusedError(Exception):
    """A message that must not be answered or counted. The party that refuses it logs the reason."""


def demand(condition: bool, reason: str) -> None:
    """Refuse unless `condition` holds."""
    if not condition:
        raise RefusedError(reason)
