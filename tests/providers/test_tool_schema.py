"""Tool schemas and names that every provider accepts."""

import re
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from chatd.domain.model.protocol import ToolSpec
from chatd.providers.tool_schema import (
    MAX_KEPT_SCHEMA_BYTES,
    ToolNames,
    close_schema,
    encode_schema,
    normalize_schema,
    sort_by_name,
)
from tests.support.run_length import fuzzed

Schema = dict[str, object]

EMPTY: Schema = {"type": "object", "properties": {}}


def normal(schema: object) -> dict[str, object]:
    return normalize_schema(Raw(msgspec.json.encode(schema)))


def inner(schema: object) -> object:
    """The normalized schema of a property."""
    properties = normal({"type": "object", "properties": {"p": schema}})["properties"]
    return msgspec.convert(properties, dict[str, object])["p"]


@pytest.mark.covers("providers-21")
@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"null",
        b"true",
        b"[]",
        b'"object"',
        b"{",
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"type":"object"}',
        b'{"type":"object","properties":null}',
        b'{"type":"object","properties":{}}',
        b'{"type":"object","properties":[],"required":null}',
        b'{"type":"object","required":[]}',
        b'{"type":["object"],"required":true}',
        b'{"type":["object","null"]}',
        b'{"$ref":"https://x.org/schema"}',
        b'{"type":"string"}',
        b'{"type":7}',
    ],
)
def test_every_schema_becomes_a_schema_of_an_object(raw: bytes) -> None:
    assert normalize_schema(Raw(raw)) == EMPTY


def test_required_stays_if_it_is_not_empty() -> None:
    schema: Schema = {"type": "object", "properties": {"a": {}}, "required": ["a", 7]}
    assert normal(schema) == {"type": "object", "properties": {"a": {}}, "required": ["a"]}


SHORT_LIST: Schema = {"items": {"type": "string"}, "maxItems": 3}
MAYBE_INTEGER: Schema = {"type": ["integer", "null"]}
NORMAL_INTEGER: Schema = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
NORMAL_OBJECT: Schema = {"type": "object", "properties": {"a": NORMAL_INTEGER}}

CASES: list[tuple[object, object]] = [
    ({"type": "string", "enum": ["a"]}, {"type": "string", "enum": ["a"]}),
    ({"type": ["string"]}, {"type": "string"}),
    ({"type": ["string", "string"]}, {"type": "string"}),
    ({"type": []}, {}),
    ({"type": None}, {}),
    ({"type": "array"}, {"type": "array", "items": {}}),
    ({"type": ["array"]}, {"type": "array", "items": {}}),
    ({"type": "array", "items": None}, {"type": "array", "items": {}}),
    (
        {"type": "array", "items": [{"type": ["array"]}]},
        {"type": "array", "items": [{"type": "array", "items": {}}]},
    ),
    (
        {"type": ["string", "null"], "description": "D", "minLength": 1},
        {"description": "D", "minLength": 1, "anyOf": [{"type": "string"}, {"type": "null"}]},
    ),
    (
        {"type": ["array", "null"], **SHORT_LIST},
        {"anyOf": [{"type": "array", **SHORT_LIST}, {"type": "null"}]},
    ),
    (
        {"type": ["object", "array"], "properties": {"a": MAYBE_INTEGER}, "required": ["a"]},
        {"anyOf": [{**NORMAL_OBJECT, "required": ["a"]}, {"type": "array", "items": {}}]},
    ),
    (
        {"type": ["string", "null"], "anyOf": [{"minLength": 1}], "allOf": [{"maxLength": 9}]},
        {
            "allOf": [{"maxLength": 9}, {"anyOf": [{"minLength": 1}]}],
            "anyOf": [{"type": "string"}, {"type": "null"}],
        },
    ),
    ({"anyOf": [{"type": "array"}]}, {"anyOf": [{"type": "array", "items": {}}]}),
    ({"anyOf": []}, {}),
    ({"oneOf": None}, {}),
    ({"additionalProperties": False}, {"additionalProperties": False}),
    ({"not": {"type": "array"}}, {"not": {"type": "array", "items": {}}}),
    ({"properties": None}, {"properties": {}}),
    (
        {"properties": {"type": {"type": "array"}}},
        {"properties": {"type": {"type": "array", "items": {}}}},
    ),
    (True, True),
    ("nonsense", {}),
]


