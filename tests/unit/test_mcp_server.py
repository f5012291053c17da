"""Pure rules of the MCP server: messages, event ids, and texts for the client's model."""

import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from chatd.api.mcp.call_streams import CallPoint, encode_point, event_id, read_point
from chatd.api.mcp.protocol import (
    ProtocolError,
    RpcMessage,
    encode_error,
    read_message,
    request_version,
)
from chatd.api.mcp.results import (
    ANSWER,
    LOOK,
    SUBMIT,
    answer_text,
    cut,
    last_words,
    message_text,
    next_action,
)
from chatd.cli.mcp_stdio import split_lines
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.chat.parts import (
    FilePart,
    KnownPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.ids import MessageId, ToolCallId
from tests.support.factories import CHAT

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": JSON,
        "method": st.sampled_from(["ping", "tools/call", "initialize"]) | JSON,
        "params": st.fixed_dictionaries({}, optional={"_meta": JSON, "name": JSON}) | JSON,
    },
)
HEADERS = st.dictionaries(
    st.sampled_from(["mcp-protocol-version", "mcp-method", "mcp-name"]),
    st.sampled_from(["2025-11-25", "2026-07-28", "2099-01-01", "ping", "=?base64?!?="]),
)


@given(st.binary(max_size=200) | (JSON | REQUESTS).map(msgspec.json.encode), HEADERS)
def test_any_body_and_headers_are_read_or_refused_with_a_code(
    body: bytes, headers: dict[str, str]
) -> None:
    try:
        message = read_message(body)
        assert message is None or isinstance(message, RpcMessage)
        if message is not None:
            assert request_version(message, headers)
    except ProtocolError as error:
        encoded = msgspec.json.decode(encode_error(error), type=dict[str, object])
        assert encoded.keys() == {"jsonrpc", "id", "error"}


@given(
    st.integers() | st.text(max_size=40),
    st.none() | st.integers() | st.text(max_size=40),
    st.dictionaries(st.text(max_size=8), JSON, max_size=4),
    st.integers(0, 10**6),
)
def test_an_event_id_holds_its_call(
    request_id: int | str, token: int | str | None, arguments: dict[str, object], number: int
) -> None:
    point = CallPoint(
        request_id=request_id,
        progress_token=token,
        tool="wait_for_chat",
        arguments=arguments,
        started_ms=1,
        version="2025-11-25",
    )
    encoded = encode_point(point)
    assert encoded is not None
    name = event_id(encoded, number)
    assert name.isascii()
    assert name.isprintable()
    assert read_point(name) == point


@pytest.mark.parametrize("started_ms", [-1, 2**63, 10**400, "now"])
def test_an_event_id_with_an_impossible_time_is_refused(started_ms: object) -> None:
    call = json.dumps([1, None, "wait_for_chat", {}, started_ms, "2025-11-25"])
    text = base64.urlsafe_b64encode(call.encode()).decode().rstrip("=")
    with pytest.raises(ProtocolError):
        read_point(f"{text}.1")


def test_a_call_that_is_too_long_for_a_header_has_no_event_id() -> None:
    point = CallPoint(
        request_id=1,
        progress_token=None,
        tool="wait_for_chat",
        arguments={"chat_id": "x" * 5000},
        started_ms=1,
        version="2025-11-25",
    )
    assert encode_point(point) is None


@given(st.text(max_size=50), st.integers(1, 60))
def test_pieces_of_a_text_join_to_the_text(text: str, limit: int) -> None:
    pieces: list[str] = []
    offset: int | None = 0
    while offset is not None:
        piece = cut(text, limit, offset)
        pieces.append(piece.text)
        offset = piece.next_offset
    assert "".join(pieces) == text


def message(number: int, role: str, *parts: KnownPart) -> PublicMessage:
    return msgspec.convert(
        {
            "id": MessageId(number),
            "chat_id": str(CHAT),
            "role": role,
            "content": msgspec.to_builtins(parts),
            "created_at": "2026-01-01T00:00:00Z",
        },
        PublicMessage,
    )


def call(**fields: object) -> ToolCallPart:
    plain = ToolCallPart(tool_call_id=ToolCallId("c1"), tool_name="execute")
    return msgspec.structs.replace(plain, **fields)


def test_a_message_is_read_with_its_calls_and_without_reasoning() -> None:
    long = Raw(msgspec.json.encode("x" * 3000))
    text = message_text(
        (
            ReasoningPart(text="Hm."),
            TextPart(text="I run it."),
            call(args=Raw(b'{"command":"ls"}')),
            ToolResultPart(
                tool_call_id=ToolCallId("c1"), tool_name="execute", result=long, is_error=True
            ),
            FilePart(media_type="image/png", name="a.png"),
        )
    )
    said, called, failed, file = text.split("\n")
    assert (said, called, file) == ("I run it.", '[calls execute {"command":"ls"}]', "[file a.png]")
    assert failed.startswith('[execute failed "xxx')
    assert failed.endswith("more characters)]")


def test_the_answer_is_what_was_said_since_the_last_user_message() -> None:
    history = (
        message(1, "user", TextPart(text="first")),
        message(2, "assistant", TextPart(text="old")),
        message(3, "user", TextPart(text="second")),
        message(4, "assistant", TextPart(text="I look."), call()),
        message(5, "assistant", TextPart(text="It works.")),
    )
    assert answer_text(history) == "I look.\n\nIt works."
    assert answer_text(history[:3]) == ""


def test_the_last_words_are_one_short_line() -> None:
    assert last_words("a\n  b") == "a b"
    assert len(last_words("word " * 1000)) <= 121


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        ({"client"}, SUBMIT),
        ({"approval"}, ANSWER),
        ({"question", "client"}, f"{SUBMIT} {ANSWER}"),
        (set[str](), LOOK),
    ],
)
def test_a_chat_that_needs_an_action_says_which_call_helps(kinds: set[str], text: str) -> None:
    assert next_action(kinds) == text


@given(st.lists(st.binary(max_size=6)), st.lists(st.integers(1, 5)))
def test_lines_are_the_same_however_the_input_is_cut(lines: list[bytes], cuts: list[int]) -> None:
    """A line of more than four bytes is cut, and what follows it is read again."""
    lines = [line.replace(b"\n", b"") for line in lines]
    data, chunks = b"".join(line + b"\n" for line in lines), list[bytes]()
    for size in (*cuts, len(data)):
        chunks.append(data[:size])
        data = data[size:]
    assert list(split_lines(chunks, 4)) == [line[:5] for line in lines]
