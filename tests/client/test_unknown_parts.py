"""Parts of types that a newer server sends and this client does not know."""

import msgspec
import pytest

from chatd.client.frames import read_event
from chatd.client.state import reduce_all, start
from chatd.domain.chat.parts import TextPart, UnknownPart
from chatd.domain.chat_views.events import Event, MessageEvent, MessagePart, QueueUpdate
from chatd.domain.ids import ChatId
from tests.support import event_fixtures
from tests.support.outcomes import present

CHAT = msgspec.convert("0193c5a0-7d1e-7b2f-9a64-2f4e9b7c6d12", ChatId)
NEW = {"type": "hologram", "depth": 3}
TEXT = {"type": "text", "text": "hi"}


def read(**event: object) -> Event:
    return present(read_event(msgspec.json.encode({"chat_id": str(CHAT), **event})))


def message(*content: object) -> dict[str, object]:
    return {
        "id": 1,
        "chat_id": str(CHAT),
        "role": "assistant",
        "content": content,
        "created_at": "2026-01-01T00:00:00Z",
    }


def test_an_unknown_part_of_a_message_stays_in_its_place() -> None:
    event = read(type="message", message=message(NEW, TEXT, NEW))
    assert isinstance(event, MessageEvent)
    first, text, last = event.message.content
    assert isinstance(text, TextPart)
    for part in (first, last):
        assert isinstance(part, UnknownPart)
        assert msgspec.json.decode(part.raw) == NEW


def test_an_unknown_live_part_is_kept_beside_the_others() -> None:
    def live(seq: int, part: object) -> Event:
        payload = {"role": "assistant", "part": part, "history_version": 1, "attempt": 1}
        return read(type="message_part", message_part={**payload, "seq": seq})

    assert isinstance(live(1, NEW), MessagePart)
    group = [
        read(type="status", status={"status": "running"}),
        read(type="preview_reset", history_version=1, attempt=1),
        read(type="version", version=1, cursor="c", has_older=False),
    ]
    received = reduce_all(start(CHAT), [*group, live(1, TEXT), live(2, NEW), live(3, TEXT)])
    kinds = [type(part).__name__ for part in present(received.shown.live).parts]
    assert kinds == ["TextPart", "UnknownPart", "TextPart"]


def test_an_unknown_part_of_a_queued_message_is_kept() -> None:
    known = next(
        event
        for path in event_fixtures.files()
        for connection in event_fixtures.load(path).connections
        for raw in connection
        if isinstance(event := read_event(bytes(raw)), QueueUpdate) and event.queued_messages
    )
    plain = msgspec.json.decode(msgspec.json.encode(known), type=dict[str, object])
    [*queued] = msgspec.convert(plain["queued_messages"], list[dict[str, object]])
    queued[0]["content"] = [NEW]
    event = present(read_event(msgspec.json.encode({**plain, "queued_messages": queued})))
    assert isinstance(event, QueueUpdate)
    assert isinstance(event.queued_messages[0].content[0], UnknownPart)


@pytest.mark.promise("P15")
def test_an_event_that_is_wrong_in_another_way_is_still_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        read(type="message", message={**message(TEXT), "role": 7})
