"""Pairing of provider-executed calls and results for a strict provider."""

import pytest
from msgspec import UNSET, Raw

from chatd.domain.chat.messages import encode_parts
from chatd.domain.chat.parts import Part, ReasoningPart, TextPart
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    PromptCall,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.domain.prompt.provider_content import (
    MAX_RESULT_TEXT_CHARS,
    PairingViolation,
    Reason,
    drop_unpaired,
    drop_unpaired_in_answer,
    find_violations,
    result_text,
)
from tests.support.factories import call, message, result, text

HITS = Raw(b'[{"title":"X","url":"https://x.example","encrypted_content":"zzz"}]')
SIGNED = Raw(b'{"anthropic":{"signature":"s"}}')
SIGNED_REASONING = PromptReasoning(text="hm", provider_metadata=SIGNED)
RESULT_TEXT = PromptText(text="X https://x.example")


def search(one: str = "s", name: str = "web_search", args: bytes = b"{}") -> PromptCall:
    return PromptCall(id=ToolCallId(one), name=name, input=Raw(args), provider_executed=True)


def hits(one: str = "s", name: str = "web_search", raw: Raw = HITS) -> PromptResult:
    return PromptResult(id=ToolCallId(one), name=name, text="", raw=raw, provider_executed=True)


def local(one: str = "a") -> PromptCall:
    return PromptCall(id=ToolCallId(one), name="execute", input=Raw(b"{}"))


def done(one: str = "a") -> PromptResult:
    return PromptResult(id=ToolCallId(one), name="execute", text="done")


def text_part(text: str = "So.") -> PromptText:
    return PromptText(text=text)


def user(*parts: PromptPart) -> PromptMessage:
    return PromptMessage(role="user", parts=parts or (text_part("hi"),))


def answer(*parts: PromptPart) -> PromptMessage:
    return PromptMessage(role="assistant", parts=parts)


def checked(*parts: PromptPart) -> list[PromptPart]:
    """The parts of an answer after the check."""
    left = drop_unpaired([user(), answer(*parts), user()])
    assert find_violations(left) == []
    return [part for message in left if message.role == "assistant" for part in message.parts]


@pytest.mark.covers("guard-1")
def test_a_valid_pair_is_kept() -> None:
    whole = [text_part(), search(), hits(), text_part("Then."), search("t"), hits("t")]
    assert checked(*whole) == whole
    assert find_violations([answer(*whole)]) == []


@pytest.mark.covers("guard-1")
@pytest.mark.parametrize(
    ("parts", "left", "reason"),
    [
        ([text_part(), search()], [text_part()], "orphan_call"),
        ([text_part(), hits()], [text_part(), RESULT_TEXT], "orphan_result"),
        ([hits(), search()], [RESULT_TEXT], "out_of_order"),
        ([search(), hits(), hits()], [RESULT_TEXT, RESULT_TEXT], "duplicate"),
        ([search(), search(), hits()], [RESULT_TEXT], "duplicate"),
        ([search(""), hits("")], [RESULT_TEXT], "no_id"),
        ([search(name=" "), hits(name=" ")], [RESULT_TEXT], "no_name"),
        ([search(name="fly"), hits(name="fly")], [RESULT_TEXT], "unsupported_tool"),
        ([search(), hits(name="fly")], [RESULT_TEXT], "unsupported_tool"),
        ([search(args=b"[]"), hits()], [RESULT_TEXT], "bad_input"),
        ([search(args=b"{"), hits()], [RESULT_TEXT], "bad_input"),
        ([search(), hits(raw=Raw(b"{}")), text_part()], [text_part()], "no_vendor_data"),
        (
            [search(), hits(raw=Raw(b'"text"')), text_part()],
            [PromptText(text="text"), text_part()],
            "no_vendor_data",
        ),
    ],
)
def test_an_invalid_pair_is_removed_and_the_text_of_its_result_kept(
    parts: list[PromptPart], left: list[PromptPart], reason: Reason
) -> None:
    assert {violation.reason for violation in find_violations([answer(*parts)])} == {reason}
    assert checked(*parts) == left


@pytest.mark.covers("guard-1")
def test_violations_have_their_position() -> None:
    messages = [user(), answer(text_part(), search()), user(hits())]
    assert find_violations(messages) == [
        PairingViolation(message=1, part=1, reason="orphan_call"),
        PairingViolation(message=2, part=0, reason="outside_assistant"),
    ]


@pytest.mark.covers("guard-2")
def test_provider_parts_outside_an_answer_are_removed() -> None:
    messages = [user(text_part("hi"), search(), hits()), user(hits())]
    assert drop_unpaired(messages) == [user(text_part("hi"))]


@pytest.mark.covers("guard-2")
def test_an_id_of_a_local_and_a_provider_call_stays_with_the_local_call() -> None:
    assert find_violations([answer(search("a"), hits("a"), local("a"))])[0].reason == "also_local"
    left = drop_unpaired(
        [user(), answer(search("a"), local("a")), PromptMessage(role="tool", parts=(done("a"),))]
    )
    assert left[1] == answer(local("a"))
    assert left[2].parts == (done("a"),)


@pytest.mark.covers("guard-2")
def test_local_calls_are_not_checked() -> None:
    messages = [user(), answer(local(""), local("x"), local("x")), user()]
    assert drop_unpaired(messages) == messages
    assert find_violations(messages) == []


