"""States of a chat as a client shows them, for tests of what clients make of them."""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from msgspec import Raw

from chatd.client.state import LiveAnswer, LiveEpisode, ShownChat
from chatd.domain.chat.messages import PublicMessage, PublicQueuedMessage
from chatd.domain.chat.parts import KnownPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.ids import ChatId, MessageId, QueueId, ToolCallId, UserId

CHAT: Final = ChatId(UUID(int=7))
NOW: Final = datetime(2026, 11, 17, 9, 0, tzinfo=UTC)


def said(number: int, text: str) -> PublicMessage:
    return _message(number, "user", TextPart(text=text))


def answered(number: int, text: str, finish: str | None = "stop") -> PublicMessage:
    return _message(number, "assistant", TextPart(text=text), finish=finish)


def called(number: int, tool: str, args: str = "{}", text: str = "") -> PublicMessage:
    call = ToolCallPart(
        tool_call_id=ToolCallId(f"c{number}"), tool_name=tool, args=Raw(args.encode())
    )
    before = (TextPart(text=text),) if text else ()
    return _message(number, "assistant", *before, call, finish="tool-calls")


def returned(number: int, tool: str, result: str = "{}", *, failed: bool = False) -> PublicMessage:
    part = ToolResultPart(
        tool_call_id=ToolCallId(f"c{number - 1}"),
        tool_name=tool,
        result=Raw(result.encode()),
        is_error=failed,
    )
    return _message(number, "tool", part)


def _message(number: int, role: str, *parts: KnownPart, finish: str | None = None) -> PublicMessage:
    return PublicMessage(
        id=MessageId(number),
        chat_id=CHAT,
        role=role,  # pyright: ignore[reportArgumentType]
        content=parts,
        created_at=NOW,
        finish_reason=finish,
    )


def queued(number: int, text: str) -> PublicQueuedMessage:
    return PublicQueuedMessage(
        id=QueueId(number),
        chat_id=CHAT,
        content=(TextPart(text=text),),
        created_at=NOW,
        created_by=UserId(UUID(int=1)),
    )


def shown(*messages: PublicMessage, status: str = "waiting", **more: object) -> ShownChat:
    fields: dict[str, object] = {
        "chat_id": CHAT,
        "is_loaded": True,
        "version": 5,
        "status": status,
        "messages": messages,
        **more,
    }
    return ShownChat(**fields)  # pyright: ignore[reportArgumentType]


def live(*parts: KnownPart, attempt: int = 1) -> LiveAnswer:
    episode = LiveEpisode(history_version=3, attempt=attempt)
    return LiveAnswer(episode=episode, seq=len(parts), parts=parts)


def asked(
    number: int, tool: str = "execute", kind: str = "approval", args: str = "{}", **more: object
) -> RequestedCall:
    fields: dict[str, object] = {
        "tool_call_id": ToolCallId(f"c{number}"),
        "tool_name": tool,
        "kind": kind,
        "args": Raw(args.encode()),
        **more,
    }
    return RequestedCall(**fields)  # pyright: ignore[reportArgumentType]
