"""Histories out of order, put in order: every provider takes what comes out."""

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
from tests.support.factories import call, message, result, text
from tests.support.prompt_rules import find_problems

ASK = message(1, "user", text("hi"))
SIGNED = Raw(b'{"anthropic":{"signature":"s"}}')


def talk(*rows: Message) -> list[str]:
    prompt = build_prompt(rows, PromptTarget(provider="here"))
    assert find_problems(prompt) == []
    return [f"{m.role}: {' '.join(_seen(part) for part in m.parts)}" for m in prompt]


def _seen(part: PromptPart) -> str:
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
def test_a_call_without_a_result_gets_an_error_for_one() -> None:
    rows = (ASK, message(2, "assistant", call("a"), call("b")), message(3, "tool", result("b")))
    assert talk(*rows) == [
        "user: hi",
        "assistant: execute#a execute#b",
        "tool: execute=a! execute=b",
    ]
    (first, _) = build_prompt(rows, PromptTarget(provider="here"))[2].parts
    assert isinstance(first, PromptResult)
    assert first.text == INTERRUPTED_CALL_TEXT


def test_a_call_in_the_middle_of_a_chat_is_answered_where_it_stands() -> None:
    rows = (ASK, message(2, "assistant", call("a")), message(3, "user", text("go on")))
    assert talk(*rows) == ["user: hi", "assistant: execute#a", "tool: execute=a!", "user: go on"]


@pytest.mark.covers("prompt-3")
def test_the_providers_own_call_gets_no_result_from_us() -> None:
    search = call("s", "web_search", provider_executed=True)
    rows = (ASK, message(2, "assistant", search, text("So.")), message(3, "user", text("ok")))
    assert talk(*rows) == ["user: hi", "assistant: web_search*#s So.", "user: ok"]


# Results out of place


@pytest.mark.covers("prompt-13")
def test_results_are_told_right_after_their_call_whatever_stands_between() -> None:
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
    assert talk(*rows) == [
        "user: hi",
        "assistant: execute#a execute#b",
        "tool: execute=a execute=b",
        "user: hurry",
        "user: please",
        "assistant: Done.",
        "user: thanks",
    ]


def test_a_result_inside_an_answer_or_a_users_message_is_taken_out() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("a"), result("a"), text("so")),
        message(3, "user", text("and"), result("b")),
    )
    assert talk(*rows)[:3] == ["user: hi", "assistant: execute#a so", "tool: execute=a"]


def test_the_first_of_two_results_counts() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("a")),
        message(3, "tool", result("a")),
        message(4, "tool", result("a", is_error=True)),
        message(5, "assistant", text("So.")),
        message(6, "tool", result("a", is_error=True)),
        message(7, "user", text("ok")),
    )
    assert talk(*rows) == [
        "user: hi",
        "assistant: execute#a",
        "tool: execute=a",
        "assistant: So.",
        "user: ok",
    ]


@pytest.mark.covers("prompt-13")
def test_a_result_whose_call_is_lost_gets_one() -> None:
    rows = (
        ASK,
        message(2, "assistant", text("So.")),
        message(3, "tool", result("x", "read_file"), result("x", "read_file")),
        message(4, "user", text("ok")),
    )
    assert talk(*rows) == [
        "user: hi",
        "assistant: So. read_file#x",
        "tool: read_file=x",
        "user: ok",
    ]


def test_a_result_for_an_earlier_answer_is_not_lost() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("a")),
        message(3, "assistant", text("Meanwhile.")),
        message(4, "tool", result("a")),
    )
    assert talk(*rows) == [
        "user: hi",
        "assistant: execute#a",
        "tool: execute=a!",
        "assistant: Meanwhile. execute#a_2",
        "tool: execute=a_2",
    ]


def test_a_chat_that_begins_with_a_result_gets_a_beginning() -> None:
    assert talk(message(1, "tool", result("x"))) == [
        f"user: {MISSING_START_TEXT}",
        "assistant: execute#x",
        "tool: execute=x",
    ]


def test_results_go_by_the_name_that_was_called() -> None:
    rows = (ASK, message(2, "assistant", call("a", "cat")), message(3, "tool", result("a", "read")))
    assert talk(*rows)[1:] == ["assistant: cat#a", "tool: cat=a"]


def test_a_tool_without_a_name_is_called_unknown() -> None:
    rows = (ASK, message(2, "assistant", call("a", "")), message(3, "tool", result("b", " ")))
    assert talk(*rows)[1:] == [
        "assistant: unknown#a",
        "tool: unknown=a!",
        "assistant: unknown#b",
        "tool: unknown=b",
    ]


# The provider's results


