"""The fakes reject what the APIs reject; otherwise tests with them would prove nothing."""

from typing import Any

import msgspec
import pytest

from tests.support.providers.openai_chat_rules import check as check_chat
from tests.support.providers.openai_responses_rules import check as check_responses
from tests.support.providers.openai_schema import OpenAiRefusal

Fields = dict[str, Any]

USER: Fields = {"type": "message", "role": "user", "content": "Hi"}
CALL: Fields = {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"}
OUTPUT: Fields = {"type": "function_call_output", "call_id": "c", "output": "ok"}
THOUGHT: Fields = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
SEARCH: Fields = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
SPOKEN: Fields = {"type": "message", "role": "assistant", "content": "Hello"}
COMPUTER: Fields = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "c",
    "pending_safety_checks": [{"id": "sc"}],
}
SCREEN: Fields = {"type": "computer_call_output", "call_id": "c", "output": {}}
NEEDS = {"ws_1": "rs_1"}


def tool(**more: object) -> Fields:
    return {"type": "function", "name": "t", "parameters": {"type": "object"}, **more}


def responses(*items: Fields, **more: object) -> None:
    body = {"model": "gpt-5", "stream": True, "input": [USER, *items], **more}
    check_responses(msgspec.json.encode(body), NEEDS)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([CALL], "No tool output found for function call c"),
        ([OUTPUT], "No tool call found for function call output with call_id c"),
        ([THOUGHT], "without its required following item"),
        ([THOUGHT, USER], "without its required following item"),
        (
            [SEARCH, SPOKEN],
            "of type 'web_search_call' was provided without its required 'reasoning'",
        ),
        ([{**THOUGHT, "encrypted_content": None}, SPOKEN], "not found"),
        ([{**CALL, "id": "msg_1"}, OUTPUT], "begins with 'fc'"),
        ([{**SPOKEN, "id": "msg_1"}, {**SPOKEN, "id": "msg_1"}], "Duplicate item"),
        ([COMPUTER, SCREEN], "not acknowledged"),
        ([COMPUTER, OUTPUT], "No tool call found"),
        ([{"type": "item_reference", "id": "rs_1"}], "Invalid value: 'item_reference'"),
        ([{**SPOKEN, "content": [{"type": "input_text", "text": "x"}]}], "Supported values"),
        ([{**SPOKEN, "role": "tool"}], "Invalid value: 'tool'"),
    ],
)
def test_the_responses_fake_rejects_invalid_histories(items: list[Fields], words: str) -> None:
    with pytest.raises(OpenAiRefusal) as refused:
        responses(*items)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"stream": False}, "not asked for"),
        ({"temperature": 1}, "'temperature' is not supported"),
        ({"model": "gpt-4o", "reasoning": {"effort": "low"}}, "'reasoning.effort'"),
        ({"model": "gpt-4o", "include": ["reasoning.encrypted_content"]}, "Encrypted content"),
        ({"max_output_tokens": 1}, ">= 16"),
        ({"top_k": 1}, "Unknown parameter"),
        ({"tools": [tool()]}, "'additionalProperties' must be false"),
        ({"tools": [tool(strict=False, name="a.b")]}, "does not match pattern"),
        ({"tools": [tool(strict=False, name="a" * 65)]}, "string too long"),
        ({"tools": [tool(strict=False, parameters={})]}, "type:"),
        ({"tools": [{"type": "flux_capacitor"}]}, "Invalid value: 'flux_capacitor'"),
        ({"tools": [{"type": "computer_use_preview"}]}, "Missing required parameter"),
        ({"tool_choice": {"type": "function", "name": "t"}}, "not found in 'tools'"),
    ],
)
def test_the_responses_fake_rejects_invalid_parameters(more: Fields, words: str) -> None:
    with pytest.raises(OpenAiRefusal) as refused:
        responses(**more)
    assert words in refused.value.message


def test_the_responses_fake_accepts_valid_requests() -> None:
    acknowledged = {**SCREEN, "acknowledged_safety_checks": [{"id": "sc"}]}
    responses(THOUGHT, SEARCH, SPOKEN, CALL, OUTPUT, COMPUTER, acknowledged)
    responses(tools=[tool(strict=False)], tool_choice={"type": "function", "name": "t"})


ASKED: Fields = {"role": "user", "content": "Hi"}
CALLS: Fields = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
}
ANSWER: Fields = {"role": "tool", "tool_call_id": "c", "content": "ok"}


def chat(*messages: Fields, openai: bool = True, **more: object) -> None:
    body = {"model": "gpt-4o", "stream": True, "messages": [ASKED, *messages], **more}
    check_chat(msgspec.json.encode(body), openai=openai)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([CALLS], "did not have response messages: c"),
        ([CALLS, ASKED, ANSWER], "did not have response messages: c"),
        ([ANSWER], "must be a response to a preceeding message"),
        ([CALLS, ANSWER, ANSWER], "must be a response to a preceeding message"),
        ([CALLS, {**ANSWER, "content": [{"type": "image_url"}]}], "only supported by user"),
        ([{"role": "assistant"}], "expected a string, got null"),
        ([{"role": "wizard", "content": "x"}], "Invalid value: 'wizard'"),
    ],
)
def test_the_chat_fake_rejects_invalid_histories(messages: list[Fields], words: str) -> None:
    with pytest.raises(OpenAiRefusal) as refused:
        chat(*messages)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"stream": False}, "not asked for"),
        ({"top_k": 1}, "Unrecognized request argument supplied: top_k"),
        ({"model": "gpt-5", "max_tokens": 9}, "Use 'max_completion_tokens' instead"),
        ({"model": "gpt-5", "temperature": 1}, "'temperature' does not support"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"parallel_tool_calls": True}, "only allowed when 'tools' are specified"),
        ({"tool_choice": "auto"}, "only allowed when 'tools' are specified"),
        ({"tools": list[Fields]()}, "too short"),
    ],
)
def test_the_chat_fake_rejects_invalid_parameters(more: Fields, words: str) -> None:
    with pytest.raises(OpenAiRefusal) as refused:
        chat(**more)
    assert words in refused.value.message


def test_the_compatible_fake_requires_alternating_roles() -> None:
    for messages in ([ASKED], [{"role": "system", "content": "x"}]):
        with pytest.raises(OpenAiRefusal):
            chat(*messages, openai=False)
        chat(*messages)
    chat(CALLS, ANSWER, {"role": "assistant", "content": "Hello"}, openai=False)
