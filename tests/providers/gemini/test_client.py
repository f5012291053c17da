"""The Gemini provider over a real socket."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.parts import TextPart
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import ModelEvent, ModelRequest, ProviderError, TextDelta
from chatd.domain.ports import Provider
from chatd.providers.config import ProviderConfig
from chatd.providers.gemini.client import GeminiProvider
from chatd.providers.http import HttpConfig
from chatd.providers.secret import Secret
from tests.support.providers.gemini import KEY, FakeGemini, error, stream
from tests.support.providers.prompts import call, message, request
from tests.support.providers.server import Cut, Gate, Reset, Silence
from tests.support.providers.stream_reader import answer_of, collect, collect_failure

MODEL = "gemini-2.5-flash"
WAIT_S = 30


@pytest.fixture
async def gemini(fake: FakeGemini) -> AsyncGenerator[GeminiProvider]:
    provider = GeminiProvider(settings(fake))
    yield provider
    await provider.close()


def settings(fake: FakeGemini, **more: object) -> ProviderConfig:
    plain = ProviderConfig(kind="google", api_key=Secret(KEY), base_url=fake.url)
    return msgspec.structs.replace(plain, **more)


async def ask(provider: Provider, sent: ModelRequest | None = None) -> list[ModelEvent]:
    return await collect(provider, sent or request(model=MODEL))


async def failure(provider: Provider, sent: ModelRequest | None = None) -> ProviderError:
    return await collect_failure(provider, sent or request(model=MODEL))


async def test_an_answer_is_read_over_a_socket(fake: FakeGemini, gemini: GeminiProvider) -> None:
    fake.script(stream("text"))
    answer = answer_of(await ask(gemini))
    assert answer.content == (
        TextPart(
            text="The sky looks blue because air scatters short waves"
            " more than long ones. 日本語 👩‍🚀"
        ),
    )


async def test_the_key_is_only_in_its_header(fake: FakeGemini, gemini: GeminiProvider) -> None:
    fake.script(stream("text"))
    await ask(gemini, request(model=MODEL, headers={"x-chat-id": "7", "x-goog-api-key": "no"}))
    [seen] = fake.requests
    assert seen.path == f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse"
    assert seen.headers["x-goog-api-key"] == KEY
    assert seen.headers["x-chat-id"] == "7"
    assert seen.headers["user-agent"].startswith("chatd/")
    assert KEY.encode() not in seen.body
    assert KEY not in repr(gemini.__dict__.get("_http")) + repr(gemini)


@pytest.mark.parametrize(
    ("base", "model", "path"),
    [
        ("", "gemini-2.5-flash", "/v1beta/models/gemini-2.5-flash"),
        ("/v1beta/", "gemini-2.5-flash", "/v1beta/models/gemini-2.5-flash"),
        ("/gate", "tunedModels/mine", "/gate/v1beta/tunedModels/mine"),
        (
            "/v1/projects/p/locations/global/publishers/google",
            "gemini-4-argon",
            "/v1/projects/p/locations/global/publishers/google/models/gemini-4-argon",
        ),
        ("", "odd name?", "/v1beta/models/odd%20name%3F"),
    ],
)
async def test_addresses_are_joined(fake: FakeGemini, base: str, model: str, path: str) -> None:
    provider = GeminiProvider(settings(fake, base_url=f"{fake.url}{base}"))
    fake.script(stream("text"))
    # The fake answers 404 at other addresses.
    with suppress(ProviderError):
        await ask(provider, request(model=model))
    await provider.close()
    assert fake.requests[0].path == f"{path}:streamGenerateContent?alt=sse"


async def test_a_configured_header_replaces_the_key(fake: FakeGemini) -> None:
    provider = GeminiProvider(settings(fake, api_key=None, headers={"X-Goog-Api-Key": Secret(KEY)}))
    fake.script(stream("text"))
    assert await ask(provider)
    await provider.close()


@pytest.mark.covers("providers-16")
async def test_a_missing_key_names_its_variable(fake: FakeGemini) -> None:
    with pytest.raises(ProviderError, match="GEMINI_API_KEY"):
        GeminiProvider(settings(fake, api_key=None))


async def test_an_invalid_key_is_classified_and_not_shown(fake: FakeGemini) -> None:
    provider = GeminiProvider(settings(fake, api_key=Secret("wrong-key-123456")))
    failed = await failure(provider)
    assert classify_fault(failed.fault).kind == "auth"
    assert "wrong-key" not in repr(failed) + repr(failed.fault) + repr(failed.args)
    assert failed.__context__ is None or "wrong-key" not in repr(failed.__context__)
    await provider.close()


async def test_a_rejection_quotes_the_api(fake: FakeGemini, gemini: GeminiProvider) -> None:
    sent = request(message("user", "Hi"), message("assistant", call("a")), model=MODEL)
    failed = await failure(gemini, sent)
    classified = classify_fault(failed.fault)
    expected = ("generic", False, 400)
    assert (classified.kind, classified.retryable, classified.error.status_code) == expected
    assert "number of function response parts" in (classified.error.detail or "")
    assert classified.error.provider == "google"


async def test_the_retry_delay_is_read_from_the_body_even_in_an_array(
    fake: FakeGemini, gemini: GeminiProvider
) -> None:
    wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12s"}
    fake.reply(429, [error(429, "RESOURCE_EXHAUSTED", "Quota exceeded.", wait)])
    failed = await failure(gemini)
    assert failed.fault.retry_after_s == 12
    assert failed.fault.type == "RESOURCE_EXHAUSTED"
    assert classify_fault(failed.fault).kind == "rate_limit"


async def test_a_prompt_that_is_too_long_is_a_context_overflow(
    fake: FakeGemini, gemini: GeminiProvider
) -> None:
    said = "The input token count (1048999) exceeds the maximum number of tokens allowed (1048576)."
    fake.reply(400, error(400, "INVALID_ARGUMENT", said))
    assert classify_fault((await failure(gemini)).fault).kind == "context_overflow"


async def test_an_error_during_the_stream_is_raised(
    fake: FakeGemini, gemini: GeminiProvider
) -> None:
    fake.script(stream("overloaded"))
    failed = await failure(gemini)
    assert (failed.fault.status_code, failed.fault.provider) == (503, "google")


@pytest.mark.covers("providers-12")
@pytest.mark.parametrize("name", ["cut", "malformed_call"])
async def test_an_answer_without_an_end_is_a_retryable_failure(
    fake: FakeGemini, gemini: GeminiProvider, name: str
) -> None:
    fake.script(stream(name))
    assert classify_fault((await failure(gemini)).fault).retryable


async def test_a_cut_is_raised_only_before_the_answer_is_complete(
    fake: FakeGemini, gemini: GeminiProvider
) -> None:
    fake.script(stream("text")[:200], Cut())
    assert (await failure(gemini)).fault.transport == "reset"
    fake.script(stream("text")[:400], Reset())
    assert (await failure(gemini)).fault.transport == "reset"
    fake.script(stream("text"), Cut())
    assert answer_of(await ask(gemini)).finished is not None


async def test_a_silent_server_times_out(fake: FakeGemini) -> None:
    provider = GeminiProvider(settings(fake, http=HttpConfig(read_timeout_s=0.05)))
    fake.script(stream("text")[:400], Silence())
    assert (await failure(provider)).fault.transport == "timeout"
    await provider.close()


async def test_deltas_are_passed_on_as_they_arrive(
    fake: FakeGemini, gemini: GeminiProvider
) -> None:
    data = stream("text")
    first = data.index(b"\r\n\r\n") + 4
    gate = Gate()
    fake.script(data[:first], gate, data[first:])
    async with asyncio.timeout(WAIT_S), gemini.stream(request(model=MODEL)) as events:
        seen = [await anext(events), await anext(events)]
        assert isinstance(seen[1], TextDelta)
        assert seen[1].delta == "The sky looks"
        gate.open()
        assert [event async for event in events]


async def test_leaving_early_closes_the_socket(fake: FakeGemini, gemini: GeminiProvider) -> None:
    fake.script(stream("text")[:400], Silence())
    async with asyncio.timeout(WAIT_S):
        async with gemini.stream(request(model=MODEL)) as events:
            await anext(events)
        await fake.disconnected.wait()


async def test_cancellation_closes_the_socket(fake: FakeGemini, gemini: GeminiProvider) -> None:
    gate = Gate()
    fake.script(stream("text")[:400], gate)
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        task = group.create_task(ask(gemini))
        await gate.reached.wait()
        task.cancel()
        await fake.disconnected.wait()


async def test_an_invalid_option_is_named_before_a_request_is_sent(
    fake: FakeGemini, gemini: GeminiProvider
) -> None:
    failed = await failure(gemini, request(model=MODEL, options=Raw(b'{"threshold":"ALL"}')))
    assert classify_fault(failed.fault).kind == "config"
    assert "threshold" in failed.fault.message
    assert fake.requests == []


async def test_equal_requests_give_equal_call_ids(fake: FakeGemini, gemini: GeminiProvider) -> None:
    fake.script(stream("calls_without_ids"))
    fake.script(stream("calls_without_ids"))
    fake.script(stream("calls_without_ids"))
    same = [await ask(gemini), await ask(gemini)]
    assert same[0] == same[1]
    other = await ask(gemini, request(message("user", "Other"), model=MODEL))
    assert other != same[0]
