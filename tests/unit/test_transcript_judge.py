"""The transcript judge: it reports lost messages, and no message with an unknown outcome."""

from uuid import UUID

import pytest

from chatd.domain.ids import ChatId
from tests.support.chaos.transcript_judge import SentMessage, TranscriptJudge

CHAT = ChatId(UUID(int=1))


def edit_after_deletion(judge: TranscriptJudge, *, deletion_acked: bool) -> SentMessage:
    """Delete a queued message, then edit it; the edit is acknowledged."""
    first = judge.record_send(CHAT, "m1 0")
    first.answered("R1")
    judge.record_queued(CHAT, 1, first.text)
    judge.record_removal(CHAT, 1)
    if not deletion_acked:
        judge.record_unknown(CHAT, 1)
    second = judge.record_send(CHAT, "m2 0")
    judge.record_queued(CHAT, 1, second.text)
    second.answered("R1")
    return second


async def test_an_unacknowledged_deletion_may_remove_a_later_message() -> None:
    """A frozen replica may apply the deletion after the edit."""
    edit_after_deletion(TranscriptJudge(), deletion_acked=False).check(times=0)


async def test_an_acknowledged_message_that_is_missing_is_lost() -> None:
    with pytest.raises(AssertionError, match="lost"):
        edit_after_deletion(TranscriptJudge(), deletion_acked=True).check(times=0)
