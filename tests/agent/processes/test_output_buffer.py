"""The output buffer compared with an unbounded one, and at its limits."""

import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatd.agent.processes.process_output import (
    HEAD_BYTES,
    LINE_SUFFIX,
    MAX_OUTPUT_LINE_BYTES,
    TAIL_BYTES,
    OutputBuffer,
    OutputView,
    TruncationInfo,
    omission_marker,
)

UNITS = [
    b"x",
    b"\n",
    b"line\n",
    "é".encode(),
    "😀".encode(),
    b"\xff",
    b"\x80",
    b"\xf0\x9f",
    b"\r\n",
]
FILLS = (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF)

streams = st.lists(
    st.tuples(st.sampled_from(UNITS), st.integers(1, 9000)).map(lambda pair: pair[0] * pair[1]),
    max_size=8,
)


def begins_a_character(data: bytes) -> bool:
    def decodes(whole: bytes) -> bool:
        try:
            return len(whole.decode()) == 1
        except UnicodeDecodeError:
            return False

    return any(
        decodes(data + bytes(rest))
        for length in (1, 2, 3)
        for rest in itertools.product(FILLS, repeat=length)
    )


def without_half_character(data: bytes) -> bytes:
    for length in (1, 2, 3):
        if len(data) >= length and data[-length] & 0xC0 != 0x80:
            return data[:-length] if begins_a_character(data[-length:]) else data
    return data


def without_rest_of_character(data: bytes) -> bytes:
    stripped = data[:3].lstrip(bytes(range(0x80, 0xC0)))
    return stripped + data[3:]


def naive_lines(data: bytes) -> tuple[bytes, int]:
    shown: list[bytes] = []
    cut = 0
    for line in data.split(b"\n"):
        if len(line) <= MAX_OUTPUT_LINE_BYTES:
            shown.append(line)
            continue
        kept = without_half_character(line[: MAX_OUTPUT_LINE_BYTES - len(LINE_SUFFIX)])
        cut += len(line) - len(kept)
        shown.append(kept + LINE_SUFFIX)
    return b"\n".join(shown), cut


def naive_view(data: bytes, *, final: bool) -> OutputView:
    # The end is checked first: an incomplete character there is neither kept nor counted.
    ends_open = not final and without_half_character(data) != data
    data_seen = without_half_character(data) if ends_open else data
    # Bytes dropped from the tail are gone even if the end is not shown yet.
    head, rest = data_seen[:HEAD_BYTES], data_seen[HEAD_BYTES:]
    room = TAIL_BYTES - (len(data) - len(data_seen))
    tail = rest[-room:]
    total = len(data_seen)
    if not tail:
        text, cut = naive_lines(head)
        truncated = TruncationInfo(total, total - cut, cut) if cut else None
        return OutputView(text.decode(errors="replace"), total, truncated)
    lost = len(rest) - len(tail)
    if lost:
        head, tail = without_half_character(head), without_rest_of_character(tail)
        joint = omission_marker(total - len(head) - len(tail))
    else:
        head = without_half_character(head)
        tail = data_seen[len(head) :]
        joint = b"\n"
    (front, cut_front), (back, cut_back) = naive_lines(head), naive_lines(tail)
    kept = len(head) + len(tail) - cut_front - cut_back
    text = (front + joint + back).decode(errors="replace")
    return OutputView(text, total, TruncationInfo(total, kept, total - kept))


def written(*pieces: bytes) -> OutputBuffer:
    buffer = OutputBuffer()
    for piece in pieces:
        buffer.write(piece)
    return buffer


@pytest.mark.covers("processes-7")
@settings(max_examples=40, derandomize=True, database=None, deadline=None)
@given(streams)
def test_the_view_equals_that_of_an_unbounded_buffer(pieces: list[bytes]) -> None:
    for final in (False, True):
        assert written(*pieces).view(final=final) == naive_view(b"".join(pieces), final=final)


@settings(max_examples=30, derandomize=True, database=None, deadline=None)
@given(st.text(max_size=300), st.lists(st.integers(1, 40), min_size=1))
def test_successive_reads_join_to_the_written_text(text: str, sizes: list[int]) -> None:
    data = text.encode()
    buffer = OutputBuffer()
    read, cursor, start = "", 0, 0
    for size in itertools.cycle(sizes):
        if start >= len(data):
            break
        buffer.write(data[start : start + size])
        start += size
        view = buffer.read_after(cursor, final=False)
        assert view.cursor == buffer.cursor
        read += view.text
        cursor = view.cursor
    assert read + buffer.read_after(cursor, final=True).text == text


