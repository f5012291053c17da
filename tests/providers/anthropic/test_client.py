"""The Anthropic provider over a real socket."""

import asyncio
import logging
from collections.abc import AsyncGenerator

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.parts import TextPart, ToolCallPart
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import (
    ComputerTool,
    Finished,
    ModelEvent,
    ModelRequest,
    ProviderError,
    TextDelta,
)
from chatd.domain.ports import Provider
from chatd.providers.anthropic.client import AnthropicProvider
from chatd.providers.config import ProviderConfig
from chatd.providers.http import HttpConfig
from chatd.providers.secret import Secret
from tests.support.providers.anthropic import KEY, FakeAnthropic, betas_of, refusal
from tests.support.providers.anthropic_requests import TOOLS, tool_round
from tests.support.providers.prompts import message, replayed, request, result
from tests.support.providers.server import Cut, Gate, Reset, Silence
from tests.support.providers.stream_reader import answer_of, collect, collect_failure

MODEL = "claude-sonnet-4-5"
WAIT_S = 30


@pytest.fixture
async def claude(fake: FakeAnthropic) -> AsyncGenerator[AnthropicProvider]:
    provider = AnthropicProvider(settings(fake))
    yield provider
    await provider.close()


def settings(fake: FakeAnthropic, **more: object) -> ProviderConfig:
    plain = ProviderConfig(kind="anthropic", api_key=Secret(KEY), base_url=fake.url)
    return msgspec.structs.replace(plain, **more)


async def ask(provider: Provider, sent: ModelRequest | None = None) -> list[ModelEvent]:
    return await collect(provider, sent or request(model=MODEL))


async def failure(provider: Provider, sent: ModelRequest | None = None) -> ProviderError:
    return await collect_failure(provider, sent or request(model=MODEL))