@pytest.mark.covers("providers-21")
@pytest.mark.parametrize(("given", "made"), CASES)
def test_rejected_forms_are_repaired_at_any_depth(given: object, made: object) -> None:
    assert inner(given) == made
    assert normal({"$defs": {"x": given}})["$defs"] == {"x": made}


@pytest.mark.parametrize("key", ["enum", "const", "default", "examples", "x-extension"])
def test_plain_values_are_not_changed(key: str) -> None:
    value = [{"type": ["string", "null"], "required": []}, {"type": "array"}]
    assert inner({key: value}) == {key: value}


def test_a_property_may_have_any_name() -> None:
    names = ["type", "required", "items", "properties", "enum", "$ref"]
    properties = {name: {"type": "string"} for name in names}
    assert normal({"properties": properties})["properties"] == properties


def test_very_deep_schemas_are_cut() -> None:
    deep: object = {"type": "string"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    cut = inner(deep)
    depth = 0
    while isinstance(cut, dict):
        cut = msgspec.convert(cut, dict[str, object]).get("items")
        depth += 1
    assert 50 < depth < 70


# At the top


def test_a_reference_at_the_top_is_followed() -> None:
    args = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]}
    schema = {"$ref": "#/$defs/Args", "$defs": {"Args": args, "A": {"type": "string"}}}
    made = normal(schema)
    assert made["properties"] == args["properties"]
    assert made["required"] == ["a"]
    assert "$ref" not in made


@pytest.mark.parametrize("reference", ["#/$defs/None", "https://x.org/a", 7, "#/$defs/Loop"])
def test_a_reference_without_a_target_is_dropped(reference: object) -> None:
    made = normal({"$ref": reference, "$defs": {"Loop": {"$ref": "#/$defs/Loop"}}})
    assert (made["type"], "$ref" in made) == ("object", False)


def test_a_choice_at_the_top_becomes_one_object_that_takes_either() -> None:
    one = {"properties": {"a": {"type": "string"}, "c": {}}, "required": ["a", "c"]}
    other = {"properties": {"b": {"type": "array"}, "c": {}}, "required": ["b", "c"]}
    expected: Schema = {
        "a": {"type": "string"},
        "b": {"type": "array", "items": {}},
        "c": {},
        "d": {},
    }
    for key in ("anyOf", "oneOf"):
        made = normal({key: [one, other], "properties": {"d": {}}, "required": ["d"]})
        assert made["properties"] == expected
        assert made["required"] == ["d", "c"]
        assert key not in made


def test_all_of_at_the_top_becomes_one_object_that_requires_all() -> None:
    one: Schema = {"properties": {"a": {}}, "required": ["a"]}
    made = normal({"allOf": [one, {"$ref": "#/$defs/B"}], "$defs": {"B": {"required": ["b"]}}})
    assert made["required"] == ["a", "b"]
    assert "allOf" not in made


def test_the_schema_of_an_answer_is_closed_at_every_depth() -> None:
    schema: Schema = {
        "properties": {
            "a": {"type": "array", "items": {"type": "object", "properties": {"b": {}}}},
            "c": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        }
    }
    assert close_schema(Raw(msgspec.json.encode(schema))) == {
        "type": "object",
        "properties": {
            "a": {
                "type": "array",
                "items": {"type": "object", "properties": {"b": {}}, "additionalProperties": False},
            },
            "c": {"anyOf": [{"type": "object", "additionalProperties": False}, {"type": "null"}]},
        },
        "additionalProperties": False,
    }


def test_values_in_the_schema_of_an_answer_are_unchanged() -> None:
    schema = Raw(b'{"properties":{"a":{"default":{"type":"object"}}}}')
    assert close_schema(schema)["properties"] == {"a": {"default": {"type": "object"}}}


