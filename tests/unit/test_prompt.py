"""Building a prompt from history: which rows are sent, and how each part is converted."""

from base64 import b64encode

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.messages import Message, decode_parts, encode_parts
from chatd.domain.chat.parts import (
    ContextFilePart,
    FilePart,
    FileReferencePart,
    InstructionPart,
    Part,
    ReasoningPart,
    SkillPart,
    SourcePart,
    TextPart,
    UnknownPart,
)
from chatd.domain.errors import InvariantBroken
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.prompt.builder import (
    MEDIA_UNAVAILABLE_TEXT,
    PromptTarget,
    build_prompt,
    list_file_ids,
)
from chatd.domain.prompt.prompt_files import ResolvedFile
from chatd.domain.prompt.repair import CONTINUE_TEXT, MISSING_START_TEXT
from tests.support.domain.prompt_rules import find_problems
from tests.support.factories import call, message, result, text

TARGET = PromptTarget(provider="here")
SIGNED = Raw(b'{"anthropic":{"signature":"s"}}')


def built(*rows: Message, target: PromptTarget = TARGET) -> list[PromptMessage]:
    prompt = build_prompt(rows, target)
    assert find_problems(prompt) == []
    return list(prompt)


def shape(prompt: list[PromptMessage]) -> list[str]:
    """Each message as a line: its role and its parts."""
    return [f"{m.role}: {' | '.join(_describe(part) for part in m.parts)}" for m in prompt]


def _describe(part: PromptPart) -> str:
    match part:
        case PromptText():
            return part.text
        case PromptReasoning():
            return f"({part.text})"
        case PromptFile():
            return f"<{part.media_type}>"
        case PromptCall():
            return f"{part.name}#{part.id}{bytes(part.input).decode()}"
        case PromptResult():
            return f"{'!' if part.is_error else ''}{part.id}={part.text}"


def user_part(part: Part, target: PromptTarget = TARGET) -> PromptPart | None:
    """How a part of a user message is converted; None if it is left out."""
    parts = built(message(1, "user", text("word"), part), target=target)[0].parts
    return parts[1] if len(parts) > 1 else None


def answer_parts(*parts: Part) -> list[PromptPart]:
    rows = (message(1, "user", text()), message(2, "assistant", text("word"), *parts))
    return list(built(*rows)[1].parts[1:])


def tool_result(output: str, **flags: object) -> PromptResult:
    """The prompt part of a tool's result."""
    rows = (
        message(1, "user", text()),
        message(2, "assistant", call("a")),
        message(3, "tool", msgspec.structs.replace(result("a", output=output), **flags)),
    )
    (part,) = built(*rows)[2].parts
    assert isinstance(part, PromptResult)
    return part


# Messages


@pytest.mark.covers("loop-1")
def test_a_turn_with_a_tool_call_is_sent_in_order() -> None:
    prompt = built(
        message(1, "system", text("Be kind."), visibility="model"),
        message(2, "user", text("Look.")),
        message(3, "assistant", text("I will."), call("a", args='{"path":"x"}')),
        message(4, "tool", result("a", output='{"output":"found"}')),
    )
    assert shape(prompt) == [
        "system: Be kind.",
        "user: Look.",
        'assistant: I will. | execute#a{"path":"x"}',
        "tool: a=found",
    ]


@pytest.mark.covers("prompt-19")
def test_rows_are_sorted_by_id() -> None:
    rows = [
        message(3, "user", text("three")),
        message(1, "user", text("one")),
        message(2, "assistant", text("two")),
    ]
    assert shape(built(*rows)) == ["user: one", "assistant: two", "user: three"]


@pytest.mark.covers("prompt-19")
def test_a_summary_replaces_earlier_rows_and_its_call_is_not_sent() -> None:
    prompt = built(
        message(1, "system", text("Be kind."), visibility="model"),
        message(2, "user", text("old")),
        message(3, "assistant", text("older")),
        message(4, "user", text("summary"), visibility="model", compressed=True),
        message(5, "assistant", call("s", "chat_summarized"), visibility="user", compressed=True),
        message(6, "tool", result("s", "chat_summarized"), compressed=True),
        message(7, "user", text("go on")),
    )
    assert shape(prompt) == ["system: Be kind.", "user: summary", "user: go on"]


@pytest.mark.covers("prompt-4")
def test_an_unknown_content_version_is_an_error() -> None:
    for role in ("user", "assistant", "tool", "system"):
        row = msgspec.structs.replace(message(1, "user", text()), role=role, content_version=2)
        with pytest.raises(InvariantBroken, match="version 2"):
            build_prompt([row], TARGET)


