"""What of a message leaves the server by a public link, part by part."""

from collections.abc import Mapping
from typing import Final, cast

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import (
    SUMMARY_TOOL_NAME,
    BoundaryPart,
    CommandPart,
    ContextFilePart,
    FilePart,
    FileReferencePart,
    InstructionPart,
    KnownPart,
    NoticePart,
    Part,
    ReasoningPart,
    SkillPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
)
from chatd.domain.chat_views.public_links import (
    MAX_SHARED_TOOL_CHARS,
    LinkChoices,
    require_link_rules,
    shared_file_part,
    shared_message,
)
from chatd.domain.description import FILE_ID
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ToolCallId
from tests.support.factories import message, text

CALL: Final = ToolCallId("call-id-1")
TEXTS: Final = LinkChoices()
ALL: Final = LinkChoices(with_tools=True, with_files=True)
METADATA: Final = Raw(b'{"internal": "SECRET-metadata"}')

PARTS: Final[tuple[tuple[Part, object, object], ...]] = (
    (
        TextPart(text="hello", provider_metadata=METADATA),
        {"type": "text", "text": "hello"},
        {"type": "text", "text": "hello"},
    ),
    (TextPart(text="  \n"), None, None),
    (ReasoningPart(text="SECRET-thought", provider_metadata=METADATA), None, None),
    (
        SourcePart(url="https://example.com/", source_id="SECRET-id"),
        {"type": "source", "url": "https://example.com/", "title": "https://example.com/"},
        {"type": "source", "url": "https://example.com/", "title": "https://example.com/"},
    ),
    (
        ToolCallPart(
            tool_call_id=CALL,
            tool_name="execute",
            args=Raw(b'{"command":"ls"}'),
            mcp_server_config_id="SECRET-server",
            provider_metadata=METADATA,
        ),
        None,
        {"type": "call", "name": "execute", "input": '{"command":"ls"}'},
    ),
    (
        ToolCallPart(tool_call_id=CALL, tool_name="execute", args_text='{"comm', cut=True),
        None,
        {"type": "call", "name": "execute", "input": '{"comm'},
    ),
    (
        ToolResultPart(
            tool_call_id=CALL,
            tool_name="execute",
            result=Raw(b'{"output":"a.txt","exit_code":0}'),
            changed_args=Raw(b'{"command":"SECRET"}'),
            provider_metadata=METADATA,
        ),
        None,
        {"type": "output", "name": "execute", "text": "a.txt"},
    ),
    (
        ToolResultPart(tool_call_id=CALL, tool_name="read", result=Raw(b"[1]"), is_error=True),
        None,
        {"type": "output", "name": "read", "text": "[1]", "failed": True},
    ),
    (
        ToolResultPart(
            tool_call_id=CALL, tool_name="look", result=Raw(b'"SECRET-image"'), is_media=True
        ),
        None,
        {"type": "output", "name": "look"},
    ),
    (
        ToolCallPart(tool_call_id=CALL, tool_name=SUMMARY_TOOL_NAME, args=Raw(b'"SECRET"')),
        None,
        None,
    ),
    (
        ToolResultPart(tool_call_id=CALL, tool_name=SUMMARY_TOOL_NAME, result=Raw(b'"SECRET"')),
        None,
        None,
    ),
    (
        FilePart(media_type="image/png", file_id=FILE_ID, name="a.png"),
        {"type": "hidden_file"},
        {"type": "file", "part": 0, "name": "a.png", "media_type": "image/png"},
    ),
    (
        FilePart(media_type="image/png", data="SECRET-bytes", name="a.png"),
        {"type": "hidden_file"},
        {"type": "hidden_file"},
    ),
    (
        FileReferencePart(file_name="a.py", start_line=3, end_line=4, content="x = 1"),
        {"type": "hidden_file"},
        {"type": "quote", "file_name": "a.py", "start_line": 3, "content": "x = 1"},
    ),
    (ContextFilePart(context_file_path="/home/SECRET/AGENTS.md"), None, None),
    (CommandPart(command="SECRET-command"), None, None),
    (SkillPart(skill_name="SECRET-skill"), None, None),
    (InstructionPart(section="user", text="SECRET-prompt"), None, None),
    (BoundaryPart(kept=3), None, None),
    (NoticePart(code="stopped", text="SECRET-notice"), None, None),
    (UnknownPart(raw=Raw(b'{"type":"SECRET-new"}')), None, None),
)


def sent(row: Message, choices: LinkChoices) -> Mapping[str, object] | None:
    """As the reader gets it."""
    found = shared_message(row, choices)
    if found is None:
        return None
    return cast("Mapping[str, object]", msgspec.json.decode(msgspec.json.encode(found)))


@pytest.mark.promise("P13")
@pytest.mark.parametrize(("part", "plain", "chosen"), PARTS)
def test_a_part_leaves_only_with_the_fields_that_were_chosen(
    part: Part, plain: object, chosen: object
) -> None:
    for choices, wanted in ((TEXTS, plain), (ALL, chosen)):
        found = sent(message(1, "assistant", part), choices)
        if wanted is None:
            assert found is None
        else:
            assert found is not None
            assert found["parts"] == [wanted]
            assert found.keys() == {"id", "is_answer", "created_at", "parts"}
            assert "SECRET" not in str(found)


def test_every_kind_of_part_is_in_the_table() -> None:
    kinds = {type(part) for part, _, _ in PARTS}
    assert kinds == {*KnownPart.__args__, UnknownPart}


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    "row",
    [
        message(1, "system", text("SECRET")),
        message(1, "system", NoticePart(code="stopped", text="SECRET"), visibility="user"),
        message(1, "user", text("SECRET"), visibility="model"),
        message(1, "user", text("SECRET"), compressed=True),
        message(1, "user", text("SECRET"), deleted=True),
    ],
)
def test_prompts_notices_summaries_and_deleted_messages_stay_inside(row: Message) -> None:
    assert sent(row, ALL) is None
    file = FilePart(media_type="image/png", file_id=FILE_ID)
    assert shared_file_part(msgspec.structs.replace(row, content=(file,)), 0) is None


def test_long_output_is_cut() -> None:
    long = Raw(msgspec.json.encode("x" * (MAX_SHARED_TOOL_CHARS + 1)))
    row = message(1, "tool", ToolResultPart(tool_call_id=CALL, tool_name="read", result=long))
    found = sent(row, ALL)
    assert found is not None
    (part,) = cast("list[Mapping[str, str]]", found["parts"])
    assert len(part["text"]) == MAX_SHARED_TOOL_CHARS
    assert part["text"].endswith("…")


@pytest.mark.parametrize("at", [-1, 0, 2, 99])
def test_a_place_without_a_file_has_none(at: int) -> None:
    file = FilePart(media_type="image/png", file_id=FILE_ID)
    assert shared_file_part(message(1, "user", text(), file), 1) == file
    assert shared_file_part(message(1, "user", text(), file), at) is None


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, None),
        ({"days": 30}, None),
        ({"days": 31}, "invalid_input"),
        ({"enabled": False}, "public_links_off"),
        ({"is_root": False}, "not_a_root_chat"),
    ],
)
def test_the_settings_decide_which_links_are_made(
    given: Mapping[str, object], code: str | None
) -> None:
    rules = {"enabled": True, "max_days": 30, "days": 7, "is_root": True, **given}
    if code is None:
        require_link_rules(**rules)  # pyright: ignore[reportArgumentType]
        return
    with pytest.raises(ChatdError) as refused:
        require_link_rules(**rules)  # pyright: ignore[reportArgumentType]
    assert refused.value.code == code
