"""What limits a lying client's share of the selections; docs/trust.md says what it costs."""

from collections import Counter

import numpy as np

from fedpohcs.core.config import DefenceConfig
from fedpohcs.core.types import ClientIds
from fedpohcs.server.selection import Question


def defended(question: Question, recent: tuple[ClientIds, ...], defence: DefenceConfig) -> tuple[Question, ClientIds]:
    """The question without the candidates that were selected too often, and who they are; and how tables are clipped.

    It is put before anybody is asked, so it holds for every selector. The others are compared among themselves.

    Args:
        question: with all candidates of the round.
        recent: who was selected in the latest rounds; see `remember`.
        defence: settings.
    """
    question = question._replace(table_clip=defence.table_clip)
    if defence.max_selections is None:
        return question, question.candidates[:0]
    times = Counter(client for chosen in recent for client in chosen.tolist())
    is_capped = np.array([times[client] >= defence.max_selections for client in question.candidates.tolist()], bool)
    return question.among(question.candidates[~is_capped]), question.candidates[is_capped]


def remember(recent: tuple[ClientIds, ...], chosen: ClientIds, defence: DefenceConfig) -> tuple[ClientIds, ...]:
    """The selections that the next round must know of: those of the latest `window` - 1 rounds."""
    if defence.max_selections is None:
        return ()
    return (*recent, chosen)[max(0, len(recent) + 2 - defence.window) :]