def test_an_empty_history_still_gives_a_valid_prompt() -> None:
    assert shape(built()) == [f"user: {MISSING_START_TEXT}"]
    only_files = message(2, "user", FilePart(media_type="image/png"))
    prompt = built(message(1, "user", text("hi")), message(2, "assistant", text("yes")), only_files)
    assert shape(prompt)[1:] == ["assistant: yes", f"user: {CONTINUE_TEXT}"]


# System


def test_system_messages_come_first() -> None:
    prompt = built(
        message(1, "system", text("a"), text("b")),
        message(2, "user", text("hi")),
        message(3, "system", text("late")),
        message(4, "system", text(" ")),
    )
    assert shape(prompt) == ["system: a\n\nb", "system: late", "user: hi"]


@pytest.mark.covers("prompt-18")
def test_the_first_instructions_follow_the_chats_own_system_messages() -> None:
    told = (
        InstructionPart(section="subagent", text="You are a helper."),
        InstructionPart(section="workspace", text="A workspace."),
    )
    prompt = built(
        message(1, "system", text("base")),
        message(2, "user", text("hi")),
        message(3, "system", *told, visibility="model"),
    )
    assert shape(prompt) == [
        "system: base",
        "system: You are a helper.",
        "system: A workspace.",
        "user: hi",
    ]


def test_changed_instructions_are_one_block_where_they_changed() -> None:
    told = (
        InstructionPart(section="workspace", text="It is stopped."),
        InstructionPart(section="files", text=""),
    )
    prompt = built(
        message(1, "user", text("hi")),
        message(2, "user", *told, visibility="model"),
        message(3, "assistant", text("yes")),
        message(4, "user", text("go")),
    )
    (block,) = prompt[1].parts
    assert isinstance(block, PromptText)
    assert block.text.startswith("<instructions-update>")
    assert "It is stopped." in block.text
    assert "instruction files of the workspace given earlier no longer apply" in block.text
    assert shape(prompt)[2:] == ["assistant: yes", "user: go"]


def context(path: str, content: str, agent: str = "w1") -> ContextFilePart:
    return ContextFilePart(
        context_file_path=path, context_file_content=content, context_file_agent_id=agent
    )


def test_instruction_files_are_sent_in_their_own_message() -> None:
    files = (context("A", "rule a"), context("B", "rule b"))
    prompt = built(message(1, "user", *files, visibility="model"), message(2, "user", text("hi")))
    assert [m.role for m in prompt] == ["user", "user"]
    (block,) = prompt[0].parts
    assert isinstance(block, PromptText)
    assert "rule a" in block.text
    assert "rule b" in block.text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_instruction_files_of_one_message_share_a_block(count: int) -> None:
    files = [context(f"F{index}", f"rule {index}") for index in range(count)]
    (only,) = built(message(1, "user", text("see"), *files, visibility="model"))
    _, block = only.parts
    assert isinstance(block, PromptText)
    assert block.text.count("Source: ") == count


@pytest.mark.covers("prompt-19")
def test_after_a_summary_the_instruction_files_are_in_its_message() -> None:
    prompt = built(
        message(1, "user", context("A", "stale"), visibility="model"),
        message(2, "assistant", text("yes")),
        message(
            3, "user", text("summary"), context("A", "rule"), visibility="model", compressed=True
        ),
        message(4, "user", text("go")),
    )
    lines = shape(prompt)
    assert lines[0].startswith("user: summary | <workspace-context>")
    assert "rule" in lines[0]
    assert lines[1:] == ["user: go"]


def test_a_context_part_without_a_path_is_not_sent() -> None:
    mark = ContextFilePart(context_file_path="", context_file_agent_id="w1")
    rows = (message(1, "user", mark, visibility="model"), message(2, "user", text("hi")))
    assert shape(built(*rows)) == ["user: hi"]


# Text and reasoning


@pytest.mark.covers("loop-4", "prompt-7")
@pytest.mark.parametrize("blank", ["", " ", "\n\t\n", "\u00a0"])
def test_blank_parts_and_messages_with_only_blank_parts_are_left_out(blank: str) -> None:
    prompt = built(
        message(1, "user", text("hi"), text(blank)),
        message(2, "assistant", text(blank), ReasoningPart(text=blank)),
        message(3, "user", text(blank)),
        message(4, "assistant", text("yes"), text(blank)),
        message(5, "user", text("go")),
    )
    assert shape(prompt) == ["user: hi", "assistant: yes", "user: go"]


@pytest.mark.covers("prompt-10")
def test_signed_reasoning_is_sent_unchanged_even_without_text() -> None:
    sealed = ReasoningPart(text="", provider_metadata=SIGNED)
    worded = ReasoningPart(text="hm \0", provider_metadata=SIGNED)
    parts = answer_parts(sealed, worded, ReasoningPart(text="plain \0"))
    assert parts == [
        PromptReasoning(text="", provider_metadata=SIGNED),
        PromptReasoning(text="hm \0", provider_metadata=SIGNED),
        PromptReasoning(text="plain \ufffd"),
    ]


