"""Server-sent events, cut at any byte."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.providers.sse import EventTooLong, FramedEvent, SseParser


def parse(*chunks: bytes) -> list[FramedEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: one\n\n", [(b"", b"one")]),
        (b"event: ping\ndata: {}\n\n", [(b"ping", b"{}")]),
        (b"data:no space\n\n", [(b"", b"no space")]),
        (b"data:  two spaces\n\n", [(b"", b" two spaces")]),
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b"data: a\r\ndata: b\r\n\r\n", [(b"", b"a\nb")]),
        (b"data: a\rdata: b\r\r", [(b"", b"a\nb")]),
        (b"data: a\n\r\n", [(b"", b"a")]),
        (b": a comment\n:\ndata: a\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"data\n\n", [(b"", b"")]),
        (b"data:\n\n", [(b"", b"")]),
        (b"data: \n\n", [(b"", b"")]),
        (b"id: 1\nretry: 5\nfoo: bar\nnonsense\ndata: a\n\n", [(b"", b"a")]),
        (b"event: lost\n\ndata: a\n\n", [(b"", b"a")]),
        (b"event: one\nevent: two\ndata: a\n\n", [(b"two", b"a")]),
        (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: cut off\n", []),
        (b"data: cut off", []),
        (b"data : a\n\n", []),
        (b"database: a\n\n", []),
        (b"", []),
    ],
)
def test_a_stream_gives_the_same_events_wherever_it_is_cut(
    stream: bytes, events: list[FramedEvent]
) -> None:
    assert parse(stream) == events
    assert parse(*(bytes([byte]) for byte in stream)) == events
    for cut in range(len(stream) + 1):
        assert parse(stream[:cut], b"", stream[cut:]) == events


@given(
    st.lists(st.sampled_from([b"data: x", b"data", b"event: e", b":", b"\n", b"\r", b"\r\n"])),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_mixed_line_ends_give_the_same_events_wherever_they_are_cut(
    pieces: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(pieces)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[start:end] for start, end in pairwise(edges)]
    assert parse(*chunks) == parse(stream)


def test_the_end_returns_a_last_event_without_a_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.end() == [(b"", b"[DONE]")]
    assert parser.end() == []


def test_an_endless_line_is_an_error() -> None:
    parser = SseParser(limit=100)
    parser.feed(b"data: " + b"x" * 90)
    with pytest.raises(EventTooLong):
        parser.feed(b"x" * 10)


def test_endless_data_lines_are_an_error() -> None:
    parser = SseParser(limit=100)
    with pytest.raises(EventTooLong):
        parser.feed(b"data:\n" * 101)


def test_many_events_in_one_chunk_are_not_one_long_event() -> None:
    assert len(SseParser(limit=100).feed(b"data: x\n\n" * 1000)) == 1000
