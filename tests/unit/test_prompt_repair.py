"""Repair of histories with missing, misplaced or duplicate calls, results and ids."""

import pytest
from msgspec import Raw

from chatd.domain.chat.change import INTERRUPTED_CALL_TEXT
from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import Part, ReasoningPart, TextPart
from chatd.domain.model.protocol import (
    PromptCall,
    PromptMessage,
    PromptPart,
    PromptResult,
    PromptText,
)
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.domain.prompt.repair import MAX_CALL_ID_CHARS, MISSING_START_TEXT
from tests.support.domain.prompt_rules import find_problems
from tests.support.factories import call, message, result, text

ASK = message(1, "user", text("hi"))
SIGNED = Raw(b'{"anthropic":{"signature":"s"}}')


def prompt_lines(*rows: Message) -> list[str]:
    prompt = build_prompt(rows, PromptTarget(provider="here"))
    assert find_problems(prompt) == []
    return [f"{m.role}: {' '.join(_describe(part) for part in m.parts)}" for m in prompt]


def _describe(part: PromptPart) -> str:
    match part:
        case PromptText():
            return part.text
        case PromptCall():
            own = "*" if part.provider_executed else ""
            return f"{part.name}{own}#{part.id}"
        case PromptResult():
            own = "*" if part.provider_executed else ""
            return f"{part.name}{own}={part.id}{'!' if part.is_error else ''}"
        case _:
            return "(...)"


# Calls without results


@pytest.mark.covers("loop-6")
def test_a_call_without_a_result_gets_an_error_result() -> None:
    rows = (ASK, message(2, "assistant", call("a"), call("b")), message(3, "tool", result("b")))
    assert prompt_lines(*rows) == [
        "user: hi",
        "assistant: execute#a execute#b",
        "tool: execute=a! execute=b",
    ]
    (first, _) = build_prompt(rows, PromptTarget(provider="here"))[2].parts
    assert isinstance(first, PromptResult)
    assert first.text == INTERRUPTED_CALL_TEXT


def test_a_pending_call_in_the_middle_of_a_chat_is_answered_in_place() -> None:
    rows = (ASK, message(2, "assistant", call("a")), message(3, "user", text("go on")))
    assert prompt_lines(*rows) == [
        "user: hi",
        "assistant: execute#a",
        "tool: execute=a!",
        "user: go on",
    ]


@pytest.mark.covers("prompt-3")
def test_a_provider_executed_call_gets_no_generated_result() -> None:
    search = call("s", "web_search", provider_executed=True)
    rows = (ASK, message(2, "assistant", search, text("So.")), message(3, "user", text("ok")))
    assert prompt_lines(*rows) == ["user: hi", "assistant: web_search*#s So.", "user: ok"]


# Misplaced results


@pytest.mark.covers("prompt-13")
def test_results_are_moved_right_after_their_call() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("a"), call("b")),
        message(3, "user", text("hurry")),
        message(4, "tool", result("b")),
        message(5, "user", text("please")),
        message(6, "tool", result("a")),
        message(7, "assistant", text("Done.")),
        message(8, "user", text("thanks")),
    )
    assert prompt_lines(*rows) == [
        "user: hi",
        "assistant: execute#a execute#b",
        "tool: execute=a execute=b",
        "user: hurry",
        "user: please",
        "assistant: Done.",
        "user: thanks",
    ]


def test_a_result_inside_an_answer_or_a_user_message_is_moved_out() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("a"), result("a"), text("so")),
        message(3, "user", text("and"), result("b")),
    )
    assert prompt_lines(*rows)[:3] == ["user: hi", "assistant: execute#a so", "tool: execute=a"]


def test_the_first_of_two_results_is_used() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("a")),
        message(3, "tool", result("a")),
        message(4, "tool", result("a", is_error=True)),
        message(5, "assistant", text("So.")),
        message(6, "tool", result("a", is_error=True)),
        message(7, "user", text("ok")),
    )
    assert prompt_lines(*rows) == [
        "user: hi",
        "assistant: execute#a",
        "tool: execute=a",
        "assistant: So.",
        "user: ok",
    ]