@pytest.mark.covers("prompt-5")
def test_provider_metadata_is_sent_back_byte_for_byte() -> None:
    metadata = Raw(b'{"google": {"thought_signature" : "x"}}')
    rows = decode_parts(
        encode_parts(
            [
                TextPart(text="a", provider_metadata=metadata),
                call("s", "web_search", provider_executed=True, provider_metadata=metadata),
                result(
                    "s", "web_search", "[1]", provider_executed=True, provider_metadata=metadata
                ),
            ]
        )
    )
    for part in answer_parts(*rows):
        assert isinstance(part, PromptText | PromptCall | PromptResult)
        assert isinstance(part.provider_metadata, Raw)
        assert bytes(part.provider_metadata) == bytes(metadata)


@pytest.mark.covers("prompt-6")
def test_nul_and_surrogates_are_replaced() -> None:
    prompt = built(
        message(1, "user", text("a\0b\ud800c")),
        message(2, "assistant", call("a", args=r'{"k\u0000":"v\u0000"}')),
        message(3, "tool", result("a", output=r'{"output":"o\u0000"}')),
    )
    assert shape(prompt) == [
        "user: a\ufffdb\ufffdc",
        r'assistant: execute#a{"k\ufffd":"v\ufffd"}',
        "tool: a=o\ufffd",
    ]


def test_parts_for_viewers_only_are_not_sent() -> None:
    assert user_part(SkillPart(skill_name="s")) is None
    assert user_part(UnknownPart(raw=Raw(b'{"type":"new"}'))) is None
    assert user_part(ReasoningPart(text="odd")) is None
    assert answer_parts(SourcePart(url="u"), UnknownPart(raw=Raw(b'{"type":"new"}'))) == []


# Files


@pytest.mark.covers("prompt-2")
def test_the_file_ids_of_user_messages_after_the_summary_are_listed_once() -> None:
    rows = [
        message(1, "user", FilePart(media_type="image/png", file_id="old")),
        message(2, "user", text("s"), visibility="model", compressed=True),
        message(
            3,
            "user",
            FilePart(media_type="image/png", file_id="a"),
            FilePart(media_type="image/png", file_id="b"),
            FilePart(media_type="image/png", data="YQ=="),
            FilePart(media_type="image/png", file_id="a"),
        ),
        message(4, "assistant", FilePart(media_type="image/png", file_id="c")),
    ]
    assert list_file_ids(rows) == ["a", "b"]


@pytest.mark.covers("prompt-12")
def test_files_of_an_answer_are_not_sent() -> None:
    assert answer_parts(FilePart(media_type="image/png", file_id="f")) == []
    rows = (
        message(1, "user", text("hi")),
        message(2, "assistant", FilePart(media_type="image/png", file_id="f")),
    )
    target = msgspec.structs.replace(
        TARGET, files={"f": ResolvedFile(media_type="image/png", data=b"x")}
    )
    assert shape(built(*rows, target=target)) == ["user: hi"]


@pytest.mark.covers("prompt-12")
def test_a_message_may_mix_available_expired_and_empty_files() -> None:
    files = {
        "there": ResolvedFile(media_type="image/png", data=b"x"),
        "empty": ResolvedFile(media_type="image/png", data=b""),
    }
    row = message(
        1,
        "user",
        text("See"),
        *(FilePart(media_type="image/png", file_id=one) for one in ("there", "gone", "empty")),
        FileReferencePart(file_name="a.py", start_line=1, end_line=2, content="x"),
    )
    prompt = built(row, target=msgspec.structs.replace(TARGET, files=files))
    assert " ".join(shape(prompt)).split(" | ") == [
        "user: See",
        "<image/png>",
        "[The attachment of type image/png has expired and is no longer available.]",
        "[file-reference] a.py:1-2\n```\nx\n```",
    ]


def test_a_text_file_that_the_provider_does_not_accept_is_sent_as_text() -> None:
    target = PromptTarget(
        provider="here",
        files={"f": ResolvedFile(media_type="text/csv", data=b"a,b", name="t.csv")},
        accepts=lambda kind: kind == "image/png",
    )
    part = user_part(FilePart(media_type="text/csv", file_id="f"), target)
    assert part == PromptText(text="[Attached file: t.csv]\na,b")


# Calls and results


