"""Which calls of a batch run, in which order, and which are refused beforehand."""

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct

from chatd.domain.answer.answer import sort_by_call
from chatd.domain.answer.tool_calls import (
    ARGS_NOT_JSON_TEXT,
    ARGS_NOT_OBJECT_TEXT,
    EXCLUSIVE_TOOL_TEXT,
    SKIPPED_CALL_TEXT,
    ToolBatch,
    ToolSet,
    find_ambiguous_key,
    plan_batch,
)
from chatd.domain.answer.tool_output import AnsweredCall, ToolOutput
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.model.protocol import ToolSpec
from tests.support.factories import call

SCHEMA = Raw(
    msgspec.json.encode(
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "edits": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"old": {"type": "string"}}},
                },
                "env": {
                    "type": "object",
                    "additionalProperties": {
                        "type": "object",
                        "properties": {"value": {"type": "string"}},
                    },
                },
            },
        }
    )
)


class FakeTool(Struct, frozen=True, kw_only=True):
    name: str
    serial: bool = False
    exclusive: bool = False

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description="", input_schema=SCHEMA)


TOOLS = {
    tool.name: tool
    for tool in (
        FakeTool(name="read"),
        FakeTool(name="write"),
        FakeTool(name="find", serial=True),
        FakeTool(name="plan", exclusive=True),
    )
}
BOX = ToolSet(tools=TOOLS, aliases={"cat": "read", "gone": "nowhere"})


def planned(*calls: ToolCallPart, box: ToolSet = BOX) -> dict[str, list[str]]:
    batch = plan_batch(calls, box)
    return {
        "concurrent": [call.tool_call_id for call in batch.concurrent],
        "serial": [call.tool_call_id for call in batch.serial],
        "rejected": [answer.call_id for answer in batch.rejected],
    }


def refusal(one: ToolCallPart, box: ToolSet = BOX) -> str | None:
    """Why a call is not run, or None."""
    batch = plan_batch([one], box)
    assert all(answer.output.is_error for answer in batch.rejected)
    return batch.rejected[0].output.text if batch.rejected else None


@pytest.mark.covers("loop-19")
def test_calls_run_together_and_serial_ones_afterwards_in_their_order() -> None:
    plan = planned(call("1", "find"), call("2", "read"), call("3", "find"), call("4", "write"))
    assert plan == {"concurrent": ["2", "4"], "serial": ["1", "3"], "rejected": []}


def test_the_providers_own_calls_are_not_ours_to_answer() -> None:
    search = call("1", "web_search", provider_executed=True)
    assert plan_batch([search], BOX) == ToolBatch()
    beside = planned(search, call("2", "plan"))
    assert beside == {"concurrent": ["2"], "serial": [], "rejected": []}


@pytest.mark.covers("loop-18")
def test_a_tool_that_must_be_alone_runs_alone() -> None:
    assert planned(call("1", "plan"))["concurrent"] == ["1"]


@pytest.mark.covers("loop-18")
def test_a_tool_that_must_be_alone_stops_the_whole_batch() -> None:
    batch = plan_batch([call("1", "read"), call("2", "plan"), call("3", "nosuch")], BOX)
    assert (batch.concurrent, batch.serial) == ((), ())
    said = {answer.call_id: answer.output.text for answer in batch.rejected}
    assert said == {"1": SKIPPED_CALL_TEXT, "2": EXCLUSIVE_TOOL_TEXT, "3": SKIPPED_CALL_TEXT}
    assert all(answer.output.is_error for answer in batch.rejected)


@pytest.mark.covers("loop-18")
def test_two_calls_that_must_be_alone_stop_each_other() -> None:
    batch = plan_batch([call("1", "plan"), call("2", "plan")], BOX)
    assert [answer.output.text for answer in batch.rejected] == [EXCLUSIVE_TOOL_TEXT] * 2


@pytest.mark.covers("loop-21")
def test_a_former_name_finds_the_tool() -> None:
    (found,) = plan_batch([call("1", "cat")], BOX).concurrent
    assert (found.tool_name, found.tool_call_id) == ("read", "1")


