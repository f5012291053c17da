"""Events on the wire: cut into frames that a client can take, and resume after."""

import pytest

from chatd.domain.chat.messages import public_message
from chatd.domain.chat_views.events import START, Cursor, MessageEvent, VersionReached, encode_event
from chatd.domain.ids import ChangeId
from chatd.stream.fanout import (
    MAX_FRAME_BYTES,
    MAX_FRAME_EVENTS,
    Frame,
    encode_json_array,
    encode_sse,
    split_frames,
)
from tests.support.factories import CHAT, call, message

SEVEN = Cursor(7, ChangeId(0xAB))


def events(count: int) -> list[bytes]:
    return [b'{"n":%d}' % number for number in range(count)]


@pytest.mark.parametrize(
    "count", [1, MAX_FRAME_EVENTS - 1, MAX_FRAME_EVENTS, MAX_FRAME_EVENTS + 1, 3 * MAX_FRAME_EVENTS]
)
def test_a_group_is_cut_and_its_last_frame_bears_the_version(count: int) -> None:
    frames = list(split_frames(events(count), SEVEN))
    assert [event for frame in frames for event in frame.events] == events(count)
    assert all(1 <= len(frame.events) <= MAX_FRAME_EVENTS for frame in frames)
    assert [frame.cursor for frame in frames] == [None] * (len(frames) - 1) + [SEVEN]


def test_big_events_are_not_put_together() -> None:
    big = [b"x" * (MAX_FRAME_BYTES - 1)] * 3 + [b"y" * (2 * MAX_FRAME_BYTES), b"z"]
    frames = list(split_frames(big, SEVEN))
    assert [len(frame.events) for frame in frames] == [1, 1, 1, 1, 1]
    assert [event for frame in frames for event in frame.events] == big


def test_a_reset_is_a_frame_of_its_own_after_which_nothing_can_be_resumed() -> None:
    first, *others = split_frames(events(3), SEVEN, reset=True)
    assert first == Frame(events=events(3)[:1], cursor=START)
    assert others == [Frame(events=events(3)[1:], cursor=SEVEN)]


def test_an_event_stream_has_one_event_to_a_block_and_the_version_with_the_last() -> None:
    assert encode_sse(Frame(events=events(2), cursor=SEVEN)) == (
        b'data: {"n":0}\n\ndata: {"n":1}\nid: 7-ab\n\n'
    )
    assert encode_sse(Frame(events=events(2))) == b'data: {"n":0}\n\ndata: {"n":1}\n\n'


def test_an_event_stream_names_the_type_of_each_event() -> None:
    line = encode_event(VersionReached(chat_id=CHAT, version=7))
    assert encode_sse(Frame(events=[line, line], cursor=SEVEN)) == (
        b"event: version\ndata: " + line + b"\n\nevent: version\ndata: " + line + b"\nid: 7-ab\n\n"
    )


def test_a_socket_gets_an_array() -> None:
    assert encode_json_array(Frame(events=events(2), cursor=SEVEN)) == b'[{"n":0},{"n":1}]'


def test_what_a_model_wrote_on_several_lines_is_sent_on_one() -> None:
    """Else a part of it would be taken for another field of the stream."""
    row = message(1, "assistant", call("c1", args='{\n"command":\r"ls"\r\n}'))
    public = public_message(CHAT, row)
    assert public is not None
    line = encode_event(MessageEvent(chat_id=CHAT, message=public))
    assert b'{ "command": "ls"  }' in line
    assert encode_sse(Frame(events=[line])).count(b"\n") == 3