WORDS: list[object] = [
    *("type", "properties", "required", "items", "anyOf", "allOf", "$ref", "enum", "$defs", "not"),
    *("object", "array", "string", "#/$defs/a", "a", None, True, 7),
]


def any_schema(random: Random, depth: int) -> object:
    choice = random.random()
    if depth == 0 or choice < 0.3:
        return random.choice(WORDS)
    if choice < 0.5:
        return [any_schema(random, depth - 1) for _ in range(random.randint(0, 3))]
    return {
        str(random.choice(WORDS)): any_schema(random, depth - 1)
        for _ in range(random.randint(0, 5))
    }


@fuzzed
@given(st.integers(0, 2**32))
def test_any_schema_can_be_normalized_and_stays_so(seed: int) -> None:
    once = normal(any_schema(Random(seed), 6))
    assert once["type"] == "object"
    assert isinstance(once["properties"], dict)
    assert not {"anyOf", "oneOf", "allOf"} & set(once)
    assert normal(once) == once


def test_tools_have_a_stable_order() -> None:
    tools = [ToolSpec(name=n, description="", input_schema=Raw(b"{}")) for n in ("b", "a", "C")]
    assert [tool.name for tool in sort_by_name(tools)] == ["C", "a", "b"]


# Names


def test_a_valid_name_is_unchanged() -> None:
    names = ToolNames(["read_file", "a-b", "X" * 128])
    for name in ("read_file", "a-b", "X" * 128):
        assert names.to_wire(name) == name
        assert names.from_wire(name) == name


@pytest.mark.covers("providers-21")
def test_an_invalid_name_is_changed_and_translated_back() -> None:
    names = ToolNames(["mcp.server/do it", "", "ünï", "x" * 200])
    for name in ("mcp.server/do it", "", "ünï", "x" * 200):
        wire = names.to_wire(name)
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,128}", wire)
        assert names.from_wire(wire) == name


def test_names_that_collide_are_made_unique() -> None:
    sent = ["a.b", "a b", "a_b", "a/b", "x" * 130, "x" * 131]
    names = ToolNames(sent)
    assert names.to_wire("a_b") == "a_b"
    wires = {names.to_wire(name) for name in sent}
    assert len(wires) == len(sent)
    assert {names.from_wire(wire) for wire in wires} == set(sent)


def test_the_names_do_not_depend_on_the_order_of_tools() -> None:
    sent = ["a.b", "a b", "a_b", "a/b"]
    one, other = ToolNames(sent), ToolNames(reversed(sent))
    assert [one.to_wire(name) for name in sent] == [other.to_wire(name) for name in sent]


def test_a_reserved_name_is_avoided() -> None:
    names = ToolNames(["computer", "web.search"], reserved={"computer", "web_search"})
    for name in ("computer", "web.search"):
        assert names.to_wire(name) not in ("computer", "web_search")
        assert names.from_wire(names.to_wire(name)) == name


def test_a_shorter_limit_is_respected() -> None:
    names = ToolNames(["x" * 64, "x" * 65], max_chars=64)
    assert names.to_wire("x" * 64) == "x" * 64
    assert len(names.to_wire("x" * 65)) <= 64


def test_unknown_names_are_made_valid() -> None:
    names = ToolNames(["now"])
    assert names.to_wire("gone.tool") == "gone_tool"
    assert names.from_wire("invented") == "invented"


@pytest.mark.parametrize("size", [10, MAX_KEPT_SCHEMA_BYTES])
def test_an_encoded_schema_is_the_normalized_one(size: int) -> None:
    schema = Raw(msgspec.json.encode({"type": "object", "title": "x" * size, "required": 3}))
    expected = msgspec.json.encode(normalize_schema(schema))
    assert bytes(encode_schema(schema)) == bytes(encode_schema(schema)) == expected


def test_kept_tool_names_are_those_of_the_same_tools() -> None:
    one, other = ToolNames.of(("a b", "a_b")), ToolNames.of(("a b", "a_b"), reserved=("a_b",))
    assert one is ToolNames.of(("a b", "a_b"))
    assert one.to_wire("a_b") == "a_b" != other.to_wire("a_b")
