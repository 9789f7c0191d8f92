"""Why a party of the protocol does not go on."""


class RefusedError(Exception):
    """A message that must not be answered or counted; the reason is for the log of whoever refuses."""


def demand(condition: bool, reason: str) -> None:
    """Refuse unless `condition` holds."""
    if not condition:
        raise RefusedError(reason)