@settings(max_examples=30, derandomize=True, database=None, deadline=None)
@given(streams, st.integers(1, 60_000))
def test_a_read_after_a_cursor_counts_every_byte(pieces: list[bytes], after: int) -> None:
    data = b"".join(pieces)
    view = written(*pieces).read_after(after, final=True)
    assert view.cursor == len(data)
    if view.truncated is None:
        assert view.text == data[after:].decode(errors="replace")
    else:
        seen, lost = view.truncated.retained_bytes, view.truncated.omitted_bytes
        assert (seen + lost, view.truncated.original_bytes) == (len(data) - after,) * 2
        assert omission_marker(lost).decode() in view.text
        assert lost > 0


@pytest.mark.covers("processes-7")
def test_an_empty_buffer_has_an_empty_view() -> None:
    assert written(b"").view(final=True) == OutputView("", 0, None)


@pytest.mark.covers("processes-7")
@pytest.mark.parametrize("size", [1, HEAD_BYTES - 1, HEAD_BYTES])
def test_output_that_fits_the_head_is_complete(size: int) -> None:
    data = (b"0123456\n" * HEAD_BYTES)[:size]
    assert written(data).view(final=True) == OutputView(data.decode(), size, None)


@pytest.mark.covers("processes-7")
def test_output_that_fits_head_and_tail_is_complete_but_truncated() -> None:
    data = b"0123456\n" * ((HEAD_BYTES + TAIL_BYTES) // 8)
    view = written(data).view(final=True)
    assert view.text == (data[:HEAD_BYTES] + b"\n" + data[HEAD_BYTES:]).decode()
    assert view.truncated == TruncationInfo(len(data), len(data), 0)


@pytest.mark.covers("processes-7")
def test_one_byte_over_the_limit_is_omitted_with_a_marker() -> None:
    data = b"0123456\n" * ((HEAD_BYTES + TAIL_BYTES) // 8) + b"!"
    view = written(data).view(final=True)
    assert view.text == (
        data[:HEAD_BYTES].decode()
        + "\n\n[... omitted 1 bytes ...]\n\n"
        + data[-TAIL_BYTES:].decode()
    )
    assert view.truncated == TruncationInfo(len(data), len(data) - 1, 1)


@pytest.mark.covers("processes-7")
def test_long_lines_at_both_ends_are_clipped() -> None:
    view = written(b"a" * 50_000 + b"\nshort\n" + b"b" * 50_000).view(final=True)
    shown = MAX_OUTPUT_LINE_BYTES - len(LINE_SUFFIX)
    first, *_, last = view.text.split("\n")
    assert first == "a" * shown + LINE_SUFFIX.decode()
    assert last == "b" * shown + LINE_SUFFIX.decode()
    assert view.truncated == TruncationInfo(100_007, 2 * shown, 100_007 - 2 * shown)


def test_a_line_of_maximum_length_is_not_clipped() -> None:
    line = "x" * MAX_OUTPUT_LINE_BYTES
    assert written(line.encode() + b"\n" + line.encode()).view(final=True).truncated is None


@pytest.mark.covers("processes-7")
def test_many_small_writes_equal_one_large_write() -> None:
    data = bytes(range(256)) * 300
    assert written(*(data[i : i + 7] for i in range(0, len(data), 7))).view(final=True) == (
        written(data).view(final=True)
    )


@pytest.mark.covers("processes-7", "hostile-1")
def test_memory_is_bounded() -> None:
    buffer = OutputBuffer()
    chunk = b"0123456789abcde\n" * 256
    tracemalloc.start()
    try:
        for _ in range(4096):
            buffer.write(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert buffer.total == 4096 * len(chunk)
    assert peak < 8 * (HEAD_BYTES + TAIL_BYTES)


def test_a_late_reader_gets_the_number_of_omitted_bytes() -> None:
    buffer = written(b"first\n")
    cursor = buffer.read_after(0, final=False).cursor
    buffer.write(b"y\n" * 50_000)
    view = buffer.read_after(cursor, final=False)
    kept = HEAD_BYTES - 6 + TAIL_BYTES
    assert view.truncated == TruncationInfo(100_000, kept, 100_000 - kept)
    assert view.text.startswith("y\ny\n")
    assert omission_marker(100_000 - kept).decode() in view.text


def test_a_cursor_past_the_end_is_corrected() -> None:
    assert written(b"abc").read_after(1000, final=True) == OutputView("", 3, None)


def test_an_incomplete_character_is_held_back() -> None:
    buffer = written("é".encode()[:1])
    assert buffer.view(final=False) == OutputView("", 0, None)
    buffer.write("é".encode()[1:])
    assert buffer.view(final=False) == OutputView("é", 2, None)
    assert written("é".encode()[:1]).view(final=True).text == "�"
