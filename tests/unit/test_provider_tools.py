"""A strict provider's own calls: what it would refuse is found, and taken out."""

import pytest
from msgspec import UNSET, Raw

from chatd.domain.chat.parts import Part, ReasoningPart, TextPart, encode_parts
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
THOUGHT = PromptReasoning(text="hm", provider_metadata=SIGNED)
WORDS = PromptText(text="X https://x.example")


def search(one: str = "s", name: str = "web_search", args: bytes = b"{}") -> PromptCall:
    return PromptCall(id=ToolCallId(one), name=name, input=Raw(args), provider_executed=True)


def hits(one: str = "s", name: str = "web_search", raw: Raw = HITS) -> PromptResult:
    return PromptResult(id=ToolCallId(one), name=name, text="", raw=raw, provider_executed=True)


def local(one: str = "a") -> PromptCall:
    return PromptCall(id=ToolCallId(one), name="execute", input=Raw(b"{}"))


def done(one: str = "a") -> PromptResult:
    return PromptResult(id=ToolCallId(one), name="execute", text="done")


def said(text: str = "So.") -> PromptText:
    return PromptText(text=text)


def user(*parts: PromptPart) -> PromptMessage:
    return PromptMessage(role="user", parts=parts or (said("hi"),))


def answer(*parts: PromptPart) -> PromptMessage:
    return PromptMessage(role="assistant", parts=parts)


def kept(*parts: PromptPart) -> list[PromptPart]:
    """What is left of an answer."""
    left = drop_unpaired([user(), answer(*parts), user()])
    assert find_violations(left) == []
    return [part for message in left if message.role == "assistant" for part in message.parts]


@pytest.mark.covers("guard-1")
def test_a_good_pair_is_kept() -> None:
    whole = [said(), search(), hits(), said("Then."), search("t"), hits("t")]
    assert kept(*whole) == whole
    assert find_violations([answer(*whole)]) == []


@pytest.mark.covers("guard-1")
@pytest.mark.parametrize(
    ("parts", "left", "reason"),
    [
        ([said(), search()], [said()], "orphan_call"),
        ([said(), hits()], [said(), WORDS], "orphan_result"),
        ([hits(), search()], [WORDS], "out_of_order"),
        ([search(), hits(), hits()], [WORDS, WORDS], "duplicate"),
        ([search(), search(), hits()], [WORDS], "duplicate"),
        ([search(""), hits("")], [WORDS], "no_id"),
        ([search(name=" "), hits(name=" ")], [WORDS], "no_name"),
        ([search(name="fly"), hits(name="fly")], [WORDS], "unsupported_tool"),
        ([search(), hits(name="fly")], [WORDS], "unsupported_tool"),
        ([search(args=b"[]"), hits()], [WORDS], "bad_input"),
        ([search(args=b"{"), hits()], [WORDS], "bad_input"),
        ([search(), hits(raw=Raw(b"{}")), said()], [said()], "no_vendor_data"),
        (
            [search(), hits(raw=Raw(b'"text"')), said()],
            [PromptText(text="text"), said()],
            "no_vendor_data",
        ),
    ],
)
def test_what_is_not_a_good_pair_is_taken_out_and_its_words_are_kept(
    parts: list[PromptPart], left: list[PromptPart], reason: Reason
) -> None:
    assert {violation.reason for violation in find_violations([answer(*parts)])} == {reason}
    assert kept(*parts) == left


@pytest.mark.covers("guard-1")
def test_violations_say_where_they_are() -> None:
    messages = [user(), answer(said(), search()), user(hits())]
    assert find_violations(messages) == [
        PairingViolation(message=1, part=1, reason="orphan_call"),
        PairingViolation(message=2, part=0, reason="outside_assistant"),
    ]


@pytest.mark.covers("guard-2")
def test_outside_an_answer_nothing_is_left() -> None:
    messages = [user(said("hi"), search(), hits()), user(hits())]
    assert drop_unpaired(messages) == [user(said("hi"))]


@pytest.mark.covers("guard-2")
def test_an_id_that_is_ours_and_the_providers_is_ours() -> None:
    assert find_violations([answer(search("a"), hits("a"), local("a"))])[0].reason == "also_local"
    left = drop_unpaired(
        [user(), answer(search("a"), local("a")), PromptMessage(role="tool", parts=(done("a"),))]
    )
    assert left[1] == answer(local("a"))
    assert left[2].parts == (done("a"),)


