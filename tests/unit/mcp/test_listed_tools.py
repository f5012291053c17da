"""Tools as MCP servers list them: schemas that providers accept, effects, wrapped arguments."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.mcp.tools import (
    MAX_SCHEMA_BYTES,
    MAX_TOOLS_PER_SERVER,
    ToolList,
    effect_of,
    normalise_schema,
    read_listed_tool,
    unwrap_intent,
    wrap_with_intent,
)


def parsed(raw: Raw) -> object:
    return msgspec.json.decode(raw)


@pytest.mark.parametrize("missing", [None, "absent"])
def test_required_and_properties_are_never_null(missing: str | None) -> None:
    schema = {} if missing else {"required": None, "properties": None, "type": None}
    assert parsed(normalise_schema(schema)) == {"type": "object", "properties": {}, "required": []}


def test_a_schema_keeps_what_it_says() -> None:
    schema: dict[str, object] = {
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "$defs": {"x": {}},
    }
    assert parsed(normalise_schema(schema)) == {"type": "object", **schema}


@pytest.mark.parametrize("entry", [None, "a", {}, {"name": ""}, {"name": 1}, {"name": "x" * 300}])
def test_an_entry_without_a_usable_name_is_left_out(entry: object) -> None:
    assert read_listed_tool(entry) is None


def test_a_tool_with_a_huge_schema_is_left_out() -> None:
    schema = {"properties": {"a": {"description": "x" * MAX_SCHEMA_BYTES}}}
    assert read_listed_tool({"name": "big", "inputSchema": schema}) is None


def test_a_list_has_limits_and_keeps_the_first_of_one_name() -> None:
    listed = ToolList()
    for number in range(MAX_TOOLS_PER_SERVER + 5):
        listed.add({"name": f"t{number:04}", "description": str(number)})
        listed.add({"name": "t0000", "description": "again"})
    assert len(listed.tools()) == MAX_TOOLS_PER_SERVER
    assert listed.tools()[0].description == "0"
    large = ToolList()
    schema = {"properties": {"a": {"description": "x" * (MAX_SCHEMA_BYTES - 200)}}}
    for number in range(200):
        large.add({"name": f"t{number}", "inputSchema": schema})
    assert large.is_full
    assert len(large.tools()) == 65


def test_the_title_stands_in_for_a_missing_description() -> None:
    tool = read_listed_tool({"name": "t", "title": "The title", "description": " "})
    assert tool is not None
    assert tool.description == "The title"


@pytest.mark.parametrize(
    ("annotations", "effect"),
    [
        (None, "once"),
        ({}, "once"),
        ({"readOnlyHint": True}, "read"),
        ({"idempotentHint": True}, "idempotent"),
        ({"readOnlyHint": False, "destructiveHint": False}, "once"),
        ({"readOnlyHint": "true"}, "once"),
    ],
)
def test_hints_say_whether_a_repeated_call_is_harmless(annotations: object, effect: str) -> None:
    assert effect_of(annotations) == effect


def test_a_wrapped_schema_asks_for_the_intent_and_the_arguments() -> None:
    inner = normalise_schema({"properties": {"a": {"type": "string"}}})
    wrapped = msgspec.json.decode(wrap_with_intent(inner), type=dict[str, object])
    assert wrapped["required"] == ["model_intent", "properties"]
    assert wrapped["properties"] == {
        "model_intent": {
            "type": "string",
            "description": "Why you call this tool, in one short sentence for the user.",
        },
        "properties": parsed(inner),
    }


@pytest.mark.parametrize(
    ("args", "inner"),
    [
        (b'{"model_intent":"why","properties":{"a":1}}', b'{"a":1}'),
        (b'{"properties":{"a":1}}', b'{"a":1}'),
        (b'{"model_intent":"why","a":1}', b'{"a":1}'),
        (b'{"a":1}', b'{"a":1}'),
        (b'{"a":1,"properties":{"b":2}}', b'{"a":1,"properties":{"b":2}}'),
        (b"not json", b"not json"),
        (b"[1]", b"[1]"),
    ],
    ids=["wrapped", "no intent", "flat", "plain", "a tool's own properties", "no JSON", "a list"],
)
def test_wrapped_arguments_are_unwrapped_and_flat_ones_accepted(args: bytes, inner: bytes) -> None:
    assert bytes(unwrap_intent(Raw(args))) == inner
