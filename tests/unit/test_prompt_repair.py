"""Repair of histories with missing, misplaced or duplicate calls, results and ids."""

import re
from typing import cast

import pytest
from msgspec import Raw

from chatd.domain.chat.change import INTERRUPTED_CALL_TEXT
from chatd.domain.chat.messages import Message, Role
from chatd.domain.chat.parts import Part, ReasoningPart, TextPart
from chatd.domain.model.protocol import PromptCall, PromptPart, PromptResult, PromptText
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.domain.prompt.repair import MAX_CALL_ID_CHARS, MISSING_START_TEXT
from tests.support.domain.prompt_rules import find_problems
from tests.support.factories import call, message, result, text
from tests.support.tables import table

ASK = message(1, "user", text("hi"))
SIGNED = Raw(b'{"anthropic":{"signature":"s"}}')


def history(lines: str) -> list[Message]:
    """Messages such as "assistant: So. cat#a | tool: cat=a!": a text, a call of the
    tool cat, and its error result. `web_search*#s` is executed by the provider."""
    rows = (line.split(": ") for line in lines.split(" | "))
    return [
        message(number, cast("Role", role), *(_part(word) for word in words.split()))
        for number, (role, words) in enumerate(rows, 2)
    ]


def _part(word: str) -> Part:
    name, sign, call_id = re.split("([#=])", word) if re.search("[#=]", word) else (word, "", "")
    own = name.endswith("*")
    name = name.rstrip("*") or "execute"
    match sign:
        case "#":
            return call(call_id, name, provider_executed=own)
        case "=":
            return result(
                call_id.rstrip("!"), name, is_error=call_id.endswith("!"), provider_executed=own
            )
        case _:
            return text(word)


def prompt_lines(*rows: Message) -> str:
    prompt = build_prompt(rows, PromptTarget(provider="here"))
    assert find_problems(prompt) == []
    return " | ".join(f"{m.role}: {' '.join(_describe(part) for part in m.parts)}" for m in prompt)


def _describe(part: PromptPart) -> str:
    """The notation of `history`."""
    match part:
        case PromptText():
            return part.text
        case PromptCall() | PromptResult():
            name = "" if part.name == "execute" else part.name
            sign = "#" if isinstance(part, PromptCall) else "="
            failed = "!" if isinstance(part, PromptResult) and part.is_error else ""
            return f"{name}{'*' if part.provider_executed else ''}{sign}{part.id}{failed}"
        case _:
            return "(...)"


@pytest.mark.covers("loop-6", "prompt-3", "prompt-13")
@table(
    "rows prompt",
    {
        # Calls without results
        "a call without a result gets an error result": (
            "assistant: #a #b | tool: =b",
            "assistant: #a #b | tool: =a! =b",
        ),
        "a pending call in the middle of a chat is answered in place": (
            "assistant: #a | user: go",
            "assistant: #a | tool: =a! | user: go",
        ),
        "a provider-executed call gets no generated result": (
            "assistant: web_search*#s So. | user: ok",
            "assistant: web_search*#s So. | user: ok",
        ),
        # Misplaced results
        "results are moved right after their call": (
            "assistant: #a #b | user: 1 | tool: =b | user: 2 | tool: =a | assistant: So. | user: 3",
            "assistant: #a #b | tool: =a =b | user: 1 | user: 2 | assistant: So. | user: 3",
        ),
        "a result inside an answer or a user message is moved out": (
            "assistant: #a =a so | user: and =b",
            "assistant: #a so | tool: =a | assistant: #b | tool: =b | user: and",
        ),
        "the first of two results is used": (
            "assistant: #a | tool: =a | tool: =a! | assistant: So. | tool: =a! | user: ok",
            "assistant: #a | tool: =a | assistant: So. | user: ok",
        ),
        "a result without a call gets a generated call": (
            "assistant: So. | tool: read_file=x read_file=x | user: ok",
            "assistant: So. read_file#x | tool: read_file=x | user: ok",
        ),
        "a late result of an earlier answer is sent": (
            "assistant: #a | assistant: Meanwhile. | tool: =a",
            "assistant: #a | tool: =a! | assistant: Meanwhile. #a_2 | tool: =a_2",
        ),
        "a result gets the name of its call": (
            "assistant: cat#a | tool: read=a",
            "assistant: cat#a | tool: cat=a",
        ),
        # Provider-executed results
        "a separately stored provider result is moved to its call": (
            "assistant: web_search*#s So. #a | tool: web_search*=s | tool: =a",
            "assistant: web_search*#s web_search*=s So. #a | tool: =a",
        ),
        "a provider result without its call is left out": (
            "assistant: web_search*=s So. | tool: web_search*=s | tool: web_search*=s =x",
            "assistant: So. #x | tool: =x",
        ),
        "local and provider results may be mixed": (
            "assistant: web_search*#s web_search*=s #a | tool: =a",
            "assistant: web_search*#s web_search*=s #a | tool: =a",
        ),
        "consecutive answers are joined": (
            "assistant: One. | assistant: Two. #a | tool: =a",
            "assistant: One. Two. #a | tool: =a",
        ),
        # Ids
        "ids use only characters that every provider accepts": (
            "assistant: #call.1/ä #call_1__ | tool: =call_1__! | tool: =call.1/ä",
            "assistant: #call_1__ #call_1___2 | tool: =call_1__ =call_1___2!",
        ),
        "an id used again in a later answer is renamed": (
            "assistant: #call-0 | tool: =call-0 | assistant: #call-0 | tool: =call-0!",
            "assistant: #call-0 | tool: =call-0 | assistant: #call-0_2 | tool: =call-0_2!",
        ),
        "a duplicate call in one answer is left out": (
            "assistant: #a #a | tool: =a",
            "assistant: #a | tool: =a",
        ),
        "provider-executed calls keep their ids and local ones are renamed": (
            "assistant: #a | tool: =a | assistant: web_search*#a So. | user: ok",
            "assistant: #a_2 | tool: =a_2 | assistant: web_search*#a So. | user: ok",
        ),
    },
)
def test_a_history_is_repaired(rows: str, prompt: str) -> None:
    assert prompt_lines(ASK, *history(rows)) == f"user: hi | {prompt}"