@pytest.mark.covers("guard-2")
def test_calls_of_ours_are_not_judged() -> None:
    messages = [user(), answer(local(""), local("x"), local("x")), user()]
    assert drop_unpaired(messages) == messages
    assert find_violations(messages) == []


def test_a_pair_that_comes_again_in_a_later_answer_is_taken_out_there() -> None:
    left = drop_unpaired(
        [user(), answer(search(), hits()), user(), answer(search(), hits(), said())]
    )
    assert left[1] == answer(search(), hits())
    assert left[3] == answer(WORDS, said())


def test_an_answer_of_which_nothing_is_left_is_gone() -> None:
    assert drop_unpaired([user(), answer(search()), user()]) == [user(), user()]


# Signed answers


@pytest.mark.covers("guard-5")
def test_the_newest_signed_answer_stays_but_for_calls_that_were_never_answered() -> None:
    latest = answer(THOUGHT, search("x"), search(), hits(), said())
    assert drop_unpaired([user(), latest]) == [user(), answer(THOUGHT, search(), hits(), said())]


@pytest.mark.covers("guard-5")
def test_an_older_signed_answer_is_mended_like_any_other() -> None:
    older = answer(THOUGHT, hits(), said())
    latest = answer(THOUGHT, said("Later."))
    assert drop_unpaired([user(), older, user(), latest, user()])[1] == answer(
        THOUGHT, WORDS, said()
    )


@pytest.mark.covers("guard-6")
def test_rather_no_search_than_a_request_that_is_refused() -> None:
    latest = answer(THOUGHT, hits(), said())
    left = drop_unpaired([user(), latest, user()])
    assert left[1] == answer(THOUGHT, said())
    assert find_violations(left) == []


# Prompts


@pytest.mark.covers("guard-4")
def test_only_a_strict_providers_prompt_is_judged() -> None:
    rows = (
        message(1, "user", text("hi")),
        message(2, "assistant", call("s", "web_search", provider_executed=True), text("So.")),
        message(3, "user", text("ok")),
    )
    lenient = build_prompt(rows, PromptTarget(provider="here"))
    strict = build_prompt(rows, PromptTarget(provider="here", strict_tools=True))
    assert len(lenient[1].parts) == 2
    assert strict[1] == answer(said())


@pytest.mark.covers("guard-3")
def test_answers_that_come_to_stand_side_by_side_are_joined() -> None:
    orphan = call("s", "web_search", provider_executed=True)
    rows = (
        message(1, "user", text("hi")),
        message(2, "assistant", text("One.")),
        message(3, "user", orphan),
        message(4, "assistant", text("Two.")),
        message(5, "user", text("ok")),
    )
    strict = build_prompt(rows, PromptTarget(provider="here", strict_tools=True))
    assert strict[1] == answer(said("One."), said("Two."))


# Fresh answers


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
def test_a_fresh_answer_is_judged_before_it_is_stored(
    content: list[Part], stored: list[Part]
) -> None:
    assert encode_parts(drop_unpaired_in_answer(content)) == encode_parts(stored)


@pytest.mark.covers("guard-5")
def test_a_fresh_answer_with_signed_thoughts_is_stored_as_it_came() -> None:
    content = (ReasoningPart(text="hm", provider_metadata=SIGNED), SEARCH)
    assert drop_unpaired_in_answer(content) == content
    unsigned = (ReasoningPart(text="hm"), TextPart(text="So.", provider_metadata=SIGNED))
    assert drop_unpaired_in_answer((*unsigned, SEARCH)) == unsigned


# Words of a result


@pytest.mark.covers("guard-7")
@pytest.mark.parametrize(
    ("raw", "words"),
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
def test_every_kind_of_result_can_be_put_in_words(raw: bytes, words: str) -> None:
    assert result_text(Raw(raw)) == words


def test_the_words_of_a_result_are_bounded() -> None:
    assert len(result_text(Raw(b'"' + b"x" * 100_000 + b'"'))) <= MAX_RESULT_TEXT_CHARS
    assert result_text(UNSET) == ""
