"""Sends answers, each once: a repeated try has the key of the first, so the server counts it once.

The key belongs to what was answered. Somebody who presses the same key again after a lost
connection sends the same request; another answer is another request, and the server says who was
first.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import Chat
from chatd.client.server import ServerApi, new_key
from chatd.domain.ids import ChatId, ToolCallId
from chatd.domain.questions import QuestionReply

Decision = Literal["approve", "deny", "answer"]
_LATE_CODES: Final = frozenset({"call_not_waiting", "invalid_state", "chat_archived"})


class CallAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one call, as the API takes it."""

    tool_call_id: ToolCallId
    decision: Decision
    reason: str = ""
    always: bool = False
    rule_args: Mapping[str, str] | None = None
    replies: tuple[QuestionReply, ...] = ()


class SendOutcome(Struct, frozen=True):
    """`sent`: the server has it. `late`: the call does not wait any more, `text` says why.
    `failed`: nothing is known to have changed, and the same answer may be sent again."""

    state: Literal["sent", "late", "failed"]
    text: str = ""


class AnswerSender:
    def __init__(self, api: ServerApi) -> None:
        self._api = api
        self._keys: dict[bytes, str] = {}

    async def send(self, chat_id: ChatId, answers: Sequence[CallAnswer]) -> SendOutcome:
        body = {"answers": answers}
        name = msgspec.json.encode((chat_id, answers))
        key = self._keys.setdefault(name, new_key())
        try:
            await self._api.post(f"/chats/{chat_id}/answers", body, Chat, key=key)
        except ServerUnreachable as error:
            return SendOutcome("failed", f"{error.message} Answer again when it does.")
        except ApiError as error:
            if error.is_temporary:
                return SendOutcome("failed", error.message)
            self._keys.pop(name, None)
            is_late = error.code in _LATE_CODES
            return SendOutcome("late" if is_late else "failed", refusal_text(error))
        self._keys.pop(name, None)
        return SendOutcome("sent")


def refusal_text(error: ApiError) -> str:
    """What the server refused, with the fields that it names."""
    details = "; ".join(one.detail for one in error.validations if one.detail)
    return f"{error.message} {details}".strip() if details not in error.message else error.message
