"""What an editor is told of a chat: each text once, each call with its state and its diffs."""

from uuid import UUID

import msgspec
import pytest
from msgspec import UNSET, Raw
from msgspec.structs import replace

from chatd.cli.acp.updates import REPLACED_TEXT, Presenter, call_fields, plan_update
from chatd.client.state import LiveAnswer, LiveEpisode, ShownChat
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.chat.parts import KnownPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.ids import ChatId, MessageId, ToolCallId
from tests.support.factories import AT

CHAT = ChatId(UUID(int=1))
EDITS = {"files": [{"path": "/a.py", "edits": [{"old_text": "1", "new_text": "2"}, 7]}, 8]}


def shown(*messages: PublicMessage, live: tuple[KnownPart, ...] | None = None) -> ShownChat:
    episode = LiveEpisode(history_version=1, attempt=1)
    answer = None if live is None else LiveAnswer(episode=episode, seq=1, parts=live)
    return ShownChat(chat_id=CHAT, is_loaded=True, status="running", messages=messages, live=answer)


def message(number: int, role: str, *parts: KnownPart) -> PublicMessage:
    assert role in ("user", "assistant", "tool")
    return PublicMessage(
        id=MessageId(number), chat_id=CHAT, role=role, content=parts, created_at=AT
    )


def call(call_id: str, **fields: object) -> ToolCallPart:
    part = ToolCallPart(
        tool_call_id=ToolCallId(call_id), tool_name="execute", args=Raw(b'{"command":"ls"}')
    )
    return replace(part, **fields)


def result(call_id: str, **fields: object) -> ToolResultPart:
    part = ToolResultPart(
        tool_call_id=ToolCallId(call_id), tool_name="execute", result=Raw(b'{"output":"a.py"}')
    )
    return replace(part, **fields)


def told(presenter: Presenter, state: ShownChat) -> list[tuple[str, str]]:
    """Kind and text, or id and status, of each update."""
    found: list[tuple[str, str]] = []
    for update in presenter.advance(state):
        if "toolCallId" in update:
            found.append((str(update["toolCallId"]), str(update["status"])))
        else:
            found.append((str(update["sessionUpdate"]), str(update["content"]["text"])))
    return found


SAID, THOUGHT = "agent_message_chunk", "agent_thought_chunk"


def test_a_text_is_told_once_while_it_grows_and_is_committed() -> None:
    presenter = Presenter()
    asked = message(1, "user", TextPart(text="hello"))
    presenter.skip_next_prompt()
    assert told(presenter, shown(asked, live=(ReasoningPart(text="Hm"),))) == [(THOUGHT, "Hm")]
    growing = (ReasoningPart(text="Hm."), TextPart(text="Good"))
    assert told(presenter, shown(asked, live=growing)) == [(THOUGHT, "."), (SAID, "Good")]
    # Another worker says the same again.
    assert told(presenter, shown(asked, live=(ReasoningPart(text="H"),))) == []
    answer = message(2, "assistant", ReasoningPart(text="Hm."), TextPart(text="Good day."))
    assert told(presenter, shown(asked, answer)) == [(SAID, " day.")]
    assert told(presenter, shown(asked, answer)) == []
    other = message(3, "user", TextPart(text="from the page"))
    assert told(presenter, shown(asked, answer, other)) == [("user_message_chunk", "from the page")]


def test_another_answer_is_told_as_such() -> None:
    presenter = Presenter()
    assert told(presenter, shown(live=(TextPart(text="The lamp"),))) == [(SAID, "The lamp")]
    assert told(presenter, shown(live=(TextPart(text="A cat"),))) == [
        (SAID, REPLACED_TEXT + "A cat")
    ]


def test_calls_are_told_with_their_state_also_if_their_id_changes() -> None:
    presenter = Presenter()
    beginning = call("c", args=UNSET, args_delta='{"comm')
    assert told(presenter, shown(live=(beginning,))) == [("c", "pending")]
    assert told(presenter, shown(live=(call("c"),))) == [("c", "in_progress")]
    answer = message(2, "assistant", call("c-1"))
    assert told(presenter, shown(answer)) == []
    assert presenter.call_id("c-1") == "c"
    done = message(3, "tool", result("c-1"))
    assert told(presenter, shown(answer, done)) == [("c", "completed")]

    loaded = Presenter()
    failed = message(3, "tool", result("c-1", is_error=True))
    assert told(loaded, shown(answer, failed)) == [("c-1", "in_progress"), ("c-1", "failed")]


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        (
            "execute",
            {"command": "git  push"},
            {"title": "git push", "kind": "execute", "rawInput": {"command": "git  push"}},
        ),
        (
            "read_file",
            {"path": "/a.py", "offset": 3},
            {
                "title": "read_file /a.py",
                "kind": "read",
                "rawInput": {"path": "/a.py", "offset": 3},
                "locations": [{"path": "/a.py", "line": 3}],
            },
        ),
        (
            "edit_files",
            EDITS,
            {
                "title": "edit_files",
                "kind": "edit",
                "rawInput": {
                    "files": [
                        {"path": "/a.py", "edits": [{"old_text": "1", "new_text": "2"}, 7]},
                        8,
                    ]
                },
                "content": [{"type": "diff", "path": "/a.py", "oldText": "1", "newText": "2"}],
                "locations": [{"path": "/a.py"}],
            },
        ),
        ("unknown", [1], {"title": "unknown", "kind": "other"}),
    ],
)
def test_a_call_has_a_title_places_and_diffs(name: str, args: object, expected: object) -> None:
    assert call_fields(name, Raw(msgspec.json.encode(args))) == expected


def test_the_steps_of_a_plan_are_the_items_of_its_lists() -> None:
    update = plan_update("# Plan\n\n1. Read\n2. Write\n- Test\n\nThen rest.")
    assert update is not None
    assert [entry["content"] for entry in update["entries"]] == ["Read", "Write", "Test"]
    assert plan_update("Nothing to do.") is None
