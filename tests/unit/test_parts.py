"""Parts: one JSON shape for storage and wire, public parts, unknown parts."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from chatd.domain.chat.messages import decode_parts, encode_parts, public_part, public_parts
from chatd.domain.chat.parts import (
    BoundaryPart,
    CommandPart,
    ContextFilePart,
    FilePart,
    FileReferencePart,
    InstructionPart,
    NoticePart,
    Part,
    ReasoningPart,
    SkillPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
    validate_json,
)
from chatd.domain.ids import ToolCallId
from tests.support.factories import call, result

METADATA = Raw(b'{"signature":"s"}')

EVERY_KIND: list[tuple[Part, str]] = [
    (TextPart(text="hello"), '{"type":"text","text":"hello"}'),
    (ReasoningPart(text="hm"), '{"type":"reasoning","text":"hm"}'),
    (
        call("c1", args='{"command": "ls"}'),
        '{"type":"tool-call","tool_call_id":"c1","tool_name":"execute","args":{"command": "ls"}}',
    ),
    (
        call("c1", args=None),
        '{"type":"tool-call","tool_call_id":"c1","tool_name":"execute"}',
    ),
    (
        result("c1", "t", output="1", is_error=True),
        '{"type":"tool-result","tool_call_id":"c1","tool_name":"t","result":1,"is_error":true}',
    ),
    (
        SourcePart(url="https://example.org", title="A page"),
        '{"type":"source","url":"https://example.org","title":"A page"}',
    ),
    (
        FilePart(media_type="image/png", data="aGk="),
        '{"type":"file","media_type":"image/png","data":"aGk="}',
    ),
    (
        FileReferencePart(file_name="a.py", start_line=1, end_line=2, content="x"),
        '{"type":"file-reference","file_name":"a.py","start_line":1,"end_line":2,"content":"x"}',
    ),
    (CommandPart(command="make test"), '{"type":"command","command":"make test"}'),
    (
        ContextFilePart(context_file_path="/a"),
        '{"type":"context-file","context_file_path":"/a"}',
    ),
    (SkillPart(skill_name="cook"), '{"type":"skill","skill_name":"cook"}'),
    (
        InstructionPart(section="workspace", text="It runs."),
        '{"type":"instruction","section":"workspace","text":"It runs."}',
    ),
    (BoundaryPart(kept=3, keeps_prompt=True), '{"type":"boundary","kept":3,"keeps_prompt":true}'),
    (
        NoticePart(code="step_limit", text="It ended.", detail={"steps": "3"}),
        '{"type":"notice","code":"step_limit","text":"It ended.","detail":{"steps":"3"}}',
    ),
]


@pytest.mark.parametrize(("part", "json"), EVERY_KIND)
def test_a_part_is_written_and_read_as_one_shape(part: Part, json: str) -> None:
    assert encode_parts([part]) == f"[{json}]"
    assert decode_parts(f"[{json}]") == (part,)
    assert decode_parts(f"[{json}]".encode()) == (part,)


def test_every_kind_of_part_is_tested() -> None:
    tried = {type(part) for part, _ in EVERY_KIND}
    assert tried | {UnknownPart} == set(Part.__args__)


def test_arguments_and_results_come_back_byte_for_byte() -> None:
    odd = '{"b":1,   "a":[1.50, "\\u00e9\\u0000"]}'
    content = encode_parts([call("c1", args=odd), result("c1", output=odd)])
    first, second = decode_parts(content)
    assert isinstance(first, ToolCallPart)
    assert isinstance(second, ToolResultPart)
    assert bytes(first.args or b"") == bytes(second.result or b"") == odd.encode()


# Unknown kinds


def test_a_part_of_an_unknown_kind_is_written_back_byte_for_byte() -> None:
    content = (
        '[{"type":"text","text":"a"},{"type":"hologram",  "deep":[1]},{"type":"text","text":"b"}]'
    )
    parts = decode_parts(content)
    assert [type(part) for part in parts] == [TextPart, UnknownPart, TextPart]
    assert encode_parts(parts) == content


@pytest.mark.parametrize("odd", ['{"type":"text"}', '{"type":"text","text":1}', "{}", "7", "null"])
def test_a_malformed_part_is_kept_and_hidden(odd: str) -> None:
    (part,) = decode_parts(f"[{odd}]")
    assert isinstance(part, UnknownPart)
    assert encode_parts([part]) == f"[{odd}]"
    assert public_part(part) is None


@pytest.mark.parametrize("content", ["", "{}", "7", "[", '[{"type":"text","text":"a"}'])
def test_content_that_is_no_array_is_an_error(content: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_parts(content)


# Text that cannot be stored


@pytest.mark.parametrize(
    ("words", "stored"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\x00b", "a\x00b"),
        ("plain é", "plain é"),
    ],
)
def test_lone_surrogates_are_replaced_in_stored_text(words: str, stored: str) -> None:
    assert decode_parts(encode_parts([TextPart(text=words)])) == (TextPart(text=stored),)


def test_cleaning_one_part_leaves_the_others_alone() -> None:
    opaque = UnknownPart(raw=Raw(b'{"type":"hologram","x":1}'))
    parts = [TextPart(text="\ud800", provider_metadata=METADATA), opaque, call("c\ud800")]
    assert decode_parts(encode_parts(parts)) == (
        TextPart(text="\ufffd", provider_metadata=METADATA),
        opaque,
        call("c\ufffd"),
    )


@given(st.text(alphabet=st.characters()))
@settings(max_examples=200, derandomize=True, database=None, deadline=None)
def test_any_text_can_be_stored(words: str) -> None:
    (part,) = decode_parts(encode_parts([TextPart(text=words)]))
    assert isinstance(part, TextPart)
    assert len(part.text) <= len(words)


# JSON of clients


@pytest.mark.parametrize(
    "text", ["{}", "null", ' {"a": [1, 2.50]} ', '"\\u0000"', "[" * 50 + "]" * 50]
)
def test_valid_json_is_kept_as_sent(text: str) -> None:
    assert bytes(validate_json(text)) == text.encode()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("NaN", "not JSON"),
        ("1],[2", "not JSON"),
        ("1 2", "not JSON"),
        ('"\ud800"', "not JSON"),
        ('"\\ud800"', "not JSON"),
        ("[" * 700 + "]" * 700, "nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ],
    ids=range(9),
)
def test_invalid_or_deeply_nested_json_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        validate_json(text)


# Public parts


@pytest.mark.parametrize(
    ("part", "public"),
    [
        (TextPart(text="a", provider_metadata=METADATA), TextPart(text="a")),
        (ReasoningPart(text="a", provider_metadata=METADATA), ReasoningPart(text="a")),
        (call("c1", provider_metadata=METADATA), call("c1")),
        (result("c1", provider_metadata=METADATA), result("c1")),
        (
            FilePart(media_type="image/png", file_id="f", data="aGk="),
            FilePart(media_type="image/png", file_id="f"),
        ),
        (
            FilePart(media_type="image/png", data="aGk="),
            FilePart(media_type="image/png", data="aGk="),
        ),
        (
            ContextFilePart(
                context_file_path="/a",
                context_file_truncated=True,
                context_file_content="secret",
                context_file_os="linux",
                context_file_directory="/",
            ),
            ContextFilePart(context_file_path="/a", context_file_truncated=True),
        ),
        (SkillPart(skill_name="cook", skill_dir="/s"), SkillPart(skill_name="cook")),
        (SourcePart(url="https://example.org"), SourcePart(url="https://example.org")),
        (
            FileReferencePart(file_name="a", start_line=1, end_line=1, content="x"),
            FileReferencePart(file_name="a", start_line=1, end_line=1, content="x"),
        ),
    ],
)
def test_a_public_part_lacks_internal_fields(part: Part, public: Part) -> None:
    assert public_part(part) == public
    assert public_parts([part]) == (public,)


def test_unknown_parts_are_hidden() -> None:
    hidden = UnknownPart(raw=Raw(b'{"type":"hologram"}'))
    assert public_parts([hidden, TextPart(text="a"), hidden]) == (TextPart(text="a"),)


def test_public_parts_have_no_provider_metadata() -> None:
    parts: list[Part] = [
        TextPart(text="a", provider_metadata=METADATA),
        ToolCallPart(tool_call_id=ToolCallId("c"), tool_name="t", provider_metadata=METADATA),
    ]
    assert "signature" not in encode_parts(public_parts(parts))
    assert all(
        part.provider_metadata is UNSET
        for part in public_parts(parts)
        if isinstance(part, TextPart | ToolCallPart)
    )
