"""Frames of the WebSocket: what is not understood is left out, and ends nothing."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.client.frames import Received, Subscribed, chat_of, chat_topic, read_received
from tests.support.factories import CHAT

NAMES = ("chat_id", "message", "message_part", "queued_messages", "part", "content", "status")
TYPES = (
    *("message", "message_part", "queue_update", "status", "version", "error", "retry", "chat"),
    *("removed", "ready", "refused", "subscribed", "unsubscribed", "of_later"),
)
CHAT_TEXT = str(CHAT)

Json = dict[str, object]
leaves: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers() | st.sampled_from((*TYPES, CHAT_TEXT))
)


def nest(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner)


def event_of(kind: str, fields: Json) -> Json:
    return {"type": kind, "chat_id": CHAT_TEXT, **fields}


fields = st.dictionaries(st.sampled_from(NAMES), st.recursive(leaves, nest, max_leaves=12))
events = st.builds(event_of, st.sampled_from(TYPES), fields)


@given(st.lists(events, max_size=4))
def test_events_of_any_shape_are_read_or_left_out(found: list[Json]) -> None:
    data = msgspec.json.encode([*found, {"type": "subscribed", "topic": "chats"}])
    received: list[Received] = read_received(data)
    assert received[-1] == Subscribed(topic="chats")
    assert len(received) <= len(found) + 1


@pytest.mark.parametrize("data", ["", "7", "{}", "[7]", '[{"type":7}]', "[" * 5000])
def test_what_is_no_frame_is_refused(data: str) -> None:
    with pytest.raises((msgspec.MsgspecError, RecursionError)):
        read_received(data)


def test_a_topic_names_its_chat() -> None:
    assert chat_of(chat_topic(CHAT)) == CHAT
    assert [chat_of(topic) for topic in ("chats", "chat:x", "")] == [None, None, None]
