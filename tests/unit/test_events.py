"""What clients may see of a row, and how events look on the wire."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.messages import PublicMessage, TokenUsage, public_message
from chatd.domain.chat.parts import FilePart, ReasoningPart, UnknownPart
from chatd.domain.chat.row import ChatError
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat_views.diff import ChatSnapshot, diff
from chatd.domain.chat_views.events import (
    DurableEvent,
    ErrorEvent,
    Event,
    HistoryReset,
    MessageEvent,
    MessagePart,
    MessagesDeleted,
    PartPayload,
    PreviewReset,
    QueueUpdate,
    RetryEvent,
    StatusEvent,
    StatusPayload,
    VersionReached,
)
from chatd.domain.ids import MessageId
from tests.support.client_state import ClientState
from tests.support.factories import AT, CHAT, OWNER, WORKER, call, chat, message, text

RUNNING = chat(
    status="running", worker_id=WORKER, epoch=1, snapshot_version=20, history_version=18, attempt=1
)
FULL = ChatSnapshot(chat=RUNNING, since=0, messages=(message(2, "user", text("hi")),), queue=())
FAILURE = ChatError(message="The model is gone.")


def status(word: PublicStatus) -> StatusEvent:
    return StatusEvent(chat_id=CHAT, status=StatusPayload(status=word))


def preview(attempt: int = 1) -> PreviewReset:
    return PreviewReset(chat_id=CHAT, history_version=18, attempt=attempt)


def test_internal_fields_and_unknown_parts_do_not_reach_clients() -> None:
    row = message(
        7,
        "assistant",
        ReasoningPart(text="hm", provider_metadata=Raw(b'{"signature":"s"}')),
        FilePart(media_type="image/png", file_id="f", data="AAAA"),
        UnknownPart(raw=Raw(b'{"type":"hologram"}')),
        created_by=OWNER,
        usage=TokenUsage(input_tokens=3),
        cost_micros=12,
    )
    assert public_message(CHAT, row) == PublicMessage(
        id=MessageId(7),
        chat_id=CHAT,
        role="assistant",
        content=(ReasoningPart(text="hm"), FilePart(media_type="image/png", file_id="f")),
        created_at=AT,
        created_by=OWNER,
        usage=TokenUsage(input_tokens=3),
    )


def test_usage_without_a_number_is_left_out() -> None:
    public = public_message(CHAT, message(7, "assistant", usage=TokenUsage()))
    assert public is not None
    assert public.usage is None


@pytest.mark.parametrize(
    ("event", "wire"),
    [
        (status("pending"), {"type": "status", "status": {"status": "pending"}}),
        (
            QueueUpdate(chat_id=CHAT, queued_messages=()),
            {"type": "queue_update", "queued_messages": []},
        ),
        (RetryEvent(chat_id=CHAT, retry=None), {"type": "retry", "retry": None}),
        (preview(), {"type": "preview_reset", "history_version": 18, "attempt": 1}),
        (VersionReached(chat_id=CHAT, version=21), {"type": "version", "version": 21}),
        (HistoryReset(chat_id=CHAT), {"type": "history_reset"}),
        (
            MessagesDeleted(chat_id=CHAT, ids=(MessageId(3),)),
            {"type": "messages_deleted", "ids": [3]},
        ),
        (
            MessageEvent(
                chat_id=CHAT,
                message=PublicMessage(
                    id=MessageId(2),
                    chat_id=CHAT,
                    role="user",
                    content=(text("hi"),),
                    created_at=AT,
                ),
            ),
            {
                "type": "message",
                "message": {
                    "id": 2,
                    "chat_id": str(CHAT),
                    "role": "user",
                    "content": [{"type": "text", "text": "hi"}],
                    "created_at": "2026-03-27T09:00:00Z",
                },
            },
        ),
        (
            ErrorEvent(chat_id=CHAT, error=ChatError(message="gone", kind="timeout")),
            {"type": "error", "error": {"message": "gone", "kind": "timeout"}},
        ),
        (
            MessagePart(
                chat_id=CHAT,
                message_part=PartPayload(
                    role="assistant",
                    part=call("a", args=None, args_delta='{"c'),
                    history_version=18,
                    attempt=1,
                    seq=4,
                ),
            ),
            {
                "type": "message_part",
                "message_part": {
                    "role": "assistant",
                    "part": {
                        "type": "tool-call",
                        "tool_call_id": "a",
                        "tool_name": "execute",
                        "args_delta": '{"c',
                    },
                    "history_version": 18,
                    "attempt": 1,
                    "seq": 4,
                },
            },
        ),
    ],
)
def test_events_on_the_wire(event: Event, wire: dict[str, object]) -> None:
    encoded = msgspec.json.encode(event)
    assert msgspec.json.decode(encoded) == {**wire, "chat_id": str(CHAT)}
    assert msgspec.json.decode(encoded, type=Event) == event


# The reference client


def part(seq: int, *, attempt: int = 1) -> MessagePart:
    payload = PartPayload(
        role="assistant", part=text(), history_version=18, attempt=attempt, seq=seq
    )
    return MessagePart(chat_id=CHAT, message_part=payload)


def test_a_preview_lasts_until_its_message_or_its_next_attempt() -> None:
    client = ClientState().apply(diff(None, FULL)).apply([part(1), part(2)])
    assert len(client.preview) == 2
    assert client.apply([preview(attempt=2)]).preview == ()
    assert client.settled() == ClientState.of(FULL)


@pytest.mark.parametrize("stray", [part(2), part(1, attempt=2)])
def test_the_reference_client_rejects_a_part_out_of_order(stray: MessagePart) -> None:
    client = ClientState().apply(diff(None, FULL))
    with pytest.raises(AssertionError):
        client.apply([stray])


def test_a_status_clears_the_error_of_the_last_one() -> None:
    failed: list[DurableEvent] = [status("error"), ErrorEvent(chat_id=CHAT, error=FAILURE)]
    client = ClientState().apply(failed)
    assert client.error == FAILURE
    assert client.apply([status("running")]).error is None