@pytest.mark.covers("prompt-13")
def test_a_result_without_a_call_gets_a_generated_call() -> None:
    rows = (
        ASK,
        message(2, "assistant", text("So.")),
        message(3, "tool", result("x", "read_file"), result("x", "read_file")),
        message(4, "user", text("ok")),
    )
    assert prompt_lines(*rows) == [
        "user: hi",
        "assistant: So. read_file#x",
        "tool: read_file=x",
        "user: ok",
    ]


def test_a_late_result_of_an_earlier_answer_is_sent() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("a")),
        message(3, "assistant", text("Meanwhile.")),
        message(4, "tool", result("a")),
    )
    assert prompt_lines(*rows) == [
        "user: hi",
        "assistant: execute#a",
        "tool: execute=a!",
        "assistant: Meanwhile. execute#a_2",
        "tool: execute=a_2",
    ]


def test_a_chat_that_starts_with_a_result_gets_a_first_user_message() -> None:
    assert prompt_lines(message(1, "tool", result("x"))) == [
        f"user: {MISSING_START_TEXT}",
        "assistant: execute#x",
        "tool: execute=x",
    ]


def test_a_result_gets_the_name_of_its_call() -> None:
    rows = (ASK, message(2, "assistant", call("a", "cat")), message(3, "tool", result("a", "read")))
    assert prompt_lines(*rows)[1:] == ["assistant: cat#a", "tool: cat=a"]


def test_a_tool_without_a_name_is_named_unknown() -> None:
    rows = (ASK, message(2, "assistant", call("a", "")), message(3, "tool", result("b", " ")))
    assert prompt_lines(*rows)[1:] == [
        "assistant: unknown#a",
        "tool: unknown=a!",
        "assistant: unknown#b",
        "tool: unknown=b",
    ]


# Provider-executed results


@pytest.mark.covers("prompt-3")
def test_a_separately_stored_provider_result_is_moved_to_its_call() -> None:
    search = call("s", "web_search", provider_executed=True)
    hits = result("s", "web_search", "[]", provider_executed=True)
    rows = (
        ASK,
        message(2, "assistant", search, text("So."), call("a")),
        message(3, "tool", hits),
        message(4, "tool", result("a")),
    )
    assert prompt_lines(*rows) == [
        "user: hi",
        "assistant: web_search*#s web_search*=s So. execute#a",
        "tool: execute=a",
    ]


@pytest.mark.covers("prompt-3")
def test_a_provider_result_without_its_call_is_left_out() -> None:
    hits = result("s", "web_search", "[]", provider_executed=True)
    rows = (
        ASK,
        message(2, "assistant", hits, text("So.")),
        message(3, "tool", hits),
        message(4, "tool", hits, result("x")),
    )
    assert prompt_lines(*rows) == ["user: hi", "assistant: So. execute#x", "tool: execute=x"]


@pytest.mark.covers("prompt-13")
def test_local_and_provider_results_may_be_mixed() -> None:
    search = call("s", "web_search", provider_executed=True)
    hits = result("s", "web_search", "[]", provider_executed=True)
    rows = (
        ASK,
        message(2, "assistant", search, hits, call("a")),
        message(3, "tool", result("a")),
    )
    assert prompt_lines(*rows)[1:] == [
        "assistant: web_search*#s web_search*=s execute#a",
        "tool: execute=a",
    ]


# Consecutive answers


@pytest.mark.covers("prompt-13")
def test_consecutive_answers_are_joined() -> None:
    rows = (
        ASK,
        message(2, "assistant", text("One.")),
        message(3, "assistant", text("Two."), call("a")),
        message(4, "tool", result("a")),
    )
    assert prompt_lines(*rows) == ["user: hi", "assistant: One. Two. execute#a", "tool: execute=a"]