@pytest.mark.covers("prompt-1")
@pytest.mark.parametrize(
    ("args", "sent"),
    [
        (None, b"{}"),
        ("null", b"{}"),
        ("[1]", b"{}"),
        ('"text"', b"{}"),
        ("3", b"{}"),
        ('{"a": [1]}', b'{"a": [1]}'),
    ],
)
def test_the_input_of_a_call_is_always_an_object(args: str | None, sent: bytes) -> None:
    (part,) = answer_parts(call("a", args=args))
    assert isinstance(part, PromptCall)
    assert bytes(part.input) == sent


@pytest.mark.parametrize(
    ("output", "flags", "read"),
    [
        ('{"output":"done"}', {}, "done"),
        ('{"output":" "}', {}, '{"output":" "}'),
        ('{"output":"x","exit":1}', {}, '{"output":"x","exit":1}'),
        ('{"files":[]}', {}, '{"files":[]}'),
        (r'"two\nlines"', {}, "two\nlines"),
        ('""', {}, '""'),
        ("3", {}, "3"),
        ("{}", {}, "{}"),
        ("null", {}, "{}"),
        ('{"error":"no"}', {"is_error": True}, "no"),
        ('{"oops":1}', {"is_error": True}, '{"oops":1}'),
        ('{"error":{"a":1}}', {"is_error": True}, '{"error":{"a":1}}'),
        ('{"error":"no"}', {}, '{"error":"no"}'),
    ],
)
def test_a_result_is_unwrapped_to_the_text_of_the_tool(
    output: str, flags: dict[str, object], read: str
) -> None:
    found = tool_result(output, **flags)
    assert (found.text, found.is_error) == (read, bool(flags.get("is_error")))


PNG = b64encode(b"\x89PNG").decode()


@pytest.mark.covers("prompt-9")
@pytest.mark.parametrize(
    ("output", "read"),
    [
        (f'{{"data":"{PNG}","mime_type":"image/png","text":"a screen"}}', "a screen"),
        (f'{{"data":"{PNG}","mime_type":"image/png"}}', ""),
        (f'{{"data":"{PNG}","mime_type":"image/png","text":" "}}', ""),
    ],
)
def test_media_are_sent_with_their_text(output: str, read: str) -> None:
    found = tool_result(output, is_media=True)
    assert found.media == PromptFile(media_type="image/png", data=b"\x89PNG")
    assert found.text == read


@pytest.mark.covers("prompt-9")
@pytest.mark.parametrize(
    ("output", "read"),
    [
        (f'{{"data":"{PNG}","text":"a screen"}}', "a screen"),
        (f'{{"data":"{PNG}"}}', MEDIA_UNAVAILABLE_TEXT),
        ('{"mime_type":"image/png","text":"a screen"}', "a screen"),
        ('{"data":"","mime_type":"image/png"}', MEDIA_UNAVAILABLE_TEXT),
        ('{"data":"not base64!","mime_type":"image/png","text":"x"}', "x"),
        ('{"data":"\\ufffd\\ufffdPNG","mime_type":"image/png"}', MEDIA_UNAVAILABLE_TEXT),
        ('{"data":"aG!!k=","mime_type":"image/png"}', MEDIA_UNAVAILABLE_TEXT),
        ('"garbage"', MEDIA_UNAVAILABLE_TEXT),
        ("[1]", MEDIA_UNAVAILABLE_TEXT),
    ],
)
def test_unreadable_media_are_replaced_by_text(output: str, read: str) -> None:
    found = tool_result(output, is_media=True)
    assert (found.media, found.text) == (None, read)


@pytest.mark.covers("prompt-9")
def test_an_error_takes_precedence_over_media() -> None:
    output = f'{{"error":"broke","data":"{PNG}","mime_type":"image/png"}}'
    found = tool_result(output, is_media=True, is_error=True)
    assert (found.media, found.text, found.is_error) == (None, "broke", True)


@pytest.mark.covers("prompt-11")
def test_a_provider_executed_search_is_sent_back_in_place_and_unchanged() -> None:
    hits = '[{"url":"https://x.example","encrypted_content":"zzz"}]'
    rows = (
        message(1, "user", text("hi")),
        message(
            2,
            "assistant",
            text("Searching."),
            call("s1", "web_search", '{"q":"a"}', provider_executed=True),
            result("s1", "web_search", hits, provider_executed=True),
            text("Again."),
            call("s2", "web_search", '{"q":"b"}', provider_executed=True),
            result("s2", "web_search", hits, provider_executed=True),
            text("Done."),
        ),
        message(3, "user", text("thanks")),
    )
    prompt = built(*rows, target=msgspec.structs.replace(TARGET, strict_tools=True))
    kinds = [type(part) for part in prompt[1].parts]
    assert kinds == [PromptText, PromptCall, PromptResult] * 2 + [PromptText]
    first = prompt[1].parts[2]
    assert isinstance(first, PromptResult)
    assert isinstance(first.raw, Raw)
    assert bytes(first.raw).decode() == hits