def test_a_chat_that_starts_with_a_result_gets_a_first_user_message() -> None:
    expected = f"user: {MISSING_START_TEXT} | assistant: #x | tool: =x"
    assert prompt_lines(*history("tool: =x")) == expected


def test_valid_messages_are_unchanged() -> None:
    assert prompt_lines(ASK) == "user: hi"


def test_a_generated_result_says_that_the_call_was_interrupted() -> None:
    rows = (ASK, *history("assistant: #a #b | tool: =b"))
    (first, _) = build_prompt(rows, PromptTarget(provider="here"))[2].parts
    assert isinstance(first, PromptResult)
    assert first.text == INTERRUPTED_CALL_TEXT


def test_a_tool_without_a_name_is_named_unknown() -> None:
    rows = (ASK, message(2, "assistant", call("a", "")), message(3, "tool", result("b", " ")))
    assert prompt_lines(*rows) == (
        "user: hi | assistant: unknown#a | tool: unknown=a!"
        " | assistant: unknown#b | tool: unknown=b"
    )


SIGNED_THOUGHT = ReasoningPart(text="hm", provider_metadata=SIGNED)


@pytest.mark.covers("guard-5")
@table(
    "first second joined",
    {
        "reasoning": ((text("One."), ReasoningPart(text="hm")), (text("Two."),), True),
        "signed text": (
            (text("One."), TextPart(text="x", provider_metadata=SIGNED)),
            (text("Two."),),
            True,
        ),
        "empty reasoning": ((text("One."), ReasoningPart(text="")), (text("Two."),), True),
        "signed reasoning first": ((SIGNED_THOUGHT, text("Signed.")), (text("Two."),), False),
        "signed reasoning second": ((text("One."),), (SIGNED_THOUGHT, text("Signed.")), False),
    },
)
def test_an_answer_with_signed_reasoning_is_not_joined_with_another(
    first: tuple[Part, ...], second: tuple[Part, ...], *, joined: bool
) -> None:
    answers = (message(2, "assistant", *first), message(3, "assistant", *second))
    lines = prompt_lines(ASK, *answers, message(4, "user", text("ok")))
    assert lines.count("assistant: ") == (1 if joined else 2)
    assert lines.count(" | ") == (2 if joined else 3)


def test_long_and_empty_ids_are_replaced() -> None:
    rows = (ASK, message(2, "assistant", call("x" * 100), call("x" * 99), call("")))
    prompt = build_prompt(rows, PromptTarget(provider="here"))
    ids = [part.id for part in prompt[1].parts if isinstance(part, PromptCall)]
    assert ids[0] == "x" * MAX_CALL_ID_CHARS
    assert ids[1] == "x" * (MAX_CALL_ID_CHARS - 8) + "_2"
    assert ids[2] == "call"


@pytest.mark.covers("prompt-21")
def test_a_longer_history_only_appends_to_the_prompt() -> None:
    rows = history(
        "user: hi | assistant: #call-0 | tool: =call-0 | assistant: #call-0 | tool: =call-0"
        " | assistant: Done. | user: more"
    )
    reader = PromptTarget(provider="here")
    whole = build_prompt(rows, reader)
    for count in (1, 3, 5, 7):
        shorter = build_prompt(rows[:count], reader)
        assert whole[: len(shorter)] == shorter