@pytest.mark.covers("prompt-3")
def test_a_providers_result_that_was_stored_apart_returns_to_its_call() -> None:
    search = call("s", "web_search", provider_executed=True)
    hits = result("s", "web_search", "[]", provider_executed=True)
    rows = (
        ASK,
        message(2, "assistant", search, text("So."), call("a")),
        message(3, "tool", hits),
        message(4, "tool", result("a")),
    )
    assert talk(*rows) == [
        "user: hi",
        "assistant: web_search*#s web_search*=s So. execute#a",
        "tool: execute=a",
    ]


@pytest.mark.covers("prompt-3")
def test_a_providers_result_without_its_call_is_left_out() -> None:
    hits = result("s", "web_search", "[]", provider_executed=True)
    rows = (
        ASK,
        message(2, "assistant", hits, text("So.")),
        message(3, "tool", hits),
        message(4, "tool", hits, result("x")),
    )
    assert talk(*rows) == ["user: hi", "assistant: So. execute#x", "tool: execute=x"]


@pytest.mark.covers("prompt-13")
def test_results_of_both_kinds_may_stand_side_by_side() -> None:
    search = call("s", "web_search", provider_executed=True)
    hits = result("s", "web_search", "[]", provider_executed=True)
    rows = (
        ASK,
        message(2, "assistant", search, hits, call("a")),
        message(3, "tool", result("a")),
    )
    assert talk(*rows)[1:] == [
        "assistant: web_search*#s web_search*=s execute#a",
        "tool: execute=a",
    ]


# Answers in a row


@pytest.mark.covers("prompt-13")
def test_answers_in_a_row_become_one() -> None:
    rows = (
        ASK,
        message(2, "assistant", text("One.")),
        message(3, "assistant", text("Two."), call("a")),
        message(4, "tool", result("a")),
    )
    assert talk(*rows) == ["user: hi", "assistant: One. Two. execute#a", "tool: execute=a"]


@pytest.mark.parametrize(
    "part",
    [
        ReasoningPart(text="hm"),
        TextPart(text="x", provider_metadata=SIGNED),
        ReasoningPart(text=""),
    ],
)
def test_only_signed_thoughts_keep_answers_apart(part: Part) -> None:
    rows = (
        ASK,
        message(2, "assistant", text("One."), part),
        message(3, "assistant", text("Two.")),
        message(4, "user", text("ok")),
    )
    assert len(talk(*rows)) == 3


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
    assert len(talk(*rows)) == 4


# Ids


def test_ids_are_made_of_what_every_provider_takes() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("call.1/ä"), call("call_1__")),
        message(3, "tool", result("call_1__", is_error=True)),
        message(4, "tool", result("call.1/ä")),
    )
    assert talk(*rows)[1:] == [
        "assistant: execute#call_1__ execute#call_1___2",
        "tool: execute=call_1__ execute=call_1___2!",
    ]


def test_an_id_that_comes_again_in_a_later_answer_is_told_under_another_name() -> None:
    rows = (
        ASK,
        message(2, "assistant", call("call-0")),
        message(3, "tool", result("call-0")),
        message(4, "assistant", call("call-0")),
        message(5, "tool", result("call-0", is_error=True)),
    )
    assert talk(*rows)[1:] == [
        "assistant: execute#call-0",
        "tool: execute=call-0",
        "assistant: execute#call-0_2",
        "tool: execute=call-0_2!",
    ]


def test_a_second_call_of_one_id_in_one_answer_is_left_out() -> None:
    rows = (ASK, message(2, "assistant", call("a"), call("a")), message(3, "tool", result("a")))
    assert talk(*rows)[1:] == ["assistant: execute#a", "tool: execute=a"]


def test_long_and_empty_ids_are_told_too() -> None:
    rows = (ASK, message(2, "assistant", call("x" * 100), call("x" * 99), call("")))
    prompt = build_prompt(rows, PromptTarget(provider="here"))
    ids = [part.id for part in prompt[1].parts if isinstance(part, PromptCall)]
    assert ids[0] == "x" * MAX_CALL_ID_CHARS
    assert ids[1] == "x" * (MAX_CALL_ID_CHARS - 8) + "_2"
    assert ids[2] == "call"


def test_the_providers_ids_are_its_own_and_ours_make_way() -> None:
    search = call("a", "web_search", provider_executed=True)
    rows = (
        ASK,
        message(2, "assistant", call("a")),
        message(3, "tool", result("a")),
        message(4, "assistant", search, text("So.")),
        message(5, "user", text("ok")),
    )
    assert talk(*rows)[1:4] == [
        "assistant: execute#a_2",
        "tool: execute=a_2",
        "assistant: web_search*#a So.",
    ]


@pytest.mark.covers("prompt-21")
def test_a_prompt_grows_at_its_end_and_stays_the_same_before_it() -> None:
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


def test_messages_that_need_nothing_are_left_as_they_are() -> None:
    prompt = build_prompt((ASK,), PromptTarget(provider="here"))
    assert prompt == (PromptMessage(role="user", parts=(PromptText(text="hi"),)),)
