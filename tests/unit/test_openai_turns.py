"""Turns as responses: their status, their items, and events that a client can resume after any of
them."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from msgspec.structs import replace

from chatd.api.openai.protocol import TurnId
from chatd.api.openai.turns import (
    AnswerReplaced,
    ItemEvents,
    NumberedEvent,
    OutputItem,
    Turn,
    TurnReader,
    list_items,
)
from chatd.client.state import ShownChat
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.chat.parts import KnownPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat.row import ChatError
from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.ids import ChatId, MessageId, ToolCallId
from tests.support.factories import AT

CHAT = ChatId(UUID(int=1))
TURN = TurnId(CHAT, MessageId(3))
TOOLS = frozenset({"weather"})


def item(text: str, kind: str = "message", *, is_done: bool = True) -> OutputItem:
    assert kind in ("message", "reasoning")
    return OutputItem(kind=kind, text=text, is_done=is_done)


def play(
    events: ItemEvents, states: Sequence[Sequence[OutputItem]]
) -> tuple[list[NumberedEvent], str]:
    """All events of these states, and the text that a client gets from them."""
    found = [*events.begin({})]
    for state in states:
        found += events.advance(state)
    found += events.end("response.completed", {})
    text = "".join(str(one.fields.get("delta", "")) for one in found)
    return found, text


texts = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(texts=texts, cuts=st.lists(st.integers(1, 5), max_size=20), data=st.data())
def test_a_client_gets_the_same_from_any_event_on_however_the_text_arrives(
    texts: list[str], cuts: list[int], data: st.DataObject
) -> None:
    items = [
        item(text, "reasoning" if index % 2 else "message") for index, text in enumerate(texts)
    ]
    states: list[list[OutputItem]] = []
    for index, one in enumerate(items):
        reached = 0
        for cut in cuts:
            reached = min(reached + cut, len(one.text))
            states.append([*items[:index], replace(one, text=one.text[:reached], is_done=False)])
    whole, text = play(ItemEvents(TURN), [*states, items])
    assert text == "".join(texts)
    numbers = [one.number for one in whole]
    assert numbers == sorted(set(numbers))

    place = data.draw(st.integers(0, len(whole) - 1))
    rest, tail = play(ItemEvents(TURN, whole[place].number), [items])

    before = "".join(str(one.fields.get("delta", "")) for one in whole[: place + 1])
    assert before + tail == text
    assert [one.number for one in rest][-1:] == numbers[place + 1 :][-1:]


@pytest.mark.parametrize(
    "second",
    [
        [item("Something else", is_done=False)],
        [item("The lamp", is_done=True)],
        [item("The lamp was lit", "reasoning", is_done=False)],
    ],
)
def test_another_answer_than_the_client_has_read_is_refused(second: list[OutputItem]) -> None:
    events = ItemEvents(TURN)
    assert [*events.begin({}), *events.advance([item("The lamp was", is_done=False)])]
    with pytest.raises(AnswerReplaced):
        list(events.advance(second))


def test_the_same_answer_from_another_worker_goes_on_where_it_was() -> None:
    events = ItemEvents(TURN)
    first = [*events.begin({}), *events.advance([item("The lamp was", is_done=False)])]
    assert list(events.advance([])) == []
    assert list(events.advance([item("The la", is_done=False)])) == []
    (more,) = events.advance([item("The lamp was lit", is_done=False)])
    assert more.fields["delta"] == " lit"

    with pytest.raises(AnswerReplaced):
        play(ItemEvents(TURN, first[-1].number), [[item("The cat was lit.")]])
    with pytest.raises(AnswerReplaced):  # It ended before the place that the client has read.
        play(ItemEvents(TURN, first[-1].number), [[item("The")]])


def call(name: str, arguments: bytes | None = b'{"a": 1}', **fields: object) -> ToolCallPart:
    part = ToolCallPart(
        tool_call_id=ToolCallId("call_1"),
        tool_name=name,
        args=UNSET if arguments is None else Raw(arguments),
    )
    return replace(part, **fields)


def test_items_are_what_was_said_thought_and_asked_of_the_client() -> None:
    parts: list[KnownPart] = [
        ReasoningPart(text="Hm. "),
        ReasoningPart(text="Yes."),
        TextPart(text="I look."),
        call("execute"),
        call("weather"),
    ]
    found = list_items(parts, TOOLS, is_done=True)
    assert [(one.kind, one.text) for one in found] == [
        ("reasoning", "Hm. Yes."),
        ("message", "I look."),
        ("reasoning", '[execute {"a": 1}]'),
        ("function_call", '{"a": 1}'),
    ]
    unfinished = call("weather", None, args_delta='{"a')
    live = list_items([TextPart(text="I look."), unfinished], TOOLS, is_done=False)
    assert [(one.text, one.is_done) for one in live] == [("I look.", False)]
    assert list_items([call("weather", cut=True)], TOOLS, is_done=True) == []


def said(number: int, role: str, *parts: KnownPart, finish: str | None = "stop") -> PublicMessage:
    assert role in ("user", "assistant", "tool")
    return PublicMessage(
        id=MessageId(number),
        chat_id=CHAT,
        role=role,
        content=parts,
        created_at=AT,
        finish_reason=finish,
    )


ASKED = said(3, "user", TextPart(text="hello"))
ANSWER = said(4, "assistant", TextPart(text="hi"))
NEXT = said(5, "user", TextPart(text="more"))
RESULT = ToolResultPart(tool_call_id=ToolCallId("call_1"), tool_name="weather")


def asking(kind: str) -> RequestedCall:
    assert kind in ("client", "approval", "question")
    return RequestedCall(tool_call_id=ToolCallId("call_1"), tool_name="weather", kind=kind)


def read(shown: ShownChat, *, asks_here: bool = True) -> Turn:
    return TurnReader(TURN, TOOLS, asks_here=asks_here).read(shown)


@pytest.mark.parametrize(
    ("status", "messages", "calls", "expected"),
    [
        ("running", (ASKED,), (), "in_progress"),
        ("waiting", (ASKED, ANSWER), (), "completed"),
        ("running", (ASKED, ANSWER, NEXT), (), "completed"),
        ("running", (ASKED, ANSWER, said(5, "tool", RESULT)), (), "completed"),
        ("waiting", (ASKED, replace(ANSWER, finish_reason="length")), (), "incomplete"),
        ("waiting", (ASKED, replace(ANSWER, finish_reason=None)), (), "cancelled"),
        ("waiting", (ASKED,), (), "cancelled"),
        (
            "waiting",
            (
                ASKED,
                ANSWER,
                said(5, "tool", replace(RESULT, tool_name="execute", interrupted=True)),
            ),
            (),
            "cancelled",
        ),
        ("error", (ASKED,), (), "failed"),
        ("requires_action", (ASKED, ANSWER), (asking("client"),), "completed"),
        ("requires_action", (ASKED, ANSWER), (asking("approval"),), "completed"),
        ("requires_action", (ASKED, ANSWER), (asking("question"),), "in_progress"),
    ],
)
def test_the_status_of_a_response(
    status: str,
    messages: tuple[PublicMessage, ...],
    calls: tuple[RequestedCall, ...],
    expected: str,
) -> None:
    shown = replace(
        ShownChat(chat_id=CHAT, messages=messages, requested_calls=calls), status=status
    )
    turn = read(shown)
    assert turn.status == expected
    kinds = [one.kind for one in turn.items]
    assert ("mcp_approval_request" in kinds) == (asking("approval") in calls)
    if asking("approval") in calls:
        assert read(shown, asks_here=False).status == "in_progress"


def test_a_response_that_failed_says_why() -> None:
    error = ChatError(message="Too many requests.", kind="rate_limit")
    turn = read(ShownChat(chat_id=CHAT, status="error", messages=(ASKED,), error=error))
    assert turn.error is not None
    assert (turn.error.code, turn.error.message) == ("rate_limit_exceeded", "Too many requests.")


@pytest.mark.parametrize(
    ("status", "requested", "expected"),
    [
        ("running", (), []),
        ("requires_action", (asking("approval"),), []),
        ("requires_action", (asking("client"),), ['{"a": 1}']),
        ("requires_action", (replace(asking("client"), args=Raw(b'{"a":1}')),), ['{"a": 1}']),
        ("requires_action", (replace(asking("client"), args=Raw(b'{"a":2}')),), ['{"a":2}']),
    ],
)
def test_a_function_is_called_once_it_is_decided_with_which_arguments(
    status: str, requested: tuple[RequestedCall, ...], expected: list[str]
) -> None:
    """A hook is asked after the answer with the call is stored, and may change or deny it."""
    messages = (ASKED, said(4, "assistant", call("weather")))
    shown = ShownChat(chat_id=CHAT, messages=messages, requested_calls=requested)
    turn = read(replace(shown, status=status))
    assert [one.text for one in turn.items if one.kind == "function_call"] == expected


def test_a_function_that_was_denied_is_not_called_and_the_turn_goes_on() -> None:
    denied = replace(RESULT, is_error=True, created_at="2026-11-18T12:00:00Z")
    messages = (ASKED, said(4, "assistant", call("weather")), said(5, "tool", denied))
    turn = read(ShownChat(chat_id=CHAT, status="running", messages=messages))
    assert (turn.status, turn.items) == ("in_progress", ())
    after = (*messages, said(6, "assistant", TextPart(text="I may not.")))
    turn = read(ShownChat(chat_id=CHAT, status="waiting", messages=after))
    assert (turn.status, turn.finish_reason) == ("completed", "stop")
    assert [one.text for one in turn.items] == ["I may not."]
