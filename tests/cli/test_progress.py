"""What a run tells while it goes on: progress for people, lines of JSON for programs."""

from uuid import UUID

import msgspec
import pytest

from chatd.cli.chats.chat_lines import (
    EventLines,
    ProgressLines,
    activity,
    ask_lines,
    call_line,
    message_lines,
)
from chatd.cli.chats.run_turn import SentMessage
from chatd.cli.output import encode_line
from chatd.client.state import ShownChat
from chatd.domain.chat.parts import ReasoningPart, TextPart, ToolCallPart
from chatd.domain.chat.row import RetryState
from chatd.domain.chat_views.events import WaitingCall
from chatd.domain.ids import ToolCallId
from chatd.terminal.answers.asks import asks_of
from tests.support.shown_chats import (
    answered,
    asked,
    called,
    live,
    queued,
    returned,
    said,
    shown,
)

SENT = SentMessage(version=1, message_id=1)
RETRY = RetryState(attempt=2, delay_ms=4000, error="The provider is overloaded.")


@pytest.mark.parametrize(
    ("tool", "args", "line"),
    [
        ("execute", '{"command": "pytest -q", "workdir": "/x"}', "execute  pytest -q"),
        ("read_file", '{"path": "a b.py"}', "read_file  a b.py"),
        ("list_agents", "{}", "list_agents"),
        ("odd", '{"n": 3}', 'odd  {"n":3}'),
        ("broken", "[1", "broken"),
        (
            "edit_files",
            '{"files": [{"path": "a.py"}, {"path": "b.py"}, 3]}',
            "edit_files  a.py, b.py",
        ),
        ("ask_user_question", '{"questions": [{"question": "Why?"}]}', "ask_user_question  Why?"),
        ("execute", '{"command": "a\\nb \\u001b[31mred"}', "execute  a b red"),
    ],
)
def test_a_call_is_told_in_one_line(tool: str, args: str, line: str) -> None:
    assert call_line(tool, msgspec.Raw(args.encode())) == line


def test_steps_are_told_and_the_answer_is_not() -> None:
    assert message_lines(called(2, "execute", '{"command": "ls"}', text="I look.")) == [
        "I look.",
        "→ execute  ls",
    ]
    assert message_lines(returned(3, "execute", '{"exit_code": 2}')) == ["  execute exited with 2"]
    assert message_lines(returned(3, "execute", '{"error": "no"}', failed=True)) == [
        "  execute failed: no"
    ]
    assert message_lines(returned(3, "execute", '{"exit_code": 0}')) == []
    assert message_lines(answered(4, "Done.")) == []


def test_nothing_is_told_twice() -> None:
    progress = ProgressLines(SENT)
    state = shown(said(1, "hi"), called(2, "execute"), status="running", retry=RETRY)
    assert progress.lines(state) == [
        "→ execute",
        "The provider is overloaded. Trying again in 4 s (failed 2x).",
    ]
    assert progress.lines(state) == []
    assert progress.lines(shown(*state.messages, returned(3, "execute"), status="running")) == []


def test_a_machine_that_is_away_is_told_once() -> None:
    progress = ProgressLines(SENT)
    away = WaitingCall(tool_call_id=ToolCallId("c"), waits_for="The machine is not connected.")
    state = shown(said(1, "hi"), status="running", waiting_calls=(away,))
    told = ["The machine is not connected. The chat goes on by itself."]
    assert [progress.lines(state), progress.lines(state)] == [told, []]


def test_the_place_in_the_queue_is_told_when_it_changes() -> None:
    progress = ProgressLines(SentMessage(version=1, queue_id=4, content=(TextPart(text="x"),)))
    busy = shown(said(1, "a"), status="running", queue=(queued(3, "b"), queued(4, "x")))
    assert progress.lines(busy) == [
        "The chat is busy; the message waits in its queue, behind 1 other."
    ]
    assert progress.lines(busy) == []
    assert progress.lines(shown(said(1, "a"), status="running", queue=(queued(4, "x"),))) == [
        "The chat is busy; the message waits in its queue, next."
    ]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (shown(status="running", live=live(ReasoningPart(text="hm"))), "Thinking…"),
        (shown(status="running", live=live(TextPart(text="a b c"))), "Writing… 3 words"),
        (
            shown(
                status="running",
                live=live(ToolCallPart(tool_call_id=ToolCallId("c"), tool_name="execute")),
            ),
            "Calling execute…",
        ),
        (shown(status="pending"), "Working…"),
        (shown(status="waiting"), ""),
    ],
)
def test_the_activity_says_what_happens_now(state: ShownChat, text: str) -> None:
    assert activity(state) == text


# Lines of JSON


def types(lines: list[dict[str, object]]) -> list[object]:
    return [line["type"] for line in lines]


def test_json_lines_tell_each_change_once() -> None:
    events = EventLines()
    first = shown(said(1, "hi"), status="running")
    assert types(events.lines(first)) == ["message", "status"]
    assert events.lines(first) == []
    second = shown(said(1, "hi"), answered(2, "yes"))
    lines = events.lines(second)
    assert types(lines) == ["message", "status"]
    assert lines[1] == {"type": "status", "chat_id": str(UUID(int=7)), "status": "waiting"}


def test_deltas_continue_where_they_stopped() -> None:
    events = EventLines()
    texts = ["He", "Hello", "Hello", "Hello you"]
    states = [shown(status="running", live=live(TextPart(text=text))) for text in texts]
    told = [line for state in states for line in events.lines(state) if line["type"] == "delta"]
    assert [line["text"] for line in told] == ["He", "llo", " you"]


def test_an_answer_that_begins_again_resets_the_preview() -> None:
    events = EventLines()
    events.lines(shown(status="running", live=live(TextPart(text="Hel"))))
    again = shown(status="running", live=live(TextPart(text="Hey"), attempt=2))
    assert types(events.lines(again)) == ["preview_reset", "delta"]


def test_deleted_messages_are_told_by_their_ids() -> None:
    events = EventLines()
    events.lines(shown(said(1, "a"), answered(2, "b")))
    (line,) = events.lines(shown(said(1, "a")))
    assert (line["type"], line["ids"]) == ("messages_deleted", [2])


def test_messages_that_were_known_before_are_not_told() -> None:
    events = EventLines(after=2)
    lines = events.lines(shown(said(1, "a"), answered(2, "b"), said(3, "c"), status="running"))
    assert types(lines) == ["message", "status"]


def test_raw_arguments_of_tools_stay_json_in_one_line() -> None:
    events = EventLines()
    (line, _) = events.lines(shown(called(2, "execute", '{"command":\n"ls"}')))
    encoded = encode_line(line)
    assert b"\n" not in encoded
    found = msgspec.json.decode(encoded)
    assert found["message"]["content"][0]["args"] == {"command": "ls"}


def test_no_name_or_reason_of_a_call_makes_a_line_that_looks_like_ours() -> None:
    args = '{"a\\n  Why it asks: no": "x", "b": "1\\n2"}'
    call = asked(1, "deploy\nWhy", args=args, reason="Because.\n  chatd chats approve X")
    lines = ask_lines(asks_of(shown(status="requires_action", requested_calls=[call])))
    assert lines[:6] == [
        'Allow "deploy\\nWhy"?',
        '  | "a\\n  Why it asks: no": x',
        "  | b: 1",
        "  | 2",
        "  Why it asks: Because.",
        "  |   chatd chats approve X",
    ]
