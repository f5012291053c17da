"""Planning a tool batch: which calls run in which order, and which are rejected."""

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct

from chatd.domain.answer.answer import sort_by_call
from chatd.domain.answer.tool_calls import (
    ARGS_NOT_JSON_TEXT,
    ARGS_NOT_OBJECT_TEXT,
    CUT_CALL_TEXT,
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

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description="", input_schema=SCHEMA)


TOOLS = {
    tool.name: tool
    for tool in (
        FakeTool(name="read"),
        FakeTool(name="write"),
        FakeTool(name="find", serial=True),
        FakeTool(name="plan"),
    )
}
TOOL_SET = ToolSet(tools=TOOLS, aliases={"cat": "read", "gone": "nowhere"})


def planned(*calls: ToolCallPart, tools: ToolSet = TOOL_SET) -> dict[str, list[str]]:
    batch = plan_batch(calls, tools)
    return {
        "concurrent": [call.tool_call_id for call in batch.concurrent],
        "serial": [call.tool_call_id for call in batch.serial],
        "rejected": [answer.call_id for answer in batch.rejected],
    }


def rejection(one: ToolCallPart, tools: ToolSet = TOOL_SET) -> str | None:
    """Why a call is rejected; None if it runs."""
    batch = plan_batch([one], tools)
    assert all(answer.output.is_error for answer in batch.rejected)
    return batch.rejected[0].output.text if batch.rejected else None


@pytest.mark.covers("loop-19")
def test_calls_run_concurrently_and_serial_ones_afterwards_in_order() -> None:
    plan = planned(call("1", "find"), call("2", "read"), call("3", "find"), call("4", "write"))
    assert plan == {"concurrent": ["2", "4"], "serial": ["1", "3"], "rejected": []}


def test_provider_executed_calls_are_left_out() -> None:
    search = call("1", "web_search", provider_executed=True)
    assert plan_batch([search], TOOL_SET) == ToolBatch()
    beside = planned(search, call("2", "plan"))
    assert beside == {"concurrent": ["2"], "serial": [], "rejected": []}


@pytest.mark.covers("loop-21")
def test_an_alias_finds_the_tool() -> None:
    (found,) = plan_batch([call("1", "cat")], TOOL_SET).concurrent
    assert (found.tool_name, found.tool_call_id) == ("read", "1")


@pytest.mark.covers("loop-21")
def test_an_alias_of_a_missing_tool_is_unknown() -> None:
    assert rejection(call("1", "gone")) == (
        "There is no tool named 'gone'. Tools: find, plan, read, write."
    )


@pytest.mark.covers("loop-21")
def test_an_unknown_name_is_rejected_with_the_known_names() -> None:
    assert (
        rejection(call("1", "rm"), ToolSet(tools={})) == "There is no tool named 'rm'. Tools: none."
    )
    many = {f"t{index:03}": FakeTool(name="t") for index in range(200)}
    text = rejection(call("1", "rm"), ToolSet(tools=many))
    assert text is not None
    assert text.endswith("t049, and 150 more.")


@pytest.mark.covers("loop-21")
def test_a_refused_tool_is_rejected_even_by_its_alias() -> None:
    refused = dict.fromkeys(("find", "plan", "read", "open_page"), "Not run.")
    tools = msgspec.structs.replace(TOOL_SET, refused=refused)
    assert rejection(call("1", "read"), tools) == "Not run."
    assert rejection(call("1", "cat"), tools) == "Not run."
    assert rejection(call("1", "open_page"), tools) == "Not run."
    assert rejection(call("1", "write"), tools) is None
    assert rejection(call("1", "rm"), tools) == "There is no tool named 'rm'. Tools: write."


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
    assert rejection(call("1", "read", args)) == reason


def test_a_call_of_a_cut_answer_is_rejected_also_with_whole_arguments() -> None:
    cut = msgspec.structs.replace(call("1", "read", '{"path":"x"}'), cut=True)
    assert rejection(cut) == CUT_CALL_TEXT


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
def test_ambiguous_arguments_are_rejected(args: str, key: str | None) -> None:
    assert find_ambiguous_key(Raw(args.encode()), SCHEMA) == key
    text = rejection(call("1", "read", args))
    assert text is None if key is None else text is not None and repr(key) in text


def test_a_lenient_tool_checks_its_own_arguments() -> None:
    tools = msgspec.structs.replace(TOOL_SET, lenient=frozenset({"read"}))
    assert rejection(call("1", "read", '{"path":"a","path":"b"}'), tools) is None
    assert rejection(call("1", "read", "[]"), tools) == ARGS_NOT_OBJECT_TEXT


def test_a_duplicate_key_is_rejected_even_with_an_unreadable_schema() -> None:
    assert find_ambiguous_key(Raw(b'{"a":1,"a":2}'), Raw(b"nonsense")) == "a"
    assert find_ambiguous_key(Raw(b'{"a":1}'), Raw(b"[]")) is None
    assert find_ambiguous_key(Raw(b"nonsense"), SCHEMA) is None
    assert find_ambiguous_key(UNSET, SCHEMA) is None


@pytest.mark.covers("loop-19")
def test_results_are_sorted_by_call() -> None:
    def done(one: ToolCallPart) -> AnsweredCall:
        return AnsweredCall(call_id=one.tool_call_id, name="x", output=ToolOutput(text="x"))

    one, two, three = call("1"), call("2"), call("3")
    assert sort_by_call([one, two, three], [done(three), done(one)]) == [done(one), done(three)]