@pytest.mark.covers("loop-21")
def test_a_former_name_of_nothing_is_unknown() -> None:
    assert refusal(call("1", "gone")) == (
        "There is no tool named 'gone'. Tools: find, plan, read, write."
    )


@pytest.mark.covers("loop-21")
def test_an_unknown_name_is_answered_with_the_names_there_are() -> None:
    assert (
        refusal(call("1", "rm"), ToolSet(tools={})) == "There is no tool named 'rm'. Tools: none."
    )
    many = {f"t{index:03}": FakeTool(name="t") for index in range(200)}
    said = refusal(call("1", "rm"), ToolSet(tools=many))
    assert said is not None
    assert said.endswith("t049, and 150 more.")


@pytest.mark.covers("loop-21")
def test_a_tool_that_is_not_active_is_refused_even_by_a_former_name() -> None:
    box = msgspec.structs.replace(BOX, active=frozenset({"write"}))
    assert refusal(call("1", "read"), box) == "The tool 'read' is not active in this turn."
    assert refusal(call("1", "cat"), box) == "The tool 'read' is not active in this turn."
    assert refusal(call("1", "write"), box) is None
    assert refusal(call("1", "rm"), box) == "There is no tool named 'rm'. Tools: write."


@pytest.mark.covers("loop-22")
@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (None, ARGS_NOT_JSON_TEXT),
        ("[]", ARGS_NOT_OBJECT_TEXT),
        ("null", ARGS_NOT_OBJECT_TEXT),
        ('"{}"', ARGS_NOT_OBJECT_TEXT),
        ("{}", None),
        ('{"path":"x"}', None),
    ],
)
def test_arguments_must_be_a_json_object(args: str | None, reason: str | None) -> None:
    assert refusal(call("1", "read", args)) == reason


@pytest.mark.covers("loop-22")
@pytest.mark.parametrize(
    ("args", "key"),
    [
        ('{"path":"a","path":"b"}', "path"),
        ('{"Path":"a"}', "Path"),
        ('{"path":"a","PATH":"b"}', "PATH"),
        ('{"edits":[{"old":"a"},{"old":"b","old":"c"}]}', "old"),
        ('{"edits":[{"Old":"a"}]}', "Old"),
        ('{"env":{"X":{"value":"1","value":"2"}}}', "value"),
        ('{"env":{"X":{"VALUE":"1"}}}', "VALUE"),
        ('{"other":{"a":1,"a":2}}', "a"),
        ('{"env":{"PATH":{},"Path":{}}}', None),
        ('{"other":{"a":1,"A":2}}', None),
        ('{"path":"a","edits":[],"env":{}}', None),
    ],
)
def test_input_that_two_readers_could_read_differently_is_refused(
    args: str, key: str | None
) -> None:
    assert find_ambiguous_key(Raw(args.encode()), SCHEMA) == key
    said = refusal(call("1", "read", args))
    assert said is None if key is None else said is not None and repr(key) in said


def test_input_of_other_peoples_tools_is_theirs_to_judge() -> None:
    box = msgspec.structs.replace(BOX, lenient=frozenset({"read"}))
    assert refusal(call("1", "read", '{"path":"a","path":"b"}'), box) is None
    assert refusal(call("1", "read", "[]"), box) == ARGS_NOT_OBJECT_TEXT


def test_a_schema_that_cannot_be_read_still_refuses_a_key_that_comes_twice() -> None:
    assert find_ambiguous_key(Raw(b'{"a":1,"a":2}'), Raw(b"nonsense")) == "a"
    assert find_ambiguous_key(Raw(b'{"a":1}'), Raw(b"[]")) is None
    assert find_ambiguous_key(Raw(b"nonsense"), SCHEMA) is None
    assert find_ambiguous_key(UNSET, SCHEMA) is None


@pytest.mark.covers("loop-19")
def test_results_are_told_in_the_order_of_the_calls() -> None:
    def done(one: ToolCallPart) -> AnsweredCall:
        return AnsweredCall(call_id=one.tool_call_id, name="x", output=ToolOutput(text="x"))

    one, two, three = call("1"), call("2"), call("3")
    assert sort_by_call([one, two, three], [done(three), done(one)]) == [done(one), done(three)]