@pytest.mark.parametrize(
    "part",
    [
        ReasoningPart(text="hm"),
        TextPart(text="x", provider_metadata=SIGNED),
        ReasoningPart(text=""),
    ],
)
def test_answers_without_signed_reasoning_are_joined(part: Part) -> None:
    rows = (
        ASK,
        message(2, "assistant", text("One."), part),
        message(3, "assistant", text("Two.")),
        message(4, "user", text("ok")),
    )
    assert len(prompt_lines(*rows)) == 3


@pytest.mark.covers("guard-5")
@pytest.mark.parametrize("signed", [0, 1])
def test_a_signed_answer_is_not_joined_with_another(signed: int) -> None:
    thought = ReasoningPart(text="hm", provider_metadata=SIGNED)
    contents: list[list[Part]] = [[text("One.")], [text("Two.")]]
    contents[signed] = [thought, text("Signed.")]
    rows = (
        ASK,
        message(2, "assistant", *contents[0]),
        message(3, "assistant", *contents[1]),
        message(4, "user", text("ok")),
    )
    assert len(prompt_lines(*rows)) == 4


# Ids


def test_ids_use_only_characters_that_every_provider_accepts() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("call.1/ä"), call("call_1__")),
        message(3, "tool", result("call_1__", is_error=True)),
        message(4, "tool", result("call.1/ä")),
    )
    assert prompt_lines(*rows)[1:] == [
        "assistant: execute#call_1__ execute#call_1___2",
        "tool: execute=call_1__ execute=call_1___2!",
    ]


def test_an_id_used_again_in_a_later_answer_is_renamed() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("call-0")),
        message(3, "tool", result("call-0")),
        message(4, "assistant", call("call-0")),
        message(5, "tool", result("call-0", is_error=True)),
    )
    assert prompt_lines(*rows)[1:] == [
        "assistant: execute#call-0",
        "tool: execute=call-0",
        "assistant: execute#call-0_2",
        "tool: execute=call-0_2!",
    ]


def test_a_duplicate_call_in_one_answer_is_left_out() -> None:
    rows = (ASK, message(2, "assistant", call("a"), call("a")), message(3, "tool", result("a")))
    assert prompt_lines(*rows)[1:] == ["assistant: execute#a", "tool: execute=a"]


def test_long_and_empty_ids_are_replaced() -> None:
    rows = (ASK, message(2, "assistant", call("x" * 100), call("x" * 99), call("")))
    prompt = build_prompt(rows, PromptTarget(provider="here"))
    ids = [part.id for part in prompt[1].parts if isinstance(part, PromptCall)]
    assert ids[0] == "x" * MAX_CALL_ID_CHARS
    assert ids[1] == "x" * (MAX_CALL_ID_CHARS - 8) + "_2"
    assert ids[2] == "call"


def test_provider_executed_calls_keep_their_ids_and_local_ones_are_renamed() -> None:
    search = call("a", "web_search", provider_executed=True)
    rows = (
        ASK,
        message(2, "assistant", call("a")),
        message(3, "tool", result("a")),
        message(4, "assistant", search, text("So.")),
        message(5, "user", text("ok")),
    )
    assert prompt_lines(*rows)[1:4] == [
        "assistant: execute#a_2",
        "tool: execute=a_2",
        "assistant: web_search*#a So.",
    ]


@pytest.mark.covers("prompt-21")
def test_a_longer_history_only_appends_to_the_prompt() -> None:
    rows = [
        ASK,
        message(2, "assistant", call("call-0")),
        message(3, "tool", result("call-0")),
        message(4, "assistant", call("call-0")),
        message(5, "tool", result("call-0")),
        message(6, "assistant", text("Done.")),
        message(7, "user", text("more")),
    ]
    reader = PromptTarget(provider="here")
    whole = build_prompt(rows, reader)
    for count in (1, 3, 5, 7):
        shorter = build_prompt(rows[:count], reader)
        assert whole[: len(shorter)] == shorter


def test_valid_messages_are_unchanged() -> None:
    prompt = build_prompt((ASK,), PromptTarget(provider="here"))
    assert prompt == (PromptMessage(role="user", parts=(PromptText(text="hi"),)),)
