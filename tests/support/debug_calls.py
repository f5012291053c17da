"""A debug record of a model call."""

from datetime import UTC, datetime
from uuid import UUID

from chatd.domain.answer.answer import Answer
from chatd.domain.answer.debug_calls import DebugCall
from chatd.domain.model.protocol import ModelRequest
from tests.support.factories import CHAT


def debug_call(request: ModelRequest, answer: Answer, *, number: int = 1) -> DebugCall:
    return DebugCall(
        id=UUID(int=number),
        chat_id=CHAT,
        kind="turn",
        model_config_id=None,
        provider="acme",
        model="fast-1",
        attempt=1,
        history_version=1,
        turn_message_id=None,
        started_at=datetime.fromtimestamp(1_700_000_000 + number, UTC),
        duration_ms=10,
        first_part_ms=None,
        error=None,
        error_kind=None,
        status_code=None,
        request=request,
        answer=answer,
    )
