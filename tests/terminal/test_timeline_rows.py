"""Rows from the state of a chat: what is shown, under which key, and how much work it is."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chatd.client.state import ShownChat
from chatd.domain.chat.parts import NoticePart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat_views.events import WaitingCall
from chatd.domain.ids import ToolCallId
from chatd.terminal.timeline.agent_cards import wait_card
from chatd.terminal.timeline.row import (
    ActivityRow,
    MarkRow,
    NoteRow,
    NoticeMark,
    OlderRow,
    ProseRow,
    ReadsRow,
    StoppedMark,
    TakeoverMark,
    ToolRow,
    UserRow,
    WaitsRow,
)
from chatd.terminal.timeline.row_model import END_KEY, RowModel
from chatd.terminal.timeline.tool_call import parse_partial, read_call
from tests.support import event_fixtures
from tests.support.outcomes import present
from tests.terminal.timeline_scenes import RETRY, SCENES, Script, call, live, states_of

READ = {"content": "x", "lines_read": 1, "total_lines": 1}


def kinds(chat: ShownChat) -> list[type]:
    return [type(row) for row in RowModel().rows(chat)]


@pytest.mark.parametrize("path", event_fixtures.files(), ids=lambda path: path.stem)
def test_rows_that_are_kept_equal_rows_that_are_made_anew(path: Path) -> None:
    model = RowModel()
    for chat in states_of(path):
        kept = model.rows(chat)
        fresh = RowModel().rows(chat)
        assert len({row.key for row in kept}) == len(kept)
        takeovers = [row for row in kept if isinstance(row, MarkRow)]
        assert [replace(row, key="") for row in kept if row not in takeovers] == [
            replace(row, key="") for row in fresh if not isinstance(row, MarkRow)
        ]


def test_an_answer_keeps_its_key_when_it_is_committed() -> None:
    model = RowModel()
    script = Script().user("Go.")
    writing = script.chat("running", live=live(TextPart(text="It wor")))
    before = model.rows(writing)[-1]
    committed = model.rows(script.answer("It works.").chat())[-1]
    assert isinstance(before, ProseRow)
    assert isinstance(committed, ProseRow)
    assert (before.key, before.is_live) == (committed.key, True)
    assert committed.text == "It works."


def test_an_answer_keeps_its_key_though_a_notice_is_committed_before_it() -> None:
    model = RowModel()
    script = Script().user("Go.")
    before = model.rows(script.chat("running", live=live(TextPart(text="It wor"))))[-1]
    script.say("system", NoticePart(code="model_replaced", text="B answers now."))
    mark, committed = model.rows(script.answer("It works.").chat())[-2:]
    assert isinstance(mark, MarkRow)
    assert mark.mark == NoticeMark(text="B answers now.")
    assert committed.key == before.key


def test_the_last_notice_offers_to_continue_a_turn_that_ended_early() -> None:
    script = Script().user("Go.").answer("a", finish="length")
    notice = NoticePart(code="step_limit", text="The limit.")
    note, mark = RowModel().rows(script.say("system", notice).chat())[-2:]
    assert isinstance(note, NoteRow)
    assert note.can_continue
    assert isinstance(mark, MarkRow)
    assert mark.mark == NoticeMark(text="The limit.", can_continue=True)
    later = RowModel().rows(script.user("Go on.").chat())[-2]
    assert isinstance(later, MarkRow)
    assert later.mark == NoticeMark(text="The limit.")


def test_reads_that_follow_each_other_are_one_row_and_lines_stand_close() -> None:
    script = Script().user("Go.")
    for number in range(3):
        script.ran(f"r{number}", "read_file", {"path": "a"}, READ)
    script.ran("c", "execute", {"command": "x"}, {"success": True})
    _, reads, command = RowModel().rows(script.chat())
    assert isinstance(reads, ReadsRow)
    assert len(reads.calls) == 3
    assert command.is_tight


def test_a_read_that_comes_live_joins_the_settled_ones() -> None:
    model = RowModel()
    script = Script().user("Go.").ran("r0", "read_file", {"path": "a"}, READ)
    model.rows(script.chat("running"))
    parts = (
        call("r1", "read_file", {"path": "b"}),
        ToolResultPart(
            tool_call_id=ToolCallId("r1"), tool_name="read_file", result=msgspec.Raw(b"{}")
        ),
    )
    rows = model.rows(script.chat("running", live=live(*parts)))
    assert [type(row) for row in rows] == [UserRow, ReadsRow, ActivityRow]


def test_a_message_between_results_says_that_it_steered() -> None:
    rows = RowModel().rows(SCENES["work"])
    steering = [row.is_steering for row in rows if isinstance(row, UserRow)]
    assert steering == [False, False, True]


def test_a_retry_hides_the_answer_that_broke_off() -> None:
    chat = Script().user("Go.").chat("running", retry=RETRY, live=live(TextPart(text="It wor")))
    assert ProseRow not in kinds(chat)


def test_calls_whose_machine_is_away_say_so_at_the_end() -> None:
    away = WaitingCall(tool_call_id=ToolCallId("run"), waits_for="The machine is not connected.")
    chat = Script().user("Go.").chat("running", waiting_calls=(away,))
    last = RowModel().rows(chat)[-1]
    assert last == WaitsRow(key=END_KEY, text="The machine is not connected.")


def test_older_messages_have_a_row_above_the_first() -> None:
    rows = RowModel().rows(Script().user("Go.").chat(has_older=True), problem="No answer.")
    assert isinstance(rows[0], OlderRow)
    assert rows[0].problem == "No answer."


def test_how_an_answer_ended_is_said_below_it() -> None:
    cut = RowModel().rows(Script().user("Go.").answer("a", finish="length").chat())[-1]
    assert isinstance(cut, NoteRow)
    assert cut.can_continue
    stopped = RowModel().rows(Script().user("Go.").answer("a", finish=None).chat())[-1]
    assert isinstance(stopped, MarkRow)
    assert isinstance(stopped.mark, StoppedMark)


@pytest.mark.parametrize(
    ("result", "verb"),
    [
        ({"report": "Done."}, "Agent answered"),
        ({"timed_out": True}, "Agent still works"),
        ({"interrupted": True}, "Agent still works"),
    ],
)
def test_a_wait_that_ended_early_says_that_the_agent_still_works(
    result: dict[str, object], verb: str
) -> None:
    script = Script().user("Ask.").ran("w", "wait_agent", {"chat_id": "c"}, result)
    (row,) = (row for row in RowModel().rows(script.chat()) if isinstance(row, ToolRow))
    assert wait_card(read_call(row.call)).verb == verb


def test_every_takeover_that_was_seen_stays_at_its_place() -> None:
    model = RowModel()
    first = present(SCENES["work"].takeover)
    second = replace(first, version=9, message_id=first.message_id + 4)
    model.rows(SCENES["work"])
    rows = model.rows(replace(SCENES["work"], takeover=second))
    marks = [row.mark for row in rows if isinstance(row, MarkRow)]
    found = [mark.takeover for mark in marks if isinstance(mark, TakeoverMark)]
    assert found == [first, second]


def test_arguments_show_while_they_are_written() -> None:
    part = ToolCallPart(
        tool_call_id=ToolCallId("w"), tool_name="write_file", args_delta='{"path":"a.py","con'
    )
    row = RowModel().rows(Script().user("Go.").chat("running", live=live(part)))[-1]
    assert isinstance(row, ToolRow)
    assert row.call.state == "streaming"


def test_a_token_makes_no_row_of_a_committed_message_again() -> None:
    script = Script()
    for number in range(3000):
        script.user(f"Question {number}").answer(f"Answer {number}")
    script.user("Go.")
    for number in range(500):
        script.ran(f"c{number}", "execute", {"command": "x"}, {"success": True})
    model = RowModel()
    chat = script.chat("running")
    model.rows(chat)
    opened = model.made_messages
    assert opened >= 7001
    for count in range(200):
        model.rows(replace(chat, live=live(TextPart(text="word " * count))))
    assert model.made_messages == opened
    model.rows(script.answer("Done.").chat())
    # A commit makes the rows of the turn, not of the 6,000 messages before.
    assert model.made_messages - opened < 1010


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("", "null"),
        ("{", "{}"),
        ('{"a', "{}"),
        ('{"a":', "{}"),
        ('{"a":"b', '{"a":"b"}'),
        ('{"a":"b\\', '{"a":"b"}'),
        ('{"a":"b\\u00', '{"a":"b"}'),
        ('{"a":"b\\\\', '{"a":"b\\\\"}'),
        ('{"a":"b\\n', '{"a":"b\\n"}'),
        ('{"a":1', "{}"),
        ('{"a":1,', '{"a":1}'),
        ('{"a":[1,{"b":tru', '{"a":[1,{}]}'),
        ('{"a":[1,{"b":true},"x', '{"a":[1,{"b":true},"x"]}'),
        ('"te', '"te"'),
        ("nonsense", "null"),
        ('{"a" "b"', "{}"),
    ],
)
def test_json_is_read_as_far_as_it_is_written(text: str, known: str) -> None:
    assert parse_partial(text) == msgspec.json.decode(known)


def test_json_that_is_nested_without_end_is_read_to_a_depth() -> None:
    assert parse_partial("[" * 100_000) is not None


_VALUES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


_BOUNDED = settings(
    max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@_BOUNDED
@given(_VALUES)
def test_every_beginning_of_a_json_text_is_read_without_an_error(value: object) -> None:
    text = msgspec.json.encode({"a": value, "b": [value]}).decode()
    for end in range(len(text)):
        assert isinstance(parse_partial(text[:end]), dict | None)
    assert parse_partial(text) == {"a": value, "b": [value]}
