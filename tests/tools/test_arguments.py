"""Which arguments the reader accepts from a model, its errors, and the schema."""

from typing import Annotated, Any, TypeVar

import msgspec
import pytest
from msgspec import Raw, Struct, field

from chatd.domain.errors import ToolError
from chatd.tools.tool import (
    AT_LEAST_1,
    NOT_BLANK,
    RETRY_ADVICE_TEXT,
    SUBAGENT_ADVICE_TEXT,
    Ignored,
    Seconds,
    argument,
    parse_duration,
    read_arguments,
    schema_of,
    subagent_text,
)

A = TypeVar("A", bound=Struct)


class Item(Struct, frozen=True, kw_only=True):
    path: Annotated[str, NOT_BLANK, argument("A path.", "an absolute path.")]


class Items(Struct, frozen=True, kw_only=True):
    files: Annotated[list[Item], argument("Files.", "each a file.")]


class Values(Struct, frozen=True, kw_only=True):
    limit: Annotated[int, AT_LEAST_1, argument("A limit.")] = 7
    all: Annotated[bool, argument("All.")] = False
    timeout: Annotated[Seconds, argument("A timeout.")] = 10.0
    parameters: Annotated[dict[str, str], argument("Parameters.")] = field(
        default_factory=dict[str, str]
    )
    text: Annotated[str, argument("A text.", former_name="words")] = ""
    intent: Annotated[Ignored, argument("An intent.")] = None


def read(kind: type[A], **values: object) -> A:
    return read_arguments(kind, Raw(msgspec.json.encode(values)))


def refused(kind: type[Struct], **values: object) -> str:
    with pytest.raises(ToolError) as caught:
        read(kind, **values)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("2h", 7200),
        ("1.5s", 1.5),
        ("45", 45),
        ("0s", 0),
        (" 5s ", 5),
        ("", None),
        ("soon", None),
        ("-5s", None),
        ("5 s", None),
        ("5d", None),
        ("s", None),
    ],
)
def test_a_duration_is_parsed(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("given", "number"), [(None, 7), (3, 3), (3.0, 3), ("12", 12), (" 12 ", 12)]
)
def test_an_integer_is_accepted_as_number_or_text(given: object, number: int) -> None:
    assert read(Values, limit=given).limit == number


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (0, "limit must be at least 1, not 0."),
        (-4, "limit must be at least 1, not -4."),
        (1.5, "limit must be a whole number, not 1.5."),
        ("many", 'limit must be a whole number, not "many".'),
        (True, "limit must be a whole number, not true."),
        ([1], "limit must be a whole number, not a list."),
        ("x" * 99, f'limit must be a whole number, not "{"x" * 60}…".'),
    ],
)
def test_an_error_names_argument_type_and_value(given: object, error: str) -> None:
    assert refused(Values, limit=given) == error


@pytest.mark.parametrize("given", [None, "", "  "])
def test_a_missing_text_is_required_with_a_hint(given: object) -> None:
    assert refused(Item, path=given) == "path is required: an absolute path."


@pytest.mark.parametrize(
    ("given", "flag"),
    [(None, False), (True, True), (False, False), ("true", True), ("False", False)],
)
def test_a_flag_is_accepted_as_text(*, given: object, flag: bool) -> None:
    assert read(Values, all=given).all is flag


def test_a_number_is_not_a_flag() -> None:
    assert refused(Values, all=1) == "all must be true or false, not 1."


def test_a_duration_may_be_a_number_of_seconds() -> None:
    assert read(Values, timeout=30).timeout == 30
    assert read(Values).timeout == 10


@pytest.mark.parametrize("given", ["later", -1, True, [], {}])
def test_an_error_shows_what_a_duration_looks_like(given: object) -> None:
    assert refused(Values, timeout=given).startswith('timeout must be a duration such as "30s"')


def test_an_error_names_the_item_of_a_list() -> None:
    assert read(Items, files=[{"path": "/a"}]).files[0].path == "/a"
    error = refused(Items, files=[{"path": "/a"}, {"path": 3}])
    assert error == "files[1].path must be a string, not 3."


@pytest.mark.parametrize("given", [None, [], "x", {}])
def test_a_list_must_not_be_empty(given: object) -> None:
    assert refused(Items, files=given) == "files must be a list that is not empty: each a file."


def test_an_item_must_be_an_object() -> None:
    assert refused(Items, files=["/a"]) == 'files[0] must be an object, not "/a".'


def test_numbers_and_flags_in_a_map_of_texts_are_converted() -> None:
    found = read(Values, parameters={"a": "x", "b": 2, "c": True, "d": 1.5}).parameters
    assert found == {"a": "x", "b": "2", "c": "true", "d": "1.5"}


def test_a_map_of_texts_refuses_lists() -> None:
    refusal = refused(Values, parameters={"a": [1]})
    assert refusal == "parameters.a must be a string, not a list."
    refusal = refused(Values, parameters=[])
    assert refusal == "parameters must be an object of strings, not a list."


def test_a_former_name_is_read_where_the_name_is_missing() -> None:
    assert read(Values, words="old").text == "old"
    assert read(Values, words="old", text="new").text == "new"


def test_ignored_and_unknown_arguments_may_be_anything() -> None:
    assert read(Values, intent=3, invented=[1], limit=2).limit == 2


def test_the_schema_has_types_descriptions_and_required_names() -> None:
    assert msgspec.json.decode(schema_of(Items)) == {
        "type": "object",
        "properties": {
            "files": {
                "type": "array",
                "description": "Files.",
                "items": {
                    "type": "object",
                    "properties": {"path": {"type": "string", "description": "A path."}},
                    "required": ["path"],
                },
            }
        },
        "required": ["files"],
    }
    values = msgspec.json.decode(schema_of(Values), type=dict[str, Any])
    assert values["properties"]["timeout"] == {
        "type": ["string", "number"],
        "description": "A timeout.",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "This chat has no workspace. Call list_templates, then create_workspace.",
            f"This chat has no workspace. {SUBAGENT_ADVICE_TEXT}",
        ),
        (f"It is gone. {RETRY_ADVICE_TEXT}", f"It is gone. {SUBAGENT_ADVICE_TEXT}"),
        ("There is no file a.py. Look at the directory.",) * 2,
    ],
)
def test_a_subagent_is_not_advised_to_call_tools_that_it_lacks(text: str, expected: str) -> None:
    assert subagent_text(text) == expected
