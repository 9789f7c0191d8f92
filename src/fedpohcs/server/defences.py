"""Limits to the number of selections of a client and to the norm of its table; docs/trust.md has their costs."""

from collections import Counter

import numpy as np

from fedpohcs.core.config import DefenceConfig
from fedpohcs.core.types import ClientIds
from fedpohcs.server.selection import Question


def defended(question: Question, recent: tuple[ClientIds, ...], defence: DefenceConfig) -> tuple[Question, ClientIds]:
    """The question with the limits of `defence`, and the candidates that these exclude.

    A candidate that has reached its limit of selections is excluded before any client is asked, so that the limit holds
    for every selector. The remaining candidates are compared among themselves.

    Args:
        question: with all candidates of the round.
        recent: the selections of the latest rounds; see `remember`.
        defence: settings.
    """
    question = question._replace(table_clip=defence.table_clip)
    if defence.max_selections is None:
        return question, question.candidates[:0]
    times = Counter(client for chosen in recent for client in chosen.tolist())
    is_capped = np.array([times[client] >= defence.max_selections for client in question.candidates.tolist()], bool)
    return question.among(question.candidates[~is_capped]), question.candidates[is_capped]


def remember(recent: tuple[ClientIds, ...], chosen: ClientIds, defence: DefenceConfig) -> tuple[ClientIds, ...]:
    """The selections that count in the next round: those of the latest `window` - 1 rounds."""
    if defence.max_selections is None:
        return ()
    return (*recent, chosen)[max(0, len(recent) + 2 - defence.window) :]
