"""The Anthropic provider over a real socket."""

import logging
from collections.abc import AsyncGenerator

import msgspec
import pytest

from chatd.domain.chat.parts import TextPart, ToolCallPart
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import ComputerTool
from chatd.providers.provider_config import Secret
from tests.support.providers.anthropic import KEY, FakeAnthropic, betas_of, refusal
from tests.support.providers.anthropic_requests import SIGNED, TOOLS, tool_round
from tests.support.providers.client import ClientRig, anthropic_rig
from tests.support.providers.prompts import message, replayed, request
from tests.support.providers.stream_reader import answer_of, collect, collect_failure

Claude = ClientRig[FakeAnthropic]


@pytest.fixture
async def claude() -> AsyncGenerator[Claude]:
    async with anthropic_rig() as rig:
        yield rig


async def test_an_answer_is_read_over_a_socket(claude: Claude) -> None:
    claude.fake.play("text")
    answer = answer_of(await claude.ask())
    assert answer.content == (TextPart(text='Grüß Gott, 世界 👋\n"quoted"'),)
    assert answer.usage is not None
    assert answer.usage.cache_read_tokens == 1820


async def test_the_api_accepts_a_round_of_tool_calls(claude: Claude) -> None:
    claude.fake.play("thinking_and_tools")
    claude.fake.play("text")
    sent = request(message("user", "Weather?"), model="claude-sonnet-4-6", tools=TOOLS)
    first = answer_of(await claude.ask(sent))
    calls = [part for part in first.content if isinstance(part, ToolCallPart)]
    assert len(calls) == 2
    again = msgspec.structs.replace(sent, messages=(*sent.messages, *replayed(first)))
    assert answer_of(await claude.ask(again)).has_visible_text


REFUSED_THINKING = {
    "type": "error",
    "error": {
        "type": "invalid_request_error",
        "message": "messages.1.content.0: Invalid `signature` in `thinking` block. The block is"
        " bound to a different conversation.",
    },
}


@pytest.mark.parametrize("effort", ["none", "high"])
async def test_thinking_that_the_api_refuses_is_left_out_of_a_second_request(
    claude: Claude, effort: str
) -> None:
    claude.fake.reply(400, REFUSED_THINKING)
    claude.fake.play("text")
    history = tool_round(SIGNED)
    sent = request(*history, model="claude-sonnet-5-5", tools=TOOLS, reasoning_effort=effort)
    assert answer_of(await claude.ask(sent)).has_visible_text
    first, second = claude.fake.requests
    assert b'"signature"' in first.body
    assert b'"signature"' not in second.body


async def test_a_server_that_refuses_to_start_thinking_gets_a_request_without_a_budget(
    claude: Claude,
) -> None:
    message = "messages.1.content.0.type: Expected `thinking`, but found `tool_use`. A final"
    message += " `assistant` message must start with a thinking block."
    claude.fake.reply(400, {"error": {"type": "invalid_request_error", "message": message}})
    claude.fake.play("text")
    sent = request(*tool_round(), model="claude-sonnet-4-5", tools=TOOLS, reasoning_effort="high")
    assert answer_of(await claude.ask(sent)).has_visible_text
    first, second = claude.fake.requests
    assert b'"budget_tokens"' in first.body
    assert b'"budget_tokens"' not in second.body


async def test_other_refusals_are_not_repeated(claude: Claude) -> None:
    claude.fake.reply(400, {"error": {"message": "thinking: no"}})
    await claude.failure()
    assert len(claude.fake.requests) == 1


# Requests


async def test_requests_carry_required_and_configured_headers(claude: Claude) -> None:
    own = {
        "X-Team": Secret("blue"),
        "anthropic-beta": Secret("novelty-2026-01-01"),
        "X-Chat-Id": Secret("chat {chat_id} of {owner_id}, {unknown}"),
        "X-Workspace": Secret("{workspace_id}"),
        "bad header": Secret("x"),
        "x-bad": Secret("a\r\nb: c"),
    }
    claude.fake.play("text")
    sent = request(
        model="claude-opus-4-6",
        computer=ComputerTool(width_px=800, height_px=600),
        ids={"chat_id": "7", "owner_id": "ann"},
    )
    async with claude.provider(name="work", headers=own) as provider:
        assert provider.name == "work"
        await collect(provider, sent)
    (seen,) = claude.fake.requests
    assert (seen.method, seen.path) == ("POST", "/v1/messages")
    assert seen.headers["x-api-key"] == KEY
    assert seen.headers["anthropic-version"] == "2023-06-01"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["accept"] == "text/event-stream"
    assert seen.headers["user-agent"].startswith("chatd/")
    assert seen.headers["x-chat-id"] == "chat 7 of ann, {unknown}"
    assert seen.headers["x-team"] == "blue"
    assert not {"x-workspace", "bad header", "x-bad", "b"} & set(seen.headers)
    assert betas_of(seen) == {"computer-use-2025-11-24", "novelty-2026-01-01"}
    assert seen.json["model"] == "claude-opus-4-6"
    assert seen.json["stream"] is True
    assert KEY.encode() not in seen.body


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
async def test_a_base_url_may_include_the_version(tail: str, claude: Claude) -> None:
    claude.fake.play("text")
    await claude.ask(base_url=claude.fake.url + tail)
    assert claude.fake.requests[0].path == "/v1/messages"


async def test_a_configured_authorization_header_replaces_the_key(claude: Claude) -> None:
    own = {"Authorization": Secret(f"Bearer {KEY}")}
    claude.fake.play("text")
    await claude.ask(api_key=None, headers=own)
    assert "x-api-key" not in claude.fake.requests[0].headers


# Failures


@pytest.mark.parametrize(
    ("status", "kind", "said", "means"),
    [
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8", "context_overflow"),
        (400, "invalid_request_error", "Your credit balance is too low", "usage_limit"),
        (401, "authentication_error", "invalid x-api-key", "auth"),
        (403, "permission_error", "not allowed", "auth"),
        (404, "not_found_error", "model: claude-9", "config"),
        (413, "request_too_large", "Request exceeds the maximum size", "context_overflow"),
        (429, "rate_limit_error", "Slow down", "rate_limit"),
        (500, "api_error", "Internal server error", "generic"),
        (504, "timeout_error", "Timed out", "timeout"),
        (529, "overloaded_error", "Overloaded", "overloaded"),
    ],
)
async def test_a_rejection_by_the_api_is_classified(
    status: int, kind: str, said: str, means: str, claude: Claude
) -> None:
    claude.fake.answer_with(refusal(status, kind, said, **{"retry-after": "3"}))
    fault = (await claude.failure()).fault
    assert (fault.status_code, fault.type, fault.retry_after_s) == (status, kind, 3)
    assert classify_fault(fault).kind == means


async def test_the_api_error_message_is_quoted(claude: Claude) -> None:
    sent = request(*tool_round()[:3], message("user", "?"), model=claude.model)
    detail = classify_fault((await claude.failure(sent)).fault).error.detail or ""
    assert "`tool_use` ids were found without `tool_result` blocks" in detail


async def test_the_key_appears_in_no_error_or_log(
    claude: Claude, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    claude.fake.answer_with(refusal(401, "authentication_error", f"invalid x-api-key {KEY}"))
    async with claude.provider() as provider:
        error = await collect_failure(provider, request(model=claude.model))
    shown = [repr(claude.config), repr(provider), repr(error), repr(error.args), str(error)]
    shown += [repr(error.fault), repr(classify_fault(error.fault)), caplog.text]
    assert not any(KEY in text for text in shown)
    assert error.__cause__ is None
    assert error.__context__ is None
