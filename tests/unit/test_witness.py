"""The witness of a soak: what it calls lost is lost, and what it cannot know it does not claim."""

from uuid import UUID

import pytest

from chatd.domain.ids import ChatId
from tests.support.transcript_judge import SentMessage, TranscriptJudge

CHAT = ChatId(UUID(int=1))


def put_otherwise(witness: TranscriptJudge, *, deletion_answered: bool) -> SentMessage:
    """A queued message is taken out; what is there by then is changed, and that is answered."""
    first = witness.record_send(CHAT, "m1 0")
    first.answered("R1")
    witness.record_queued(CHAT, 1, first.text)
    witness.record_removal(CHAT, 1)
    if not deletion_answered:
        witness.record_unknown(CHAT, 1)
    second = witness.record_send(CHAT, "m2 0")
    witness.record_queued(CHAT, 1, second.text)
    second.answered("R1")
    return second


def test_a_deletion_that_nobody_answered_may_take_out_what_was_put_there_later() -> None:
    """The replica that was asked stood still meanwhile. It has taken out what it was told to."""
    put_otherwise(TranscriptJudge(), deletion_answered=False).check(times=0)


def test_a_message_that_was_acknowledged_and_is_not_there_is_lost() -> None:
    with pytest.raises(AssertionError, match="lost"):
        put_otherwise(TranscriptJudge(), deletion_answered=True).check(times=0)