def test_a_pair_repeated_in_a_later_answer_is_removed_there() -> None:
    left = drop_unpaired(
        [user(), answer(search(), hits()), user(), answer(search(), hits(), text_part())]
    )
    assert left[1] == answer(search(), hits())
    assert left[3] == answer(RESULT_TEXT, text_part())


def test_an_answer_left_empty_is_dropped() -> None:
    assert drop_unpaired([user(), answer(search()), user()]) == [user(), user()]


# Signed answers


@pytest.mark.covers("guard-5")
def test_the_newest_signed_answer_loses_only_calls_without_a_result() -> None:
    latest = answer(SIGNED_REASONING, search("x"), search(), hits(), text_part())
    assert drop_unpaired([user(), latest]) == [
        user(),
        answer(SIGNED_REASONING, search(), hits(), text_part()),
    ]


@pytest.mark.covers("guard-5")
def test_an_older_signed_answer_is_checked_like_any_other() -> None:
    older = answer(SIGNED_REASONING, hits(), text_part())
    latest = answer(SIGNED_REASONING, text_part("Later."))
    assert drop_unpaired([user(), older, user(), latest, user()])[1] == answer(
        SIGNED_REASONING, RESULT_TEXT, text_part()
    )


@pytest.mark.covers("guard-6")
def test_an_answer_that_stays_invalid_loses_all_provider_calls() -> None:
    latest = answer(SIGNED_REASONING, hits(), text_part())
    left = drop_unpaired([user(), latest, user()])
    assert left[1] == answer(SIGNED_REASONING, text_part())
    assert find_violations(left) == []


# Prompts


@pytest.mark.covers("guard-4")
def test_only_the_prompt_of_a_strict_provider_is_checked() -> None:
    rows = (
        message(1, "user", text("hi")),
        message(2, "assistant", call("s", "web_search", provider_executed=True), text("So.")),
        message(3, "user", text("ok")),
    )
    lenient = build_prompt(rows, PromptTarget(provider="here"))
    strict = build_prompt(rows, PromptTarget(provider="here", strict_tools=True))
    assert len(lenient[1].parts) == 2
    assert strict[1] == answer(text_part())


@pytest.mark.covers("guard-3")
def test_answers_that_become_consecutive_are_joined() -> None:
    orphan = call("s", "web_search", provider_executed=True)
    rows = (
        message(1, "user", text("hi")),
        message(2, "assistant", text("One.")),
        message(3, "user", orphan),
        message(4, "assistant", text("Two.")),
        message(5, "user", text("ok")),
    )
    strict = build_prompt(rows, PromptTarget(provider="here", strict_tools=True))
    assert strict[1] == answer(text_part("One."), text_part("Two."))


# New answers


SEARCH = call("s", "web_search", provider_executed=True)
FOUND = result("s", "web_search", bytes(HITS).decode(), provider_executed=True)


@pytest.mark.covers("guard-8")
@pytest.mark.parametrize(
    ("content", "stored"),
    [
        ([text("So."), SEARCH, FOUND], [text("So."), SEARCH, FOUND]),
        ([text("So."), SEARCH], [text("So.")]),
        ([FOUND], [TextPart(text="X https://x.example")]),
        ([call("a"), call("b", args=None)], [call("a"), call("b", args=None)]),
        (
            [call("s", "web_search", None, provider_executed=True), FOUND],
            [TextPart(text="X https://x.example")],
        ),
    ],
)
def test_a_new_answer_is_checked_before_it_is_stored(
    content: list[Part], stored: list[Part]
) -> None:
    assert encode_parts(drop_unpaired_in_answer(content)) == encode_parts(stored)


@pytest.mark.covers("guard-5")
def test_a_new_answer_with_signed_reasoning_is_stored_unchanged() -> None:
    content = (ReasoningPart(text="hm", provider_metadata=SIGNED), SEARCH)
    assert drop_unpaired_in_answer(content) == content
    unsigned = (ReasoningPart(text="hm"), TextPart(text="So.", provider_metadata=SIGNED))
    assert drop_unpaired_in_answer((*unsigned, SEARCH)) == unsigned


# Text of a result


@pytest.mark.covers("guard-7")
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (bytes(HITS), "X https://x.example"),
        (b'[{"title":"A","url":"u"},{"title":"B"},{"other":1}]', "A u\nB"),
        (
            b'{"type":"web_search_tool_result_error","error_code":"max_uses_exceeded"}',
            "max_uses_exceeded",
        ),
        (b'{"output":"done"}', "done"),
        (b'{"error":"no"}', "no"),
        (b'"plain"', "plain"),
        (b"[1, 2]", "1\n2"),
        (b"{}", ""),
        (b"null", ""),
        (b"[]", ""),
        (b"broken", ""),
    ],
)
def test_every_kind_of_result_has_a_text(raw: bytes, text: str) -> None:
    assert result_text(Raw(raw)) == text


def test_the_text_of_a_result_is_bounded() -> None:
    assert len(result_text(Raw(b'"' + b"x" * 100_000 + b'"'))) <= MAX_RESULT_TEXT_CHARS
    assert result_text(UNSET) == ""