async def test_an_answer_is_read_over_a_socket(
    fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    fake.play("text")
    answer = answer_of(await ask(claude))
    assert answer.content == (TextPart(text='Grüß Gott, 世界 👋\n"quoted"'),)
    assert answer.usage is not None
    assert answer.usage.cache_read_tokens == 1820


async def test_deltas_are_passed_on_as_they_arrive(
    fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    gate = Gate()
    fake.script_text("Once upon", gate, " a time")
    async with asyncio.timeout(WAIT_S), claude.stream(request(model=MODEL)) as events:
        await anext(events)
        assert await anext(events) == TextDelta(id="0", delta="Once upon")
        await gate.reached.wait()
        gate.open()
        assert await anext(events) == TextDelta(id="0", delta=" a time")
        rest = [event async for event in events]
    assert isinstance(rest[-1], Finished)


async def test_the_api_accepts_a_round_of_tool_calls(
    fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    fake.play("thinking_and_tools")
    fake.play("text")
    sent = request(message("user", "Weather?"), model="claude-sonnet-4-6", tools=TOOLS)
    first = answer_of(await ask(claude, sent))
    calls = [part for part in first.content if isinstance(part, ToolCallPart)]
    assert len(calls) == 2
    again = msgspec.structs.replace(sent, messages=(*sent.messages, *replayed(first)))
    assert answer_of(await ask(claude, again)).has_visible_text


# Requests


async def test_requests_carry_required_and_configured_headers(fake: FakeAnthropic) -> None:
    provider = AnthropicProvider(
        settings(
            fake,
            name="work",
            headers={"X-Team": Secret("blue"), "anthropic-beta": Secret("novelty-2026-01-01")},
        )
    )
    fake.play("text")
    sent = request(
        model="claude-opus-4-6",
        computer=ComputerTool(width_px=800, height_px=600),
        headers={"x-chat-id": "7", "X-Api-Key": "no", "bad header": "x", "x-bad": "a\r\nb: c"},
    )
    await ask(provider, sent)
    await provider.close()
    (seen,) = fake.requests
    assert (seen.method, seen.path) == ("POST", "/v1/messages")
    assert seen.headers["x-api-key"] == KEY
    assert seen.headers["anthropic-version"] == "2023-06-01"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["accept"] == "text/event-stream"
    assert seen.headers["user-agent"].startswith("chatd/")
    assert seen.headers["x-chat-id"] == "7"
    assert seen.headers["x-team"] == "blue"
    assert not {"bad header", "x-bad", "b"} & set(seen.headers)
    assert betas_of(seen) == {"computer-use-2025-11-24", "novelty-2026-01-01"}
    assert seen.json["model"] == "claude-opus-4-6"
    assert seen.json["stream"] is True
    assert KEY.encode() not in seen.body
    assert provider.name == "work"


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
async def test_a_base_url_may_include_the_version(tail: str, fake: FakeAnthropic) -> None:
    provider = AnthropicProvider(settings(fake, base_url=fake.url + tail))
    fake.play("text")
    await ask(provider)
    await provider.close()
    assert fake.requests[0].path == "/v1/messages"


async def test_a_configured_authorization_header_replaces_the_key(fake: FakeAnthropic) -> None:
    own = {"Authorization": Secret(f"Bearer {KEY}")}
    provider = AnthropicProvider(settings(fake, api_key=None, headers=own))
    fake.play("text")
    await ask(provider)
    await provider.close()
    assert "x-api-key" not in fake.requests[0].headers


async def test_an_invalid_option_is_named_before_a_request_is_sent(
    fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    sent = request(model=MODEL, options=Raw(b'{"thinking":{"budget_tokens":7}}'))
    error = await failure(claude, sent)
    classified = classify_fault(error.fault)
    assert classified.kind == "config"
    assert "options.thinking.budget_tokens" in (classified.error.detail or "")
    assert fake.requests == []


# Failures


async def test_a_cancelled_task_closes_the_socket(
    fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    gate = Gate()
    fake.script_text("Once upon", gate)
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        reading = group.create_task(ask(claude))
        await gate.reached.wait()
        assert not fake.disconnected.is_set()
        reading.cancel()
        await fake.disconnected.wait()
        await fake.requests[0].disconnected.wait()


async def test_closing_the_provider_ends_its_streams(
    fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    gate = Gate()
    fake.script_text("Once upon", gate)
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        reading = group.create_task(failure(claude))
        await gate.reached.wait()
        await claude.close()
        assert classify_fault((await reading).fault).retryable


@pytest.mark.parametrize("ending", [Cut(), Reset()])
async def test_a_cut_inside_an_event_is_reported(
    ending: Cut | Reset, fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    fake.script_text("Once", b'event: content_block_delta\ndata: {"type":"con', ending)
    error = await failure(claude)
    assert (error.fault.transport, error.fault.provider) == ("reset", "anthropic")


async def test_an_answer_without_a_final_event_is_incomplete(
    fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    fake.play("cut_off")
    fault = (await failure(claude)).fault
    assert fault.incomplete
    assert classify_fault(fault).retryable


async def test_a_silent_server_times_out(fake: FakeAnthropic) -> None:
    provider = AnthropicProvider(settings(fake, http=HttpConfig(read_timeout_s=0.05)))
    fake.script_text("Once", Silence())
    assert (await failure(provider)).fault.transport == "timeout"
    await provider.close()


async def test_an_error_during_the_stream_is_raised_with_its_type(
    fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    fake.play("error_midway")
    fault = (await failure(claude)).fault
    assert (fault.type, fault.provider) == ("overloaded_error", "anthropic")


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
    status: int, kind: str, said: str, means: str, fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    fake.answer_with(refusal(status, kind, said, **{"retry-after": "3"}))
    fault = (await failure(claude)).fault
    assert (fault.status_code, fault.type, fault.retry_after_s) == (status, kind, 3)
    assert classify_fault(fault).kind == means


async def test_the_api_error_message_is_quoted(
    fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    sent = request(*tool_round()[:3], message("user", "?"), model=MODEL)
    detail = classify_fault((await failure(claude, sent)).fault).error.detail or ""
    assert "`tool_use` ids were found without `tool_result` blocks" in detail


async def test_the_fake_rejects_a_result_without_a_call(
    fake: FakeAnthropic, claude: AnthropicProvider
) -> None:
    sent = request(message("user", "Hi"), message("tool", result("toolu_9")), model=MODEL)
    detail = classify_fault((await failure(claude, sent)).fault).error.detail or ""
    assert "unexpected `tool_use_id`" in detail


async def test_the_key_appears_in_no_error_or_log(
    fake: FakeAnthropic, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    provider = AnthropicProvider(settings(fake))
    fake.answer_with(refusal(401, "authentication_error", f"invalid x-api-key {KEY}"))
    error = await failure(provider)
    await provider.close()
    shown = [repr(settings(fake)), repr(provider), repr(error), repr(error.args), str(error)]
    shown += [repr(error.fault), repr(classify_fault(error.fault)), caplog.text]
    assert not any(KEY in text for text in shown)
    assert error.__cause__ is None
    assert error.__context__ is None
